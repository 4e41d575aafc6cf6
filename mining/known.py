"""What the judgments say of documents beforehand, by query: grades, and texts that are no negatives under any id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from closecall.corpus import ids_of
from closecall.records import Document
from closecall.split import Part
from closecall.text import normalise
from mining.filters import UNJUDGED, Grades, Mask

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Known:
    """Documents known for each query, as parallel arrays sorted by query."""

    grade_query: Integers
    """int64 (n_grades,): position of the query."""
    grade_row: Integers
    """int64 (n_grades,): row of the document in the corpus."""
    grade: Grades
    """int16 (n_grades,): 0 or more."""
    text_query: Integers
    """int64 (n_texts,): position of the query."""
    text_row: Integers
    """int64 (n_texts,): row of a document with the text of the query, or of a document relevant to it."""

    def grades(self, queries: Integers, rows: Integers) -> Grades:
        """int16 (n, width): grade of the candidates `rows[i]` for query `queries[i]` (ascending); -1 = unjudged."""
        found = np.full(rows.shape, UNJUDGED, dtype=np.int16)
        for entries, where in _matches(self.grade_query, self.grade_row, queries, rows):
            found[where] = self.grade[entries]
        return found

    def same_text(self, queries: Integers, rows: Integers) -> Mask:
        """Bool (n, width): candidates that are the query's own text, or a copy of a relevant document."""
        found = np.zeros(rows.shape, dtype=np.bool_)
        for _, where in _matches(self.text_query, self.text_row, queries, rows):
            found[where] = True
        return found

    def certified(self) -> tuple[Integers, Integers]:
        """Queries and document rows of the judgments of grade 0, sorted by query."""
        zero = self.grade == 0
        return self.grade_query[zero], self.grade_row[zero]


MATCHED_AT_ONCE = 1 << 22
"""Comparisons made in one array: 4 MiB."""


def _matches(
    entry_query: Integers, entry_row: Integers, queries: Integers, rows: Integers
) -> Iterator[tuple[Integers, tuple[Integers, Integers]]]:
    """Entries that stand among the candidates of their query, and where: (entries, (line, column)).

    Compares each entry with the candidates of its query alone, so the cost is entries x width. A query may stand on
    several lines (one per positive); `queries` is ascending.
    """
    first, last = (np.searchsorted(queries, entry_query, side) for side in ("left", "right"))
    entries = np.repeat(np.arange(len(entry_query)), last - first)
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(last - first)[:-1])), last - first)
    lines = np.arange(len(entries)) + starts
    step = max(1, MATCHED_AT_ONCE // max(1, rows.shape[1]))
    for begin in range(0, len(entries), step):
        part = slice(begin, begin + step)
        hit, column = np.nonzero(rows[lines[part]] == entry_row[entries[part], None])
        yield entries[part][hit], (lines[part][hit], column)


def known_documents(part: Part, documents: Sequence[Document]) -> Known:
    """The grades of a part's queries, pooled over queries of the same text, and the copies that go with them.

    What is relevant to one of two queries with the same text is so to the other (RAGatouille #187); where their
    grades differ the higher counts. Copies have the same normalised title and text as a document of any grade above 0;
    a document is the query's own text with its title or without.
    """
    pooled = _pooled(part)
    row_of = judged_rows(part, documents)
    text_of = {row: normalise(documents[row].full_text) for row in row_of.values()}
    texts = [normalise(query.text) for query in part.queries]
    full, bare = _rows_by_text(documents, {*text_of.values(), *texts}, set(texts))
    graded: list[tuple[int, int, int]] = []
    same: list[tuple[int, int]] = []
    for position, text in enumerate(texts):
        rows = {*full.get(text, ()), *bare.get(text, ())}
        for doc_id, grade in pooled[text].items():
            row = row_of[doc_id]
            graded.append((position, row, grade))
            if grade > 0:
                rows.update(full[text_of[row]])
        same += [(position, row) for row in sorted(rows)]
    grades = np.asarray(graded, dtype=np.int64).reshape(-1, 3)
    copies = np.asarray(same, dtype=np.int64).reshape(-1, 2)
    return Known(grades[:, 0], grades[:, 1], grades[:, 2].astype(np.int16), copies[:, 0], copies[:, 1])


def judged_rows(part: Part, documents: Sequence[Document]) -> dict[str, int]:
    """Row in the corpus of every judged document, by id; no table of the whole corpus is made."""
    judged = {judgment.doc_id for judgment in part.qrels.judgments()}
    return {doc_id: row for row, doc_id in enumerate(ids_of(documents)) if doc_id in judged}


def _rows_by_text(
    documents: Sequence[Document], full_texts: set[str], bare_texts: set[str]
) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]]]:
    """Rows of the documents by normalised text, of the texts asked for alone: with their title, and without it."""
    full: dict[str, list[int]] = defaultdict(list)
    bare: dict[str, list[int]] = defaultdict(list)
    for row, document in enumerate(documents):
        if (text := normalise(document.full_text)) in full_texts:
            full[text].append(row)
        if document.title and (text := normalise(document.text)) in bare_texts:
            bare[text].append(row)
    return full, bare


def _pooled(part: Part) -> dict[str, dict[str, int]]:
    """Grades by normalised query text."""
    pooled: dict[str, dict[str, int]] = {}
    for query in part.queries:
        grades = pooled.setdefault(normalise(query.text), {})
        for doc_id, grade in part.qrels.grades(query.query_id).items():
            grades[doc_id] = max(grade, grades.get(doc_id, 0))
    return pooled
