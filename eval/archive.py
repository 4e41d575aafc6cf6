"""Failures kept across evaluations: which are new, which still fail, which were fixed, and which came back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from closecall.errors import DataError

Status = Literal["new", "still_failing", "fixed", "regressed"]
ORDER: tuple[Status, ...] = ("regressed", "new", "still_failing", "fixed")
"""A query once fixed and failing again comes first."""


@dataclass(frozen=True)
class Entry:
    """A query that failed in some evaluation."""

    query_id: str
    query: str
    status: Status
    """After the last evaluation that asked it."""
    history: tuple[tuple[str, Status], ...]
    """(evaluation, status after it), the oldest first."""


def merged(before: Sequence[Entry], failing: Mapping[str, str], asked: Collection[str], evaluation: str) -> list[Entry]:
    """The archive after an evaluation; `failing` holds the text of each query that failed in it.

    A query that was not asked keeps its status. The same evaluation merged again changes nothing.
    """
    known = {entry.query_id: entry for entry in before}
    found = []
    for query_id in [*known, *(query_id for query_id in failing if query_id not in known)]:
        entry = known.get(query_id)
        if entry is not None and (query_id not in asked or any(name == evaluation for name, _ in entry.history)):
            found.append(entry)
            continue
        status = _status(entry, query_id in failing)
        history = (*(entry.history if entry else ()), (evaluation, status))
        found.append(Entry(query_id, failing.get(query_id, entry.query if entry else ""), status, history))
    return sorted(found, key=lambda entry: (ORDER.index(entry.status), entry.query_id))


def _status(entry: Entry | None, failing: bool) -> Status:
    if entry is None:
        return "new"
    if not failing:
        return "fixed"
    return "regressed" if entry.status == "fixed" else "still_failing"


def read_archive(path: Path) -> list[Entry]:
    """The entries of a `failures.jsonl`, none where there is no file; DataError with the line that is wrong."""
    if not path.exists():
        return []
    found: dict[str, Entry] = {}
    for number, line in enumerate(json_lines(path), start=1):
        try:
            content = json.loads(line)
            history = tuple((str(name), status) for name, status in content["history"])
            entry = Entry(str(content["query_id"]), str(content["query"]), content["status"], history)
            if not {entry.status, *(status for _, status in history)} <= set(ORDER):
                raise ValueError(f"a status is none of {', '.join(ORDER)}")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} line {number}: no entry of the failure archive ({error}); mend or drop the line"
            ) from None
        if entry.query_id in found:
            raise DataError(f"{path} line {number}: query {entry.query_id!r} again; keep one line")
        found[entry.query_id] = entry
    return list(found.values())


def json_lines(path: Path) -> list[str]:
    """The lines of a JSONL file; a line separator of Unicode inside a text ends none."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_archive(path: Path, entries: Sequence[Entry]) -> None:
    """Writes the entries, one JSON object a line, all of them or, when killed, none."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(json.dumps(asdict(e), ensure_ascii=False) + "\n" for e in entries), encoding="utf-8")
    partial.replace(path)


def counts(entries: Sequence[Entry], asked: Collection[str]) -> dict[str, int]:
    """How many of the queries that were asked have each status."""
    return {status: sum(e.status == status for e in entries if e.query_id in asked) for status in ORDER}
