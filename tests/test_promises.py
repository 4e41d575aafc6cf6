"""The eight promises of the design, each at the level of the whole workflow; parts are tested beside their code."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest

from closecall.manifest import Artifact
from closecall.pipeline import load_experiment
from closecall.records import Qrels
from closecall.text import normalise
from closecall.trec import read_qrels, read_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_model, toy_config):
    """One finished run on the toy data; tests only read it."""
    experiment = load_experiment(toy_config(tmp_path_factory.mktemp("promises"), tiny_model))
    experiment.run()
    return experiment


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_1_training_never_opens_the_test_split(config_file):
    experiment = load_experiment(config_file)
    experiment.split()
    # The test part is gone, and so are the dataset's own queries and judgments: nothing is left to peek at.
    shutil.rmtree(experiment.output / "split" / "test")
    for name in ("queries.jsonl", "qrels.tsv"):
        (experiment.config.data.folder / name).unlink()
    load_experiment(config_file).mine()
    assert Artifact.open(load_experiment(config_file).finetune().folder, "finetune").manifest["counts"]["steps"] > 0


def test_1_no_query_of_test_or_dev_is_among_the_training_rows(finished):
    rows = pq.read_table(finished.output / "mined" / "triples.parquet").to_pylist()
    trained = {row["query_id"] for row in rows}
    for part in ("dev", "test"):
        held = read_jsonl(finished.output / "split" / part / "queries.jsonl")
        assert held
        assert not trained & {query["_id"] for query in held}
        assert not {normalise(row["query"]) for row in rows} & {normalise(query["text"]) for query in held}


def test_2_the_checkpoint_is_the_step_that_was_best_on_dev(finished):
    curve = json.loads((finished.output / "checkpoint" / "curve.json").read_text())
    (seed,) = curve["seeds"]
    assert len(seed["points"]) >= 5  # before training, and twice in each of two epochs
    best = max(seed["points"], key=lambda point: (point["dev"], -point["step"]))
    assert curve["chosen"]["step"] == best["step"]
    assert curve["chosen"]["share"] == 1 or seed["mixed"]


def test_3_no_judged_document_of_any_grade_is_a_hard_negative(finished):
    judgments, _ = read_qrels(finished.output / "split" / "train" / "qrels.tsv")
    qrels = Qrels(row.judgment for row in judgments)
    rows = pq.read_table(finished.output / "mined" / "triples.parquet").to_pylist()
    assert sum(len(row["negative_ids"]) for row in rows) > 0
    for row in rows:
        assert not set(row["negative_ids"]) & set(qrels.grades(row["query_id"]))
        assert normalise(row["positive"]) not in {normalise(text) for text in row["negatives"]}


def test_4_kept_and_dropped_make_up_all_that_was_retrieved(finished):
    stats = json.loads((finished.output / "mined" / "stats.json").read_text())
    kept = pq.read_table(finished.output / "mined" / "triples.parquet").to_pylist()
    dropped = pq.read_table(finished.output / "mined" / "dropped.parquet").to_pylist()
    ranks = {}
    for row in kept:
        ranks.setdefault((row["query_id"], row["positive_id"]), []).extend(row["negative_ranks"])
    for row in dropped:
        assert row["reason"]
        ranks.setdefault((row["query_id"], row["positive_id"]), []).append(row["rank"])
    # Each pair accounts for every rank from 1 to the depth it was searched to, once.
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in ranks.values())
    assert stats["retrieved"] == sum(map(len, ranks.values()))
    assert stats["asked"] == stats["kept"] + stats["short"]


def test_5_every_measure_is_reported_with_its_model_its_number_of_queries_and_its_cutoff(finished):
    content = json.loads((finished.output / "verdict" / "verdict.json").read_text())
    report = (finished.output / "verdict" / "report.md").read_text()
    for name, result in content["overall"].items():
        assert re.fullmatch(r"[A-Za-z]+@\d+", name)
        assert result["n"] == content["queries"]
        assert re.search(rf"\| {name} \|.*\| {result['n']} \|", report)
    for model in content["models"].values():
        assert model["weights_sha256"][:12] in report


def test_6_a_gain_that_could_be_luck_is_not_called_a_gain(finished, tmp_path):
    from eval.runs import RunFiles, compare_runs

    qrels = tmp_path / "qrels.tsv"
    ids = [f"q{number}" for number in range(40)]
    qrels.write_text("".join(f"{query_id}\tgood\t1\n" for query_id in ids))

    def run(name, found):
        order = lambda hit: ("good", "bad") if hit else ("bad", "good")  # noqa: E731
        lines = [
            f"{q} Q0 {doc} {rank} {1 / rank} x\n"
            for number, q in enumerate(ids)
            for rank, doc in enumerate(order(number in found), start=1)
        ]
        (tmp_path / name).write_text("".join(lines))
        return tmp_path / name

    # 20 queries right against 22: two wins that came with six and four changes of mind.
    runs = {"base": run("a", set(range(20))), "tuned": run("b", {*range(16), *range(20, 26)})}
    content = compare_runs(RunFiles(qrels, runs), ["measure=MRR"])
    assert content["overall"]["MRR"]["delta"] == pytest.approx(2 * 0.5 / 40)
    assert content["outcome"] == "undecided"
    assert content["queries_to_decide"] > 40


def test_7_the_same_inputs_and_seed_give_the_same_bytes(finished, tmp_path, tiny_model, toy_config):
    again = load_experiment(toy_config(tmp_path, tiny_model))
    again.run()
    for name in ("split/test/queries.jsonl", "mined/triples.parquet", "mined/dropped.parquet", "verdict/base.run"):
        assert (finished.output / name).read_bytes() == (again.output / name).read_bytes(), name
    for name in ("checkpoint/model/model.safetensors", "verdict/tuned.run", "verdict/per_query.csv"):
        assert (finished.output / name).read_bytes() == (again.output / name).read_bytes(), name


def test_8_what_a_killed_run_finished_is_used_again_and_no_half_artifact_is_read(config_file, monkeypatch):
    import eval.stage

    def killed(*_, **__):
        raise KeyboardInterrupt

    experiment = load_experiment(config_file)
    with monkeypatch.context() as patch:
        patch.setattr(eval.stage, "evaluate_answers", killed)
        with pytest.raises(KeyboardInterrupt):
            experiment.run()
    assert not (experiment.output / "verdict").exists()
    written = {
        name: (experiment.output / name / "manifest.json").read_text() for name in ("split", "mined", "checkpoint")
    }
    verdict = load_experiment(config_file).run()
    assert read_run(verdict.file("tuned.run"))
    for name, manifest in written.items():
        assert (experiment.output / name / "manifest.json").read_text() == manifest
