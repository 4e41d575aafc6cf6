"""What a model's precision gains and costs against float32, measured on a sample: no loss is silent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from closecall.dataset import Dataset
from closecall.encoder import TextEncoder, load_encoder
from closecall.encoding import Vectors
from closecall.measures import Measure, per_query
from closecall.records import Document, Qrels, Query
from closecall.search import ExactIndex, as_run

EFFECT_DOCUMENTS, EFFECT_QUERIES = 128, 32
"""Seconds on a CPU, in both precisions together."""
EFFECT_MEASURE = Measure.parse("nDCG@10")


def precision_effect(dataset: Dataset, encoder: TextEncoder) -> dict[str, Any]:
    """What the model's precision gains and costs against float32, measured on a few texts and their judgments."""
    if encoder.precision == "float32":
        return {"name": "float32"}
    asked = [query for query in dataset.queries if dataset.qrels.positives(query.query_id)]
    queries = [asked[row] for row in _spread(len(asked), EFFECT_QUERIES)]
    wanted = {doc_id for query in queries for doc_id in dataset.qrels.positives(query.query_id)}
    others = [dataset.documents[row] for row in _spread(len(dataset.documents), EFFECT_DOCUMENTS)]
    chosen = {document.doc_id: document for document in dataset.documents if document.doc_id in wanted}
    documents = list((chosen | {document.doc_id: document for document in others}).values())[:EFFECT_DOCUMENTS]
    exact = load_encoder(encoder.config.model_copy(update={"precision": "float32"}))
    texts = [document.full_text for document in documents]
    found = {one.precision: _encoded(one, texts, queries) for one in (exact, encoder)}
    (slow, slow_vectors, _), (fast, fast_vectors, _) = found["float32"], found[encoder.precision]
    cosines = (slow_vectors * fast_vectors).sum(axis=1)
    values = [_value(dataset, documents, queries, one) for one in found.values()]
    return {
        "name": encoder.precision,
        "documents": len(documents),
        "queries": len(queries),
        "times_as_fast": round(slow / fast, 2),
        "mean_cosine": round(float(cosines.mean()), 6),
        "least_cosine": round(float(cosines.min()), 6),
        str(EFFECT_MEASURE): {"float32": round(values[0], 4), encoder.precision: round(values[1], 4)},
    }


def _spread(count: int, wanted: int) -> list[int]:
    """So many rows, evenly over all."""
    return sorted({int(row) for row in np.linspace(0, count - 1, min(count, wanted))}) if count else []


def _encoded(encoder: TextEncoder, texts: Sequence[str], queries: Sequence[Query]) -> tuple[float, Vectors, Vectors]:
    """Seconds for the documents, their vectors, and those of the queries."""
    asked = encoder.encode([query.text for query in queries], "query")  # loads and warms up
    started = time.perf_counter()
    vectors = encoder.encode(texts, "document")
    return time.perf_counter() - started, vectors, asked


def _value(
    dataset: Dataset,
    documents: Sequence[Document],
    queries: Sequence[Query],
    encoded: tuple[float, Vectors, Vectors],
) -> float:
    doc_ids, query_ids = [document.doc_id for document in documents], [query.query_id for query in queries]
    hits = ExactIndex(encoded[1], doc_ids).search(encoded[2], EFFECT_MEASURE.cutoff or 0)
    among = set(doc_ids)
    judged = (row for row in dataset.qrels.only(query_ids).judgments() if row.doc_id in among)
    qrels = Qrels(judged, dataset.qrels.positive_from)
    return per_query(qrels, as_run(hits, query_ids, doc_ids), [EFFECT_MEASURE]).mean(EFFECT_MEASURE)
