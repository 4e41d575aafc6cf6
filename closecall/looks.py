"""How often a frozen test set was looked at: an append-only log, and when so many looks have worn it.

Each verdict is a draw: with k models that are no better than the incumbent, the chance that an interval calls at least
one of them better is 1 - (1 - (1 - confidence) / 2)^k. Where the next model is chosen by what the test set said of the
last one it is larger still (Dwork et al. 2015, "The reusable holdout", Science 349; Blum and Hardt 2015, "The Ladder").
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closecall.errors import ArtifactError
from closecall.freeze import Lock
from closecall.quality.finding import Finding, finding

WORN = 0.2
"""A test set is worn when a model that is no better would be called so with this chance: from 9 verdicts on at 95 %."""


@dataclass(frozen=True)
class Frozen:
    """A locked set and its log, as evaluation needs them."""

    lock: Lock
    log: Path

    def verdicts(self, key: str) -> int:
        """Verdicts on these test queries, with the one of this key counted in."""
        known = verdicts_on(read_looks(self.log), self.lock.named()["test"])
        return len({one["key"] for one in known} | {key})

    def note_verdict(self, key: str, content: Mapping[str, Any]) -> None:
        """Log a verdict, given by the content of its `verdict.json`."""
        add_look(
            self.log,
            {"kind": "verdict", "key": key, **self.lock.named(), "outcome": content["outcome"]}
            | {"what": content["sentence"]},
        )


def looks_path(lock: Path) -> Path:
    """The log beside a lock."""
    return lock.with_name(f"{lock.stem.removesuffix('-frozen')}-looks.jsonl")


def read_looks(path: Path) -> list[dict[str, Any]]:
    """All entries, oldest first; ArtifactError names a line that is none. A last line that was cut off is left out."""
    if not path.exists():
        return []
    found, lines = [], path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or "test" not in entry or "kind" not in entry:
                raise ValueError("no entry of the log")
            found.append(entry)
        except ValueError as error:
            if number == len(lines):  # a process was killed while it wrote
                continue
            raise ArtifactError(f"{path} line {number}: {error}; restore the log from version control") from None
    return found


def add_look(path: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry, on disk when this returns. The same `kind`, `test` and `key` is added once."""
    known = read_looks(path)
    if any(all(one.get(name) == entry.get(name) for name in ("kind", "test", "key")) for one in known):
        return
    line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **entry}, ensure_ascii=False)
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)  # a process was killed while it wrote
    with path.open("ab") as handle:
        handle.write(line.encode("utf-8") + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def verdicts_on(looks: Sequence[Mapping[str, Any]], test: str) -> list[Mapping[str, Any]]:
    """The verdicts given on the test queries with this hash."""
    return [one for one in looks if one["kind"] == "verdict" and one["test"] == test]


def false_gain_chance(verdicts: int, confidence: float) -> float:
    """The chance that at least one of so many models without a gain is called better, in [0, 1]."""
    return float(1 - (1 - (1 - confidence) / 2) ** verdicts)


def wear(verdicts: int, confidence: float) -> Finding | None:
    """An alarm for a worn test set; a note from the second verdict on."""
    if verdicts < 2:
        return None
    chance = false_gain_chance(verdicts, confidence)
    worn = chance >= WORN
    return finding(
        "worn" if worn else "looks",
        worn,
        (
            f"this is verdict number {verdicts} on the same test queries",
            f"of so many models without any gain one or more would be called better with a chance of {chance:.0%}, "
            "more where a verdict led to the next model",
            "judge new queries and freeze them as a new version before the next decision; choose among models on dev"
            if worn
            else "choose among models on dev, and ask the test set last",
        ),
    )
