"""Settings of the evaluation stage: what is measured, and the rule that makes a verdict of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from closecall.approximate import EXACT, SearchConfig
from closecall.config import Settings
from closecall.dataset import DataConfig
from closecall.measures import Gain, Measure, MeasureName
from eval.contenders import BASE, TUNED, ContenderConfig, in_order


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class LimitsConfig(Settings):
    """What a contender may cost to be adopted; all measured in the same run."""

    latency_p95_ms: float | None = Field(None, gt=0, description="one query alone: encoding, search, reranking")
    bytes_per_vector: int | None = Field(None, ge=1, description="of the index")
    index_gib: float | None = Field(None, gt=0, description="of the index over this corpus")
    encode_documents_s: float | None = Field(None, gt=0, description="per 1,000 documents")
    price_per_1000_queries: float | None = Field(None, gt=0, description="of services, in the currency of their price")


class EvalConfig(Settings):
    """How base and tuned are compared, and when the tuned model is adopted."""

    measure: MeasureName = Field("nDCG@10", description="the measure that decides")
    measures: tuple[MeasureName, ...] = Field(
        ("recall@1", "recall@5", "recall@10", "MRR@10", "judged@10"), description="reported beside the deciding one"
    )
    gain: Gain = Field("exp", description="gain of a grade in nDCG: exp = 2^grade - 1, linear = grade")
    depth: int = Field(100, ge=1, description="documents retrieved per query; more where a measure has a larger cutoff")
    slice_by: Annotated[tuple[str, ...] | None, BeforeValidator(_several)] = Field(
        None, description="query columns, or two as `a+b`, to slice by; default: columns of 2 to 50 values that repeat"
    )
    contenders: tuple[ContenderConfig, ...] = Field((), description="other systems that answer the same queries")
    incumbent: str = Field(BASE, description="what each contender is compared with: base, or one of the contenders")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of the interval on the delta")
    resamples: int = Field(9999, ge=999, le=1_000_000, description="of the bootstrap and the permutation test")
    search: SearchConfig = Field(EXACT, description="how vectors are searched; the report says if not exact")
    seed: int = Field(0, ge=0, description="of the resampling")
    min_gain: float = Field(0.0, ge=0, lt=1, description="adopt only if the interval lies above this; 0.01 = 1 point")
    max_slice_loss: float = Field(
        0.02, ge=0, lt=1, description="reject if a slice is shown to lose more than this; 0.02 = 2 points"
    )
    required_slices: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        (), description="slices that must be shown to lose no more than max_slice_loss, not only not shown to lose more"
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="on costs; a contender above one is rejected")
    guard: DataConfig | None = Field(
        None, description="another judged dataset (folder, or files as in data) that must not get worse"
    )
    max_guard_loss: float = Field(0.02, ge=0, lt=1, description="reject if the guard set is shown to lose more")
    min_groups: int = Field(
        20, ge=2, description="independent queries (groups) below which no interval holds, so nothing is decided"
    )
    min_slice_queries: int = Field(30, ge=2, description="smaller slices are shown, but too small to judge")

    @model_validator(mode="after")
    def _known(self) -> EvalConfig:
        in_order(self.contenders, (BASE, TUNED))
        names = [BASE, TUNED, *(contender.name for contender in self.contenders)]
        if self.incumbent not in names:
            raise ValueError(f"incumbent: found {self.incumbent!r}; there are {', '.join(names)}")
        return self

    def all_measures(self) -> tuple[Measure, ...]:
        """The deciding measure first, then the others, each once."""
        return tuple(Measure.parse(name) for name in dict.fromkeys((self.measure, *self.measures)))
