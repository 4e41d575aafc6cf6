"""The split on disk: written once, frozen, extended, and read one part at a time."""

import hashlib
import json
import shutil

import pytest

from closecall.assign import SplitConfig
from closecall.dataset import DataConfig, load_dataset
from closecall.errors import ArtifactError, DataError
from closecall.manifest import Artifact
from closecall.records import SPLITS
from closecall.split import make_split, plan_split, read_part


@pytest.fixture
def split(dataset, tmp_path):
    """Makes the split of some queries in `split/`."""

    def split(texts, config=None, folder="split", **options):
        return make_split(dataset(texts, **options), config or SplitConfig(), tmp_path / folder)

    return split


def texts(count, start=0):
    return {f"q{number}": f"alpha{number} beta{number}" for number in range(start, start + count)}


def parts(artifact):
    """Part by query id, as the files say."""
    return {query.query_id: name for name in SPLITS for query in read_part(artifact, name).queries}


def file_hashes(artifact):
    names = artifact.manifest["files"]
    return {name: hashlib.sha256((artifact.folder / name).read_bytes()).hexdigest() for name in names}


def test_the_parts_hold_every_query_with_its_judgments_once(split):
    artifact = split(texts(50), language={"q1": "fi"})
    assert parts(artifact).keys() == texts(50).keys()
    assert {name: artifact.manifest["counts"][name] for name in SPLITS} == {"train": 35, "dev": 5, "test": 10}
    for name in SPLITS:
        part = read_part(artifact, name)
        assert part.text_of() == {query.query_id: texts(50)[query.query_id] for query in part.queries}
        assert {q: part.qrels.positives(q) for q in part.qrels} == {q: [f"d-{q}"] for q in part.text_of()}


def test_a_part_keeps_the_columns_and_names_the_group(split):
    artifact = split(texts(20), thread={f"q{n}": n // 2 for n in range(20)}, config=SplitConfig(group_by="thread"))
    for query in (query for name in SPLITS for query in read_part(artifact, name).queries):
        number = int(query.query_id[1:])
        assert query.metadata == {"thread": number // 2, "_group": f"thread:{number // 2}"}


def test_a_column_named_text_does_not_replace_the_query(split):
    """The judged form has `query` for the text, and so room for a column `text`."""
    artifact = split(texts(20), text={"q3": "a remark"}, _id={"q3": "other"})
    assert parts(artifact).keys() == texts(20).keys()
    found = {q: text for name in SPLITS for q, text in read_part(artifact, name).text_of().items()}
    assert found == texts(20)


def test_the_same_inputs_give_the_same_bytes(split):
    first, second = split(texts(60)), split(texts(60), folder="again")
    assert file_hashes(first) == file_hashes(second)
    assert first.content() == second.content()


def test_a_split_on_disk_is_used_again_untouched(split):
    first = split(texts(30))
    second = split(texts(30))
    assert second.manifest["written_at"] == first.manifest["written_at"]
    assert second.manifest == first.manifest


@pytest.mark.parametrize("text", ["line\u2028separator", "next\u0085line", "a\tb", 'quote " \\ back', "🙂", "\x1e"])
def test_query_text_survives(split, text):
    queries = texts(20) | {"odd": f"{text} odd"}
    artifact = split(queries)
    found = {q: t for name in SPLITS for q, t in read_part(artifact, name).text_of().items()}
    assert found["odd"] == f"{text} odd"
    assert found == queries


@pytest.mark.parametrize("name", SPLITS)
def test_reading_one_part_opens_no_file_of_another(split, name):
    artifact = split(texts(30))
    for other in set(SPLITS) - {name}:
        shutil.rmtree(artifact.folder / other)
    assert read_part(Artifact.open(artifact.folder, "split"), name).queries


def test_the_hash_of_a_part_does_not_change_with_the_others(split, dataset, tmp_path):
    before = split(texts(30))
    train = read_part(before, "train").sha256
    joined = next(q for q, name in parts(before).items() if name == "test")
    after = split(texts(30) | {"new": texts(30)[joined]})
    assert read_part(after, "train").sha256 == train
    assert "new" in read_part(after, "test").text_of()


def test_added_queries_leave_the_others_where_they_were(split):
    before = parts(split(texts(100)))
    artifact = split(texts(160))
    after = parts(artifact)
    assert {query_id: after[query_id] for query_id in before} == before
    assert artifact.manifest["counts"]["added"] == 60
    assert artifact.manifest["counts"]["removed"] == 0


def test_removed_queries_are_counted_and_move_no_other(split):
    before = parts(split(texts(100)))
    artifact = split(texts(90, start=10))
    assert parts(artifact) == {q: name for q, name in before.items() if int(q[1:]) >= 10}
    assert (artifact.manifest["counts"]["added"], artifact.manifest["counts"]["removed"]) == (0, 10)


def test_a_new_query_that_links_two_parts_is_set_aside_and_counted(split):
    before = parts(split(texts(30)))
    train, test = (next(q for q, name in before.items() if name == part) for part in ("train", "test"))
    config = SplitConfig(near_duplicate=0.5)
    split(texts(30), config, folder="linked")
    bridge = f"{texts(30)[train]} {texts(30)[test]}"
    artifact = split(texts(30) | {"bridge": bridge}, config, folder="linked")
    assert artifact.manifest["counts"]["set_aside"] == {"no_positives": 0, "bridges_two_parts": 1}
    assert artifact.read_json("set_aside.json")["bridges_two_parts"] == ["bridge"]
    assert parts(artifact) == before


@pytest.mark.parametrize(
    ("changed", "found"),
    [({"seed": 1}, "seed 0 -> 1"), ({"held_out": 0.3}, "held_out 0.2 -> 0.3"), ({"on_leak": "drop"}, "on_leak")],
)
def test_another_split_than_the_frozen_one_is_refused_with_the_way_out(split, changed, found):
    frozen = split(texts(40))
    before = file_hashes(frozen)
    with pytest.raises(ArtifactError, match="the split is frozen, and the config now asks for another one") as error:
        split(texts(40), SplitConfig(**changed))
    assert found in str(error.value)
    assert "Put the settings back, or give this experiment an `output` of its own" in str(error.value)
    assert file_hashes(Artifact.open(frozen.folder, "split")) == before


def test_another_positive_from_is_refused_too(split, dataset, tmp_path):
    split(texts(40))
    data = dataset(texts(40))
    data.qrels.positive_from = 0
    with pytest.raises(ArtifactError, match="positive_from 1 -> 0"):
        make_split(data, SplitConfig(), tmp_path / "split")


@pytest.mark.parametrize("grown", [0, 5])
def test_a_split_file_changed_by_hand_is_refused(split, grown):
    artifact = split(texts(30))
    path = artifact.folder / "test" / "queries.jsonl"
    path.write_text(path.read_text().replace("alpha", "ALPHA", 1))
    with pytest.raises(ArtifactError, match=r"test/queries.jsonl: changed since it was written .*restore the file"):
        split(texts(30 + grown))


def test_a_changed_part_is_not_read(split):
    artifact = split(texts(30))
    (artifact.folder / "train" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td-q1\t1\n")
    with pytest.raises(ArtifactError, match=r"train/qrels\.tsv: changed"):
        read_part(artifact, "train")
    read_part(artifact, "dev")


def test_planning_a_split_writes_nothing(dataset, tmp_path):
    plan_split(dataset(texts(30)), SplitConfig(), tmp_path / "out" / "split")
    assert list(tmp_path.iterdir()) == []


def test_a_planned_split_is_the_one_that_is_written(split, dataset, tmp_path):
    planned, _ = plan_split(dataset(texts(30)), SplitConfig(), tmp_path / "split")
    assert parts(split(texts(30))) == planned.part


def test_after_a_kill_while_writing_a_plan_still_sees_the_frozen_split(split, dataset, tmp_path):
    before = parts(split(texts(40)))
    (tmp_path / "split").rename(tmp_path / ".split.old")
    planned, _ = plan_split(dataset(texts(80)), SplitConfig(), tmp_path / "split")
    assert {query_id: planned.part[query_id] for query_id in before} == before


def test_too_few_queries_are_refused_with_the_sizes_and_the_way_out(split):
    with pytest.raises(DataError) as error:
        split(texts(2))
    message = str(error.value)
    assert message.startswith("the split leaves dev and test empty: 2 queries with positives in 2 groups became")
    assert message.endswith("judge more queries, or change split.held_out, split.dev or split.group_by")


def test_one_group_cannot_be_split(split):
    thread = {f"q{number}": "t" for number in range(30)}
    with pytest.raises(DataError, match="30 queries with positives in 1 groups"):
        split(texts(30), SplitConfig(group_by="thread"), thread=thread)


OWN = {"train": tuple(f"q{n}" for n in range(40)), "test": tuple(f"q{n}" for n in range(40, 50))}


def test_own_splits_are_kept_and_said_to_be_own(split):
    artifact = split(texts(50), own=OWN)
    found = parts(artifact)
    assert {q for q, name in found.items() if name == "test"} == set(OWN["test"])
    assert {q for q, name in found.items() if name != "test"} == set(OWN["train"])
    assert artifact.manifest["counts"]["own_splits"] is True
    assert artifact.manifest["counts"]["dev"] == 5


def test_own_splits_that_move_a_query_into_a_frozen_test_are_refused(split):
    split(texts(50), own=OWN)
    moved = {"train": OWN["train"][1:], "test": ("q0", *OWN["test"])}
    with pytest.raises(ArtifactError, match=r"own split moves 1 of its queries \('q0' train -> test\)"):
        split(texts(50), own=moved)


def test_queries_added_to_own_splits_leave_a_carved_dev_where_it_was(split):
    before = parts(split(texts(50), own=OWN))
    grown = {"train": (*OWN["train"], *texts(40, start=50)), "test": OWN["test"]}
    after = parts(split(texts(90), own=grown))
    assert {query_id: after[query_id] for query_id in before} == before


def test_a_dataset_read_from_files_is_split_with_its_columns(toy_data, tmp_path):
    artifact = make_split(
        load_dataset(DataConfig(folder=toy_data)), SplitConfig(group_by="document"), tmp_path / "split"
    )
    rows = [json.loads(line) for line in (artifact.folder / "test" / "queries.jsonl").read_text().splitlines()]
    assert len(rows) == artifact.manifest["counts"]["test"]
    assert rows[0].keys() == {"_id", "text", "noun", "document", "_group"}
