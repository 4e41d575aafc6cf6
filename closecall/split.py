"""train / dev / test: grouped, stratified, stable, written once and frozen.

The artifact `split/` holds `{train,dev,test}/queries.jsonl` and `.../qrels.tsv`, so that a stage opens the part it
may see and no other. `leaks.json` says what of test can be found in train or dev.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closecall.assign import Assignment, SplitConfig, assign, assign_own
from closecall.dataset import Dataset
from closecall.errors import ArtifactError, DataError
from closecall.leaks import Leaks, drop_leaking, find_leaks
from closecall.manifest import Artifact, Draft, up_to_date, writing
from closecall.progress import say
from closecall.readers import open_lines, some
from closecall.records import SPLITS, Qrels, Query
from closecall.trec import read_qrels, write_qrels


@dataclass(frozen=True)
class Part:
    """The judged queries of one part, in file order."""

    queries: tuple[Query, ...]
    qrels: Qrels
    sha256: str
    """Hash of the two files it was read from."""

    def text_of(self) -> dict[str, str]:
        """Query text by id."""
        return {query.query_id: query.text for query in self.queries}


def make_split(dataset: Dataset, config: SplitConfig, folder: Path, renewed: bool = False) -> Artifact:
    """The split artifact of a dataset: the one on disk if it still holds, else written.

    A dataset that grew extends its frozen split: old queries stay where they were. Other settings than those it was
    made with are an ArtifactError, since numbers on another test split cannot be compared. So are test queries that
    were removed, reworded or judged anew, unless the set is `renewed`: frozen as a new version.
    """
    inputs = {"dataset": dataset.sha256, "corpus": dataset.corpus_sha256}
    settings = _settings(dataset, config)
    frozen = up_to_date(folder, "split", inputs, settings)
    if frozen is not None:
        say(f"split: unchanged, {folder} is used again")
        return frozen
    prior = _prior(folder, settings)
    assignment, leaks = _plan(dataset, config, folder, prior, renewed)
    with writing(folder, "split", inputs=inputs, config=settings, seed=config.seed) as draft:
        _write_parts(draft, dataset, assignment)
        draft.write_json("leaks.json", leaks.summary())
        draft.write_json("set_aside.json", dict(assignment.set_aside))
        draft.counts |= _counts(assignment, dataset, prior) | {"leaks": leaks.counts}
    return Artifact.open(folder, "split")


def summary(artifact: Artifact) -> str:
    """One line: the sizes of the parts, what is set aside, and what leaks."""
    counts = artifact.manifest["counts"]
    aside = "".join(f"; {count:,} set aside: {reason}" for reason, count in counts["set_aside"].items() if count)
    leaks = "".join(f"; LEAK {kind}: {count:,} queries" for kind, count in counts["leaks"].items())
    own = ", the dataset's own" if counts["own_splits"] else ""
    sizes = ", ".join(f"{name} {counts[name]:,}" for name in ("train", "dev", "test"))
    moved = "".join(f"; {counts[what]:,} {what} since" for what in ("added", "removed") if counts[what])
    return f"split: {sizes} queries in {counts['groups']:,} groups{own}{moved}{aside}{leaks}"


def plan_split(dataset: Dataset, config: SplitConfig, folder: Path) -> tuple[Assignment, Leaks]:
    """The parts that `make_split` would write, and their leaks; nothing is written."""
    return _plan(dataset, config, folder, _prior(folder, _settings(dataset, config)))


def _plan(
    dataset: Dataset, config: SplitConfig, folder: Path, prior: Mapping[str, str], renewed: bool = False
) -> tuple[Assignment, Leaks]:
    """The parts and their leaks, where `prior` is the part of each query in the frozen split."""
    assignment = (assign_own if dataset.own_splits else assign)(dataset, config, prior)
    _check_unmoved(assignment, prior, folder)
    if not renewed:
        _check_test_kept(dataset, folder)
    leaks = find_leaks(dataset, assignment.part, config.near_duplicate, config.group_by)
    if config.on_leak == "drop":
        assignment = drop_leaking(assignment, leaks)
        leaks = find_leaks(dataset, assignment.part, config.near_duplicate, config.group_by)
    _check_sizes(assignment)
    return assignment, leaks


def _settings(dataset: Dataset, config: SplitConfig) -> dict[str, Any]:
    """What the split was made with: changing any of it makes another split."""
    return config.resolved() | {"positive_from": dataset.qrels.positive_from}


def read_part(artifact: Artifact, name: str) -> Part:
    """The queries and judgments of one part; no file of another part is opened."""
    rows = [json.loads(line) for _, line in open_lines(artifact.file(f"{name}/queries.jsonl"))]
    queries = tuple(Query(row.pop("_id"), row.pop("text"), row) for row in rows)
    judgments, faults = read_qrels(artifact.file(f"{name}/qrels.tsv"))
    if faults:
        raise DataError("\n".join(faults))
    qrels = Qrels((row.judgment for row in judgments), artifact.manifest["config"]["positive_from"])
    return Part(queries, qrels, artifact.content(f"{name}/"))


def _prior(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The part of each query in the frozen split on disk; ArtifactError when it was made with other settings."""
    frozen = Artifact.find(folder, "split")
    if frozen is None:
        return {}
    before = frozen.manifest["config"]
    changed = [f"{key} {before.get(key)!r} -> {value!r}" for key, value in settings.items() if before.get(key) != value]
    if changed:
        raise ArtifactError(
            f"{folder}: the split is frozen, and the config now asks for another one ({'; '.join(changed)}). "
            "Put the settings back, or give this experiment an `output` of its own; "
            f"delete {folder} only if no verdict was given on its test queries"
        )
    return {query.query_id: name for name in SPLITS for query in read_part(frozen, name).queries}


def _check_unmoved(assignment: Assignment, prior: Mapping[str, str], folder: Path) -> None:
    """ArtifactError when a dataset's own split puts queries elsewhere than the frozen split has them."""
    moved = [
        f"{query_id!r} {prior[query_id]} -> {name}"
        for query_id, name in assignment.part.items()
        if prior.get(query_id, name) != name
    ]
    if moved:
        raise ArtifactError(
            f"{folder}: the split is frozen, and the dataset's own split moves {len(moved):,} of its queries "
            f"({some(moved)}). Put its files back, or give this experiment an `output` of its own"
        )


def _check_test_kept(dataset: Dataset, folder: Path) -> None:
    """ArtifactError when a query of the frozen test part was removed, reworded or judged anew.

    Verdicts on the one and on the other could not be compared. New queries are welcome.
    """
    frozen = Artifact.find(folder, "split")
    if frozen is None:
        return
    test, now = read_part(frozen, "test"), {query.query_id: query.text for query in dataset.queries}
    changed = [
        query.query_id
        for query in test.queries
        if now.get(query.query_id) != query.text
        or dict(dataset.qrels.grades(query.query_id)) != dict(test.qrels.grades(query.query_id))
    ]
    if changed:
        raise ArtifactError(
            f"{folder}: the test split is frozen, and {len(changed):,} of its {len(test.queries):,} queries were "
            f"removed, reworded or judged anew ({some(map(repr, changed))}). Put them back, or give this experiment an "
            "`output` of its own: verdicts on two test sets cannot be compared. A frozen set becomes a new version "
            "with `closecall freeze CONFIG --version NAME --note WHY`"
        )


def _check_sizes(assignment: Assignment) -> None:
    sizes = Counter(assignment.part.values())
    empty = [name for name in SPLITS if not sizes[name]]
    if empty:
        groups = len({assignment.group[query_id] for query_id in assignment.part})
        raise DataError(
            f"the split leaves {' and '.join(empty)} empty: {len(assignment.part)} queries with positives in {groups} "
            f"groups became {', '.join(f'{name} {sizes[name]}' for name in SPLITS)}; judge more queries, or change "
            "split.held_out, split.dev or split.group_by"
        )


def _write_parts(draft: Draft, dataset: Dataset, assignment: Assignment) -> None:
    for name in SPLITS:
        ids = [query.query_id for query in dataset.queries if assignment.part.get(query.query_id) == name]
        with draft.path(f"{name}/queries.jsonl").open("w", encoding="utf-8", newline="\n") as handle:
            for query_id in ids:
                query = dataset.query(query_id)
                ours = {"_id": query_id, "text": query.text}
                row = {**ours, **query.metadata, **ours, "_group": assignment.group[query_id]}
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")
        write_qrels(draft.path(f"{name}/qrels.tsv"), dataset.qrels.only(ids).judgments())


def _counts(assignment: Assignment, dataset: Dataset, prior: Mapping[str, str]) -> dict[str, Any]:
    sizes = Counter(assignment.part.values())
    return {
        **{name: sizes[name] for name in SPLITS},
        "groups": len(set(assignment.group.values())),
        "set_aside": {reason: len(ids) for reason, ids in assignment.set_aside.items()},
        "own_splits": dataset.own_splits is not None,
        "added": len(assignment.part.keys() - prior.keys()) if prior else 0,
        "removed": len(prior.keys() - assignment.part.keys()),
    }
