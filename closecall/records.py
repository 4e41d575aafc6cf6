"""The words of closecall as frozen types. Ids are text, scores are float (higher is closer), ranks start at 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SPLITS = ("train", "dev", "test")


class ScoredDoc(NamedTuple):
    """A document in a run: its id and its score (field names of ir_measures)."""

    doc_id: str
    score: float


class Judgment(NamedTuple):
    """One line of qrels. Relevance is an integer; 0 = judged, not relevant."""

    query_id: str
    doc_id: str
    relevance: int


@dataclass(frozen=True, slots=True)
class Document:
    """A searched text."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def full_text(self) -> str:
        """Title and text in one string: what is encoded, compared and trained on (BEIR's convention)."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """A searching text. Any metadata column can become a slice."""

    query_id: str
    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)


class Qrels:
    """All judgments, by query; the order of queries is that of the file."""

    def __init__(self, judgments: Iterable[Judgment], positive_from: int = 1) -> None:
        self.positive_from = positive_from
        self._grades: dict[str, dict[str, int]] = {}
        for query_id, doc_id, relevance in judgments:
            self._grades.setdefault(query_id, {})[doc_id] = relevance

    def __iter__(self) -> Iterator[str]:
        return iter(self._grades)

    def __len__(self) -> int:
        return len(self._grades)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._grades

    def grades(self, query_id: str) -> Mapping[str, int]:
        """The judged documents of a query and their grades; empty for a query without judgments."""
        return self._grades.get(query_id, {})

    def positives(self, query_id: str) -> list[str]:
        """Ids of the documents judged `positive_from` or higher, in the order of the file."""
        return [doc_id for doc_id, grade in self.grades(query_id).items() if grade >= self.positive_from]

    def judgments(self) -> Iterator[Judgment]:
        """All judgments, query by query."""
        for query_id, grades in self._grades.items():
            for doc_id, relevance in grades.items():
                yield Judgment(query_id, doc_id, relevance)

    def only(self, query_ids: Iterable[str]) -> Qrels:
        """The judgments of these queries, in their order."""
        wanted = [query_id for query_id in query_ids if query_id in self]
        rows = (Judgment(query_id, *row) for query_id in wanted for row in self.grades(query_id).items())
        return Qrels(rows, self.positive_from)


class Run:
    """A ranked, scored list per query: score descending, then `doc_id` ascending, whatever order came in."""

    def __init__(self, rankings: Mapping[str, Iterable[ScoredDoc]]) -> None:
        self._rankings = {
            query_id: tuple(sorted(ranking, key=lambda scored: (-scored.score, scored.doc_id)))
            for query_id, ranking in rankings.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._rankings)

    def __len__(self) -> int:
        return len(self._rankings)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._rankings

    def ranking(self, query_id: str) -> tuple[ScoredDoc, ...]:
        """The documents of a query, best first; empty for a query that is not in the run."""
        return self._rankings.get(query_id, ())
