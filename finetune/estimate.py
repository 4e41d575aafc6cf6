"""What a training will cost, said before it starts: texts, tokens, minutes, disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from closecall.encoder import TextEncoder
from closecall.errors import ArtifactError
from closecall.precision import Precision
from finetune.batch import BLOCK_DOCUMENTS, BatchBuilder
from finetune.config import FinetuneConfig
from finetune.plan import Plan
from finetune.weights import autocast, float32_attention

CACHED = 4 / 3
"""With cached gradients (GradCache) there is one more forward pass, which is a third of forward and backward."""
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

    The time is that of forward and backward passes over some of the texts, measured now.
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
    seconds = 0.0
    if tokens:
        typical = np.argsort(documents, kind="stable")[:: max(1, len(documents) // PROBE_TEXTS)][:PROBE_TEXTS]
        chosen = [builder.document_texts[key] for key in typical]
        seconds = tokens / training_speed(model, chosen, int(documents[typical].sum()), precision)
    minutes = seconds * (1.0 if config.mini_batch_size is None else CACHED) / 60
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


def training_speed(model: SentenceTransformer, texts: Sequence[str], tokens: int, precision: Precision) -> float:
    """Tokens per second forward and backward, over texts with so many tokens: the faster of two passes.

    The weights stay as they are.
    """
    taken = []
    ordered = sorted(texts, key=len, reverse=True)
    with float32_attention(model.device):
        for _ in range(2):
            started = time.perf_counter()
            for first in range(0, len(ordered), BLOCK_DOCUMENTS):
                features = model.preprocess(ordered[first : first + BLOCK_DOCUMENTS], task="document")
                with autocast(model.device, precision):
                    found = model({name: _on(value, model) for name, value in features.items()}, task="document")
                torch.autograd.backward(found["sentence_embedding"].float().sum())
            taken.append(time.perf_counter() - started)
            model.zero_grad(set_to_none=True)
    return tokens / min(taken)


def _on(value: Any, model: SentenceTransformer) -> Any:
    return value.to(model.device) if isinstance(value, torch.Tensor) else value
