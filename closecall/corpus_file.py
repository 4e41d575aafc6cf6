"""One pass over a corpus file: every line is checked, and its place is kept instead of its content."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from closecall.corpus import Documents, Ids, Index, Integers, Lines, document_of
from closecall.readers import Item, Line, id_fault, id_of, placed_lines, stream_jsonl, text_fault, value_fault
from closecall.text import normalise


@dataclass(frozen=True)
class CorpusFile:
    """What a file of documents holds, and what is wrong or odd in it."""

    path: Path
    """The file that was read."""
    documents: Documents
    """The sound documents with a text, in the order of the file."""
    lines: Mapping[str, int]
    """Every id seen, also of a document that is at fault, and the line it was first seen on."""
    empty: Mapping[str, int]
    """Documents without text, which were dropped, and their lines."""
    faults: list[str]
    """What must be mended."""
    notes: list[str]
    """What was merged, converted or dropped, counted."""


class _Pass:
    """What the lines gave so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = Index()
        self.texts = array("q")
        self.sound, self.blank = bytearray(), bytearray()
        self.faults: list[tuple[int, str]] = []
        self.numbers = 0

    def take(self, line: Line, item: Item) -> None:
        """One object: its place if it is a document, else its fault."""
        raw = item.value.get("_id")
        if (doc_id := id_of(raw)) is None:
            self.faults.append((item.line, f"{self.path} line {item.line}: {id_fault('_id', raw, item)}"))
            return
        self.numbers += not isinstance(raw, str)
        if fault := value_fault(item) or _text_faults(item):
            self.faults.append((item.line, f"{self.path} line {item.line}: {fault}"))
        text = "" if fault else normalise(document_of(item.value).full_text)
        self.index.add(doc_id, item.line, line.start, line.size)
        self.texts.append(hash(text))
        self.sound.append(not fault)
        self.blank.append(not fault and not text)


def read_corpus_file(path: Path) -> CorpusFile:
    """The documents of a JSONL file, all lines checked. Raises DataError if it cannot be read at all."""
    found, unread = _Pass(path), list[str]()
    with _source(path) as source:
        copy = source if path.suffix == ".gz" else None
        for line, item in stream_jsonl(path, placed_lines(path, copy), unread):
            found.take(line, item)
        source.flush()
        descriptor = os.dup(source.fileno())
    return _checked(found, unread, descriptor)


def _source(path: Path) -> BinaryIO:
    """The bytes that documents are read from later; a folder, or a file that is not there, is left to the reader."""
    if path.suffix != ".gz" and os.path.isfile(path) and os.access(path, os.R_OK):
        return open(path, "rb")
    return cast(BinaryIO, tempfile.TemporaryFile())


def _checked(found: _Pass, unread: list[str], descriptor: int) -> CorpusFile:
    ids, lines = found.index.ids(), found.index.column("line")
    sound = np.frombuffer(found.sound, np.uint8).astype(bool)
    starts, sizes = found.index.column("start"), found.index.column("size")
    every = Documents(found.path, os.dup(descriptor), ids, starts, sizes)
    repeats = _merge(found, every, sound, lines)
    blank = sound & np.frombuffer(found.blank, np.uint8).astype(bool)
    empty = {ids[row]: int(lines[row]) for row in np.flatnonzero(blank).tolist()}
    kept = np.flatnonzero(sound & ~blank)
    documents = (
        every
        if len(kept) == len(ids)
        else Documents(found.path, os.dup(descriptor), _some_ids(ids, kept), starts[kept], sizes[kept])
    )
    os.close(descriptor)
    faults = unread + [fault for _, fault in sorted(found.faults, key=lambda pair: pair[0])]
    if not len(kept) and not faults:
        faults = [f"{found.path}: holds no documents with a text; expected lines of _id, title, text"]
    shared = np.frombuffer(found.texts, np.int64)[kept] if len(kept) else kept
    notes = _notes(found, repeats, len(empty), shared)
    return CorpusFile(found.path, documents, Lines(ids, lines), empty, faults, notes)


def _some_ids(ids: Ids, rows: Integers) -> Ids:
    index = Index()
    for row in rows.tolist():
        index.add(ids[row], 0, 0, 0)
    return index.ids()


def _merge(found: _Pass, every: Documents, sound: np.ndarray, lines: Integers) -> int:
    """How many rows say again what an earlier one said; they become unsound, as do those that say otherwise."""
    repeats = 0
    for rows in every.ids.groups():
        first, kept = int(lines[rows[0]]), None
        for row in (row for row in rows if sound[row]):
            if kept is None:
                kept = row
                continue
            sound[row] = False
            if every[row] == every[kept]:
                repeats += 1
                continue
            fault = f"_id {every.ids[row]!r} stands on line {first} with other content; rename or drop one"
            found.faults.append((int(lines[row]), f"{found.path} line {lines[row]}: {fault}"))
    return repeats


def _text_faults(item: Item) -> str | None:
    title = item.value.get("title")
    return text_fault("text", item) or (text_fault("title", item) if title is not None else None)


def _notes(found: _Pass, repeats: int, empty: int, texts: Integers) -> list[str]:
    """Counts for people. Texts are compared by 64-bit hashes: one of 350,000 corpora of 10 million errs by one."""
    counts = np.unique(texts, return_counts=True)[1]
    shared = counts[counts > 1]
    many = f"{shared.sum():,} of {len(texts):,} documents ({shared.sum() / max(1, len(texts)):.1%})"
    notes = (
        (repeats, f"{repeats:,} repeated lines with the same id and content were merged"),
        (found.numbers, f"{found.numbers:,} ids are numbers; they were taken as text"),
        (empty, f"{empty:,} documents without text were dropped"),
        (len(shared), f"{many} have the text of another id ({len(shared):,} different texts)"),
    )
    return [f"{found.path.name}: {note}" for count, note in notes if count]
