"""Judgments that contradict each other, or what every model says."""

from __future__ import annotations

from collections import defaultdict

from scipy import stats

from closecall.quality.finding import Finding, finding
from closecall.quality.material import Material
from closecall.text import normalise

CONTRADICTED = 0.01
"""Measured on eight sets: at most 0.2 % of the queries."""
FIRST_WRONG = 0.1
SURE = 0.001
NEXT_RANKS = 10
FEW = 5


def same_text(material: Material) -> Finding | None:
    """Queries with the same text whose positives differ altogether, or that grade a document differently."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for query in material.queries:
        by_text[normalise(query.text)].append(query.query_id)
    qrels, found, count = material.qrels, [], 0
    for text, query_ids in by_text.items():
        positives = [set(qrels.positives(query_id)) for query_id in query_ids]
        if len(query_ids) > 1 and any(one != positives[0] for one in positives):
            found.append(f"{', '.join(query_ids)}: {text}")
            count += len(query_ids)
    if not found:
        return None
    return finding(
        "same_text",
        count > CONTRADICTED * len(material.queries) and count >= FEW,
        (
            f"{count:,} queries share their text with another that has other positives",
            "no model can satisfy both: whatever it returns, one of them counts as failed",
            "give every query of a text the union of the judgments, or tell the queries apart",
        ),
        found,
    )


def first_graded_zero(material: Material) -> Finding | None:
    """Documents that every model ranks first and the judgments call not relevant, more often than those behind them.

    In a sound set a document at rank 1 is less often judged 0 than one at ranks 2 to 10. Fisher's exact test,
    one-sided, over the judged documents. Found in Cranfield as it circulates, where code -1 marks each query's source
    paper and became grade 0.
    """
    first, behind, examples = [0, 0], [0, 0], []
    for query in material.queries:
        judged = material.qrels.grades(query.query_id)
        tops = [top for top in material.tops(query.query_id, NEXT_RANKS).values() if top]
        if not tops:
            continue
        agreed = tops[0][0] if all(top[0] == tops[0][0] for top in tops) else ""
        if agreed in judged:
            first[judged[agreed] == 0] += 1
            if judged[agreed] == 0:
                examples.append(f"{query.query_id}: {agreed}")
        for doc_id in {doc_id for top in tops for doc_id in top[1:]}:
            if doc_id in judged and doc_id != agreed:
                behind[judged[doc_id] == 0] += 1
    if first[1] < FEW or first[1] < FIRST_WRONG * sum(first):
        return None
    p = float(stats.fisher_exact([first[::-1], behind[::-1]], alternative="greater").pvalue)
    if p > SURE:
        return None
    return finding(
        "first_graded_zero",
        True,
        (
            f"{first[1]:,} of {sum(first):,} judged documents that every model here ranks first are graded 0, but only "
            f"{behind[1]:,} of {sum(behind):,} at ranks 2 to {NEXT_RANKS}",
            "it should be the other way round: a code, a swapped column or an inverted scale may have become grade 0",
            "look at the examples; ask what the grades meant where they come from, and mend them",
        ),
        examples,
    )
