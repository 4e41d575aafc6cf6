import json

import pytest

from closecall.dataset import DataConfig
from closecall.errors import DataError
from closecall.pipeline import load_experiment
from closecall.records import Run, ScoredDoc
from eval.config import EvalConfig
from eval.guard import guarded, load_guard

QUERIES = 40


def write_guard(folder, splits=False):
    """40 queries, each with one positive among 41 documents; with `splits` the last 10 are the test part."""
    folder.mkdir()
    corpus = [{"_id": f"d{n}", "text": f"document {n}"} for n in range(QUERIES + 1)]
    queries = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(QUERIES)]
    lines = [f"q{n}\td{n}\t1" for n in range(QUERIES)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    head = "query-id\tcorpus-id\tscore"
    if splits:
        (folder / "qrels").mkdir()
        for name, part in (("train", lines[:-10]), ("test", lines[-10:])):
            (folder / "qrels" / f"{name}.tsv").write_text("\n".join([head, *part]) + "\n", encoding="utf-8")
    else:
        (folder / "qrels.tsv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return load_guard(DataConfig(folder=folder))


def runs(guard, lost):
    """Runs that find every positive first, but the second one none for the first `lost` queries."""
    found = {q: [ScoredDoc(f"d{q[1:]}", 1.0)] for q in guard.query_ids}
    missed = {q: [ScoredDoc(f"d{QUERIES}", 1.0)] for q in list(guard.query_ids)[:lost]}
    return Run(found), Run(found | missed)


CONFIG = {"measure": "recall@1", "measures": (), "resamples": 999}


def test_a_loss_on_the_guard_set_is_harm_only_where_it_is_shown(tmp_path):
    guard = write_guard(tmp_path / "guard")
    much, little = (guarded(guard, *runs(guard, lost), EvalConfig(**CONFIG)) for lost in (12, 1))
    assert (much.result.n, much.result.delta, much.harmed) == (40, pytest.approx(-0.3), True)
    assert (little.result.delta, little.harmed) == (pytest.approx(-0.025), False)
    assert much.loss_p_value < 0.05 < little.loss_p_value
    assert much.documents == QUERIES + 1


def test_a_larger_loss_may_be_allowed(tmp_path):
    guard = write_guard(tmp_path / "guard")
    assert not guarded(guard, *runs(guard, 12), EvalConfig(**CONFIG, max_guard_loss=0.3)).harmed


def test_of_a_guard_set_with_parts_of_its_own_the_test_part_is_asked(tmp_path):
    assert write_guard(tmp_path / "guard", splits=True).query_ids == tuple(f"q{n}" for n in range(30, 40))


def test_a_guard_set_whose_test_part_has_no_positive_is_refused(tmp_path):
    write_guard(tmp_path / "guard", splits=True)
    test = tmp_path / "guard" / "qrels" / "test.tsv"
    test.write_text(test.read_text(encoding="utf-8").replace("\t1\n", "\t0\n"), encoding="utf-8")
    with pytest.raises(DataError, match=r"eval\.guard: .*guard: no query has a positive"):
        load_guard(DataConfig(folder=tmp_path / "guard"))


def test_the_verdict_of_a_run_names_its_guard_set_and_changes_with_it(config_file, tmp_path):
    write_guard(tmp_path / "guard")
    setting = f"eval.guard={{folder: {tmp_path / 'guard'}}}"
    made = load_experiment(config_file, [setting])
    verdict = made.run()
    content = verdict.read_json("verdict.json")
    guard = content["guard"]["tuned"]
    assert (guard["name"], guard["result"]["n"], guard["documents"]) == (str(tmp_path / "guard"), QUERIES, QUERIES + 1)
    rule = next(rule for rule in content["rules"] if rule["name"].startswith("the guard set"))
    assert str(tmp_path / "guard") in rule["evidence"]
    report = verdict.file("report.md").read_text(encoding="utf-8")
    assert f"Guard set {tmp_path / 'guard'} (41 documents), tuned: nDCG@10" in report
    lines = (tmp_path / "guard" / "qrels.tsv").read_text(encoding="utf-8")
    (tmp_path / "guard" / "qrels.tsv").write_text(lines + "q0\td7\t1\n", encoding="utf-8")
    again = load_experiment(config_file, [setting]).run()
    assert again.key != verdict.key
