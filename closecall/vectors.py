"""Embeddings on disk, by what made them and by text: nothing is encoded twice, and a killed encode goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from closecall.encoder import Encoder, encode_blocks
from closecall.encoding import Role, Vectors
from closecall.errors import ArtifactError, ModelError
from closecall.manifest import sha256_json
from closecall.processes import helpers
from closecall.progress import progress, say
from closecall.segments import Keys, Segment, block_ends, keys_of

Rows = npt.NDArray[np.int64]

FORMAT = 2
STORE, MODEL, LOCK = "store.json", "model.json", ".lock"
TEXTS_AT_ONCE = 65_536
"""Texts that are in memory at once while their keys are made."""
GATHERED_IN_MEMORY = 1 << 30
"""Bytes of vectors from several places up to which they are brought together in memory; above that, in a file."""


class Counted(NamedTuple):
    """Texts, each once, that were asked of a store."""

    encoded: int
    """Went through a model."""
    reused: int
    """Were there."""

    def since(self, before: Counted) -> dict[str, int]:
        """What came after `before`, as manifests count it."""
        return {"texts_encoded": self.encoded - before.encoded, "texts_reused": self.reused - before.reused}


@dataclass
class VectorStore:
    """Vectors under one folder, which several experiments and processes may share.

    A shelf, named by the encoder's fingerprint and the role, holds the vectors of texts in segments.
    """

    folder: Path
    encoded: int = field(default=0, init=False)
    """Texts that went through a model since this store was opened."""
    reused: int = field(default=0, init=False)
    """Texts whose vectors were found on disk instead."""
    _shelves: dict[Path, Shelf] = field(default_factory=dict, init=False, repr=False)

    @property
    def counted(self) -> Counted:
        """What this store was asked so far."""
        return Counted(self.encoded, self.reused)

    def get(self, encoder: Encoder, texts: Sequence[str], role: Role, label: str) -> Vectors:
        """float32 (n_texts, dimension), unit rows, read-only. Equal texts are encoded once and so have equal vectors.

        A list of different texts that was encoded as a whole is mapped from its file; otherwise the vectors are brought
        together from several. What is missing is encoded block by block, and kept when its block is finished; a block
        that is damaged is encoded again. Another process that encodes with the same model is waited for.
        ArtifactError: the folder is full, cannot be written, or was made by a newer closecall.
        """
        if not len(texts):
            return np.empty((0, encoder.dimension), dtype=np.float32)
        shelf, keys = self._shelf(encoder.fingerprint, role), _keys(texts)
        shelf.scan()
        if (mapped := shelf.mapped(keys)) is None:
            unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
            missing = np.sort(first[~shelf.has(unique)])
            if len(missing):
                with _writing(shelf, encoder, role, label):
                    self.encoded += shelf.fill(encoder, texts, role, (unique, first), label)
            self.reused += len(unique) - len(missing)
            mapped = shelf.mapped(keys)
            return shelf.gathered(unique, inverse) if mapped is None else mapped
        self.reused += len(keys)
        return mapped

    def missing(self, encoder: Encoder, texts: Sequence[str], role: Role) -> int:
        """How many different texts `get` would encode."""
        if not len(texts):
            return 0
        shelf, keys = self._shelf(encoder.fingerprint, role), np.unique(_keys(texts))
        shelf.scan()
        return int((~shelf.has(keys)).sum())

    def adopt(self, other: VectorStore, name: str, fingerprint: str, role: Role) -> None:
        """Move what `other` holds under `name` here, under `fingerprint`: a saved model is the one in memory."""
        old, new = other._shelf(name, role).folder, self._shelf(fingerprint, role).folder
        if old.exists() and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old, new)
            _sign(self.folder)
            other._shelves.clear()

    def _shelf(self, fingerprint: str, role: Role) -> Shelf:
        check_format(self.folder)
        folder = self.folder / sha256_json([fingerprint, role])[:32]
        return self._shelves.setdefault(folder, Shelf(folder))


@dataclass
class Shelf:
    """The segments of one encoder and role."""

    folder: Path
    segments: dict[Path, Segment] = field(default_factory=dict)

    def scan(self) -> None:
        """Open what other processes have added; a segment that was seen before is not read again."""
        plans = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        plans = [plan for plan in plans if plan.name != MODEL]
        for gone in self.segments.keys() - set(plans):
            del self.segments[gone]
        for plan in plans:
            known = self.segments.get(plan)
            if known is None or not known.finished.all():
                try:
                    self.segments[plan] = Segment(plan)
                except ArtifactError:
                    self.segments.pop(plan, None)  # what it held is encoded again
        widths = {segment.dimension for segment in self.segments.values()}
        if len(widths) > 1:
            raise ArtifactError(
                f"{self.folder}: holds vectors of {' and '.join(map(str, sorted(widths)))} dimensions, which no single "
                "model gives: files of two stores were mixed; remove this folder, it is made again"
            )
        if plans:
            (self.folder / MODEL).touch() if os.access(self.folder, os.W_OK) else None

    def mapped(self, keys: Keys) -> Vectors | None:
        """The rows of the segment that holds these texts in this order, if there is one."""
        for segment in self.segments.values():
            if segment.count == len(keys) and segment.finished.all() and np.array_equal(segment.keys, keys):
                return segment.rows
        return None

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Bool (n_keys,): which of these are there."""
        found = np.zeros(len(keys), dtype=bool)
        for segment in self.segments.values():
            found |= np.isin(keys, segment.keys[segment.usable])
        return found

    def gathered(self, unique: Keys, inverse: Rows) -> Vectors:
        """The vectors of these sorted keys, each at the places where it stands."""
        dimension = next(iter(self.segments.values())).dimension
        result = _room(len(inverse), dimension, self.folder)
        for segment in self.segments.values():
            at = np.searchsorted(unique, segment.keys)
            at[at == len(unique)] = 0
            wanted = np.flatnonzero((unique[at] == segment.keys) & segment.usable)
            row_of = np.full(len(unique), -1, dtype=np.int64)
            row_of[at[wanted]] = wanted
            for start in range(0, len(inverse), TEXTS_AT_ONCE):
                rows = row_of[inverse[start : start + TEXTS_AT_ONCE]]
                place = np.flatnonzero(rows >= 0)
                result[start + place] = segment.rows[rows[place]]
        result.flags.writeable = False
        return result

    def fill(self, encoder: Encoder, texts: Sequence[str], role: Role, asked: tuple[Keys, Rows], label: str) -> int:
        """Encode what is missing of the sorted keys `asked[0]`, which stand first at `asked[1]`; how many that were.

        The lock is held. Unfinished blocks of which all texts are asked for are finished first, as they were planned.
        """
        self.scan()
        self._drop_broken()
        unique, first = asked
        jobs = [job for segment in self.segments.values() for job in _unfinished(segment, unique, first)]
        covered = np.zeros(len(unique), dtype=bool)
        for segment, number, _ in jobs:
            covered |= np.isin(unique, segment.keys[segment.block(number)])
        rest = np.sort(first[~(covered | self.has(unique))])
        if len(rest):
            segment = self._new(_keys([texts[row] for row in rest.tolist()]), texts, rest, encoder.dimension)
            jobs += [(segment, number, rest[segment.block(number)]) for number in range(len(segment.ends))]
        total = sum(len(rows) for _, _, rows in jobs)
        with progress(f"encode {label}", total) as advance:
            step = helpers() + 1
            for start in range(0, len(jobs), step):
                chosen = jobs[start : start + step]
                blocks = [[texts[row] for row in rows.tolist()] for _, _, rows in chosen]
                for (segment, number, rows), vectors in zip(chosen, encode_blocks(encoder, blocks, role), strict=True):
                    _check_width(vectors, segment)
                    segment.write(number, vectors)
                    advance(len(rows))
        return total

    def _new(self, keys: Keys, texts: Sequence[str], rows: Rows, dimension: int) -> Segment:
        lengths = np.asarray([len(texts[row]) for row in rows.tolist()], dtype=np.int64)
        taken = [int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()]
        plan = self.folder / f"{max(taken, default=-1) + 1:06}.json"
        self.segments[plan] = Segment.make(plan, keys, block_ends(lengths), dimension)
        return self.segments[plan]

    def _drop_broken(self) -> None:
        """Remove files that belong to no segment: a kill left them, or their plan is damaged."""
        whole = {path for segment in self.segments.values() for path in segment.files}
        for path in self.folder.iterdir():
            if path.name not in (MODEL, LOCK) and path not in whole:
                path.unlink()


def _unfinished(segment: Segment, unique: Keys, first: Rows) -> Iterator[tuple[Segment, int, Rows]]:
    """The blocks of a segment that are not finished and of which all texts are asked for, with where these stand."""
    for number in np.flatnonzero(~segment.finished).tolist():
        keys = segment.keys[segment.block(number)]
        at = np.searchsorted(unique, keys)
        at[at == len(unique)] = 0
        if (unique[at] == keys).all():
            yield segment, number, first[at]


def _keys(texts: Sequence[str]) -> Keys:
    parts = [keys_of(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
    return np.concatenate(parts)


def _check_width(vectors: Vectors, segment: Segment) -> None:
    if vectors.shape[1] != segment.dimension:
        raise ModelError(
            f"the model gives vectors of {vectors.shape[1]} dimensions, and gave {segment.dimension} before; "
            "its folder has changed: start again"
        )


def _room(count: int, dimension: int, folder: Path) -> Vectors:
    """An array for so many vectors, in memory or in a file that is gone when nothing uses it any more."""
    size = count * dimension * 4
    if size <= GATHERED_IN_MEMORY:
        return np.empty((count, dimension), dtype=np.float32)
    with tempfile.TemporaryFile(dir=folder if os.access(folder, os.W_OK) else None) as file:
        file.truncate(size)
        return np.memmap(file, np.float32, "r+", shape=(count, dimension))


@contextmanager
def _writing(shelf: Shelf, encoder: Encoder, role: Role, label: str) -> Iterator[None]:
    """The lock of a shelf, its folder made; faults of the disk become an ArtifactError."""
    folder = shelf.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sign(folder.parent)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"encode {label}: another closecall is encoding with this model here; waiting for it")
            lock.acquire()
        try:
            _describe(folder / MODEL, encoder, role)
            yield
        finally:
            lock.release()
    except OSError as error:
        raise ArtifactError(disk_fault(folder.parent, error, "finished blocks are kept")) from error


def disk_fault(folder: Path, error: OSError, kept: str) -> str:
    """The message for a disk that is full, or cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
        return f"{folder}: the disk is full ({free / 1e6:,.0f} MB are free); {kept}: make room, and start again"
    return f"{folder}: cannot be written ({error.strerror or error}); make it writable, or choose another folder"


def _describe(path: Path, encoder: Encoder, role: Role) -> None:
    """For people and `closecall cache`: what the shelf's vectors were made with."""
    if not path.exists():
        content = {
            "model": getattr(encoder, "description", encoder.fingerprint[:12]),
            "role": role,
            "fingerprint": encoder.fingerprint,
            "weights_sha256": encoder.weights_sha256,
            "made_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _sign(folder: Path) -> None:
    if not (folder / STORE).exists():
        (folder / STORE).write_text(json.dumps({"format": FORMAT}) + "\n", encoding="utf-8")


def check_format(folder: Path) -> None:
    """ArtifactError when the store was made by a newer closecall."""
    try:
        found = json.loads((folder / STORE).read_text(encoding="utf-8"))["format"]
    except OSError:
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, int) or found > FORMAT:
        raise ArtifactError(
            f"{folder / STORE}: the store of vectors has format {found!r}, this closecall reads {FORMAT}: "
            "a newer one made it; upgrade closecall, or choose another folder"
        )
