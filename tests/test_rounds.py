"""Rounds: mine again with the tuned model, and train on."""

import json

import pytest

from closecall.errors import ArtifactError
from closecall.pipeline import load_experiment


def test_rounds_are_artifacts_of_their_own_and_the_last_one_is_judged(config_file, monkeypatch):
    made = load_experiment(config_file, ["finetune.rounds=2"])
    verdict = made.run()
    names = sorted(path.name for path in made.output.iterdir() if path.is_dir() and not path.name.startswith("."))
    assert names == ["checkpoint", "checkpoint-2", "mined", "mined-2", "split", "vectors", "verdict"]
    manifests = {
        name: json.loads((made.output / name / "manifest.json").read_text(encoding="utf-8")) for name in names[:4]
    }
    tuned = verdict.read_json("verdict.json")["models"]
    assert "checkpoint-2" in tuned["tuned"]["name"]
    # The second round mines and trains with the model of the first.
    assert manifests["mined-2"]["inputs"]["model"] == manifests["checkpoint-2"]["inputs"]["model"]
    assert manifests["mined-2"]["inputs"]["model"] != manifests["mined"]["inputs"]["model"]
    assert manifests["mined-2"]["files"] != manifests["mined"]["files"]
    # One round less is the first of these two, which stays; and the two are used again.
    one = load_experiment(config_file)
    one.finetune()
    assert (
        json.loads((made.output / "checkpoint" / "manifest.json").read_text())["key"] == manifests["checkpoint"]["key"]
    )
    assert load_experiment(config_file, ["finetune.rounds=2"]).run().key == verdict.key
    monkeypatch.setattr("finetune.train._run", None)  # nothing is trained any more
    load_experiment(config_file, ["finetune.rounds=2"]).finetune()


def test_a_second_round_of_other_settings_is_no_part_of_a_verdict(config_file):
    made = load_experiment(config_file)
    made.run()
    with pytest.raises(ArtifactError, match=r"mined-2: no mine artifact here"):
        load_experiment(config_file, ["finetune.rounds=2"]).evaluate()
