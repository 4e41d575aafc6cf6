"""What a user can get wrong in an evaluation: one message, nothing compared otherwise than asked, no file lost."""

import csv
import json
import shutil
import sys
import warnings

import pytest

from closecall import cli
from closecall.errors import ArtifactError, ConfigError, DataError, ModelError
from closecall.manifest import Artifact, writing
from closecall.pipeline import load_experiment
from eval.artifact import keep_failures
from eval.config import EvalConfig
from eval.runs import RunFiles, compare_runs


@pytest.fixture(scope="module")
def config(tmp_path_factory, toy_config, tiny_model):
    """Of a run that has ended."""
    path = toy_config(tmp_path_factory.mktemp("contenders"), tiny_model)
    load_experiment(path).run()
    return path


def evaluate(config, contender, *settings):
    made = load_experiment(config, [f"eval.contenders=[{contender}]", *settings]).evaluate()
    return made.read_json("verdict.json")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory, tiny_model):
    """The folder of a cross-encoder with random weights."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("reranker")
    tokenizer = BertTokenizerFast(str(tiny_model.parent / "vocab.txt"))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, max_position_embeddings=64, **small)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_run_that_answers_no_test_query_is_refused(config):
    lines = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()[:5]
    alien = config.parent / "alien.run"
    alien.write_text("".join(f"z{line}\n" for line in lines))
    with pytest.raises(DataError, match=r"alien\.run: none of its queries \('z.*is a test query"):
        evaluate(config, f"{{name: x, run: {alien}}}")


def test_a_run_over_another_corpus_is_refused(config):
    line = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()[0].split()
    other = config.parent / "other.run"
    other.write_text(f"{line[0]} Q0 elsewhere 1 1.0 x\n")
    with pytest.raises(DataError, match=r"other\.run: none of its documents is in the corpus"):
        evaluate(config, f"{{name: x, run: {other}}}")


def test_queries_that_a_run_lacks_count_as_0_and_are_counted(config):
    lines = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()
    first = lines[0].split()[0]
    some = config.parent / "some.run"
    some.write_text("".join(f"{line}\n" for line in lines if line.split()[0] == first))
    made = load_experiment(config, [f"eval.contenders=[{{name: x, run: {some}}}]"])
    content = made.evaluate().read_json("verdict.json")
    assert content["counted"]["queries_missing_from_x_run"] == content["queries"] - 1
    assert content["others"]["x"]["overall"]["nDCG@10"]["n"] == content["queries"]


def test_more_dimensions_than_the_vectors_have_are_refused(config):
    with pytest.raises(ConfigError, match=r"x: dimensions is 400, and the vectors have 32; lower it"):
        evaluate(config, "{name: x, of: base, dimensions: 400}")


def test_a_model_that_scores_no_pairs_is_no_reranker(config, tiny_model):
    with pytest.raises(ModelError, match=r"no cross-encoder but a BertModel, .*name a reranker"):
        evaluate(config, f"{{name: x, of: base, rerank: {tiny_model}}}")


def test_a_system_is_not_fused_with_itself(config):
    with pytest.raises(ConfigError, match="fuse needs two contenders or more, each once"):
        evaluate(config, "{name: x, fuse: [base, base]}")


def test_a_cut_of_a_cut_is_cut_from_the_cut(config):
    with pytest.raises(ConfigError, match=r"y: dimensions is 16, and the vectors have 8; lower it"):
        evaluate(config, "{name: x, of: base, dimensions: 8}, {name: y, of: x, dimensions: 16}")
    found = evaluate(config, "{name: x, of: base, dimensions: 8, quantise: int8}, {name: y, of: x, dimensions: 4}")
    assert {name: size["bytes_per_vector"] for name, size in found["sizes"].items()} == {
        "base": 128,
        "tuned": 128,
        "x": 8,
        "y": 4,
    }


def test_what_is_reranked_is_not_cut_as_if_nothing_reranked_it(config, reranker):
    with pytest.raises(ConfigError, match="y: x has no vectors of its own"):
        evaluate(config, f"{{name: x, of: base, rerank: {reranker}}}, {{name: y, of: x, dimensions: 8}}")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ("run: nowhere.run", ConfigError, r"nowhere\.run: cannot be read \(No such file"),
        ("model: /nowhere", ModelError, "no folder '/nowhere'"),
        ("of: base, rerank: /nowhere", ModelError, "no folder '/nowhere'"),
    ],
)
def test_a_contender_that_is_not_there_is_named(config, settings, error, said):
    with pytest.raises(error, match=rf"^eval\.contenders: x: .*{said}"):
        evaluate(config, f"{{name: x, {settings}}}")


def test_a_model_folder_with_an_odd_config_is_no_reranker(config, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": 5}')
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(ModelError, match="cannot be loaded as a cross-encoder"):
        evaluate(config, f"{{name: x, of: base, rerank: {tmp_path}}}")


@pytest.mark.parametrize("name", ["a/b", "..", "_x", "n" * 61, "-x"])
def test_a_name_that_is_no_name_of_a_file_and_of_a_legend_is_refused(name):
    with pytest.raises(ValueError, match="should match pattern"):
        EvalConfig.model_validate({"contenders": [{"name": name, "bm25": True}]})


def test_a_guard_set_over_another_corpus_does_not_refuse_runs(config, tmp_path):
    engine = shutil.copyfile(config.parent / "out" / "verdict" / "base.run", tmp_path / "engine.run")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "g1", "text": "create bucket"}\n{"_id": "g2", "text": "a"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "make bucket"}\n')
    (tmp_path / "qrels.tsv").write_text("q1\tg1\t1\n")
    found = evaluate(config, f"{{name: x, run: {engine}}}", f"eval.guard={{folder: {tmp_path}}}")
    assert set(found["guard"]) == {"tuned"}


def test_a_guard_that_could_not_be_asked_is_no_guard_passed(config, tmp_path):
    engine = shutil.copyfile(config.parent / "out" / "verdict" / "base.run", tmp_path / "engine.run")
    guard = f"eval.guard={{folder: {config.parent / 'data'}}}"
    found = evaluate(config, f"{{name: x, run: {engine}}}", "eval.incumbent=x", guard, "eval.min_groups=2")
    rule = next(rule for rule in found["rules"] if rule["name"].startswith("the guard set"))
    assert (rule["outcome"], found["outcome"]) == ("undecided", "undecided")
    assert "is a run" in rule["evidence"]


def test_a_limit_on_the_price_of_services_is_kept_where_none_is_asked(config):
    found = evaluate(config, "bm25", "eval.limits={price_per_1000_queries: 1}")
    rules = {rule["name"]: rule["outcome"] for rule in found["rules"]}
    assert rules["price_per_1000_queries at most 1"] == "passed"


def test_failures_of_queries_longer_than_a_csv_field_are_kept(tmp_path):
    text = "w" * 200_000
    with writing(tmp_path / "verdict", "eval", inputs={}, config={}) as draft:
        failure = json.dumps({"query_id": "q1", "query": text})
        draft.path("failures.jsonl").write_text(failure + "\n")
        with draft.path("per_query.csv").open("w", newline="") as handle:
            csv.writer(handle).writerows([("query_id", "query"), ("q1", text)])
    keep_failures(Artifact.open(tmp_path / "verdict", "eval"), tmp_path / "failures.jsonl", "key")
    assert json.loads((tmp_path / "failures.jsonl").read_text())["status"] == "new"


def test_nothing_is_published_into_an_artifact_or_through_a_link(config, tmp_path):
    made = load_experiment(config)
    with pytest.raises(ArtifactError, match=r"lies in the artifact .*checkpoint, which takes no more files"):
        made.publish(config.parent / "out" / "checkpoint" / "model" / "copy", None)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="is there already"):
        made.publish(tmp_path / "link", None)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_hub_that_cannot_be_reached_is_one_message(config, tmp_path, monkeypatch):
    def unreachable(*arguments, **settings):
        raise RuntimeError("")  # as httpx does, whose errors are no OSError

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", unreachable)
    with pytest.raises(ModelError, match=r"--push-to-hub a/b: RuntimeError; the folder .* is ready"):
        load_experiment(config).publish(tmp_path / "model", "a/b")


QUERIES = [f"q{number}" for number in range(24)]


@pytest.fixture
def files(tmp_path):
    """Judgments of 24 queries, and two runs that find the positive first for some of them."""
    (tmp_path / "qrels.tsv").write_text("".join(f"{query}\tgood\t1\n" for query in QUERIES))
    for name, right in (("base", 4), ("tuned", 20)):
        lines = []
        for number, query in enumerate(QUERIES):
            order = ("good", "bad") if number < right else ("bad", "good")
            lines += [f"{query} Q0 {doc} {rank} {1 / rank} x\n" for rank, doc in enumerate(order, start=1)]
        (tmp_path / f"{name}.run").write_text("".join(lines))
    return tmp_path


def given(files, **more):
    return RunFiles(files / "qrels.tsv", {name: files / f"{name}.run" for name in ("base", "tuned")}, **more)


def write_queries(files, *columns):
    """queries.jsonl with these columns, one dict a query, the last one again and again."""
    rows = [{"_id": q, "text": "x", **columns[min(n, len(columns) - 1)]} for n, q in enumerate(QUERIES)]
    path = files / "queries.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("value", ["[a]", "{a: b}", "x"])
def test_an_incumbent_that_is_no_run_is_refused(files, value):
    with pytest.raises(ConfigError, match=r"--set incumbent=.*: no such run; there are base, tuned"):
        compare_runs(given(files), [f"incumbent={value}"])


def test_a_report_replaces_no_file_that_no_report_wrote(files):
    report = files / "mine"
    report.mkdir()
    (report / "report.md").write_text("mine")
    with pytest.raises(ArtifactError, match=r"report\.md: is there, and no report wrote it"):
        compare_runs(given(files), [], report)
    assert contents(report) == {"report.md": b"mine"}


def test_a_report_replaces_no_run_that_it_reads(files):
    before = contents(files)
    with pytest.raises(ArtifactError, match=r"base\.run: is there, and no report wrote it"):
        compare_runs(given(files), [], files)
    compare_runs(given(files), [], files / "report")
    again = RunFiles(files / "qrels.tsv", {"base": files / "base.run", "tuned": files / "report" / "tuned.run"})
    with pytest.raises(ArtifactError, match=r"tuned\.run: is read here, and the report would replace it"):
        compare_runs(again, [], files / "report")
    assert contents(files) == before


def test_a_report_goes_into_no_artifact(files):
    with writing(files / "out", "eval", inputs={}, config={}) as draft:
        draft.path("verdict.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"lies in the artifact .*out, which takes no more files"):
        compare_runs(given(files), [], files / "out" / "report")
    Artifact.open(files / "out", "eval").verify()


DAMAGED = {
    "brackets": b"[" * 100_000,
    "half a surrogate": b'{"query_id": "\\ud800", "query": "x", "status": "new", "history": []}',
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_archive_is_refused_and_the_report_before_it_stays(files, damage):
    report = files / "report"
    compare_runs(given(files), [], report)
    (report / "archive.jsonl").write_bytes(DAMAGED[damage] + b"\n")
    before = contents(report)
    with pytest.raises(DataError, match=r"archive\.jsonl line 1: no entry of the failure archive"):
        compare_runs(given(files), ["measure=MRR"], report)
    assert contents(report) == before


CHANGES = {
    "another exit code": lambda content: content | {"exit_code": 0},
    "a key less": lambda content: {key: value for key, value in content.items() if key != "overall"},
    "runs elsewhere": lambda content: content | {"runs": {"../precious": "x"}},
    "no runs": lambda content: content | {"runs": 5},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_report_changed_by_hand_is_neither_printed_nor_cleared(files, monkeypatch, capsys, change):
    report = files / "report"
    (files / "precious.run").write_text("kept")
    compare_runs(given(files), ["incumbent=tuned"], report)
    path = report / "verdict.json"
    path.write_text(json.dumps(CHANGES[change](json.loads(path.read_text()))))
    with pytest.raises(ArtifactError, match=r"verdict\.json: no verdict of this closecall .*compare the runs again"):
        compare_runs(given(files), [], report)
    monkeypatch.setattr(sys, "argv", ["closecall", "verdict", str(report)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("error: ")) == (2, "", 1)
    assert (files / "precious.run").read_text() == "kept"


def test_names_of_slices_are_drawn_as_they_are_written(files):
    queries = write_queries(files, *({"price": "$a_{$"} for _ in range(12)), {"price": "\u65e5\u672c\u8a9e"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare_runs(given(files, queries=queries), [], files / "report")
    assert "price=$a_{$  n=12" in (files / "report" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["[/b].run", "[red]b.run", ":smile:.run"])
def test_names_of_files_are_printed_as_they_are_written(files, monkeypatch, capsys, name):
    (files / name).parent.mkdir(exist_ok=True)
    (files / "base.run").rename(files / name)
    arguments = ["--qrels", "qrels.tsv", "--base", name, "--tuned", "tuned.run"]
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "argv", ["closecall", "compare", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert f"base: {name}" in capsys.readouterr().err


def test_a_run_over_other_documents_is_refused_not_scored_0(files):
    base = files / "base.run"
    base.write_text(base.read_text().replace("good", "G").replace("bad", "B"))
    with pytest.raises(
        DataError, match=r"base\.run: none of its documents \('.*stands in .*qrels\.tsv.*Do the ids meet"
    ):
        compare_runs(given(files), [])


def test_a_corpus_of_other_documents_is_refused(files):
    corpus = files / "corpus.jsonl"
    corpus.write_text('{"_id": "elsewhere", "text": "x"}\n')
    with pytest.raises(DataError, match=r"base\.run: none of its documents .*stands in .*corpus\.jsonl"):
        compare_runs(given(files, corpus=corpus), [])


def test_judged_queries_that_the_file_of_queries_lacks_are_counted(files):
    queries = write_queries(files, {})
    queries.write_text("".join(queries.read_text().splitlines(keepends=True)[:21]))
    content = compare_runs(given(files, queries=queries), [])
    assert content["queries"] == 21
    assert content["counted"]["judged_queries_that_the_file_of_queries_lacks"] == 3


def test_a_query_without_a_value_is_a_group_of_its_own(files):
    queries = write_queries(files, *({"thread": "a"} for _ in range(4)), {"thread": None})
    assert compare_runs(given(files, queries=queries, group_by="thread"), [])["groups"] == 21


@pytest.mark.parametrize("column", ["thread", "nobody"])
def test_groups_of_a_column_that_nothing_has_are_refused(files, column):
    queries = write_queries(files, {"thread": None}) if column == "thread" else None
    with pytest.raises(
        ConfigError, match=f"--group-by {column}: no query has a value in this column of --queries FILE"
    ):
        compare_runs(given(files, queries=queries, group_by=column), [])


def test_judgments_without_a_positive_name_the_file_and_the_option(files):
    with pytest.raises(
        DataError, match=r"qrels\.tsv: no query has a document of grade 2 or more; check --positive-from"
    ):
        compare_runs(given(files, positive_from=2), [])
