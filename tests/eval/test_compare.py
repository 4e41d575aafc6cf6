import numpy as np
import pytest

from closecall.errors import DataError
from closecall.records import Judgment, Qrels, Run, ScoredDoc
from closecall.slices import Slice
from eval.compare import compare
from eval.config import EvalConfig

CONFIG = EvalConfig(measure="MRR", measures=(), resamples=999, min_slice_queries=5, min_groups=5)


def ranked(ranks):
    """A run whose one positive stands at this rank of each query: its MRR is 1 / rank."""
    return Run(
        {q: [ScoredDoc("pos" if at == rank else f"x{at}", -at) for at in range(1, 6)] for q, rank in ranks.items()}
    )


def judged(ranks):
    return Qrels(Judgment(query_id, "pos", 1) for query_id in ranks)


def compared(base, tuned, config=CONFIG, slices=(), groups=None):
    """The comparison of two {query: rank of its positive}."""
    named = [Slice(name, frozenset(ids)) for name, ids in dict(slices).items()]
    return compare(judged(base), ranked(base), ranked(tuned), config, named, groups)


def ids(count, start=0):
    return [f"q{number}" for number in range(start, start + count)]


def test_queries_are_paired_by_id_whatever_the_order_of_the_runs():
    found = compared({"q1": 1, "q2": 2, "q3": 4}, {"q3": 1, "q2": 2, "q1": 2})
    assert found.base.query_ids == found.tuned.query_ids == ("q1", "q2", "q3")
    assert found.base.values["MRR"].tolist() == [1, 1 / 2, 1 / 4]
    assert found.tuned.values["MRR"].tolist() == [1 / 2, 1 / 2, 1]
    result = found.deciding  # deltas -1/2, 0, +3/4
    assert result.delta == pytest.approx(1 / 12)
    assert (result.wins, result.ties, result.losses, result.n) == (1, 1, 1, 3)


def test_a_query_missing_from_one_run_scores_0_there_and_is_counted():
    base = {"q1": 1, "q2": 2, "q3": 1}
    found = compared(base, {"q1": 1, "q3": 1})
    assert found.tuned.values["MRR"].tolist() == [1, 0, 1]
    assert (found.base.missing_from_run, found.tuned.missing_from_run) == ((), ("q2",))
    assert found.deciding.n == 3
    assert found.deciding.delta == pytest.approx((0 - 1 / 2 + 0) / 3)


def test_queries_without_a_positive_are_left_out_and_counted():
    qrels = Qrels([Judgment("q1", "pos", 1), Judgment("q2", "pos", 0), Judgment("q3", "pos", 1)])
    ranks = {"q1": 1, "q2": 1, "q3": 2}
    found = compare(qrels, ranked(ranks), ranked(ranks), CONFIG)
    assert found.base.query_ids == ("q1", "q3")
    assert found.base.without_positives == ("q2",)
    assert found.deciding.base == pytest.approx((1 + 1 / 2) / 2)


def test_qrels_in_which_no_query_has_a_positive_are_an_error():
    qrels = Qrels([Judgment("q1", "pos", 0)])
    with pytest.raises(DataError, match="eval: no query in the qrels has a positive"):
        compare(qrels, ranked({"q1": 1}), ranked({"q1": 1}), CONFIG)


def test_grouped_queries_are_resampled_by_group_and_that_widens_the_interval():
    base, tuned = dict.fromkeys(ids(40), 2), dict.fromkeys(ids(30), 1) | dict.fromkeys(ids(10, 30), 5)
    groups = {query_id: f"g{number // 10}" for number, query_id in enumerate(ids(40))}
    apart, grouped = compared(base, tuned), compared(base, tuned, groups=groups)
    assert (apart.deciding.n, apart.deciding.n_groups, apart.groups) == (40, 40, None)
    assert (grouped.deciding.n, grouped.deciding.n_groups) == (40, 4)
    assert grouped.groups == tuple(groups.values())
    # 30 deltas of +1/2 and 10 of -3/10: as 40 observations above 0, as 4 not.
    assert grouped.deciding.delta == apart.deciding.delta == pytest.approx((30 * 0.5 - 10 * 0.3) / 40)
    assert grouped.deciding.low < 0 < apart.deciding.low
    assert grouped.deciding.high > apart.deciding.high


def test_a_query_without_a_group_is_its_own():
    ranks = {"q1": 1, "q2": 2, "q3": 1}
    found = compared(ranks, ranks, groups={"q1": "g", "q2": "g"})
    assert found.groups == ("g", "g", "q3")
    assert found.deciding.n_groups == 2


def test_the_groups_of_a_slice_are_those_of_its_queries():
    base, tuned = dict.fromkeys(ids(12), 2), dict.fromkeys(ids(6), 1) | dict.fromkeys(ids(6, 6), 2)
    groups = {query_id: f"g{number // 3}" for number, query_id in enumerate(ids(12))}
    found = compared(base, tuned, slices={"half": ids(6)}, groups=groups)
    assert (found.slices[0].result.n, found.slices[0].result.n_groups) == (6, 2)


def test_all_values_0_is_an_error_that_shows_an_id_of_each_side():
    qrels = Qrels([Judgment("q1", "pos-1", 1), Judgment("q2", "pos-1", 1)])
    runs = ranked({"q1": 1, "q2": 1})
    message = (
        r"MRR is 0 for every query of both runs\. Do the ids meet\? "
        r"Query 'q1' has the positive 'pos-1', and its run begins with 'pos', 'x2', 'x3'"
    )
    with pytest.raises(DataError, match=message):
        compare(qrels, runs, runs, CONFIG)
    with pytest.raises(DataError, match="its run begins with nothing"):
        compare(qrels, ranked({"q9": 1}), ranked({"q9": 1}), CONFIG)


def test_one_run_with_all_values_0_is_a_result():
    found = compared({"q1": 1, "q2": 2}, {"q9": 1})
    assert found.deciding.tuned == 0
    assert found.tuned.missing_from_run == ("q1", "q2")


def test_a_slice_smaller_than_min_slice_queries_has_a_delta_but_no_p_value():
    base, tuned = dict.fromkeys(ids(10), 1), dict.fromkeys(ids(10), 2)
    small, large = compared(base, tuned, slices={"four": ids(4), "five": ids(5)}).slices
    assert (small.name, small.large_enough, small.loss_p_value, small.harmed) == ("four", False, None, False)
    assert small.result.delta == -0.5
    assert (large.name, large.large_enough) == ("five", True)
    assert large.loss_p_value is not None


def test_a_slice_of_too_few_independent_queries_is_not_judged():
    base, tuned = dict.fromkeys(ids(12), 1), dict.fromkeys(ids(12), 2)
    pairs = {query_id: f"g{number // 2}" for number, query_id in enumerate(ids(12))}
    eight, ten = compared(base, tuned, slices={"eight": ids(8), "ten": ids(10)}, groups=pairs).slices
    assert (eight.result.n_groups, eight.large_enough, eight.harmed) == (4, False, False)
    assert (ten.result.n_groups, ten.large_enough) == (5, True)


def test_a_slice_without_a_scored_query_is_left_out():
    ranks = {"q1": 1, "q2": 2}
    assert compared(ranks, ranks, slices={"other": ["q9"]}).slices == ()


def test_holm_counts_the_large_slices_alone():
    lost, kept = ids(5), ids(20, 5)
    base = dict.fromkeys([*lost, *kept], 1)
    tuned = dict.fromkeys(lost, 2) | dict.fromkeys(kept, 1)
    alone = compared(base, tuned, slices={"lost": lost}).slices[0].loss_p_value
    small = {f"small {number}": kept[:2] for number in range(20)}
    many = compared(base, tuned, slices={"lost": lost, "kept": kept, **small}).slices
    # Two slices are large enough, so the smaller p-value counts twice; the 20 small ones are not looked at for harm.
    assert many[0].loss_p_value == pytest.approx(2 * alone)
    assert many[1].loss_p_value == 1
    assert all(item.loss_p_value is None for item in many[2:])


def test_a_slice_is_harmed_when_its_corrected_p_value_reaches_1_minus_confidence():
    lost, kept = ids(8), ids(20, 8)
    base = dict.fromkeys([*lost, *kept], 1)
    tuned = dict.fromkeys(lost, 2) | dict.fromkeys(kept, 1)
    # Of 2^8 sign flips of eight equal losses one is as bad as what was seen: p = 1/256 = 0.004.
    assert compared(base, tuned, slices={"lost": lost}).slices[0].harmed
    stricter = CONFIG.model_copy(update={"confidence": 0.9999})
    assert not compared(base, tuned, stricter, slices={"lost": lost}).slices[0].harmed


def test_the_same_seed_gives_the_same_comparison_and_another_seed_other_draws():
    rng = np.random.default_rng(5)
    base, tuned = (dict(zip(ids(40), rng.integers(1, 6, 40).tolist(), strict=True)) for _ in range(2))
    slices = {"first": ids(20)}
    first, again = (compared(base, tuned, slices=slices) for _ in range(2))
    assert (first.overall, first.slices) == (again.overall, again.slices)
    other = compared(base, tuned, CONFIG.model_copy(update={"seed": 1}), slices=slices)
    assert other.deciding.delta == first.deciding.delta
    assert other.deciding.p_value != first.deciding.p_value


def test_every_measure_is_compared_and_the_deciding_one_comes_first():
    config = CONFIG.model_copy(update={"measures": ("recall@1", "MRR", "judged@5")})
    found = compared({"q1": 1, "q2": 2}, {"q1": 1, "q2": 1}, config)
    assert list(found.overall) == ["MRR", "recall@1", "judged@5"]
    assert found.overall["recall@1"].delta == 0.5
    assert found.overall["judged@5"].base == 1 / 5


def test_identical_runs_are_unchanged_and_one_other_value_in_any_measure_is_a_change():
    config = CONFIG.model_copy(update={"measures": ("recall@3",)})
    ranks = {"q1": 1, "q2": 4, "q3": 2}
    assert compared(ranks, ranks, config).unchanged
    hit_at_1 = CONFIG.model_copy(update={"measure": "hit@1", "measures": ("MRR",)})
    assert not compared(ranks, ranks | {"q2": 3}, hit_at_1).unchanged  # no hit@1 moves, but MRR does
