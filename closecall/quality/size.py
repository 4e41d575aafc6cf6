"""How many queries there are, how sure a value on them is, and which gains they could show."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from closecall.quality.finding import Finding, finding
from closecall.quality.material import Material

FEW_POINTS = 10
"""A test set that shows no gain below ten points tells hardly anything apart."""


def set_size(material: Material) -> Finding | None:
    """Queries, the interval of a value on them, and the smallest gain that they show."""
    test = material.test
    if test is None or not test.groups:
        return None
    points = test.resolvable_gain * 100
    alarm = points > FEW_POINTS
    needed = math.ceil(test.groups * (points / 5) ** 2)
    return finding(
        "set_size",
        alarm,
        (
            f"{test.queries:,} test queries in {test.groups:,} groups{_interval(material, test.groups)}; "
            f"the smallest gain they show with 80 % power is {points:.1f} points",
            "two models that differ by less look the same on them, whichever is better"
            if alarm
            else "smaller gains than this end as undecided",
            f"judge more queries: about {needed:,} independent ones show a gain of 5 points",
        ),
    )


def _interval(material: Material, n: int) -> str:
    """How far from its true mean a measured value may be."""
    if not material.runs or n < 2:
        return ""
    name = next(iter(material.runs))
    values = material.values(name)
    half = float(stats.t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n) if len(values) > 1 else 0.0
    return (
        f"; a {material.measure} such as {name}'s {values.mean() * 100:.1f} is sure to ±{half * 100:.1f} points (95 %)"
    )


def small_slices(material: Material) -> Finding | None:
    """Columns most of whose queries lie in slices that are too small to judge."""
    test = material.test
    if test is None or not test.slices:
        return None
    columns: dict[str, list[tuple[str, int]]] = {}
    for name, (column, size) in test.slices.items():
        columns.setdefault(column, []).append((name, size))
    small = [name for name, (_, size) in test.slices.items() if size < test.min_slice]
    useless = [
        column
        for column, found in columns.items()
        if column and 2 * sum(size for _, size in found if size < test.min_slice) > sum(size for _, size in found)
    ]
    if not small:
        return None
    where = f", and most queries of {', '.join(useless)}" if useless else ""
    return finding(
        "small_slices",
        bool(useless),
        (
            f"{len(small):,} of {len(test.slices):,} slices of the test queries have fewer than "
            f"{test.min_slice}{where}",
            "harm to them can go unseen: no verdict is given on so few",
            "judge more queries of these, or merge values into fewer",
        ),
        [f"{name}: {test.slices[name][1]}" for name in small],
    )
