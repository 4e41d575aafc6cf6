"""What of test can be found where training looks: found, counted by kind, and dropped on request."""

import json

import pytest

from closecall.assign import SplitConfig
from closecall.leaks import find_leaks, texts_in_training
from closecall.split import make_split, read_part

PART = {"t1": "test", "t2": "test", "d1": "dev", "r1": "train", "r2": "train"}
TEXTS = {"t1": "lost my card", "t2": "how do I reset it", "d1": "opening hours", "r1": "close an account", "r2": "fees"}


def leaks(dataset, changes=None, threshold=0.8, group_by=None, **columns):
    return find_leaks(dataset(TEXTS | (changes or {}), **columns), PART, threshold, group_by)


def test_parts_without_a_common_text_have_no_leaks(dataset):
    found = leaks(dataset)
    assert found.counts == {}
    assert found.summary() == {}


@pytest.mark.parametrize("text", ["lost my card", "Lost  My CARD", "lo\u00adst my card", "\uff4cost my card"])
def test_the_same_text_in_train_is_a_leak(dataset, text):
    assert leaks(dataset, {"r1": text}).pairs["test~train same_text"] == [("t1", "r1")]
    assert leaks(dataset, {"r1": text}).counts == {"test~train same_text": 1}


def test_a_near_duplicate_is_a_leak_from_the_threshold_on(dataset):
    """{how, do, I, reset, it} and {how, can, I, reset, it}: 4 of 6 words in common, 0.667."""
    changes = {"r2": "how can I reset it"}
    assert leaks(dataset, changes, threshold=0.66).counts == {"test~train near_duplicate": 1}
    assert leaks(dataset, changes, threshold=0.67).counts == {}


def test_the_same_text_is_not_counted_as_a_near_duplicate_too(dataset):
    assert leaks(dataset, {"r1": "lost my card"}).counts == {"test~train same_text": 1}


def test_a_common_group_is_a_leak(dataset):
    found = leaks(dataset, group_by="thread", thread={"t1": "x", "r2": "x", "d1": "y"})
    assert found.counts == {"test~train same_group": 1}
    assert found.pairs["test~train same_group"] == [("t1", "r2")]


def test_queries_without_a_group_share_none(dataset):
    assert leaks(dataset, group_by="thread", thread={"t1": None, "r2": None}).counts == {}


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}])
def test_a_group_may_be_any_json_value(dataset, value):
    found = leaks(dataset, group_by="tags", tags={"t1": value, "r1": value})
    assert found.counts == {"test~train same_group": 1}


def test_a_group_number_and_its_digits_are_one_group(dataset):
    """As in the split, where they stay together."""
    assert leaks(dataset, group_by="n", n={"t1": 7, "r1": "7"}).counts == {"test~train same_group": 1}


def test_test_into_dev_and_dev_into_train_are_leaks_of_their_own(dataset):
    assert leaks(dataset, {"d1": "lost my card"}).counts == {"test~dev same_text": 1}
    assert leaks(dataset, {"r1": "opening hours"}).counts == {"dev~train same_text": 1}


def test_a_held_out_query_with_two_leaks_counts_once(dataset):
    found = leaks(dataset, {"r1": "lost my card", "r2": "LOST my card"})
    assert found.counts == {"test~train same_text": 1}
    assert found.summary() == {"test~train same_text": {"queries": 1, "examples": [["t1", "r1"], ["t1", "r2"]]}}


def test_the_summary_shows_twenty_pairs_and_counts_all(dataset):
    texts = {f"t{n}": f"same {n}" for n in range(30)} | {f"r{n}": f"same {n}" for n in range(30)}
    part = {query_id: "test" if query_id[0] == "t" else "train" for query_id in texts}
    summary = find_leaks(dataset(texts), part, 1.0, None).summary()["test~train same_text"]
    assert (summary["queries"], len(summary["examples"])) == (30, 20)


def test_queries_that_are_set_aside_leak_nothing(dataset):
    part = {query_id: name for query_id, name in PART.items() if query_id != "r1"}
    data = dataset(TEXTS | {"r1": "lost my card"})
    assert find_leaks(data, part, 0.8, None).counts == {}


def test_test_texts_among_training_texts_are_named():
    texts = {"t1": "Lost my card", "t2": "fees?"}
    assert texts_in_training(texts, ["lost  my CARD", "fees"]) == ["t1"]


OWN = {"train": ("r1", "r2", "r3"), "dev": ("d1", "d2"), "test": ("t1", "t2")}
LEAKING = {
    "r1": "lost my card",
    "r2": "close an account",
    "r3": "opening hours",
    "d1": "opening hours",
    "d2": "Reset it",
    "t1": "lost my card",
    "t2": "reset it",
}


def test_leaks_of_own_splits_are_written_and_counted(dataset, tmp_path):
    artifact = make_split(dataset(LEAKING, own=OWN), SplitConfig(), tmp_path / "split")
    counts = {"test~train same_text": 1, "test~dev same_text": 1, "dev~train same_text": 1}
    assert artifact.manifest["counts"]["leaks"] == counts
    assert artifact.read_json("leaks.json")["test~dev same_text"]["examples"] == [["t2", "d2"]]
    assert [artifact.manifest["counts"][name] for name in ("train", "dev", "test")] == [3, 2, 2]


def test_dropping_leaks_removes_train_and_dev_queries_and_no_test_query(dataset, tmp_path):
    artifact = make_split(dataset(LEAKING, own=OWN), SplitConfig(on_leak="drop"), tmp_path / "split")
    left = {name: sorted(read_part(artifact, name).text_of()) for name in OWN}
    assert left == {"train": ["r2"], "dev": ["d1"], "test": ["t1", "t2"]}
    assert json.loads((artifact.folder / "set_aside.json").read_text())["leaks"] == ["d2", "r1", "r3"]
    assert artifact.manifest["counts"]["set_aside"] == {"no_positives": 0, "leaks": 3}


def test_our_own_split_has_no_leaks(dataset, tmp_path):
    texts = {f"q{n}": f"alpha{n % 40} beta{n % 40}" for n in range(120)}
    thread = {f"q{n}": n % 20 for n in range(120)}
    config = SplitConfig(group_by="thread", held_out=0.4)
    artifact = make_split(dataset(texts, thread=thread), config, tmp_path / "split")
    assert artifact.manifest["counts"]["leaks"] == {}
    assert artifact.read_json("leaks.json") == {}
