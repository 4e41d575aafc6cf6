"""Embeddings on disk, keyed by what made them; a killed encode resumes at the block it was in."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from closecall.encoder import Encoder, Role, Vectors
from closecall.manifest import sha256_json
from closecall.progress import progress

BLOCK_TEXTS = 512
DIGEST_BYTES = 32


@dataclass
class VectorStore:
    """Vectors of text lists under one folder. The key holds the encoder's fingerprint, the role and every text."""

    folder: Path
    encoded: int = field(default=0, init=False)
    """Texts that went through a model since this store was opened."""
    reused: int = field(default=0, init=False)
    """Texts whose vectors were found on disk instead."""

    def get(self, encoder: Encoder, texts: Sequence[str], role: Role, label: str) -> Vectors:
        """float32 (n_texts, dimension), unit rows. Equal texts are encoded once and so have equal vectors.

        Texts go in blocks of 512, longest first (equal lengths pad least); each finished block is a file, read
        instead of encoded the next time. A block that is damaged or of another shape is encoded again.
        """
        if not texts:
            return np.empty((0, encoder.dimension), dtype=np.float32)
        unique = _unique(texts)
        folder = self._place(encoder.fingerprint, unique, role)
        blocks = []
        with progress(f"encode {label}", len(unique)) as advance:
            for number, start in enumerate(range(0, len(unique), BLOCK_TEXTS)):
                block = unique[start : start + BLOCK_TEXTS]
                blocks.append(self._block(folder / f"{number:06}.npy", encoder, block, role))
                advance(len(block))
        rows = {text: row for row, text in enumerate(unique)}
        return np.concatenate(blocks)[[rows[text] for text in texts]]

    def adopt(self, other: VectorStore, name: str, fingerprint: str, texts: Sequence[str], role: Role) -> None:
        """Move what `other` holds under `name` here, under `fingerprint`: a saved model is the one in memory."""
        old, new = other._place(name, _unique(texts), role), self._place(fingerprint, _unique(texts), role)
        if old.exists() and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)

    def _place(self, fingerprint: str, unique: Sequence[str], role: Role) -> Path:
        return self.folder / sha256_json([fingerprint, role, unique])[:32]

    def _block(self, path: Path, encoder: Encoder, texts: list[str], role: Role) -> Vectors:
        found = _read_block(path, (len(texts), encoder.dimension))
        if found is not None:
            self.reused += len(texts)
            return found
        vectors = encoder.encode(texts, role)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(_block_bytes(vectors))
        partial.replace(path)
        self.encoded += len(texts)
        return vectors


def _unique(texts: Sequence[str]) -> list[str]:
    return sorted(set(texts), key=lambda text: (-len(text), text))


def _block_bytes(vectors: Vectors) -> bytes:
    """The array as a .npy file, and after it the digest of those bytes; `np.load` does not read so far."""
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    return buffer.getvalue() + hashlib.sha256(buffer.getvalue()).digest()


def _read_block(path: Path, shape: tuple[int, int]) -> Vectors | None:
    """The array of a block file; None when there is none, or it is damaged or of another shape."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        return None
    vectors: Vectors = np.load(io.BytesIO(data), allow_pickle=False)
    whole = vectors.shape == shape and vectors.dtype == np.float32 and bool(np.isfinite(vectors).all())
    return vectors if whole else None
