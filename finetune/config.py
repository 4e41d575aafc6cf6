"""Settings of the fine-tuning stage."""

from __future__ import annotations

from pydantic import Field

from closecall.config import Settings
from closecall.measures import MeasureName


class FinetuneConfig(Settings):
    """How the base model is trained. Defaults follow the sentence-transformers training guide."""

    epochs: float = Field(1.0, ge=0, le=10_000, description="passes over the triples; 0 trains nothing")
    batch_size: int = Field(32, ge=2, le=65_536, description="(query, positive) rows per step")
    learning_rate: float = Field(2e-5, gt=0, description="peak, after warm-up; falls linearly to 0")
    warmup_fraction: float = Field(0.1, ge=0, lt=1, description="share of the steps in which the rate rises")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    scale: float = Field(20.0, gt=0, description="cosine is multiplied by this before the softmax (1 / temperature)")
    negatives: int | None = Field(None, ge=0, description="hard negatives used per row; default: all that were mined")
    dev_measure: MeasureName = Field("nDCG@10", description="measure on the dev split that chooses the best step")
    evaluations_per_epoch: int = Field(
        2, ge=1, le=1000, description="how often dev is measured, the last step included"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="order of the rows, and dropout")
