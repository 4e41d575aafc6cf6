"""`compare` over several runs, and the report it writes."""

import json

import numpy as np
import pytest
import pytrec_eval
from scipy import stats

from closecall import cli
from closecall.errors import ArtifactError, ConfigError
from eval.runs import RunFiles, compare_runs

QUERIES = [f"q{number}" for number in range(40)]


@pytest.fixture
def files(tmp_path):
    """Judgments of 40 queries, and runs that find the positive first for so many of them."""
    (tmp_path / "qrels.tsv").write_text("".join(f"{q}\tgood\t1\n" for q in QUERIES), encoding="utf-8")
    for name, right in (("base", 10), ("tuned", 30), ("other", 5)):
        lines = []
        for number, query in enumerate(QUERIES):
            order = ("good", "bad") if number < right else ("bad", "good")
            lines += [f"{query} Q0 {doc} {rank} {1 / rank} x\n" for rank, doc in enumerate(order, start=1)]
        (tmp_path / f"{name}.run").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def given(files, *more):
    return RunFiles(files / "qrels.tsv", {name: files / f"{name}.run" for name in ("base", "tuned", *more)})


def test_several_runs_are_compared_with_the_one_in_use(files):
    content = compare_runs(given(files, "other"), ["measure=MRR"])
    assert (content["contender"], content["outcome"]) == ("tuned", "adopt")
    assert content["others"]["other"]["outcome"] == "reject"
    assert set(content["runs"]) == {"base", "tuned", "other"}


def test_a_report_of_other_runs_leaves_no_file_of_the_one_before(files):
    report = files / "report"
    compare_runs(given(files, "other"), ["measure=MRR"], report)
    (report / "mine.txt").write_text("kept")
    compare_runs(given(files), ["measure=MRR"], report)
    expected = {"base.run", "tuned.run", "mine.txt", "archive.jsonl", "costs.json", "failures.jsonl"}
    expected |= {"per_query.csv", "report.html", "report.md", "verdict.json"}
    assert {path.name for path in report.iterdir()} == expected


def test_the_archive_is_kept_from_report_to_report(files):
    report = files / "report"
    compare_runs(given(files), ["measure=MRR", "incumbent=tuned"], report)
    first = [json.loads(line) for line in (report / "archive.jsonl").read_text().splitlines()]
    assert {entry["status"] for entry in first} == {"new"}
    compare_runs(given(files), ["measure=MRR"], report)
    after = [json.loads(line) for line in (report / "archive.jsonl").read_text().splitlines()]
    assert {entry["status"] for entry in after} == {"fixed"}


@pytest.mark.parametrize("setting", ["contenders=[bm25]", "guard={folder: x}", "limits={bytes_per_vector: 3}"])
def test_settings_that_need_models_are_refused_not_ignored(files, setting):
    with pytest.raises(ConfigError, match="needs models and a corpus"):
        compare_runs(given(files), [setting])


def test_a_report_is_printed_again_with_its_exit_code(files, capsys, monkeypatch):
    report = files / "report"
    content = compare_runs(given(files, "other"), ["measure=MRR", "incumbent=tuned"], report)
    monkeypatch.setattr("sys.argv", ["closecall", "verdict", str(report), "-q"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 10
    assert capsys.readouterr().out == content["sentence"] + "\n"


def test_a_folder_with_another_verdict_json_is_refused(files):
    report = files / "report"
    report.mkdir()
    (report / "verdict.json").write_text('{"schema": 1}')
    with pytest.raises(ArtifactError, match=r"verdict\.json: no verdict of this closecall \(schema 1, expected 2"):
        compare_runs(given(files), [], report)


@pytest.mark.parametrize("text", ["x", "=f", "a/b=f", "base=f", "..="])
def test_a_run_without_a_usable_name_is_refused(files, capsys, monkeypatch, text):
    arguments = ["--qrels", "qrels.tsv", "--base", "base.run", "--tuned", "tuned.run", "--run", text]
    monkeypatch.chdir(files)
    monkeypatch.setattr("sys.argv", ["closecall", "compare", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert f"error: --run {text}: expected NAME=FILE" in capsys.readouterr().err


@pytest.mark.parametrize(("shift", "expected"), [(1.5, "adopt"), (0.0, "undecided"), (-1.5, "reject")])
def test_the_verdict_on_300_queries_agrees_with_pytrec_eval_and_a_t_test(tmp_path, shift, expected):
    rng = np.random.default_rng(5)
    docs = [f"d{number:02}" for number in range(30)]
    grades = {
        f"q{n:03}": {str(d): int(rng.integers(0, 4)) for d in rng.choice(docs, 6, replace=False)} for n in range(300)
    }
    runs = {"base": {}, "tuned": {}}
    for query, judged in grades.items():
        for name, push in (("base", 1.0), ("tuned", 1.0 + shift)):
            scores = rng.normal(size=30) + push * np.asarray([judged.get(doc, 0) for doc in docs]) / 3
            runs[name][query] = {doc: round(float(score), 6) for doc, score in zip(docs, scores, strict=True)}
    (tmp_path / "qrels.tsv").write_text(
        "".join(f"{q}\t{doc}\t{grade}\n" for q, judged in grades.items() for doc, grade in judged.items())
    )
    for name, run in runs.items():
        lines = [f"{q} Q0 {doc} 1 {score} x\n" for q, scores in run.items() for doc, score in scores.items()]
        (tmp_path / f"{name}.run").write_text("".join(lines))
    content = compare_runs(given(tmp_path), ["gain=linear"])
    evaluator = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10"})
    base, tuned = ([v["ndcg_cut_10"] for v in evaluator.evaluate(runs[name]).values()] for name in ("base", "tuned"))
    found = content["overall"]["nDCG@10"]
    assert (found["n"], content["queries"]) == (300, 300)
    assert found["delta"] == pytest.approx(np.mean(tuned) - np.mean(base), abs=1e-6)
    interval = stats.ttest_rel(tuned, base).confidence_interval(0.95)
    assert (found["low"], found["high"]) == (
        pytest.approx(interval.low, abs=2e-3),
        pytest.approx(interval.high, abs=2e-3),
    )
    independent = "adopt" if interval.low > 0 else "reject" if interval.high <= 0 else "undecided"
    assert content["outcome"] == independent == expected
    # The smallest gain with 80 % power: (1.96 + 0.84) standard errors.
    error = np.std(np.subtract(tuned, base), ddof=1) / np.sqrt(300)
    assert content["resolvable_gain"] == pytest.approx(2.8 * error, rel=0.05)
