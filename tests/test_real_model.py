"""The whole workflow once on the real all-MiniLM-L6-v2 and two services of the demo's data."""

from __future__ import annotations

import json

from sentence_transformers import SentenceTransformer

from closecall.pipeline import demo_experiment


def test_the_demo_on_two_services_ends_in_a_verdict_on_held_out_operations(tmp_path):
    experiment = demo_experiment(
        tmp_path, "kms,sqs", ["mining.negatives=1", "model.max_length_tokens=48", "split.dev=0.2", "eval.resamples=999"]
    )
    content = json.loads(experiment.run().file("verdict.json").read_text())
    assert content["models"]["base"]["weights_sha256"].startswith("53aa51172d14")
    assert content["models"]["tuned"]["weights_sha256"] != content["models"]["base"]["weights_sha256"]
    # MiniLM finds most operations of two small services at once, and no tuning on them may make that much worse.
    assert 0.6 < content["overall"]["nDCG@10"]["base"] < 0.95
    assert content["overall"]["nDCG@10"]["delta"] > -0.05
    assert content["outcome"] in ("adopt", "reject", "undecided")
    assert {"service=kms", "service=sqs"} <= {item["name"] for item in content["slices"]}
    trained = {
        json.loads(line)["operation"] for line in (tmp_path / "split/train/queries.jsonl").read_text().splitlines()
    }
    tested = {
        json.loads(line)["operation"] for line in (tmp_path / "split/test/queries.jsonl").read_text().splitlines()
    }
    assert tested
    assert not trained & tested
    vector = SentenceTransformer(str(tmp_path / "checkpoint" / "model"), device="cpu").encode("create a queue")
    assert vector.shape == (384,)
