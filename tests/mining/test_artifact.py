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
    Dropped,
    Found,
    FoundBy,
    HardNegative,
    MinedWriter,
    Pairs,
    SourceColumns,
    Triple,
    dropped_table,
    read_dropped,
    read_triples,
    triples_table,
)
from mining.filters import CODE

DOCUMENTS = [
    Document("d1", "the card", "block"),
    Document("007", "Überweisung\nzurück"),
    Document("d2", "card lost"),
    Document("d9", "call us"),
    Document("d3", "card"),
]
QUERIES = [Query("q1", "lost card"), Query("q2", "卡")]
PAIRS = Pairs(  # q1 with d1 and d9, q2 with d3
    QUERIES,
    DOCUMENTS,
    query=np.array([0, 0, 1]),
    positive=np.array([0, 3, 4]),
    score=np.array([0.875, 0.25, -0.5]),
    guide_score=np.array([0.75, np.nan, 0.5]),
)
KEPT, POSITIVE, MARGIN, GUIDE = (
    CODE[name] for name in ("kept", "judged_positive", "within_margin", "within_guide_margin")
)
FOUND = Found(
    pair=np.array([0, 0, 0, 0, 1, 2]),
    rank=np.array([1, 2, 3, 4, 1, 1], np.int32),
    row=np.array([1, 0, 3, 2, 1, 1]),
    score=np.array([0.75, 0.7, 0.6, 0.5, 0.9, 0.75]),
    outcome=np.array([KEPT, POSITIVE, GUIDE, KEPT, MARGIN, KEPT], np.uint8),
    guide_score=np.array([0.25, np.nan, 0.75, np.nan, np.nan, 0.125]),
    source_ranks={  # `dense` is the base model's index, `judged` has no scores
        "dense": np.array([1, 2, 3, 0, 1, 1], np.int32),
        "words": np.array([0, 1, 2, 3, 0, 5], np.int32),
        "judged": np.array([0, 0, 0, 1, 0, 0], np.int32),
    },
    source_scores={"words": np.array([np.nan, 9.5, 7.0, 6.5, np.nan, 2.5])},
)
SOURCES = SourceColumns({"dense": False, "words": True, "judged": False}, "dense")

FAR = HardNegative("d2", "card lost", 0.5, 4, None, (FoundBy("words", 3, 6.5), FoundBy("judged", 1, None)))
NEAR = HardNegative("007", "Überweisung\nzurück", 0.75, 1, 0.25, (FoundBy("dense", 1, 0.75),))
BOTH = HardNegative("007", "Überweisung\nzurück", 0.75, 1, 0.125, (FoundBy("dense", 1, 0.75), FoundBy("words", 5, 2.5)))
TRIPLES_WRITTEN = [
    Triple("q1", "lost card", "d1", "block the card", 0.875, (NEAR, FAR), 0.75),
    Triple("q1", "lost card", "d9", "call us", 0.25, (), None),
    Triple("q2", "卡", "d3", "card", -0.5, (BOTH,), 0.5),
]
DROPPED_WRITTEN = [
    Dropped("q1", "d1", "d1", 2, 0.7, None, "judged_positive", (FoundBy("dense", 2, 0.7), FoundBy("words", 1, 9.5))),
    Dropped(
        "q1", "d1", "d9", 3, 0.6, 0.75, "within_guide_margin", (FoundBy("dense", 3, 0.6), FoundBy("words", 2, 7.0))
    ),
    Dropped("q1", "d9", "007", 1, 0.9, None, "within_margin", (FoundBy("dense", 1, 0.9),)),
]


def write(folder, *ends):
    """Both tables, as blocks of pairs that end there."""
    folder.mkdir(exist_ok=True)
    with MinedWriter(folder, PAIRS, SOURCES) as writer:
        first = 0
        for last in ends:
            writer.write(FOUND.at((FOUND.pair >= first) & (FOUND.pair < last)), last)
            first = last
    return folder


@pytest.fixture
def mined(tmp_path):
    with writing(tmp_path / "mined", "mine", inputs={}, config={}) as draft:
        write(draft.folder, 3)
    return Artifact.open(tmp_path / "mined", "mine")


def test_triples_come_back_as_they_were_written_in_their_order(mined):
    assert read_triples(mined) == TRIPLES_WRITTEN


def test_dropped_candidates_come_back_with_the_reason_and_all_that_found_them(mined):
    assert read_dropped(mined) == DROPPED_WRITTEN


def test_dropped_candidates_can_be_read_by_reason(mined):
    assert read_dropped(mined, ["within_margin", "judged_positive"]) == [DROPPED_WRITTEN[0], DROPPED_WRITTEN[2]]
    assert read_dropped(mined, ["near_copy"]) == read_dropped(mined, []) == []


def test_the_base_models_index_has_the_base_models_score_in_both_tables(mined):
    for row in [*read_dropped(mined), *(negative for triple in read_triples(mined) for negative in triple.negatives)]:
        assert all(said.score == row.score for said in row.found_by if said.source == "dense")


def test_without_the_base_model_among_the_sources_nothing_has_its_score(tmp_path):
    found = FOUND.at(np.arange(6))
    alone = Found(
        *(found.pair, found.rank, found.row, found.score, found.outcome, None),
        {"judged": found.source_ranks["dense"]},
    )
    with MinedWriter(tmp_path, PAIRS, SourceColumns({"judged": False}, None)) as writer:
        writer.write(alone, 3)
    assert pq.read_table(tmp_path / TRIPLES)["negative_source_scores"].to_pylist() == [[[None], []], [], [[None]]]
    assert "judged_score" not in pq.read_schema(tmp_path / DROPPED).names


def test_the_file_loads_with_datasets(mined, tmp_path):
    expected = {
        "query_id": "q1",
        "query": "lost card",
        "positive_id": "d1",
        "positive": "block the card",
        "positive_score": 0.875,
        "positive_guide_score": 0.75,
        "negative_ids": ["007", "d2"],
        "negatives": ["Überweisung\nzurück", "card lost"],
        "negative_scores": [0.75, 0.5],
        "negative_ranks": [1, 4],
        "negative_guide_scores": [0.25, None],
        "negative_sources": [["dense"], ["words", "judged"]],
        "negative_source_ranks": [[1], [3, 1]],
        "negative_source_scores": [[0.75], [6.5, None]],
    }
    path, cache = str(mined.folder / TRIPLES), str(tmp_path / "cache")
    table = load_dataset("parquet", data_files=path, split="train", cache_dir=cache)
    assert (len(table), table[0], table[1]["negatives"]) == (3, expected, [])
    assert Dataset.from_parquet(path, cache_dir=cache)[0] == expected


def test_the_same_candidates_are_the_same_bytes(mined, tmp_path):
    again = write(tmp_path / "again", 3)
    for name in (TRIPLES, DROPPED):
        assert (again / name).read_bytes() == (mined.folder / name).read_bytes()


def test_blocks_stand_one_after_the_other_and_say_the_same(mined, tmp_path):
    blocks = write(tmp_path / "blocks", 2, 3)
    for name in (TRIPLES, DROPPED):
        whole, parts = pq.read_table(mined.folder / name), pq.read_table(blocks / name)
        assert parts.to_pylist() == whole.to_pylist()
    assert pq.ParquetFile(blocks / TRIPLES).num_row_groups == 2


def test_parts_of_a_block_are_joined_in_the_order_of_their_pairs():
    parts = [FOUND.at(np.isin(FOUND.pair, [1])), FOUND.at(np.isin(FOUND.pair, [0, 2]))]
    joined = Found.joined(parts)
    assert triples_table(joined, PAIRS, "dense", 0, 3) == triples_table(FOUND, PAIRS, "dense", 0, 3)
    assert dropped_table(joined, PAIRS, SOURCES).to_pylist() == dropped_table(FOUND, PAIRS, SOURCES).to_pylist()


def test_dropped_candidates_are_a_table_of_one_row_each(mined):
    rows = pq.read_table(mined.file(DROPPED)).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("q1", "d1", "d1", 2, 0.7, None, "judged_positive", 2, 1, 9.5, None),
        ("q1", "d1", "d9", 3, 0.6, 0.75, "within_guide_margin", 3, 2, 7.0, None),
        ("q1", "d9", "007", 1, 0.9, None, "within_margin", 1, None, None, None),
    ]
    fixed = ["query_id", "positive_id", "doc_id", "rank", "score", "guide_score", "reason"]
    assert list(rows[0]) == [*fixed, "dense_rank", "words_rank", "words_score", "judged_rank"]


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


@pytest.mark.parametrize(("name", "read"), [(TRIPLES, read_triples), (DROPPED, read_dropped)])
def test_a_changed_file_is_refused(mined, name, read):
    (mined.folder / name).write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=rf"{name}: changed since it was written .*closecall mine CONFIG"):
        read(mined)
