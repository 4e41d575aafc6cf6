"""How many queries it takes to see a difference, and which difference so many show."""

from __future__ import annotations

import math

from scipy import stats


def smallest_resolvable_gain(deltas_sd: float, n_groups: int, confidence: float = 0.95, power: float = 0.8) -> float:
    """The true gain that an interval of this confidence keeps clear of zero in `power` of all test sets of this size.

    `deltas_sd` is the standard deviation of the deltas, of the groups' means where queries are grouped.
    """
    z = stats.norm.ppf((1 + confidence) / 2) + stats.norm.ppf(power)
    return float(z * deltas_sd / math.sqrt(n_groups))
