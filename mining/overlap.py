"""How alike two texts are in their words: what tells a near-copy without the encoder that is being fooled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from closecall.records import Document
from closecall.text import words
from mining.filters import Scores
from mining.known import Integers, Known


class WordOverlap:
    """Jaccard similarity of word sets between candidates and what is relevant to a query, of any grade above 0."""

    def __init__(self, documents: Sequence[Document], known: Known) -> None:
        self.documents = documents
        self._sizes = np.full(len(documents), -1, dtype=np.int32)
        self._relevant: dict[int, list[int]] = defaultdict(list)
        relevant = known.grade > 0
        for query, row in zip(known.grade_query[relevant].tolist(), known.grade_row[relevant].tolist(), strict=True):
            self._relevant[query].append(row)

    def similarity(self, queries: Integers, rows: Integers, at_least: float) -> Scores:
        """float64 (n,): the highest Jaccard similarity of candidate i to a document relevant to query i.

        0 where it cannot reach `at_least`: two sets are no more alike than the ratio of their sizes, and most pairs
        are ruled out by that alone. Each text is split once; a text without words is like nothing.
        """
        result = np.zeros(len(rows))
        relevant: dict[int, frozenset[str]] = {}
        for row, numbers in _grouped(rows):
            own: frozenset[str] | None = None
            for number in numbers:
                for other in self._relevant[int(queries[number])]:
                    if other not in relevant:
                        relevant[other] = self._words(other)
                    size = int(self._sizes[row])
                    if size >= 0 and not _may_reach(size, len(relevant[other]), at_least):
                        continue
                    own = own if own is not None else self._words(row)
                    result[number] = max(result[number], _jaccard(own, relevant[other], at_least))
        return result

    def _words(self, row: int) -> frozenset[str]:
        found = frozenset(words(self.documents[row].full_text))
        self._sizes[row] = len(found)
        return found


def _grouped(rows: Integers) -> list[tuple[int, list[int]]]:
    """Each document row, and the positions at which it stands."""
    places: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows.tolist()):
        places[row].append(number)
    return list(places.items())


def _may_reach(size: int, other: int, at_least: float) -> bool:
    return min(size, other) >= at_least * max(size, other) - 1e-9


def _jaccard(first: frozenset[str], second: frozenset[str], at_least: float) -> float:
    if not first or not second or not _may_reach(len(first), len(second), at_least):
        return 0.0
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)
