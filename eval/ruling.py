"""The outcome over all contenders: which one to adopt, if any, and what choosing among several costs in certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eval.compare import Comparison
from eval.config import EvalConfig
from eval.rules import points
from eval.statistics import gain_p_value, holm
from eval.verdict import EXIT_CODES, Outcome, Verdict

STREAM = 6000
"""Of random numbers: none that the comparisons draw from."""


@dataclass(frozen=True)
class Ruling:
    """What to do, in one word and one sentence, and the contender that it is about."""

    outcome: Outcome
    sentence: str
    contender: str

    @property
    def exit_code(self) -> int:
        """0 adopt, 10 reject and unchanged, 11 undecided."""
        return EXIT_CODES[self.outcome]


def corrected_gains(comparisons: Mapping[str, Comparison], config: EvalConfig) -> dict[str, float | None]:
    """The p-value of each contender's gain, Holm-corrected over all of them; None with a single one."""
    if len(comparisons) < 2:
        return dict.fromkeys(comparisons)
    raw = []
    for number, comparison in enumerate(comparisons.values()):
        deltas = comparison.tuned.values[config.measure] - comparison.base.values[config.measure]
        rng = np.random.default_rng([config.seed, STREAM + number])
        raw.append(gain_p_value(deltas, comparison.groups, config.min_gain, rng, config.resamples))
    return dict(zip(comparisons, holm(raw).tolist(), strict=True))


def rule(verdicts: Mapping[str, Verdict], comparisons: Mapping[str, Comparison], config: EvalConfig) -> Ruling:
    """Adopt the contender with the highest mean among those that pass; undecided when one is; else reject.

    The contender named is that one, or the one with the highest mean among the undecided, or of all.
    """
    outcomes: tuple[Outcome, ...] = ("adopt", "undecided", "reject", "unchanged")
    outcome = next(wanted for wanted in outcomes if any(v.outcome == wanted for v in verdicts.values()))
    chosen = max(
        (name for name, verdict in verdicts.items() if verdict.outcome == outcome),
        key=lambda name: comparisons[name].deciding.tuned,
    )
    sentence = verdicts[chosen].sentence
    if len(verdicts) > 1:
        sentence = _among_several(outcome, chosen, verdicts, comparisons, config)
    return Ruling(outcome, sentence, chosen)


def _among_several(
    outcome: Outcome,
    chosen: str,
    verdicts: Mapping[str, Verdict],
    comparisons: Mapping[str, Comparison],
    config: EvalConfig,
) -> str:
    head, _, rest = verdicts[chosen].sentence.partition(": ")
    others = {wanted: [n for n, v in verdicts.items() if v.outcome == wanted and n != chosen] for wanted in EXIT_CODES}
    counted = ", ".join(f"{len(names)} {wanted}" for wanted, names in others.items() if names)
    said = f"{head} {chosen} in place of {config.incumbent}: {rest.removesuffix('.')}"
    if outcome in ("reject", "unchanged"):
        return f"{head} all {len(verdicts)} contenders; the best, {chosen}: {rest}"
    bias = ""
    if outcome == "adopt":
        behind = max((comparisons[n].deciding.tuned for n in others["adopt"]), default=None)
        near = "" if behind is None else f" by {points(comparisons[chosen].deciding.tuned - behind)} points"
        bias = f"; it was chosen among {len(verdicts)} on these same queries{near}, so its gain is an optimistic one"
    return f"{said}{bias} (the others: {counted})."
