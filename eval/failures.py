"""The queries that lost or missed: why, by rules that are written down, and the cheapest remedy first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from closecall.records import Document, Qrels, Query, ScoredDoc
from closecall.slices import SHORT_WORDS, script_of
from closecall.text import normalise, words
from eval.answers import Answers

TWIN = 0.8
"""Jaccard overlap of two word sets above which an unjudged document is nearly the same as a positive."""
SHOWN_CHARACTERS = 300
RERANKED = 100
"""Documents that a reranker is given: it cannot lift a positive that stands below them."""


@dataclass(frozen=True)
class Shown:
    """A retrieved document as a person reads it."""

    doc_id: str
    score: float
    grade: int | None
    """None where unjudged."""
    text: str


@dataclass(frozen=True)
class Failure:
    """A query where the contender lost against the incumbent, or found no positive in its top k."""

    query_id: str
    query: str
    metadata: Mapping[str, object]
    lost: bool
    missed: bool
    values: Mapping[str, float]
    """Of the deciding measure, by system."""
    positives: Mapping[str, Mapping[str, int | None]]
    """Rank of each positive in each system; None where it is not in what was retrieved."""
    top: Mapping[str, Sequence[Shown]]
    """The first k documents of each system."""
    classes: tuple[str, ...]
    """Those whose rule holds; see CLASSES."""
    remedy: str
    """The cheapest that applies; see REMEDIES."""

    def as_json(self) -> dict[str, Any]:
        """The failure as plain JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Case:
    """One query with its rankings, as the rules see it."""

    query: Query
    qrels: Qrels
    documents: Mapping[str, Document]
    ranking: Sequence[ScoredDoc]
    """Of the contender."""
    lexical: Sequence[ScoredDoc] | None
    """Of BM25; None where there are no texts."""
    truncated: frozenset[str]
    same_text: Sequence[str]
    """Ids of other queries with the same text."""
    k: int

    @cached_property
    def positives(self) -> list[str]:
        """Ids."""
        return self.qrels.positives(self.query.query_id)

    @cached_property
    def rank(self) -> int | None:
        """Of the best positive, from 1; None where there is none."""
        wanted = set(self.positives)
        return next((at for at, found in enumerate(self.ranking, start=1) if found.doc_id in wanted), None)

    @cached_property
    def unjudged(self) -> list[str]:
        """Documents of the top k that have no grade, and a text."""
        grades = self.qrels.grades(self.query.query_id)
        top = (found.doc_id for found in self.ranking[: self.k])
        return [doc_id for doc_id in top if doc_id not in grades and doc_id in self.documents]

    @cached_property
    def above(self) -> list[str]:
        """Documents above the best positive, within the top k."""
        return [found.doc_id for found in self.ranking[: min((self.rank or self.k + 1) - 1, self.k)]]

    @cached_property
    def unjudged_above(self) -> list[str]:
        """Those of them that have no grade, and a text."""
        return [doc_id for doc_id in self.above if doc_id in set(self.unjudged)]

    def compared(self, doc_id: str) -> str:
        """The text of a document in the form in which texts are compared; "" where there is none."""
        return normalise(self.documents[doc_id].full_text) if doc_id in self.documents else ""


def is_absent(case: Case) -> bool:
    """No positive is among the documents retrieved."""
    return case.rank is None


def is_low(case: Case) -> bool:
    """A positive is retrieved, but below the top k."""
    return case.rank is not None and case.rank > case.k


def has_negative_above(case: Case) -> bool:
    """A document judged 0, or an unjudged one with the same text, stands above the best positive."""
    grades = case.qrels.grades(case.query.query_id)
    if any(grades.get(doc_id) == 0 for doc_id in case.above):
        return True
    negative = {case.compared(doc_id) for doc_id, grade in grades.items() if grade == 0}
    negative -= {"", *map(case.compared, case.positives)}
    return any(case.compared(doc_id) in negative for doc_id in case.unjudged_above)


def has_duplicate_above(case: Case) -> bool:
    """An unjudged document of the top k with the same text as a positive stands above it."""
    place = {found.doc_id: at for at, found in enumerate(case.ranking)}
    copies = [(place[doc_id], case.compared(doc_id)) for doc_id in case.unjudged]
    positives = [(place.get(doc_id, math.inf), case.compared(doc_id)) for doc_id in case.positives]
    return any(text == own and at < rank for at, own in copies for rank, text in positives if own)


def has_twin_above(case: Case) -> bool:
    """An unjudged document with at least 80 % of its words in common with a positive stands above it."""
    positives = [set(words(case.compared(doc_id))) for doc_id in case.positives]
    found = (set(words(case.compared(doc_id))) for doc_id in case.unjudged_above)
    return any(other and len(own & other) >= TWIN * len(own | other) for own in found for other in positives)


def is_cut(case: Case) -> bool:
    """Every positive is longer than the model reads."""
    return bool(case.positives) and all(doc_id in case.truncated for doc_id in case.positives)


def is_vocabulary(case: Case) -> bool:
    """BM25 has a positive in its top k, and the contender has none."""
    if case.lexical is None or (case.rank is not None and case.rank <= case.k):
        return False
    return bool(set(case.positives) & {found.doc_id for found in case.lexical[: case.k]})


def is_ambiguous(case: Case) -> bool:
    """At most three words, or the same text as another query with other positives."""
    own = set(case.positives)
    others = any(found and set(found) != own for found in map(case.qrels.positives, case.same_text))
    return others or (bool(case.query.text) and len(words(case.query.text)) <= SHORT_WORDS)


def is_foreign(case: Case) -> bool:
    """The query is in another language, or script, than every positive."""
    language = case.query.metadata.get("language")
    found = [case.documents[doc_id] for doc_id in case.positives if doc_id in case.documents]
    if not found or not case.query.text:
        return False
    if language and all(document.metadata.get("language") for document in found):
        return all(document.metadata["language"] != language for document in found)
    script = script_of(case.query.text)
    return script != "none" and all(script_of(document.full_text) not in (script, "none") for document in found)


CLASSES: dict[str, Callable[[Case], bool]] = {
    "duplicate_above": has_duplicate_above,
    "twin_above": has_twin_above,
    "cut": is_cut,
    "ambiguous": is_ambiguous,
    "vocabulary": is_vocabulary,
    "foreign": is_foreign,
    "negative_above": has_negative_above,
    "low": is_low,
    "absent": is_absent,
}
"""The classes by name; each docstring is its rule."""

REMEDIES: dict[str, tuple[str, ...]] = {
    "judge the documents above": ("duplicate_above", "twin_above"),
    "chunk the documents": ("cut",),
    "clean or complete the query": ("ambiguous",),
    "hybrid search with BM25": ("vocabulary",),
    "a multilingual model": ("foreign",),
    "a reranker": ("negative_above", "low"),
    "fine-tuning, or a stronger model": ("absent",),
}
"""What helps, the cheapest first, and the classes that it helps with; the last one is also for what has no class."""
NOT_BY_TRAINING = ("duplicate_above", "twin_above", "cut")


@dataclass(frozen=True)
class FailureSummary:
    """Counts over all failures."""

    failures: int
    lost: int
    missed: int
    classes: Mapping[str, int]
    """A failure may be in several."""
    remedies: Mapping[str, int]
    """Each failure once, under the cheapest that applies; the cheapest first."""
    fixable_by_training: int
    """Failures that are no label or chunking problem."""

    def as_json(self) -> dict[str, Any]:
        """The summary as plain JSON types."""
        return asdict(self)


def summarised(failures: Sequence[Failure]) -> FailureSummary:
    """Counts of failures by class and by remedy."""
    fixable = sum(not set(failure.classes) & set(NOT_BY_TRAINING) for failure in failures)
    return FailureSummary(
        len(failures),
        sum(failure.lost for failure in failures),
        sum(failure.missed for failure in failures),
        {name: count for name in CLASSES if (count := sum(name in failure.classes for failure in failures))},
        {name: count for name in REMEDIES if (count := sum(failure.remedy == name for failure in failures))},
        fixable,
    )


@dataclass(frozen=True)
class Finder:
    """Finds the failures of a contender."""

    queries: Mapping[str, Query]
    documents: Mapping[str, Document]
    qrels: Qrels
    answers: Mapping[str, Answers]
    """Of all systems."""
    incumbent: str
    contender: str
    truncated: frozenset[str] = frozenset()
    lexical: Answers | None = None
    k: int = 10

    def failures(self, values: Mapping[str, Mapping[str, float]]) -> list[Failure]:
        """Those of the queries in `values`, the values of the deciding measure by system and query; worst first."""
        before, after = values[self.incumbent], values[self.contender]
        found = []
        for query_id in after:
            case = self._case(query_id)
            lost, missed = after[query_id] < before[query_id], case.rank is None or case.rank > self.k
            if lost or missed:
                found.append(self._failure(case, lost, missed, {name: v[query_id] for name, v in values.items()}))
        return sorted(found, key=lambda f: (f.values[self.contender] - f.values[self.incumbent], f.query_id))

    def _case(self, query_id: str) -> Case:
        query = self.queries.get(query_id, Query(query_id, ""))
        lexical = None if self.lexical is None else self.lexical.ranking(query_id, self.k)
        same = [other for other in self._by_text.get(normalise(query.text), ()) if other != query_id]
        ranking = self.answers[self.contender].ranking(query_id)
        return Case(query, self.qrels, self.documents, ranking, lexical, self.truncated, same, self.k)

    @cached_property
    def _by_text(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for query in self.queries.values():
            if query.text:
                found.setdefault(normalise(query.text), []).append(query.query_id)
        return found

    def _failure(self, case: Case, lost: bool, missed: bool, values: Mapping[str, float]) -> Failure:
        query_id = case.query.query_id
        classes = tuple(name for name, rule in CLASSES.items() if rule(case))
        rankings = {name: found.ranking(query_id) for name, found in self.answers.items()}
        places = {name: {found.doc_id: at for at, found in enumerate(ranking, 1)} for name, ranking in rankings.items()}
        return Failure(
            query_id,
            case.query.text,
            {key: value for key, value in case.query.metadata.items() if not key.startswith("_")},
            lost,
            missed,
            values,
            {doc_id: {name: place.get(doc_id) for name, place in places.items()} for doc_id in case.positives},
            {name: [self._shown(query_id, found) for found in r[: self.k]] for name, r in rankings.items()},
            classes,
            _remedy(case, classes),
        )

    def _shown(self, query_id: str, found: ScoredDoc) -> Shown:
        document = self.documents.get(found.doc_id)
        text = "" if document is None else document.full_text[:SHOWN_CHARACTERS]
        return Shown(found.doc_id, found.score, self.qrels.grades(query_id).get(found.doc_id), text)


def _remedy(case: Case, classes: Sequence[str]) -> str:
    """The cheapest that applies; a reranker is not given what stands below its depth."""
    helped = set(classes) - ({"low"} if case.rank is None or case.rank > RERANKED else set())
    return next((name for name, helps in REMEDIES.items() if helped & set(helps)), list(REMEDIES)[-1])
