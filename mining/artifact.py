"""The mined artifact: triples and dropped candidates as Parquet, with their schema, writer and reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from closecall.errors import ArtifactError
from closecall.manifest import Artifact
from closecall.records import Document, Query
from mining.filters import OUTCOMES

TRIPLES = "triples.parquet"
DROPPED = "dropped.parquet"
STATS = "stats.json"

Integers = npt.NDArray[np.int64]

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
_NAME = pa.dictionary(pa.int32(), pa.string())
DROPPED_SCHEMA = pa.schema(
    [
        ("query_id", _NAME),
        ("positive_id", _NAME),
        ("doc_id", _NAME),
        ("rank", pa.int32()),
        ("score", pa.float64()),
        ("reason", _NAME),
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


@dataclass(frozen=True)
class Found:
    """Every candidate of every (query, positive), as parallel arrays ordered by pair and rank."""

    pair: Integers
    """int64 (n,): number of the (query, positive)."""
    rank: npt.NDArray[np.int32]
    """int32 (n,), from 1."""
    row: Integers
    """int64 (n,): row of the document in the corpus."""
    score: npt.NDArray[np.float64]
    """float64 (n,): cosine of query and document."""
    outcome: npt.NDArray[np.uint8]
    """uint8 (n,): position in `filters.OUTCOMES`; 0 = kept."""

    NAMES: ClassVar = ("pair", "rank", "row", "score", "outcome")

    @classmethod
    def of(
        cls, pairs: Integers, rows: Integers, scores: npt.NDArray[np.float64], outcome: npt.NDArray[np.uint8]
    ) -> Found:
        """From arrays (n_pairs, depth), best candidate first."""
        depth = rows.shape[1]
        ranks = np.tile(np.arange(1, depth + 1, dtype=np.int32), len(pairs))
        return cls(np.repeat(pairs, depth), ranks, rows.ravel(), scores.ravel(), outcome.ravel())

    @classmethod
    def in_order(cls, parts: Sequence[Found]) -> Found:
        """Several parts with different pairs as one, ordered by pair."""
        if len(parts) == 1:
            return parts[0]
        whole = [np.concatenate([getattr(part, name) for part in parts]) for name in cls.NAMES]
        order = np.argsort(whole[0], kind="stable")
        return cls(*(values[order] for values in whole))


def triples_table(
    found: Found,
    queries: Sequence[Query],
    documents: Sequence[Document],
    pair_query: Integers,
    pair_positive: Integers,
    pair_score: npt.NDArray[np.float64],
) -> pa.Table:
    """One row per (query, positive), also for those without a hard negative."""
    kept = found.outcome == 0
    offsets = np.concatenate(([0], np.cumsum(np.bincount(found.pair[kept], minlength=len(pair_query)))))
    ids = pa.array([document.doc_id for document in documents], pa.string())
    negative = found.row[kept]
    return pa.table(
        [
            pa.array([query.query_id for query in queries], pa.string()).take(pa.array(pair_query)),
            pa.array([query.text for query in queries], pa.string()).take(pa.array(pair_query)),
            ids.take(pa.array(pair_positive)),
            _texts(documents, pair_positive),
            pa.array(pair_score),
            _lists(offsets, ids.take(pa.array(negative))),
            _lists(offsets, _texts(documents, negative)),
            _lists(offsets, pa.array(found.score[kept])),
            _lists(offsets, pa.array(found.rank[kept].astype(np.int64))),
        ],
        schema=TRIPLES_SCHEMA,
    )


def dropped_table(
    found: Found, queries: Sequence[Query], documents: Sequence[Document], pair_query: Integers, pair_positive: Integers
) -> pa.Table:
    """One row per dropped candidate. Ids are dictionary-encoded: they repeat by the thousand."""
    dropped = np.flatnonzero(found.outcome)
    pair = found.pair[dropped]
    ids = pa.array([document.doc_id for document in documents], pa.string())
    query_ids = pa.array([query.query_id for query in queries], pa.string())
    return pa.table(
        [
            _named(query_ids, pair_query[pair]),
            _named(ids, pair_positive[pair]),
            _named(ids, found.row[dropped]),
            pa.array(found.rank[dropped]),
            pa.array(found.score[dropped]),
            _named(pa.array(OUTCOMES, pa.string()), found.outcome[dropped]),
        ],
        schema=DROPPED_SCHEMA,
    )


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet; the same table gives the same bytes."""
    pq.write_table(table, path)


def read_triples(artifact: Artifact) -> list[Triple]:
    """The triples of a mined artifact, in the order of the file."""
    path = artifact.file(TRIPLES)
    table = pq.read_table(path)
    if not table.schema.equals(TRIPLES_SCHEMA):
        raise ArtifactError(f"{path}: columns {table.schema.names}, expected {TRIPLES_SCHEMA.names}; mine again")
    return read_triples_table(table)


def read_triples_table(table: pa.Table) -> list[Triple]:
    """The rows of a triples table as records."""
    triples = []
    for row in table.to_pylist():
        lists = (row.pop("negative_ids"), row.pop("negatives"), row.pop("negative_scores"), row.pop("negative_ranks"))
        triples.append(Triple(**row, negatives=tuple(HardNegative(*values) for values in zip(*lists, strict=True))))
    return triples


def read_dropped_table(table: pa.Table) -> list[Dropped]:
    """The rows of a dropped table as records."""
    return [Dropped(**row) for row in table.to_pylist()]


def _lists(offsets: Integers, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _named(names: pa.Array, numbers: npt.NDArray[np.integer]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), names)


def _texts(documents: Sequence[Document], rows: Integers) -> pa.Array:
    """Full texts of documents, each different one built once."""
    unique, line = np.unique(rows, return_inverse=True)
    texts = pa.array([documents[row].full_text for row in unique.tolist()], pa.string())
    return texts.take(pa.array(line))
