"""What is compared: the base, the tuned model, and any other system that a config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from closecall.config import ConfigPath, Settings
from closecall.cross_encoder import CrossEncoderConfig, cross_encoder_fingerprint
from closecall.encoder import ModelConfig, load_encoder
from closecall.endpoint import EndpointConfig, EndpointEncoder
from closecall.errors import ConfigError, ModelError
from closecall.manifest import sha256_file
from closecall.models import resolve_model
from eval.quantised import Quantise

BASE, TUNED = "base", "tuned"
NAME = r"^[^\W_][\w.-]{0,59}$"
"""A contender names a file, and a line of a legend, which leaves out what begins with an underscore."""
KINDS = ("model", "endpoint", "run", "bm25", "of", "fuse")


def _named(value: object) -> object:
    """A model given by its name alone."""
    return {"name": value} if isinstance(value, str) else value


class RerankConfig(CrossEncoderConfig):
    """A cross-encoder that puts the first documents in a new order."""

    depth: int = Field(50, ge=1, description="how many of the first documents it reads")


class ContenderConfig(Settings):
    """A system that answers the test queries."""

    name: str = Field(pattern=NAME, description="in tables and reports")
    model: Annotated[ModelConfig, BeforeValidator(_named)] | None = Field(None, description="a SentenceTransformer")
    endpoint: EndpointConfig | None = Field(None, description="an OpenAI-compatible embeddings service")
    run: ConfigPath | None = Field(None, description="a TREC run of any engine over the test queries")
    bm25: bool = Field(False, description="true: BM25 over the corpus")
    of: str | None = Field(None, description="another contender, or base or tuned, with the settings below")
    fuse: tuple[str, ...] = Field((), description="contenders whose ranks are fused (reciprocal rank fusion)")
    fuse_k: int = Field(60, ge=1, description="constant of the fusion")
    dimensions: int | None = Field(None, ge=1, description="vectors are cut to their first dimensions")
    quantise: Quantise | None = Field(None, description="int8 or binary vectors in the index")
    rescore: int = Field(
        4, ge=1, description="of quantised vectors so many times the depth is fetched, and scored again in float32"
    )
    rerank: Annotated[RerankConfig, BeforeValidator(_named)] | None = Field(
        None, description="a CrossEncoder that puts the first documents in order"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """`bm25` alone."""
        return {"name": "bm25", "bm25": True} if value == "bm25" else value

    @model_validator(mode="after")
    def _one_kind(self) -> ContenderConfig:
        given = [kind for kind in KINDS if getattr(self, kind)]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"{self.name}: give one of {', '.join(KINDS)}; found {found}")
        if self.fuse and len(set(self.fuse)) < max(2, len(self.fuse)):
            raise ValueError(f"{self.name}: fuse needs two contenders or more, each once")
        if (self.dimensions or self.quantise) and given[0] not in ("model", "endpoint", "of"):
            raise ValueError(f"{self.name}: dimensions and quantise are of vectors, and {given[0]} has none")
        return self

    @property
    def parents(self) -> tuple[str, ...]:
        """The contenders it is made of."""
        return self.fuse or ((self.of,) if self.of else ())


def in_order(contenders: tuple[ContenderConfig, ...], known: tuple[str, ...]) -> tuple[ContenderConfig, ...]:
    """The contenders, each after those it is made of; ValueError for a name that is taken, unknown or its own part."""
    names = [contender.name for contender in contenders]
    if taken := [name for name in names if name in known or names.count(name) > 1]:
        raise ValueError(f"contenders: the name {taken[0]!r} is taken; give each its own")
    done, waiting = list[ContenderConfig](), list(contenders)
    while waiting:
        there = {*known, *(contender.name for contender in done)}
        ready = [contender for contender in waiting if set(contender.parents) <= there]
        if not ready:
            stuck = waiting[0]
            missing = next(name for name in stuck.parents if name not in there)
            raise ValueError(
                f"contenders: {stuck.name} is made of {missing!r}, which is no contender before it; "
                f"there are {', '.join([*known, *names])}"
            )
        done += ready
        waiting = [contender for contender in waiting if contender not in ready]
    return tuple(done)


def described(contender: ContenderConfig) -> str:
    """What a contender is, in words."""
    parts = [_source(contender)]
    if contender.dimensions:
        parts.append(f"first {contender.dimensions} dimensions")
    if contender.quantise:
        parts.append(f"{contender.quantise}, best {contender.rescore} x depth rescored")
    if contender.rerank:
        parts.append(f"first {contender.rerank.depth} reranked by {contender.rerank.name}")
    return ", ".join(parts)


def _source(contender: ContenderConfig) -> str:
    if contender.model:
        return contender.model.name
    if contender.endpoint:
        return f"{contender.endpoint.model} at {contender.endpoint.url}"
    if contender.fuse:
        return f"reciprocal rank fusion of {' and '.join(contender.fuse)} (k = {contender.fuse_k})"
    return str(contender.run or contender.of or "BM25 (k1 1.5, b 0.75)")


def inputs_of(contenders: tuple[ContenderConfig, ...]) -> Mapping[str, str]:
    """What the contenders are made of beside base and tuned, by content hash."""
    found: dict[str, str] = {}
    for contender in contenders:
        try:
            found |= _inputs(contender)
        except ModelError as error:
            raise ModelError(f"eval.contenders: {contender.name}: {error}") from error
        except OSError as error:
            where = f"eval.contenders: {contender.name}: {contender.run}"
            raise ConfigError(f"{where}: cannot be read ({error.strerror}); name the file of a TREC run") from error
    return found


def _inputs(contender: ContenderConfig) -> dict[str, str]:
    found: dict[str, str] = {}
    if contender.model:
        found[f"contender {contender.name}"] = load_encoder(contender.model).fingerprint
    if contender.endpoint:
        found[f"contender {contender.name}"] = EndpointEncoder(contender.endpoint).fingerprint
    if contender.run:
        found[f"contender {contender.name}"] = sha256_file(contender.run)
    if contender.rerank:
        folder = resolve_model(contender.rerank.name)
        found[f"reranker {contender.name}"] = cross_encoder_fingerprint(folder, contender.rerank)
    return found
