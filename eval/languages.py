"""Query language by document language: for each pair only documents of that language are ranked, and count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from closecall.measures import Gain, Measure
from closecall.records import Judgment, Qrels, Query
from eval.answers import Answers
from eval.systems import Searched, System

COLUMN = "language"


@dataclass(frozen=True)
class LanguagePair:
    """The deciding measure of every contender for one query language over documents of one language."""

    query: str
    document: str
    n: int
    values: Mapping[str, float]
    """By contender."""


def language_pairs(
    systems: Mapping[str, System],
    corpus: Searched,
    queries: Sequence[Query],
    qrels: Qrels,
    measure: Measure,
    gain: Gain,
    depth: int,
) -> tuple[LanguagePair, ...]:
    """All pairs that have a query with a positive, in the order of their names; none where there is only one pair."""
    languages = [str(document.metadata.get(COLUMN) or "") for document in corpus.documents]
    asked = sorted({str(query.metadata.get(COLUMN) or "") for query in queries} - {""})
    found = [
        _pair(systems, corpus, languages, query, document, queries, qrels, measure, gain, depth)
        for query in asked
        for document in sorted(set(languages) - {""})
    ]
    kept = tuple(pair for pair in found if pair is not None)
    return kept if len(kept) > 1 else ()


def _pair(
    systems: Mapping[str, System],
    corpus: Searched,
    languages: Sequence[str],
    query_language: str,
    document_language: str,
    queries: Sequence[Query],
    qrels: Qrels,
    measure: Measure,
    gain: Gain,
    depth: int,
) -> LanguagePair | None:
    only = np.asarray([row for row, found in enumerate(languages) if found == document_language], dtype=np.int64)
    inside = {corpus.doc_ids[row] for row in only}
    of_pair = [query for query in queries if query.metadata.get(COLUMN) == query_language]
    restricted = Qrels(
        (
            Judgment(query.query_id, doc_id, grade)
            for query in of_pair
            for doc_id, grade in qrels.grades(query.query_id).items()
            if doc_id in inside
        ),
        qrels.positive_from,
    )
    scored = [query for query in of_pair if restricted.positives(query.query_id)]
    if not scored:
        return None
    ids = tuple(query.query_id for query in scored)
    values = {}
    for name, system in systems.items():
        answers = Answers(system.search(scored, depth, only), ids, system.doc_ids)
        values[name] = answers.values(restricted.only(ids), [measure], gain).mean(measure)
    return LanguagePair(query_language, document_language, len(scored), values)
