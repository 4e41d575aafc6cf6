"""Text in, unit vectors out: the Encoder protocol and its sentence-transformers adapter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, ValidationInfo

from closecall.config import Settings
from closecall.errors import ModelError
from closecall.manifest import sha256_json
from closecall.models import check_model_folder, folder_sha256, resolve_model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Role = Literal["query", "document"]
Vectors = npt.NDArray[np.float32]


def _against_config_folder(name: str, info: ValidationInfo) -> str:
    """A name that is a folder beside the config file means that folder; any other stays what it is."""
    folder = (info.context or {}).get("folder")
    beside = Path(folder) / name if folder is not None else None
    return str(beside) if beside is not None and beside.is_dir() else name


ModelName = Annotated[str, AfterValidator(_against_config_folder)]


class ModelConfig(Settings):
    """The base model, and how texts go into it in every stage."""

    name: ModelName = Field(
        description="`package:import_name/folder` inside an installed package, a local folder, or a hub name"
    )
    model_sha256: str | None = Field(
        None, pattern="^[0-9a-fA-F]{64}$", description="refuse weights with another sha256"
    )
    query_prompt: str | None = Field(
        None, description="put before each query; default: the prompt saved with the model"
    )
    document_prompt: str | None = Field(None, description="put before each document; default: as saved with the model")
    max_length_tokens: int | None = Field(
        None, ge=4, description="longer texts are cut; default: the model's own limit"
    )
    batch_size: int = Field(32, ge=1, description="texts encoded at once")
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?$",
        description="cpu, cuda, cuda:1, mps; default: the best there is",
    )

    def unpinned(self) -> ModelConfig:
        """The same settings for a checkpoint: `model_sha256` is the base's, and training makes other weights."""
        return self.model_copy(update={"model_sha256": None})


class Encoder(Protocol):
    """Anything that turns texts into unit vectors. Tests and users bring their own."""

    fingerprint: str
    """A hash of everything but the texts that decides the vectors."""
    weights_sha256: str

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    @property
    def max_length_tokens(self) -> int:
        """How many tokens it reads; 0 when there is no limit."""
        ...

    @property
    def device(self) -> str:
        """Where it runs: cpu, cuda:0, mps."""
        ...

    def encode(self, texts: Sequence[str], role: Role) -> Vectors:
        """float32 (n_texts, dimension), unit rows."""
        ...

    def token_counts(self, texts: Sequence[str], role: Role) -> npt.NDArray[np.int64]:
        """int64 (n_texts,): tokens of each text with its prompt and special tokens, before anything is cut."""
        ...


class TextEncoder:
    """A SentenceTransformer folder as an Encoder: float32, normalised, the same prompts and length in every stage.

    The model is loaded when the first text is encoded, so that a stage with nothing to do stays fast.
    """

    fingerprint: str
    weights_sha256: str

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.folder, self.config = folder, config
        self.weights_sha256 = check_model_folder(folder, config.model_sha256)
        settings = (config.max_length_tokens, config.query_prompt, config.document_prompt, "float32")
        self.fingerprint = sha256_json([folder_sha256(folder, self.weights_sha256), *settings])

    @classmethod
    def of_step(cls, model: SentenceTransformer, config: ModelConfig, fingerprint: str) -> TextEncoder:
        """An encoder around a model in memory that changes while it trains; the caller names its state."""
        encoder = cls.__new__(cls)
        encoder.config, encoder.fingerprint, encoder.weights_sha256 = config, fingerprint, ""
        encoder.__dict__["model"] = model
        return encoder

    @cached_property
    def model(self) -> SentenceTransformer:
        """The loaded model, with the prompts, length and device of the config."""
        return _load(self.folder, self.config)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def max_length_tokens(self) -> int:
        """How many tokens the model reads; 0 when it states no limit."""
        limit = self.model.max_seq_length
        return int(limit) if limit and math.isfinite(limit) else 0

    @property
    def device(self) -> str:
        """Where it runs: cpu, cuda:0, mps."""
        return str(self.model.device)

    def encode(self, texts: Sequence[str], role: Role) -> Vectors:
        """float32 (n_texts, dimension), unit rows; ModelError when the model returns a vector that is not finite."""
        return encode_texts(self.model, texts, role, self.config.batch_size)

    def token_counts(self, texts: Sequence[str], role: Role) -> npt.NDArray[np.int64]:
        """int64 (n_texts,): tokens of each text with its prompt and special tokens, before anything is cut."""
        prompt, tokenizer = prompt_of(self.model, role), self.model.tokenizer
        counts: list[int] = []
        for start in range(0, len(texts), 1000):
            block = [prompt + text for text in texts[start : start + 1000]]
            if hasattr(tokenizer, "encode_batch"):  # a bare tokenizer, as static embeddings have it
                counts.extend(len(row.ids) for row in tokenizer.encode_batch(block))
            else:
                ids = tokenizer(block, truncation=False, add_special_tokens=True, verbose=False)["input_ids"]
                counts.extend(len(row) for row in ids)
        return np.asarray(counts, dtype=np.int64)


def load_encoder(config: ModelConfig) -> TextEncoder:
    """The encoder a config names; ModelError when it cannot be found, is no model or has other weights."""
    return TextEncoder(resolve_model(config.name), config)


def encode_texts(model: SentenceTransformer, texts: Sequence[str], role: Role, batch_size: int) -> Vectors:
    """float32 (n_texts, dimension), unit rows; ModelError when the model returns a vector that is not finite."""
    if not texts:
        return np.empty((0, int(model.get_embedding_dimension() or 0)), dtype=np.float32)
    encode = model.encode_query if role == "query" else model.encode_document
    vectors = encode(
        list(texts), batch_size=batch_size, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
    )
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        text = texts[int(bad[0])][:60]
        raise ModelError(f"the model gives a vector that is not finite for {bad.size} texts, the first: {text!r}")
    return vectors


def prompt_of(model: SentenceTransformer, role: Role) -> str:
    """The prompt that `encode_query` or `encode_document` puts before a text; empty when there is none.

    As there, the first of these names that the model has counts, even with an empty prompt.
    """
    names = ("query",) if role == "query" else ("document", "passage", "corpus")
    return next((model.prompts[name] or "" for name in names if name in model.prompts), "")


def _load(folder: Path, config: ModelConfig) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model = SentenceTransformer(str(folder), device=config.device, local_files_only=True)
    except Exception as error:  # whatever a broken folder makes the loaders raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{folder}: cannot be loaded as a model: {reason}") from error
    for role, prompt in (("query", config.query_prompt), ("document", config.document_prompt)):
        if prompt is not None:
            model.prompts[role] = prompt
    if config.max_length_tokens is not None:
        _check_length(model, config.max_length_tokens, folder)
        model.max_seq_length = config.max_length_tokens
    return model.float().eval()


def _check_length(model: SentenceTransformer, length: int, folder: Path) -> None:
    """ModelError when the model has fewer positions than `length` asks for."""
    inner = getattr(model[0], "auto_model", None) or getattr(model[0], "model", None)
    positions = getattr(getattr(inner, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < length:
        raise ModelError(
            f"{folder}: model.max_length_tokens is {length}, but the model has {positions} positions; lower it"
        )
