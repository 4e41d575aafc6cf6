"""The documents of a JSONL file as a sequence that stays on disk: a line is parsed when its document is asked for.

What grows with the corpus is an index in arrays: about 40 bytes and the id per document, and at most 130 bytes in all
while the file is checked (measured on 1 million documents). A compressed file is unpacked once per process into an
unnamed temporary file (TMPDIR), which the system removes when the process ends.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from closecall.errors import DataError
from closecall.records import Document

BLOCK = 1024
"""Documents that are read at once when all are read in order."""

RECENT = 8192
"""Documents that are kept when they are asked for one by one: judged ones are, again and again."""

Integers = NDArray[np.int64]


class Ids(Sequence[str]):
    """Different ids in one byte string, found by the hash of each: 24 bytes and the id itself per id."""

    def __init__(self, text: bytes, ends: Integers, hashes: Integers) -> None:
        self._text, self._ends = text, ends
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        return self._text[self._ends[row - 1] if row else 0 : self._ends[row]].decode("utf-8")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.row(name) is not None

    def row(self, name: str) -> int | None:
        """The first place of an id; None if it is not among them."""
        code = hash(name)
        for place in range(int(np.searchsorted(self._sorted, code)), len(self)):
            if self._sorted[place] != code:
                return None
            if self[row := int(self._order[place])] == name:
                return row
        return None

    def groups(self) -> Iterator[list[int]]:
        """Rows that have one id, where several have; in the order of the rows within each."""
        starts = np.flatnonzero(np.diff(self._sorted) == 0)
        for code in np.unique(self._sorted[starts]).tolist():
            left = np.searchsorted(self._sorted, code)
            right = np.searchsorted(self._sorted, code, side="right")
            rows: dict[str, list[int]] = {}
            for row in self._order[left:right].tolist():
                rows.setdefault(self[row], []).append(row)
            yield from (group for group in rows.values() if len(group) > 1)


class Lines(Mapping[str, int]):
    """Id -> the line it was first seen on."""

    def __init__(self, ids: Ids, lines: Integers) -> None:
        self._ids, self._lines = ids, lines

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __getitem__(self, name: str) -> int:
        if (row := self._ids.row(name)) is None:
            raise KeyError(name)
        return int(self._lines[row])


class Index:
    """Where each record of a file stands, collected while it is read."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._columns = {name: array("q") for name in ("end", "hash", "start", "size", "line")}
        self._append = tuple(column.append for column in self._columns.values())

    def add(self, name: str, line: int, start: int, size: int) -> None:
        """One record more: its id and its place."""
        self._text += name.encode("utf-8")
        end, code, first, length, number = self._append
        end(len(self._text))
        code(hash(name))
        first(start)
        length(size)
        number(line)

    def column(self, name: str) -> Integers:
        """int64 (n_records,): ends of ids in their text, hashes, starts and sizes in bytes, or line numbers."""
        return np.frombuffer(self._columns[name], np.int64) if self._columns[name] else np.empty(0, np.int64)

    def ids(self) -> Ids:
        """The ids, in the order of the file."""
        return Ids(bytes(self._text), self.column("end"), self.column("hash"))


class Documents(Sequence[Document]):
    """Documents of a file in its order, by row or, with `by_id`, by id. Two that hold equal documents are equal."""

    def __init__(self, path: Path, descriptor: int, ids: Ids, starts: Integers, sizes: Integers) -> None:
        self.path, self.ids = path, ids
        self._descriptor, self._starts, self._sizes = descriptor, starts, sizes
        self._recent: dict[int, Document] = {}
        weakref.finalize(self, os.close, descriptor)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, row: int) -> Document: ...
    @overload
    def __getitem__(self, row: slice) -> list[Document]: ...
    def __getitem__(self, row: int | slice) -> Document | list[Document]:
        if isinstance(row, slice):
            rows = range(*row.indices(len(self)))
            return list(self._block(rows)) if rows.step == 1 and rows else [self[one] for one in rows]
        row = range(len(self))[row]
        if (found := self._recent.get(row)) is None:
            line = os.pread(self._descriptor, int(self._sizes[row]), int(self._starts[row]))
            if len(self._recent) >= RECENT:
                self._recent.clear()
            found = self._recent[row] = self._document(row, line)
        return found

    def __iter__(self) -> Iterator[Document]:
        for first in range(0, len(self), BLOCK):
            yield from self._block(range(first, min(first + BLOCK, len(self))))

    def _block(self, rows: range) -> Iterator[Document]:
        """Documents that follow each other, in one read."""
        starts, sizes = self._starts[rows.start : rows.stop].tolist(), self._sizes[rows.start : rows.stop].tolist()
        block = os.pread(self._descriptor, starts[-1] + sizes[-1] - starts[0], starts[0])
        for row, start, size in zip(rows, starts, sizes, strict=True):
            yield self._document(row, block[start - starts[0] : start - starts[0] + size])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _document(self, row: int, line: bytes) -> Document:
        try:
            document = document_of(json.loads(line.decode("utf-8-sig")))
        except (ValueError, KeyError, TypeError):
            document = None
        if document is None or document.doc_id != self.ids[row]:
            raise DataError(f"{self.path} was changed while it was in use; run the command again")
        return document


class ById(Mapping[str, Document]):
    """The documents of a file by id; each is read when asked for."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._documents.ids

    def __getitem__(self, name: str) -> Document:
        if (row := self._documents.ids.row(name)) is None:
            raise KeyError(name)
        return self._documents[row]


class Texts(Sequence[str]):
    """What is encoded of documents (`full_text`), in their order; each is read when asked for."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [document.full_text for document in self._documents[row]]
        return self._documents[row].full_text

    def __iter__(self) -> Iterator[str]:
        return (document.full_text for document in self._documents)


def by_id(documents: Sequence[Document]) -> Mapping[str, Document]:
    """The documents by id: those of a file stay there, others are held."""
    if isinstance(documents, Documents):
        return ById(documents)
    return {document.doc_id: document for document in documents}


def ids_of(documents: Sequence[Document]) -> list[str]:
    """The ids of all documents, in their order."""
    return list(documents.ids) if isinstance(documents, Documents) else [document.doc_id for document in documents]


def document_of(value: dict[str, Any]) -> Document:
    """The document of a checked line."""
    metadata = {key: one for key, one in value.items() if key not in ("_id", "title", "text")}
    title = value.get("title")
    return Document(str(value["_id"]), value["text"], "" if title is None else title, metadata)
