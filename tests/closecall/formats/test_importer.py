"""What an import reads, refuses and leaves behind."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from closecall.dataset import DataConfig, load_dataset
from closecall.errors import ConfigError, DataError
from closecall.formats.columns import parse_choices
from closecall.formats.hub import of_ir
from closecall.formats.importer import import_set
from closecall.formats.parts import text_id
from closecall.formats.source import Asked


@pytest.fixture
def place(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(text, bytes):
                path.write_bytes(text)
            else:
                path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def imported(folder, source=".", **asked):
    import_set(Asked(str(folder / source) if source else "", **asked), folder / "out")
    return load_dataset(DataConfig(folder=folder / "out"))


CORPUS = "id;title;text\r\n007;;Reset your password\r\n1e5;NA;null\r\n"
QUERIES = "query_id,question,lang\nq1,How do I reset it?,en\nnan,who?,de\n"


def test_csv_as_excel_writes_it_keeps_ids_as_text(place):
    folder = place(
        {
            "corpus.csv": b"\xef\xbb\xbfsep=;\r\n" + CORPUS.encode(),
            "queries.csv": QUERIES.encode("utf-16"),
            "qrels.csv": "query_id,doc_id,rating\nq1,007,2\nnan,1e5,1.0\nq1,1e5,0\n",
        }
    )
    found = imported(folder)

    assert [(d.doc_id, d.title, d.text) for d in found.documents] == [
        ("007", "", "Reset your password"),
        ("1e5", "NA", "null"),
    ]
    assert [(q.query_id, q.text, q.metadata) for q in found.queries] == [
        ("q1", "How do I reset it?", {"lang": "en"}),
        ("nan", "who?", {"lang": "de"}),
    ]
    assert list(found.qrels.judgments()) == [("q1", "007", 2), ("q1", "1e5", 0), ("nan", "1e5", 1)]


def test_a_beir_folder_with_gz_null_titles_and_float_grades_is_read(place):
    line = json.dumps({"_id": "d1", "title": None, "text": "one", "metadata": {"year": 1999}})
    folder = place(
        {
            "corpus.jsonl.gz": gzip.compress(line.encode() + b"\n"),
            "queries.jsonl": '{"_id": "q1", "text": "eins", "metadata": {}}\n',
            "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1.0\n",
        }
    )
    found = imported(folder)

    assert found.documents[0].metadata == {"year": 1999}
    assert found.queries[0].metadata == {}
    assert found.own_splits is None, "test alone is no split"


def test_validation_is_dev_and_splits_are_kept(place):
    folder = place(
        {
            "corpus.jsonl": '{"_id": "d1", "text": "one"}\n',
            "queries.jsonl": "".join(f'{{"_id": "q{n}", "text": "q {n}"}}\n' for n in range(3)),
            **{f"qrels/{name}.tsv": f"q{n}\td1\t1\n" for n, name in enumerate(("train", "validation", "test"))},
        }
    )
    assert imported(folder).own_splits == {"train": ("q0",), "dev": ("q1",), "test": ("q2",)}


def test_one_table_of_judged_rows_gives_documents_queries_and_judgments(place):
    folder = place({"rows.csv": 'query,document,label\nfoo,"a, b\nc",1\nfoo,d,0\nbar,"a, b\nc",2\n'})
    found = imported(folder, "rows.csv")

    assert sorted(d.text for d in found.documents) == ["a, b\nc", "d"]
    assert sorted(q.text for q in found.queries) == ["bar", "foo"]
    assert sorted(grade for _, _, grade in found.qrels.judgments()) == [0, 1, 2]


def test_negatives_of_triplets_are_documents_and_not_judgments(place):
    rows = [{"anchor": "foo", "positive": "yes", "negative": "no", "negative_2": "never"}]
    folder = place({"triplets.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    found = imported(folder, "triplets.jsonl")

    assert sorted(d.text for d in found.documents) == ["never", "no", "yes"]
    assert list(found.qrels.judgments()) == [(text_id("q", "foo"), text_id("d", "yes"), 1)]


def test_columns_can_be_named(place):
    folder = place(
        {
            "c.csv": "nummer,inhalt\n1,eins\n",
            "q.csv": "_id,text\nq1,frage\n",
            "j.csv": "frage,nummer,note\nq1,1,3\n",
        }
    )
    asked = {"corpus": folder / "c.csv", "queries": folder / "q.csv", "qrels": folder / "j.csv"}
    with pytest.raises(DataError, match=r"c.csv: no column for doc_id or id; found nummer, inhalt"):
        imported(folder, "", **asked)
    chosen = parse_choices(["doc_id=nummer", "document=inhalt", "query_id=frage", "grade=note"])
    assert list(imported(folder, "", columns=chosen, **asked).qrels.judgments()) == [("q1", "1", 3)]


def test_an_unknown_role_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="--column docid=x: expected ROLE=COLUMN; roles: query_id"):
        parse_choices(["docid=x"])


def test_the_provenance_names_files_hashes_and_columns(place):
    folder = place(
        {
            "judged.yaml": "- {query_id: q1, query: foo, relevant_docs: {d1: 2}}\n",
            "c.jsonl": '{"_id": "d1", "text": "one"}\n',
        }
    )
    found = import_set(Asked(str(folder / "judged.yaml"), corpus=folder / "c.jsonl"), folder / "out")
    told = json.loads((folder / "out" / "provenance.json").read_text())

    assert told["counts"] == found.counts == {"documents": 1, "queries": 1, "judgments": 1}
    assert [(one["name"], len(one["sha256"])) for one in told["files"]] == [("judged.yaml", 64), ("c.jsonl", 64)]
    assert told["columns"]["judged.yaml"] == "query_id <- query_id, query <- query, relevant_docs <- relevant_docs"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("qrels.csv", "query_id,doc_id,grade\nq1,d1,1\nq1,d9,1\n", r"line 3: doc_id 'd9' is not in \S*corpus.jsonl"),
        ("qrels.csv", "query_id,doc_id,grade\nq1,d1,much\n", r"qrels.csv line 2: grade 'much' is no whole number"),
        ("qrels.csv", "query_id,doc_id,grade\nq1,d1\n", r"qrels.csv line 2: 2 cells, the header has 3"),
        ("qrels.csv", 'query_id,doc_id,grade\nq1,"d1,1\n', r"qrels.csv line 2: a quote is opened and never closed"),
        ("qrels.csv", "query_id,doc_id,grade,grade\nq1,d1,1,1\n", r"csv line 1: the header has column 'grade' twice"),
        ("qrels.csv", b"query_id,doc_id,grade\nq1,d\xff,1\n", r"qrels.csv after line \d: not UTF-8"),
        ("qrels.csv", "", r"qrels.csv: is empty; expected a header and rows"),
        ("qrels.csv", "query_id,doc_id,grade\nq1,d1,1\nq1,d1,2\n", r"line 3: .* grade 2, but grade 1 at \S*csv line 2"),
        ("qrels.csv", "query_id,doc_id,grade,split\nq1,d1,1,maybe\n", r"line 2: split 'maybe'; expected train, dev"),
        ("qrels.parquet", b"PAR1 no", r"qrels.parquet cannot be read as Parquet"),
        ("qrels.json", '{"judgmentRatings": 3}', r"qrels.json: judgmentRatings is no list"),
        ("qrels.json", "[1, {]", r"qrels.json line 1 column 6: not valid JSON"),
    ],
)  # fmt: skip
def test_a_fault_names_the_file_and_line_of_the_source_and_leaves_nothing(place, name, text, fault):
    folder = place(
        {
            name: text,
            "corpus.jsonl": '{"_id": "d1", "text": "one"}\n',
            "queries.jsonl": '{"_id": "q1", "text": "foo"}\n',
        }
    )
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match=fault):
        imported(folder)
    assert sorted(folder.iterdir()) == before


def test_a_folder_that_holds_something_is_not_written_into(place):
    folder = place({"out/mine.txt": "precious", "rows.csv": "query,document,label\nfoo,a,1\n"})
    with pytest.raises(ConfigError, match="is there already and holds something"):
        import_set(Asked(str(folder / "rows.csv")), folder / "out")
    assert (folder / "out" / "mine.txt").read_text() == "precious"


def test_judgments_that_name_queries_by_text_find_the_ids_of_given_queries(place):
    folder = place(
        {
            "book.csv": "query,docid,rating\nfoo,d1,3\nbar,d1,0\n",
            "queries.jsonl": '{"_id": "q7", "text": "foo", "lang": "en"}\n',
            "corpus.jsonl": '{"_id": "d1", "text": "one"}\n',
        }
    )
    found = imported(folder, "book.csv", queries=folder / "queries.jsonl", corpus=folder / "corpus.jsonl")

    assert {q.query_id: q.text for q in found.queries} == {"q7": "foo", text_id("q", "bar"): "bar"}
    assert sorted(found.qrels.judgments()) == sorted([("q7", "d1", 3), (text_id("q", "bar"), "d1", 0)])


CHUNKS = [
    {"_id": "a-1", "text": "history of the house", "source_document": "a"},
    {"_id": "a-2", "text": "reset a password here", "source_document": "a"},
    {"_id": "b-1", "text": "other things", "source_document": "b"},
    {"_id": "b-2", "text": "more things", "source_document": "b"},
]


def chunked(place, qrels):
    return place(
        {
            "corpus.jsonl": "".join(json.dumps(one) + "\n" for one in CHUNKS),
            "queries.jsonl": '{"_id": "q1", "text": "password reset"}\n',
            "qrels.tsv": qrels,
        }
    )


def test_a_documents_grade_goes_to_its_best_chunk_and_grade_0_to_all(place):
    folder = chunked(place, "q1\ta\t2\nq1\tb\t0\n")
    import_set(Asked(str(folder)), folder / "out", chunks="to-chunks")
    found = load_dataset(DataConfig(folder=folder / "out")).qrels

    assert dict(found.grades("q1")) == {"a-2": 2, "b-1": 0, "b-2": 0}


def test_a_document_has_the_grade_of_its_best_chunk(place):
    folder = chunked(place, "q1\ta-1\t0\nq1\ta-2\t3\nq1\tb-1\t0\n")
    import_set(Asked(str(folder)), folder / "out", chunks="to-documents")
    found = load_dataset(DataConfig(folder=folder / "out"))

    assert dict(found.qrels.grades("q1")) == {"a": 3, "b": 0}
    assert [d.text for d in found.documents] == [
        "history of the house\nreset a password here",
        "other things\nmore things",
    ]


def test_judgments_of_documents_without_chunks_are_refused(place):
    folder = chunked(place, "q1\tz\t1\n")
    with pytest.raises(DataError, match="document 'z' has no chunk in the corpus"):
        import_set(Asked(str(folder)), folder / "out", chunks="to-chunks")


def test_a_run_is_taken_along(place):
    folder = chunked(place, "q1\ta-2\t1\n")
    (folder / "bm25.run").write_text("q1 Q0 a-2 1 3.5 x\n")
    import_set(Asked(str(folder), runs=(folder / "bm25.run",)), folder / "out")
    assert (folder / "out" / "runs" / "bm25.trec").read_text() == "q1 Q0 a-2 1 3.500000 bm25\n"


def test_what_ir_datasets_gives_is_a_judged_set():
    class Rows:
        def __init__(self, **values):
            self.__dict__ |= values

        def _asdict(self):
            return dict(self.__dict__)

    dataset = SimpleNamespace(
        has_docs=lambda: True, has_queries=lambda: True, has_qrels=lambda: True,
        docs_iter=lambda: iter([Rows(doc_id="d1", text="one", title="", url="u")]),
        queries_iter=lambda: iter([Rows(query_id="q1", text="foo")]),
        qrels_iter=lambda: iter([Rows(query_id="q1", doc_id="d1", relevance=2, iteration="0"),
                                 Rows(query_id="q1", doc_id="d1", relevance=-1, iteration="0")]),
    )  # fmt: skip
    found, faults = of_ir(dataset, Path("cran")), []

    assert [one.value for part in found.documents for one in part.rows(faults)] == [
        {"_id": "d1", "text": "one", "url": "u"}
    ]
    assert [tuple(one.value) for part in found.judgments for one in part.rows(faults)] == [("q1", "d1", 2, "")]
    assert faults == ["cran/qrels row 2: grade -1 of query 'q1' is negative; say what it means, and map it to one >= 0"]
