"""Settings of the mining stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from closecall.approximate import EXACT, SearchConfig
from closecall.config import ConfigPath, Settings
from closecall.cross_encoder import CrossEncoderConfig
from closecall.encoder import ModelConfig, ModelName

SourceKind = Literal["dense", "bm25", "run", "judged", "random"]
_OF_SOURCE = {"run": "run", "dense": "model"}
"""`source: {run: FILE}` and `source: {dense: MODEL}`: where the inner value goes."""


def _named_model(value: object) -> object:
    """A model given by its name alone."""
    return {"name": value} if isinstance(value, str) else value


_OF_CROSS_ENCODER = ("model_sha256", "max_length_tokens", "batch_size", "device")

SourceModel = Annotated[ModelConfig, BeforeValidator(_named_model)]


class SourceConfig(Settings):
    """Where candidates come from."""

    source: SourceKind = Field(
        description="dense (the base model, or `{dense: MODEL}` for another), bm25, `{run: FILE}` (a TREC run of any "
        "engine), judged (documents of grade 0), random"
    )
    run: ConfigPath | None = Field(None, description="the run file of a `run` source")
    model: SourceModel | None = Field(None, description="the model of a second `dense` source; default: the base")
    name: str = Field("", pattern=r"^[\w.-]*$", description="in tables and reports; default: kind, file or model")
    depth: int | None = Field(None, ge=1, description="candidates per query before filters; default: mining.depth")
    quota: int | None = Field(
        None, ge=1, description="so many of a row's negatives are kept for this source, while it has any that pass"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: object) -> object:
        """`bm25`, `{source: {run: FILE}}` and `{source: {dense: MODEL}}` as the fields they stand for."""
        if isinstance(value, str):
            return {"source": value}
        if not isinstance(value, Mapping) or not isinstance(inner := value.get("source"), Mapping):
            return value
        key = next(iter(inner), None)
        if len(inner) != 1 or key not in _OF_SOURCE:
            raise ValueError(f"source: found {dict(inner)!r}; write {{run: FILE}}, {{dense: MODEL}}, or one word")
        if (of := _OF_SOURCE[key]) in value:
            raise ValueError(f"`{of}` is given twice, inside `source` and beside it; keep one")
        return {**value, "source": key, of: inner[key]}

    @model_validator(mode="after")
    def _belongs(self) -> SourceConfig:
        if (self.source == "run") != (self.run is not None):
            raise ValueError(
                "a run source needs its file: write `source: {run: FILE}`"
                if self.run is None
                else f"`run` is for run sources, this one is {self.source}"
            )
        if self.model is not None and self.source != "dense":
            raise ValueError(f"`model` is for dense sources, this one is {self.source}")
        return self

    @property
    def label(self) -> str:
        """The name of the source in tables and reports."""
        return self.name or (PurePath(self.run).stem if self.run else self._model_label())

    def _model_label(self) -> str:
        return f"{self.source}-{PurePath(self.model.name).name}" if self.model else self.source


class GuideConfig(Settings):
    """A stronger model that scores again what the other filters let through."""

    cross_encoder: ModelName | None = Field(None, description="a CrossEncoder: reads query and document together")
    encoder: SourceModel | None = Field(None, description="or a SentenceTransformer stronger than the base")
    model_sha256: str | None = Field(
        None, pattern="^[0-9a-fA-F]{64}$", description="refuse cross-encoder weights with another sha256"
    )
    max_length_tokens: int | None = Field(None, ge=4, description="of the cross-encoder; default: its own limit")
    batch_size: int = Field(32, ge=1, description="pairs that a cross-encoder scores at once")
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?$",
        description="of the cross-encoder: cpu, cuda, cuda:1, mps; default: the best there is",
    )
    margin_fraction: float | None = Field(
        0.05, ge=0, lt=2, description="on the guide's scores; at most positive - |positive| * this; null: none"
    )
    margin: float | None = Field(None, ge=0, description="on the guide's scores: at most positive - this; null: none")

    def scorer(self) -> CrossEncoderConfig:
        """The settings of the cross-encoder."""
        assert self.cross_encoder is not None
        return CrossEncoderConfig(name=self.cross_encoder, **{name: getattr(self, name) for name in _OF_CROSS_ENCODER})

    @model_validator(mode="after")
    def _one_model(self) -> GuideConfig:
        if (self.cross_encoder is None) == (self.encoder is None):
            raise ValueError("give either cross_encoder or encoder: the one model that scores again")
        if self.margin_fraction is None and self.margin is None:
            raise ValueError("give margin_fraction or margin: without either the guide drops nothing")
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        beside = [name for name in _OF_CROSS_ENCODER if getattr(self, name) != defaults[name]]
        if self.encoder is not None and beside:
            raise ValueError(f"{', '.join(beside)}: of cross_encoder alone; write it inside `encoder: {{name: MODEL}}`")
        return self


class MiningConfig(Settings):
    """Which near misses become hard negatives."""

    sources: tuple[SourceConfig, ...] = Field(
        (SourceConfig(source="dense"), SourceConfig(source="judged")),
        description="where candidates come from, at least one; one found by several is one candidate",
    )
    search: SearchConfig = Field(EXACT, description="how dense sources search; exact by default")
    negatives: int = Field(4, ge=1, description="hard negatives per (query, positive)")
    depth: int = Field(50, ge=1, description="candidates per query and source before filters")
    max_depth: int = Field(
        1000, ge=1, description="a query that is short of negatives is searched deeper, down to this rank"
    )
    near_copy: float | None = Field(
        0.9,
        gt=0,
        le=1,
        description="a candidate whose word set is this similar (Jaccard) to a positive's is a copy of it; null: none",
    )
    min_rank: int = Field(1, ge=1, description="candidates that a source ranks above this are dropped")
    max_rank: int | None = Field(None, ge=1, description="candidates that no source ranks this high are dropped")
    min_score: float | None = Field(None, description="lowest score of a candidate with the base model; null: none")
    max_score: float | None = Field(None, description="highest score of a candidate with the base model; null: none")
    margin_fraction: float | None = Field(
        0.05, ge=0, lt=2, description="a candidate must score at most positive - |positive| * this; null: no margin"
    )
    margin: float | None = Field(
        None, ge=0, lt=2, description="a candidate must score at most positive - this; null: no such margin"
    )
    guide: GuideConfig | None = Field(None, description="a stronger model that scores again what is left; null: none")
    per: Literal["positive", "query"] = Field(
        "positive",
        description="positive: each positive has its margins and negatives; query: all share those that "
        "the lowest positive allows",
    )
    select: Literal["top", "random", "weighted"] = Field(
        "top", description="the nearest, or drawn evenly, or drawn by hardness, from the `sample_from` nearest"
    )
    sample_from: int = Field(10, ge=1, description="random and weighted draw from so many nearest that passed")
    hardness: float = Field(10.0, ge=0, description="weighted: a candidate's weight is exp(hardness * score)")
    max_uses: int | None = Field(
        None, ge=1, description="a document is a negative of at most so many queries; null: any"
    )
    seed: int = Field(0, ge=0, description="of the random source and of drawing")
    slice_by: tuple[str, ...] | None = Field(
        None, description="query columns for the report's slices; default: columns of 2 to 50 values that repeat"
    )

    @model_validator(mode="after")
    def _check(self) -> MiningConfig:
        faults = [*self._depth_faults(), *self._window_faults(), *self._source_faults()]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _depth_faults(self) -> list[str]:
        faults = []
        if self.depth < self.negatives:
            faults.append(f"depth {self.depth} is below negatives {self.negatives}; retrieve at least as many")
        if self.max_depth < self.depth:
            faults.append(f"max_depth {self.max_depth} is below depth {self.depth}; raise it or lower depth")
        if self.select != "top" and self.sample_from < self.negatives:
            faults.append(f"sample_from {self.sample_from} is below negatives {self.negatives}; raise it")
        return faults

    def _window_faults(self) -> list[str]:
        faults = []
        last = self.max_rank if self.max_rank is not None else self.max_depth
        if last - self.min_rank + 1 < self.negatives:
            held = max(0, last - self.min_rank + 1)
            faults.append(
                f"the ranks {self.min_rank} to {last} are {held}, fewer than negatives {self.negatives}; widen them"
            )
        if self.min_score is not None and self.max_score is not None and self.min_score > self.max_score:
            faults.append(f"min_score {self.min_score} is above max_score {self.max_score}: nothing lies between")
        return faults

    def _source_faults(self) -> list[str]:
        faults = [] if self.sources else ["sources is empty; name one, such as dense, or leave it out"]
        counts = Counter(source.label for source in self.sources)
        if twice := sorted(label for label, count in counts.items() if count > 1):
            faults.append(f"two sources are called {twice[0]!r}; give one a `name`")
        if "guide" in counts:
            faults.append("a source is called 'guide', as the columns of the guide's scores are; give it a `name`")
        asked = sum(source.quota or 0 for source in self.sources)
        if asked > self.negatives:
            faults.append(f"the quotas of the sources add up to {asked}, more than negatives {self.negatives}")
        return faults
