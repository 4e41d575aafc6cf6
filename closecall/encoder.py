"""Text in, unit vectors out: the Encoder protocol and its sentence-transformers adapter."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, ValidationInfo

from closecall.config import Settings
from closecall.encoding import Role, Vectors, encode_texts, in_precision, prompt_of
from closecall.errors import ModelError
from closecall.manifest import sha256_json
from closecall.models import check_model_folder, folder_sha256, folder_state, resolve_model
from closecall.precision import Precision, encoding_precision, likely_device
from closecall.processes import helpers, rank, share

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


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
    batch_tokens: int | None = Field(
        None, ge=16, description="tokens encoded at once; default: 4,096 on a CPU, 65,536 on a GPU"
    )
    precision: Precision = Field(
        "auto",
        description="of encoding; auto: bfloat16 where the device has it in hardware, float16 on older GPUs, else "
        "float32",
    )
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
    """A SentenceTransformer folder as an Encoder: normalised, the same prompts, length and precision in every stage.

    The model is loaded when the first text is encoded, so that a stage with nothing to do stays fast. Vectors are
    float32 whatever the precision the model computes in.
    """

    fingerprint: str
    weights_sha256: str

    in_memory = False
    """Whether it is a state of a training, which no other process can load."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.folder, self.config = folder, config
        self.weights_sha256 = check_model_folder(folder, config.model_sha256)
        self.precision = encoding_precision(config.precision, likely_device(config.device))
        self._state = folder_state(folder)
        settings = (config.max_length_tokens, config.query_prompt, config.document_prompt, self.precision)
        self.fingerprint = sha256_json([folder_sha256(folder, self.weights_sha256), *settings])

    @classmethod
    def of_step(cls, model: SentenceTransformer, config: ModelConfig, fingerprint: str) -> TextEncoder:
        """An encoder around a model in memory that changes while it trains; the caller names its state."""
        encoder = cls.__new__(cls)
        encoder.config, encoder.fingerprint, encoder.weights_sha256 = config, fingerprint, ""
        encoder.in_memory = True
        encoder.precision = encoding_precision(config.precision, str(model.device))
        encoder.__dict__["model"] = model
        return encoder

    @property
    def description(self) -> str:
        """For people: the model's name and its precision."""
        return f"{self.config.name} ({self.precision})"

    @cached_property
    def model(self) -> SentenceTransformer:
        """The loaded model, float32, with the prompts, length and device of the config."""
        model = _load(self.folder, self.config)
        if folder_state(self.folder) != self._state:
            raise ModelError(f"{self.folder}: the model has changed since closecall looked at it; start again")
        return model

    @cached_property
    def _computing(self) -> SentenceTransformer:
        return in_precision(self.model, self.precision)

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
        """Where it runs: cpu, cuda:0, mps; the model is not loaded to say it."""
        return str(self.model.device) if "model" in self.__dict__ else likely_device(self.config.device)

    def encode(self, texts: Sequence[str], role: Role) -> Vectors:
        """float32 (n_texts, dimension), unit rows; ModelError when the model returns a vector that is not finite."""
        return encode_texts(self._computing, texts, role, self.config.batch_tokens)

    def encode_alone(self, texts: Sequence[str], role: Role) -> Vectors:
        """The same, few texts not filled up to a batch: equal but for the last bits of the model's precision."""
        return encode_texts(self._computing, texts, role, self.config.batch_tokens, fill=False)

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


def encode_alone(encoder: Encoder, texts: Sequence[str], role: Role) -> Vectors:
    """The vectors of a few texts as quickly as a service would give them, for timing."""
    return encoder.encode_alone(texts, role) if isinstance(encoder, TextEncoder) else encoder.encode(texts, role)


def encode_blocks(encoder: Encoder, blocks: Sequence[Sequence[str]], role: Role) -> list[Vectors]:
    """The vectors of each block of texts, a block for each process of the job that waits for work.

    A model that is only in memory, and a service, encode in this process alone.
    """
    if helpers() and isinstance(encoder, TextEncoder) and not encoder.in_memory:
        what = (encoder.folder, encoder.config, encoder.fingerprint)
        _loaded[encoder.fingerprint] = encoder
        return share(_encode_block, [(what, block, role) for block in blocks])
    return [encoder.encode(block, role) for block in blocks]


_loaded: dict[str, TextEncoder] = {}
"""Encoders of shared blocks, by fingerprint."""


def _encode_block(what: tuple[Path, ModelConfig, str], texts: Sequence[str], role: Role) -> Vectors:
    folder, config, fingerprint = what
    if fingerprint not in _loaded:
        found = TextEncoder(folder, config)
        if found.fingerprint != fingerprint:
            raise ModelError(
                f"process {rank()} on {socket.gethostname()}: {folder} is another model, or encodes in another "
                "precision, than in process 0; give all processes the same folder, and set model.precision"
            )
        _loaded[fingerprint] = found
    return _loaded[fingerprint].encode(texts, role)


def load_encoder(config: ModelConfig) -> TextEncoder:
    """The encoder a config names; ModelError when it cannot be found, is no model or has other weights."""
    return TextEncoder(resolve_model(config.name), config)


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
