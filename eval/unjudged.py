"""What documents that nobody judged could do to a measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from closecall.grades import RankedGrades, grades_of_rows
from closecall.measures import FORMULAS, Gain, Measure
from closecall.records import Qrels
from eval.answers import Answers

MOSTLY = 0.5
"""Where less of the top is judged, a measure of it is warned of."""


@dataclass(frozen=True)
class Bounds:
    """A measure, the share of its top that is judged, and how far unjudged documents in it could move the mean."""

    measure: str
    value: float
    judged: float
    """Mean share of the returned documents in the top k that have a judgment."""
    low: float
    high: float

    @property
    def mostly_unjudged(self) -> bool:
        """Whether less than half of the top is judged."""
        return self.judged < MOSTLY


def bounds(answers: Answers, qrels: Qrels, measures: Sequence[Measure], gain: Gain) -> tuple[Bounds, ...]:
    """For each measure with a cutoff, over the queries with a positive.

    Each unjudged document in the top k may be not relevant or just relevant (of grade `positive_from`). With m of them
    relevant a measure is largest when these are the m highest, and smallest when they are the m lowest; the bounds are
    the extremes over m, query by query. Documents outside the top k are taken as they are judged.
    """
    query_ids = [query_id for query_id in qrels if qrels.positives(query_id)]
    ranked = grades_of_rows(_rows(answers, query_ids), qrels, query_ids, answers.doc_ids)
    found = []
    for measure in measures:
        if measure.cutoff is None or measure.name == "judged":
            continue
        value = FORMULAS[measure.name](ranked, measure.cutoff, gain)
        low, high = _extremes(ranked, measure, gain, qrels.positive_from)
        judged = FORMULAS["judged"](ranked, measure.cutoff, gain)
        found.append(Bounds(str(measure), *(float(v.mean()) for v in (value, judged, low, high))))
    return tuple(found)


def recall_curve(answers: Answers, qrels: Qrels, depth: int = 100) -> npt.NDArray[np.float64]:
    """float64 (depth,): mean recall@k for k = 1, 2, ..., over the queries with a positive."""
    query_ids = [query_id for query_id in qrels if qrels.positives(query_id)]
    ranked = grades_of_rows(_rows(answers, query_ids), qrels, query_ids, answers.doc_ids)
    found = np.cumsum(ranked.positive[:, :depth], axis=1) / ranked.positive_count[:, None]
    curve = found.mean(axis=0)
    return np.pad(curve, (0, depth - curve.size), mode="edge") if curve.size else np.zeros(depth)


def flattens_at(curve: npt.NDArray[np.float64], ranks: int = 10, gain: float = 0.01) -> int:
    """The first k after which ten more ranks add less than one point of recall."""
    for k in range(1, curve.size - ranks + 1):
        if curve[k - 1 + ranks] - curve[k - 1] < gain:
            return k
    return int(curve.size)


def _rows(answers: Answers, query_ids: Sequence[str]) -> npt.NDArray[np.int64]:
    place = {query_id: line for line, query_id in enumerate(answers.query_ids)}
    lines = np.asarray([place.get(query_id, -1) for query_id in query_ids], dtype=np.int64)
    rows = answers.hits.rows
    return np.where(lines[:, None] < 0, -1, rows[lines]) if len(rows) else np.full((len(lines), 0), -1)


def _extremes(
    ranked: RankedGrades, measure: Measure, gain: Gain, grade: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The smallest and the largest value of each query, both float64 (n_queries,)."""
    top = ranked.returned[:, : measure.cutoff] & ~ranked.judged[:, : measure.cutoff]
    from_above, total = np.cumsum(top, axis=1), top.sum(axis=1, keepdims=True)
    low = high = FORMULAS[measure.name](ranked, measure.cutoff, gain)
    for count in range(1, int(total.max(initial=0)) + 1):
        some = total[:, 0] >= count
        highest, lowest = top & (from_above <= count), top & (from_above > total - count)
        for chosen in (highest, lowest):
            value = FORMULAS[measure.name](_with(ranked, chosen & some[:, None], grade), measure.cutoff, gain)
            low, high = np.where(some, np.minimum(low, value), low), np.where(some, np.maximum(high, value), high)
    return low, high


def _with(ranked: RankedGrades, chosen: npt.NDArray[np.bool_], grade: int) -> RankedGrades:
    """The same with the chosen documents of the top judged `grade`."""
    width = chosen.shape[1]
    added = np.where(chosen, grade, 0)
    ideal = -np.sort(-np.concatenate([ranked.ideal_grades, added], axis=1), axis=1)
    return replace(
        ranked,
        grades=ranked.grades[:, :width] + added,
        returned=ranked.returned[:, :width],
        judged=ranked.judged[:, :width] | chosen,
        positive=ranked.positive[:, :width] | chosen,
        ideal_grades=ideal,
        positive_count=ranked.positive_count + chosen.sum(axis=1),
    )
