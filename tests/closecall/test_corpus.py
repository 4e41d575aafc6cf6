import gzip

import pytest

from closecall.corpus import Documents, Ids, Index, Texts, by_id
from closecall.corpus_file import read_corpus_file
from closecall.errors import DataError
from closecall.records import Document

CORPUS = (
    '\ufeff{"_id": "b", "title": "T", "text": "é x"}\r\n\n{"_id": 7, "text": "y", "n": 1}\r{"_id": "a", "text": "z"}'
)
EXPECTED = [Document("b", "é x", "T"), Document("7", "y", "", {"n": 1}), Document("a", "z")]


@pytest.fixture(params=["corpus.jsonl", "corpus.jsonl.gz"])
def documents(request, tmp_path):
    content = CORPUS.encode()
    path = tmp_path / request.param
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return read_corpus_file(path).documents


def test_documents_are_read_by_row_slice_order_and_id_whatever_ends_the_lines(documents):
    assert isinstance(documents, Documents)
    assert list(documents) == documents[:] == [documents[row] for row in range(3)] == EXPECTED
    assert documents[-1] == EXPECTED[2]
    assert dict(by_id(documents)) == {"b": EXPECTED[0], "7": EXPECTED[1], "a": EXPECTED[2]}
    assert list(Texts(documents)) == Texts(documents)[0:3] == ["T é x", "y", "z"]


def test_an_unknown_id_and_a_row_past_the_end_are_errors(documents):
    assert "c" not in documents.ids
    with pytest.raises(KeyError):
        by_id(documents)["c"]
    with pytest.raises(IndexError):
        documents[3]


def test_a_corpus_that_is_overwritten_while_in_use_is_an_error(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "one"}\n')
    documents = read_corpus_file(path).documents
    path.write_text('{"_id": "b", "text": "two"}\n')
    with pytest.raises(DataError, match="changed while it was in use"):
        documents[0]


def test_ids_with_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr("closecall.corpus.hash", lambda name: 5, raising=False)
    index = Index()
    for name in ("x", "y", "x", "z"):
        index.add(name, 1, 0, 1)
    ids = index.ids()
    assert isinstance(ids, Ids)
    assert [ids.row(name) for name in ("x", "y", "z", "w")] == [0, 1, 3, None]
    assert list(ids.groups()) == [[0, 2]]
