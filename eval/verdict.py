"""The rule: adopt, reject or undecided, each part of it with its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eval.compare import Comparison, SliceResult
from eval.config import EvalConfig
from eval.guard import GuardResult
from eval.statistics import queries_to_decide, smallest_resolvable_gain

Outcome = Literal["adopt", "reject", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"adopt": 0, "reject": 10, "undecided": 11}


@dataclass(frozen=True)
class Rule:
    """One rule, what came of it, and why."""

    name: str
    outcome: Literal["passed", "failed", "undecided"]
    evidence: str


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
        """0 adopt, 10 reject, 11 undecided."""
        return EXIT_CODES[self.outcome]


def decide(
    comparison: Comparison, config: EvalConfig, guard: GuardResult | None = None, seed_spread: float | None = None
) -> Verdict:
    """Adopt when the gain is shown and no harm is; reject when either is shown against; else undecided.

    Gain: the whole interval of the paired delta lies above `min_gain`. Harm: a slice of at least
    `min_slice_queries` is shown to lose more than `max_slice_loss`, Holm-corrected over the slices, or the guard set
    more than `max_guard_loss`. With several seeds the gain must be larger than what they differ by on dev.
    """
    result = comparison.deciding
    resolvable = smallest_resolvable_gain(_spread(comparison), result.n_groups, confidence=config.confidence)
    if comparison.unchanged:
        rule = Rule("gain", "failed", "no query has another value in any measure")
        sentence = f"reject: nothing changed; tuned and base have the same values on all {result.n} test queries."
        return Verdict("reject", sentence, (rule,), None, resolvable)
    rules = [_gain_rule(comparison, config), _slice_rule(comparison, config)]
    rules += [] if guard is None else [_guard_rule(guard, config)]
    rules += [] if seed_spread is None else [_seed_rule(comparison, seed_spread)]
    if any(rule.outcome == "failed" for rule in rules):
        outcome: Outcome = "reject"
    elif all(rule.outcome == "passed" for rule in rules):
        outcome = "adopt"
    else:
        outcome = "undecided"
    open_gain = outcome == "undecided" and rules[0].outcome == "undecided"
    needed = _needed(comparison, config) if open_gain else None
    sentence = _sentence(outcome, comparison, config, needed, rules)
    return Verdict(outcome, sentence, tuple(rules), needed, resolvable)


def _needed(comparison: Comparison, config: EvalConfig) -> int | None:
    """Queries in all that would decide, and never fewer than make up `min_groups` groups; None where none would."""
    result = comparison.deciding
    needed = queries_to_decide(result, config.min_gain)
    fewest = math.ceil(config.min_groups * result.n / result.n_groups)
    return None if needed is None else max(needed, fewest)


def points(value: float, signed: bool = False) -> str:
    """A measure in points (hundredths), as the report prints it."""
    return f"{value * 100:+.1f}" if signed else f"{value * 100:.1f}"


def _gain_rule(comparison: Comparison, config: EvalConfig) -> Rule:
    result = comparison.deciding
    name = f"gain in {comparison.measure} above {points(config.min_gain)} points"
    interval = f"[{points(result.low, True)}, {points(result.high, True)}]"
    if result.n_groups < config.min_groups:
        evidence = f"{result.n_groups} independent queries are too few for an interval that holds ({config.min_groups})"
        return Rule(name, "undecided", evidence)
    if result.low > config.min_gain:
        return Rule(name, "passed", f"the interval {interval} lies above")
    if result.high <= config.min_gain:
        return Rule(name, "failed", f"the interval {interval} rules it out")
    return Rule(name, "undecided", f"the interval {interval} holds {points(config.min_gain)}")


def _slice_rule(comparison: Comparison, config: EvalConfig) -> Rule:
    name = f"no slice loses more than {points(config.max_slice_loss)} points"
    harmed = harmed_slices(comparison)
    judged = sum(item.large_enough for item in comparison.slices)
    if harmed:
        parts = (f"{item.name} {points(item.result.delta, True)} (n = {item.result.n})" for item in harmed)
        return Rule(name, "failed", "shown harmed: " + ", ".join(parts))
    small = len(comparison.slices) - judged
    return Rule(name, "passed", f"none of {judged} slices is shown to; {small} are too small to judge")


def _guard_rule(guard: GuardResult, config: EvalConfig) -> Rule:
    name, result = f"the guard set loses no more than {points(config.max_guard_loss)} points", guard.result
    found = f"{points(result.delta, True)} (n = {result.n}) on {guard.name}"
    if guard.harmed:
        return Rule(name, "failed", f"shown to lose more: {found}")
    if result.n_groups < config.min_groups:
        return Rule(
            name, "undecided", f"{result.n_groups} independent queries are too few ({config.min_groups}): {found}"
        )
    return Rule(name, "passed", f"not shown to: {found}")


def _seed_rule(comparison: Comparison, spread: float) -> Rule:
    name, delta = "the gain is larger than what seeds differ by", comparison.deciding.delta
    found = f"{points(delta, True)} against {points(spread)} between the best and the worst seed on dev"
    return Rule(name, "passed" if delta > spread else "undecided", found)


def harmed_slices(comparison: Comparison) -> list[SliceResult]:
    """Slices shown to lose more than allowed, the worst first."""
    return sorted((item for item in comparison.slices if item.harmed), key=lambda item: item.result.delta)


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
    if outcome == "undecided" and rules[0].outcome == "passed":
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
    if _gain_rule(comparison, config).outcome == "failed":
        parts.append(f"a gain above {points(config.min_gain)} is ruled out")
    if harmed:
        worst = harmed[0]
        others = f", and {len(harmed) - 1} more slices" if len(harmed) > 1 else ""
        parts.append(
            f"{worst.name} is shown to lose more than {points(config.max_slice_loss)} points "
            f"({points(worst.result.delta, True)}, n = {worst.result.n}){others}"
        )
    return "; ".join(parts)
