"""Two verdicts on the same test queries, contender against contender; on others the comparison is refused."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from closecall.errors import ArtifactError
from closecall.manifest import Artifact
from eval.artifact import PER_QUERY, VERDICT, read_report
from eval.rules import points
from eval.statistics import PairedResult, paired


@dataclass(frozen=True)
class Against:
    """The contender of one verdict against that of another, paired by query."""

    measure: str
    names: tuple[str, str]
    result: PairedResult

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON types."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """For people."""
        found = self.result
        return (
            f"{self.measure} {points(found.base)} ({self.names[0]}) -> {points(found.tuned)} ({self.names[1]}), "
            f"{points(found.delta, True)} points [{points(found.low, True)}, {points(found.high, True)}] on "
            f"{found.n:,} test queries"
        )


def against(one: Path, other: Path) -> Against:
    """The first verdict's contender, then the second's. ArtifactError where the test sets are not the same."""
    first, second = (_Verdict.read(folder) for folder in (one, other))
    _check_same(first, second)
    measure = first.content["measure"]
    before, after = (found.values(measure) for found in (first, second))
    if before.keys() != after.keys():
        raise ArtifactError(f"{other}: other queries were scored than in {one}; only verdicts on the same are compared")
    ids = list(before)
    result = paired(
        np.asarray([before[query_id][1] for query_id in ids]),
        np.asarray([after[query_id][1] for query_id in ids]),
        [before[query_id][0] for query_id in ids],
        confidence=first.content["settings"]["confidence"],
        resamples=first.content["settings"]["resamples"],
        rng=np.random.default_rng(first.content["settings"]["seed"]),
    )
    return Against(measure, (first.name, second.name), result)


@dataclass(frozen=True)
class _Verdict:
    folder: Path
    content: dict[str, Any]
    test: str
    """The hash of the test queries; empty for a report of `compare`."""

    @classmethod
    def read(cls, folder: Path) -> _Verdict:
        if (report := read_report(folder)) is not None:
            return cls(folder, report, "")
        artifact = Artifact.open(folder, "eval")
        artifact.file(PER_QUERY)
        return cls(folder, artifact.read_json(VERDICT), artifact.manifest["inputs"]["test"])

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.content['contender']}"

    def version(self) -> str:
        return str(self.content.get("version", {}).get("version", ""))

    def values(self, measure: str) -> dict[str, tuple[str, float]]:
        """Query -> its group, and the value of the contender."""
        csv.field_size_limit(2**31 - 1)
        column = f"{self.content['contender']} {measure}"
        with (self.folder / PER_QUERY).open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        if rows and column not in rows[0]:
            raise ArtifactError(f"{self.folder / PER_QUERY}: {measure} was not measured there; evaluate with it again")
        return {row["query_id"]: (row["group"], float(row[column])) for row in rows}


def _check_same(first: _Verdict, second: _Verdict) -> None:
    if first.version() != second.version():
        versions = " and ".join(f"version {found.version() or 'none'} ({found.folder})" for found in (first, second))
        raise ArtifactError(
            f"these verdicts are on different versions of the test set, {versions}: other queries or judgments "
            "give other values for the same model. Evaluate both models on one version"
        )
    if first.test != second.test:
        raise ArtifactError(
            f"{second.folder}: was given on other test queries or judgments than {first.folder}: other queries give "
            "other values for the same model. Evaluate both models on one frozen set (`closecall freeze`)"
        )
