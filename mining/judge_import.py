"""Marks into judgments: checked against corpus and training queries, kept in a qrels file with their provenance."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closecall.errors import DataError, fault_list
from closecall.manifest import Artifact, sha256_file
from closecall.readers import read_jsonl
from closecall.records import Document, Judgment
from closecall.references import likely_reason
from closecall.reviewed import read_reviewed
from closecall.split import Part
from closecall.trec import write_qrels
from mining.marks import MARKS, Fault, Mark, Marked, Pair, read_marks


@dataclass(frozen=True)
class Review:
    """What was imported so far."""

    judgments: Mapping[Pair, int] = field(default_factory=dict)
    """Grade by pair, as the reviewed file has them."""
    marks: Mapping[Pair, str] = field(default_factory=dict)
    """The last mark of each pair in the provenance, `unsure` too."""
    judged: frozenset[Pair] = frozenset()
    """Pairs that a review once gave a grade: what the split says of them may be that."""


@dataclass(frozen=True)
class Imported:
    """Where the marks of a sheet went, and how many of them."""

    reviewed: Path
    provenance: Path
    marks: Mapping[str, int]
    """Marks of the sheet by word."""
    unmarked: int
    new: int
    replaced: int
    """Pairs that had another mark before."""
    unchanged: int
    judged_before: int
    """Marks that say what the dataset's own judgments say already: they stand in the provenance alone."""

    @property
    def sentence(self) -> str:
        """The counts for a person."""
        marks = ", ".join(f"{count:,} {word}" for word, count in self.marks.items())
        judged = f"; {self.judged_before:,} say what the dataset says already" if self.judged_before else ""
        return (
            f"{marks}: {self.new:,} new, {self.replaced:,} replaced, {self.unchanged:,} unchanged{judged}; "
            f"{self.unmarked:,} rows without a mark"
        )


def provenance_file(reviewed: Path) -> Path:
    """The file beside the reviewed one that says where its judgments come from."""
    if reviewed.suffix in (".gz", ".jsonl"):
        raise DataError(f"{reviewed}: judgments of review are written as plain TSV; name the file reviewed.tsv")
    return reviewed.with_suffix(".jsonl")


def read_review(reviewed: Path | None) -> Review:
    """What was imported so far; nothing when there is no such file. Raises DataError with all faults."""
    if reviewed is None:
        return Review()
    entries, faults = _entries(provenance_file(reviewed))
    judgments, more = _judgments(reviewed)
    if judgments and not entries:
        what = f"holds judgments, but {provenance_file(reviewed).name} beside it says of none where it comes from"
        more.append(f"{reviewed}: {what}; restore that, or set data.reviewed to a file of its own")
    if faults or more:
        raise DataError(fault_list(str(reviewed), faults + more))
    marks = {pair: str(entry["mark"]) for pair, entry in entries}
    graded = frozenset(pair for pair, entry in entries if entry.get("grade") is not None)
    return Review(judgments, marks, graded | judgments.keys())


def _entries(provenance: Path) -> tuple[list[tuple[Pair, dict[str, object]]], list[str]]:
    """The lines of provenance with their pairs, in the order of import, and the faults."""
    items, faults = read_jsonl(provenance) if provenance.exists() else ([], [])
    entries = []
    for line, entry in items:
        query_id, doc_id = entry.get("query_id"), entry.get("doc_id")
        if entry.get("mark") in MARKS and isinstance(query_id, str) and isinstance(doc_id, str):
            entries.append(((query_id, doc_id), entry))
        else:
            faults.append(f"{provenance} line {line}: no query_id, doc_id and mark as an import writes; restore it")
    return entries, faults


def _judgments(reviewed: Path) -> tuple[dict[Pair, int], list[str]]:
    """The grades of the reviewed file, none when there is no file, and the faults."""
    if not reviewed.exists() and not reviewed.with_name(f"{reviewed.name}.gz").exists():
        return {}, []
    file, faults = read_reviewed(reviewed)
    if file.path != reviewed:
        faults.append(f"{file.path}: marks cannot be added to a gzip file; unpack it to {reviewed.name}")
    return {row.judgment[:2]: row.judgment.relevance for row in file.rows}, faults


SAMPLE = 100
"""So many unknown ids are compared with the known ones, to say what may have happened to them."""


def import_marks(
    path: Path, documents: Sequence[Document], train: Part, reviewed: Path, mined: Artifact | None = None
) -> Imported:
    """Takes the marks of a sheet over into the reviewed file and its provenance; all of them, or DataError and none.

    `train` is the only part of the split that is read; `mined` is what the sheet was probably made from.
    """
    sheet, before = read_marks(path), read_review(reviewed)
    texts = {document.doc_id: document.full_text for document in documents}
    known = {pair: grade for pair in sheet.marks if (grade := _own_grade(pair, train, before)) is not None}
    _refuse([*sheet.faults, *_unknown(path, sheet, train, texts), *_contradicted(path, sheet, known, train)], path)
    if not sheet.marks:
        raise DataError(f"{path}: holds no marks; write {', '.join(MARKS)} in its column `mark`")
    judgments = _updated(before.judgments, sheet, known, train.qrels.positive_from)
    fresh = [mark for pair, mark in sheet.marks.items() if before.marks.get(pair) != mark.mark]
    origin = _origin(path, mined, train, texts)
    entries = [origin(mark, None if mark.pair in known else judgments.get(mark.pair)) for mark in fresh]
    _write(reviewed, before, judgments, entries)
    replaced = sum(mark.pair in before.marks for mark in fresh)
    counts = Counter(mark.mark for mark in sheet.marks.values())
    return Imported(
        reviewed,
        provenance_file(reviewed),
        marks={word: counts[word] for word in MARKS},
        unmarked=sheet.unmarked,
        new=len(fresh) - replaced,
        replaced=replaced,
        unchanged=len(sheet.marks) - len(fresh),
        judged_before=sum(sheet.marks[pair].mark != "unsure" for pair in known),
    )


def _refuse(faults: Sequence[Fault], path: Path) -> None:
    """DataError that lists every fault, in the order of the lines."""
    if faults:
        title = f"{path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}, nothing was imported"
        raise DataError("\n".join([title, *(f"  - {fault.text}" for fault in sorted(faults))]))


def _own_grade(pair: Pair, train: Part, before: Review) -> int | None:
    """The grade that the dataset itself gives a pair: the split's, unless a review gave it."""
    return None if pair in before.judged else train.qrels.grades(pair[0]).get(pair[1])


def _unknown(path: Path, sheet: Marked, train: Part, texts: Collection[str]) -> Iterator[Fault]:
    """Faults of marks on what is no training query or no document."""
    ids = [query.query_id for query in train.queries]
    for column, known, what in (("query_id", ids, "a training query"), ("doc_id", texts, "in the corpus")):
        there = set(known)
        bad = [mark for mark in sheet.marks.values() if getattr(mark, column) not in there]
        reason = likely_reason([getattr(mark, column) for mark in bad[:SAMPLE]], known, (), False) if bad else None
        for mark in bad:
            text = f"{column} {getattr(mark, column)!r} is not {what}; {reason or 'drop the line'}"
            yield Fault(mark.line, f"{path} line {mark.line}: {text}")


def _contradicted(path: Path, sheet: Marked, known: Mapping[Pair, int], train: Part) -> Iterator[Fault]:
    """Faults of marks that say something else than the dataset's own judgments."""
    for pair, grade in known.items():
        mark, positive_from = sheet.marks[pair], train.qrels.positive_from
        agrees = {"relevant": grade >= positive_from, "not_relevant": grade == 0, "unsure": True}
        if not agrees[mark.mark]:
            what = f"query {pair[0]!r} and document {pair[1]!r} are marked {mark.mark}, but the dataset's own judgment"
            advice = f"has grade {grade} (positive from {positive_from}); mend the dataset, or drop the mark"
            yield Fault(mark.line, f"{path} line {mark.line}: {what} {advice}")


def _updated(
    before: Mapping[Pair, int], sheet: Marked, known: Mapping[Pair, int], positive_from: int
) -> dict[Pair, int]:
    """The judgments after the marks: `unsure` is none, and what the dataset says itself is not said again."""
    judgments = dict(before)
    for pair, mark in sheet.marks.items():
        if mark.mark == "unsure":
            judgments.pop(pair, None)
        elif pair not in known:
            judgments[pair] = positive_from if mark.mark == "relevant" else 0
    return judgments


def _origin(
    path: Path, mined: Artifact | None, train: Part, texts: Mapping[str, str]
) -> Callable[[Mark, int | None], dict[str, Any]]:
    """Makes the line of provenance of a mark with its grade."""
    queries, sha256, now = train.text_of(), sha256_file(path), datetime.now(UTC).isoformat(timespec="seconds")

    def entry(mark: Mark, grade: int | None) -> dict[str, Any]:
        key = mark.cells.get("mined") or None
        model = mined.manifest["inputs"]["model"] if mined is not None and mined.key == key else None
        return {
            "query_id": mark.query_id,
            "doc_id": mark.doc_id,
            "mark": mark.mark,
            "grade": grade,
            "query": queries[mark.query_id],
            "document_sha256": hashlib.sha256(texts[mark.doc_id].encode("utf-8")).hexdigest(),
            "score": _number(mark.cells.get("score")),
            "positive_score": _number(mark.cells.get("positive_score")),
            "outcome": mark.cells.get("outcome") or None,
            "why": mark.cells.get("why") or None,
            "sheet": path.name,
            "sheet_sha256": sha256,
            "line": mark.line,
            "mined": key,
            "model": model,
            "imported_at": now,
        }

    return entry


def _number(cell: str | None) -> float | None:
    """The number in a cell, also with a decimal comma; None if there is none."""
    try:
        return float((cell or "").replace(",", "."))
    except ValueError:
        return None


def _write(reviewed: Path, before: Review, judgments: Mapping[Pair, int], entries: Sequence[Mapping[str, Any]]) -> None:
    """Write what changed, the provenance first: a judgment without one would be refused the next time."""
    provenance = provenance_file(reviewed)
    reviewed.parent.mkdir(parents=True, exist_ok=True)
    if entries:
        old = provenance.read_text(encoding="utf-8") if provenance.exists() else ""
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
        replace(provenance, (old + ("\n" if old and not old.endswith("\n") else "") + "".join(lines)).encode("utf-8"))
    if dict(judgments) != dict(before.judgments) or not reviewed.exists():
        partial = reviewed.with_name(f".{reviewed.name}.partial")
        write_qrels(partial, (Judgment(*pair, grade) for pair, grade in judgments.items()))
        partial.replace(reviewed)


def replace(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it into it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
