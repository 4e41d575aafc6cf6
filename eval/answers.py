"""What a system returned for the test queries: hits as arrays, read as measures, as a run, or as the first few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from closecall.measures import Gain, Measure, QueryValues, per_query_of_rows
from closecall.records import Qrels, Run, ScoredDoc
from closecall.search import NOTHING, Hits


@dataclass(frozen=True)
class Answers:
    """The ranked documents of each query."""

    hits: Hits
    query_ids: tuple[str, ...]
    doc_ids: Sequence[str]
    """What the rows of the hits mean."""

    @cached_property
    def place(self) -> dict[str, int]:
        """The line of each query."""
        return {query_id: line for line, query_id in enumerate(self.query_ids)}

    def values(self, qrels: Qrels, measures: Sequence[Measure], gain: Gain) -> QueryValues:
        """The value of every measure for every query of the qrels that has a positive."""
        return per_query_of_rows(qrels, self.hits.rows, self.query_ids, self.doc_ids, measures, gain)

    def run(self, query_ids: Iterable[str] | None = None) -> Run:
        """The run of these queries, by default of all; one that nothing was returned for is not in it."""
        wanted = self.query_ids if query_ids is None else [q for q in query_ids if q in self.place]
        found = ((query_id, self.ranking(query_id)) for query_id in wanted)
        return Run({query_id: ranking for query_id, ranking in found if ranking})

    def ranking(self, query_id: str, depth: int | None = None) -> list[ScoredDoc]:
        """The first documents of a query, best first."""
        line = self.place.get(query_id)
        if line is None:
            return []
        rows, scores = self.hits.rows[line, :depth].tolist(), self.hits.scores[line, :depth].tolist()
        return [ScoredDoc(self.doc_ids[row], score) for row, score in zip(rows, scores, strict=True) if row != NOTHING]


def answers_of_run(run: Run, doc_ids: Sequence[str]) -> Answers:
    """The rankings of a run; documents that `doc_ids` lacks are appended to them, and keep their ranks."""
    place = {doc_id: row for row, doc_id in enumerate(doc_ids)}
    lines = []
    for query_id in run:
        ranking = run.ranking(query_id)
        lines.append(([place.setdefault(s.doc_id, len(place)) for s in ranking], [s.score for s in ranking]))
    width = max((len(rows) for rows, _ in lines), default=0)
    rows = np.full((len(lines), width), NOTHING, dtype=np.int64)
    scores = np.full((len(lines), width), np.nan)
    for line, (found, values) in enumerate(lines):
        rows[line, : len(found)], scores[line, : len(found)] = found, values
    return Answers(Hits(rows, scores), tuple(run), list(place))


def best_first(rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], id_rank: npt.NDArray[np.int32]) -> Hits:
    """Hits in the order of runs: score descending, then document id; NOTHING last."""
    keys = np.where(rows == NOTHING, np.inf, -scores)
    order = np.lexsort((np.where(rows == NOTHING, 0, id_rank[rows]), keys), axis=1)
    return Hits(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))
