"""Cross-encoders: models that read a query and a document together, and their scores on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field

from closecall.config import Settings
from closecall.encoder import ModelName
from closecall.errors import ArtifactError, ModelError
from closecall.manifest import sha256_json
from closecall.models import check_model_folder, folder_sha256
from closecall.progress import progress

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

SAVED_AT_ONCE = 2048
"""Pairs after which scores are on disk: what a killed run loses."""


class CrossEncoderConfig(Settings):
    """A cross-encoder with one label, as rerankers have."""

    name: ModelName = Field(description="a local folder, `package:import_name/folder`, or a hub name")
    model_sha256: str | None = Field(
        None, pattern="^[0-9a-fA-F]{64}$", description="refuse weights with another sha256"
    )
    max_length_tokens: int | None = Field(None, ge=4, description="longer pairs are cut; default: its own limit")
    batch_size: int = Field(32, ge=1, description="pairs scored at once")
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?$",
        description="cpu, cuda, cuda:1, mps; default: the best there is",
    )


@dataclass
class CrossEncoderScorer:
    """A cross-encoder, whose scores are kept on disk: pairs that were scored once are not scored again."""

    folder: Path
    config: CrossEncoderConfig
    cache: ScoreCache
    label: str
    """What its progress bar says it is: guide, reranker."""
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = cross_encoder_fingerprint(self.folder, self.config)

    def pair_scores(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
        """float64 (n,): of (query, document), in the model's own range, 0 to 1 for most; NaN where it has no number."""
        keys = [self.cache.key(self.fingerprint, *pair) for pair in pairs]
        found = self.cache.read(keys)
        missing = list({key: pair for key, pair in zip(keys, pairs, strict=True) if key not in found}.items())
        missing.sort(key=lambda item: -len(item[1][0]) - len(item[1][1]))  # equal lengths pad least
        with progress(f"{self.label} scores {len(missing):,} pairs", len(missing)) as advance:
            for start in range(0, len(missing), SAVED_AT_ONCE):
                block = missing[start : start + SAVED_AT_ONCE]
                scores = self.predict([pair for _, pair in block])
                fresh = {key: score for (key, _), score in zip(block, scores, strict=True)}
                self.cache.write(fresh)
                found |= fresh
                advance(len(block))
        return np.asarray([found[key] for key in keys], dtype=np.float64)

    def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        """The scores of pairs by the model itself, rounded to 6 decimals."""
        scores = self.model.predict(pairs, batch_size=self.config.batch_size, show_progress_bar=False)
        values = np.asarray(scores, dtype=np.float64)
        if values.shape != (len(pairs),):
            raise ModelError(
                f"{self.folder}: gives {values.shape[1:]} values for a pair, expected one; use a "
                "cross-encoder with one label, as rerankers have"
            )
        return [float(value) for value in np.round(values, 6)]

    def not_finite(self, pair: tuple[str, str]) -> ModelError:
        """The error for a pair that the model gives no number for."""
        return ModelError(
            f"{self.folder}: gives no finite score for the query {pair[0][:60]!r} and the document {pair[1][:60]!r}; "
            "try another model or a smaller max_length_tokens"
        )

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


def cross_encoder_fingerprint(folder: Path, config: CrossEncoderConfig) -> str:
    """A hash of everything but the texts that decides a score; ModelError when it is no model or not the pinned one."""
    weights = check_model_folder(folder, config.model_sha256)
    kinds = _architectures(folder)
    if kinds and not any("For" in kind for kind in kinds):
        raise ModelError(
            f"{folder}: no cross-encoder but a {kinds[0]}, which has no layer that scores pairs; name a reranker"
        )
    return sha256_json([folder_sha256(folder, weights), config.max_length_tokens, "float32"])


def _architectures(folder: Path) -> list[str]:
    """What a model's `config.json` says it is: `BertForSequenceClassification`; empty where it does not say."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return [str(kind) for kind in content.get("architectures") or []]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


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
