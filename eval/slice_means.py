"""The interval on a mean of slices, in which a large slice hides no small one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from eval.statistics import BATCH_ELEMENTS, Floats


def interval_of_slice_means(
    deltas: Floats,
    masks: NDArray[np.bool_],
    groups: Sequence[Hashable] | NDArray[Any] | None,
    *,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Ends of the interval on the mean over slices of the mean delta in each; `masks` is bool (n_slices, n_queries).

    Percentile bootstrap over groups, no end nearer than that of Student's t with the bootstrap's spread; a resample
    in which a slice has no query is left out. (-inf, inf) with a single group. Measured coverage of a nominal 95 %, 300
    simulations each: 93-97 % with 3 or 4 slices of 30 queries or more; a normal in place of Student's t gave 92-98 %.
    """
    labels = (
        np.arange(deltas.size) if groups is None else np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1]
    )
    n_groups = int(labels.max()) + 1
    if n_groups == 1:
        return -math.inf, math.inf
    sums, sizes = (
        np.stack([np.bincount(labels, weights=values * mask, minlength=n_groups) for mask in masks], axis=1)
        for values in (deltas, np.ones(deltas.size))
    )
    means = []
    batch = max(1, BATCH_ELEMENTS // n_groups)
    for start in range(0, resamples, batch):
        drawn = rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), min(batch, resamples - start)).astype(
            np.float64
        )
        with np.errstate(invalid="ignore"):
            means.append(np.mean((drawn @ sums) / (drawn @ sizes), axis=1))
    found = np.concatenate(means)
    found = found[np.isfinite(found)]
    if not found.size:
        return -math.inf, math.inf
    delta = float(np.mean((sums.sum(axis=0)) / sizes.sum(axis=0)))
    half = float(stats.t.ppf((1 + confidence) / 2, _welch_freedom(sums, sizes))) * float(found.std())
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return max(-1.0, min(float(low), delta - half)), min(1.0, max(float(high), delta + half))


def _welch_freedom(sums: NDArray[Any], sizes: NDArray[Any]) -> float:
    """Degrees of freedom of the mean of slice means, float64 (n_groups, n_slices) given: the smallest slice rules.

    Welch (1947), Satterthwaite (1946): squared sum of the variances of the means over the sum of their squares, each
    over its groups less one.
    """
    groups = (sizes > 0).sum(axis=0)
    residuals = sums - sums.sum(axis=0) / sizes.sum(axis=0) * sizes
    variances = (residuals**2).sum(axis=0) * groups / np.maximum(groups - 1, 1) / sizes.sum(axis=0) ** 2
    spread = float((variances**2 / np.maximum(groups - 1, 1)).sum())
    return float(variances.sum()) ** 2 / spread if spread > 0 else float(groups.sum())
