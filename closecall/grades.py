"""The grades of what was retrieved, as arrays by query and rank: all that the measures need to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from closecall.records import Qrels, Run
from closecall.search import NOTHING

UNJUDGED = np.iinfo(np.int64).min  # stands for "no grade" while grades are looked up
EMPTY = UNJUDGED + 1  # and this for "no document"


@dataclass(frozen=True, slots=True, eq=False)
class RankedGrades:
    """What the measures need to know: grades by query and rank, and what an ideal ranking of each query would hold."""

    grades: NDArray[np.int64]
    """int64 (n_queries, depth), grade at ranks 1, 2, ...; 0 where unjudged or where nothing is returned"""
    returned: NDArray[np.bool_]
    """bool (n_queries, depth), whether there is a document at this rank"""
    judged: NDArray[np.bool_]
    """bool (n_queries, depth), whether the document has a judgment of any grade"""
    positive: NDArray[np.bool_]
    """bool (n_queries, depth), whether the document is judged `positive_from` or higher"""
    ideal_grades: NDArray[np.int64]
    """int64 (n_queries, most judged), all grades of the query, highest first, then 0"""
    positive_count: NDArray[np.int64]
    """int64 (n_queries,), positives of the query, found or not; at least 1"""


def rank_grades(run: Run, qrels: Qrels, query_ids: Sequence[str]) -> RankedGrades:
    """The grades of each ranking, best first; of a document listed twice, the better rank counts."""
    lines = []
    for query_id in query_ids:
        judgments = qrels.grades(query_id)
        doc_ids = dict.fromkeys(scored.doc_id for scored in run.ranking(query_id))
        lines.append([judgments.get(doc_id, UNJUDGED) for doc_id in doc_ids])
    return _ranked(_padded(lines, EMPTY), qrels, query_ids)


def grades_of_rows(
    rows: NDArray[np.int64], qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[str]
) -> RankedGrades:
    """The grades of hits: `rows` int64 (n_queries, depth) are places in `doc_ids`, best first, none twice; -1: nothing.

    The same as of the run that these hits make, without an object for each of them.
    """
    judged = {doc_id for query_id in query_ids for doc_id in qrels.grades(query_id)}
    place = {doc_id: row for row, doc_id in enumerate(doc_ids) if doc_id in judged}
    pairs = [
        (line * len(doc_ids) + place[doc_id], grade)
        for line, query_id in enumerate(query_ids)
        for doc_id, grade in qrels.grades(query_id).items()
        if doc_id in place
    ]
    keys, grades = np.asarray(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    wanted = rows + np.arange(len(query_ids), dtype=np.int64)[:, None] * len(doc_ids)
    found = np.full(rows.shape, UNJUDGED, dtype=np.int64)
    if keys.size:
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        np.copyto(found, grades[at], where=keys[at] == wanted)
    found[rows == NOTHING] = EMPTY
    return _ranked(found, qrels, query_ids)


def _ranked(found: NDArray[np.int64], qrels: Qrels, query_ids: Sequence[str]) -> RankedGrades:
    """`found` holds grades, UNJUDGED and EMPTY."""
    returned = found != EMPTY
    judged = returned & (found != UNJUDGED)
    grades = np.where(judged, found, 0)
    ideal = [sorted(qrels.grades(query_id).values(), reverse=True) for query_id in query_ids]
    counts = np.asarray([len(qrels.positives(query_id)) for query_id in query_ids], dtype=np.int64)
    return RankedGrades(grades, returned, judged, judged & (grades >= qrels.positive_from), _padded(ideal, 0), counts)


def _padded(lines: Sequence[Sequence[int]], filling: int) -> NDArray[np.int64]:
    """Lists of different lengths as int64 (n_lines, longest)."""
    values = np.full((len(lines), max(map(len, lines), default=0)), filling, dtype=np.int64)
    for row, line in enumerate(lines):
        values[row, : len(line)] = line
    return values
