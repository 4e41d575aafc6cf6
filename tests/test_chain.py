"""No stage builds on an artifact that was made of something else than what there is now."""

from __future__ import annotations

import json
import shutil

import pytest

from closecall.errors import ArtifactError
from closecall.manifest import writing
from closecall.pipeline import load_experiment


@pytest.fixture(scope="module")
def finished_config(tmp_path_factory, tiny_model, toy_config):
    """A config whose experiment was run once; tests copy it."""
    config = toy_config(tmp_path_factory.mktemp("chain"), tiny_model)
    load_experiment(config).run()
    return config


@pytest.fixture
def config(finished_config, tmp_path):
    """A copy of the finished experiment, with its own data and artifacts."""
    shutil.copytree(finished_config.parent, tmp_path / "copy")
    path = tmp_path / "copy" / "toy.yaml"
    path.write_text(path.read_text().replace(str(finished_config.parent), str(path.parent)))
    return path


def test_eval_refuses_a_checkpoint_that_was_trained_with_other_settings(config):
    with pytest.raises(
        ArtifactError, match=r"checkpoint: made of something else .*changed: epochs.*closecall finetune"
    ):
        load_experiment(config, ["finetune.epochs=3"]).evaluate()


def test_finetune_refuses_triples_of_other_settings(config):
    with pytest.raises(ArtifactError, match=r"mined: made of something else .*changed: negatives.*closecall mine"):
        load_experiment(config, ["mining.negatives=1"]).finetune()


def test_eval_refuses_what_was_trained_on_another_split(config):
    shutil.rmtree(config.parent / "out" / "split")
    other = load_experiment(config, ["split.seed=1"])
    other.split()
    with pytest.raises(ArtifactError, match=r"mined: made of something else .*changed: train"):
        other.evaluate()


def test_another_positive_from_is_another_split_and_is_mined_anew(config):
    with pytest.raises(ArtifactError, match=r"split was made with other settings \(positive_from\)"):
        load_experiment(config, ["data.positive_from=2"]).mine()


@pytest.mark.parametrize("change", ["removed", "reworded", "judged anew"])
def test_a_frozen_test_query_may_not_change(config, change):
    data, out = config.parent / "data", config.parent / "out"
    test_id = json.loads((out / "split/test/queries.jsonl").read_text().splitlines()[0])["_id"]
    lines = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    qrels = (data / "qrels.tsv").read_text().splitlines()
    if change == "removed":
        lines = [line for line in lines if line["_id"] != test_id]
        qrels = [line for line in qrels if not line.startswith(f"{test_id}\t")]
    elif change == "reworded":
        lines = [line | {"text": "please"} if line["_id"] == test_id else line for line in lines]
    else:
        qrels.append(f"{test_id}\tcopy-user\t1")
    (data / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (data / "qrels.tsv").write_text("\n".join(qrels) + "\n")
    with pytest.raises(ArtifactError, match=rf"test split is frozen, and 1 of its 57 queries .*'{test_id}'"):
        load_experiment(config).split()


def test_a_training_query_may_go(config):
    data, out = config.parent / "data", config.parent / "out"
    train_id = json.loads((out / "split/train/queries.jsonl").read_text().splitlines()[0])["_id"]
    for name in ("queries.jsonl", "qrels.tsv"):
        kept = [line for line in (data / name).read_text().splitlines() if f'"{train_id}"' not in line]
        kept = [line for line in kept if not line.startswith(f"{train_id}\t")]
        (data / name).write_text("\n".join(kept) + "\n")
    assert load_experiment(config).split().manifest["counts"]["removed"] == 1


def test_a_folder_that_is_no_artifact_is_never_replaced(tmp_path):
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "mine.txt").write_text("precious")
    expected = pytest.raises(ArtifactError, match=r"holds files but no manifest\.json, so it is not ours to replace")
    with expected, writing(tmp_path / "split", "split", inputs={}, config={}):
        pass
    assert (tmp_path / "split" / "mine.txt").read_text() == "precious"


def test_a_second_closecall_in_the_same_output_is_refused_while_the_first_is_at_work(config):
    first, second = load_experiment(config), load_experiment(config)
    with first._alone(), pytest.raises(ArtifactError, match=r"out: another closecall is at work here"):
        second.split()
    second.split()


def test_a_manifest_changed_by_hand_is_refused_even_where_no_file_was(config):
    path = config.parent / "out" / "split" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["counts"]["leaks"] = {"test~train near_duplicate": 999}
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"split/manifest\.json: changed since it was written"):
        load_experiment(config).evaluate()


def test_a_file_put_into_a_checkpoint_is_refused(config):
    (config.parent / "out" / "checkpoint" / "model" / "added_tokens.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"holds 'model/added_tokens\.json', which its manifest does not list"):
        load_experiment(config).evaluate()
