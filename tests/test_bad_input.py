"""Every fault of the user is one message on stderr and exit code 2, and nothing is written."""

import json
import shutil
import sys

import pytest
import torch

from closecall import cli
from closecall.pipeline import load_experiment


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run the console script; it must end with exit code 2 and one message, which is returned without "error: "."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["closecall", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, ""), err
        assert err.count("error: ") == 1
        assert "Traceback" not in err
        said, message = err.split("error: ")
        assert said == "" or said.endswith("\n")
        return message.removesuffix("\n")

    return call


def nothing_written(config_file):
    output = config_file.parent / "out"
    return not output.exists() or not [path for path in output.iterdir() if path.name != "vectors"]


@pytest.fixture
def data_fault(refused, config_file, toy_data):
    """The message of `split` after a file of the data was replaced; nothing may have been written."""

    def message(name, content):
        path = toy_data / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        found = refused("split", config_file)
        assert nothing_written(config_file)
        return found.replace(str(path), name)

    return message


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_a_missing_data_file_names_the_folder_and_what_it_holds(refused, config_file, toy_data):
    (toy_data / "corpus.jsonl").unlink()
    message = refused("split", config_file)
    assert message.startswith(f"{toy_data / 'corpus.jsonl'} does not exist, nor does corpus.jsonl.gz")
    assert "which holds qrels.tsv, queries.jsonl" in message
    assert nothing_written(config_file)


def test_a_missing_config_names_the_ones_there(refused, config_file):
    message = refused("split", config_file.with_name("toys.yaml"))
    assert message.endswith("toys.yaml: no such config file; in " + f"{config_file.parent} there is toy.yaml")


DATA_FAULTS = {
    "not UTF-8": ("queries.jsonl", b'{"_id": "q1", "text": "caf\xe9"}\n', "queries.jsonl line 1: not UTF-8, byte 27"),
    "bad JSON": (
        "queries.jsonl",
        lines({"_id": "q1", "text": "a"}, {"_id": "q2", "text": "b"}, '{"_id": "q3", "text" "c"}'),
        "queries.jsonl line 3 column 22: not valid JSON, Expecting ':' delimiter",
    ),
    "wrong type": ("queries.jsonl", lines({"_id": "q1", "text": 5}), "queries.jsonl line 1: text is a number; make it"),
    "duplicate id": (
        "corpus.jsonl",
        lines({"_id": "d1", "text": "a"}, {"_id": "d1", "text": "b"}),
        "corpus.jsonl line 2: _id 'd1' stands on line 1 with other content",
    ),
    "unknown ids": (
        "qrels.tsv",
        "create-user-0\td99\t1\ncreate-user-0\tcreate-user\t1\n",
        "line 1: doc_id 'd99' is not in",
    ),
    "unknown query": ("qrels.tsv", "q99\tcreate-user\t1\ncreate-user-0\tcreate-user\t1\n", "query_id 'q99' is not in"),
    "empty corpus": ("corpus.jsonl", "", "corpus.jsonl: holds no documents with a text"),
    "no positives": (
        "qrels.tsv",
        "create-user-0\tcreate-user\t0\n",
        "no judgment has grade 1 (data.positive_from) or more",
    ),
}


@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_a_fault_of_the_data_is_one_message_with_its_place_and_nothing_is_written(data_fault, fault):
    name, content, expected = DATA_FAULTS[fault]
    assert expected in data_fault(name, content)


def test_all_faults_of_all_files_come_in_one_message(refused, config_file, toy_data):
    (toy_data / "corpus.jsonl").write_text("{\n")
    (toy_data / "queries.jsonl").write_text(lines({"_id": "q1"}, {"_id": ["q2"], "text": "a"}))
    message = refused("check", config_file)
    assert message.startswith(f"{toy_data}: ")
    assert all(place in message for place in ("corpus.jsonl line 1", "queries.jsonl line 1", "queries.jsonl line 2"))


def test_fewer_queries_than_a_split_needs(data_fault):
    two = "create-user-0\tcreate-user\t1\ncreate-user-1\tcreate-user\t1\n"
    message = data_fault("qrels.tsv", two)
    assert message.startswith("the split leaves ")
    assert "2 queries with positives in 1 groups" in message
    assert message.endswith("judge more queries, or change split.held_out, split.dev or split.group_by")


@pytest.mark.parametrize(
    "header", [b"", b"query-id\tcorpus-id\tscore\n", b"\xef\xbb\xbfquery-id\tcorpus-id\tscore\r\n"]
)
def test_a_header_is_optional_and_a_byte_order_mark_is_no_fault(config_file, toy_data, header):
    rows = (toy_data / "qrels.tsv").read_bytes().split(b"\n", 1)[1]
    (toy_data / "qrels.tsv").write_bytes(header + rows)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (toy_data / name).write_bytes(b"\xef\xbb\xbf" + (toy_data / name).read_bytes())
    counts = load_experiment(config_file).split().manifest["counts"]
    assert counts["train"] + counts["dev"] + counts["test"] == 144


SETTINGS = {
    "mining.negative=3": "mining.negative: unknown key; did you mean 'negatives'?",
    "minning.negatives=3": "minning: unknown key; did you mean 'mining'?",
    "eval.resamples=many": "eval.resamples: found 'many'; input should be a valid integer",
    "split.held_out=1.5": "split.held_out: found 1.5; input should be less than 1",
    "split.dev=0.7": "held_out 0.4 + dev 0.7 leave nothing to train on",
    "mining.depth=1": "depth 1 is below negatives 2",
    "eval.measure=nDGC@10": "eval.measure: measure 'nDGC@10': no measure is called 'nDGC'; did you mean 'nDCG@10'?",
    "eval.measures=[recall]": "eval.measures.0: measure 'recall' needs a cutoff",
    "finetune.dev_measure=hits": "finetune.dev_measure: measure 'hits': no measure is called 'hits'",
    "mining": "--set mining: expected section.key=value",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_refused_before_anything_is_read(refused, config_file, toy_data, setting):
    shutil.rmtree(toy_data)
    assert SETTINGS[setting] in refused("run", config_file, "--set", setting)


def test_a_slice_column_that_no_query_has(refused, finished):
    message = refused("eval", finished, *QUICK, "--set", "eval.slice_by=[nouns]")
    assert "in the column 'nouns'; columns there are: noun, document" in message


def test_a_folder_that_is_no_model(refused, config_file, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text("{}")
    setting = f"model.name={tmp_path}"
    assert "empty: not a model folder: neither modules.json" in refused(
        "check", config_file, "--set", f"{setting}/empty"
    )
    assert "weightless: no weights" in refused("check", config_file, "--set", f"{setting}/weightless")
    assert "model.name: no folder" in refused("check", config_file, "--set", f"{setting}/nowhere")


def test_a_model_folder_that_cannot_be_loaded(refused, config_file, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"broken")
    message = refused("check", config_file, "--set", f"model.name={tmp_path / 'broken'}")
    assert message.startswith(f"{tmp_path / 'broken'}: cannot be loaded as a model: ")


def test_other_weights_than_the_pinned_ones(refused, config_file, tiny_model):
    message = refused("check", config_file, "--set", f"model.model_sha256={'ab' * 32}")
    assert message.startswith(f"{tiny_model}: weights have sha256 ")
    assert f"model.model_sha256 expects {'ab' * 32}" in message


@pytest.fixture(scope="module")
def first_output(tmp_path_factory):
    """See tests/test_pipeline.py."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def finished(config_file, first_output):
    """A config whose `out` beside it holds the artifacts of a finished run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if not first_output.exists():
        load_experiment(config_file, ["finetune.epochs=1", "output=kept"]).run()
        shutil.copytree(config_file.parent / "kept", first_output)
    torch.set_num_threads(threads)
    shutil.copytree(first_output, config_file.parent / "out")
    return config_file


QUICK = ("--set", "finetune.epochs=1")
CHANGED = [
    ("split/train/queries.jsonl", "mine"),
    ("split/test/qrels.tsv", "eval"),
    ("mined/triples.parquet", "finetune"),
    ("checkpoint/model/model.safetensors", "eval"),
    ("checkpoint/curve.json", "run"),
    ("verdict/verdict.json", "run"),
]


@pytest.mark.parametrize(("name", "command"), CHANGED)
def test_an_artifact_changed_by_hand_is_refused_with_the_way_out(refused, finished, name, command):
    path = finished.parent / "out" / name
    path.write_bytes(path.read_bytes() + b" ")
    if command != "run":  # what the command would write is not there yet
        stage = {"mine": "mined", "finetune": "checkpoint", "eval": "verdict"}[command]
        shutil.rmtree(finished.parent / "out" / stage)
    message = refused(command, finished, *QUICK)
    assert message.startswith(f"{path}: changed since it was written")
    assert f"restore the file, or delete {finished.parent / 'out' / name.split('/')[0]} and run `closecall " in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "cannot be read"),
        ('{"stage": "mine"}', "found the stage 'mine'"),
        ('{"stage": "split", "format": 1}', "lacks"),
    ],
)
def test_a_manifest_changed_by_hand_is_refused(refused, finished, content, expected):
    path = finished.parent / "out" / "split" / "manifest.json"
    path.write_text(content)
    message = refused("mine", finished)
    assert message.startswith(f"{path}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("command", "removed", "needed"),
    [
        ("mine", ("split", "mined"), "split"),
        ("finetune", ("mined", "checkpoint"), "mine"),
        ("eval", ("checkpoint", "verdict"), "finetune"),
    ],
)
def test_a_stage_before_the_one_it_needs_names_the_command_to_run(refused, finished, command, removed, needed):
    for name in removed:
        shutil.rmtree(finished.parent / "out" / name)
    message = refused(command, finished)
    assert message.endswith(f"run `closecall {needed} CONFIG` first")
    assert not any((finished.parent / "out" / name).exists() for name in removed)


@pytest.mark.parametrize("command", ["split", "run", "mine"])
def test_an_output_that_cannot_be_written(refused, config_file, command):
    (config_file.parent / "file").write_text("mine")
    message = refused(command, config_file, "--set", "output=file/out")
    assert message.startswith(f"{config_file.parent / 'file' / 'out'}")
    assert (config_file.parent / "file").read_text() == "mine"


def test_vectors_that_cannot_be_written(refused, config_file):
    load_experiment(config_file).split()
    (config_file.parent / "out" / "vectors").write_text("a file where a folder should be")
    message = refused("mine", config_file)
    assert str(config_file.parent / "out" / "vectors") in message
    assert not (config_file.parent / "out" / "mined").exists()


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    (tmp_path / "good.run").write_text("q1 Q0 d1 1 0.9 x\nq2 Q0 d1 1 0.9 x\n")
    (tmp_path / "bad.run").write_text("q1 Q0 d1 1 high x\nq1 Q0 d2 2\n")
    (tmp_path / "other.run").write_text("q1 Q0 e1 1 0.9 x\n")
    (tmp_path / "other.jsonl").write_text('{"_id": "x1", "text": "a"}\n')
    return tmp_path


RUN_FAULTS = {
    "measure --qrels nowhere --run good.run": "nowhere cannot be read (No such file or directory)",
    "measure --qrels qrels --run bad.run": "bad.run line 1: score 'high' is no finite number",
    "measure --qrels qrels --run good.run -m nDGC@10": "did you mean 'nDCG@10'?",
    "measure --qrels qrels --run good.run --gain log": "--gain log: expected exp or linear",
    "measure --qrels qrels --run good.run --positive-from 2": "no query has a document of grade 2 or more",
    "compare --qrels qrels --base bad.run --tuned good.run": "bad.run line 2: 4 columns",
    "compare --qrels qrels --base other.run --tuned other.run": "Do the ids meet?",
    "compare --qrels qrels --base good.run --tuned good.run --set measures=5": "measures: found 5",
    "compare --qrels qrels --base good.run --tuned good.run --set slice_by=[a]": "slice_by needs --queries FILE",
    "compare --qrels qrels --base good.run --tuned good.run --queries other.jsonl": "none of its ids stands in",
}


@pytest.mark.parametrize("command", RUN_FAULTS)
def test_a_fault_of_run_files_is_one_message(refused, runs, monkeypatch, command):
    monkeypatch.chdir(runs)
    assert RUN_FAULTS[command] in refused(*command.split())
