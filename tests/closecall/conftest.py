"""Datasets in memory, for tests of what is done with queries."""

import pytest

from closecall.dataset import Dataset
from closecall.manifest import sha256_json
from closecall.records import Document, Judgment, Qrels, Query


@pytest.fixture
def dataset():
    return make_dataset


def make_dataset(texts, own=None, without=(), **columns):
    """One query per id and text, each with a document of its own; columns map query ids to values.

    `own` maps split names to query ids; the queries in `without` have no positive.
    """
    queries = [
        Query(query_id, text, {name: values[query_id] for name, values in columns.items() if query_id in values})
        for query_id, text in texts.items()
    ]
    documents = tuple(Document(f"d-{query_id}", f"document {query_id}") for query_id in texts)
    qrels = Qrels(Judgment(query_id, f"d-{query_id}", int(query_id not in without)) for query_id in texts)
    digest = sha256_json([texts, own, sorted(without), columns])
    return Dataset(documents, tuple(queries), qrels, own, (), (), digest, sha256_json(list(texts)))
