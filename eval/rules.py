"""The rules of a verdict, each passed, failed or undecided, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eval.compare import Comparison, SliceResult
from eval.config import EvalConfig
from eval.guard import GuardResult


@dataclass(frozen=True)
class Rule:
    """One rule, what came of it, and why."""

    name: str
    outcome: Literal["passed", "failed", "undecided"]
    evidence: str


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on beside the comparison; None where it was not asked for."""

    guard: GuardResult | None = None
    seed_spread: float | None = None
    gain_p_value: float | None = None
    """Holm-corrected over the contenders; None with a single one, where the interval decides."""
    contenders: int = 1
    costs: Mapping[str, float | None] = field(default_factory=dict)
    """By the names of the limits."""


def all_rules(comparison: Comparison, config: EvalConfig, evidence: Evidence) -> list[Rule]:
    """Gain and slices first, then what the config asks for."""
    rules = [_gain_rule(comparison, config, evidence), _slice_rule(comparison, config)]
    rules += [_required_rule(comparison, name, config) for name in config.required_slices]
    rules += [] if config.guard is None and evidence.guard is None else [_guard_rule(evidence.guard, config)]
    rules += [] if evidence.seed_spread is None else [_seed_rule(comparison, evidence.seed_spread)]
    return rules + _limit_rules(config, evidence)


def points(value: float, signed: bool = False) -> str:
    """A measure in points (hundredths), as the report prints it."""
    return f"{value * 100:+.1f}" if signed else f"{value * 100:.1f}"


def _gain_rule(comparison: Comparison, config: EvalConfig, evidence: Evidence) -> Rule:
    result = comparison.deciding
    name = f"gain in {comparison.measure} above {points(config.min_gain)} points"
    interval = f"[{points(result.low, True)}, {points(result.high, True)}]"
    if result.n_groups < config.min_groups:
        few = f"{result.n_groups} independent queries are too few for an interval that holds ({config.min_groups})"
        return Rule(name, "undecided", few)
    if result.low > config.min_gain:
        if evidence.gain_p_value is not None and evidence.gain_p_value > 1 - config.confidence:
            held = f"p = {evidence.gain_p_value:.3f} after Holm's correction over {evidence.contenders} contenders"
            return Rule(name, "undecided", f"the interval {interval} lies above, but {held}")
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


def _required_rule(comparison: Comparison, wanted: str, config: EvalConfig) -> Rule:
    name = f"{wanted} is shown to lose no more than {points(config.max_slice_loss)} points"
    found = next((item for item in comparison.slices if item.name == wanted), None)
    if found is None:
        there = ", ".join(item.name for item in comparison.slices[:8]) or "none"
        return Rule(name, "undecided", f"there is no such slice of the test queries; there are {there}")
    result = found.result
    if not found.large_enough:
        return Rule(name, "undecided", f"n = {result.n} is too small to judge")
    interval = f"[{points(result.low, True)}, {points(result.high, True)}]"
    if result.low >= -config.max_slice_loss:
        return Rule(name, "passed", f"{points(result.delta, True)} {interval}")
    return Rule(name, "failed" if found.harmed else "undecided", f"{points(result.delta, True)} {interval}")


def _limit_rules(config: EvalConfig, evidence: Evidence) -> list[Rule]:
    rules = []
    for limit, allowed in config.limits.resolved().items():
        if allowed is None:
            continue
        name, measured = f"{limit} at most {allowed:g}", evidence.costs.get(limit)
        if measured is None:
            rules.append(Rule(name, "undecided", "not measured for this contender"))
        else:
            rules.append(Rule(name, "passed" if measured <= allowed else "failed", f"measured {measured:.4g}"))
    return rules


def _guard_rule(guard: GuardResult | None, config: EvalConfig) -> Rule:
    name = f"the guard set loses no more than {points(config.max_guard_loss)} points"
    if guard is None:
        return Rule(name, "undecided", "not asked: this contender, or the incumbent, is a run, which answers no others")
    result = guard.result
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
