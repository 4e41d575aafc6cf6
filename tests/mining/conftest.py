"""A corpus on a half circle around the one query vector, mined and read back; and a cross-encoder of one layer."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from closecall.split import Part
from mining.artifact import DROPPED, TRIPLES, Dropped, Triple, read_dropped_table, read_triples_table
from mining.config import MiningConfig
from mining.mine import Miner, Outside
from mining.stage import write_mined

QUERY = [1.0, 0.0]


@dataclass(frozen=True)
class Mined:
    """What a miner wrote, read back."""

    tables: tuple[pa.Table, pa.Table]
    triples: list[Triple]
    dropped: list[Dropped]
    stats: dict[str, Any]

    @property
    def kept(self) -> list[list[str]]:
        """Ids of the negatives of each pair."""
        return [[negative.doc_id for negative in triple.negatives] for triple in self.triples]

    @property
    def reasons(self) -> dict[str, str]:
        """Drop reason by document: for one pair, or where all pairs agree."""
        return {row.doc_id: row.reason for row in self.dropped}


def _at(cosine):
    """The unit vector whose cosine with QUERY is this."""
    return [cosine, np.sqrt(1 - cosine * cosine)]


def _miner(corpus, judged, negatives=1, depth=50, positive_from=1, queries=None, outside=None, **settings):
    queries = queries or {query_id: f"query {query_id}" for query_id in judged}
    documents = [row if isinstance(row, Document) else Document(doc_id, row[0]) for doc_id, row in corpus.items()]
    cosines = [0.9 if isinstance(row, Document) else row[1] for row in corpus.values()]
    judgments = [Judgment(query_id, *row) for query_id, grades in judged.items() for row in grades.items()]
    part = Part(tuple(Query(*row) for row in queries.items()), Qrels(judgments, positive_from), "")
    settings = {"margin_fraction": None, "negatives": negatives, "depth": depth} | settings
    vectors = np.asarray([_at(cosine) for cosine in cosines], dtype=np.float32)
    query_vectors = np.asarray([QUERY] * len(queries), dtype=np.float32)
    return Miner(documents, vectors, part, query_vectors, MiningConfig.model_validate(settings), outside)


def _written(worker):
    with tempfile.TemporaryDirectory() as folder:
        stats = write_mined(worker, Path(folder), [])
        tables = tuple(pq.read_table(Path(folder) / name) for name in (TRIPLES, DROPPED))
    return Mined(tables, read_triples_table(tables[0]), read_dropped_table(tables[1]), stats)


@pytest.fixture(scope="session")
def miner():
    """`corpus` is {doc_id: (text, cosine)} or {doc_id: Document}, `judged` {query_id: {doc_id: grade}}, `queries`
    {query_id: text}; all queries have the same vector. No margin but what is asked for."""
    return _miner


@pytest.fixture(scope="session")
def written():
    """What a miner writes."""
    return _written


@pytest.fixture(scope="session")
def mine():
    """What the miner of these arguments writes."""
    return lambda *arguments, **settings: _written(_miner(*arguments, **settings))


@pytest.fixture(scope="session")
def plain():
    """d1, d2, ... from near to far, each with a text of its own."""
    return lambda count, top=0.9: {f"d{n}": (f"text {n}", top - 0.05 * (n - 1)) for n in range(1, count + 1)}


@pytest.fixture(scope="session")
def run():
    """An `Outside` with the run `run`: {query_id: doc_ids, best first}."""

    def run(**rankings):
        ranked = {query: [ScoredDoc(doc, 10.0 - n) for n, doc in enumerate(docs)] for query, docs in rankings.items()}
        return Outside(runs={"run": Run(ranked)})

    return run


@pytest.fixture(scope="session")
def save_cross_encoder(tiny_model):
    """Saves a one-layer BERT with seeded random weights and so many labels as a cross-encoder, in the toy's words."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    def save(folder, labels=1, seed=0):
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=64,
            num_labels=labels,
            initializer_range=0.5,
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory, save_cross_encoder):
    """The folder of a cross-encoder with one label."""
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))
