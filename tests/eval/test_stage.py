"""The evaluation stage with several contenders, on the toy."""

import json
import shutil

import numpy as np
import pytest

from closecall.pipeline import load_experiment
from closecall.trec import read_qrels, read_run

CONTENDERS = (
    "[bm25, {name: hybrid, fuse: [tuned, bm25]}, {name: cut, of: tuned, dimensions: 8, quantise: int8}, "
    "{name: engine, run: RUN}]"
)


@pytest.fixture(scope="module")
def done(tmp_path_factory, toy_config, tiny_model):
    """A run that has ended, and one more evaluation with contenders; its folder is that of the experiment."""
    config = toy_config(tmp_path_factory.mktemp("stage"), tiny_model)
    load_experiment(config).run()
    shutil.copyfile(config.parent / "out" / "verdict" / "base.run", config.parent / "engine.run")
    contenders = CONTENDERS.replace("RUN", str(config.parent / "engine.run"))
    made = load_experiment(config, [f"eval.contenders={contenders}"])
    made.evaluate()
    return made


def content(made):
    return json.loads((made.output / "verdict" / "verdict.json").read_text(encoding="utf-8"))


def test_every_contender_answers_the_same_queries_and_leaves_its_run(done):
    found = content(done)
    assert {found["contender"], *found["others"]} == {"tuned", "bm25", "hybrid", "cut", "engine"}
    counts = {name: other["overall"]["nDCG@10"]["n"] for name, other in found["others"].items()}
    assert set(counts.values()) == {found["queries"]}
    for name in ("base", "tuned", "bm25", "hybrid", "cut", "engine"):
        assert len(read_run(done.output / "verdict" / f"{name}.run")) > 0
    assert found["models"]["hybrid"]["name"] == "reciprocal rank fusion of tuned and bm25 (k = 60)"


def test_a_run_of_the_base_is_a_contender_that_changes_nothing(done):
    other = content(done)["others"]["engine"]
    assert other["sentence"].startswith("unchanged: the same values on all")


def test_sizes_stand_in_the_verdict_and_times_beside_it(done):
    found = content(done)
    documents = 48
    assert found["sizes"]["base"]["bytes_per_vector"] == 4 * 32
    assert found["sizes"]["cut"]["index_bytes"] == 8 * documents
    assert found["sizes"]["bm25"]["index_bytes"] == 0
    assert found["sizes"]["base"]["model_bytes"] > 0
    times = json.loads((done.output / "verdict" / "costs.json").read_text(encoding="utf-8"))
    assert times["engine"]["latency_p50_ms"] is None
    for name in ("base", "bm25", "hybrid"):
        assert 0 < times[name]["latency_p50_ms"] <= times[name]["latency_p95_ms"]
    assert "latency" not in json.dumps({key: value for key, value in found.items() if key != "settings"})


def test_the_same_evaluation_in_another_folder_has_the_same_verdict_bytes(done, tmp_path):
    before = (done.output / "verdict" / "verdict.json").read_bytes()
    shutil.rmtree(done.output / "verdict")
    done.evaluate()
    assert (done.output / "verdict" / "verdict.json").read_bytes() == before


def test_failures_are_kept_across_evaluations(tmp_path, toy_config, tiny_model):
    config = toy_config(tmp_path, tiny_model)
    untrained = load_experiment(config, ["finetune.epochs=0"])
    untrained.run()
    lines = [json.loads(line) for line in (untrained.output / "failures.jsonl").read_text().splitlines()]
    assert lines
    assert {line["status"] for line in lines} == {"new"}
    load_experiment(config).run()
    after = {e["query_id"]: e for e in map(json.loads, (untrained.output / "failures.jsonl").read_text().splitlines())}
    failing = {
        json.loads(line)["query_id"]
        for line in (untrained.output / "verdict" / "failures.jsonl").read_text().splitlines()
    }
    for line in lines:
        assert after[line["query_id"]]["status"] == ("still_failing" if line["query_id"] in failing else "fixed")
    assert any(entry["status"] == "fixed" for entry in after.values())
    load_experiment(config).run()  # unchanged, so nothing is merged again
    assert all(len(entry["history"]) <= 2 for entry in after.values())


def test_for_each_pair_of_languages_only_documents_of_that_language_are_ranked(
    tmp_path, toy_data, toy_config, tiny_model
):
    """Documents of `alarm` are said to be German, and their queries too; each pair is then a corpus of its own."""
    config = toy_config(tmp_path, tiny_model)
    for name in ("corpus", "queries"):
        path = tmp_path / "data" / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["language"] = "de" if "alarm" in row["_id"] or "key" in row["_id"] else "en"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = load_experiment(config)
    made.run()
    pairs = {(pair["query"], pair["document"]): pair for pair in content(made)["languages"]}
    assert set(pairs) == {("de", "de"), ("en", "en")}
    test = read_qrels(made.output / "split" / "test" / "qrels.tsv")[0]
    of_pair = {row.judgment.query_id for row in test if "alarm" in row.judgment.doc_id or "key" in row.judgment.doc_id}
    assert pairs["de", "de"]["n"] == len(of_pair)
    run = read_run(made.output / "verdict" / "base.run")
    expected = []
    for query_id in of_pair:
        kept = [d.doc_id for d in run.ranking(query_id) if "alarm" in d.doc_id or "key" in d.doc_id]
        positive = next(row.judgment.doc_id for row in test if row.judgment.query_id == query_id)
        rank = kept.index(positive) + 1
        expected.append(1 / np.log2(1 + rank) if rank <= 10 else 0)
    assert pairs["de", "de"]["values"]["base"] == pytest.approx(np.mean(expected))
