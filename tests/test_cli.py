import json
import re
import subprocess
import sys

import pytest
import torch

from closecall import cli

COMMANDS = (
    *(
        "import",
        "check",
        "split",
        "mine",
        "calibrate",
        "audit",
        "judge-import",
        "export",
        "finetune",
        "eval",
        "run",
        "publish",
    ),
    *("demo", "measure", "compare", "verdict", "plan", "freeze", "log", "cache"),
)


@pytest.fixture
def closecall(monkeypatch, capsys):
    """The console script with these arguments: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["closecall", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def file(tmp_path):
    """Write a file; lines are stripped of the indentation of this source."""

    def write(name, content):
        path = tmp_path / name
        path.write_text("".join(f"{line.strip()}\n" for line in content.strip().splitlines()))
        return path

    return write


def run_lines(**rankings):
    """TREC lines of {query: "first second third"}; the rank column is left at 0, since scores decide."""
    return "\n".join(
        f"{query_id} Q0 {doc_id} 0 {-position} tag"
        for query_id, docs in rankings.items()
        for position, doc_id in enumerate(docs.split())
    )


def qrels_lines(**positives):
    return "\n".join(f"{query_id} 0 {doc_id} 1" for query_id, docs in positives.items() for doc_id in docs.split())


def values(out):
    """{(measure, query or "all"): printed value}"""
    return {(name, query): value for name, query, value in (line.split("\t") for line in out.splitlines())}


@pytest.fixture
def support_desk(file):
    """The first worked example of design.md, section 7."""
    qrels = file("qrels.tsv", qrels_lines(q1="policy-refunds faq-returns", q2="acct-recovery", q3="pricing-enterprise"))
    run = file(
        "desk.run",
        run_lines(
            q1="policy-refunds faq-shipping faq-returns",
            q2="faq-login acct-recovery policy-privacy",
            q3="faq-login policy-refunds pricing-enterprise",
        ),
    )
    return "--qrels", qrels, "--run", run


def test_measure_prints_recall_and_mrr_of_the_worked_example(closecall, support_desk):
    code, out, err = closecall("measure", *support_desk, "-m", "recall@1", "-m", "recall@5", "-m", "MRR")
    # recall@1 = (1/2 + 0 + 0) / 3, MRR = (1 + 1/2 + 1/3) / 3
    assert (code, err) == (0, "")
    assert out == "recall@1\tall\t0.1667\nrecall@5\tall\t1.0000\nMRR\tall\t0.6111\nqueries\tall\t3\n"


def test_measure_prints_mrr_with_0_for_a_miss(closecall, file):
    qrels = file("qrels", qrels_lines(q1="p", q2="p", q3="p", q4="p"))
    run = file("run", run_lines(q1="p a b c", q2="a p b c", q3="a b c p", q4="a b c d"))
    _, out, _ = closecall("measure", "--qrels", qrels, "--run", run, "-m", "MRR")
    assert values(out)["MRR", "all"] == "0.4375"  # (1 + 1/2 + 1/4 + 0) / 4


def test_measure_prints_recall_of_five_positives(closecall, file):
    qrels, run = file("qrels", qrels_lines(q1="A B C D E")), file("run", run_lines(q1="X A Y Z B"))
    _, out, _ = closecall("measure", "--qrels", qrels, "--run", run, "-m", "recall@5")
    assert values(out)["recall@5", "all"] == "0.4000"  # 2 of 5


@pytest.fixture
def graded(file):
    """Grades returned [1, 0, 3, 2, 0]; the ideal is [3, 2, 2, 1, 0], since f (grade 2) is not returned."""
    qrels = file("qrels", "q1\ta\t1\nq1\tb\t0\nq1\tc\t3\nq1\td\t2\nq1\te\t0\nq1\tf\t2")
    return "--qrels", qrels, "--run", file("run", run_lines(q1="a b c d e"))


@pytest.mark.parametrize(
    ("option", "expected", "gain"),
    [
        # exp: (1 + 7/2 + 3/log2 5) / (7 + 3/log2 3 + 3/2 + 1/log2 5) = 5.792 / 10.823
        ([], "0.5351", "exp"),
        # linear: (1 + 3/2 + 2/log2 5) / (3 + 2/log2 3 + 2/2 + 1/log2 5) = 3.361 / 5.693
        (["--gain", "linear"], "0.5905", "linear"),
    ],
)
def test_measure_prints_ndcg_of_the_worked_example_with_its_gain(closecall, graded, option, expected, gain):
    _, out, _ = closecall("measure", *graded, "-m", "nDCG@5", *option)
    assert values(out) == {("nDCG@5", "all"): expected, ("queries", "all"): "1", ("gain", "all"): gain}


def test_positive_from_says_which_grade_is_relevant(closecall, graded):
    _, out, _ = closecall("measure", *graded, "-m", "recall@5", "--positive-from", "2")
    assert values(out)["recall@5", "all"] == "0.6667"  # c and d of c, d, f


def test_per_query_adds_a_line_per_query_and_measure(closecall, support_desk):
    _, out, _ = closecall("measure", *support_desk, "-m", "MRR", "-m", "hit@1", "--per-query")
    assert [values(out)["MRR", query_id] for query_id in ("q1", "q2", "q3")] == ["1.0000", "0.5000", "0.3333"]
    assert values(out)["hit@1", "q2"] == "0.0000"


def test_measure_as_json(closecall, support_desk):
    _, out, _ = closecall("measure", *support_desk, "-m", "mrr", "--json", "--per-query")
    assert json.loads(out) == {
        "queries": 3,
        "gain": "exp",
        "queries_without_positives": 0,
        "queries_missing_from_run": 0,
        "means": {"MRR": 0.611111},
        "per_query": {"q1": {"MRR": 1.0}, "q2": {"MRR": 0.5}, "q3": {"MRR": 0.333333}},
    }


def test_queries_that_are_missing_or_have_no_positive_are_named(closecall, file):
    qrels = file("qrels", "q1\tp\t1\nq2\tp\t1\nq3\tp\t0")
    _, out, _ = closecall("measure", "--qrels", qrels, "--run", file("run", run_lines(q1="p")), "-m", "MRR")
    assert out.splitlines() == [
        "MRR\tall\t0.5000",
        "queries\tall\t2",
        "# 1 queries missing from the run, scored 0: q2",
        "# 1 queries without positives, left out: q3",
    ]


@pytest.fixture
def two_runs(file):
    """80 queries, half about mail and half about web, and a run in which the positives of some come first."""
    ids = [f"q{number}" for number in range(80)]
    file("qrels", qrels_lines(**dict.fromkeys(ids, "p")))
    queries = (json.dumps({"_id": q, "text": "x", "topic": "mail" if q in ids[:40] else "web"}) for q in ids)
    file("queries.jsonl", "\n".join(queries))

    def runs(base_first, tuned_first):
        paths = []
        for name, first in (("base.run", ids[base_first]), ("tuned.run", ids[tuned_first])):
            lines = run_lines(**{query_id: "p x" if query_id in first else "x p" for query_id in ids})
            paths += [f"--{name.removesuffix('.run')}", file(name, lines)]
        folder = paths[1].parent
        return "--qrels", folder / "qrels", *paths, "--queries", folder / "queries.jsonl"

    return runs


NONE, ALL, MAIL, WEB = slice(0, 0), slice(0, 80), slice(0, 40), slice(40, 80)


@pytest.mark.parametrize(
    ("base", "tuned", "code", "outcome"),
    [
        (NONE, ALL, 0, "adopt"),
        (ALL, NONE, 10, "reject"),
        (MAIL, MAIL, 10, "unchanged"),
        (MAIL, slice(38, 80), 10, "reject"),  # web gains, mail is harmed
        (slice(0, 2), slice(2, 6), 11, "undecided"),  # two lose, four gain
    ],
)
def test_compare_ends_with_the_exit_code_of_its_verdict(closecall, two_runs, base, tuned, code, outcome):
    found, out, _ = closecall("compare", *two_runs(base, tuned), "--set", "measure=MRR")
    assert (found, out.split(":")[0]) == (code, outcome)
    assert out.count("\n") == 1


def test_compare_slices_by_the_columns_of_the_queries(closecall, two_runs):
    runs = two_runs(MAIL, WEB)
    _, out, err = closecall("compare", *runs, "--set", "measure=MRR", "--set", "measures=[hit@1]", "--json")
    content = json.loads(out)
    assert {item["name"]: item["delta"] for item in content["slices"]} == {"topic=mail": -0.5, "topic=web": 0.5}
    assert [item["harmed"] for item in content["slices"]] == [True, False]
    assert content["outcome"] == "reject"
    assert content["settings"]["measure"] == "MRR"
    assert re.search(r"topic=mail +MRR +100\.0 +50\.0 +-50\.0 +\[-50\.0, -50\.0\] +40 +HARMED", err)
    assert json.loads(closecall("compare", *runs[:-2], "--json")[1])["slices"] == []


def test_compare_gives_the_same_json_twice(closecall, two_runs):
    runs = two_runs(slice(0, 30), slice(20, 60))
    assert closecall("compare", *runs, "--json") == closecall("compare", *runs, "--json")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_under_h(closecall, command):
    code, out, _ = closecall(command, "-h")
    assert code == 0
    assert out.startswith("Usage:")
    assert closecall(command, "--help")[1] == out


def test_a_judged_set_is_imported_and_exported_again(closecall, file, tmp_path):
    """The id 007 and the grade 0 come back as they were; the second import finds the folder taken."""
    file("corpus.csv", "id,text\n007,create a bucket\n1e5,delete a key")
    file("queries.csv", "query_id,query\nnull,how to make a bucket")
    file("qrels.csv", "query_id,doc_id,grade\nnull,007,1\nnull,1e5,0")
    files = [f"--{name}={tmp_path / name}.csv" for name in ("corpus", "queries", "qrels")]
    assert closecall("import", *files, tmp_path / "set")[:2] == (0, f"{tmp_path / 'set'}\n")
    assert closecall("export", tmp_path / "set", "--form", "csv", "--to", tmp_path / "out")[0] == 0
    assert sorted((tmp_path / "out" / "qrels.csv").read_text().splitlines()[1:]) == ["null,007,1", "null,1e5,0"]
    code, _, err = closecall("import", *files, tmp_path / "set")
    assert code == 2
    assert "is not empty" in err or "is there" in err


def test_the_commands_are_those_of_the_design(closecall):
    out = closecall("-h")[1]
    listed = [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line.strip()]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    assert {command.name or command.callback.__name__ for command in cli.app.registered_commands} == set(COMMANDS)


def test_help_imports_no_torch():
    code = (
        "import sys; from closecall.cli import main; sys.argv = ['closecall', '-h']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'scipy', 'faiss', 'sentence_transformers'} & sys.modules.keys()))"
    )
    root = cli.__file__.rsplit("/", 2)[0]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False).returncode == 0


def test_ctrl_c_says_that_what_was_finished_is_kept(closecall, config_file, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("closecall.pipeline.make_split", stop)
    code, out, err = closecall("run", config_file)
    assert (code, out) == (130, "")
    assert err == "stopped; what was finished is kept, and the same command goes on from there\n"


@pytest.fixture
def one_thread():
    """See tests/test_pipeline.py."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_stages_one_by_one_print_their_folders_and_run_then_changes_nothing(closecall, config_file):
    output = config_file.parent / "out"
    quick = ("--set", "finetune.epochs=1", "--quiet")
    for command, name in (("split", "split"), ("mine", "mined"), ("finetune", "checkpoint")):
        assert closecall(command, config_file, *quick) == (0, f"{output / name}\n", "")
    code, out, err = closecall("eval", config_file, *quick)
    assert (code, err) == ({"adopt": 0, "reject": 10, "undecided": 11}[out.split(":")[0]], "")
    again, out_again, said = closecall("run", config_file, *quick[:2])
    assert (again, out_again) == (code, out)
    assert f"report: {output / 'verdict' / 'report.html'}\n" in said
    assert "all queries" in said
    found = json.loads(closecall("run", config_file, *quick, "--json")[1])
    assert found == json.loads((output / "verdict" / "verdict.json").read_text())
    manifest = json.loads(closecall("mine", config_file, *quick, "--json")[1])
    assert (manifest["folder"], manifest["stage"]) == (str(output / "mined"), "mine")


def test_check_writes_nothing_and_says_what_the_split_could_show(closecall, config_file):
    code, out, _ = closecall("check", config_file)
    assert code == 0
    assert "48 documents" in out
    assert re.search(r"power +57 test queries show a gain of [\d.]+ points or more with 80 % power", out)
    assert not (config_file.parent / "out").exists()
    assert json.loads(closecall("check", config_file, "--json")[1])["split"] == {
        "train": 57,
        "dev": 30,
        "test": 57,
        "groups": 48,
    }
