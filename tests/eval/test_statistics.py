import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from closecall.power import smallest_resolvable_gain
from eval.slice_means import interval_of_slice_means
from eval.statistics import (
    gain_p_value,
    holm,
    loss_p_value,
    paired,
    queries_to_decide,
)

SIMULATIONS = 600


def rng(seed=0):
    return np.random.default_rng(seed)


def compare(deltas, groups=None, **options):
    deltas = np.asarray(deltas, dtype=np.float64)
    options.setdefault("rng", rng())
    return paired(np.zeros_like(deltas), deltas, groups, **options)


def recall_like(generator, n, gained=0.123, lost=0.071):
    draw = generator.random(n)
    return np.where(draw < gained, 1.0, np.where(draw < gained + lost, -1.0, 0.0))


def ndcg_like(generator, n):
    """nDCG of one positive whose rank moves by up to 3 places for 6 of 10 queries, and up by one for all of these."""
    before = generator.geometric(0.35, n)
    after = np.maximum(1, before + np.where(generator.random(n) < 0.4, 0, generator.integers(-3, 4, n) - 1))
    return np.where(after > 10, 0.0, 1 / np.log2(1 + after)) - np.where(before > 10, 0.0, 1 / np.log2(1 + before))


def in_groups(draw, generator, n_groups):
    """Groups of 1 to 8 queries; a query shares the delta of its group 7 times in 10."""
    groups = np.repeat(np.arange(n_groups), generator.integers(1, 9, n_groups))
    shared = draw(generator, n_groups)[groups]
    return np.where(generator.random(groups.size) < 0.7, shared, draw(generator, groups.size)), groups


# --- the comparison


def test_counts_means_and_effect_size_are_those_worked_by_hand():
    result = paired(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1.0, 1.0, 0.5, 0.0]), rng=rng())
    assert (result.n, result.n_groups, result.wins, result.ties, result.losses) == (4, 4, 2, 1, 1)
    assert (result.base, result.tuned, result.delta) == (0.5, 0.625, 0.125)
    # deltas 1/2, 1/2, 0, -1/2: squares about 1/8 sum to 9/64 + 9/64 + 1/64 + 25/64 = 11/16, sd = sqrt(11/48)
    assert result.effect_size == pytest.approx(0.125 / math.sqrt(11 / 48))


def test_the_interval_is_no_narrower_than_students():
    result = compare([0.5, 0.5, 0.0, -0.5])
    # t(0.975; 3) = 3.182446 (any table), error = sqrt(11/48) / sqrt(4); a bootstrap of 4 values reaches +-0.5 at most
    half_width = 3.182446 * math.sqrt(11 / 48) / 2
    assert (result.low, result.high) == pytest.approx((0.125 - half_width, 0.125 + half_width), abs=1e-6)
    assert result.method == "paired bootstrap, no narrower than Student's t"


def test_a_skewed_end_is_that_of_the_bootstrap():
    deltas = np.array([0.0] * 58 + [-1.0, -1.0])
    means = np.array([deltas[row].mean() for row in rng(2).integers(0, 60, (20000, 60))])
    result = compare(deltas)
    # 1/60 apart; Student's t alone would end at -0.033 - 2.001 * 0.0234 = -0.080
    assert result.low == pytest.approx(np.quantile(means, 0.025), abs=1e-9) == pytest.approx(-5 / 60)


def test_the_interval_agrees_with_a_plain_bootstrap_on_smooth_data():
    deltas = rng(1).normal(0.02, 0.2, 400)
    means = np.array([deltas[row].mean() for row in rng(2).integers(0, 400, (4000, 400))])
    result = compare(deltas)
    assert (result.low, result.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.0015)


def test_the_grouped_interval_agrees_with_a_plain_bootstrap_of_whole_groups():
    deltas, groups = in_groups(ndcg_like, rng(3), 300)
    members = [deltas[groups == group] for group in range(300)]
    means = [np.concatenate([members[i] for i in row]).mean() for row in rng(4).integers(0, 300, (3000, 300))]
    result = compare(deltas, groups)
    assert (result.low, result.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.002)


def test_a_wider_confidence_gives_a_wider_interval():
    deltas = rng(5).normal(size=30)
    usual, wide = compare(deltas), compare(deltas, confidence=0.99)
    assert wide.low < usual.low < usual.high < wide.high


def test_repeating_every_query_in_its_group_adds_no_certainty():
    deltas = rng(6).normal(size=40)
    once = compare(deltas)
    repeated = compare(np.repeat(deltas, 5), np.repeat(np.arange(40), 5))
    alone = compare(np.repeat(deltas, 5))
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    assert (repeated.n, repeated.n_groups) == (200, 40)
    assert alone.high - alone.low < 0.5 * (repeated.high - repeated.low)


def test_groups_of_one_query_are_the_same_as_no_groups():
    deltas = recall_like(rng(7), 50)
    assert compare(deltas, [f"g{i}" for i in range(50)]) == compare(deltas)


def test_labels_of_any_hashable_kind_make_groups():
    assert compare([1.0, 0.0, 1.0, -1.0], [None, 3, None, ("en", "de")]).n_groups == 3


@pytest.mark.parametrize("grouped", [False, True])
def test_the_order_of_queries_changes_nothing_at_all(grouped):
    base, tuned, groups = rng(8).random(60), rng(9).random(60), rng(10).integers(0, 15, 60)
    order = rng(11).permutation(60)
    straight = paired(base, tuned, groups if grouped else None, rng=rng())
    shuffled = paired(base[order], tuned[order], groups[order] if grouped else None, rng=rng())
    assert straight == shuffled


def test_the_same_seed_gives_the_same_result_and_leaves_the_inputs_alone():
    base, tuned = rng(12).random(80), rng(13).random(80)
    kept = base.copy(), tuned.copy()
    assert paired(base, tuned, rng=rng(1)) == paired(base, tuned, rng=rng(1))
    assert np.array_equal(base, kept[0])
    assert np.array_equal(tuned, kept[1])


# --- where there is no spread


def test_deltas_that_are_all_the_same_give_an_interval_of_no_width():
    result = compare([0.25] * 8)
    assert (result.low, result.high, result.effect_size) == (0.25, 0.25, 0.0)
    assert result.method == "exact: all deltas are the same"
    assert result.p_value == 2 / 2**8


def test_deltas_that_differ_by_rounding_alone_are_the_same():
    base = np.arange(1, 11) / 20
    result = paired(base, base + 0.1, rng=rng())
    assert len(set(base + 0.1 - base)) > 1
    assert (result.low, result.high, result.effect_size) == (pytest.approx(0.1), pytest.approx(0.1), 0.0)
    assert loss_p_value(-(base + 0.1 - base), None, 0.02, rng()) == 1 / 2**10


def test_models_that_agree_on_every_query_have_p_1():
    result = compare([0.0] * 20)
    assert (result.low, result.high, result.p_value, result.ties) == (0.0, 0.0, 1.0, 20)


@pytest.mark.parametrize(("deltas", "groups"), [([0.3], None), ([0.3, 0.1], ["a", "a"])])
def test_a_single_group_tells_nothing(deltas, groups):
    result = compare(deltas, groups)
    assert (result.low, result.high, result.p_value) == (-math.inf, math.inf, 1.0)
    assert result.method == "undefined: a single group of queries"


@pytest.mark.parametrize(
    ("base", "tuned", "groups", "message"),
    [
        ([0.0, 1.0], [0.0], None, r"base has shape \(2,\), tuned \(1,\)"),
        ([], [], None, "at least one query"),
        ([0.0, math.nan], [0.0, 1.0], None, "expected finite values"),
        ([0.0, 1.0], [0.0, 1.0], ["a"], "1 group labels for 2 queries"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(base, tuned, groups, message):
    with pytest.raises(ValueError, match=message):
        paired(np.array(base), np.array(tuned), groups, rng=rng())


# --- the p-value


def test_three_queries_that_all_gain_have_p_2_of_8():
    assert compare([0.1, 0.2, 0.3]).p_value == 2 / 8


def test_the_exact_p_value_is_that_of_all_flips_tried_one_by_one():
    deltas = np.array([0.9, 0.4, -0.2, 0.7, 0.1, -0.3])
    totals = [np.dot(signs, deltas) for signs in itertools.product([1, -1], repeat=6)]
    expected = 2 * np.mean(np.array(totals) >= deltas.sum() - 1e-12)
    assert compare(deltas).p_value == pytest.approx(expected)


def test_groups_are_flipped_whole():
    # three groups that all gain: 2 of 8 flips, however many queries they hold
    assert compare([0.1, 0.1, 0.2, 0.2, 0.3, 0.3], ["a", "a", "b", "b", "c", "c"]).p_value == 2 / 8


def test_the_drawn_p_value_is_near_the_exact_one():
    deltas = rng(14).normal(0.3, 1.0, 14)
    drawn, exact = compare(deltas, resamples=9999).p_value, compare(deltas, resamples=2**14).p_value
    assert drawn == pytest.approx(exact, abs=0.02)


def test_a_p_value_is_never_0():
    # (b + 1) / (n + 1) with b = 0, for both sides; 200 gains cannot come about by chance
    assert compare(np.linspace(0.5, 1, 200), resamples=99).p_value == 2 / 100
    assert loss_p_value(np.linspace(-1, -0.5, 200), None, 0.02, rng(), resamples=99) == 1 / 100


# --- how often it is right


@pytest.mark.parametrize("n", [50, 200])
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
@pytest.mark.parametrize("draw", [recall_like, ndcg_like])
def test_the_interval_holds_the_true_difference_in_93_to_97_of_100_test_sets(draw, grouped, n):
    truth = draw(rng(15), 1_000_000).mean()
    generator, held = rng(n), 0
    for _ in range(SIMULATIONS):
        deltas, groups = in_groups(draw, generator, n) if grouped else (draw(generator, n), None)
        result = compare(deltas, groups, resamples=999, rng=generator)
        held += result.low <= truth <= result.high
    assert 0.93 <= held / SIMULATIONS <= 0.97


@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
def test_the_interval_on_the_mean_of_slices_holds_the_truth_in_93_to_97_of_100_test_sets(grouped):
    sizes, generator, held = (120, 60, 30), rng(21), 0
    moves = [(0.12, 0.02), (0.1, 0.1), (0.05, 0.15)]
    truth = np.mean([gained - lost for gained, lost in moves])
    for _ in range(SIMULATIONS):
        deltas, of, groups = [], [], []
        for slice_, (size, (gained, lost)) in enumerate(zip(sizes, moves, strict=True)):
            draw = functools.partial(recall_like, gained=gained, lost=lost)
            found, labels = in_groups(draw, generator, size) if grouped else (draw(generator, size), np.arange(size))
            deltas.append(found)
            of += [slice_] * found.size
            groups += [(slice_, label) for label in labels.tolist()]
        masks = np.asarray(of) == np.arange(3)[:, None]
        options = {"confidence": 0.95, "resamples": 499, "rng": generator}
        low, high = interval_of_slice_means(np.concatenate(deltas), masks, list(map(str, groups)), **options)
        held += low <= truth <= high
    assert 0.93 <= held / SIMULATIONS <= 0.97


def test_the_mean_of_slices_is_that_of_their_means_however_large_they_are():
    # 90 queries gain 0.1 and 10 lose 0.5: -0.2, where the mean over the queries is +0.04
    deltas = np.concatenate([np.full(90, 0.1), np.full(10, -0.5)])
    masks = np.asarray([np.arange(100) < 90, np.arange(100) >= 90])
    low, high = interval_of_slice_means(deltas, masks, None, confidence=0.95, resamples=999, rng=rng())
    assert (low, high) == (pytest.approx(-0.2), pytest.approx(-0.2))


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("shape", ["few changed", "many changed", "grouped", "graded"])
def test_a_slice_that_loses_just_the_allowed_is_rarely_called_harmed(shape, n):
    generator, accused = rng(n), 0
    mean = ndcg_like(rng(16), 1_000_000).mean()
    fallen = (0.02 + mean) / (0.37 + mean)  # share of queries that fall by 0.37 (rank 1 to 2), for a mean of -0.02
    for _ in range(500):
        groups = None
        if shape == "graded":
            deltas = np.where(generator.random(n) < fallen, -0.37, ndcg_like(generator, n))
        elif shape == "grouped":
            deltas, groups = in_groups(lambda r, m: recall_like(r, m, 0.09, 0.11), generator, n)
        else:
            changed = 0.1 if shape == "few changed" else 0.2
            deltas = recall_like(generator, n, changed / 2 - 0.01, changed / 2 + 0.01)
        accused += loss_p_value(deltas, groups, 0.02, generator, resamples=199) <= 0.05
    # 5 % and two standard errors of 500 simulations
    assert accused / 500 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 500)


def test_a_few_large_gains_by_chance_missing_do_not_make_a_slice_harmed():
    # one query gains 0.8, 60 lose 0.1, 39 nothing; four more such gains would bring the mean to the -0.02 allowed
    deltas = np.concatenate([[0.8], np.full(60, -0.1), np.zeros(39)])
    assert stats.ttest_1samp(deltas, -0.02, alternative="less").pvalue < 0.001
    assert loss_p_value(deltas, None, 0.02, rng()) > 0.05


def test_a_clear_loss_is_shown_and_a_gain_is_not():
    lost = recall_like(rng(17), 200, gained=0.02, lost=0.2)
    assert loss_p_value(lost, None, 0.02, rng()) < 0.001
    assert loss_p_value(-lost, None, 0.02, rng()) > 0.99


def test_the_loss_of_a_whole_group_is_one_observation():
    # the 40 queries of four groups all lose: 1 of 16 flips; taken one by one, 1 of 2^40
    deltas, groups = np.full(40, -0.5), np.repeat(np.arange(4), 10)
    assert loss_p_value(deltas, groups, 0.02, rng()) == 1 / 16
    assert loss_p_value(deltas, None, 0.02, rng()) < 0.001


# --- several contenders


def test_without_any_gain_one_of_five_contenders_is_adopted_in_at_most_5_of_100_test_sets():
    generator, adopted, alone = rng(22), 0, 0
    for _ in range(SIMULATIONS):
        shared = recall_like(generator, 100, 0.05, 0.05)  # they move together, as variants of one model do
        deltas = [np.clip(shared + recall_like(generator, 100, 0.1, 0.1), -1, 1) for _ in range(5)]
        above = [compare(d, resamples=199, rng=generator).low > 0 for d in deltas]
        p_values = holm([gain_p_value(d, None, 0.0, generator, resamples=199) for d in deltas])
        alone += any(above)
        adopted += any(low and p <= 0.05 for low, p in zip(above, p_values, strict=True))
    assert adopted / SIMULATIONS <= 0.05
    assert alone / SIMULATIONS > 0.05  # which is what the correction is for


# --- Holm


def test_holm_gives_the_adjusted_values_worked_by_hand():
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04; the last may not fall under 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_never_exceeds_1_and_takes_an_empty_family():
    assert holm([0.4, 0.9, 0.7]) == pytest.approx([1.0, 1.0, 1.0])
    assert holm([0.04]) == pytest.approx([0.04])
    assert holm([]).size == 0


# --- how many queries it takes


def test_the_smallest_resolvable_gain_is_that_of_the_normal_quantiles():
    # (1.959964 + 0.841621) * 0.4 / sqrt(100)
    assert smallest_resolvable_gain(0.4, 100) == pytest.approx(0.1120634)


def test_four_times_the_queries_halve_the_interval():
    result = compare(rng(18).normal(0.1, 1.0, 100))
    below, above = result.delta - result.low, result.high - result.delta
    # With a power of one half the interval need only end at the minimum on average: half as wide, four times as many.
    assert queries_to_decide(result, result.delta - below / 2, power=0.5) == 400
    assert queries_to_decide(result, result.delta + above / 2, power=0.5) == 400


def test_so_many_queries_decide_in_8_of_10_test_sets():
    # As many as a gain of 0.2 with sd 1 takes: ((1.96 + 0.8416) / 0.2)^2 = 196.2
    generator = rng(22)
    result = compare(np.sort(generator.permutation(stats.norm.ppf((np.arange(100) + 0.5) / 100))) + 0.2)
    needed = queries_to_decide(result, 0.0)
    assert 180 <= needed <= 215
    decided = sum(compare(generator.normal(0.2, 1.0, needed), resamples=99).low > 0 for _ in range(400))
    assert 0.74 <= decided / 400 <= 0.86


def test_no_number_of_queries_decides_a_gain_of_just_the_minimum():
    result = compare([0.5, 0.5, 0.0, -0.5])
    assert queries_to_decide(result, 0.125) is None
    assert queries_to_decide(compare([0.3]), 0.0) is None
