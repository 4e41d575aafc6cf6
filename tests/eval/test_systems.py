"""Systems over a corpus of twelve documents whose vectors are made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from closecall.errors import ConfigError, ModelError
from closecall.records import Document, Query, Run, ScoredDoc
from closecall.search import NOTHING
from closecall.vectors import VectorStore
from eval.build import Builder, Contender
from eval.config import EvalConfig
from eval.contenders import ContenderConfig
from eval.quantised import bytes_per_vector
from eval.systems import Dense, Fused, Lexical, Reranked, RunFile, Searched

WORDS = ["red", "green", "blue", "round", "square", "long"]
DOCUMENTS = [Document(f"d{n:02}", f"{WORDS[n % 3]} {WORDS[3 + n % 2]} thing{n}") for n in range(12)]
QUERIES = [Query("q0", "red round"), Query("q1", "blue square"), Query("q2", "nothing known")]
CORPUS = Searched(DOCUMENTS)
WIDTH = 16


class Encoder:
    """Random unit vectors by text; near the same for texts that share words."""

    fingerprint = "hand"
    weights_sha256 = "w"
    dimension = WIDTH
    max_length_tokens = 0
    device = "cpu"

    def encode(self, texts, role):
        vectors = [sum(self._word(word) for word in text.split()) for text in texts]
        return np.asarray([vector / np.linalg.norm(vector) for vector in vectors], dtype=np.float32)

    def _word(self, word):
        return np.random.default_rng(sum(map(ord, word))).normal(size=WIDTH)


@pytest.fixture
def dense(tmp_path):
    def make(**settings):
        return Dense(CORPUS, Encoder(), VectorStore(tmp_path / "vectors"), "hand", **settings)

    return make


def ids(hits, line):
    return [DOCUMENTS[row].doc_id for row in hits.rows[line] if row != NOTHING]


def by_cosine(query, dimensions=WIDTH):
    """All documents by the cosine of their first dimensions, ties by id."""
    found = Encoder().encode([query, *CORPUS.texts], "document")[:, :dimensions]
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    scores = np.round((found[1:] @ found[0]).astype(np.float64), 6)
    return [DOCUMENTS[row].doc_id for row in np.lexsort((CORPUS.doc_ids, -scores))]


@pytest.mark.parametrize("dimensions", [None, 5])
def test_vectors_are_cut_to_their_first_dimensions_and_made_unit_again(dense, dimensions):
    hits = dense(dimensions=dimensions).search(QUERIES, 6)
    for line, query in enumerate(QUERIES):
        assert ids(hits, line) == by_cosine(query.text, dimensions or WIDTH)[:6]
    assert (np.abs(hits.scores) <= 1).all()


@pytest.mark.parametrize("quantise", ["int8", "binary"])
def test_quantised_search_that_fetches_all_and_rescores_is_exact(dense, quantise):
    hits = dense(quantise=quantise, rescore=12).search(QUERIES, 6)
    assert [ids(hits, line) for line in range(3)] == [by_cosine(query.text)[:6] for query in QUERIES]


def test_binary_search_without_rescoring_goes_by_the_signs_alone(dense):
    hits = dense(quantise="binary", rescore=1).search(QUERIES[:1], 4)
    signs = Encoder().encode([QUERIES[0].text, *CORPUS.texts], "document") > 0
    distance = (signs[1:] != signs[0]).sum(axis=1)
    assert max(distance[row] for row in hits.rows[0]) <= sorted(distance)[3]


def test_bytes_of_a_vector_are_4_1_and_an_eighth_per_dimension():
    assert [bytes_per_vector(384, how) for how in (None, "int8", "binary")] == [1536, 384, 48]
    assert bytes_per_vector(12, "binary") == 2


def test_a_search_among_some_documents_ranks_those_alone(dense):
    only = np.asarray([1, 4, 7])
    for system in (dense(), Lexical(CORPUS), Fused(CORPUS, [dense(), Lexical(CORPUS)])):
        rows = system.search(QUERIES[:2], 5, only).rows
        assert set(rows[rows != NOTHING].tolist()) <= {1, 4, 7}
        assert (rows[0] != NOTHING).any()
    assert ids(dense().search(QUERIES[:1], 5, only), 0) == [
        d for d in by_cosine("red round") if d in ("d01", "d04", "d07")
    ]


def test_fusion_adds_the_reciprocal_ranks():
    first = RunFile(Run({"q0": [ScoredDoc("d01", 9), ScoredDoc("d02", 8)]}), CORPUS)
    second = RunFile(Run({"q0": [ScoredDoc("d02", 5), ScoredDoc("d03", 4)], "q1": [ScoredDoc("d05", 1)]}), CORPUS)
    hits = Fused(CORPUS, [first, second]).search(QUERIES[:2], 10)
    assert ids(hits, 0) == ["d02", "d01", "d03"]  # 1/62 + 1/61, 1/61, 1/62
    np.testing.assert_allclose(hits.scores[0][:3], [1 / 62 + 1 / 61, 1 / 61, 1 / 62], atol=1e-6)
    assert ids(hits, 1) == ["d05"]


def test_ranks_equal_after_fusion_go_by_document_id():
    first = RunFile(Run({"q0": [ScoredDoc("d07", 2), ScoredDoc("d03", 1)]}), CORPUS)
    second = RunFile(Run({"q0": [ScoredDoc("d03", 2), ScoredDoc("d07", 1)]}), CORPUS)
    assert ids(Fused(CORPUS, [first, second]).search(QUERIES[:1], 10), 0) == ["d03", "d07"]


def test_a_run_keeps_the_ranks_of_documents_that_the_corpus_lacks():
    run = RunFile(Run({"q1": [ScoredDoc("elsewhere", 3), ScoredDoc("d04", 2)]}), CORPUS)
    rows = run.search(QUERIES, 2).rows
    assert [run.doc_ids[row] for row in rows[1]] == ["elsewhere", "d04"]
    assert (rows[0] == NOTHING).all()
    assert (rows[2] == NOTHING).all()


def scorer(scores):
    """A cross-encoder that scores the documents by name; it counts what it is asked."""
    asked = []

    def pair_scores(pairs):
        asked.extend(pairs)
        return np.asarray([scores[text] for _, text in pairs])

    fault = lambda pair: ModelError(f"no score for {pair}")  # noqa: E731
    return SimpleNamespace(pair_scores=pair_scores, predict=pair_scores, asked=asked, not_finite=fault)


def test_a_reranker_orders_the_first_documents_and_leaves_the_others_behind_them(dense):
    before = by_cosine("red round")
    scores = {text: float(-place) for place, text in enumerate(CORPUS.texts)}
    found = scorer(scores)
    hits = Reranked(CORPUS, dense(), found, 4).search(QUERIES[:1], 8)
    assert ids(hits, 0) == sorted(before[:4]) + before[4:8]
    assert len(found.asked) == 4
    assert (np.diff(hits.scores[0]) <= 0).all()


def test_a_reranker_that_gives_no_number_is_named_not_ranked(dense):
    with pytest.raises(ModelError, match="no score for"):
        Reranked(CORPUS, dense(), scorer(dict.fromkeys(CORPUS.texts, np.nan)), 4).search(QUERIES[:1], 8)


@pytest.fixture
def builder(dense, tmp_path):
    base = Contender("base", "hand", dense(), "w", Encoder())
    return Builder(CORPUS, VectorStore(tmp_path / "vectors"), {"base": base})


def test_contenders_may_be_made_of_others_in_any_order(builder):
    configs = [
        ContenderConfig(name="both", fuse=("cut", "bm25")),
        ContenderConfig(name="cut", of="base", dimensions=5, quantise="int8"),
        ContenderConfig.model_validate("bm25"),
    ]
    made = builder.all(configs)
    assert list(made) == ["base", "both", "cut", "bm25"]
    assert (made["cut"].system.width, made["cut"].system.bytes_per_vector) == (5, 5)
    assert ids(made["cut"].system.search(QUERIES[:1], 12), 0) == by_cosine("red round", 5)
    assert made["both"].what == "reciprocal rank fusion of cut and bm25 (k = 60)"


def test_a_contender_without_vectors_cannot_be_cut(builder):
    configs = [ContenderConfig(name="words", bm25=True), ContenderConfig(name="less", of="words", dimensions=3)]
    with pytest.raises(ConfigError, match="less: words has no vectors of its own"):
        builder.all(configs)


@pytest.mark.parametrize(
    ("contenders", "message"),
    [
        ([{"name": "base", "bm25": True}], "the name 'base' is taken"),
        ([{"name": "a", "bm25": True}, {"name": "a", "run": "x"}], "the name 'a' is taken"),
        ([{"name": "a", "of": "nobody"}], "a is made of 'nobody', which is no contender before it"),
        ([{"name": "a", "of": "b"}, {"name": "b", "of": "a"}], "a is made of 'b'"),
        ([{"name": "a"}], "a: give one of model, endpoint, run, bm25, of, fuse; found none"),
        ([{"name": "a", "bm25": True, "of": "base"}], "found bm25, of"),
        ([{"name": "a", "fuse": ["base"]}], "fuse needs two contenders or more"),
        ([{"name": "a", "bm25": True, "dimensions": 3}], "dimensions and quantise are of vectors, and bm25 has none"),
    ],
)
def test_a_contender_that_cannot_be_is_refused(contenders, message):
    with pytest.raises(ValueError, match=message):
        EvalConfig(contenders=contenders)
