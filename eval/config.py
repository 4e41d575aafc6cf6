"""Settings of the evaluation stage: what is measured, and the rule that makes a verdict of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from closecall.config import Settings
from closecall.dataset import DataConfig
from closecall.measures import Gain, Measure, MeasureName


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class EvalConfig(Settings):
    """How base and tuned are compared, and when the tuned model is adopted."""

    measure: MeasureName = Field("nDCG@10", description="the measure that decides")
    measures: tuple[MeasureName, ...] = Field(
        ("recall@1", "recall@5", "recall@10", "MRR@10", "judged@10"), description="reported beside the deciding one"
    )
    gain: Gain = Field("exp", description="gain of a grade in nDCG: exp = 2^grade - 1, linear = grade")
    depth: int = Field(100, ge=1, description="documents retrieved per query; more where a measure has a larger cutoff")
    slice_by: Annotated[tuple[str, ...] | None, BeforeValidator(_several)] = Field(
        None, description="query columns to slice by; default: columns of 2 to 50 values that repeat"
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of the interval on the delta")
    resamples: int = Field(9999, ge=999, le=1_000_000, description="of the bootstrap and the permutation test")
    seed: int = Field(0, ge=0, description="of the resampling")
    min_gain: float = Field(0.0, ge=0, lt=1, description="adopt only if the interval lies above this; 0.01 = 1 point")
    max_slice_loss: float = Field(
        0.02, ge=0, lt=1, description="reject if a slice is shown to lose more than this; 0.02 = 2 points"
    )
    guard: DataConfig | None = Field(
        None, description="another judged dataset (folder, or files as in data) that must not get worse"
    )
    max_guard_loss: float = Field(0.02, ge=0, lt=1, description="reject if the guard set is shown to lose more")
    min_groups: int = Field(
        20, ge=2, description="independent queries (groups) below which no interval holds, so nothing is decided"
    )
    min_slice_queries: int = Field(30, ge=2, description="smaller slices are shown, but too small to judge")

    def all_measures(self) -> tuple[Measure, ...]:
        """The deciding measure first, then the others, each once."""
        return tuple(Measure.parse(name) for name in dict.fromkeys((self.measure, *self.measures)))
