"""Settings of the fine-tuning stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from closecall.config import Settings
from closecall.encoder import ModelConfig
from closecall.measures import MeasureName
from closecall.precision import Precision

Direction = Literal["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"]
Hardness = Literal["in_batch_negatives", "hard_negatives", "all_negatives"]

INTEGRATIONS = (
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "mlflow", "neptune",
    "swanlab", "tensorboard", "trackio", "wandb",
)  # fmt: skip
"""The names that the trainer of transformers 5 accepts in `report_to`."""


def _several(value: object) -> object:
    """One value where a list may stand."""
    return (value,) if isinstance(value, (str, int)) and not isinstance(value, bool) else value


class LoraConfig(Settings):
    """Low-rank adapters (Hu et al. 2021) through `peft`; they are merged into the weights after training."""

    rank: int = Field(16, ge=1, le=1024, description="of the adapters")
    alpha: int = Field(32, gt=0, description="adapters are scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the adapters' inputs")
    modules: tuple[str, ...] | Literal["all-linear"] = Field(
        "all-linear", description="names of the modules that get an adapter, as peft's `target_modules`"
    )


class GuideMaskConfig(Settings):
    """Documents that a frozen guide scores near or above the positive are left out of the softmax (GISTEmbed)."""

    model: Annotated[ModelConfig, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)] | None = Field(
        None, description="the guide; default: the base model as it was before training"
    )
    margin: float = Field(
        0.0, ge=-1, le=1, description="left out: cosine above the positive's less this fraction of it; 0.05 is stricter"
    )


class FinetuneConfig(Settings):
    """How the base model is trained."""

    epochs: float = Field(1.0, ge=0, le=10_000, description="passes over the triples; 0 trains nothing")
    batch_size: int = Field(32, ge=2, le=65_536, description="(query, positive) rows per step, over all processes")
    mini_batch_size: int | None = Field(
        None, ge=1, description="texts in memory at once: the cached loss (GradCache), for batches too large for memory"
    )
    related: int = Field(
        1, ge=1, le=1024, description="rows of nearest queries that are put into the same batch; 1: batches at random"
    )
    learning_rate: float = Field(
        1e-4, gt=0, description="peak, after warm-up, falls linearly to 0; 2e-5 to 5e-5 for 100 M weights and more"
    )
    warmup_fraction: float = Field(0.1, ge=0, lt=1, description="share of the steps in which the rate rises")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    dropout: float | None = Field(
        0.0, ge=0, lt=1, description="in training; null: the model's own, which takes twice the time on a CPU"
    )
    precision: Precision = Field(
        "auto", description="of the forward passes in training; auto: bfloat16 where the machine computes in it"
    )
    negatives: int | None = Field(None, ge=0, description="hard negatives used per row; default: all that were mined")
    scale: float = Field(20.0, gt=0, description="cosine is multiplied by this before the softmax (1 / temperature)")
    directions: Annotated[tuple[Direction, ...], BeforeValidator(_several)] = Field(
        ("query_to_doc",), description="what competes with the pair (query, positive), as in sentence-transformers"
    )
    partition: Literal["joint", "per_direction"] = Field(
        "joint", description="one softmax over all directions, or one for each, averaged"
    )
    hardness: Hardness | None = Field(
        None, description="negatives whose logits grow with their own cosine, by hardness_strength"
    )
    hardness_strength: float = Field(5.0, ge=0, description="5 in EmbeddingGemma on hard negatives, 9 in LLaVE on all")
    guide: GuideMaskConfig | None = Field(
        None, description="a frozen model whose scores mask likely positives; `{}` for the base model"
    )
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="dimensions for which the loss is added up beside the full size (Matryoshka)"
    )
    lora: LoraConfig | None = Field(None, description="train adapters instead of all weights; needs closecall[lora]")
    dev_measure: MeasureName = Field("nDCG@10", description="measure on the dev split that chooses the checkpoint")
    dev_documents: int = Field(
        1000, ge=0, description="of a large corpus dev searches what is judged for its queries, and this many near ones"
    )
    evaluations_per_epoch: int = Field(
        2, ge=1, le=1000, description="how often dev is measured, the last step included"
    )
    patience: int | None = Field(
        4, ge=1, description="training ends after so many dev measurements without a better one; null: never"
    )
    mix: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.5, 0.75), description="shares of the tuned weights in averages with the base that dev may choose"
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], BeforeValidator(_several)] = Field(
        (0,), min_length=1, description="one training each, the best on dev is kept: order of the rows, and dropout"
    )
    rounds: int = Field(1, ge=1, le=10, description="2: mine again with the tuned model and train on, and so on")
    report_to: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        (), description="tensorboard, wandb, mlflow, trackio, ...: as the transformers trainer knows them"
    )

    def one_round(self) -> FinetuneConfig:
        """The same settings for each of the rounds, so that more rounds build on those that are there."""
        return self.model_copy(update={"rounds": 1})

    @model_validator(mode="after")
    def _fits(self) -> FinetuneConfig:
        if unknown := [name for name in self.report_to if name not in INTEGRATIONS]:
            raise ValueError(f"report_to: found {unknown[0]!r}; the trainer knows {', '.join(INTEGRATIONS)}")
        if "query_to_doc" not in self.directions:
            raise ValueError("directions: query_to_doc is always one of them, it holds the pair; add it")
        if len(set(self.directions)) < len(self.directions) or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("directions and seeds: each once; remove what stands twice")
        if self.partition == "per_direction" and {"query_to_query", "doc_to_doc"} & set(self.directions):
            raise ValueError(
                "partition: per_direction needs directions that hold the pair (query_to_doc, doc_to_query); use joint"
            )
        return self
