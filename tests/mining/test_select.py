import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest

from mining.select import choose, count_uses, draw_keys, overused, pool, uniform


def mask(*rows):
    """From text, one letter per candidate: `x` = marked."""
    return np.asarray([[letter == "x" for letter in row] for row in rows])


def text(marked):
    return ["".join("x" if one else "." for one in row) for row in marked]


def integers(*rows):
    return np.asarray(rows, dtype=np.int64)


def within_chance(hits, draws, probability):
    """Whether so many hits are within what a fair draw gives in all but 1 of 100,000 cases."""
    low, high = binom.interval(1 - 1e-5, draws, probability)
    return low <= hits <= high


def test_without_quotas_the_first_that_passed_are_chosen():
    assert text(choose(mask(".x.xxx", "......"), [], 2)) == [".x.x..", "......"]


def test_a_quota_reserves_places_for_a_source_that_comes_late():
    # two negatives, one for the source: the nearest of all and the nearest of the source
    assert text(choose(mask("xxxxx"), [(mask("...xx"), 1)], 2)) == ["x..x."]


def test_what_the_quota_takes_first_counts_towards_it_when_it_is_near_anyway():
    assert text(choose(mask("xxxx"), [(mask("x...") | mask("...x"), 1)], 2)) == ["xx.."]


def test_a_place_that_its_source_cannot_fill_goes_to_the_next():
    assert text(choose(mask("xxx.x"), [(mask("...x."), 1)], 3)) == ["xxx.."]


def test_a_candidate_of_two_sources_fills_one_place():
    # the second source takes its next: the first one stands for the first source already
    both = [(mask("x...."), 1), (mask("x..xx"), 1)]
    assert text(choose(mask("xxxxx"), both, 3)) == ["xx.x."]


def test_quotas_hold_in_each_row_for_itself():
    assert text(choose(mask("xxx", "xxx"), [(mask("..x", "x.."), 1)], 2)) == ["x.x", "xx."]


def test_with_keys_the_smallest_key_comes_first():
    keys = np.asarray([[0.5, 0.1, 0.9, -1.0, 0.2]])
    assert text(choose(mask("xxx.x"), [], 2, keys)) == [".x..x"]


def test_with_keys_a_quota_takes_the_smallest_of_its_source():
    keys = np.asarray([[0.5, 0.1, 0.9, 0.7]])
    assert text(choose(mask("xxxx"), [(mask("..xx"), 1)], 2, keys)) == [".x.x"]


@given(st.lists(st.tuples(*[st.booleans()] * 3), max_size=12), st.integers(1, 5), st.integers(0, 3), st.integers(0, 2))
def test_choosing_from_the_pool_is_choosing_from_all(rows, negatives, first_quota, second_quota):
    first_quota = min(first_quota, negatives)
    second_quota = min(second_quota, negatives - first_quota)
    passed, first, second = (np.asarray([[row[column] for row in rows]], dtype=np.bool_) for column in range(3))
    lanes = [(members, quota) for members, quota in ((first, first_quota), (second, second_quota)) if quota]
    chosen = choose(passed, lanes, negatives)
    assert (choose(pool(passed, lanes, negatives), lanes, negatives) == chosen).all()
    assert chosen.sum() == min(negatives, passed.sum())
    for members, quota in lanes:
        assert (chosen & members).sum() >= min(quota, (passed & members).sum())


def test_the_pool_is_the_nearest_and_the_nearest_of_each_source_with_a_quota():
    assert text(pool(mask("x.xxxxx"), [], 2)) == ["x.x...."]
    assert text(pool(mask("x.xxxxx"), [(mask("....xxx"), 1)], 2)) == ["x.x.xx."]
    assert text(pool(mask("x.xxxxx"), [(mask("....xxx"), 1)], 1)) == ["x...x.."]


UNUSED = np.zeros(10, dtype=np.int32)


def test_a_document_over_its_limit_is_taken_from_the_later_queries():
    rows, chosen = integers([7, 8], [7, 9], [7, 8]), mask("xx", "xx", "x.")
    assert text(overused(chosen, rows, np.arange(3), UNUSED, 1)) == ["..", "x.", "x."]
    assert text(overused(chosen, rows, np.arange(3), UNUSED, 2)) == ["..", "..", "x."]
    assert not overused(chosen, rows, np.arange(3), UNUSED, 3).any()


def test_only_what_is_chosen_counts():
    assert text(overused(mask(".", "x"), integers([7], [7]), np.arange(2), UNUSED, 1)) == [".", "."]


def test_several_positives_of_one_query_use_a_document_once():
    rows, queries = integers([7], [7], [7]), np.asarray([0, 0, 1])
    assert text(overused(mask("x", "x", "x"), rows, queries, UNUSED, 2)) == [".", ".", "."]
    assert text(overused(mask("x", "x", "x"), rows, queries, UNUSED, 1)) == [".", ".", "x"]


def test_a_query_that_is_one_too_many_loses_the_document_for_all_its_positives():
    rows, queries = integers([7], [7], [7]), np.asarray([0, 1, 1])
    assert text(overused(mask("x", "x", "x"), rows, queries, UNUSED, 1)) == [".", "x", "x"]


def test_uses_that_were_settled_before_count():
    uses = UNUSED.copy()
    count_uses(uses, np.asarray([7, 7, 7, 8]), np.asarray([0, 0, 1, 1]))
    assert uses.tolist() == [0, 0, 0, 0, 0, 0, 0, 2, 1, 0]
    assert text(overused(mask("xx"), integers([7, 8]), np.asarray([5]), uses, 2)) == ["x."]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3, unique=True), min_size=1, max_size=8),
    st.integers(1, 3),
    st.data(),
)
def test_no_document_is_used_more_often_than_allowed_and_none_less_than_it_could(rows, max_uses, data):
    rows = integers(*rows)
    queries = np.sort(data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows))))
    uses = np.asarray(data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6)), dtype=np.int32)
    over = overused(np.ones(rows.shape, dtype=np.bool_), rows, queries, uses, max_uses)
    for document in range(6):
        asking = sorted({int(query) for row, query in zip(rows, queries, strict=True) if document in row})
        left = {int(query) for query in queries[((rows == document) & ~over).any(axis=1)]}
        assert left == set(asking[: max(0, max_uses - int(uses[document]))])


HASHES = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)


def test_a_number_depends_on_its_own_hashes_alone():
    block = uniform(3, HASHES[:200, None], HASHES[200:250])
    assert block.shape == (200, 50)
    assert block[17, 5] == uniform(3, HASHES[17:18], HASHES[205])[0]
    assert (block[[4, 9]] == uniform(3, HASHES[[4, 9], None], HASHES[200:250])).all()


def test_the_numbers_are_spread_evenly_over_zero_to_one():
    drawn = uniform(0, HASHES)
    assert 0 < drawn.min() < 1e-4
    assert 1 > drawn.max() > 1 - 1e-4
    assert kstest(drawn, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02


def test_hashes_that_count_up_are_spread_evenly_too():
    assert kstest(uniform(0, np.arange(100_000, dtype=np.uint64)), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("state", [0, 2**64 - 1])
def test_no_number_is_zero_or_one(monkeypatch, state):
    monkeypatch.setattr("mining.select._mixed", lambda _: np.asarray([state], dtype=np.uint64))
    assert 0 < uniform(1)[0] < 1


def test_other_seeds_and_other_orders_of_hashes_give_unrelated_numbers():
    first, other_seed = uniform(0, HASHES), uniform(1, HASHES)
    swapped = uniform(HASHES, 0)
    for other in (other_seed, swapped):
        assert not (first == other).any()
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.02


DRAWS = 20_000


def first_two(scores, hardness, seed=0):
    """For many draws, which candidate has the smallest key and which the second smallest."""
    drawn = uniform(seed, HASHES[:DRAWS, None], HASHES[-len(scores) :])
    return np.argsort(draw_keys(drawn, np.broadcast_to(scores, drawn.shape), hardness), axis=1)[:, :2]


def test_with_hardness_zero_every_candidate_is_as_likely():
    order = first_two([0.9, 0.5, -0.5, 0.1], 0.0)
    for place in (0, 1):
        for count in np.bincount(order[:, place]):
            assert within_chance(count, DRAWS, 1 / 4)


def test_a_candidates_chance_is_the_exponential_of_hardness_times_score():
    # exp(10 * 0.1) = 2.718 times as likely
    hits = np.count_nonzero(first_two([0.6, 0.5], 10.0)[:, 0] == 0)
    assert within_chance(hits, DRAWS, np.e / (np.e + 1))


def test_two_of_three_are_drawn_as_without_replacement():
    weights = np.exp(4.0 * np.asarray([0.9, 0.5, 0.3]))
    order = first_two([0.9, 0.5, 0.3], 4.0)
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            chance = weights[first] / weights.sum() * weights[second] / (weights.sum() - weights[first])
            hits = np.count_nonzero((order == [first, second]).all(axis=1))
            assert within_chance(hits, DRAWS, chance), (first, second)


def test_a_great_hardness_draws_the_nearest_and_overflows_nowhere():
    with np.errstate(all="raise"):
        assert (first_two([0.2, 0.9, 0.5], 1e6) == [1, 2]).all()


def test_a_score_that_is_no_number_has_a_finite_key():
    assert np.isfinite(draw_keys(np.asarray([0.5, 0.5]), np.asarray([np.nan, -np.inf]), 10.0)).all()
