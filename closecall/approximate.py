"""Approximate search for large corpora: FAISS finds candidates, exact scores rank them, recall is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from pydantic import Field, model_validator

from closecall.config import Settings
from closecall.encoding import Vectors
from closecall.errors import ConfigError
from closecall.manifest import Artifact, sha256_json, up_to_date, writing
from closecall.progress import progress, say
from closecall.search import TIE_SLACK, ExactIndex, Hits, rounded

Kind = Literal["exact", "ivf", "hnsw", "pq", "ivfpq"]
INDEX = "index.faiss"
TRAINED_PER_LIST = 64
"""Vectors that a cluster is trained on; FAISS warns below 39."""
CODES_TRAINED_ON = 65_536
ADDED_AT_ONCE = 65_536
BUILD_EFFORT = 80
"""HNSW's efConstruction."""
DIMENSIONS_PER_CODE = 8
"""A product quantiser spends a byte on so many dimensions."""


class SearchConfig(Settings):
    """How the nearest documents are found. Scores are exact in any case, and ties go by document id."""

    kind: Kind = Field("exact", description="exact, or FAISS's ivf, hnsw, pq or ivfpq for large corpora")
    min_recall: float = Field(
        0.95, gt=0, le=1, description="of what exact search finds on a sample; below it the index is refused"
    )
    sample: int = Field(200, ge=1, description="queries whose recall is measured")
    effort: int | None = Field(
        None,
        ge=1,
        description="lists that ivf looks into, width of hnsw's search; default: the least power of two that reaches "
        "min_recall on the sample",
    )
    lists: int | None = Field(None, ge=1, description="of ivf; default: 4 times the square root of the documents")
    links: int = Field(32, ge=4, description="of each document in hnsw")
    rescore: int = Field(4, ge=1, description="pq and ivfpq find so many times as many candidates as are asked for")

    @model_validator(mode="after")
    def _check(self) -> SearchConfig:
        if self.kind in ("exact", "pq") and self.effort is not None:
            raise ValueError(f"effort: {self.kind} has none; drop it, or choose ivf, hnsw or ivfpq")
        return self


EXACT = SearchConfig()


@dataclass(frozen=True)
class Recall:
    """What an index finds of what exact search finds."""

    value: float
    """Mean share of the nearest `depth`, in [0, 1]."""
    queries: int
    depth: int
    effort: int | None

    def as_json(self, kind: Kind) -> dict[str, Any]:
        """For stats and manifests."""
        return {
            "search": kind,
            "recall": round(self.value, 4),
            "recall_queries": self.queries,
            "recall_depth": self.depth,
            "effort": self.effort,
        }


class ApproximateIndex(ExactIndex):
    """An ExactIndex whose candidates FAISS finds; a query for which it finds too few is searched exactly."""

    def __init__(self, vectors: Vectors, doc_ids: Sequence[str], config: SearchConfig, index: Any) -> None:
        super().__init__(vectors, doc_ids)
        self.config, self._index = config, index
        self.effort, self.recall = config.effort, Recall(1.0, 0, 0, config.effort)

    def search(self, queries: Vectors, depth: int) -> Hits:
        """The `depth` best by exact score of what FAISS finds, ties by document id."""
        depth = min(depth, len(self))
        if depth == 0 or len(queries) == 0 or self.effort == len(self):
            return super().search(queries, depth)
        coded = "pq" in self.config.kind  # the others hold whole vectors, and score as exact search does
        fetch = min(depth * self.config.rescore if coded else depth + TIE_SLACK, len(self))
        self._look(fetch)
        scores, rows = self._index.search(np.ascontiguousarray(queries), fetch)
        few = np.flatnonzero((rows < 0).sum(axis=1) > fetch - depth)
        if coded:
            lines = np.repeat(np.arange(len(queries), dtype=np.int64), fetch)
            scores = self.score(queries, np.maximum(rows, 0).ravel(), lines).reshape(rows.shape)
        scores = np.where(rows < 0, -np.inf, rounded(scores))
        order = np.lexsort((self.id_rank[rows], -scores), axis=1)[:, :depth]
        found = Hits(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))
        if few.size:
            exact = super().search(queries[few], depth)
            found.rows[few], found.scores[few] = exact.rows, exact.scores
        return found

    def measure(self, queries: Vectors, depth: int) -> Recall:
        """Recall on a sample of these queries; the effort is raised until it reaches the floor, where it is free.

        ConfigError when it stays below the floor.
        """
        sample = queries[np.unique(np.linspace(0, len(queries) - 1, self.config.sample).astype(int))]
        depth = min(depth, len(self))
        exact = super().search(sample, depth).rows
        free = self.config.effort is None and self.config.kind in ("ivf", "hnsw", "ivfpq")
        for effort in _efforts(self._largest_effort()) if free else (self.config.effort,):
            self.effort = effort
            found = self.search(sample, depth).rows
            share = np.mean([len(np.intersect1d(a, b)) / depth for a, b in zip(exact, found, strict=True)])
            self.recall = Recall(float(share), len(sample), depth, effort)
            if share >= self.config.min_recall:
                return self.recall
        raise ConfigError(
            f"search.kind: {self.config.kind} finds {self.recall.value:.3f} of what exact search finds "
            f"({len(sample)} queries, depth {depth}), and search.min_recall is {self.config.min_recall}; raise "
            f"search.{'rescore' if 'pq' in self.config.kind else 'effort'}, or take another kind"
        )

    def facts(self) -> dict[str, Any]:
        """Its kind and its measured recall."""
        return self.recall.as_json(self.config.kind)

    def _largest_effort(self) -> int:
        return int(self._index.nlist) if hasattr(self._index, "nlist") else max(16, min(len(self), 4096))

    def _look(self, fetch: int) -> None:
        """Set how hard FAISS searches."""
        if self.effort is not None and self.config.kind == "hnsw":
            self._index.hnsw.efSearch = max(self.effort, fetch)
        elif self.effort is not None:
            self._index.nprobe = self.effort


def open_index(
    vectors: Vectors,
    doc_ids: Sequence[str],
    config: SearchConfig,
    folder: Path | None,
    queries: Vectors,
    depth: int,
) -> ExactIndex:
    """The index that a config asks for over these vectors; an approximate one is kept in `folder` as an artifact.

    Its recall is measured on a sample of the queries; ConfigError when it is below the floor.
    """
    if config.kind == "exact" or not len(vectors):
        return ExactIndex(vectors, doc_ids)
    index = ApproximateIndex(vectors, doc_ids, config, _kept(vectors, config, folder))
    found = index.measure(queries, depth)
    effort = "" if found.effort is None else f", effort {found.effort}"
    say(
        f"search: {config.kind} finds {found.value:.3f} of what exact search finds "
        f"({found.queries} queries, depth {found.depth}{effort})"
    )
    return index


def _kept(vectors: Vectors, config: SearchConfig, folder: Path | None) -> Any:
    """The FAISS index over the vectors: the one on disk, else built now and kept."""
    import faiss

    if folder is None:
        return _built(vectors, config)
    inputs = {"vectors": _content(vectors)}
    settings: Mapping[str, Any] = {"kind": config.kind, "lists": config.lists, "links": config.links}
    place = folder / sha256_json([inputs, settings])[:32]
    found = up_to_date(place, "index", inputs, settings)
    if found is None:
        with writing(place, "index", inputs=inputs, config=settings) as draft:
            faiss.write_index(_built(vectors, config), str(draft.path(INDEX)))
            draft.counts |= {"documents": len(vectors), "dimensions": vectors.shape[1]}
        found = Artifact.open(place, "index")
    return faiss.read_index(str(found.file(INDEX)))


def _content(vectors: Vectors) -> str:
    digest = xxhash.xxh3_128(str(vectors.shape).encode())
    for start in range(0, len(vectors), ADDED_AT_ONCE):
        digest.update(np.ascontiguousarray(vectors[start : start + ADDED_AT_ONCE]).data)
    return digest.hexdigest()


def _built(vectors: Vectors, config: SearchConfig) -> Any:
    """Train and fill an index; the same bytes each time, which HNSW has on one thread alone."""
    import faiss

    index: Any = faiss.index_factory(vectors.shape[1], _recipe(vectors, config), faiss.METRIC_INNER_PRODUCT)
    if config.kind == "hnsw":
        index.hnsw.efConstruction = BUILD_EFFORT
    threads = faiss.omp_get_max_threads()
    try:
        if config.kind == "hnsw":
            faiss.omp_set_num_threads(1)
        if not index.is_trained:
            wanted = max(CODES_TRAINED_ON, TRAINED_PER_LIST * int(getattr(index, "nlist", 0)))
            rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), wanted)).astype(np.int64))
            index.train(np.ascontiguousarray(vectors[rows]))
        with progress(f"build the {config.kind} index", len(vectors)) as advance:
            for start in range(0, len(vectors), ADDED_AT_ONCE):
                block = np.ascontiguousarray(vectors[start : start + ADDED_AT_ONCE])
                index.add(block)
                advance(len(block))
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def _recipe(vectors: Vectors, config: SearchConfig) -> str:
    """The index as FAISS's factory spells it."""
    count, width = vectors.shape
    lists = min(config.lists or max(1, round(4 * math.sqrt(count))), max(1, count // 39))
    codes = next(codes for codes in range(max(1, width // DIMENSIONS_PER_CODE), 0, -1) if width % codes == 0)
    bits = "" if count >= 39 * 256 else "x4"  # 256 centroids need so many vectors, or 16 have to do
    return {
        "ivf": f"IVF{lists},Flat",
        "hnsw": f"HNSW{config.links},Flat",
        "pq": f"PQ{codes}{bits}",
        "ivfpq": f"IVF{lists},PQ{codes}{bits}",
    }[config.kind]


def _efforts(largest: int) -> list[int]:
    """Powers of two, and the largest."""
    return [*(2**power for power in range(max(1, largest).bit_length()) if 2**power < largest), largest]
