from math import log

import numpy as np
import pytest

from closecall.errors import DataError
from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from closecall.search import NOTHING, ExactIndex
from closecall.split import Part
from mining.known import known_documents
from mining.sources import Bm25Source, DenseSource, JudgedSource, RandomSource, RunSource, facts_of


def documents(**texts):
    return [Document(doc_id, text) for doc_id, text in texts.items()]


def queries(*texts):
    return [Query(f"q{number}", text) for number, text in enumerate(texts, start=1)]


def found(hits):
    """Rows of each line without the filling, best first."""
    return [[row for row in line if row != NOTHING] for line in hits.rows.tolist()]


ANIMALS = documents(a="red red fox", b="Red dog!", c="blue cat", d="blue, red bird sings now")


def bm25(corpus, *texts, depth=10):
    return Bm25Source(corpus, queries(*texts)).find(np.arange(len(texts)), depth)


def test_bm25_is_lucenes_formula_with_k1_1_5_and_b_0_75():
    # idf = ln(1 + (N - n + 0.5) / (n + 0.5)): of 4 documents 3 have `red`, 1 has `fox`
    red, fox = log(1 + 1.5 / 3.5), log(1 + 3.5 / 1.5)
    # tf / (tf + 1.5 * (0.25 + 0.75 * length / 3)): the 12 words make 3 per document
    expected = {
        "a": red * 2 / (2 + 1.5 * 1.0) + fox * 1 / (1 + 1.5 * 1.0),
        "b": red * 1 / (1 + 1.5 * 0.75),
        "d": red * 1 / (1 + 1.5 * 1.5),
    }
    hits = bm25(ANIMALS, "The red fox?", depth=4)
    assert [[ANIMALS[row].doc_id for row in line] for line in found(hits)] == [["a", "b", "d"]]
    np.testing.assert_allclose(hits.scores[0, :3], list(expected.values()), atol=2e-6)


def test_bm25_counts_a_word_that_the_query_repeats_once():
    assert (bm25(ANIMALS, "red red fox").scores[0, :3] == bm25(ANIMALS, "red fox").scores[0, :3]).all()


def test_bm25_reads_the_title_too():
    assert found(bm25([Document("x", "text", "Fox"), Document("y", "text")], "fox")) == [[0]]


@pytest.mark.parametrize("depth", [2, 4])
def test_bm25_leaves_out_what_shares_no_word_with_the_query(depth):
    source = Bm25Source(ANIMALS, queries("fox", "zebra", "!?"))
    hits = source.find(np.arange(3), depth)
    assert found(hits) == [[0], [], []]
    assert np.isnan(hits.scores[1:]).all()
    assert source.facts() == {"queries_without": 2}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_bm25_ties_are_cut_and_ordered_by_document_id(depth):
    corpus = documents(z="fox", other="dog", m="fox", b="fox")
    assert found(bm25(corpus, "fox", depth=depth)) == [[3, 2, 0][:depth]]


def test_bm25_finds_more_when_asked_for_more_and_the_same_before():
    corpus = documents(**{f"d{n}": "fox " + "dog " * n for n in range(9)})
    short, long = found(bm25(corpus, "fox", depth=3))[0], found(bm25(corpus, "fox", depth=8))[0]
    assert (len(short), len(long), long[:3]) == (3, 8, short)


def test_bm25_is_asked_for_any_of_its_queries_in_any_order():
    source = Bm25Source(ANIMALS, queries("fox", "cat", "dog"))
    assert found(source.find(np.asarray([2, 0]), 4)) == [[1], [0]]


def test_bm25_of_a_corpus_without_words_finds_nothing():
    assert found(bm25(documents(a="!", b="?"), "fox")) == [[]]


def test_bm25_takes_each_han_character_for_a_word():
    assert found(bm25(documents(a="信用卡", b="你好"), "卡")) == [[0]]


def run_of(**rankings):
    return Run({query_id: [ScoredDoc(*row) for row in ranking.items()] for query_id, ranking in rankings.items()})


CORPUS = documents(a="1", b="2", c="3")


def test_a_run_gives_its_documents_in_its_order_with_its_scores():
    source = RunSource("run", run_of(q1={"b": 1.0, "c": 7.5}, q2={"a": 3.0}), CORPUS, queries("x", "y"))
    hits = source.find(np.asarray([0, 1]), 10)
    assert found(hits) == [[2, 1], [0]]
    assert hits.scores[0].tolist() == [7.5, 1.0]
    assert found(source.find(np.asarray([1, 0]), 1)) == [[0], [2]]


def test_a_run_is_read_deeper_when_a_query_is_short():
    assert RunSource("run", run_of(q1={"b": 1.0}), CORPUS, queries("x")).deepens


def test_documents_that_the_corpus_lacks_are_counted_and_take_no_rank():
    source = RunSource("run", run_of(q1={"gone": 9.0, "b": 1.0, "lost": 0.5}), CORPUS, queries("x", "y"))
    assert found(source.find(np.asarray([0, 1]), 1)) == [[1], []]
    assert source.facts() == {"queries_without": 1, "unknown_documents": 2}


def test_what_a_run_says_of_other_queries_is_not_looked_at():
    source = RunSource("run", run_of(q1={"a": 1.0}, test7={"gone": 1.0, "b": 2.0}), CORPUS, queries("x"))
    assert source.facts() == {"queries_without": 0, "unknown_documents": 0}


def test_a_run_without_any_training_query_is_an_error():
    message = (
        r"^mining source old: none of the 2 training queries is in the run, which has 't1', 't2'; "
        r"search with the queries of split/train$"
    )
    with pytest.raises(DataError, match=message):
        RunSource("old", run_of(t1={"a": 1.0}, t2={"a": 1.0}), CORPUS, queries("x", "y"))


def test_a_run_of_another_corpus_is_an_error():
    message = (
        r"^mining source old: none of the run's 2 documents is in the corpus \('D1', 'D2'\); "
        r"search the same corpus, with the same ids$"
    )
    with pytest.raises(DataError, match=message):
        RunSource("old", run_of(q1={"D1": 1.0, "D2": 2.0}), CORPUS, queries("x"))


def judged(*rows, texts=("x", "y")):
    part = Part(tuple(queries(*texts)), Qrels(Judgment(*row) for row in rows), "")
    return JudgedSource(known_documents(part, CORPUS))


def test_the_judged_source_gives_all_documents_of_grade_0_whatever_the_depth():
    source = judged(("q1", "c", 0), ("q1", "b", 1), ("q1", "a", 0), ("q2", "b", 0))
    assert [sorted(line) for line in found(source.find(np.asarray([0, 1]), 1))] == [[0, 2], [1]]
    assert source.facts() == {"certified": 3}
    assert not source.ranked


def test_the_judged_source_has_nothing_for_a_query_without_a_grade_0():
    source = judged(("q1", "b", 1), ("q2", "c", 0))
    assert found(source.find(np.asarray([0, 1]), 5)) == [[], [2]]


def test_a_document_that_is_relevant_to_a_query_of_the_same_text_is_not_given():
    assert found(judged(("q1", "a", 0), ("q2", "a", 1), texts=("x", "X ")).find(np.asarray([0, 1]), 5)) == [[], []]


HASHES = np.asarray([11, 22, 33, 44], dtype=np.uint64)


def test_the_random_source_draws_different_documents_of_the_corpus():
    hits = RandomSource(HASHES, 100, 0).find(np.arange(4), 30)
    assert all(len(set(line)) == 30 and 0 <= min(line) <= max(line) < 100 for line in hits.rows.tolist())
    assert len({tuple(line) for line in hits.rows.tolist()}) == 4
    assert np.isnan(hits.scores).all()


def test_the_random_draw_of_a_query_is_the_same_whatever_the_other_queries():
    source = RandomSource(HASHES, 100, 0)
    every = source.find(np.arange(4), 5).rows
    assert (source.find(np.asarray([2]), 5).rows == every[2]).all()
    assert (RandomSource(HASHES[[3, 1]], 100, 0).find(np.arange(2), 5).rows == every[[3, 1]]).all()


def test_another_seed_draws_other_documents():
    first, other = (RandomSource(HASHES, 1000, seed).find(np.arange(4), 20).rows for seed in (0, 1))
    assert (first != other).any(axis=1).all()


def test_the_random_source_gives_a_small_corpus_whole():
    hits = RandomSource(HASHES, 3, 0).find(np.arange(2), 10)
    assert [sorted(line) for line in hits.rows.tolist()] == [[0, 1, 2], [0, 1, 2]]


def test_random_draws_favour_no_document():
    # 4,000 draws of 5 of 10: each document is in half of them, give or take 5 standard deviations of 31.6
    hashes = np.arange(4000, dtype=np.uint64)
    counts = np.bincount(RandomSource(hashes, 10, 0).find(np.arange(4000), 5).rows.ravel())
    assert np.abs(counts - 2000).max() < 158


def test_another_encoder_finds_with_its_own_vectors():
    vectors = np.eye(3, dtype=np.float32)
    source = DenseSource(ExactIndex(vectors, ["a", "b", "c"]), vectors[[2, 0]])
    hits = source.find(np.asarray([1, 0]), 1)
    assert (found(hits), hits.scores.tolist(), source.facts()) == ([[0], [2]], [[1.0], [1.0]], {})


def test_the_facts_of_all_sources_stand_under_their_names():
    random = RandomSource(HASHES, 3, 0)
    assert facts_of({"zero": judged(("q1", "a", 0)), "chance": random}) == {"zero": {"certified": 1}, "chance": {}}
