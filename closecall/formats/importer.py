"""`closecall import`: any judged set into the native layout, checked as a whole, with a file that says its origin.

Rows are streamed into a folder beside the wanted one, which takes its name when everything was sound. A fault names the
file and line of the source, and nothing is left behind.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from closecall import __version__
from closecall.dataset import DataConfig, load_dataset, load_documents, load_queries
from closecall.errors import ConfigError, DataError, fault_list
from closecall.formats.chunks import RULES, move_judgments
from closecall.formats.parts import Graded, JudgedSet, Part, Record, text_id
from closecall.formats.source import Asked, read_source
from closecall.manifest import sha256_file
from closecall.readers import some
from closecall.records import SPLITS
from closecall.trec import read_qrels, read_run, write_run

PROVENANCE = "provenance.json"
CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels.tsv"
HEADER = "query-id\tcorpus-id\tscore\n"
MAX_FAULTS = 1000
"""An import that has met so many faults reads no further."""


@dataclass(frozen=True)
class Imported:
    """What an import wrote."""

    folder: Path
    counts: dict[str, int]
    """documents, queries, judgments."""
    provenance: dict[str, Any]

    def lines(self) -> list[str]:
        """What was taken for what, and what is odd, for people."""
        counted = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        columns = [f"columns of {name}: {shown}" for name, shown in self.provenance["columns"].items()]
        return [*columns, *(f"note: {note}" for note in self.provenance["notes"]), f"imported {counted}"]


@dataclass
class _Written:
    """A file of the native layout that is being written, and where each of its lines is from."""

    path: Path
    lines: array[int] = field(default_factory=lambda: array("q"))
    parts: list[tuple[int, Path]] = field(default_factory=list)
    """First line of each source file."""

    def place(self, line: int) -> str:
        """The file and line of the source that this line was made of."""
        number = line - 1
        source = next((path for first, path in reversed(self.parts) if first <= number), self.path)
        return f"{source} line {self.lines[number]}" if 0 <= number < len(self.lines) else f"{source} line {line}"


def import_set(asked: Asked, folder: Path, chunks: str | None = None) -> Imported:
    """The native layout in `folder`, which must not be there or be empty.

    `chunks` moves judgments between documents and chunks (`to-chunks`, `to-documents`; see `chunks`). DataError with
    all faults of the source, each with its place.
    """
    if chunks is not None and chunks not in RULES:
        raise ConfigError(f"--chunks {chunks}: expected {' or '.join(RULES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and holds something; name a new folder")
    source = read_source(asked)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        counts, notes = _write_all(source, work, asked, chunks)
        provenance = _provenance(source, asked, counts, [*source.notes, *notes], chunks)
        (work / PROVENANCE).write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return Imported(folder, counts, provenance)


def _write_all(source: JudgedSet, work: Path, asked: Asked, chunks: str | None) -> tuple[dict[str, int], list[str]]:
    faults: list[str] = []
    corpus = _write_records(source.documents, work / CORPUS, faults)
    queries = _write_records(source.queries, work / QUERIES, faults)
    known = _ids_by_text(work / QUERIES) if source.text_ids and asked.queries else {}
    judged, notes = _write_judgments(source.judgments, work, faults, known)
    if faults:
        raise DataError(fault_list(asked.source or str(work.parent), faults))
    if known:
        _only_asked(work, judged, set(known.values()))
    written = {str(one.path): one for one in (corpus, queries, *judged)}
    try:
        if chunks is not None:
            notes.append(move_judgments(work, chunks))
            written = {}
        notes += _check(work, source)
    except DataError as error:
        raise DataError(_of_source(str(error), written)) from None
    for path in source.runs:
        run = read_run(path)
        (work / "runs").mkdir(exist_ok=True)
        write_run(work / "runs" / f"{path.name.partition('.')[0]}.trec", run, path.name.partition(".")[0], list(run))
    lines = {name: _count(work / name) for name in (CORPUS, QUERIES)}
    judgments = sum(max(0, _count(one) - 1) for one in _qrels_files(work))
    return {"documents": lines[CORPUS], "queries": lines[QUERIES], "judgments": judgments}, notes


def _count(path: Path) -> int:
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def _qrels_files(work: Path) -> list[Path]:
    return [path for path in (work / QRELS, *(work / "qrels" / f"{split}.tsv" for split in SPLITS)) if path.exists()]


def _write_records(parts: Iterable[Part[Record]], path: Path, faults: list[str]) -> _Written:
    """The records as JSONL; one that says again what an earlier one said is written once."""
    written, seen = _Written(path), set[bytes]()
    if not (parts := list(parts)):
        return written
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for part in parts:
            written.parts.append((len(written.lines), part.path))
            for line, record in part.rows(faults):
                _write_record(out, written, seen, line, record, faults)
                if len(faults) >= MAX_FAULTS:
                    return written
    return written


def _write_record(
    out: TextIO, written: _Written, seen: set[bytes], line: int, record: Record, faults: list[str]
) -> None:
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        place = f"{written.parts[-1][1]} line {line}"
        faults.append(f"{place}: holds a value that JSON has no form for ({error}); write text, a number or a list")
        return
    if (key := hashlib.blake2b(text.encode(), digest_size=16).digest()) not in seen:
        seen.add(key)
        written.lines.append(line)
        out.write(text + "\n")


def _ids_by_text(path: Path) -> Mapping[str, str]:
    """Made-up id of a query's text -> the id that a file of queries gives it."""
    found: dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            made = text_id("q", record["text"])
            if record["_id"] != made:
                found.setdefault(made, record["_id"])
    return found


def _only_asked(work: Path, judged: Iterable[_Written], given: set[str]) -> None:
    """Drop queries that were made of texts and turned out to be given ones."""
    needed = given | {line.split("\t")[0] for one in judged for line in one.path.read_text("utf-8").splitlines()[1:]}
    path = work / QUERIES
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    kept = [
        line
        for line in lines
        if (known := json.loads(line))["_id"] in needed or text_id("q", known["text"]) != known["_id"]
    ]
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8", newline="\n")


def _write_judgments(
    parts: Iterable[Part[Graded]], work: Path, faults: list[str], known: Mapping[str, str]
) -> tuple[list[_Written], list[str]]:
    """Files of judgments by split where the source has train and test, else one file."""
    files: dict[str, tuple[_Written, TextIO]] = {}
    try:
        for part in parts:
            for written, _ in files.values():
                written.parts.append((len(written.lines) - 1, part.path))
            for line, (query_id, doc_id, grade, split) in part.rows(faults):
                if (name := _split(split)) is None:
                    faults.append(f"{part.path} line {line}: split {split!r}; expected train, dev or test")
                else:
                    _line_of(
                        files, work, name, part.path, line, f"{known.get(query_id, query_id)}\t{doc_id}\t{grade}\n"
                    )
                if len(faults) >= MAX_FAULTS:
                    break
    finally:
        for _, out in files.values():
            out.close()
    return _placed(work, {name: written for name, (written, _) in files.items()}, faults)


def _split(name: str) -> str | None:
    known = {"": "", "train": "train", "test": "test"} | dict.fromkeys(("dev", "val", "valid", "validation"), "dev")
    return known.get(name.strip().lower())


def _line_of(
    files: dict[str, tuple[_Written, TextIO]], work: Path, name: str, source: Path, line: int, text: str
) -> None:
    if name not in files:
        path = work / f"qrels.{name}.partial"
        files[name] = _Written(path), path.open("w", encoding="utf-8", newline="\n")
        files[name][0].lines.append(0)  # the header
        files[name][0].parts.append((0, source))
        files[name][1].write(HEADER)
    written, out = files[name]
    written.lines.append(line)
    out.write(text)


def _placed(work: Path, files: dict[str, _Written], faults: list[str]) -> tuple[list[_Written], list[str]]:
    """Give the files their names: qrels/{split}.tsv, or qrels.tsv for judgments that are not divided."""
    if len(files) > 1 and "" in files:
        faults.append("some judgments name a split and some do not; name it in all of them, or in none")
    if {"train", "test"} <= files.keys():
        (work / "qrels").mkdir()
        for name, written in files.items():
            if name:
                written.path = written.path.rename(work / "qrels" / f"{name}.tsv")
        return list(files.values()), []
    if not files:
        return [], []
    whole = _Written(work / QRELS)
    with open(whole.path, "w", encoding="utf-8", newline="\n") as out:
        out.write(HEADER)
        whole.lines.append(0)
        for written in files.values():
            whole.parts += [(first + len(whole.lines), path) for first, path in written.parts]
            whole.lines.extend(written.lines[1:])
            with open(written.path, encoding="utf-8", newline="\n") as part:
                next(part)
                shutil.copyfileobj(part, out)
            written.path.unlink()
    named = [name for name in files if name]
    note = f"judgments of {' and '.join(named)} alone are no split: they are one set, which closecall divides"
    return [whole], [note] if named else []


def _check(work: Path, source: JudgedSet) -> list[str]:
    """Everything that the loader checks; what a set lacks is a note."""
    if source.documents and source.queries and source.judgments:
        return list(load_dataset(DataConfig(folder=work)).notes)
    notes = []
    if source.documents:
        load_documents(work / CORPUS)
    if source.queries:
        load_queries(work / QUERIES)
    faults = [fault for path in _qrels_files(work) for fault in read_qrels(path)[1]]
    if faults:
        raise DataError(fault_list(str(work), faults))
    lacking = {"documents": source.documents, "queries": source.queries, "judgments": source.judgments}
    missing = [name for name, parts in lacking.items() if not parts]
    options = {"documents": "--corpus", "queries": "--queries", "judgments": "--qrels"}
    notes.append(f"no {' and no '.join(missing)}; import again with {', '.join(options[name] for name in missing)}")
    return notes


def _of_source(message: str, written: Mapping[str, _Written]) -> str:
    """A message of the loader with the files and lines of the source in place of those that were written."""
    lines = []
    for text in message.splitlines():
        for name, one in written.items():
            if name in text:
                text = re.sub(
                    rf"{re.escape(name)} lines? (\d+)(?:, \d+)*(?: and [\d,]+ more)?",
                    lambda match, one=one: one.place(int(match[1])),  # type: ignore[misc]
                    text,
                )
                text = re.sub(r"\bon line (\d+)", lambda match, one=one: f"at {one.place(int(match[1]))}", text)  # type: ignore[misc]
                text = text.replace(name, some(dict.fromkeys(str(path) for _, path in one.parts)))
        lines.append(text)
    return "\n".join(lines)


def _provenance(
    source: JudgedSet, asked: Asked, counts: Mapping[str, int], notes: list[str], chunks: str | None
) -> dict[str, Any]:
    files = dict.fromkeys([*source.files, *source.runs])
    return {
        "source": asked.source or None,
        "form": source.form,
        "files": [
            {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in files
            if path.is_file()
        ],
        "columns": source.columns,
        "chosen_columns": dict(asked.columns),
        "chunks": RULES[chunks] if chunks else None,
        "counts": dict(counts),
        "notes": notes,
        "closecall": __version__,
    }
