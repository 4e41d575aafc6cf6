import contextlib
import io
import itertools
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import finetune.stage
from closecall.encoder import TextEncoder, load_encoder
from closecall.errors import ModelError
from closecall.measures import Measure
from closecall.pipeline import load_experiment
from closecall.progress import console
from closecall.split import read_part
from closecall.vectors import VectorStore
from eval.artifact import BASE_RUN
from finetune.artifact import Curve, CurvePoint, model_folder, read_curve
from finetune.config import FinetuneConfig
from finetune.dev import DevSet
from finetune.stage import summary
from finetune.train import plan

SHORT = ("finetune.epochs=1", "finetune.evaluations_per_epoch=4")


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


@pytest.mark.parametrize(
    ("rows", "settings", "steps", "evaluations"),
    [
        (10, {"batch_size": 4}, 3, {2, 3}),  # 3 batches an epoch, the last of 2 rows
        (64, {"batch_size": 8, "epochs": 2}, 16, {4, 8, 12, 16}),
        (64, {"batch_size": 8, "epochs": 0.5}, 4, {4}),
        (64, {"batch_size": 8, "epochs": 1.25}, 10, {4, 7, 10}),
        (64, {"batch_size": 8, "evaluations_per_epoch": 1, "epochs": 2}, 16, {8, 16}),
        (3, {"batch_size": 32, "evaluations_per_epoch": 5}, 1, {1}),
        (64, {"epochs": 0}, 0, set()),
    ],
)
def test_the_plan_is_known_before_training(rows, settings, steps, evaluations):
    schedule = plan(rows, FinetuneConfig(**settings))
    assert (schedule.steps, schedule.evaluations) == (steps, evaluations)


@pytest.mark.parametrize(("rows", "epochs"), list(itertools.product([16, 40, 160, 1000], [0.1, 0.5, 1, 1.25, 1.3, 3])))
def test_dev_is_measured_at_least_every_half_epoch_and_after_the_last_step(rows, epochs):
    schedule = plan(rows, FinetuneConfig(batch_size=8, epochs=epochs))
    steps = [0, *sorted(schedule.evaluations)]
    assert steps[-1] == schedule.steps
    assert max(after - before for before, after in itertools.pairwise(steps)) <= -(-schedule.steps_per_epoch // 2)


def test_the_best_step_on_dev_is_the_checkpoint(experiment, said):
    made = experiment()
    artifact = made.finetune()
    curve = read_curve(artifact)
    steps = artifact.manifest["counts"]["steps"]
    assert [point.step for point in curve.points] == [0, *(-(-steps * part // 4) for part in (1, 2, 3, 4))]
    best = curve.point(curve.best_step)
    assert best.dev == max(point.dev for point in curve.points) > curve.points[0].dev
    fresh = VectorStore(made.output / "fresh")
    tuned, base = TextEncoder(model_folder(artifact), made.config.model), load_encoder(made.config.model)
    assert dev_set(made).value(tuned, fresh) == best.dev
    assert dev_set(made).value(base, fresh) == curve.points[0].dev
    assert f"{curve.points[0].dev:.4f} -> {best.dev:.4f} at step {best.step} of {steps}" in said.getvalue()


def test_an_earlier_step_is_kept_when_it_was_the_best(experiment, monkeypatch):
    values, seen = iter([0.1, 0.2, 0.9, 0.3, 0.9]), []

    def measured(dev, encoder, store):
        seen.append({name: value.clone() for name, value in encoder.model.state_dict().items()})
        return next(values)

    monkeypatch.setattr(DevSet, "value", measured)
    artifact = experiment().finetune()
    curve = read_curve(artifact)
    assert curve.best_step == curve.points[2].step  # of two equal ones the earlier
    kept = SentenceTransformer(str(model_folder(artifact)), device="cpu").state_dict()
    assert all(torch.equal(kept[name], value) for name, value in seen[2].items())


def test_a_training_that_only_harms_leaves_the_base(experiment, said):
    made = experiment("finetune.learning_rate=10")
    artifact = made.finetune()
    curve = read_curve(artifact)
    assert curve.best_step == 0
    assert TextEncoder(model_folder(artifact), made.config.model).weights_sha256 == made.base.weights_sha256
    line = (
        f"no step of {curve.points[-1].step} beat the base (dev nDCG@10 {curve.points[0].dev:.4f}): the checkpoint is"
    )
    assert line in said.getvalue()


def test_no_epochs_give_the_base_and_the_verdict_that_nothing_changed(experiment, said):
    made = experiment("finetune.epochs=0")
    artifact = made.finetune()
    assert [point.step for point in read_curve(artifact).points] == [0]
    assert TextEncoder(model_folder(artifact), made.config.model).weights_sha256 == made.base.weights_sha256
    assert "no step was trained" in said.getvalue()
    assert made.evaluate().read_json("verdict.json")["sentence"].startswith("reject: nothing changed")


def test_the_summary_names_dev_before_and_after():
    points = (CurvePoint(0, 0.0, 0.5, None), CurvePoint(4, 0.5, 0.75, 1.0), CurvePoint(8, 1.0, 0.625, 0.9))
    assert summary(Curve("MRR", points, 4)) == "finetune: dev MRR 0.5000 -> 0.7500 at step 4 of 8"


def test_a_seed_repeats_and_another_differs(experiment):
    same = [weights(experiment(name=name).finetune()) for name in ("a", "b")]
    other = weights(experiment("finetune.seed=1", name="c").finetune())
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
    return sorted(int(path.name.split("-")[1]) for path in made.output.glob(".checkpoint.work/checkpoint-*"))


@pytest.mark.parametrize("half_written", [False, True])
def test_a_killed_training_resumes_and_ends_with_the_same_weights(experiment, monkeypatch, half_written):
    whole = experiment(name="whole").finetune()
    steps = [point.step for point in read_curve(whole).points]
    made = experiment(name="killed")
    Steps(monkeypatch, last=steps[2] + 1)
    with pytest.raises(Killed):
        made.finetune()
    assert not (made.output / "checkpoint").exists()
    assert saved_steps(made)[-1] == steps[2]
    resumed_at = steps[2]
    if half_written:  # the kill came before the last file of the last step was there
        next(made.output.glob(f".checkpoint.work/checkpoint-{steps[2]}/trainer_state.json")).unlink()
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
    changed = experiment("finetune.seed=1").finetune()
    assert weights(changed) == weights(experiment("finetune.seed=1", name="fresh").finetune())


def test_the_saved_folder_loads_without_closecall_and_gives_the_same_vectors(experiment):
    settings = ["model.query_prompt='please '", "model.document_prompt='the '", "model.max_length_tokens=5"]
    made = experiment(*settings, name="prompted")
    made.mine()
    folder = model_folder(made.finetune())
    plain = SentenceTransformer(str(folder), device="cpu")
    assert (plain.prompts["query"], plain.prompts["document"], plain.max_seq_length) == ("please ", "the ", 5)
    texts = ["copy the bucket", "copy the bucket policy image"]  # the second is cut to 5 tokens
    tuned = TextEncoder(folder, made.config.model)
    for role, encode in (("query", plain.encode_query), ("document", plain.encode_document)):
        expected = encode(texts, normalize_embeddings=True)
        np.testing.assert_array_equal(tuned.encode(texts, role), expected)


def test_a_loss_that_is_no_number_stops_the_training(experiment, monkeypatch):
    import finetune.loss

    monkeypatch.setattr(finetune.loss, "masked_cross_entropy", lambda scores, labels: scores.sum() * torch.nan)
    with pytest.raises(ModelError, match=r"^finetune: the loss is nan at step \d+; lower finetune\.learning_rate"):
        experiment().finetune()


def test_eval_uses_the_corpus_vectors_of_the_best_step_again(experiment, config_file):
    made = experiment()
    assert read_curve(made.finetune()).best_step > 0
    later = experiment()
    later.evaluate()
    test_queries = read_part(later._frozen_split(), "test").queries
    assert later.store.encoded == 2 * len({query.text for query in test_queries})


def test_the_base_is_still_the_base_after_training(experiment):
    in_one_go = experiment(name="a")
    in_one_go.finetune()
    together = in_one_go.evaluate().file(BASE_RUN).read_text(encoding="utf-8")
    experiment(name="b").finetune()
    assert experiment(name="b").evaluate().file(BASE_RUN).read_text(encoding="utf-8") == together


def test_training_prints_nothing_to_stdout(experiment, capfd):
    made = experiment("finetune.epochs=0.25")
    capfd.readouterr()
    made.finetune()
    assert capfd.readouterr().out == ""


def test_training_reads_neither_queries_nor_judgments_of_test(experiment):
    made = experiment("finetune.epochs=0.25")
    shutil.rmtree(made.output / "split" / "test")
    made.finetune()
