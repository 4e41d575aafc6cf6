"""Measures as values with a name (`nDCG@10`), and their value per query.

The qrels fix which queries are scored: all that have a positive. A query that the run returns nothing for scores 0.
Every measure lies in [0, 1], higher is better, and is read from the grades by rank (`RankedGrades`).
Definitions follow trec_eval; the exponential gain of nDCG follows Burges et al. 2005 (RankNet).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from closecall.errors import ConfigError, DataError, fault_list
from closecall.grades import RankedGrades, grades_of_rows, rank_grades
from closecall.records import Qrels, Run

FloatArray = NDArray[np.float64]
Gain = Literal["exp", "linear"]

MAX_EXP_GRADE = 1000  # 2^1024 is no float64, and a sum of such gains must stay finite


@lru_cache(maxsize=128)
def discounts(size: int) -> FloatArray:
    """1 / log2(rank + 1) for ranks 1 to `size`: float64 (size,), in (0, 1] (Järvelin & Kekäläinen 2002, base 2)."""
    values = 1.0 / np.log2(np.arange(2, size + 2, dtype=np.float64))
    values.setflags(write=False)  # shared by all callers through the cache
    return values


def dcg(grades: NDArray[np.int64], gain: Gain = "exp") -> FloatArray:
    """Sum over ranks (the last axis) of gain / log2(rank + 1), at least 0.

    The gain is 2^grade - 1 (Burges et al. 2005) or the grade (trec_eval).
    """
    if not grades.shape[-1]:
        return np.zeros(grades.shape[:-1])
    gains = np.exp2(grades.astype(np.float64)) - 1.0 if gain == "exp" else grades.astype(np.float64)
    # cumsum adds from left to right: trailing zeros do not change the sum, so that a perfect ranking is 1.0 exactly.
    total: FloatArray = np.cumsum(gains * discounts(grades.shape[-1]), axis=-1)[..., -1]
    return total


def ndcg(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """DCG of the top k over that of all judged documents in ideal order, cut at k; in [0, 1].

    Järvelin & Kekäläinen 2002; with linear gain, trec_eval's ndcg_cut.
    """
    ideal = dcg(ranked.ideal_grades[:, :cutoff], gain)
    found = dcg(ranked.grades[:, :cutoff], gain)
    return np.asarray(np.minimum(1.0, np.divide(found, ideal, out=np.zeros_like(found), where=ideal > 0)))


def recall(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """Positives in the top k over all positives of the query, even when those are more than k; in [0, 1]."""
    return np.asarray(np.count_nonzero(ranked.positive[:, :cutoff], axis=1) / ranked.positive_count)


def hit(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """1.0 when the top k holds a positive, else 0.0 (trec_eval's success)."""
    return np.asarray(ranked.positive[:, :cutoff].any(axis=1), dtype=np.float64)


def reciprocal_rank(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """1 / rank of the first positive, 0.0 when there is none (in the top k); in [0, 1] (trec_eval's recip_rank)."""
    top = ranked.positive[:, :cutoff]
    return np.asarray(np.where(top, 1.0 / _ranks(top), 0.0).max(axis=1, initial=0.0))


def average_precision(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """Sum of the precision at each positive (of the top k) over all positives of the query; in [0, 1].

    trec_eval's map and map_cut: with more positives than k, 1.0 is out of reach.
    """
    top = ranked.positive[:, :cutoff]
    precisions = np.where(top, np.cumsum(top, axis=1) / _ranks(top), 0.0)
    return np.asarray(precisions.sum(axis=1) / ranked.positive_count)


def precision(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """Positives in the top k over k, even when fewer than k documents are returned; in [0, 1] (trec_eval's P)."""
    top = ranked.positive[:, :cutoff]
    return np.asarray(np.count_nonzero(top, axis=1) / (cutoff or max(top.shape[1], 1)))


def judged_share(ranked: RankedGrades, cutoff: int | None, gain: Gain) -> FloatArray:
    """Documents with a judgment of any grade over documents returned, both within the top k; in [0, 1].

    0.0 when nothing is returned. ir_measures' Judged divides by k instead.
    """
    judged, returned = (np.count_nonzero(part[:, :cutoff], axis=1) for part in (ranked.judged, ranked.returned))
    return np.asarray(judged / np.maximum(returned, 1))


def _ranks(top: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.arange(1, top.shape[1] + 1)


FORMULAS: dict[str, Callable[[RankedGrades, int | None, Gain], FloatArray]] = {
    "nDCG": ndcg,
    "recall": recall,
    "hit": hit,
    "MRR": reciprocal_rank,
    "MAP": average_precision,
    "precision": precision,
    "judged": judged_share,
}
CUTOFF_OPTIONAL = ("MRR", "MAP")
ALIASES = {name.lower(): name for name in FORMULAS} | {
    "r": "recall",
    "p": "precision",
    "rr": "MRR",
    "success": "hit",
    "ap": "MAP",
}
KNOWN_NAMES = ", ".join(f"{name}, {name}@k" if name in CUTOFF_OPTIONAL else f"{name}@k" for name in FORMULAS)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured. Equality, hash, configuration and report column all go by `str(measure)`: `nDCG@10`, `MRR`."""

    name: str
    """canonical name: nDCG, recall, hit, MRR, MAP, precision or judged"""
    cutoff: int | None = None
    """how many ranks count, at least 1; None = the whole ranking, for MRR and MAP only"""

    def __post_init__(self) -> None:
        if self.name not in FORMULAS:
            raise ConfigError(_unknown_name(str(self), self.name, self.cutoff))
        if self.cutoff is None:
            if self.name not in CUTOFF_OPTIONAL:
                raise ConfigError(f"measure {self.name!r} needs a cutoff; write it like '{self.name}@10'")
        elif type(self.cutoff) is not int or self.cutoff < 1:
            raise ConfigError(f"measure {str(self)!r}: the cutoff is {self.cutoff!r}, not a whole number from 1 up")

    def __str__(self) -> str:
        return self.name if self.cutoff is None else f"{self.name}@{self.cutoff}"

    @classmethod
    def parse(cls, text: str) -> Measure:
        """The measure that a name means, in any case; r, p, rr, success and ap stand for the long names.

        Raises ConfigError for an unknown name, a missing cutoff, or one that is not a whole number from 1 up.
        """
        head, at_sign, tail = (part.strip() for part in text.partition("@"))
        name = ALIASES.get(head.lower())
        if name is None:
            raise ConfigError(_unknown_name(text, head, tail or None))
        if not at_sign:
            return cls(name)
        if not re.fullmatch(r"0*[1-9][0-9]{0,17}", tail, re.ASCII):
            raise ConfigError(f"measure {text!r}: the cutoff is {tail!r}, not a whole number from 1 up")
        return cls(name, int(tail))


def _unknown_name(text: str, head: str, cutoff: int | str | None) -> str:
    """The message for a name that no measure has: what was found, the nearest name, all names."""
    nearest = get_close_matches(head.lower(), ALIASES, n=1, cutoff=0.5)
    suffix = "" if cutoff is None else f"@{cutoff}"
    hint = f"; did you mean {ALIASES[nearest[0]] + suffix!r}?" if nearest else "."
    return f"measure {text!r}: no measure is called {head!r}{hint} The names are {KNOWN_NAMES}"


def _canonical(name: str) -> str:
    try:
        return str(Measure.parse(name))
    except ConfigError as error:
        raise ValueError(str(error)) from None


MeasureName = Annotated[str, AfterValidator(_canonical)]
"""A measure in a config: any name that `Measure.parse` knows, kept in its canonical form."""


def parse_measures(names: Iterable[str]) -> tuple[Measure, ...]:
    """The measures of these names, in their order, each once.

    Raises one ConfigError with all the names that could not be read.
    """
    measures: dict[Measure, None] = {}
    faults: list[str] = []
    for name in names:
        try:
            measures[Measure.parse(name)] = None
        except ConfigError as fault:
            faults.append(str(fault))
    if faults:
        raise ConfigError(fault_list("measures", faults))
    return tuple(measures)


@dataclass(frozen=True, slots=True, eq=False)
class QueryValues:
    """The value of every measure for every scored query, and the queries that need a word."""

    query_ids: tuple[str, ...]
    """the scored queries: those of the qrels with a positive, in the order of the qrels"""
    values: dict[str, FloatArray]
    """by measure name: float64 (n_queries,), in [0, 1], in the order of `query_ids`"""
    without_positives: tuple[str, ...]
    """queries of the qrels that have no positive: not scored, in no average"""
    missing_from_run: tuple[str, ...]
    """scored queries that the run returns nothing for: they score 0 and stay in the averages"""
    unjudged_queries: tuple[str, ...]
    """queries of the run that are not in the qrels: not scored"""
    gain: Gain
    """gain of nDCG: "exp" = 2^grade - 1, "linear" = the grade"""

    def mean(self, measure: Measure) -> float:
        """Mean over all scored queries, in [0, 1]."""
        if not self.query_ids:
            raise DataError(
                f"{measure} has no mean: none of the {len(self.without_positives)} queries of the qrels has a positive;"
                " check the qrels and positive_from"
            )
        return float(self.values[str(measure)].mean())


def per_query(qrels: Qrels, run: Run, measures: Sequence[Measure], gain: Gain = "exp") -> QueryValues:
    """The value of every measure for every query of the qrels that has a positive.

    Raises DataError for a grade too large for the exponential gain.
    """
    if gain not in ("exp", "linear"):
        raise ConfigError(f"gain is {gain!r}, expected 'exp' (2^grade - 1) or 'linear' (the grade)")
    query_ids = tuple(query_id for query_id in qrels if qrels.positives(query_id))
    unjudged = tuple(query_id for query_id in run if query_id not in qrels)
    return _values(qrels, query_ids, rank_grades(run, qrels, query_ids), measures, gain, unjudged)


def per_query_of_rows(
    qrels: Qrels,
    rows: NDArray[np.int64],
    query_ids: Sequence[str],
    doc_ids: Sequence[str],
    measures: Sequence[Measure],
    gain: Gain = "exp",
) -> QueryValues:
    """The same of hits: `rows` int64 (n_queries, depth), places in `doc_ids`, best first, of `query_ids`.

    For many queries: no object is made for a retrieved document.
    """
    place = {query_id: line for line, query_id in enumerate(query_ids)}
    asked = tuple(query_id for query_id in qrels if qrels.positives(query_id))
    chosen = np.full((len(asked), rows.shape[1]), -1, dtype=np.int64)
    lines = [(number, place[query_id]) for number, query_id in enumerate(asked) if query_id in place]
    if lines:
        to, of = np.asarray(lines).T
        chosen[to] = rows[of]
    unjudged = tuple(query_id for query_id in query_ids if query_id not in qrels)
    return _values(qrels, asked, grades_of_rows(chosen, qrels, asked, doc_ids), measures, gain, unjudged)


def _values(
    qrels: Qrels,
    query_ids: tuple[str, ...],
    ranked: RankedGrades,
    measures: Sequence[Measure],
    gain: Gain,
    unjudged: tuple[str, ...],
) -> QueryValues:
    if gain == "exp" and ranked.ideal_grades.size:
        worst = int(ranked.ideal_grades[:, 0].argmax())
        _check_exp_grade(query_ids[worst], int(ranked.ideal_grades[worst, 0]))
    values = {str(measure): FORMULAS[measure.name](ranked, measure.cutoff, gain) for measure in measures}
    without = tuple(query_id for query_id in qrels if not qrels.positives(query_id))
    answered: list[bool] = np.any(ranked.returned, axis=1).tolist()
    missing = tuple(query_id for query_id, found in zip(query_ids, answered, strict=True) if not found)
    return QueryValues(query_ids, values, without, missing, unjudged, gain)


def _check_exp_grade(query_id: str, highest_grade: int) -> None:
    """Refuse a grade whose 2^grade is no finite number."""
    if highest_grade > MAX_EXP_GRADE:
        raise DataError(
            f"qrels, query {query_id!r}: grade {highest_grade} is too large for the gain 2^grade - 1"
            f" (at most {MAX_EXP_GRADE}); use linear gain, or smaller grades"
        )
