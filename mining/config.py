"""Settings of the mining stage."""

from __future__ import annotations

from pydantic import Field, model_validator

from closecall.config import Settings


class MiningConfig(Settings):
    """Which near misses become hard negatives."""

    negatives: int = Field(4, ge=1, description="hard negatives per (query, positive)")
    depth: int = Field(50, ge=1, description="how many documents are retrieved per query before filters")
    max_depth: int = Field(
        1000, ge=1, description="a query that is short of negatives is searched deeper, down to this rank"
    )
    margin_fraction: float | None = Field(
        0.05, ge=0, lt=2, description="a candidate must score at most positive - |positive| * this; null: no margin"
    )

    @model_validator(mode="after")
    def _depths(self) -> MiningConfig:
        if self.depth < self.negatives:
            raise ValueError(f"depth {self.depth} is below negatives {self.negatives}; retrieve at least as many")
        if self.max_depth < self.depth:
            raise ValueError(f"max_depth {self.max_depth} is below depth {self.depth}; raise it or lower depth")
        return self
