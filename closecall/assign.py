"""Which query goes to which part: by hash of its group, within its stratum, old queries where they were."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator
from scipy.cluster.hierarchy import DisjointSet

from closecall.config import Settings
from closecall.dataset import Dataset
from closecall.errors import ConfigError, fault_list
from closecall.records import Query
from closecall.text import near_duplicate_groups, normalise


class SplitConfig(Settings):
    """How judged queries are divided. A dataset that brings its own splits keeps them."""

    held_out: float = Field(0.2, gt=0, lt=1, description="share of the queries in test, which only eval reads")
    dev: float = Field(0.1, gt=0, lt=1, description="share in dev, on which the best checkpoint is chosen")
    seed: int = Field(0, description="another seed is another split")
    stratify_by: str | None = Field(None, description="query column whose values keep their shares in each part")
    group_by: str | None = Field(None, description="query column whose values never straddle two parts")
    near_duplicate: float = Field(
        0.9, gt=0, le=1, description="queries whose word sets have at least this Jaccard overlap stay together"
    )
    on_leak: Literal["report", "drop"] = Field(
        "report",
        description="`drop` removes train queries that leak from dev or test, and dev queries that leak from test",
    )

    @model_validator(mode="after")
    def _room_for_train(self) -> SplitConfig:
        if self.held_out + self.dev >= 1:
            raise ValueError(f"held_out {self.held_out} + dev {self.dev} leave nothing to train on; make them smaller")
        return self


@dataclass(frozen=True)
class Assignment:
    """Which part each query belongs to, its group, and what was set aside by reason."""

    part: Mapping[str, str]
    group: Mapping[str, str]
    set_aside: Mapping[str, Sequence[str]]


def assign(dataset: Dataset, config: SplitConfig, prior: Mapping[str, str]) -> Assignment:
    """Parts by hash of the group within each stratum; queries in `prior` keep their part.

    Groups are connected by the `group_by` column, by the same normalised text and by near-duplicate text. Within a
    stratum the groups are taken in the order of their hash until test, then dev, has its share of queries; what is
    left over from rounding goes to the next stratum, so that many small strata still add up.
    """
    _check_columns(dataset, config)
    queries, no_positives = _with_positives(dataset)
    members, group_of = _groups(queries, config)
    part: dict[str, str] = {}
    set_aside: dict[str, list[str]] = {"no_positives": no_positives}
    strata: dict[str, list[str]] = defaultdict(list)
    for group, ids in members.items():
        found = {prior[query_id] for query_id in ids if query_id in prior}
        if not found:
            strata[_stratum(dataset, ids, config.stratify_by)].append(group)
            continue
        for query_id in ids:
            if query_id in prior or len(found) == 1:
                part[query_id] = prior.get(query_id) or next(iter(found))
            else:
                set_aside.setdefault("bridges_two_parts", []).append(query_id)
    _fill(part, dataset, strata, members, config)
    return Assignment(part, group_of, set_aside)


def assign_own(dataset: Dataset, config: SplitConfig, prior: Mapping[str, str]) -> Assignment:
    """The dataset's own parts; a missing dev is taken from train by the same rule as `assign`."""
    _check_columns(dataset, config)
    queries, no_positives = _with_positives(dataset)
    _, group_of = _groups(queries, config)
    own = dataset.own_splits or {}
    part = {query_id: name for name, ids in own.items() for query_id in ids if query_id in group_of}
    if "dev" not in own:
        part |= _carved_dev(part, group_of, config, prior)
    return Assignment(part, group_of, {"no_positives": no_positives})


def _carved_dev(
    part: Mapping[str, str], group_of: Mapping[str, str], config: SplitConfig, prior: Mapping[str, str]
) -> dict[str, str]:
    """The train queries that become dev, in whole groups; queries in `prior` keep their part."""
    members: dict[str, list[str]] = defaultdict(list)
    for query_id in sorted(part):
        if part[query_id] == "train":
            members[group_of[query_id]].append(query_id)
    wanted = config.dev / (1 - config.held_out) * sum(map(len, members.values()))
    dev = [query_id for query_id in part if part[query_id] == "train" and prior.get(query_id) == "dev"]
    for group in sorted(members, key=lambda group: _hash(config.seed, group)):
        new = [query_id for query_id in members[group] if query_id not in prior]
        found = {prior[query_id] for query_id in members[group] if query_id in prior}
        if found == {"dev"} or (not found and len(dev) + len(new) / 2 <= wanted):
            dev += new
    return dict.fromkeys(dev, "dev")


def _fill(
    part: dict[str, str],
    dataset: Dataset,
    strata: Mapping[str, list[str]],
    members: Mapping[str, list[str]],
    config: SplitConfig,
) -> None:
    """Assign the groups without a part. `part` is the caller's own, filled here."""
    placed: dict[str, Counter[str]] = defaultdict(Counter)
    for query_id, name in part.items():
        placed[_stratum(dataset, [query_id], config.stratify_by)][name] += 1
    sizes = [len(members[group]) for groups in strata.values() for group in groups]
    most = max(1.0, sum(sizes) / max(1, len(sizes)) / 2)  # half an average group: less, and none would ever be due
    carry = {"test": 0.0, "dev": 0.0}
    for stratum in sorted(strata):
        groups = sorted(strata[stratum], key=lambda group: _hash(config.seed, group))
        size = sum(placed[stratum].values()) + sum(len(members[group]) for group in groups)
        for name, share in (("test", config.held_out), ("dev", config.dev)):
            wanted = share * size + carry[name] - placed[stratum][name]
            while groups and wanted >= len(members[groups[0]]) / 2:
                group = groups.pop(0)
                part |= dict.fromkeys(members[group], name)
                wanted -= len(members[group])
            carry[name] = max(min(wanted, most), -most)
        for group in groups:
            part |= dict.fromkeys(members[group], "train")


def _check_columns(dataset: Dataset, config: SplitConfig) -> None:
    """ConfigError for a column that no query has: a misspelt `group_by` would let every group straddle."""
    known = sorted({name for query in dataset.queries for name in query.metadata})
    named = (("group_by", config.group_by), ("stratify_by", config.stratify_by))
    advice = f"the columns are {', '.join(known)}" if known else "the queries have no columns"
    faults = [
        f"split.{key}: no query has a column {column!r}; {advice}"
        for key, column in named
        if column and column not in known
    ]
    if faults:
        raise ConfigError(fault_list("split", faults))


def _groups(queries: Sequence[Query], config: SplitConfig) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Members by group and group by query id. A group is named by its column value, else by its smallest text."""
    connected = DisjointSet(range(len(queries)))
    for left, right in _links(queries, config):
        connected.merge(left, right)
    members: dict[str, list[str]] = {}
    group_of: dict[str, str] = {}
    for indices in sorted(map(sorted, connected.subsets())):
        keys = [_group_key(queries[index], config.group_by) for index in indices]
        name = min(keys)
        members[name] = [queries[index].query_id for index in indices]
        group_of |= dict.fromkeys(members[name], name)
    return members, group_of


def _links(queries: Sequence[Query], config: SplitConfig) -> Iterable[tuple[int, int]]:
    first: dict[str, int] = {}
    new_texts: list[int] = []
    for index, query in enumerate(queries):
        text = f"text:{normalise(query.text)}"
        if text not in first:
            new_texts.append(index)
        for key in {_group_key(query, config.group_by), text}:
            if key in first:
                yield first[key], index
            first.setdefault(key, index)
    for left, right in near_duplicate_groups([queries[index].text for index in new_texts], config.near_duplicate):
        yield new_texts[left], new_texts[right]


def _group_key(query: Query, column: str | None) -> str:
    value = query.metadata.get(column) if column else None
    return f"{column}:{value}" if value is not None else f"text:{normalise(query.text)}"


def _stratum(dataset: Dataset, query_ids: Sequence[str], column: str | None) -> str:
    if column is None:
        return ""
    values = Counter(str(dataset.query(query_id).metadata.get(column)) for query_id in query_ids)
    return min(values, key=lambda value: (-values[value], value))


def _hash(seed: int, group: str) -> str:
    return hashlib.sha256(f"{seed}\n{group}".encode()).hexdigest()


def _with_positives(dataset: Dataset) -> tuple[list[Query], list[str]]:
    """The queries that have a positive, and the ids of the others."""
    queries: list[Query] = []
    without: list[Query] = []
    for query in dataset.queries:
        (queries if dataset.qrels.positives(query.query_id) else without).append(query)
    return queries, [query.query_id for query in without]
