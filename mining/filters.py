"""Why a candidate is no hard negative: pure functions over arrays, each writing its own drop reason.

A filter marks candidates, `True` = drop. `outcomes` applies them in the order given: the first that marks a candidate
gives its reason, so every candidate has exactly one outcome. Arrays are (..., depth): one row per (query, positive),
best candidate first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Grades = npt.NDArray[np.int16]

KEPT = "kept"
OUTCOMES = (
    KEPT,
    "not_finite",
    "judged_positive",
    "partly_relevant",
    "same_text",
    "within_margin",
    "over_quota",
)
"""What can become of a candidate: kept, or dropped for a reason, in the order in which the reasons are asked."""

UNJUDGED = -1


def not_finite(scores: Scores) -> Mask:
    """Candidates whose score is NaN or infinite: never a negative (NeMo Automodel #2906)."""
    return ~np.isfinite(scores)


def judged_positive(grades: Grades, positive_from: int) -> Mask:
    """Candidates judged relevant to this query; a grade of -1 is unjudged."""
    return grades >= positive_from


def partly_relevant(grades: Grades, positive_from: int) -> Mask:
    """Candidates judged relevant in part, 0 < grade < positive_from: neither positive nor negative."""
    return (grades > 0) & (grades < positive_from)


def within_margin(scores: Scores, positive_scores: Scores | float, margin_fraction: float | None) -> Mask:
    """Candidates above `positive - |positive| * margin_fraction`: suspected false negatives.

    NV-Retriever's positive-aware ceiling (arXiv:2407.15831, TopK-PercPos, 95 %) in a form that keeps its order when
    the positive's score is below zero (sentence-transformers #3821). `positive_scores` broadcasts against `scores`.
    """
    if margin_fraction is None:
        return np.zeros(scores.shape, dtype=np.bool_)
    return np.asarray(scores > positive_scores - np.abs(positive_scores) * margin_fraction)


def over_quota(kept: Mask, negatives: int) -> Mask:
    """Candidates that passed every other filter but come after the first `negatives` of their row."""
    return kept & (np.cumsum(kept, axis=-1, dtype=np.int32) > negatives)


def outcomes(marks: Sequence[tuple[str, Mask]], negatives: int) -> npt.NDArray[np.uint8]:
    """What becomes of each candidate, as positions in `OUTCOMES`: kept are the first `negatives` without a mark."""
    result = np.zeros(marks[0][1].shape, dtype=np.uint8)
    for reason, mask in marks:
        np.putmask(result, mask & (result == 0), OUTCOMES.index(reason))
    result[over_quota(result == 0, negatives)] = OUTCOMES.index("over_quota")
    return result
