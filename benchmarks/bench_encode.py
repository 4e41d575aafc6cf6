"""Encoding against `SentenceTransformer.encode` with its defaults, on the same texts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from benchmarks.common import LENGTH, by_turns, datasets, keep, model_config, ratio
from closecall.corpus import Texts, ids_of
from closecall.dataset import DataConfig, Dataset, load_dataset
from closecall.encoder import TextEncoder, load_encoder
from closecall.encoding import Vectors
from closecall.measures import Measure, per_query
from closecall.search import ExactIndex, as_run

TEXTS = {"nl2bash": 4000, "scifact": 400}
"""Documents that are timed."""
MEASURE = Measure.parse("nDCG@10")


def run(arguments: Namespace) -> None:
    """Time ratio, least cosine, and nDCG@10 of all judged queries of a set both ways."""
    for folder in datasets(arguments):
        keep(arguments, f"encode-{folder.name}", _bench(folder, arguments.turns))


def _bench(folder: Path, turns: int) -> dict[str, Any]:
    dataset = load_dataset(DataConfig(folder=folder))
    encoder = load_encoder(model_config())
    plain = SentenceTransformer(str(encoder.folder), device="cpu")
    plain.max_seq_length = LENGTH
    texts = Texts(dataset.documents)[: TEXTS.get(folder.name, 1000)]
    encoder.encode(texts[:32], "document")
    plain.encode(list(texts[:32]))
    ours = {"reference": lambda: _plain(plain, texts), "ours": lambda: encoder.encode(texts, "document")}
    taken = by_turns(turns, ours)
    values = _values(dataset, encoder, plain)
    return {
        "dataset": folder.name,
        "texts": len(texts),
        "turns": turns,
        "precision": encoder.precision,
        "times as fast": ratio(taken, "reference", "ours"),
        "least cosine": round(float((_plain(plain, texts) * encoder.encode(texts, "document")).sum(axis=1).min()), 6),
        **values,
    }


def _plain(model: SentenceTransformer, texts: Sequence[str]) -> Vectors:
    found: Vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return found


def _values(dataset: Dataset, encoder: TextEncoder, plain: SentenceTransformer) -> dict[str, Any]:
    """nDCG@10 with the vectors of each, over the whole corpus and every query with a positive."""
    queries = [query for query in dataset.queries if dataset.qrels.positives(query.query_id)]
    asked, documents = [query.text for query in queries], list(Texts(dataset.documents))
    query_ids, doc_ids = [query.query_id for query in queries], ids_of(dataset.documents)
    found = {}
    for name, vectors in (
        ("reference", (_plain(plain, documents), _plain(plain, asked))),
        ("ours", (encoder.encode(documents, "document"), encoder.encode(asked, "query"))),
    ):
        run = as_run(ExactIndex(vectors[0], doc_ids).search(vectors[1], 10), query_ids, doc_ids)
        found[name] = per_query(dataset.qrels.only(query_ids), run, [MEASURE]).mean(MEASURE)
    return {"queries": len(queries), **{f"nDCG@10 {name}": round(mean, 5) for name, mean in found.items()}}
