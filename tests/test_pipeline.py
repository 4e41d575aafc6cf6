import json
import shutil
from collections import Counter

import pytest
import torch

import closecall.split
import eval.artifact
import mining.artifact
from closecall.encoder import TextEncoder
from closecall.manifest import Artifact
from closecall.models import weights_sha256
from closecall.pipeline import load_experiment
from eval.costs import Times
from finetune.loss import JudgedMultipleNegativesRankingLoss

STAGES = {"split": "split", "mine": "mined", "finetune": "checkpoint", "eval": "verdict"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other over 32 dimensions make a second of training thirty on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def first_output(tmp_path_factory):
    """Where the artifacts of the module's one whole run are kept; empty until it was made."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def finished(config_file, first_output):
    """A config whose `out` beside it holds the artifacts of a finished run."""
    output = config_file.parent / "out"
    if not first_output.exists():
        load_experiment(config_file).run()
        shutil.copytree(output, first_output)
    shutil.copytree(first_output, output, dirs_exist_ok=True)
    return config_file


def manifests(config_file):
    """The manifest of each stage as text: it holds a time and changes with every writing."""
    return {stage: (config_file.parent / "out" / name / "manifest.json").read_text() for stage, name in STAGES.items()}


def redone(config_file, before):
    after = manifests(config_file)
    return [stage for stage in STAGES if after[stage] != before[stage]]


def verdict(config_file, output="out"):
    content = json.loads((config_file.parent / output / "verdict" / "verdict.json").read_text(encoding="utf-8"))
    del content["models"]  # names the folder of the checkpoint
    return content


def run(config_file, *assignments):
    load_experiment(config_file, assignments).run()


def test_a_second_run_keeps_every_artifact_and_says_so(finished, capsys):
    before = manifests(finished)
    run(finished)
    assert redone(finished, before) == []
    said = "".join(capsys.readouterr().err.split())  # whatever the width of the terminal
    for stage in ("mine", "finetune", "eval"):
        assert f"{stage}:unchanged," in said


def test_the_toy_is_learned_so_that_these_tests_compare_something(finished):
    content = verdict(finished)
    assert content["outcome"] == "adopt"
    assert content["overall"]["nDCG@10"]["n"] == 57
    assert content["overall"]["nDCG@10"]["delta"] > 0.1


@pytest.mark.parametrize(
    ("setting", "stages"),
    [
        ("eval.min_gain=0.9", ["eval"]),
        ("eval.seed=5", ["eval"]),
        ("finetune.scale=10", ["finetune", "eval"]),
        ("mining.margin_fraction=0.3", ["mine", "finetune", "eval"]),
    ],
)
def test_a_changed_setting_redoes_its_stage_and_those_after_it(finished, setting, stages):
    before = manifests(finished)
    run(finished, setting)
    assert redone(finished, before) == stages


def test_an_eval_setting_moves_the_verdict_on_the_same_values(finished):
    before = verdict(finished)
    run(finished, "eval.min_gain=0.9")
    after = verdict(finished)
    assert (before["outcome"], after["outcome"]) == ("adopt", "reject")
    assert after["overall"] == before["overall"]


def test_same_inputs_and_seed_give_the_same_bytes_in_another_folder(finished):
    run(finished, f"output={finished.parent / 'again'}")
    names = ["mined/triples.parquet", "mined/dropped.parquet", "checkpoint/model/model.safetensors"]
    names += ["verdict/base.run", "verdict/tuned.run", "verdict/per_query.csv"]
    for name in names:
        first, second = (finished.parent / folder / name for folder in ("out", "again"))
        assert first.read_bytes() == second.read_bytes(), name
    assert verdict(finished, "again") == verdict(finished)
    base, tuned = (finished.parent / "out" / "verdict" / f"{kind}.run" for kind in ("base", "tuned"))
    assert base.read_bytes() != tuned.read_bytes()


def stopping(function, calls):
    """The function, with Ctrl-C at its `calls`-th call."""
    count = 0

    def stopped(*arguments, **named):
        nonlocal count
        count += 1
        if count == calls:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    return stopped


KILLS = {
    "split": ("closecall.split.write_qrels", closecall.split.write_qrels, 2),
    "mine": ("mining.artifact.triples_table", mining.artifact.triples_table, 1),
    # 57 triples in batches of 8 are 8 steps an epoch, 16 in all, dev after 4, 8, 12, 16: step 7 goes on from step 4.
    "finetune": (
        "finetune.loss.JudgedMultipleNegativesRankingLoss.forward",
        JudgedMultipleNegativesRankingLoss.forward,
        7,
    ),
    "eval": ("eval.artifact.write_per_query", eval.artifact.write_per_query, 1),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_killed_in_a_stage_ends_in_the_same_verdict_when_run_again(finished, monkeypatch, stage):
    expected = verdict(finished)
    runs = [(finished.parent / "out" / "verdict" / name) for name in ("base.run", "tuned.run")]
    expected_runs = [path.read_bytes() for path in runs]
    later = list(STAGES)[list(STAGES).index(stage) :]
    for name in (STAGES[name] for name in later):
        shutil.rmtree(finished.parent / "out" / name)
    where, function, calls = KILLS[stage]
    with monkeypatch.context() as patch:
        patch.setattr(where, stopping(function, calls))
        with pytest.raises(KeyboardInterrupt):
            run(finished)
    for name in (STAGES[stage], f".{STAGES[stage]}.partial"):
        assert not (finished.parent / "out" / name).exists()
    run(finished)
    assert verdict(finished) == expected
    assert [path.read_bytes() for path in runs] == expected_runs


def test_a_kill_while_an_artifact_is_replaced_keeps_the_old_one(finished, monkeypatch):
    before = manifests(finished)
    monkeypatch.setattr("eval.artifact.write_per_query", stopping(eval.artifact.write_per_query, 1))
    with pytest.raises(KeyboardInterrupt):
        run(finished, "eval.min_gain=0.9")
    assert manifests(finished) == before


def test_what_a_dead_process_left_half_written_is_not_read(finished):
    expected = verdict(finished)
    output = finished.parent / "out"
    shutil.rmtree(output / "verdict")
    (output / "checkpoint").rename(output / ".checkpoint.partial")  # whole but for its place
    (output / ".checkpoint.partial" / "manifest.json").unlink()
    block = next((output / "vectors").rglob("*.rows"))
    block.write_bytes(block.read_bytes()[:200])  # cut off
    run(finished)
    assert verdict(finished) == expected
    assert not (output / ".checkpoint.partial").exists()


def test_a_checkpoint_with_untouched_weights_ends_in_nothing_changed(finished):
    run(finished, "finetune.epochs=0")
    content = verdict(finished)
    assert (content["outcome"], content["exit_code"]) == ("unchanged", 10)
    assert content["sentence"].startswith("unchanged: the same values on all")
    assert {result["delta"] for result in content["overall"].values()} == {0}
    assert "the checkpoint is the base" in content["training"]


def test_mining_and_training_read_no_test_query_and_no_test_judgment(finished, toy_data):
    output = finished.parent / "out"
    for name in ("mined", "checkpoint", "verdict", "split/test"):
        shutil.rmtree(output / name)
    (toy_data / "queries.jsonl").unlink()
    (toy_data / "qrels.tsv").unlink()
    experiment = load_experiment(finished)
    experiment.mine()
    experiment.finetune()
    assert (output / "checkpoint" / "manifest.json").exists()


def test_a_pinned_digest_is_that_of_the_base_and_not_asked_of_the_checkpoint(finished, tiny_model):
    run(finished, f"model.model_sha256={weights_sha256(tiny_model)}", "finetune.epochs=1")
    assert verdict(finished)["overall"]["nDCG@10"]["delta"] != 0


def test_as_many_documents_are_retrieved_as_the_largest_cutoff_needs(finished):
    run(finished, "eval.depth=1", "eval.measure=recall@7", "eval.measures=[MRR]")
    lines = (finished.parent / "out" / "verdict" / "base.run").read_text().splitlines()
    assert len(lines) == 57 * 7


def test_the_manifests_chain_by_hash_and_hold_config_seed_counts_and_versions(finished):
    found = {stage: json.loads(text) for stage, text in manifests(finished).items()}
    assert found["finetune"]["inputs"]["train"] == found["mine"]["inputs"]["train"]
    assert found["eval"]["inputs"]["base"] == found["mine"]["inputs"]["model"]
    assert found["eval"]["inputs"]["tuned"] != found["eval"]["inputs"]["base"]
    for manifest in found.values():
        assert {"inputs", "config", "seed", "code", "libraries", "device", "counts", "durations_s"} <= manifest.keys()
        assert len(manifest["files"]) > 0


def test_each_text_goes_through_each_model_once_and_is_counted_in_the_manifest(config_file, monkeypatch):
    seen = Counter()
    encode = TextEncoder.encode

    def counting(self, texts, role):
        seen.update((self.fingerprint, role, text) for text in texts)
        return encode(self, texts, role)

    monkeypatch.setattr(TextEncoder, "encode", counting)
    monkeypatch.setattr("eval.stage.times_of", lambda *_: Times(None, None, None, None, 0, None))
    run(config_file)
    assert max(seen.values()) == 1
    made = load_experiment(config_file)
    kept = {made.base.fingerprint, made._tuned(Artifact.open(made.output / "checkpoint", "finetune")).fingerprint}
    counts = [json.loads(text)["counts"].get("texts_encoded", 0) for text in manifests(config_file).values()]
    assert sum(counts) == sum(1 for fingerprint, _, _ in seen if fingerprint in kept)
    assert sum(1 for fingerprint, _, _ in seen if fingerprint == made.base.fingerprint) == 48 + 144


def test_other_settings_of_mining_and_evaluation_encode_nothing(finished, monkeypatch):
    def refuse(*_):
        raise AssertionError("encoded again")

    load_experiment(finished, ["eval.resamples=1500"]).evaluate()  # timed here once: a copied folder has another name
    monkeypatch.setattr(TextEncoder, "encode", refuse)
    load_experiment(finished, ["mining.negatives=1", "mining.margin_fraction=0.1"]).mine()
    load_experiment(finished).mine()
    load_experiment(finished, ["eval.resamples=1999", "eval.measure=MRR"]).evaluate()


def test_a_changed_document_alone_is_encoded_again(finished, toy_data):
    """The other documents and all queries are found."""
    corpus = toy_data / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"text": "', '"text": "well, ', 1))
    experiment = load_experiment(finished)
    experiment.split()
    counts = experiment.mine().manifest["counts"]
    assert (counts["texts_encoded"], counts["texts_reused"]) == (1, 47 + counts["queries"])
