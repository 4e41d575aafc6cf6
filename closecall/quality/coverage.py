"""How much is judged: judgments per query, how deep, what models return that nobody looked at, and by whose ranking."""

from __future__ import annotations

import numpy as np

from closecall.quality.finding import Finding, finding
from closecall.quality.material import Material

POOLED = 1.0
"""Judgments of grade 0 a query from which on a set counts as pooled: somebody looked at what was returned."""
SHALLOW = 0.5
"""A pooled set should have judged at least half of the top that the measure looks at."""
PREFIX = 0.9
"""Measured on eight sets: 16 to 46 % of a query's judged documents are the first so many of BM25."""
ENOUGH = 20


def judgments_per_query(material: Material) -> Finding | None:
    """How many judgments and of which kind; an alarm where a pool is shallower than the measure looks."""
    grades = [material.qrels.grades(query.query_id) for query in material.queries]
    zeros = float(np.mean([sum(grade == 0 for grade in found.values()) for found in grades]))
    counts = np.asarray([len(found) for found in grades])
    unjudged = {name: _unjudged(material, name) for name in material.runs}
    shares = ", ".join(f"{share:.0%} of {name}'s" for name, share in unjudged.items())
    pooled = zeros >= POOLED
    alarm = pooled and bool(unjudged) and min(unjudged.values()) > 1 - SHALLOW
    found = f"{counts.mean():.1f} judgments a query (median {np.median(counts):.0f}), {zeros:.1f} of them grade 0"
    if shares:
        found += f"; unjudged in the top {material.cutoff}: {shares}"
    return finding(
        "judgments_per_query",
        alarm,
        (
            found,
            f"the pool is shallower than {material.measure} looks: what was not looked at counts as wrong"
            if alarm
            else "what nobody judged counts as wrong: the measure compares models, it does not say how good they are",
            f"judge the top {material.cutoff} of every model that is compared (closecall judge)"
            if alarm
            else "judge the top of a new model before believing that it is worse",
        ),
    )


def one_ranking(material: Material) -> Finding | None:
    """An alarm where the judged documents are just the first ones of one model's ranking."""
    several = [query.query_id for query in material.queries if len(material.qrels.grades(query.query_id)) >= 3]
    if len(several) < ENOUGH:
        return None
    for name, run in material.runs.items():
        shares = []
        for query_id in several:
            judged = material.qrels.grades(query_id)
            first = [one.doc_id for one in run.ranking(query_id)[: len(judged)]]
            shares.append(sum(doc_id in judged for doc_id in first) / len(judged))
        if (share := float(np.mean(shares))) >= PREFIX:
            return finding(
                "one_ranking",
                True,
                (
                    f"{share:.0%} of the judged documents are the first that {name} returns, and no others are judged",
                    f"the set was marked along one ranking: it favours {name} and cannot see what another model finds",
                    "judge the pooled top of several models, blind (closecall judge)",
                ),
            )
    return None


def uneven_pool(material: Material) -> Finding | None:
    """An alarm where much more of one model's top is judged than of another's, in a pooled set."""
    grades = [material.qrels.grades(query.query_id) for query in material.queries]
    zeros = float(np.mean([sum(grade == 0 for grade in found.values()) for found in grades]))
    shares = {name: 1 - _unjudged(material, name) for name in material.runs}
    if zeros < POOLED or len(shares) < 2:
        return None
    most, least = max(shares, key=lambda name: shares[name]), min(shares, key=lambda name: shares[name])
    if shares[most] - shares[least] <= UNEVEN:
        return None
    return finding(
        "uneven_pool",
        True,
        (
            f"judged in the top {material.cutoff}: {shares[most]:.0%} of {most}'s, {shares[least]:.0%} of {least}'s",
            f"{least} is held to have failed where nobody looked: a difference may be one of judging",
            f"judge the top {material.cutoff} of {least} too (closecall judge)",
        ),
    )


UNEVEN = 0.2


def _unjudged(material: Material, name: str) -> float:
    """Mean share of the returned documents of the top that have no judgment."""
    shares = []
    for query in material.queries:
        judged = material.qrels.grades(query.query_id)
        top = material.tops(query.query_id, material.cutoff)[name]
        if top:
            shares.append(sum(doc_id not in judged for doc_id in top) / len(top))
    return float(np.mean(shares)) if shares else 0.0
