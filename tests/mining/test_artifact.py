import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset

from closecall.errors import ArtifactError
from closecall.manifest import Artifact, writing
from mining.artifact import (
    DROPPED,
    TRIPLES,
    TRIPLES_SCHEMA,
    Dropped,
    HardNegative,
    Triple,
    read_triples,
    write_dropped,
    write_triples,
)

TWO = (HardNegative("007", "Überweisung\nzurück", 0.75, 1), HardNegative("d2", "card lost", 0.5, 4))
TRIPLES_WRITTEN = [
    Triple("q1", "lost card", "d1", "block the card", 0.875, TWO),
    Triple("q1", "lost card", "d9", "call us", 0.25, ()),
    Triple("q2", "卡", "d3", "card", -0.5, TWO[:1]),
]


@pytest.fixture
def mined(tmp_path):
    with writing(tmp_path / "mined", "mine", inputs={}, config={}) as draft:
        write_triples(draft.path(TRIPLES), TRIPLES_WRITTEN)
    return Artifact.open(tmp_path / "mined", "mine")


def test_triples_come_back_as_they_were_written_in_their_order(mined):
    assert read_triples(mined) == TRIPLES_WRITTEN


def test_no_triples_come_back_as_none(tmp_path):
    with writing(tmp_path / "mined", "mine", inputs={}, config={}) as draft:
        write_triples(draft.path(TRIPLES), [])
    assert read_triples(Artifact.open(tmp_path / "mined", "mine")) == []


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
    write_triples(tmp_path / "again.parquet", tuple(TRIPLES_WRITTEN))
    assert (tmp_path / "again.parquet").read_bytes() == (mined.folder / TRIPLES).read_bytes()


def test_dropped_candidates_are_a_table_of_one_row_each(tmp_path):
    path = tmp_path / DROPPED
    write_dropped(
        path, [Dropped("q1", "d1", "d1", 1, 0.9, "judged_positive"), Dropped("q1", "d1", "d7", 2, 0.8, "kept")]
    )
    assert pq.read_table(path).to_pylist()[0] == {
        "query_id": "q1",
        "positive_id": "d1",
        "doc_id": "d1",
        "rank": 1,
        "score": 0.9,
        "reason": "judged_positive",
    }


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
