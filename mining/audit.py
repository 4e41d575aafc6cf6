"""What a person should look at: the kept negatives and the dropped candidates that are most likely relevant, ranked.

The suspicion of a candidate is 1 - the product of (1 - weight * strength) over the signs below, so each sign can only
raise it and a strong one is enough. A sign that has no data (no guide, one source alone) counts nothing.

| sign | weight | strength, from 0 to 1 |
| --- | --- | --- |
| score | 0.5 | 1 - how far the candidate is below the positive, as a fraction of the positive's magnitude |
| guide | 0.7 | the same with the guide's scores |
| words | 0.6 | Jaccard similarity of the words of candidate and positive |
| query | 0.8 | Jaccard similarity of this query and the likest other training query it answers, from 0.5 on |
| sources | 0.2 | of the other ranking sources, the share that found it too |
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from closecall.records import Document
from closecall.split import Part
from closecall.text import normalise, words
from mining.artifact import Dropped, FoundBy, HardNegative, Triple
from mining.filters import KEPT, SUSPECTED
from mining.marks import Pair
from mining.overlap import jaccard

WEIGHTS = {"score": 0.5, "guide": 0.7, "words": 0.6, "query": 0.8, "sources": 0.2}
STRONG = 0.5
"""Words and queries this similar are said to be so; queries less similar count nothing."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A kept negative or dropped candidate that may be relevant."""

    query_id: str
    query: str
    positive_id: str
    positive: str
    doc_id: str
    candidate: str
    outcome: str
    """`kept`, or the reason it was dropped for."""
    score: float
    positive_score: float
    rank: int
    guide_score: float | None
    suspicion: float
    """In [0, 1], 4 decimals; higher is more likely relevant."""
    why: tuple[str, ...]
    """Short statements for a person, the strongest sign first."""


class Sign(NamedTuple):
    """A reason to suspect a candidate: `strength` in [0, 1] of the sign `kind`, and its words ("" = not worth any)."""

    kind: str
    strength: float
    why: str


class _Candidate(NamedTuple):
    triple: Triple
    doc_id: str
    text: str
    outcome: str
    score: float
    rank: int
    guide_score: float | None
    found_by: tuple[FoundBy, ...]


def suspects(
    triples: Sequence[Triple],
    dropped: Iterable[Dropped],
    train: Part,
    documents: Iterable[Document],
    limit: int,
    sources: Sequence[str] = (),
    base: str | None = None,
    done: Collection[Pair] = (),
) -> list[Suspect]:
    """At most `limit` suspects: kept negatives, then dropped suspected false negatives, most suspicious first in both.

    Each list has half of the places, and those that the other leaves. A query and document stand there once, also
    where queries have the same text; not if they have a judgment already, or are among `done`. `sources` are the names
    of the ranking sources, `base` the one of the base model.
    """
    texts = {document.doc_id: document.full_text for document in documents}
    signs = Signs(train, [name for name in sources if name != base])
    settled = _settled(train, done)
    kept = _best(_kept(triples), signs, settled)
    chosen = {_key(suspect.query, suspect.doc_id) for suspect in kept}
    spared = _best(_spared(triples, dropped, texts), signs, settled | chosen)
    room = max(limit - len(spared), (limit + 1) // 2)
    return kept[:room] + spared[: limit - min(room, len(kept))]


def _settled(train: Part, done: Collection[Pair]) -> set[Pair]:
    """What needs no mark: what has a judgment of any grade, or a mark; by text, as mining pools them."""
    text_of = train.text_of()
    pairs = {(judgment.query_id, judgment.doc_id) for judgment in train.qrels.judgments()} | set(done)
    return {_key(text_of[query_id], doc_id) for query_id, doc_id in pairs if query_id in text_of}


def _key(query: str, doc_id: str) -> Pair:
    return normalise(query), doc_id


def _kept(triples: Iterable[Triple]) -> Iterator[_Candidate]:
    for triple in triples:
        for found in triple.negatives:
            yield _candidate(triple, found.text, KEPT, found)


def _spared(triples: Iterable[Triple], dropped: Iterable[Dropped], texts: Mapping[str, str]) -> Iterator[_Candidate]:
    """The candidates that were dropped because they may be relevant."""
    triple_of = {(triple.query_id, triple.positive_id): triple for triple in triples}
    for found in dropped:
        if found.reason in SUSPECTED:
            triple = triple_of[found.query_id, found.positive_id]
            yield _candidate(triple, texts[found.doc_id], found.reason, found)


def _candidate(triple: Triple, text: str, outcome: str, found: HardNegative | Dropped) -> _Candidate:
    return _Candidate(triple, found.doc_id, text, outcome, found.score, found.rank, found.guide_score, found.found_by)


def _best(candidates: Iterable[_Candidate], signs: Signs, settled: Collection[Pair]) -> list[Suspect]:
    """The suspects, most suspicious first, each with the positive that makes it most so; ties by ids."""
    keys: dict[str, str] = {}
    best: dict[Pair, Suspect] = {}
    for candidate in candidates:
        query = candidate.triple.query
        key = keys.setdefault(query, normalise(query)), candidate.doc_id
        if key not in settled:
            suspect = _suspect(candidate, signs.of(candidate))
            best[key] = min(best.get(key, suspect), suspect, key=_order)
    return sorted(best.values(), key=_order)


def _order(suspect: Suspect) -> tuple[float, str, str, str]:
    return -suspect.suspicion, suspect.query_id, suspect.doc_id, suspect.positive_id


def _suspect(candidate: _Candidate, signs: Iterable[Sign]) -> Suspect:
    weighed = sorted(signs, key=lambda sign: -WEIGHTS[sign.kind] * sign.strength)
    triple = candidate.triple
    return Suspect(
        triple.query_id,
        triple.query,
        triple.positive_id,
        triple.positive,
        candidate.doc_id,
        candidate.text,
        candidate.outcome,
        candidate.score,
        triple.positive_score,
        candidate.rank,
        candidate.guide_score,
        suspicion(weighed),
        tuple(sign.why for sign in weighed if sign.why),
    )


def suspicion(signs: Iterable[Sign]) -> float:
    """What the signs say together, in [0, 1]."""
    return round(1 - math.prod(1 - WEIGHTS[sign.kind] * sign.strength for sign in signs), 4)


def closeness(score: float, positive_score: float) -> float:
    """1 for a score at or above the positive's, falling with the distance over its magnitude to 0; never below.

    Below zero the order stays: -0.3 is closer to -0.2 than -0.35 is.
    """
    gap = (positive_score - score) / max(abs(positive_score), 1e-9)
    return min(1.0, max(0.0, 1 - gap))  # 0 also for NaN, which max() passes over


class Signs:
    """Finds the signs of candidates; `others` are the ranking sources beside the base model."""

    def __init__(self, train: Part, others: Sequence[str]) -> None:
        self.others = others
        self._words: dict[str, frozenset[str]] = {}
        self._text_of = train.text_of()
        self._answers: dict[str, list[str]] = defaultdict(list)
        for query_id in self._text_of:
            for doc_id in train.qrels.positives(query_id):
                self._answers[doc_id].append(query_id)

    def of(self, candidate: _Candidate) -> list[Sign]:
        """All signs for which there is data."""
        triple = candidate.triple
        signs = [_scored("score", "scores", candidate.score, triple.positive_score)]
        if candidate.guide_score is not None and triple.positive_guide_score is not None:
            signs.append(_scored("guide", "by the guide scores", candidate.guide_score, triple.positive_guide_score))
        shared = jaccard(self.words(candidate.text), self.words(triple.positive))
        signs.append(
            Sign(
                "words",
                shared,
                f"shares {shared * 100:.0f} % of all words with the positive" if shared >= STRONG else "",
            )
        )
        return [*signs, *self._similar_query(triple, candidate.doc_id), *self._sources(candidate.found_by)]

    def words(self, text: str) -> frozenset[str]:
        """The words of a text, each found once."""
        if text not in self._words:
            self._words[text] = frozenset(words(text))
        return self._words[text]

    def _similar_query(self, triple: Triple, doc_id: str) -> Iterator[Sign]:
        """The likest query that the document answers; not this one, of which it would have a judgment."""
        here = self.words(triple.query)
        likest = [
            (jaccard(here, self.words(self._text_of[query_id])), query_id) for query_id in self._answers.get(doc_id, ())
        ]
        strength, query_id = min(likest, key=lambda found: (-found[0], found[1]), default=(0.0, ""))
        if strength >= STRONG:
            yield Sign("query", strength, f"answers the similar query {query_id}")

    def _sources(self, found_by: Iterable[FoundBy]) -> Iterator[Sign]:
        """The sources beside the base model that found it."""
        found = [said for said in found_by if said.source in self.others]
        if found:
            where = " and ".join(f"rank {said.rank} in {said.source}" for said in found)
            yield Sign("sources", len(found) / len(self.others), f"also {where}")


def _scored(kind: str, verb: str, score: float, positive_score: float) -> Sign:
    """The sign of a score beside the positive's."""
    if score > positive_score:
        why = f"{verb} above the positive"
    elif positive_score > 0 and score > 0:
        why = f"{verb} {score / positive_score * 100:.0f} % of the positive"
    else:
        why = f"{verb} {score:.2f}, the positive {positive_score:.2f}"
    return Sign(kind, closeness(score, positive_score), why)
