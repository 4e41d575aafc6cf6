import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset

from closecall.errors import ArtifactError
from closecall.manifest import Artifact, writing
from closecall.records import Document, Query
from mining.artifact import (
    DROPPED,
    TRIPLES,
    TRIPLES_SCHEMA,
    Found,
    HardNegative,
    Triple,
    dropped_table,
    read_triples,
    triples_table,
    write_table,
)

TWO = (HardNegative("007", "Überweisung\nzurück", 0.75, 1), HardNegative("d2", "card lost", 0.5, 4))
TRIPLES_WRITTEN = [
    Triple("q1", "lost card", "d1", "block the card", 0.875, TWO),
    Triple("q1", "lost card", "d9", "call us", 0.25, ()),
    Triple("q2", "卡", "d3", "card", -0.5, TWO[:1]),
]


DOCUMENTS = [
    Document("d1", "the card", "block"),
    Document("007", "Überweisung\nzurück"),
    Document("d2", "card lost"),
    Document("d9", "call us"),
    Document("d3", "card"),
]
QUERIES = [Query("q1", "lost card"), Query("q2", "卡")]
PAIRS = {  # q1 with d1 and d9, q2 with d3
    "pair_query": np.array([0, 0, 1]),
    "pair_positive": np.array([0, 3, 4]),
}
FOUND = Found(
    pair=np.array([0, 0, 0, 0, 1, 2]),
    rank=np.array([1, 2, 3, 4, 1, 1], np.int32),
    row=np.array([1, 0, 3, 2, 1, 1]),
    score=np.array([0.75, 0.7, 0.6, 0.5, 0.9, 0.75]),
    outcome=np.array([0, 2, 5, 0, 5, 0], np.uint8),
)


def tables(found=FOUND):
    triples = triples_table(found, QUERIES, DOCUMENTS, **PAIRS, pair_score=np.array([0.875, 0.25, -0.5]))
    return triples, dropped_table(found, QUERIES, DOCUMENTS, **PAIRS)


@pytest.fixture
def mined(tmp_path):
    with writing(tmp_path / "mined", "mine", inputs={}, config={}) as draft:
        write_table(draft.path(TRIPLES), tables()[0])
    return Artifact.open(tmp_path / "mined", "mine")


def test_triples_come_back_as_they_were_written_in_their_order(mined):
    assert read_triples(mined) == TRIPLES_WRITTEN


def test_the_file_loads_with_datasets(mined, tmp_path):
    expected = {
        "query_id": "q1",
        "query": "lost card",
        "positive_id": "d1",
        "positive": "block the card",
        "positive_score": 0.875,
        "negative_ids": ["007", "d2"],
        "negatives": ["Überweisung\nzurück", "card lost"],
        "negative_scores": [0.75, 0.5],
        "negative_ranks": [1, 4],
    }
    path, cache = str(mined.folder / TRIPLES), str(tmp_path / "cache")
    table = load_dataset("parquet", data_files=path, split="train", cache_dir=cache)
    assert (len(table), table[0], table[1]["negatives"]) == (3, expected, [])
    assert Dataset.from_parquet(path, cache_dir=cache)[0] == expected


def test_the_same_triples_are_the_same_bytes(mined, tmp_path):
    write_table(tmp_path / "again.parquet", tables()[0])
    assert (tmp_path / "again.parquet").read_bytes() == (mined.folder / TRIPLES).read_bytes()


def test_dropped_candidates_are_a_table_of_one_row_each(tmp_path):
    write_table(tmp_path / DROPPED, tables()[1])
    rows = pq.read_table(tmp_path / DROPPED).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("q1", "d1", "d1", 2, 0.7, "judged_positive"),
        ("q1", "d1", "d9", 3, 0.6, "within_margin"),
        ("q1", "d9", "007", 1, 0.9, "within_margin"),
    ]
    assert list(rows[0]) == ["query_id", "positive_id", "doc_id", "rank", "score", "reason"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"anchor": ["a"], "positive": ["b"], "negative": ["c"]}),
        pa.table({name: pa.array([], pa.string()) for name in TRIPLES_SCHEMA.names}),
    ],
    ids=["other columns", "other types"],
)
def test_a_table_of_another_schema_is_refused(tmp_path, table):
    with writing(tmp_path / "mined", "mine", inputs={}, config={}) as draft:
        pq.write_table(table, draft.path(TRIPLES))
    with pytest.raises(ArtifactError, match=r"triples\.parquet: columns \[.*expected \['query_id', .*; mine again"):
        read_triples(Artifact.open(tmp_path / "mined", "mine"))


def test_a_changed_file_is_refused(mined):
    (mined.folder / TRIPLES).write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"triples\.parquet: changed since it was written .*closecall mine CONFIG"):
        read_triples(mined)
