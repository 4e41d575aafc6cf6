import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from closecall.search import NOTHING, ExactIndex, Hits
from mining.candidates import Candidates, merge, of_one

COSINES = [0.9, 0.8, 0.8, 0.5, -0.1]
IDS = ["e", "d", "c", "b", "a"]  # rows 1 and 2 tie, and `c` comes before `d`
QUERIES = np.asarray([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)


def index_of(cosines, ids):
    vectors = [[cosine, np.sqrt(1 - cosine * cosine)] for cosine in cosines]
    return ExactIndex(np.asarray(vectors, dtype=np.float32), ids)


INDEX = index_of(COSINES, IDS)


def hits(rows, scores=None):
    width = max(map(len, rows), default=0)
    padded = [[*row, *[NOTHING] * (width - len(row))] for row in rows]
    filled = scores or [[0.0] * len(row) for row in rows]
    filled = [[*row, *[np.nan] * (width - len(row))] for row in filled]
    shape = (len(rows), width)
    return Hits(np.asarray(padded, dtype=np.int64).reshape(shape), np.asarray(filled, dtype=np.float64).reshape(shape))


def merged(base=None, queries=QUERIES[:1], scored=(), index=INDEX, **found):
    return merge(found, {name: name in scored for name in found}, base, index, queries)


def test_a_document_found_by_several_is_one_candidate_with_the_rank_of_each():
    candidates = merged(words=hits([[3, 0]], [[7.0, 6.0]]), run=hits([[0, 3]], [[2.0, 1.0]]), scored=("words", "run"))
    assert candidates.rows.tolist() == [[0, 3]]
    assert {name: ranks.tolist() for name, ranks in candidates.ranks.items()} == {"words": [[2, 1]], "run": [[1, 2]]}
    assert candidates.source_scores["words"].tolist() == [[6.0, 7.0]]
    assert candidates.source_scores["run"].tolist() == [[2.0, 1.0]]


def test_every_candidate_has_the_base_models_score_whoever_found_it():
    found = {"dense": hits([[0, 1]], [[0.9, 0.8]]), "words": hits([[4, 3]], [[5.0, 4.0]])}
    assert merged("dense", **found).scores.tolist() == [[0.9, 0.8, 0.5, -0.1]]
    assert merged(None, words=found["words"]).scores.tolist() == [[0.5, -0.1]]


def test_the_base_models_index_is_not_asked_again_for_what_it_found():
    # a score that only the index can have given
    assert merged("dense", dense=hits([[3]], [[0.123]]), words=hits([[0]])).scores.tolist() == [[0.9, 0.123]]


def test_candidates_stand_by_score_and_ties_by_document_id():
    assert merged(words=hits([[4, 1, 3, 2, 0]])).rows.tolist() == [[0, 2, 1, 3, 4]]


def test_a_source_that_did_not_find_a_candidate_gives_it_rank_0_and_no_score():
    candidates = merged(words=hits([[0]], [[3.0]]), judged=hits([[1]]), scored=("words",))
    assert candidates.ranks["words"].tolist() == [[1, 0]]
    assert candidates.ranks["judged"].tolist() == [[0, 1]]
    np.testing.assert_array_equal(candidates.source_scores["words"], [[3.0, np.nan]])
    assert "judged" not in candidates.source_scores


def test_shorter_lines_are_filled_up_at_their_ends():
    candidates = merged(queries=QUERIES, words=hits([[0, 3], []]), run=hits([[4], [2]]), scored=("run",))
    assert candidates.rows.tolist() == [[0, 3, 4], [2, NOTHING, NOTHING]]
    assert candidates.scores[1, 1:].tolist() == [-np.inf, -np.inf]
    assert candidates.ranks["words"].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert np.isnan(candidates.source_scores["run"][1, 1:]).all()


def test_a_query_is_scored_with_its_own_vector():
    # the second query is at right angles to the first: sqrt(1 - 0.8 * 0.8) = 0.6
    assert merged(queries=QUERIES, words=hits([[1], [1]])).scores.tolist() == [[0.8], [0.6]]


def test_when_nobody_finds_anything_there_are_no_candidates():
    candidates = merged(queries=QUERIES, words=hits([[], []]))
    assert candidates.rows.shape == candidates.scores.shape == candidates.ranks["words"].shape == (2, 0)
    assert candidates.best_ranks(["words"]).shape == (2, 0)


def test_the_best_rank_is_that_of_the_source_that_ranks_it_highest():
    ranks = {"a": np.asarray([[5, 0, 0]], np.int32), "b": np.asarray([[2, 7, 0]], np.int32)}
    candidates = Candidates(np.asarray([[0, 1, 2]]), np.zeros((1, 3)), ranks, {})
    assert candidates.best_ranks(["a", "b"]).tolist() == [[2, 7, 0]]
    assert candidates.best_ranks(["a"]).tolist() == [[5, 0, 0]]
    assert candidates.best_ranks([]).tolist() == [[0, 0, 0]]


def test_lines_may_be_taken_more_than_once():
    lines = merged(queries=QUERIES, words=hits([[0], [2]], [[3.0], [4.0]]), scored=("words",)).lines(
        np.asarray([1, 1, 0])
    )
    assert lines.rows.tolist() == [[2], [2], [0]]
    assert lines.source_scores["words"].tolist() == [[4.0], [4.0], [3.0]]
    assert lines.ranks["words"].tolist() == [[1], [1], [1]]


def same(left, right):
    """Whether two lists of candidates say the same of the same documents."""
    np.testing.assert_array_equal(left.rows, right.rows)
    np.testing.assert_array_equal(left.scores, right.scores)
    for mine, other in ((left.ranks, right.ranks), (left.source_scores, right.source_scores)):
        assert mine.keys() == other.keys()
        for name, values in mine.items():
            np.testing.assert_array_equal(values, other[name])


def test_the_index_alone_is_the_same_with_and_without_merging():
    scored = {"dense": False, "words": True, "judged": False}
    found = INDEX.search(QUERIES, 3)
    empty = hits([[], []])
    every = merge({"dense": found, "words": empty, "judged": empty}, scored, "dense", INDEX, QUERIES)
    same(of_one("dense", found, scored), every)


LINES = st.lists(st.integers(0, 5), unique=True, max_size=6)


@given(
    st.lists(st.tuples(LINES, LINES, LINES), min_size=1, max_size=4),
    st.lists(st.integers(-5, 5), min_size=6, max_size=6),
    st.permutations("abcdef"),
)
def test_merging_is_what_a_plain_list_of_all_hits_gives(lines, cosines, ids):
    index = index_of([cosine / 5 for cosine in cosines], ids)
    queries = np.repeat(QUERIES[:1], len(lines), axis=0)
    names = ("first", "second", "third")
    found = {name: [line[number] for line in lines] for number, name in enumerate(names)}
    own = {name: [[float(10 - n) for n, _ in enumerate(row)] for row in found[name]] for name in names}
    candidates = merged(
        None, queries, ("first", "third"), index, **{name: hits(found[name], own[name]) for name in names}
    )
    for number in range(len(lines)):
        rows = {row for name in names for row in found[name][number]}
        expected = sorted(rows, key=lambda row: (-cosines[row], ids[row]))
        there = candidates.rows[number] != NOTHING
        assert candidates.rows[number][there].tolist() == expected
        assert not there[len(expected) :].any()
        np.testing.assert_allclose(candidates.scores[number][there], [cosines[row] / 5 for row in expected], atol=1e-6)
        for name in names:
            place = {row: rank for rank, row in enumerate(found[name][number], start=1)}
            assert candidates.ranks[name][number][there].tolist() == [place.get(row, 0) for row in expected]
        assert candidates.source_scores.keys() == {"first", "third"}
        scores = dict(zip(found["third"][number], own["third"][number], strict=True))
        np.testing.assert_array_equal(
            candidates.source_scores["third"][number][there], [scores.get(row, np.nan) for row in expected]
        )
