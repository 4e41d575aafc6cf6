"""Contenders built from a config: each a system over the corpus, with what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from closecall.cross_encoder import CrossEncoderScorer, ScoreCache
from closecall.encoder import Encoder, TextEncoder, load_encoder
from closecall.endpoint import EndpointEncoder
from closecall.errors import ConfigError, DataError
from closecall.models import resolve_model
from closecall.trec import read_run
from closecall.vectors import VectorStore
from eval.contenders import ContenderConfig, described, in_order
from eval.systems import Dense, Fused, Lexical, Reranked, RunFile, Searched, System


@dataclass(frozen=True)
class Contender:
    """A system under evaluation: how it is called, what it is, and its models."""

    name: str
    what: str
    system: System
    weights_sha256: str = ""
    encoder: Encoder | None = None
    """Of dense ones."""
    folders: tuple[Path, ...] = field(default=())
    """Of its models, for their size."""
    from_file: bool = False
    """Its answers are read, so it cannot answer other queries, nor be timed."""


@dataclass(frozen=True)
class Builder:
    """Builds contenders over one corpus."""

    corpus: Searched
    store: VectorStore
    known: Mapping[str, Contender]
    """Base, and tuned where there is one."""
    query_ids: Sequence[str] = ()
    """What is asked; a run must answer one of them. None where other queries are asked, which no run answers."""

    def all(self, configs: Sequence[ContenderConfig]) -> dict[str, Contender]:
        """Base, tuned and the contenders of the config, in its order."""
        made = dict(self.known)
        for config in in_order(tuple(configs), tuple(self.known)):
            made[config.name] = self._one(config, made)
        return {name: made[name] for name in [*self.known, *(config.name for config in configs)]}

    def _one(self, config: ContenderConfig, made: Mapping[str, Contender]) -> Contender:
        contender = self._source(config, made)
        if config.rerank is None:
            return contender
        folder = resolve_model(config.rerank.name)
        cache = ScoreCache(self.store.folder.with_name("reranker") / "scores.sqlite")
        scorer = CrossEncoderScorer(folder, config.rerank, cache, "reranker")
        system = Reranked(self.corpus, contender.system, scorer, config.rerank.depth)
        return replace(contender, system=system, folders=(*contender.folders, folder))

    def _source(self, config: ContenderConfig, made: Mapping[str, Contender]) -> Contender:
        what = described(config)
        if config.bm25:
            return Contender(config.name, what, Lexical(self.corpus))
        if config.run is not None:
            return Contender(config.name, what, self._run_file(config.run), from_file=True)
        if config.fuse:
            parts = [made[name] for name in config.fuse]
            return Contender(
                config.name,
                what,
                Fused(self.corpus, [part.system for part in parts], config.fuse_k),
                folders=tuple(folder for part in parts for folder in part.folders),
                from_file=any(part.from_file for part in parts),
            )
        if config.of is not None:
            return self._variant(config, made[config.of], what)
        encoder: TextEncoder | EndpointEncoder
        if config.model is not None:
            encoder = load_encoder(config.model)
            return self._dense(config, what, encoder, (encoder.folder,))
        assert config.endpoint is not None
        return self._dense(config, what, EndpointEncoder(config.endpoint), ())

    def _run_file(self, path: Path) -> RunFile:
        """A run that answers at least one of the queries, with documents of this corpus."""
        run, system = (found := read_run(path)), RunFile(found, self.corpus)
        if not self.query_ids:
            return system
        if not any(query_id in run for query_id in self.query_ids):
            raise DataError(
                f"{path}: none of its queries ({next(iter(run))!r}, ...) is a test query ({self.query_ids[0]!r}, ...); "
                "search with the queries of split/test"
            )
        documents = set(self.corpus.doc_ids)
        if not any(scored.doc_id in documents for query_id in run for scored in run.ranking(query_id)):
            raise DataError(
                f"{path}: none of its documents is in the corpus; search the same corpus, with the same ids"
            )
        return system

    def _variant(self, config: ContenderConfig, of: Contender, what: str) -> Contender:
        if not config.dimensions and not config.quantise:
            return replace(of, name=config.name, what=what)
        index = of.system
        if not isinstance(index, Dense):
            raise ConfigError(
                f"eval.contenders: {config.name}: {of.name} has no vectors of its own to cut or quantise; "
                "name a dense one, that nothing reranks"
            )
        _check_dimensions(config, index.width)
        kept: dict[str, object] = {"dimensions": config.dimensions or index.dimensions}
        if config.quantise is None:
            kept |= {"quantise": index.quantise, "rescore": index.rescore}
        return self._dense(config.model_copy(update=kept), what, index.encoder, of.folders)

    def _dense(self, config: ContenderConfig, what: str, encoder: Encoder, folders: tuple[Path, ...]) -> Contender:
        _check_dimensions(config, encoder.dimension)
        system = dense(self.corpus, self.store, encoder, config.name, config)
        return Contender(config.name, what, system, encoder.weights_sha256, encoder, folders)


def _check_dimensions(config: ContenderConfig, width: int) -> None:
    if config.dimensions is not None and config.dimensions > width:
        raise ConfigError(
            f"eval.contenders: {config.name}: dimensions is {config.dimensions}, and the vectors have {width}; lower it"
        )


def dense(
    corpus: Searched, store: VectorStore, encoder: Encoder, name: str, config: ContenderConfig | None = None
) -> Dense:
    """The index of an encoder, as a config wants it cut and quantised."""
    if config is None:
        return Dense(corpus, encoder, store, name)
    return Dense(corpus, encoder, store, name, config.dimensions, config.quantise, config.rescore)


def model(corpus: Searched, store: VectorStore, name: str, what: str, encoder: TextEncoder) -> Contender:
    """Base or tuned."""
    system = dense(corpus, store, encoder, name)
    return Contender(name, what, system, encoder.weights_sha256, encoder, (encoder.folder,))
