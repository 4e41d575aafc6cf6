"""A stronger model that scores candidates again: what it thinks as relevant as the positive is no negative."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from closecall.encoder import Vectors
from closecall.errors import ArtifactError, ModelError
from closecall.manifest import sha256_json
from closecall.models import check_model_folder, folder_sha256, resolve_model
from closecall.progress import progress
from mining.candidates import Integers, Scores
from mining.config import GuideConfig

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

SAVED_AT_ONCE = 2048
"""Pairs after which a cross-encoder's scores are on disk: what a killed run loses."""


class Guide(Protocol):
    """Scores pairs of a query and a document, higher = more relevant."""

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,): of query i (its position) and document i (its row in the corpus); NaN where it has none."""
        ...


@dataclass(frozen=True)
class EncoderGuide:
    """A stronger encoder: the cosine of its vectors."""

    query_vectors: Vectors
    document_vectors: Vectors

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,), in [-1, 1]."""
        result = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), SAVED_AT_ONCE):
            part = slice(start, start + SAVED_AT_ONCE)
            np.einsum(
                "nd,nd->n", self.query_vectors[queries[part]], self.document_vectors[rows[part]], out=result[part]
            )
        return np.asarray(np.round(result.astype(np.float64), 6), dtype=np.float64)


@dataclass
class CrossEncoderGuide:
    """A cross-encoder, whose scores are kept on disk: pairs that were scored once are not scored again."""

    folder: Path
    config: GuideConfig
    query_texts: Sequence[str]
    document_texts: Sequence[str]
    cache: ScoreCache
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = cross_encoder_fingerprint(self.folder, self.config)

    def scores(self, queries: Integers, rows: Integers) -> Scores:
        """float64 (n,): in the model's own range, 0 to 1 for most; NaN where the model gives no number."""
        texts = [
            (self.query_texts[query], self.document_texts[row])
            for query, row in zip(queries.tolist(), rows.tolist(), strict=True)
        ]
        keys = [self.cache.key(self.fingerprint, *pair) for pair in texts]
        found = self.cache.read(keys)
        missing = list({key: pair for key, pair in zip(keys, texts, strict=True) if key not in found}.items())
        missing.sort(key=lambda item: -len(item[1][0]) - len(item[1][1]))  # equal lengths pad least
        with progress(f"guide scores {len(missing):,} pairs", len(missing)) as advance:
            for start in range(0, len(missing), SAVED_AT_ONCE):
                block = missing[start : start + SAVED_AT_ONCE]
                scores = self._predict([pair for _, pair in block])
                fresh = {key: score for (key, _), score in zip(block, scores, strict=True)}
                self.cache.write(fresh)
                found |= fresh
                advance(len(block))
        return np.asarray([found[key] for key in keys], dtype=np.float64)

    def _predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        scores = self.model.predict(pairs, batch_size=self.config.batch_size, show_progress_bar=False)
        values = np.asarray(scores, dtype=np.float64)
        if values.shape != (len(pairs),):
            raise ModelError(
                f"{self.folder}: gives {values.shape[1:]} values for a pair, expected one; a guide is a "
                "cross-encoder with one label, as rerankers are"
            )
        return [float(value) for value in np.round(values, 6)]

    @cached_property
    def model(self) -> CrossEncoder:
        """The loaded model."""
        from sentence_transformers import CrossEncoder
        from transformers.utils import logging

        logging.set_verbosity_error()
        try:
            model = CrossEncoder(
                str(self.folder),
                device=self.config.device,
                max_length=self.config.max_length_tokens,
                local_files_only=True,
            )
        except Exception as error:  # whatever a broken folder makes the loaders raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(f"{self.folder}: cannot be loaded as a cross-encoder: {reason}") from error
        return model.float().eval()


def guide_folder(config: GuideConfig) -> Path:
    """The folder of the cross-encoder a config names."""
    assert config.cross_encoder is not None
    return resolve_model(config.cross_encoder)


def cross_encoder_fingerprint(folder: Path, config: GuideConfig) -> str:
    """A hash of everything but the texts that decides a score; ModelError when it is no model or not the pinned one."""
    weights = check_model_folder(folder, config.model_sha256)
    return sha256_json([folder_sha256(folder, weights), config.max_length_tokens, "float32"])


@dataclass(frozen=True)
class ScoreCache:
    """Scores of pairs on disk, by a hash of model and texts."""

    file: Path

    @staticmethod
    def key(fingerprint: str, query: str, document: str) -> bytes:
        """The hash a score is kept under."""
        text = "\0".join((fingerprint, str(len(query)), query, document))
        return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The scores that are known, by key. A file that is damaged is begun anew."""
        if not self.file.exists():
            return {}
        try:
            with closing(self._open()) as base:
                rows = (
                    base.execute(f"SELECT key, score FROM scores WHERE key IN ({','.join('?' * len(part))})", part)
                    for part in _parts(keys, 500)
                )
                return {key: np.nan if score is None else score for found in rows for key, score in found}
        except sqlite3.OperationalError as error:
            raise ArtifactError(f"{self.file}: cannot be read ({error}); wait for whoever uses it") from error
        except sqlite3.DatabaseError:
            self.file.unlink()
            return {}

    def write(self, scores: dict[bytes, float]) -> None:
        """Add scores, all of them or, when killed, none; NaN is kept as NULL."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as base, base:
            rows = ((key, None if np.isnan(score) else score) for key, score in scores.items())
            base.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.file)
        base.execute("CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL) WITHOUT ROWID")
        return base


def _parts(keys: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))
