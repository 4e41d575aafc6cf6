"""The mined artifact: triples and dropped candidates as Parquet, with their schema, writer and reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from closecall.errors import ArtifactError
from closecall.manifest import Artifact

TRIPLES = "triples.parquet"
DROPPED = "dropped.parquet"
STATS = "stats.json"

TRIPLES_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("positive_id", pa.string()),
        ("positive", pa.string()),
        ("positive_score", pa.float64()),
        ("negative_ids", pa.list_(pa.string())),
        ("negatives", pa.list_(pa.string())),
        ("negative_scores", pa.list_(pa.float64())),
        ("negative_ranks", pa.list_(pa.int64())),
    ]
)
DROPPED_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("positive_id", pa.string()),
        ("doc_id", pa.string()),
        ("rank", pa.int64()),
        ("score", pa.float64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class HardNegative:
    """A candidate that passed every filter."""

    doc_id: str
    text: str
    score: float
    rank: int


@dataclass(frozen=True, slots=True)
class Triple:
    """One (query, positive) with its hard negatives, nearest first; possibly none."""

    query_id: str
    query: str
    positive_id: str
    positive: str
    positive_score: float
    negatives: tuple[HardNegative, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that is no hard negative of this (query, positive), and why."""

    query_id: str
    positive_id: str
    doc_id: str
    rank: int
    score: float
    reason: str


def write_triples(path: Path, triples: Sequence[Triple]) -> None:
    """Write triples as Parquet, one row per (query, positive); the same triples give the same bytes."""
    columns = {
        "query_id": [triple.query_id for triple in triples],
        "query": [triple.query for triple in triples],
        "positive_id": [triple.positive_id for triple in triples],
        "positive": [triple.positive for triple in triples],
        "positive_score": [triple.positive_score for triple in triples],
        "negative_ids": [[negative.doc_id for negative in triple.negatives] for triple in triples],
        "negatives": [[negative.text for negative in triple.negatives] for triple in triples],
        "negative_scores": [[negative.score for negative in triple.negatives] for triple in triples],
        "negative_ranks": [[negative.rank for negative in triple.negatives] for triple in triples],
    }
    pq.write_table(pa.table(columns, schema=TRIPLES_SCHEMA), path)


def write_dropped(path: Path, dropped: Sequence[Dropped]) -> None:
    """Write the dropped candidates as Parquet, one row each."""
    columns = {name: [getattr(row, name) for row in dropped] for name in DROPPED_SCHEMA.names}
    pq.write_table(pa.table(columns, schema=DROPPED_SCHEMA), path)


def read_triples(artifact: Artifact) -> list[Triple]:
    """The triples of a mined artifact, in the order of the file."""
    return list(_triples(artifact.file(TRIPLES)))


def _triples(path: Path) -> Iterator[Triple]:
    table = pq.read_table(path)
    if not table.schema.equals(TRIPLES_SCHEMA):
        raise ArtifactError(f"{path}: columns {table.schema.names}, expected {TRIPLES_SCHEMA.names}; mine again")
    for row in table.to_pylist():
        lists = (row.pop("negative_ids"), row.pop("negatives"), row.pop("negative_scores"), row.pop("negative_ranks"))
        yield Triple(**row, negatives=tuple(HardNegative(*values) for values in zip(*lists, strict=True)))
