"""Why a candidate is no hard negative: pure functions over arrays, each writing its own drop reason.

A filter marks candidates, `True` = drop. `outcomes` applies them in the order of `REASONS`: the first that marks a
candidate gives its reason, so every candidate has exactly one outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]

KEPT = "kept"
REASONS = (
    "not_finite",
    "judged_positive",
    "partly_relevant",
    "same_text",
    "within_margin",
    "over_quota",
)
"""Drop reasons in the order in which they are asked."""


def not_finite(scores: Scores) -> Mask:
    """Candidates whose score is NaN or infinite: never a negative (NeMo Automodel #2906)."""
    return ~np.isfinite(scores)


def judged_positive(grades: npt.NDArray[np.int64], positive_from: int) -> Mask:
    """Candidates judged relevant to this query. `grades` is int64 (n,), -1 = unjudged."""
    return grades >= positive_from


def partly_relevant(grades: npt.NDArray[np.int64], positive_from: int) -> Mask:
    """Candidates judged relevant in part, 0 < grade < positive_from: neither positive nor negative."""
    return (grades > 0) & (grades < positive_from)


def same_text(text_keys: npt.NDArray[np.int64], forbidden: Sequence[int]) -> Mask:
    """Candidates whose normalised text is that of a relevant document or of the query, under whatever id.

    `text_keys` is int64 (n,): equal numbers are equal texts.
    """
    return np.isin(text_keys, np.asarray(forbidden, dtype=np.int64))


def within_margin(scores: Scores, positive_score: float, margin_fraction: float | None) -> Mask:
    """Candidates above `positive - |positive| * margin_fraction`: suspected false negatives.

    NV-Retriever's positive-aware ceiling (arXiv:2407.15831, TopK-PercPos, 95 %) in a form that keeps its order when
    the positive's score is below zero (sentence-transformers #3821).
    """
    if margin_fraction is None:
        return np.zeros(scores.shape, dtype=np.bool_)
    return scores > positive_score - abs(positive_score) * margin_fraction


def over_quota(kept: Mask, negatives: int) -> Mask:
    """Candidates that passed every other filter but come after the first `negatives` of them."""
    return kept & (np.cumsum(kept) > negatives)


def outcomes(marks: Sequence[tuple[str, Mask]], negatives: int) -> npt.NDArray[np.object_]:
    """The drop reason of each candidate, or `kept` for the first `negatives` that no filter marks: object (n,)."""
    size = marks[0][1].shape
    result = np.full(size, KEPT, dtype=object)
    for reason, mask in marks:
        result[mask & (result == KEPT)] = reason
    result[over_quota(result == KEPT, negatives)] = "over_quota"
    return result
