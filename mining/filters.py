"""Why a candidate is no hard negative: pure functions over arrays, each writing its own drop reason.

A filter marks candidates, `True` = drop. They are asked in the order of `OUTCOMES`: the first that marks a candidate
gives its reason, so every candidate has exactly one outcome. Arrays are (..., width): one row per (query, positive),
best candidate first.

The cheap ones mark every candidate. `near_copy` and the guide read texts, so only candidates that could be chosen are
put before them, as many as it takes. A document that people judged not relevant (grade 0) is a certified negative: the
rank and score windows, margins, `near_copy` and the guide do not apply to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Grades = npt.NDArray[np.int16]
Outcomes = npt.NDArray[np.uint8]

KEPT = "kept"
OUTCOMES = (
    KEPT,
    "not_finite",
    "judged_positive",
    "partly_relevant",
    "same_text",
    "outside_ranks",
    "outside_scores",
    "within_margin",
    "near_copy",
    "guide_not_finite",
    "within_guide_margin",
    "overused",
    "over_quota",
)
"""What can become of a candidate: kept, or dropped for a reason, in the order in which the reasons are asked."""

SUSPECTED = ("outside_ranks", "outside_scores", "within_margin", "near_copy", "within_guide_margin")
"""The reasons of suspected false negatives: nobody judged them, and something says that they may be relevant."""

CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
UNJUDGED = -1
_NOISE = 1e-9
"""Scores have 6 decimals; 0.3 - 0.1 is 0.19999999999999998, and a candidate with 0.2 is not above that."""


def not_finite(scores: Scores) -> Mask:
    """Candidates whose score is NaN or infinite: never a negative (NeMo Automodel #2906)."""
    return ~np.isfinite(scores)


def judged_positive(grades: Grades, positive_from: int) -> Mask:
    """Candidates judged relevant to this query; a grade of -1 is unjudged."""
    return grades >= positive_from


def partly_relevant(grades: Grades, positive_from: int) -> Mask:
    """Candidates judged relevant in part, 0 < grade < positive_from: neither positive nor negative."""
    return (grades > 0) & (grades < positive_from)


def certified(grades: Grades) -> Mask:
    """Candidates judged not relevant to this query: no suspicion applies to them."""
    return np.asarray(grades == 0)


def outside_ranks(best_ranks: npt.NDArray[np.int32], min_rank: int, max_rank: int | None) -> Mask:
    """Candidates whose best rank in any source is above or below the window; 0 = no source ranks it, which passes.

    The first ranks are where unjudged relevant documents are (the shift by n of NV-Retriever, arXiv:2407.15831).
    """
    dropped = (best_ranks > 0) & (best_ranks < min_rank)
    return dropped if max_rank is None else dropped | (best_ranks > max_rank)


def outside_scores(scores: Scores, min_score: float | None, max_score: float | None) -> Mask:
    """Candidates below the lowest or above the highest score asked for."""
    dropped = np.zeros(scores.shape, dtype=np.bool_)
    if min_score is not None:
        dropped |= scores < min_score
    if max_score is not None:
        dropped |= scores > max_score
    return dropped


def within_margin(
    scores: Scores, positive_scores: Scores | float, margin_fraction: float | None, margin: float | None = None
) -> Mask:
    """Candidates above `positive - |positive| * margin_fraction` or above `positive - margin`.

    NV-Retriever's positive-aware ceilings (arXiv:2407.15831, TopK-PercPos 95 % and TopK-MarginPos), the first in a form
    that keeps its order when the positive's score is below zero (sentence-transformers #3821). `positive_scores`
    broadcasts against `scores`.
    """
    dropped = np.zeros(scores.shape, dtype=np.bool_)
    if margin_fraction is not None:
        dropped |= scores > positive_scores - np.abs(positive_scores) * margin_fraction + _NOISE
    if margin is not None:
        dropped |= scores > positive_scores - margin + _NOISE
    return dropped


def near_copy(similarity: Scores, threshold: float | None) -> Mask:
    """Candidates whose words are so similar to a positive's (Jaccard of word sets) that they are a copy of it."""
    return np.zeros(similarity.shape, dtype=np.bool_) if threshold is None else similarity >= threshold


def first(marked: Mask, limit: int | npt.NDArray[np.int64]) -> Mask:
    """The first `limit` marked candidates of each row; `limit` may differ by row, (n, 1)."""
    return marked & (np.cumsum(marked, axis=-1, dtype=np.int32) <= limit)


def outcomes(marks: Sequence[tuple[str, Mask]]) -> Outcomes:
    """The first reason that marks each candidate, as positions in `OUTCOMES`; 0 where none does."""
    result = np.zeros(marks[0][1].shape, dtype=np.uint8)
    for reason, mask in reversed(marks):
        result[mask] = CODE[reason]
    return result
