"""What of the test split can be found where training looks: counted before anything trains, and in the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from closecall.assign import Assignment
from closecall.dataset import Dataset
from closecall.records import Query
from closecall.text import near_duplicate_links, normalise

EXAMPLES = 20


@dataclass(frozen=True)
class Leaks:
    """Pairs (query of the held-out part, query of the other part) by kind."""

    pairs: Mapping[str, Sequence[tuple[str, str]]]
    """`test~train same_text`, ... -> pairs of query ids."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of held-out queries that leak, by kind; kinds without any are left out."""
        return {kind: len({left for left, _ in found}) for kind, found in self.pairs.items() if found}

    def summary(self) -> dict[str, Any]:
        """Counts, and the first pairs of each kind for a person to look at."""
        return {
            kind: {"queries": self.counts[kind], "examples": [list(pair) for pair in found[:EXAMPLES]]}
            for kind, found in self.pairs.items()
            if found
        }


def find_leaks(dataset: Dataset, part: Mapping[str, str], threshold: float, group_by: str | None) -> Leaks:
    """Leaks of test into train and dev, and of dev into train.

    Kinds: `same_text` (normalised), `near_duplicate` (word sets at or above `threshold`), `same_group` (the
    `group_by` column). A positive that two parts share is no leak of a query, and is not counted here.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for query in dataset.queries:
        if query.query_id in part:
            ids[part[query.query_id]].append(query.query_id)
    pairs: dict[str, list[tuple[str, str]]] = {}
    for held, other in (("test", "train"), ("test", "dev"), ("dev", "train")):
        for kind, found in _between(dataset, ids[held], ids[other], threshold, group_by).items():
            pairs[f"{held}~{other} {kind}"] = found
    return Leaks(pairs)


def drop_leaking(assignment: Assignment, leaks: Leaks) -> Assignment:
    """The assignment without the train and dev queries that leak; they are set aside as `leaks`."""
    leaking = {other for found in leaks.pairs.values() for _, other in found}
    part = {query_id: name for query_id, name in assignment.part.items() if query_id not in leaking}
    return replace(assignment, part=part, set_aside={**assignment.set_aside, "leaks": sorted(leaking)})


def texts_in_training(test_texts: Mapping[str, str], training_texts: Iterable[str]) -> list[str]:
    """Ids of the test queries whose normalised text stands among the texts that training read."""
    seen = {normalise(text) for text in training_texts}
    return [query_id for query_id, text in test_texts.items() if normalise(text) in seen]


def _between(
    dataset: Dataset, held: Sequence[str], other: Sequence[str], threshold: float, group_by: str | None
) -> dict[str, list[tuple[str, str]]]:
    texts = {query_id: dataset.query(query_id).text for query_id in (*held, *other)}
    same = _matching(held, other, {query_id: normalise(text) for query_id, text in texts.items()})
    links = near_duplicate_links([texts[q] for q in held], [texts[q] for q in other], threshold)
    near = [(held[left], other[right]) for left, right in links]
    groups = {q: _group(dataset.query(q), group_by) for q in texts} if group_by else {}
    exact = set(same)
    return {
        "same_text": same,
        "near_duplicate": [pair for pair in near if pair not in exact],
        "same_group": _matching(held, other, groups) if group_by else [],
    }


def _group(query: Query, group_by: str) -> str | None:
    """The group as text, as in `assign`: a value may be a list, and 7 and "7" are the same group."""
    value = query.metadata.get(group_by)
    return None if value is None else str(value)


def _matching(held: Sequence[str], other: Sequence[str], key_of: Mapping[str, str | None]) -> list[tuple[str, str]]:
    by_key: dict[str | None, list[str]] = defaultdict(list)
    for query_id in other:
        if key_of[query_id] is not None:
            by_key[key_of[query_id]].append(query_id)
    return [(left, right) for left in held for right in by_key.get(key_of[left], ())]
