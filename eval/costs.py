"""What a contender costs: time to encode and to answer, and bytes."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from closecall.encoder import Encoder
from closecall.manifest import sha256_json
from closecall.models import weight_files
from closecall.records import Query
from eval.systems import Dense, Searched, System

TIMINGS = "timings.json"
"""Beside the verdict's folder: measured once for each contender."""
TIMED_QUERIES = 30
"""Asked one by one, after three that warm up."""
TIMED_TEXTS = 64
MILLION = 1_000_000


@dataclass(frozen=True)
class Size:
    """What a contender takes in memory; 0 where it holds no vectors or weights."""

    dimensions: int
    bytes_per_vector: int
    index_bytes: int
    """At the corpus' size."""
    index_bytes_per_million: int
    model_bytes: int


@dataclass(frozen=True)
class Times:
    """How long a contender takes on this machine; None where it encodes nothing, or answers from a file."""

    encode_documents_s: float | None
    """Per 1,000 documents, from a sample."""
    encode_queries_s: float | None
    """Per 1,000 queries, from a sample."""
    latency_p50_ms: float | None
    """Of one query alone: encoding, search and reranking."""
    latency_p95_ms: float | None
    queries: int
    """How many were timed."""
    price_per_1000_queries: float | None
    """Of services; 0 where none is asked, None where one has no price."""


def size_of(system: System, corpus: Searched, folders: Sequence[Path]) -> Size:
    """The size of a contender whose models are in these folders."""
    per_vector = sum(part.bytes_per_vector for part in system.parts)
    dimensions = max((part.width for part in system.parts), default=0)
    model_bytes = sum(file.stat().st_size for folder in set(folders) for file in weight_files(folder))
    return Size(dimensions, per_vector, per_vector * len(corpus.documents), per_vector * MILLION, model_bytes)


def times_of(system: System, corpus: Searched, queries: Sequence[Query], depth: int, answers: bool = True) -> Times:
    """Measured now, with up to 30 queries one by one; `answers` False: the contender only reads a file."""
    if not answers or not queries:
        return Times(None, None, None, None, 0, None)
    chosen = [queries[row] for row in np.linspace(0, len(queries) - 1, min(TIMED_QUERIES, len(queries))).astype(int)]
    for query in chosen[:3]:
        system.search([query], depth, fresh=True)
    spent_before = _cost(system)
    taken = [_seconds(system, query, depth) * 1000 for query in chosen]
    spent = _cost(system)
    price = None if spent is None or spent_before is None else (spent - spent_before) / len(chosen) * 1000
    documents, asked = _encoding(system, corpus, chosen)
    p50, p95 = (float(np.percentile(taken, share)) for share in (50, 95))
    return Times(documents, asked, p50, p95, len(chosen), price)


def remembered(path: Path, key: str, measure: Callable[[], Times]) -> Times:
    """The times kept in a file under this key, else measured now and kept: other settings encode nothing again.

    A file that cannot be read is written anew.
    """
    try:
        kept: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return Times(**kept[key])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        found = measure()
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        kept = before if isinstance(before, dict) else {}
    except (OSError, ValueError, RecursionError):
        kept = {}
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(kept | {key: asdict(found)}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return found


def times_key(system: System, what: str, depth: int, corpus: str) -> str:
    """Names what the times depend on: the system, how deep it answers, the corpus and the machine."""
    parts = [
        [part.encoder.fingerprint, part.encoder.device, part.dimensions, part.quantise, part.rescore]
        for part in system.parts
    ]
    return sha256_json([what, parts, depth, corpus, platform.node(), os.cpu_count()])


def _seconds(system: System, query: Query, depth: int) -> float:
    started = time.perf_counter()
    system.search([query], depth, fresh=True)
    return time.perf_counter() - started


def _encoding(system: System, corpus: Searched, queries: Sequence[Query]) -> tuple[float | None, float | None]:
    """Seconds per 1,000 documents and per 1,000 queries, over all encoders; None without one."""
    encoders = _encoders(system.parts)
    if not encoders:
        return None, None
    rows = np.linspace(0, len(corpus.texts) - 1, min(TIMED_TEXTS, len(corpus.texts))).astype(int)
    documents, asked = [corpus.texts[row] for row in rows], [query.text for query in queries]
    found = []
    for texts, role in ((documents, "document"), (asked, "query")):
        started = time.perf_counter()
        for encoder in encoders:
            encoder.encode(texts, "document" if role == "document" else "query")
        found.append((time.perf_counter() - started) / len(texts) * 1000)
    return found[0], found[1]


def _encoders(parts: Sequence[Dense]) -> list[Encoder]:
    return list({part.encoder.fingerprint: part.encoder for part in parts}.values())


def _cost(system: System) -> float | None:
    """What services have charged so far, 0 where none is asked; None where one has no price."""
    prices = [getattr(part.encoder, "cost", 0.0) for part in system.parts]
    return None if None in prices else sum(prices)
