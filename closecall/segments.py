"""Segments: vectors of a list of texts in one file that is mapped into memory, written block by block.

A segment is four files. NAME.keys has 16 bytes for each text. NAME.rows has its vector, float32, and its full size
before anything is encoded. NAME.json says how many rows there are and where blocks end, and comes after those two.
NAME.done has a line for each finished block, with a digest of its rows. Keys and blocks are settled before the first
text is encoded, so that an encode that was killed goes on with the same blocks, and ends with the same bytes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from closecall.encoding import Vectors
from closecall.errors import ArtifactError

KEY_BYTES = 16
Keys = npt.NDArray[np.bytes_]
"""S16 (n_texts,): a digest of each text."""
TEXTS_IN_BLOCK, LENGTH_IN_BLOCK = 4096, 1 << 20
"""A block ends after so many texts or characters: seconds on a CPU, and what a killed encode loses at most."""
LONGEST_COUNTED = 2048
"""Characters of one text; what is longer is cut by most models."""


def keys_of(texts: Sequence[str]) -> Keys:
    """A digest of each text."""
    digests = b"".join(blake2b(text.encode("utf-8"), digest_size=KEY_BYTES).digest() for text in texts)
    return np.frombuffer(digests, dtype=f"S{KEY_BYTES}")


def block_ends(lengths: npt.NDArray[np.int64]) -> list[int]:
    """Where blocks of texts with these lengths in characters end."""
    counted = np.minimum(lengths, LONGEST_COUNTED)
    ends: list[int] = []
    start = size = 0
    for row, length in enumerate(counted.tolist()):
        if row > start and (row - start >= TEXTS_IN_BLOCK or size + length > LENGTH_IN_BLOCK):
            ends.append(row)
            start, size = row, 0
        size += length
    return [*ends, len(lengths)]


class Segment:
    """The vectors of some texts, as far as they are finished."""

    def __init__(self, plan: Path) -> None:
        """Open the segment with this plan; ArtifactError when it cannot be read."""
        self.plan = plan
        try:
            content = json.loads(plan.read_text(encoding="utf-8"))
            self.count, self.dimension = int(content["rows"]), int(content["dimension"])
            self.ends: list[int] = [int(end) for end in content["ends"]]
            keys = plan.with_suffix(".keys").read_bytes()
            self.keys: Keys = np.frombuffer(keys[: self.count * KEY_BYTES], dtype=f"S{KEY_BYTES}")
            if (
                _digest(keys) != content["keys"]
                or len(self.keys) != self.count
                or self._rows_file.stat().st_size != self._bytes
            ):
                raise ValueError("its files do not belong together")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(f"{plan}: no segment of vectors ({error})") from None

    @classmethod
    def make(cls, plan: Path, keys: Keys, ends: Sequence[int], dimension: int) -> Segment:
        """A new segment, nothing finished; the disk's room for all rows is taken at once."""
        plan.with_suffix(".done").unlink(missing_ok=True)
        plan.with_suffix(".keys").write_bytes(keys.tobytes())
        with plan.with_suffix(".rows").open("wb") as handle:
            _allocate(handle.fileno(), len(keys) * dimension * 4)
        content = {"rows": len(keys), "dimension": dimension, "ends": list(ends), "keys": _digest(keys.tobytes())}
        partial = plan.with_suffix(".partial")
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
        partial.replace(plan)
        return cls(plan)

    @property
    def _rows_file(self) -> Path:
        return self.plan.with_suffix(".rows")

    @property
    def _bytes(self) -> int:
        return self.count * self.dimension * 4

    @cached_property
    def rows(self) -> Vectors:
        """float32 (n_texts, dimension), mapped; rows of unfinished blocks hold anything."""
        return np.memmap(self._rows_file, np.float32, "r", shape=(self.count, self.dimension))

    def block(self, number: int) -> slice:
        """The rows of a block."""
        return slice(self.ends[number - 1] if number else 0, self.ends[number])

    @cached_property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Bool (n_blocks,): whether a block is finished, and its rows still have the digest they had then."""
        done = np.zeros(len(self.ends), dtype=bool)
        for number, digest in self._journal().items():
            rows = self.rows[self.block(number)]
            done[number] = _digest(rows) == digest
        return done

    @property
    def usable(self) -> npt.NDArray[np.bool_]:
        """Bool (n_texts,): rows of finished blocks."""
        sizes = np.diff([0, *self.ends])
        return np.repeat(self.finished, sizes)

    def write(self, number: int, vectors: Vectors) -> None:
        """Write the rows of a block, and then its line into the journal."""
        with self._rows_file.open("r+b") as handle:
            handle.seek(self.block(number).start * self.dimension * 4)
            handle.write(np.ascontiguousarray(vectors, dtype=np.float32).data)
            handle.flush()
            os.fsync(handle.fileno())
        with self.plan.with_suffix(".done").open("a", encoding="ascii") as journal:
            journal.write(f"{number} {_digest(vectors)}\n")
        self.finished[number] = True

    def _journal(self) -> dict[int, str]:
        """Block -> digest, the last line of each; half a line at the end is none."""
        try:
            text = self.plan.with_suffix(".done").read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        found: dict[int, str] = {}
        for line in text.split("\n")[:-1]:
            number, _, digest = line.partition(" ")
            if number.isdecimal() and int(number) < len(self.ends):
                found[int(number)] = digest
        return found

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.files if path.exists())

    @property
    def files(self) -> list[Path]:
        """What the segment is made of, the plan first: without it the others are nothing."""
        return [self.plan, *(self.plan.with_suffix(suffix) for suffix in (".done", ".keys", ".rows"))]


def _digest(data: bytes | Vectors) -> str:
    """Finds damage, not malice."""
    return xxhash.xxh3_128_hexdigest(data if isinstance(data, bytes) else np.ascontiguousarray(data).data)


def _allocate(file: int, size: int) -> None:
    """Give a file its size, and the disk's blocks for it where the system can; OSError when there are too few."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    os.ftruncate(file, size)
