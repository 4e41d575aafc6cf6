"""How many candidates would pass at each margin, and how many relevant documents would pass with them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mining.artifact import Found, Integers
from mining.filters import CODE, Mask, Scores

MARGINS = np.round(np.arange(0, 0.51, 0.01), 2)
"""Margin fractions that are looked at."""

OPEN = tuple(CODE[name] for name in ("kept", "over_quota", "overused", "within_margin", "near_copy"))
OPEN += tuple(CODE[name] for name in ("guide_not_finite", "within_guide_margin"))
"""Outcomes of candidates that the judgments, the texts and the windows leave to the margin and what follows."""

Counts = npt.NDArray[np.int32]


def gaps(found: Found, ceilings: Scores) -> Scores:
    """float64 (n,): how far each candidate is below its positive, as a fraction of the positive's magnitude.

    It passes a margin_fraction of that or less. `ceilings`: the positive's score by pair.
    """
    positive = ceilings[found.pair]
    return np.asarray((positive - found.score) / np.maximum(np.abs(positive), 1e-9))


def survivors(found: Found, gap: Scores, counted: Mask, first: int, pairs: int) -> Counts:
    """int32 (pairs, n_margins): candidates of each pair, from pair `first` on, that pass each margin of `MARGINS`."""
    size = len(MARGINS)
    steps = np.floor(np.clip(gap[counted], -0.01, MARGINS[-1]) * 100 + 1e-6).astype(np.int64)  # -1: above the positive
    codes = (found.pair[counted] - first) * (size + 1) + steps + 1
    counts = np.bincount(codes, minlength=pairs * (size + 1)).reshape(pairs, size + 1)
    return np.cumsum(counts[:, :0:-1], axis=1, dtype=np.int32)[:, ::-1]


@dataclass
class Survival:
    """Pairs that have all their negatives, and negatives there are, by margin; added up block by block."""

    negatives: int
    pairs: int = 0
    filled: Integers = field(default_factory=lambda: np.zeros(len(MARGINS), dtype=np.int64))
    available: Integers = field(default_factory=lambda: np.zeros(len(MARGINS), dtype=np.int64))

    def add(self, passing: Counts) -> None:
        """Count the pairs of a block, (pairs, n_margins)."""
        self.pairs += len(passing)
        self.filled += (passing >= self.negatives).sum(axis=0)
        self.available += np.minimum(passing, self.negatives).sum(axis=0)

    def as_json(self) -> dict[str, object]:
        """The curves as lists."""
        return {
            "margin_fraction": MARGINS.tolist(),
            "filled": self.filled.tolist(),
            "available": self.available.tolist(),
            "pairs": self.pairs,
            "asked": self.pairs * self.negatives,
        }


@dataclass
class Risk:
    """How often a relevant document that nobody judged would become a negative, by margin; added up block by block.

    Asked of what is known: each other positive of a query stands for one that was not judged. It is taken when it
    passes the margin and fewer than `negatives` candidates that pass it too are nearer.
    """

    negatives: int
    taken: Integers = field(default_factory=lambda: np.zeros(len(MARGINS), dtype=np.int64))

    def add(self, found: Found, gap: Scores, counted: Mask, others: Mask, passing: Counts, first: int) -> None:
        """Count a block: `counted` are its candidates, `others` the query's other positives among what was found."""
        line = found.pair - first
        nearer: Integers = np.cumsum(counted) - counted
        total = np.bincount(line[counted], minlength=len(passing))
        nearer -= (np.cumsum(total) - total)[line]
        above = total[:, None] - passing  # candidates that each margin drops
        passes = gap[others][:, None] >= MARGINS - 1e-8
        self.taken += (passes & (nearer[others][:, None] - above[line[others]] < self.negatives)).sum(axis=0)
