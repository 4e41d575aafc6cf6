"""What a training will cost, said before it starts: texts, tokens, minutes, disk."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from closecall.encoder import TextEncoder
from closecall.encoding import encode_texts
from closecall.errors import ArtifactError
from closecall.precision import Precision
from finetune.batch import BatchBuilder
from finetune.config import FinetuneConfig
from finetune.plan import Plan
from finetune.weights import autocast

FORWARD_AND_BACKWARD = 3.0
"""A training step costs so many times the forward pass of its texts: the backward pass is two of them."""
CACHED = 4.0
"""With cached gradients (GradCache) there is one more forward pass."""
PROBE_TEXTS = 32
STATES = 3
"""Weights and AdamW's two moments, in a resumable step."""
STEPS_ON_DISK = 3
"""Two resumable steps are kept, and a third is there while the oldest is not deleted yet."""
MODELS_ON_DISK = 3
"""The best weights so far, those that replace them, and the checkpoint."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one seed's training, dev measurements left out."""

    texts: int
    tokens: int
    minutes: float
    disk_bytes: int

    def line(self) -> str:
        """In words."""
        return (
            f"{self.texts:,} texts, {self.tokens:,} tokens, about {max(self.minutes, 0.1):.1f} min; "
            f"up to {self.disk_bytes / 1e9:.1f} GB on disk while it runs"
        )


def estimate(
    builder: BatchBuilder, schedule: Plan, encoder: TextEncoder, config: FinetuneConfig, precision: Precision
) -> Estimate:
    """Texts and tokens of all planned batches, each document of a batch once, and how long they take here.

    The time is that of a forward pass over some of the texts, measured now, times 3 (times 4 with the cached loss).
    """
    model = encoder.model
    limit = encoder.max_length_tokens or np.iinfo(np.int64).max
    documents = np.minimum(encoder.token_counts(builder.document_texts, "document"), limit)
    queries = np.minimum(encoder.token_counts(builder.query_texts, "query"), limit)
    texts = tokens = 0
    steps = min(schedule.steps, schedule.steps_per_epoch)
    for step in range(1, steps + 1):
        rows = schedule.rows(step)
        keys = builder.keys(rows.tolist())
        texts += len(keys) + len(rows)
        tokens += int(documents[keys].sum() + queries[builder.row_query[rows]].sum())
    factor = schedule.steps / steps if steps else 0.0
    texts, tokens = round(texts * factor), round(tokens * factor)
    passes = CACHED if config.mini_batch_size is not None else FORWARD_AND_BACKWARD
    minutes = tokens * passes / _tokens_per_second(model, builder, documents, precision) / 60 if tokens else 0.0
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    trained = weights if config.lora is None else 0
    disk = STEPS_ON_DISK * (weights + (STATES - 1) * trained) + MODELS_ON_DISK * weights
    return Estimate(texts, tokens, minutes / schedule.processes, disk)


def check_disk(found: Estimate, folder: Path) -> None:
    """ArtifactError when the folder's disk has less room than training may need."""
    free = shutil.disk_usage(folder).free
    if free < found.disk_bytes:
        raise ArtifactError(
            f"{folder}: {free / 1e9:.1f} GB are free, training needs up to {found.disk_bytes / 1e9:.1f} GB for steps "
            "that it can resume; make room, or choose another `output`"
        )


def _tokens_per_second(
    model: SentenceTransformer, builder: BatchBuilder, lengths: np.ndarray, precision: Precision
) -> float:
    """Tokens of a typical block of documents through the model, the faster of two passes."""
    typical = np.argsort(lengths, kind="stable")[:: max(1, len(lengths) // PROBE_TEXTS)][:PROBE_TEXTS]
    texts = [builder.document_texts[key] for key in typical]
    taken = []
    with autocast(model.device, precision):
        for _ in range(2):
            started = time.perf_counter()
            encode_texts(model, texts, "document", fill=False)
            taken.append(time.perf_counter() - started)
    return float(lengths[typical].sum()) / min(taken)
