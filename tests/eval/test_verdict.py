import re
from types import SimpleNamespace

import pytest

from closecall.records import Judgment, Qrels, Run, ScoredDoc
from closecall.slices import Slice
from eval.compare import compare
from eval.config import EvalConfig
from eval.guard import GuardResult
from eval.rules import Evidence
from eval.verdict import EXIT_CODES, decide

SETTINGS = {"measure": "MRR", "measures": (), "resamples": 999, "min_slice_queries": 10}


def ids(count, start=0):
    return [f"q{number}" for number in range(start, start + count)]


def run_of(ranks):
    """A run whose one positive stands at this rank of each query: its MRR is 1 / rank."""
    return Run(
        {q: [ScoredDoc("pos" if at == rank else f"x{at}", -at) for at in range(1, 6)] for q, rank in ranks.items()}
    )


def verdict(moves, slices=(), guard=None, seed_spread=None, evidence=(), **settings):
    """The verdict on queries that move [(count, rank before, rank after), ...], numbered q0, q1, ... through all."""
    before = [rank for count, rank, _ in moves for _ in range(count)]
    after = [rank for count, _, rank in moves for _ in range(count)]
    names = ids(len(before))
    qrels = Qrels(Judgment(query_id, "pos", 1) for query_id in names)
    runs = (run_of(dict(zip(names, ranks, strict=True))) for ranks in (before, after))
    config = EvalConfig(**SETTINGS | settings)
    named = [Slice(name, frozenset(members)) for name, members in dict(slices).items()]
    return decide(compare(qrels, *runs, config, named), config, Evidence(guard, seed_spread, **dict(evidence)))


GAIN = [(36, 2, 1), (4, 1, 1)]  # +1/2 for 36 of 40: +45 points
LOSS = [(36, 1, 2), (4, 1, 1)]
UNSURE = [(12, 2, 1), (8, 1, 2)]  # 12 gain what 8 lose: +10 points, but 12 of 20 heads are no news


def test_a_gain_whose_whole_interval_lies_above_0_is_adopted():
    found = verdict(GAIN)
    assert (found.outcome, found.exit_code, found.queries_to_decide) == ("adopt", 0, None)
    assert [rule.outcome for rule in found.rules] == ["passed", "passed"]


def test_a_gain_that_is_ruled_out_is_rejected():
    found = verdict(LOSS)
    assert (found.outcome, found.exit_code, found.queries_to_decide) == ("reject", 10, None)
    assert found.rules[0].outcome == "failed"
    assert found.rules[0].evidence.endswith("rules it out")
    assert found.sentence.endswith("a gain above 0.0 is ruled out.")


def test_a_gain_that_could_be_luck_is_not_called_a_gain_and_the_verdict_says_how_many_queries_would_tell():
    found = verdict(UNSURE)
    assert (found.outcome, found.exit_code) == ("undecided", 11)
    # The deltas' sd is 0.49, and 80 % power takes ((1.96 + 0.84) * 0.49 / 0.1)^2 = 188 queries; Student's t a few more.
    assert 170 <= found.queries_to_decide <= 250
    assert f"about {found.queries_to_decide} test queries like these would decide it" in found.sentence


def test_fewer_than_20_independent_queries_decide_nothing_and_the_verdict_says_why():
    found = verdict([(19, 2, 1)])  # every query gains, and still: no interval holds its level on so few
    assert (found.outcome, found.rules[0].outcome) == ("undecided", "undecided")
    assert "19 independent queries decide nothing, whatever they show; judge at least 20." in found.sentence
    assert found.queries_to_decide == 20
    assert verdict([(20, 2, 1)]).outcome == "adopt"


def test_a_tie_that_no_number_of_queries_would_decide_gives_no_number():
    found = verdict([(10, 2, 1), (10, 1, 2)])  # a delta of 0 exactly
    assert (found.outcome, found.queries_to_decide) == ("undecided", None)
    assert found.sentence.endswith("not enough evidence of a gain above 0.0.")


def test_a_model_that_ranks_as_before_is_called_unchanged():
    found = verdict([(20, 1, 1), (20, 3, 3)], slices={"half": ids(20)})
    assert (found.outcome, found.exit_code) == ("unchanged", 10)
    assert found.sentence.startswith("unchanged: the same values on all")
    assert "all 40 test queries" in found.sentence
    assert [rule.outcome for rule in found.rules] == ["failed"]


def test_min_gain_moves_the_outcome():
    # +45 points with an interval of a few points around it.
    assert verdict(GAIN, min_gain=0.3).outcome == "adopt"
    assert verdict(GAIN, min_gain=0.45).outcome == "undecided"
    assert verdict(GAIN, min_gain=0.6).outcome == "reject"


def test_a_slice_shown_harmed_rejects_even_when_the_overall_gain_is_large():
    moves = [(20, 1, 2), (180, 2, 1)]  # 20 queries lose half, 180 gain half: +40 points
    found = verdict(moves, slices={"mail": ids(20), "web": ids(180, 20)})
    assert (found.outcome, found.exit_code, found.queries_to_decide) == ("reject", 10, None)
    assert [rule.outcome for rule in found.rules] == ["passed", "failed"]
    assert found.rules[1].evidence == "shown harmed: mail -50.0 (n = 20)"
    assert found.sentence.startswith("reject: MRR 55.0 -> 95.0, +40.0 points")
    assert found.sentence.endswith("mail is shown to lose more than 2.0 points (-50.0, n = 20).")


def test_a_loss_overall_leads_the_sentence_and_the_slices_follow():
    found = verdict(LOSS, slices={"first": ids(20), "last": ids(20, 20)})
    assert ": a gain above 0.0 is ruled out; first is shown to lose more than 2.0 points" in found.sentence
    assert found.sentence.endswith(", and 1 more slices.")


def test_an_adopted_model_whose_slices_are_all_too_small_says_so():
    found = verdict(GAIN, slices={"few": ids(4)})
    assert found.sentence.endswith("and none of its 1 slices is large enough to judge.")


def test_the_worst_slice_comes_first():
    moves = [(20, 1, 2), (20, 1, 5), (160, 2, 1)]
    found = verdict(moves, slices={"mail": ids(20), "web": ids(20, 20)})
    assert found.rules[1].evidence == "shown harmed: web -80.0 (n = 20), mail -50.0 (n = 20)"


def test_max_slice_loss_moves_the_outcome():
    moves = [(20, 4, 5), (180, 2, 1)]  # 1/4 to 1/5: the slice loses 5 points
    slices = {"mail": ids(20)}
    assert verdict(moves, slices, max_slice_loss=0.02).outcome == "reject"
    assert verdict(moves, slices, max_slice_loss=0.10).outcome == "adopt"


def test_a_slice_too_small_to_judge_rejects_nothing_and_is_counted():
    moves = [(9, 1, 2), (180, 2, 1)]
    found = verdict(moves, slices={"mail": ids(9), "web": ids(180, 9)})
    assert found.outcome == "adopt"
    assert found.rules[1].evidence == "none of 1 slices is shown to; 1 are too small to judge"


def test_a_slice_whose_loss_could_be_luck_rejects_nothing():
    moves = [(6, 1, 2), (5, 2, 1), (180, 2, 1)]  # 6 lose, 5 gain: -4.5 points in the slice
    assert verdict(moves, slices={"mail": ids(11)}).outcome == "adopt"


def test_harm_outweighs_doubt():
    moves = [(20, 1, 2), (24, 2, 1)]  # +4.5 points overall, undecided
    found = verdict(moves, slices={"mail": ids(20)})
    assert [rule.outcome for rule in found.rules] == ["undecided", "failed"]
    assert (found.outcome, found.queries_to_decide) == ("reject", None)


@pytest.mark.parametrize(("moves", "before", "after"), [(GAIN, 55.0, 100.0), (LOSS, 100.0, 55.0), (UNSURE, 70.0, 80.0)])
def test_the_sentence_holds_outcome_measure_both_values_delta_interval_and_n(moves, before, after):
    # GAIN: 36 * 1/2 + 4 = 22 of 40 = 0.55. UNSURE: 12 * 1/2 + 8 = 14 of 20 = 0.70.
    found = verdict(moves)
    n = sum(count for count, _, _ in moves)
    parts = re.fullmatch(
        r"(\w+): MRR ([\d.]+) -> ([\d.]+), ([+-][\d.]+) points \[([+-][\d.]+), ([+-][\d.]+)\] on (\d+) test queries.*",
        found.sentence,
    )
    assert parts is not None, found.sentence
    assert parts[1] == found.outcome
    numbers = [float(part) for part in parts.groups()[1:]]
    assert numbers[:3] == [before, after, pytest.approx(after - before)]
    assert numbers[3] < numbers[2] < numbers[4]
    assert numbers[5] == n


def test_the_resolvable_gain_is_that_of_the_spread_measured():
    # n = 20, sd 0.49: (1.96 + 0.84) * 0.49 / sqrt(20) = 0.31, a little more since the interval uses Student's t.
    assert verdict(UNSURE).resolvable_gain == pytest.approx(0.31, abs=0.04)
    assert verdict([(20, 1, 1)]).resolvable_gain == 0


def guard(n=40, harmed=False):
    """A guard set of n queries that lose 3 points."""
    comparison = SimpleNamespace(delta=-0.03, n=n, n_groups=n)
    return GuardResult("general", 500, comparison, 0.01 if harmed else 0.2, harmed)


def test_a_guard_set_shown_harmed_rejects_a_gain_and_is_named():
    found = verdict(GAIN, guard=guard(harmed=True))
    assert (found.outcome, found.rules[2].outcome) == ("reject", "failed")
    assert found.sentence.endswith(
        ": the guard set loses no more than 2.0 points: shown to lose more: -3.0 (n = 40) on general."
    )


def test_a_guard_set_not_shown_harmed_lets_a_gain_pass_and_one_too_small_leaves_it_undecided():
    assert verdict(GAIN, guard=guard()).outcome == "adopt"
    small = verdict(GAIN, guard=guard(n=19))
    assert (small.outcome, small.rules[2].outcome) == ("undecided", "undecided")
    assert "19 independent queries are too few (20): -3.0 (n = 19) on general" in small.sentence
    assert verdict(LOSS, guard=guard(n=19)).outcome == "reject"


def test_a_gain_no_larger_than_what_seeds_differ_by_is_undecided():
    assert verdict(GAIN, seed_spread=0.44).outcome == "adopt"  # the gain is 45 points
    found = verdict(GAIN, seed_spread=0.46)
    assert (found.outcome, found.rules[2].outcome, found.queries_to_decide) == ("undecided", "undecided", None)
    assert "+45.0 against 46.0 between the best and the worst seed on dev" in found.sentence


def test_a_required_slice_must_be_shown_not_to_lose():
    moves = [(40, 2, 1), (30, 2, 2)]
    slices = {"gains": ids(40), "same": ids(30, 40), "few": ids(5)}
    assert verdict(moves, slices, required_slices=("gains", "same")).outcome == "adopt"
    few = verdict(moves, slices, required_slices=("few",))
    assert (few.outcome, few.rules[2].evidence) == ("undecided", "n = 5 is too small to judge")
    unknown = verdict(moves, slices, required_slices=("none",))
    assert unknown.outcome == "undecided"
    assert unknown.rules[2].evidence == "there is no such slice of the test queries; there are gains, same, few"
    # 12 of 40 lose a half, 15 gain it: no harm is shown, but its absence is not shown either.
    mixed = verdict([(12, 1, 2), (15, 2, 1), (13, 1, 1), (160, 2, 1)], {"m": ids(40)}, required_slices=("m",))
    assert [rule.outcome for rule in mixed.rules] == ["passed", "passed", "undecided"]
    assert mixed.sentence.startswith("undecided: MRR")


def test_a_cost_above_its_limit_rejects_a_gain_and_an_unmeasured_one_decides_nothing():
    limits = {"latency_p95_ms": 20.0, "bytes_per_vector": 512}
    costs = {"latency_p95_ms": 19.5, "bytes_per_vector": 512}
    assert verdict(GAIN, limits=limits, evidence={"costs": costs}).outcome == "adopt"
    slow = verdict(GAIN, limits=limits, evidence={"costs": costs | {"latency_p95_ms": 31.25}})
    assert (slow.outcome, slow.rules[2].name, slow.rules[2].outcome) == (
        "reject",
        "latency_p95_ms at most 20",
        "failed",
    )
    assert slow.sentence.endswith(": latency_p95_ms at most 20: measured 31.25.")
    assert verdict(GAIN, limits=limits, evidence={"costs": {"latency_p95_ms": 19.5}}).outcome == "undecided"


def test_a_gain_that_does_not_hold_among_several_contenders_is_undecided():
    held = verdict(GAIN, evidence={"gain_p_value": 0.05, "contenders": 4})
    assert held.outcome == "adopt"
    found = verdict(GAIN, evidence={"gain_p_value": 0.051, "contenders": 4})
    assert (found.outcome, found.queries_to_decide) == ("undecided", None)
    assert "but p = 0.051 after Holm's correction over 4 contenders" in found.sentence


def test_the_exit_codes_are_0_10_and_11():
    assert EXIT_CODES == {"adopt": 0, "reject": 10, "undecided": 11, "unchanged": 10}
