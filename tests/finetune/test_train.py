import contextlib
import io
import itertools
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from sentence_transformers import SentenceTransformer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import finetune.stage
import finetune.train
from closecall.encoder import TextEncoder, load_encoder
from closecall.errors import ArtifactError, CloseCallError, ConfigError, ModelError
from closecall.manifest import Artifact
from closecall.measures import Measure
from closecall.pipeline import load_experiment
from closecall.progress import console
from closecall.split import read_part
from closecall.vectors import VectorStore
from eval.artifact import run_name
from finetune.artifact import Chosen, Confirmed, Curve, CurvePoint, SeedCurve, model_folder, read_curve
from finetune.dev import DevSet
from finetune.loss import JudgedMultipleNegativesRankingLoss
from finetune.stage import _save, summary
from mining.artifact import read_triples

SHORT = ("finetune.epochs=1", "finetune.evaluations_per_epoch=4", "finetune.precision=float32")


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order: equal seeds then are equal bytes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def experiment(config_file, tmp_path):
    """`experiment(*overrides, name=...)`: one epoch over mined triples, dev measured four times, its own output."""
    first = load_experiment(config_file)
    first.split()
    first.mine()

    def make(*overrides, name="main"):
        output = tmp_path / name
        if not output.exists():
            shutil.copytree(first.output, output)
        return load_experiment(config_file, [f"output={output}", *SHORT, *overrides])

    return make


@pytest.fixture
def said(monkeypatch):
    """What the stages say on stderr, as one growing text."""
    text = io.StringIO()
    monkeypatch.setattr(console, "_file", text)  # `file` would be restored to what stderr was then
    return text


def weights(artifact):
    return (model_folder(artifact) / "model.safetensors").read_bytes()


def dev_set(experiment):
    part = read_part(experiment._frozen_split(), "dev")
    return DevSet(part, experiment.corpus.documents, Measure.parse(experiment.config.finetune.dev_measure))


def test_the_best_step_on_dev_is_the_checkpoint(experiment, said):
    made = experiment()
    artifact = made.finetune()
    curve = read_curve(artifact)
    steps, (trained,) = artifact.manifest["counts"]["steps"], curve.seeds
    assert [point.step for point in trained.points] == [0, *(-(-steps * part // 4) for part in (1, 2, 3, 4))]
    best = trained.point(trained.best_step)
    assert best.dev == max(point.dev for point in trained.points) > trained.points[0].dev
    assert curve.chosen == Chosen(0, best.step, 1.0)
    fresh = VectorStore(made.output / "fresh")
    tuned, base = TextEncoder(model_folder(artifact), made.config.model), load_encoder(made.config.model)
    assert dev_set(made).value(tuned, fresh) == best.dev == curve.confirmed.best
    assert dev_set(made).value(base, fresh) == trained.points[0].dev == curve.confirmed.base
    assert f"{curve.confirmed.base:.4f} -> {best.dev:.4f}: step {best.step} of {steps}" in said.getvalue()


def test_an_earlier_step_is_kept_when_it_was_the_best(experiment, monkeypatch):
    seen = watch_dev(monkeypatch, [0.2, 0.9, 0.3, 0.9])
    artifact = experiment("finetune.mix=[]").finetune()
    curve = read_curve(artifact)
    assert curve.chosen.step == curve.seeds[0].points[2].step  # of two equal ones the earlier
    assert same_weights(artifact, seen[1])


def watch_dev(monkeypatch, values):
    """Dev is 0.1 for the base, then has these values; the weights that were measured."""
    values, seen = iter(values), []

    def measured(dev, encoder, store):
        if isinstance(encoder.weights_sha256, str) and encoder.weights_sha256:
            return 1.0  # the saved model, over the whole corpus
        seen.append({name: value.clone() for name, value in encoder.model.state_dict().items()})
        return next(values)

    monkeypatch.setattr(DevSet, "score", lambda dev, documents, queries: 0.1)
    monkeypatch.setattr(DevSet, "value", measured)
    return seen


def same_weights(artifact, state):
    kept = SentenceTransformer(str(model_folder(artifact)), device="cpu").state_dict()
    return all(torch.equal(kept[name], value) for name, value in state.items())


def test_an_average_with_the_base_is_kept_when_dev_says_so(experiment, monkeypatch, said):
    seen = watch_dev(monkeypatch, [0.2, 0.5, 0.3, 0.1, 0.6, 0.7])
    made = experiment("finetune.mix=[0.25,0.75]")
    artifact = made.finetune()
    curve = read_curve(artifact)
    assert [(mixed.share, mixed.dev) for mixed in curve.seeds[0].mixed] == [(0.25, 0.6), (0.75, 0.7)]
    assert curve.chosen == Chosen(0, curve.seeds[0].points[2].step, 0.75)
    assert same_weights(artifact, seen[5])
    base, best = load_encoder(made.config.model).model.state_dict(), seen[1]
    for name, value in seen[5].items():
        torch.testing.assert_close(value, 0.25 * base[name] + 0.75 * best[name], atol=1e-6, rtol=0)
    assert "75% of it averaged with 25% of the base" in said.getvalue()


def test_a_gain_on_the_dev_documents_that_the_whole_corpus_does_not_confirm_leaves_the_base(experiment, said):
    made = experiment("finetune.dev_documents=4")
    before = DevSet.value
    try:
        DevSet.value = lambda dev, encoder, store: 0.0 if encoder.weights_sha256 else before(dev, encoder, store)
        artifact = made.finetune()
    finally:
        DevSet.value = before
    curve = read_curve(artifact)
    assert curve.documents < curve.confirmed.documents == 48
    assert curve.seeds[0].best[0] > curve.base
    assert curve.chosen == Chosen(0, 0, 0.0)
    assert TextEncoder(model_folder(artifact), made.config.model).weights_sha256 == made.base.weights_sha256
    assert "the checkpoint is the base" in said.getvalue()


def test_training_ends_after_so_many_measurements_without_a_better_one(experiment, monkeypatch, said):
    watch_dev(monkeypatch, [0.3, 0.2, 0.2, 0.9])
    curve = read_curve(experiment("finetune.patience=2", "finetune.mix=[]").finetune())
    assert [point.dev for point in curve.seeds[0].points] == [0.1, 0.3, 0.2, 0.2]
    assert curve.seeds[0].stopped == "no better dev in 2 measurements"
    assert "no better dev in 2 measurements" in said.getvalue()


def test_collapsed_vectors_end_the_training(experiment, monkeypatch):
    monkeypatch.setattr(finetune.train, "mean_pairwise_cosine", lambda vectors: 0.999)
    curve = read_curve(experiment().finetune())
    assert len(curve.seeds[0].points) == 2
    assert curve.seeds[0].stopped.startswith("the vectors have collapsed: mean pairwise cosine 0.999")


def test_several_seeds_are_trained_their_spread_reported_and_the_best_kept(experiment, said):
    made = experiment("finetune.seeds=[0,1,2]")
    artifact = made.finetune()
    curve = read_curve(artifact)
    best = [one.best[0] for one in curve.seeds]
    assert [one.seed for one in curve.seeds] == [0, 1, 2]
    assert curve.spread == max(best) - min(best) > 0
    assert curve.chosen.seed == best.index(max(best))
    alone = experiment(f"finetune.seeds={curve.chosen.seed}", name="alone")
    assert weights(alone.finetune()) == weights(artifact)
    assert f"3 seeds differ by {curve.spread:.4f}" in said.getvalue()
    assert "3 seeds differ by" in made.evaluate().file("report.md").read_text(encoding="utf-8")


def test_a_training_that_only_harms_leaves_the_base(experiment, said):
    made = experiment("finetune.learning_rate=10", "finetune.mix=[]")
    artifact = made.finetune()
    curve = read_curve(artifact)
    assert curve.chosen == Chosen(0, 0, 0.0)
    assert TextEncoder(model_folder(artifact), made.config.model).weights_sha256 == made.base.weights_sha256
    line = (
        f"no step of {curve.seeds[0].points[-1].step} beat the base (dev nDCG@10 {curve.base:.4f}): the checkpoint is"
    )
    assert line in said.getvalue()


def test_no_epochs_give_the_base_and_the_verdict_that_nothing_changed(experiment, said):
    made = experiment("finetune.epochs=0")
    artifact = made.finetune()
    assert [point.step for point in read_curve(artifact).seeds[0].points] == [0]
    assert TextEncoder(model_folder(artifact), made.config.model).weights_sha256 == made.base.weights_sha256
    assert "no step was trained" in said.getvalue()
    assert made.evaluate().read_json("verdict.json")["sentence"].startswith("unchanged: the same values on all")


def test_the_summary_names_dev_before_and_after():
    points = (CurvePoint(0, 0.0, 0.5, None), CurvePoint(4, 0.5, 0.75, 1.0), CurvePoint(8, 1.0, 0.625, 0.9))
    curve = Curve("MRR", 10, (SeedCurve(0, points),), Chosen(0, 4, 1.0), Confirmed(30, 0.5, 0.7))
    assert summary(curve) == "finetune: dev MRR 0.5000 -> 0.7000: step 4 of 8"


def test_a_seed_repeats_and_another_differs(experiment):
    same = [weights(experiment(name=name).finetune()) for name in ("a", "b")]
    other = weights(experiment("finetune.seeds=1", name="c").finetune())
    assert same[0] == same[1]
    assert other != same[0]


class Killed(BaseException):
    """What ends a run from outside."""


class Steps:
    """Stands in for the progress bar: notes the steps done, and kills the training after `last` of them."""

    def __init__(self, monkeypatch, last=None):
        self.done, self.last = [], last
        monkeypatch.setattr(finetune.stage, "progress", lambda label, total: contextlib.nullcontext(self.advance))

    def advance(self, steps):
        self.done.append(steps)
        if sum(self.done) == self.last:
            raise Killed


def saved_steps(made):
    return sorted(int(path.name.split("-")[1]) for path in made.output.glob(".checkpoint.work/seed-*/checkpoint-*"))


@pytest.mark.parametrize("half_written", [False, True])
def test_a_killed_training_resumes_and_ends_with_the_same_weights(experiment, monkeypatch, half_written):
    whole = experiment(name="whole").finetune()
    steps = [point.step for point in read_curve(whole).seeds[0].points]
    made = experiment(name="killed")
    Steps(monkeypatch, last=steps[2] + 1)
    with pytest.raises(Killed):
        made.finetune()
    assert not (made.output / "checkpoint").exists()
    assert saved_steps(made)[-1] == steps[2]
    resumed_at = steps[2]
    if half_written:  # the kill came before the last file of the last step was there
        next(made.output.glob(f".checkpoint.work/seed-0/checkpoint-{steps[2]}/trainer_state.json")).unlink()
        resumed_at = steps[1]
    counted = Steps(monkeypatch)
    resumed = experiment(name="killed").finetune()
    assert counted.done == [resumed_at] + [1] * (steps[-1] - resumed_at)
    assert read_curve(resumed) == read_curve(whole)
    assert weights(resumed) == weights(whole)
    assert not list(made.output.glob(".checkpoint.*"))


def test_steps_of_other_settings_are_not_resumed(experiment, monkeypatch):
    Steps(monkeypatch, last=5)
    with pytest.raises(Killed):
        experiment().finetune()
    assert saved_steps(experiment())
    Steps(monkeypatch)
    changed = experiment("finetune.seeds=1").finetune()
    assert weights(changed) == weights(experiment("finetune.seeds=1", name="fresh").finetune())


def test_the_saved_folder_loads_without_closecall_and_gives_the_same_vectors(experiment, monkeypatch):
    monkeypatch.setattr("finetune.prompts.HARMFUL", 0.0)
    settings = ["model.query_prompt='please '", "model.document_prompt='the '", "model.max_length_tokens=5"]
    made = experiment(*settings, "model.precision=float32", name="prompted")
    made.mine()
    folder = model_folder(made.finetune())
    plain = SentenceTransformer(str(folder), device="cpu")
    assert (plain.prompts["query"], plain.prompts["document"], plain.max_seq_length) == ("please ", "the ", 5)
    texts = ["copy the bucket", "copy the bucket policy image"]  # the second is cut to 5 tokens
    tuned = TextEncoder(folder, made.config.model)
    for role, encode in (("query", plain.encode_query), ("document", plain.encode_document)):
        expected = encode(texts, normalize_embeddings=True)
        np.testing.assert_allclose(tuned.encode(texts, role), expected, atol=1e-6)  # other batches, other last bits


def broken_loss(monkeypatch, by, since):
    """The loss is multiplied by `by` from step `since` on."""
    whole, steps = JudgedMultipleNegativesRankingLoss.forward, itertools.count(1)

    def forward(self, features, labels):
        return whole(self, features, labels) * (by if next(steps) >= since else 1)

    monkeypatch.setattr(JudgedMultipleNegativesRankingLoss, "forward", forward)


def test_a_loss_that_is_no_number_stops_at_once_and_names_step_and_queries(experiment, monkeypatch):
    broken_loss(monkeypatch, torch.nan, 3)
    with pytest.raises(ModelError, match=r"^finetune: the loss is nan at step 3 \(queries (\S+, ){7}\S+\); lower"):
        experiment().finetune()


def test_a_loss_that_stays_exactly_zero_stops_the_training(experiment, monkeypatch):
    broken_loss(monkeypatch, 0.0, 2)
    with pytest.raises(
        ModelError, match=r"^finetune: the loss is exactly 0 since step 2 \(now queries .*mine negatives"
    ):
        experiment("finetune.evaluations_per_epoch=1").finetune()


def test_steps_that_change_no_weight_are_refused(experiment, monkeypatch):
    monkeypatch.setattr(finetune.train, "_run", lambda *arguments: [])
    with pytest.raises(ModelError, match=r"steps changed no weight; raise finetune\.learning_rate"):
        experiment().finetune()


def test_prompts_that_do_harm_are_refused_and_forgotten_ones_named(experiment, said, tiny_model, tmp_path):
    made = experiment("model.query_prompt='please '", "model.document_prompt='the '", "finetune.epochs=0")
    made.mine()
    with pytest.raises(ModelError, match=r"with the prompts 'please ' .* without any .* correct model\.query_prompt"):
        made.finetune()
    e5 = tmp_path / "intfloat" / "e5-small-v2"
    shutil.copytree(tiny_model, e5)
    bare = experiment(f"model.name={e5}", "finetune.epochs=0", name="e5")
    bare.mine()
    bare.finetune()
    assert "set model.query_prompt to 'query: ' and model.document_prompt to 'passage: '" in said.getvalue()


def test_the_cost_is_said_before_training(experiment, said):
    made = experiment()
    made.finetune()
    triples = [
        (triple.query, triple.positive, *(n.text for n in triple.negatives))
        for triple in read_triples(Artifact.open(made.output / "mined", "mine"))
    ]
    found = re.search(
        r"(\d+) steps in float32: ([\d,]+) texts, ([\d,]+) tokens, about [\d.]+ min; up to", said.getvalue()
    )
    assert int(found[1]) == round(len(triples) / 8)
    assert len(triples) * 2 <= int(found[2].replace(",", "")) <= len(triples) * 4


def test_training_is_refused_where_the_disk_is_too_small_for_it(experiment, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(ArtifactError, match=r"0\.0 GB are free, training needs up to .* GB for steps"):
        experiment().finetune()


def test_adapters_alone_are_trained_and_merged_into_a_plain_model(experiment):
    pytest.importorskip("peft")
    made = experiment("finetune.lora={rank: 4, alpha: 8}", "finetune.learning_rate=0.02")
    artifact = made.finetune()
    assert read_curve(artifact).chosen.share > 0
    base, kept = (
        made.base.model.state_dict(),
        SentenceTransformer(str(model_folder(artifact)), device="cpu").state_dict(),
    )
    assert base.keys() == kept.keys()
    changed = {name for name in base if not torch.equal(base[name], kept[name])}
    assert changed
    assert all(name.endswith(("query.weight", "key.weight", "value.weight", "dense.weight")) for name in changed)
    for name in changed:
        assert torch.linalg.matrix_rank(kept[name] - base[name], tol=1e-4) <= 4


@pytest.mark.parametrize(
    "settings",
    [
        ["finetune.mini_batch_size=3"],
        ["finetune.directions=[query_to_doc,doc_to_query,query_to_query,doc_to_doc]"],
        ["finetune.directions=[query_to_doc,doc_to_query]", "finetune.partition=per_direction"],
        ["finetune.hardness=hard_negatives"],
        ["finetune.guide={}"],
        ["finetune.matryoshka=[16,8]"],
        ["finetune.related=4"],
        ["finetune.dropout=0"],
    ],
)
def test_every_loss_setting_trains_and_gains_on_dev(experiment, settings):
    curve = read_curve(experiment(*settings, "finetune.evaluations_per_epoch=1").finetune())
    assert curve.confirmed.best > curve.confirmed.base + 0.05


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("finetune.directions=[doc_to_query]", "query_to_doc is always one of them"),
        ("finetune.directions=[query_to_doc,doc_to_doc]\nfinetune.partition=per_direction", "use joint"),
        ("finetune.seeds=[1,1]", "each once"),
        ("finetune.precision=float16", "float16 needs a CUDA GPU"),
        ("finetune.matryoshka=[64]", "the model has vectors of 32"),
        ("finetune.lora={modules: [nothing]}", "finetune.lora.modules"),
        ("finetune.report_to=nobody", "nobody"),
    ],
)
def test_settings_that_cannot_be_are_refused(experiment, setting, message):
    with pytest.raises(CloseCallError, match=message):
        experiment(*setting.split("\n")).finetune()


def test_training_reports_to_the_trackers_that_are_named(experiment):
    made = experiment("finetune.report_to=tensorboard", "finetune.seeds=[0,1]")
    made.finetune()
    for folder in (made.output / "runs").iterdir():
        events = EventAccumulator(str(folder)).Reload()
        assert {"train/loss", "train/dev_nDCG@10"} <= set(events.Tags()["scalars"])
    assert sorted(folder.name[-7:] for folder in (made.output / "runs").iterdir()) == ["-seed-0", "-seed-1"]


def test_a_tracker_that_is_not_installed_is_a_fault_of_the_config(experiment):
    with pytest.raises(ConfigError, match=r"finetune\.report_to: trackio: .*trackio"):
        experiment("finetune.report_to=trackio").finetune()


def test_the_curve_is_a_picture_and_the_model_has_a_card(experiment):
    folder = experiment().finetune().folder
    picture = (folder / "curve.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "training loss" in picture
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "sentence-transformers"
    assert "Checkpoint: step " in card


def test_eval_uses_the_corpus_vectors_of_the_best_step_again(experiment, config_file):
    made = experiment()
    assert read_curve(made.finetune()).chosen.share == 1
    later = experiment()
    later.evaluate()
    test_queries = read_part(later._frozen_split(), "test").queries
    assert later.store.encoded == 2 * len({query.text for query in test_queries})


def test_the_base_is_still_the_base_after_training(experiment):
    in_one_go = experiment(name="a")
    in_one_go.finetune()
    together = in_one_go.evaluate().file(run_name("base")).read_text(encoding="utf-8")
    experiment(name="b").finetune()
    assert experiment(name="b").evaluate().file(run_name("base")).read_text(encoding="utf-8") == together


def test_training_prints_nothing_to_stdout(experiment, capfd):
    made = experiment("finetune.epochs=0.25")
    capfd.readouterr()
    made.finetune()
    assert capfd.readouterr().out == ""


def test_training_reads_neither_queries_nor_judgments_of_test(experiment):
    made = experiment("finetune.epochs=0.25")
    shutil.rmtree(made.output / "split" / "test")
    made.finetune()


def test_a_saved_folder_has_the_same_bytes_whatever_was_tokenised_before(tiny_model, tmp_path):
    saved = []
    for name, options in (("a", {"truncation": True, "max_length": 4, "padding": True}), ("b", {})):
        model = SentenceTransformer(str(tiny_model), device="cpu")
        model.tokenizer(["copy the bucket policy image", "a"], **options)
        _save(model, tmp_path / name)
        saved.append((tmp_path / name / "tokenizer.json").read_bytes())
    assert saved[0] == saved[1]
