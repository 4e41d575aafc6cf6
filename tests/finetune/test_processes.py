"""Two processes are as good as one. This file is also the script that they run: `test_processes.py OUTPUT`."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.numpy import load_file
from torch import distributed, nn

from closecall.errors import ConfigError, DataError
from closecall.pipeline import LOCK, load_experiment
from closecall.processes import by_main, join, leave, main_first, processes, rank
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from finetune.artifact import model_folder, read_curve
from finetune.batch import BatchBuilder
from finetune.config import FinetuneConfig
from finetune.loss import JudgedMultipleNegativesRankingLoss
from mining.artifact import HardNegative, Triple

ROOT = Path(__file__).resolve().parents[2]

ROWS = ["q0 A B C", "q1 D E F I", "q2 E A", "q3 A F", "q4 G B H", "q5 D", "q6 I J"]
JUDGED = {
    "q0": {"A": 1, "G": 1},
    "q1": {"D": 1},
    "q2": {"E": 1, "F": 2},
    "q3": {"A": 1},
    "q4": {"G": 1, "E": 1},
    "q5": {"D": 1},
    "q6": {"I": 1, "A": 1},
}
HALVES = [[0, 1, 2, 3], [4, 5, 6]]
"""7 and 6 documents. A, B, D and I are in both; q0, q4 and q6 have a positive in the other half."""
ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
SETTINGS = {
    "plain": {},
    "plain, all directions": {"directions": ALL},
    "plain, hardness": {"hardness": "in_batch_negatives", "hardness_strength": 5.0},
    "cached": {"mini_batch_size": 2},
    "cached, all directions": {"mini_batch_size": 3, "directions": ALL, "matryoshka": (3,)},
}
COLUMN = 3
WIDTH = 6


def builder(rows=ROWS):
    """The texts of these rows, with every judgment."""
    judgments = [Judgment(query, doc_id, grade) for query, grades in JUDGED.items() for doc_id, grade in grades.items()]
    part = Part(tuple(Query(query, query) for query in JUDGED), Qrels(judgments, 1), "")
    triples = []
    for row in rows:
        query, positive, *others = row.split()
        negatives = tuple(HardNegative(doc_id, doc_id, 0.5, 1) for doc_id in others)
        triples.append(Triple(query, query, positive, positive, 0.9, negatives))
    return BatchBuilder(triples, part, {doc_id: Document(doc_id, doc_id) for doc_id in "ABCDEFGHIJ"}, None)


class Model(nn.Module):
    """Two layers over the random features of a text, the same in every process."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 5))
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, features):
        return {"sentence_embedding": self.layers(features["input_ids"])}


def features_of(texts):
    return torch.stack(
        [torch.randn(WIDTH, generator=torch.Generator().manual_seed(sum(text.encode()))) for text in texts]
    )


def columns(texts):
    features = features_of(texts)
    return [{"input_ids": features[start : start + COLUMN]} for start in range(0, len(texts), COLUMN)]


def of_batch(rows, settings, made):
    """The loss of this process with these rows, and the gradients; those are averaged when there are several."""
    model = Model()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if processes() > 1 else model
    loss = JudgedMultipleNegativesRankingLoss(wrapped, made, FinetuneConfig(batch_size=8, **settings))
    keys = made.keys(rows)
    queries, documents = (
        [made.query_texts[made.row_query[row]] for row in rows],
        [made.document_texts[key] for key in keys],
    )
    labels = {"rows": torch.tensor(rows), "keys": torch.from_numpy(keys)}
    value = loss([*columns(queries), *columns(documents)], labels)
    value.backward()
    return value.item(), {name: parameter.grad.tolist() for name, parameter in model.named_parameters()}


def shared_fault():
    """What each process is told of a fault of the first one."""

    def work():
        raise DataError(f"process {rank()} found a fault")

    try:
        by_main(work)
    except DataError as error:
        return str(error)


def script(output):
    """What both processes do; the first one writes what all of them found."""
    join()
    found = {name: of_batch(HALVES[rank()], settings, builder()) for name, settings in SETTINGS.items()}
    found["held by the other"] = of_batch([[0], [4]][rank()], {}, builder())
    found["by main"] = by_main(lambda: rank()), shared_fault()
    file = Path(f"{output}.order")
    with main_first():
        found["before"] = file.read_text() if file.exists() else ""
        file.write_text(f"{found['before']}{rank()}")
    collected = [None] * processes()
    distributed.all_gather_object(collected, found)
    if rank() == 0:
        Path(output).write_text(json.dumps(collected), encoding="utf-8")
    leave()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the two processes found."""
    output = tmp_path_factory.mktemp("processes") / "found.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    environment = os.environ | common | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(output)]
    started = [subprocess.Popen(command, env=environment | {"RANK": str(number)}) for number in range(2)]
    try:
        assert [process.wait(timeout=100) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_have_the_loss_and_the_gradients_of_one_with_the_whole_batch(found, name):
    loss, gradients = of_batch([*HALVES[0], *HALVES[1]], SETTINGS[name], builder())
    assert np.mean([one[name][0] for one in found]) == pytest.approx(loss, abs=1e-5)
    for one in found:
        for parameter, gradient in gradients.items():
            np.testing.assert_allclose(one[name][1][parameter], gradient, atol=1e-5, rtol=1e-5)
    assert max(np.abs(gradient).max() for gradient in gradients.values()) > 1e-2


def test_a_known_positive_that_the_other_process_holds_is_no_negative(found):
    """q0 is alone in its process with A, B and C, and the other one holds G, which is relevant, B once more and H."""
    with torch.no_grad():
        embeddings = Model()({"input_ids": features_of(["q0", *"ABCH"])})["sentence_embedding"]
    query, *documents = nn.functional.normalize(embeddings, dim=1)
    logits = FinetuneConfig().scale * torch.stack(documents) @ query
    assert found[0]["held by the other"][0] == pytest.approx(float(torch.logsumexp(logits, 0) - logits[0]), abs=1e-5)


def test_what_the_first_process_does_all_of_them_know(found):
    assert [one["by main"] for one in found] == [[0, "process 0 found a fault"]] * 2
    assert [one["before"] for one in found] == ["", "0"]


def test_without_a_launcher_there_is_one_process(monkeypatch):
    """Batch systems set WORLD_SIZE alone; nobody would ever come to meet this process."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (processes(), rank(), by_main(lambda: 7)) == (1, 0, 7)
    with main_first():
        leave()
    assert not distributed.is_initialized()


def test_more_processes_than_rows_in_a_step_are_refused(config_file, monkeypatch):
    made = load_experiment(config_file, ["finetune.batch_size=4"])
    made.split()
    made.mine()
    monkeypatch.setattr("finetune.stage.processes", lambda: 8)
    with pytest.raises(ConfigError, match=r"finetune\.batch_size: a step has \d rows, too few for 8 processes"):
        made.finetune()


def torchrun(*arguments):
    """A command of closecall in two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*launcher, "-m", "closecall.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=110)


@pytest.fixture(scope="module")
def toy(tmp_path_factory, tiny_model, toy_config):
    """A config, and the artifacts of one process."""
    folder = tmp_path_factory.mktemp("toy")
    config = toy_config(folder, tiny_model)
    settings = "finetune: {epochs: 1, batch_size: 9, dropout: 0, precision: float32, learning_rate: 0.003}"
    lines = [settings if line.startswith("finetune:") else line for line in config.read_text().splitlines()]
    config.write_text("\n".join(lines), encoding="utf-8")
    experiment = load_experiment(config, [f"output={folder / 'one'}"])
    experiment.run()
    return config, folder / "two", experiment


def assert_same_training(experiment, folder):
    """As one process would: the same curve, weights and triples."""
    one, two = (load_experiment_checkpoint(place) for place in (experiment.output, folder))
    curves = [read_curve(artifact) for artifact in (one, two)]
    points = [[(point.step, point.dev) for point in curve.seeds[0].points] for curve in curves]
    assert points[0] == points[1]
    assert len(points[0]) > 2
    assert curves[0].chosen == curves[1].chosen
    np.testing.assert_allclose(curves[0].seeds[0].losses, curves[1].seeds[0].losses, atol=1e-4)
    weights = [load_file(model_folder(artifact) / "model.safetensors") for artifact in (one, two)]
    base = load_file(experiment.base.folder / "model.safetensors")
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, atol=1e-4)
    assert max(np.abs(weights[0][name] - value).max() for name, value in base.items()) > 5e-3


def load_experiment_checkpoint(output):
    from closecall.manifest import Artifact

    artifact = Artifact.open(output / "checkpoint", "finetune")
    artifact.verify()
    return artifact


def test_a_run_in_two_processes_is_that_of_one(toy):
    config, folder, experiment = toy
    done = torchrun("run", config, "--set", f"output={folder}")
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads((place / "verdict" / "verdict.json").read_text()) for place in (experiment.output, folder)]
    assert done.stdout == f"{verdicts[0]['sentence']}\n"
    assert_same_training(experiment, folder)
    mined = [json.loads((place / "mined" / "manifest.json").read_text()) for place in (experiment.output, folder)]
    assert mined[0]["files"] == mined[1]["files"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in experiment.output.iterdir())
    assert done.stderr.count("split: train") == 1


@pytest.mark.slow
def test_a_cached_training_in_two_processes_is_that_of_one(toy):
    config, folder, experiment = toy
    settings = ["finetune.mini_batch_size=3", f"finetune.directions={list(ALL)}"]
    load_experiment(config, [f"output={experiment.output}", *settings]).finetune()
    done = torchrun("finetune", config, "--set", f"output={folder}", *(a for s in settings for a in ("--set", s)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'checkpoint'}\n"
    assert_same_training(experiment, folder)


def test_a_fault_in_one_process_ends_them_all_with_its_message(toy):
    """The first process finds the output locked, which the other one would never know."""
    config, folder, _ = toy
    folder.mkdir(exist_ok=True)
    with FileLock(folder / LOCK):
        done = torchrun("split", config, "--set", f"output={folder}")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count(f"error: {folder}: another closecall is at work here") == 1


if __name__ == "__main__":
    script(sys.argv[1])
