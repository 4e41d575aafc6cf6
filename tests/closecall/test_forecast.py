"""`closecall plan` measures for seconds and says what each stage will take."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from closecall import forecast as module
from closecall.cli import app
from closecall.forecast import forecast, lines
from closecall.pipeline import load_experiment


@pytest.fixture
def plan(config_file, monkeypatch):
    """The forecast of the toy experiment at given speeds: seconds can then be worked out by hand."""
    monkeypatch.setattr(module, "_encode_seconds", lambda encoder, texts: 1.0)
    monkeypatch.setattr(module, "_search_speed", lambda dimension: 1e12)
    monkeypatch.setattr("finetune.estimate.training_speed", lambda *_: 100.0)
    return lambda *settings: forecast(load_experiment(config_file, settings))


def seconds(found):
    return {stage.name: stage.seconds for stage in found.stages}


def test_seconds_follow_from_the_texts_of_each_stage_and_the_measured_speeds(plan):
    """48 documents of 5 tokens, all of them encoded in the measured second: 240 tokens/s. 57 train, 30 dev, 57 test."""
    found = seconds(plan("finetune.epochs=2", "finetune.evaluations_per_epoch=3", "finetune.mix=[]"))
    query = 5.0  # "w a noun" 5, "please w the noun" 6, "v w noun" 5 tokens: the mean of the train queries, about
    assert found["mine"] == pytest.approx((48 * 5 + 57 * query) / 240, rel=0.05)
    trained = 57 * 2 * (query + 3 * 5) / 100
    dev = 6 * (48 * 5 + 30 * query) / 240
    assert found["finetune"] == pytest.approx(trained + dev + 30 * query / 240, rel=0.05)
    timed = 2 * (57 * query + module.TIMED_TEXTS * 5) / 240
    assert found["eval"] == pytest.approx(timed, rel=0.15)  # and reading the data


def test_more_seeds_and_rounds_cost_as_many_times_the_training(plan):
    once = seconds(plan("finetune.dev_documents=48"))["finetune"]
    confirm = 30 * 5.3 / 240
    seeds = seconds(plan("finetune.dev_documents=48", "finetune.seeds=[0,1,2]"))["finetune"]
    assert seeds - confirm == pytest.approx(3 * (once - confirm), rel=0.02)
    assert seconds(plan("finetune.dev_documents=48", "finetune.rounds=2"))["finetune"] == pytest.approx(2 * once)
    assert seconds(plan("finetune.epochs=0"))["finetune"] == 0


def test_what_is_stored_already_costs_nothing(plan, config_file):
    assert plan().documents_to_encode == 48
    made = load_experiment(config_file)
    made.split()
    made.mine()
    found = plan()
    assert found.documents_to_encode == 0
    assert seconds(found)["mine"] == pytest.approx(0, abs=1e-6)


def test_vectors_are_counted_on_disk(plan):
    """48 + 57 vectors of 32 floats, and 57 pairs with 10 candidates."""
    mine = plan().stages[1]
    assert mine.disk_bytes == (48 + 57) * 32 * 4 + 57 * 10 * module.CANDIDATE_BYTES


def test_the_table_sums_the_stages(plan):
    found = plan()
    slow = replace(found, stages=tuple(replace(stage, seconds=90.0) for stage in found.stages))
    assert lines(slow)[5].split()[:2] == ["run", "6.0"]
    assert "48 of 48 documents have no vectors yet" in lines(slow)[6]


def test_the_command_writes_nothing(config_file):
    before = sorted(config_file.parent.rglob("*"))
    result = CliRunner().invoke(app, ["plan", str(config_file), "--json"])
    assert result.exit_code == 0
    assert [stage["name"] for stage in json.loads(result.stdout)["stages"]] == ["split", "mine", "finetune", "eval"]
    assert sorted(config_file.parent.rglob("*")) == before
