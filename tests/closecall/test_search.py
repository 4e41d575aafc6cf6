"""Exact search, ties included: the same documents as sorting the whole corpus by score, then by id."""

import numpy as np
import pytest

from closecall.records import ScoredDoc
from closecall.search import ExactIndex, as_run, rounded


def grid(rng, rows, dimension=8):
    """Vectors of sixteenths: their products are exact in float32, and many of them are equal."""
    return (rng.integers(-3, 4, (rows, dimension)) / 16).astype(np.float32)


def unit(rng, rows, dimension=24):
    vectors = rng.normal(size=(rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def brute_force(queries, vectors, doc_ids, depth):
    """(doc_id, score) of each query by sorting all documents."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    ranked = [sorted(zip(-row, doc_ids, strict=True))[:depth] for row in np.round(scores, 6)]
    return [[(doc_id, -score) for score, doc_id in row] for row in ranked]


def found(index, queries, depth):
    hits = index.search(queries, depth)
    return [
        [(index.doc_ids[row], score) for row, score in zip(*pair, strict=True)]
        for pair in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)
    ]


def shuffled_ids(rng, count):
    return [f"d{number}" for number in rng.permutation(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 7, 60])
def test_search_agrees_with_brute_force(seed, depth):
    rng = np.random.default_rng(seed)
    vectors, queries, doc_ids = grid(rng, 300), grid(rng, 30), shuffled_ids(rng, 300)
    assert found(ExactIndex(vectors, doc_ids), queries, depth) == brute_force(queries, vectors, doc_ids, depth)


@pytest.mark.parametrize("depth", [1, 3, 40, 199])
def test_ties_across_the_cut_go_to_the_smallest_ids(depth):
    """Three different vectors, each of about 67 documents: every cut runs through a tie."""
    rng = np.random.default_rng(1)
    vectors = grid(rng, 3)[rng.integers(0, 3, 200)]
    queries, doc_ids = grid(rng, 4), shuffled_ids(rng, 200)
    assert found(ExactIndex(vectors, doc_ids), queries, depth) == brute_force(queries, vectors, doc_ids, depth)


def test_a_corpus_of_one_text_is_ranked_by_id():
    vectors = np.tile(np.float32([0.6, 0.8]), (50, 1))
    doc_ids = [f"d{number:02}" for number in range(50)][::-1]
    hits = found(ExactIndex(vectors, doc_ids), np.float32([[0, 1]]), 3)
    assert hits == [[("d00", 0.8), ("d01", 0.8), ("d02", 0.8)]]


def test_ids_are_ordered_as_text():
    vectors = np.float32([[1, 0]] * 3)
    assert [doc_id for doc_id, _ in found(ExactIndex(vectors, ["9", "10", "é"]), vectors[:1], 3)[0]] == ["10", "9", "é"]


def test_unit_vectors_get_their_cosine_to_six_decimals():
    rng = np.random.default_rng(2)
    vectors, queries, doc_ids = unit(rng, 400), unit(rng, 20), shuffled_ids(rng, 400)
    hits = ExactIndex(vectors, doc_ids).search(queries, 25)
    cosines = np.einsum("qd,qkd->qk", queries.astype(np.float64), vectors[hits.rows].astype(np.float64))
    np.testing.assert_allclose(hits.scores, cosines, atol=1.5e-6)
    assert hits.scores.tolist() == [[round(score, 6) for score in row] for row in hits.scores.tolist()]


def test_a_depth_beyond_the_corpus_gives_the_whole_corpus():
    rng = np.random.default_rng(3)
    vectors, queries, doc_ids = grid(rng, 6), grid(rng, 2), shuffled_ids(rng, 6)
    hits = ExactIndex(vectors, doc_ids).search(queries, 100)
    assert hits.rows.shape == hits.scores.shape == (2, 6)
    assert found(ExactIndex(vectors, doc_ids), queries, 100) == brute_force(queries, vectors, doc_ids, 6)


def test_no_queries_give_no_hits():
    index = ExactIndex(np.float32([[1, 0], [0, 1]]), ["a", "b"])
    hits = index.search(np.empty((0, 2), dtype=np.float32), 2)
    assert (hits.rows.shape, hits.scores.shape) == ((0, 2), (0, 2))
    assert len(as_run(hits, [], ["a", "b"])) == 0


def test_an_empty_corpus_gives_no_hits():
    hits = ExactIndex(np.empty((0, 2), dtype=np.float32), []).search(np.float32([[1, 0]]), 5)
    assert hits.rows.shape == (1, 0)


@pytest.mark.parametrize("make", [grid, unit])
def test_the_order_of_the_corpus_does_not_change_the_run(make):
    rng = np.random.default_rng(4)
    vectors, queries, doc_ids = make(rng, 200), make(rng, 30), shuffled_ids(rng, 400)
    vectors = np.concatenate([vectors, vectors])
    order = rng.permutation(400)
    moved = ExactIndex(vectors[order], [doc_ids[row] for row in order])
    assert found(moved, queries, 20) == found(ExactIndex(vectors, doc_ids), queries, 20)


def test_a_query_searched_alone_gets_the_same_documents():
    rng = np.random.default_rng(5)
    index, queries = ExactIndex(grid(rng, 150), shuffled_ids(rng, 150)), grid(rng, 25)
    alone = [found(index, queries[row : row + 1], 9)[0] for row in range(25)]
    assert found(index, queries, 9) == alone


def test_score_is_the_score_of_search():
    rng = np.random.default_rng(6)
    index, queries = ExactIndex(grid(rng, 80), shuffled_ids(rng, 80)), grid(rng, 10)
    hits = index.search(queries, 12)
    scores = index.score(queries, hits.rows.ravel(), np.repeat(np.arange(len(queries)), 12))
    np.testing.assert_array_equal(scores, hits.scores.ravel())


def test_score_and_search_of_unit_vectors_differ_by_float32_noise_at_most():
    """The last decimal: two ways of adding float32 can fall on two sides of a rounding edge."""
    rng = np.random.default_rng(7)
    index, queries = ExactIndex(unit(rng, 300), shuffled_ids(rng, 300)), unit(rng, 40)
    hits = index.search(queries, 30)
    scores = index.score(queries, hits.rows.ravel(), np.repeat(np.arange(len(queries)), 30))
    np.testing.assert_allclose(scores, hits.scores.ravel(), atol=1.01e-6)


def test_rounded_scores_have_no_negative_zero():
    scores = rounded(np.float32([-1e-9, 0.12345678, -0.9999999]))
    assert [str(score) for score in scores.tolist()] == ["0.0", "0.123457", "-1.0"]


def test_vectors_and_ids_of_different_number_are_refused():
    with pytest.raises(ValueError, match="2 vectors for 1 document ids"):
        ExactIndex(np.float32([[1, 0], [0, 1]]), ["a"])


def test_hits_as_a_run_keep_ids_scores_and_order():
    index = ExactIndex(np.float32([[1, 0], [0.6, 0.8]]), ["a", "b"])
    run = as_run(index.search(np.float32([[0, 1], [1, 0]]), 2), ["q1", "q2"], index.doc_ids)
    assert run.ranking("q1") == (ScoredDoc("b", 0.8), ScoredDoc("a", 0.0))
    assert run.ranking("q2") == (ScoredDoc("a", 1.0), ScoredDoc("b", 0.6))
