"""Failures kept across evaluations: which are new, which still fail, which were fixed, and which came back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from closecall.errors import DataError

Status = Literal["new", "still_failing", "fixed", "regressed"]
ORDER: tuple[Status, ...] = ("regressed", "new", "still_failing", "fixed")
"""A query once fixed and failing again comes first."""
SCHEMA = 1


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

    A query that was not asked keeps its status. An evaluation merged again, even an older one, changes nothing.
    """
    if any(name == evaluation for entry in before for name, _ in entry.history):
        return in_order(before)
    known = {entry.query_id: entry for entry in before}
    found = []
    for query_id in [*known, *(query_id for query_id in failing if query_id not in known)]:
        entry = known.get(query_id)
        if entry is not None and query_id not in asked:
            found.append(entry)
            continue
        status = _status(entry, query_id in failing)
        history = (*(entry.history if entry else ()), (evaluation, status))
        found.append(Entry(query_id, failing.get(query_id, entry.query if entry else ""), status, history))
    return in_order(found)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """The entries by status, what came back first, then by query id."""
    return sorted(entries, key=lambda entry: (ORDER.index(entry.status), entry.query_id))


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
        if not line:
            continue
        try:
            entry = _entry(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path} line {number}: no entry of the failure archive ({error}); mend or drop the line"
            ) from None
        if entry.query_id in found:
            raise DataError(f"{path} line {number}: query {entry.query_id!r} again; keep one line")
        found[entry.query_id] = entry
    return list(found.values())


def json_lines(path: Path) -> list[bytes]:
    """The lines of a JSONL file, empty ones too; a line separator of Unicode inside a text ends none."""
    return path.read_bytes().splitlines()


def _entry(content: Mapping[str, Any]) -> Entry:
    """The entry of a line; ValueError, KeyError or TypeError when it is none."""
    if content.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema {content['schema']!r}, and this closecall reads {SCHEMA}")
    history = tuple((str(name), status) for name, status in content["history"])
    if not {content["status"], *(status for _, status in history)} <= set(ORDER):
        raise ValueError(f"a status is none of {', '.join(ORDER)}")
    query_id, query = str(content["query_id"]), str(content["query"])
    (query_id + query).encode("utf-8")  # half a surrogate pair could not be written again
    return Entry(query_id, query, content["status"], history)


def write_archive(path: Path, entries: Sequence[Entry]) -> None:
    """Writes the entries, one JSON object a line, all of them or, when killed, none."""
    partial = path.with_name(f".{path.name}.partial")
    lines = (json.dumps({"schema": SCHEMA} | asdict(entry), ensure_ascii=False) + "\n" for entry in entries)
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(path)


def counts(entries: Sequence[Entry], asked: Collection[str]) -> dict[str, int]:
    """How many of the queries that were asked have each status."""
    return {status: sum(e.status == status for e in entries if e.query_id in asked) for status in ORDER}
