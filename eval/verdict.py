"""The verdict on one contender: adopt, reject or undecided, and why, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from closecall.power import smallest_resolvable_gain
from eval.compare import Comparison
from eval.config import EvalConfig
from eval.rules import Evidence, Rule, all_rules, harmed_slices, points
from eval.statistics import queries_to_decide

Outcome = Literal["adopt", "reject", "undecided", "unchanged"]
EXIT_CODES: dict[Outcome, int] = {"adopt": 0, "reject": 10, "undecided": 11, "unchanged": 10}


@dataclass(frozen=True)
class Verdict:
    """What to do with the tuned model, in one word and one sentence."""

    outcome: Outcome
    sentence: str
    rules: tuple[Rule, ...]
    queries_to_decide: int | None
    """Test queries in all, of this kind, after which an undecided gain would be decided; None when decided."""
    resolvable_gain: float
    """The smallest gain this test set shows with 80 % power, at the spread measured."""

    @property
    def exit_code(self) -> int:
        """0 adopt, 10 reject and unchanged, 11 undecided."""
        return EXIT_CODES[self.outcome]


def decide(comparison: Comparison, config: EvalConfig, evidence: Evidence | None = None) -> Verdict:
    """Adopt when the gain is shown and no harm is; reject when either is shown against; else undecided.

    Gain: the whole interval of the paired delta lies above `min_gain`. Harm: a slice of at least
    `min_slice_queries` is shown to lose more than `max_slice_loss`, Holm-corrected over the slices, or the guard set
    more than `max_guard_loss`. With several seeds the gain must be larger than what they differ by on dev; with several
    contenders its p-value must hold after Holm's correction. A cost above its limit rejects.
    """
    evidence = evidence or Evidence()
    result = comparison.deciding
    resolvable = smallest_resolvable_gain(_spread(comparison), result.n_groups, confidence=config.confidence)
    if comparison.unchanged:
        rule = Rule("gain", "failed", "no query has another value in any measure")
        sentence = f"unchanged: the same values on all {result.n} test queries; there is nothing to adopt."
        return Verdict("unchanged", sentence, (rule,), None, resolvable)
    rules = all_rules(comparison, config, evidence)
    if any(rule.outcome == "failed" for rule in rules):
        outcome: Outcome = "reject"
    elif all(rule.outcome == "passed" for rule in rules):
        outcome = "adopt"
    else:
        outcome = "undecided"
    few = result.n_groups < config.min_groups
    open_gain = rules[0].outcome == "undecided" and (few or result.low <= config.min_gain)
    needed = _needed(comparison, config) if outcome == "undecided" and open_gain else None
    sentence = _sentence(outcome, comparison, config, needed, rules)
    return Verdict(outcome, sentence, tuple(rules), needed, resolvable)


def _needed(comparison: Comparison, config: EvalConfig) -> int | None:
    """Queries in all that would decide, and never fewer than make up `min_groups` groups; None where none would."""
    result = comparison.deciding
    needed = queries_to_decide(result, config.min_gain)
    fewest = math.ceil(config.min_groups * result.n / result.n_groups)
    return None if needed is None else max(needed, fewest)


def _spread(comparison: Comparison) -> float:
    """Standard deviation that gives the interval's half-width back: sd such that z * sd / sqrt(groups) = half."""
    from scipy.stats import norm

    result = comparison.deciding
    z = float(norm.ppf((1 + result.confidence) / 2))
    return float((result.high - result.low) / 2 / z * result.n_groups**0.5)


def _sentence(
    outcome: Outcome, comparison: Comparison, config: EvalConfig, needed: int | None, rules: Sequence[Rule]
) -> str:
    result = comparison.deciding
    measured = (
        f"{comparison.measure} {points(result.base)} -> {points(result.tuned)}, {points(result.delta, True)} points "
        f"[{points(result.low, True)}, {points(result.high, True)}] on {result.n} test queries"
    )
    if outcome == "adopt":
        judged = sum(item.large_enough for item in comparison.slices)
        shown = f"no slice is shown to lose more than {points(config.max_slice_loss)}"
        none = f"none of its {len(comparison.slices)} slices is large enough to judge"
        return f"adopt: {measured}, and {shown if judged or not comparison.slices else none}."
    if outcome == "undecided" and result.n_groups < config.min_groups:
        few = f"{result.n_groups} independent queries decide nothing, whatever they show"
        return f"undecided: {measured}: {few}; judge at least {config.min_groups}."
    if outcome == "undecided" and result.low > config.min_gain:
        unsettled = "; ".join(f"{rule.name}: {rule.evidence}" for rule in rules if rule.outcome == "undecided")
        return f"undecided: {measured}, but {unsettled}."
    if outcome == "undecided":
        more = "" if needed is None else f"; about {needed:,} test queries like these would decide it (80 % power)"
        return f"undecided: {measured}: not enough evidence of a gain above {points(config.min_gain)}{more}."
    reasons = [_reason(comparison, config), *(f"{r.name}: {r.evidence}" for r in rules[2:] if r.outcome == "failed")]
    return f"reject: {measured}: {'; '.join(reason for reason in reasons if reason)}."


def _reason(comparison: Comparison, config: EvalConfig) -> str:
    """Why a model is rejected: the overall result first, then the slices shown harmed, the worst by name."""
    harmed, parts = harmed_slices(comparison), []
    if comparison.deciding.high <= config.min_gain and comparison.deciding.n_groups >= config.min_groups:
        parts.append(f"a gain above {points(config.min_gain)} is ruled out")
    if harmed:
        worst = harmed[0]
        others = f", and {len(harmed) - 1} more slices" if len(harmed) > 1 else ""
        parts.append(
            f"{worst.name} is shown to lose more than {points(config.max_slice_loss)} points "
            f"({points(worst.result.delta, True)}, n = {worst.result.n}){others}"
        )
    return "; ".join(parts)
