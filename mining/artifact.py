"""The mined artifact: triples and dropped candidates as Parquet, with their schema, writer and reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from closecall.corpus import ids_of
from closecall.errors import ArtifactError
from closecall.manifest import Artifact
from closecall.records import Document, Query
from mining.filters import OUTCOMES

TRIPLES = "triples.parquet"
DROPPED = "dropped.parquet"
STATS = "stats.json"
CALIBRATION = "calibration.json"

Integers = npt.NDArray[np.int64]

TRIPLES_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("positive_id", pa.string()),
        ("positive", pa.string()),
        ("positive_score", pa.float64()),
        ("positive_guide_score", pa.float64()),
        ("negative_ids", pa.list_(pa.string())),
        ("negatives", pa.list_(pa.string())),
        ("negative_scores", pa.list_(pa.float64())),
        ("negative_ranks", pa.list_(pa.int64())),
        ("negative_guide_scores", pa.list_(pa.float64())),
        ("negative_sources", pa.list_(pa.list_(pa.string()))),
        ("negative_source_ranks", pa.list_(pa.list_(pa.int32()))),
        ("negative_source_scores", pa.list_(pa.list_(pa.float64()))),
    ]
)
_NAME = pa.dictionary(pa.int32(), pa.string())
DROPPED_FIELDS = [
    ("query_id", _NAME),
    ("positive_id", _NAME),
    ("doc_id", _NAME),
    ("rank", pa.int32()),
    ("score", pa.float64()),
    ("guide_score", pa.float64()),
    ("reason", _NAME),
]


@dataclass(frozen=True)
class SourceColumns:
    """The sources that were mined, for the tables."""

    scored: Mapping[str, bool]
    """Name -> whether it has scores of its own, which the base model's index has not: those are `score`."""
    base: str | None
    """The name of the base model's index, None when it is no source."""


def dropped_schema(sources: SourceColumns) -> pa.Schema:
    """The columns of a dropped table.

    For each source there is the candidate's rank in it, null if it did not find it, and its score if it has its own.
    """
    fields = []
    for name, scored in sources.scored.items():
        fields.append((f"{name}_rank", pa.int32()))
        fields += [(f"{name}_score", pa.float64())] if scored else []
    return pa.schema([*DROPPED_FIELDS, *fields], metadata={_BASE: sources.base or ""})


_BASE = "base_source"
"""Key of the table's metadata that names the base model's index."""


@dataclass(frozen=True, slots=True)
class FoundBy:
    """What one source said of a candidate."""

    source: str
    rank: int
    """From 1; of the judged and the random source it says nothing."""
    score: float | None
    """The source's own score, where it has one."""


@dataclass(frozen=True, slots=True)
class HardNegative:
    """A candidate that passed every filter."""

    doc_id: str
    text: str
    score: float
    rank: int
    """Its place among the candidates of the query by the base model's score, from 1."""
    guide_score: float | None = None
    found_by: tuple[FoundBy, ...] = ()


@dataclass(frozen=True, slots=True)
class Triple:
    """One (query, positive) with its hard negatives, nearest first; possibly none."""

    query_id: str
    query: str
    positive_id: str
    positive: str
    positive_score: float
    negatives: tuple[HardNegative, ...]
    positive_guide_score: float | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that is no hard negative of this (query, positive), and why."""

    query_id: str
    positive_id: str
    doc_id: str
    rank: int
    score: float
    guide_score: float | None
    reason: str
    found_by: tuple[FoundBy, ...] = ()


@dataclass(frozen=True)
class Found:
    """Every candidate of some (query, positive) pairs, as parallel arrays ordered by pair and rank."""

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
    guide_score: npt.NDArray[np.float64] | None = None
    """float64 (n,): the guide's score, NaN where it was not asked; None without a guide."""
    source_ranks: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    """By source, int32 (n,): the candidate's rank there, 0 = not found by it."""
    source_scores: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By source, float64 (n,): its score there, NaN = none. A source that is missing here has the base's `score`."""

    def at(self, numbers: Integers | npt.NDArray[np.bool_]) -> Found:
        """Some of the candidates."""
        return Found(
            self.pair[numbers],
            self.rank[numbers],
            self.row[numbers],
            self.score[numbers],
            self.outcome[numbers],
            None if self.guide_score is None else self.guide_score[numbers],
            {name: ranks[numbers] for name, ranks in self.source_ranks.items()},
            {name: scores[numbers] for name, scores in self.source_scores.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        """Several parts with different pairs as one, ordered by pair."""
        if len(parts) == 1:
            return parts[0]

        order = np.argsort(np.concatenate([part.pair for part in parts]), kind="stable")

        def whole(get: Callable[[Found], npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.asarray(np.concatenate([get(part) for part in parts])[order])

        def by_source(get: Callable[[Found], Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
            return {name: whole(lambda part, name=name: get(part)[name]) for name in get(parts[0])}  # type: ignore[misc]

        return cls(
            whole(lambda part: part.pair),
            whole(lambda part: part.rank),
            whole(lambda part: part.row),
            whole(lambda part: part.score),
            whole(lambda part: part.outcome),
            None if parts[0].guide_score is None else whole(lambda part: np.asarray(part.guide_score)),
            by_source(lambda part: part.source_ranks),
            by_source(lambda part: part.source_scores),
        )


@dataclass(frozen=True)
class Pairs:
    """The (query, positive) pairs that are mined, in the order of the judgments."""

    queries: Sequence[Query]
    documents: Sequence[Document]
    query: Integers
    """int64 (n_pairs,): position of the query."""
    positive: Integers
    """int64 (n_pairs,): row of the positive in the corpus."""
    score: npt.NDArray[np.float64]
    """float64 (n_pairs,): cosine of the two."""
    guide_score: npt.NDArray[np.float64] | None = None
    """float64 (n_pairs,): the guide's score of the two; None without a guide."""

    @cached_property
    def doc_ids(self) -> pa.Array:
        """The ids of all documents."""
        return pa.array(ids_of(self.documents), pa.string())

    @cached_property
    def query_ids(self) -> pa.Array:
        """The ids of all queries."""
        return pa.array([query.query_id for query in self.queries], pa.string())

    def __len__(self) -> int:
        return len(self.query)


def triples_table(found: Found, pairs: Pairs, base: str | None, first: int, last: int) -> pa.Table:
    """One row per (query, positive) from `first` to before `last`, also for those without a hard negative."""
    kept = found.at(found.outcome == 0)
    part = slice(first, last)
    counts = np.bincount(kept.pair - first, minlength=last - first)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    guide = None if pairs.guide_score is None else pairs.guide_score[part]
    return pa.table(
        [
            pairs.query_ids.take(pa.array(pairs.query[part])),
            pa.array([pairs.queries[number].text for number in pairs.query[part].tolist()], pa.string()),
            pairs.doc_ids.take(pa.array(pairs.positive[part])),
            pa.array([pairs.documents[row].full_text for row in pairs.positive[part].tolist()], pa.string()),
            pa.array(pairs.score[part]),
            _optional(guide, last - first),
            _lists(offsets, pairs.doc_ids.take(pa.array(kept.row))),
            _lists(offsets, pa.array([pairs.documents[row].full_text for row in kept.row.tolist()], pa.string())),
            _lists(offsets, pa.array(kept.score)),
            _lists(offsets, pa.array(kept.rank.astype(np.int64))),
            _lists(offsets, _optional(kept.guide_score, len(kept.row))),
            *(_lists(offsets, values) for values in _sources(kept, base)),
        ],
        schema=TRIPLES_SCHEMA,
    )


def dropped_table(found: Found, pairs: Pairs, sources: SourceColumns) -> pa.Table:
    """One row per dropped candidate. Ids are dictionary-encoded: they repeat by the thousand."""
    dropped = found.at(np.flatnonzero(found.outcome))
    columns = [
        _named(pairs.query[dropped.pair], pairs.query_ids),
        _named(pairs.positive[dropped.pair], pairs.doc_ids),
        _named(dropped.row, pairs.doc_ids),
        pa.array(dropped.rank),
        pa.array(dropped.score),
        _optional(dropped.guide_score, len(dropped.row)),
        pa.DictionaryArray.from_arrays(pa.array(dropped.outcome.astype(np.int32)), pa.array(OUTCOMES, pa.string())),
    ]
    for name, scored in sources.scored.items():
        ranks = dropped.source_ranks[name]
        columns.append(pa.array(ranks, mask=ranks == 0))
        columns += [_optional(dropped.source_scores[name], len(ranks))] if scored else []
    return pa.table(columns, schema=dropped_schema(sources))


class MinedWriter:
    """Writes the two tables block by block, so that memory holds one block: a row group each, the same bytes always."""

    def __init__(self, folder: Path, pairs: Pairs, sources: SourceColumns) -> None:
        self.pairs, self.sources, self._next = pairs, sources, 0
        dropped = dropped_schema(sources)
        # Dictionaries for names and ranks, which repeat; none for scores, which would cost more than all the rest.
        # Scores and document ids come in no order that snappy could use.
        names = [field.name for field in dropped if field.type != pa.float64()]
        raw = [field.name for field in dropped if field.type == pa.float64() or field.name == "doc_id"]
        compression = {name: "none" if name in raw else "snappy" for name in dropped.names}
        self._triples = pq.ParquetWriter(folder / TRIPLES, TRIPLES_SCHEMA, use_dictionary=False, write_statistics=False)
        self._dropped = pq.ParquetWriter(
            folder / DROPPED, dropped, use_dictionary=names, compression=compression, write_statistics=False
        )

    def __enter__(self) -> MinedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._triples.close()
        self._dropped.close()

    def write(self, block: Found, last: int) -> None:
        """Write the pairs up to before `last`, whose candidates are all in the block."""
        self._triples.write_table(triples_table(block, self.pairs, self.sources.base, self._next, last))
        self._dropped.write_table(dropped_table(block, self.pairs, self.sources))
        self._next = last


def read_triples(artifact: Artifact) -> list[Triple]:
    """The triples of a mined artifact, in the order of the file."""
    path = artifact.file(TRIPLES)
    table = pq.read_table(path)
    if not table.schema.equals(TRIPLES_SCHEMA):
        raise ArtifactError(f"{path}: columns {table.schema.names}, expected {TRIPLES_SCHEMA.names}; mine again")
    return read_triples_table(table)


def read_triples_table(table: pa.Table) -> list[Triple]:
    """The rows of a triples table as records."""
    return [_triple(row) for row in table.to_pylist()]


def _triple(row: dict[str, Any]) -> Triple:
    columns = [row.pop(name) for name in TRIPLES_SCHEMA.names if name.startswith("negative")]
    negatives = []
    for doc_id, text, score, rank, guide, *found in zip(*columns, strict=True):
        by = tuple(FoundBy(*said) for said in zip(*found, strict=True))
        negatives.append(HardNegative(doc_id, text, score, rank, guide, by))
    return Triple(**row, negatives=tuple(negatives))


def read_dropped(
    artifact: Artifact, reasons: Sequence[str] | None = None, max_rank: int | None = None
) -> list[Dropped]:
    """The dropped candidates of a mined artifact: of these reasons alone, down to this rank, where they are given."""
    table = pq.read_table(artifact.file(DROPPED))
    if max_rank is not None:
        table = table.filter(pc.less_equal(table["rank"], max_rank))
    if reasons is not None:
        table = table.filter(pc.is_in(table["reason"].cast(pa.string()), pa.array(reasons, pa.string())))
    return read_dropped_table(table)


def read_dropped_table(table: pa.Table) -> list[Dropped]:
    """The rows of a dropped table as records."""
    sources = [
        name.removesuffix("_rank") for name in table.schema.names[len(DROPPED_FIELDS) :] if name.endswith("_rank")
    ]
    base = (table.schema.metadata or {}).get(_BASE.encode(), b"").decode()
    return [_dropped(row, sources, base) for row in table.to_pylist()]


def _dropped(row: dict[str, Any], sources: Sequence[str], base: str) -> Dropped:
    found = tuple(
        FoundBy(name, row[f"{name}_rank"], row["score"] if name == base else row.get(f"{name}_score"))
        for name in sources
        if row[f"{name}_rank"] is not None
    )
    return Dropped(**{name: row[name] for name, _ in DROPPED_FIELDS}, found_by=found)


def _sources(kept: Found, base: str | None) -> list[pa.Array]:
    """Names, ranks and scores of the sources of each kept candidate, as three arrays of lists."""
    names = list(kept.source_ranks)
    ranks = np.stack([kept.source_ranks[name] for name in names], axis=1)
    none = np.full(len(kept.row), np.nan)
    own = {**kept.source_scores, **({base: kept.score} if base is not None else {})}
    scores = np.stack([own.get(name, none) for name in names], axis=1)
    said = ranks > 0
    offsets = np.concatenate(([0], np.cumsum(said.sum(axis=1))))
    which = np.nonzero(said)[1]
    return [
        _lists(offsets, pa.array(names, pa.string()).take(pa.array(which))),
        _lists(offsets, pa.array(ranks[said].astype(np.int32))),
        _lists(offsets, _optional(scores[said], len(which))),
    ]


def _optional(values: npt.NDArray[np.float64] | None, length: int) -> pa.Array:
    """The numbers, with null for NaN and for all when there are none."""
    return pa.nulls(length, pa.float64()) if values is None else pa.array(values, mask=np.isnan(values))


def _lists(offsets: Integers, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _named(numbers: Integers, names: pa.Array) -> pa.Array:
    """The names of numbers as a dictionary that holds those alone that occur."""
    place = np.zeros(len(names), dtype=np.int32)
    place[numbers] = 1
    used = np.flatnonzero(place)
    place[used] = np.arange(len(used), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(place[numbers]), names.take(pa.array(used)))
