"""Texts that stand in the set more than once, and what that does to the measure."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from closecall.quality.finding import Finding, finding
from closecall.quality.material import Material
from closecall.records import Judgment, Qrels
from closecall.text import normalise

MANY_QUERIES = 0.2
"""Measured on eight sets: at most 11 % of the queries repeat another."""
MANY_POSITIVES = 0.1
"""Measured on eight sets: at most 4 % of the queries have a positive with an unjudged copy."""
COPY = 0.9
"""Jaccard similarity of word sets from which two documents count as the same."""


def query_copies(material: Material) -> Finding | None:
    """Queries that repeat another, and how the measure changes when each question counts once."""
    groups = np.asarray(material.groups)
    different = len(set(material.groups))
    repeated = len(groups) - different
    if not repeated:
        return None
    alarm = repeated > MANY_QUERIES * len(groups)
    members: dict[int, list[str]] = defaultdict(list)
    for group, query in zip(material.groups, material.queries, strict=True):
        members[group].append(query.text)
    largest = sorted((found for found in members.values() if len(found) > 1), key=len, reverse=True)
    return finding(
        "query_copies",
        alarm,
        (
            f"{len(groups):,} queries are {different:,} different ones{_by_group(material, groups)}",
            "repeated questions count as often as they stand there, and make a value look surer than it is",
            "closecall keeps them in one part and resamples them as one; drop the copies, or judge other queries",
        ),
        [f"{len(found)} times: {found[0]}" for found in largest],
    )


def _by_group(material: Material, groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    """The values with every group counted once."""
    told = []
    for name in material.runs:
        values = material.values(name)
        own = [float(values[groups == group].mean()) for group in np.unique(groups)]
        told.append(f"{name} {values.mean() * 100:.1f} -> {np.mean(own) * 100:.1f}")
    return f"; {material.measure} with each counted once: {', '.join(told)}" if told else ""


def positive_copies(material: Material) -> Finding | None:
    """Unjudged documents that say the same as a positive, and what the measure would be if they counted."""
    copies = {query.query_id: _copies(material, query.query_id) for query in material.queries}
    hit = {query_id: found for query_id, found in copies.items() if found}
    if not hit:
        return None
    share = len(hit) / len(material.queries)
    completed = Qrels(
        [
            *material.qrels.judgments(),
            *(Judgment(q, doc_id, grade) for q, f in hit.items() for doc_id, grade in f.items()),
        ],
        material.qrels.positive_from,
    )
    told = [
        f"{name} {material.values(name).mean() * 100:.1f} -> {material.values(name, completed).mean() * 100:.1f}"
        for name in material.runs
    ]
    return finding(
        "positive_copies",
        share > MANY_POSITIVES,
        (
            f"for {len(hit):,} of {len(material.queries):,} queries a document with the words of a positive is "
            f"unjudged; "
            f"{material.measure} if it counted: {', '.join(told)}",
            "a model that returns the copy is held to be wrong",
            "judge the copies like the positive, or keep one document of each",
        ),
        [f"{query_id}: {', '.join(found)}" for query_id, found in hit.items()],
    )


def _copies(material: Material, query_id: str) -> dict[str, int]:
    """Unjudged documents near the query with the text or the words of a positive, and its grade."""
    judged = material.qrels.grades(query_id)
    found: dict[str, int] = {}
    near = {doc_id for top in material.tops(query_id).values() for doc_id in top if doc_id not in judged}
    for positive in material.qrels.positives(query_id):
        own = material.document_words.get(positive)
        for doc_id in sorted(near):
            other = material.document_words.get(doc_id)
            if own and other and len(own & other) >= COPY * len(own | other):
                found[doc_id] = max(judged[positive], found.get(doc_id, 0))
    return found


def document_copies(material: Material) -> Finding | None:
    """Documents near the queries that have the same text as another."""
    ids: dict[str, list[str]] = defaultdict(list)
    for doc_id in material.document_words:
        ids[normalise(material.documents[doc_id].full_text)].append(doc_id)
    several = [found for found in ids.values() if len(found) > 1]
    copies = sum(len(found) - 1 for found in several)
    if not copies:
        return None
    return finding(
        "document_copies",
        copies > MANY_POSITIVES * len(material.document_words),
        (
            f"{copies:,} of {len(material.document_words):,} documents near the queries are copies of another",
            "copies take up ranks, and only the judged one of them counts",
            "keep one document of each text, or judge all",
        ),
        [", ".join(found) for found in several],
    )
