"""Approximate search finds what exact search finds, as far as it says, with exact scores; else it is refused."""

import numpy as np
import pytest
from pydantic import ValidationError

from closecall.approximate import ApproximateIndex, SearchConfig, open_index
from closecall.errors import ArtifactError, ConfigError
from closecall.search import ExactIndex

KINDS = ("ivf", "hnsw", "pq", "ivfpq")
COUNT, WIDTH, DEPTH = 1200, 16, 10


@pytest.fixture(scope="module")
def vectors():
    """Documents in 40 clusters."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, WIDTH))
    return unit(centres[rng.integers(0, 40, COUNT)] + 0.6 * rng.normal(size=(COUNT, WIDTH)))


@pytest.fixture(scope="module")
def queries(vectors):
    rng = np.random.default_rng(1)
    return unit(vectors[rng.integers(0, COUNT, 100)] + 0.1 * rng.normal(size=(100, WIDTH)))


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def ids(count=COUNT):
    return [f"d{row:05}" for row in range(count)]


def opened(vectors, queries, folder=None, **settings):
    return open_index(vectors, ids(len(vectors)), SearchConfig(**settings), folder, queries, DEPTH)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recall_that_is_stated_is_that_against_exact_search_and_reaches_the_floor(vectors, queries, kind):
    index = opened(vectors, queries, kind=kind, min_recall=0.9, sample=100, rescore=8)
    exact = ExactIndex(vectors, ids()).search(queries, DEPTH).rows
    found = index.search(queries, DEPTH).rows
    share = np.mean([len(set(a) & set(b)) / DEPTH for a, b in zip(exact.tolist(), found.tolist(), strict=True)])
    assert index.recall.value == pytest.approx(share)
    assert share >= 0.9
    assert index.facts()["recall"] == round(share, 4)
    assert (index.facts()["recall_queries"], index.facts()["recall_depth"]) == (100, DEPTH)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_scores_are_exact_and_ties_go_by_document_id(vectors, queries, kind):
    twice = np.concatenate([vectors, vectors[::-1]])
    index = opened(twice, queries, kind=kind, min_recall=0.01, rescore=4)
    hits = index.search(queries, DEPTH)
    expected = index.score(queries, hits.rows.ravel(), np.repeat(np.arange(100), DEPTH)).reshape(hits.rows.shape)
    np.testing.assert_allclose(hits.scores, expected, rtol=0, atol=1.1e-6)  # one in the last decimal of a run
    for rows, scores in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True):
        pairs = list(zip([-score for score in scores], rows, strict=True))
        assert pairs == sorted(pairs)


def test_the_least_effort_that_reaches_the_floor_is_taken(vectors, queries):
    low, high = (opened(vectors, queries, kind="ivf", min_recall=floor) for floor in (0.3, 1.0))
    assert low.effort < high.effort
    assert high.recall.value == 1.0


def test_below_the_floor_an_index_is_refused_with_what_to_raise(vectors, queries):
    with pytest.raises(ConfigError, match=r"ivf finds 0\.\d+ of .* search.min_recall is 1.0; raise search.e"):
        opened(vectors, queries, kind="ivf", effort=1, min_recall=1.0)
    with pytest.raises(ConfigError, match=r"raise search.rescore, or take another kind"):
        opened(vectors, queries, kind="pq", rescore=1, min_recall=1.0)


def test_where_an_index_finds_too_few_the_query_is_searched_exactly(vectors, queries):
    index = opened(vectors, queries, kind="ivf", effort=1, min_recall=0.01, lists=30)
    hits, exact = index.search(queries, 900), ExactIndex(vectors, ids()).search(queries, 900)
    np.testing.assert_array_equal(hits.rows, exact.rows)
    np.testing.assert_array_equal(hits.scores, exact.scores)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_is_kept_and_when_built_again_the_same(vectors, queries, kind, tmp_path, monkeypatch):
    settings = {"kind": kind, "min_recall": 0.01}
    first = opened(vectors, queries, tmp_path / "a", **settings).search(queries, DEPTH)
    again = opened(vectors, queries, tmp_path / "b", **settings).search(queries, DEPTH)
    one, other = (next((tmp_path / name).glob("*/index.faiss")).read_bytes() for name in "ab")
    assert one == other
    monkeypatch.setattr("closecall.approximate._built", None)
    read = opened(vectors, queries, tmp_path / "a", **settings).search(queries, DEPTH)
    for hits in (again, read):
        np.testing.assert_array_equal(hits.rows, first.rows)


def test_other_vectors_or_settings_build_another_index(vectors, queries, tmp_path):
    opened(vectors, queries, tmp_path, kind="ivf", min_recall=0.01)
    opened(vectors[::-1].copy(), queries, tmp_path, kind="ivf", min_recall=0.01)
    opened(vectors, queries, tmp_path, kind="ivf", lists=9, min_recall=0.01)
    opened(vectors, queries, tmp_path, kind="ivf", min_recall=0.02, sample=9)  # only measured in another way
    assert len(list(tmp_path.glob("*/index.faiss"))) == 3


def test_a_damaged_index_is_noticed(vectors, queries, tmp_path):
    opened(vectors, queries, tmp_path, kind="ivf", min_recall=0.01)
    path = next(tmp_path.glob("*/index.faiss"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"index\.faiss"):
        opened(vectors, queries, tmp_path, kind="ivf", min_recall=0.01)


def test_exact_is_the_default_and_says_nothing(vectors, queries):
    index = opened(vectors, queries)
    assert type(index) is ExactIndex
    assert index.facts() == {}


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_corpus_of_a_few_documents_is_searched_too(vectors, queries, kind, count):
    index = opened(vectors[:count], queries, kind=kind)
    exact = ExactIndex(vectors[:count], ids(count)).search(queries, 5)
    np.testing.assert_array_equal(index.search(queries, 5).rows, exact.rows)


@pytest.mark.parametrize("kind", ["exact", "pq"])
def test_an_effort_that_means_nothing_is_refused(kind):
    with pytest.raises(ValidationError, match="has none; drop it"):
        SearchConfig(kind=kind, effort=4)


def test_no_documents_or_no_queries_are_no_hits(vectors, queries):
    assert opened(vectors, queries, kind="ivf", min_recall=0.01).search(queries[:0], 3).rows.shape == (0, 3)
    assert isinstance(opened(vectors[:0], queries, kind="ivf"), ExactIndex)
    assert not isinstance(opened(vectors[:0], queries, kind="ivf"), ApproximateIndex)
