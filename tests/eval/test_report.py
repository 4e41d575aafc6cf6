import csv
import io
import json

import pytest
from rich.console import Console

from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from closecall.slices import Slice
from eval.answers import answers_of_run
from eval.artifact import evaluation_json, verdict_json, write_per_query
from eval.compare import compare
from eval.config import EvalConfig
from eval.evaluation import Asked, evaluate_answers
from eval.report import Shown, markdown, table
from eval.tables import rows
from eval.verdict import decide


def result(base, tuned, low, high, n, **more):
    values = {"base": base, "tuned": tuned, "delta": tuned - base, "low": low, "high": high, "n": n, "n_groups": n}
    return (
        values
        | {
            "confidence": 0.95,
            "p_value": 0.0123,
            "effect_size": 0.4,
            "wins": 3,
            "ties": 2,
            "losses": 1,
            "method": "bootstrap",
        }
        | more
    )


def a_slice(name, large_enough=True, harmed=False, n=40):
    return {"name": name, **result(0.5, 0.55, 0.01, 0.09, n), "large_enough": large_enough, "harmed": harmed}


@pytest.fixture
def content():
    """A verdict.json as far as the report reads it."""
    return {
        "outcome": "adopt",
        "sentence": "adopt: nDCG@10 50.0 -> 60.0.",
        "measure": "nDCG@10",
        "gain": "exp",
        "rules": [{"name": "gain above 0.0 points", "outcome": "passed", "evidence": "the interval lies above"}],
        "resolvable_gain": 0.0234,
        "overall": {
            "nDCG@10": result(0.5, 0.6, 0.05, 0.15, 1234),
            "recall@1": result(0.4, 0.3, -0.15, -0.05, 1234),
        },
        "slices": [a_slice("noun=key"), a_slice("noun=user", harmed=True), a_slice("rare", large_enough=False, n=3)],
    }


def test_every_row_has_measure_values_delta_interval_and_n(content):
    assert rows(content) == [
        ("all queries", "nDCG@10", "50.0", "60.0", "+10.0", "[+5.0, +15.0]", "1,234", ""),
        ("all queries", "recall@1", "40.0", "30.0", "-10.0", "[-15.0, -5.0]", "1,234", ""),
        ("noun=key", "nDCG@10", "50.0", "55.0", "+5.0", "[+1.0, +9.0]", "40", ""),
        ("noun=user", "nDCG@10", "50.0", "55.0", "+5.0", "[+1.0, +9.0]", "40", "HARMED"),
        ("rare", "nDCG@10", "50.0", "55.0", "+5.0", "", "3", "too few to judge"),
    ]


def test_an_interval_without_a_bound_is_left_blank(content):
    content["overall"]["nDCG@10"] |= {"low": None, "high": None}
    assert rows(content)[0][5] == ""


def printed(content, width=140):
    console = Console(width=width, file=io.StringIO())
    console.print(table(content))
    return console.file.getvalue()


def test_the_terminal_table_holds_all_cells_and_the_meaning_of_its_numbers(content):
    text = printed(content)
    for cells in rows(content):
        assert all(cell in text for cell in cells)
    assert "in points (hundredths); 95% intervals of the paired delta (bootstrap)" in text


def test_on_80_columns_names_wrap_and_no_number_is_cut(content):
    content["slices"] = [a_slice("service=application-autoscaling-plans", large_enough=False), a_slice("noun=key")]
    text = printed(content, width=80)
    assert "…" not in text
    for cells in rows(content):
        assert all(cell in text for cell in cells[1:7])


def test_the_terminal_table_says_how_many_groups_were_resampled(content):
    content["overall"]["nDCG@10"]["n_groups"] = 1000
    assert "(bootstrap, 1,000 groups resampled whole)" in " ".join(printed(content).split())


def test_a_slice_named_like_markup_is_printed_as_it_is(content):
    content["slices"] = [a_slice("topic=[/red]"), a_slice("topic=[bold]x")]
    assert "topic=[/red]" in printed(content)
    assert "topic=[bold]x" in printed(content)


def test_the_report_says_verdict_rules_power_counts_and_gain(content):
    text = markdown(content, None, {})
    assert text.startswith("# Verdict: adopt\n\nadopt: nDCG@10 50.0 -> 60.0.\n\n")
    assert "- gain above 0.0 points: **passed**, the interval lies above\n" in text
    assert "shows with 80 % power is 2.3 points of nDCG@10." in text
    assert "| noun=user | nDCG@10 | 50.0 | 55.0 | +5.0 | [+1.0, +9.0] | 40 | HARMED |" in text
    assert "p = 0.0123 (permutation), effect size 0.40 (Cohen's d of the deltas), 3 wins, 2 ties, 1 losses." in text
    assert "nDCG gain: exp." in text
    assert text.endswith("\n")


def test_without_a_known_power_the_report_leaves_it_out(content):
    assert "80 % power" not in markdown(content | {"resolvable_gain": None}, None, {})


def test_the_report_names_models_training_and_leaks_where_the_stage_knows_them(content):
    facts = {
        "models": {"base": {"name": "mini", "weights_sha256": "ab" * 32}},
        "training": "Chosen on dev: step 3.",
        "leaks": {"test~train same_text": 2, "test~dev same_text": 0},
    }
    text = markdown(content | facts, None, {})
    assert "- base: mini, weights abababababab\n" in text
    assert "Chosen on dev: step 3." in text
    assert "- test~train same_text: 2 test queries\n" in text
    assert "test~dev" not in text
    assert "None found between test and what training read." in markdown(content | {"leaks": {"x": 0}}, None, {})
    assert "## Leaks" not in markdown(content, None, {})


def run_of(rankings):
    return Run({q: [ScoredDoc(doc, -at) for at, doc in enumerate(docs)] for q, docs in rankings.items()})


@pytest.fixture
def shown():
    """q1 moves from rank 3 to 1, q2 from 1 to 2, q3 is found by neither model."""
    queries = {"q1": Query("q1", "a | b\r\nc"), "q2": Query("q2", "second"), "q3": Query("q3", "w" * 100)}
    documents = {"d1": Document("d1", "text of d1", "One | two"), "d2": Document("d2", "text of d2")}
    qrels = Qrels([Judgment("q1", "d1", 1), Judgment("q2", "d2", 1), Judgment("q3", "d9", 1), Judgment("q3", "d8", 1)])
    base = run_of({"q1": ["d2", "x", "d1"], "q2": ["d2"], "q3": ["d1"]})
    tuned = run_of({"q1": ["d1"], "q2": ["d1", "d2"], "q3": ["d2"]})
    return Shown(queries, documents, qrels, base, tuned)


def test_wins_and_losses_are_listed_with_the_ranks_of_the_positive_that_moved(content, shown):
    text = markdown(content, shown, {"q1": (0.5, 1.0), "q2": (1.0, 0.6)})
    wins, losses = text.split("## Largest wins in nDCG@10\n")[1].split("## Largest losses in nDCG@10\n")
    assert "| second | -40.0 | d2: text of d2 | 1 | 2 | d1: One \\| two |" in losses
    assert "| d1: One \\| two | 3 | 1 | d1: One \\| two |" in wins
    assert "second" not in wins


def test_the_positive_shown_is_the_one_of_the_highest_grade_that_moved(content):
    qrels = Qrels([Judgment("q", "still", 3), Judgment("q", "main", 2), Judgment("q", "side", 1)])
    base, tuned = run_of({"q": ["still", "main", "side"]}), run_of({"q": ["still", "side", "x", "main"]})
    text = markdown(content, Shown({"q": Query("q", "text")}, {}, qrels, base, tuned), {"q": (0.9, 0.8)})
    assert "| text | -10.0 | main | 2 | 4 | still |" in text


def test_many_slices_too_small_to_judge_are_counted_on_the_terminal_and_listed_in_the_report(content):
    content["slices"] = [a_slice(f"topic={number}") | {"large_enough": False} for number in range(11)]
    said = printed(content)
    assert "topic=3" not in said
    assert "11 slices are too small to judge, and left to the report" in said
    assert "topic=3" in markdown(content, None, {})


def test_pipes_and_line_breaks_in_texts_do_not_break_the_table(content, shown):
    text = markdown(content, shown, {"q1": (0.5, 1.0)})
    assert "\n| a \\| b c | " in text
    content["slices"] = [a_slice("topic=a|b\nc")]
    assert "\n| topic=a\\|b c | nDCG@10 |" in markdown(content, None, {})


def test_a_positive_that_no_model_finds_is_the_first_of_the_qrels_and_long_texts_are_cut(content, shown):
    text = markdown(content, shown, {"q3": (0.0, 0.1)})
    assert f"| {'w' * 79}… | +10.0 | d9 | not found | not found | d2: text of d2 |" in text


def test_the_largest_moves_come_first_and_five_of_each_are_shown(content, shown):
    queries = {f"q{number}": Query(f"q{number}", f"query {number}") for number in range(8)}
    many = Shown(queries, {}, Qrels(Judgment(q, "d1", 1) for q in queries), run_of({}), run_of({}))
    values = {f"q{number}": (0.0, number / 10) for number in range(8)}
    text = markdown(content, many, values)
    found = [
        line.split(" | ")[0] for line in text.splitlines() if line.startswith("| query ") and "positive" not in line
    ]
    assert found == [f"| query {number}" for number in (7, 6, 5, 4, 3)]
    assert "losses in" not in text


CONFIG = EvalConfig(measure="MRR", measures=("recall@1",), resamples=999, min_slice_queries=2)


QRELS = Qrels([Judgment(f"q{number}", "d1", 1) for number in range(4)] + [Judgment("q9", "d1", 0)])
RUNS = {
    "base": run_of({"q0": ["d1"], "q1": ["x", "d1"], "q2": ["x", "d1"]}),
    "tuned": run_of({"q0": ["d1"], "q1": ["d1"], "q2": ["x", "d1"], "q3": ["x", "y", "z", "d1"]}),
}
SLICES = [Slice("pair", frozenset(["q0", "q1"])), Slice("one", frozenset(["q3"]))]


@pytest.fixture
def comparison():
    return compare(QRELS, RUNS["base"], RUNS["tuned"], CONFIG, SLICES)


@pytest.fixture
def evaluation():
    """The same, with the text of one query and no documents."""
    asked = Asked({"q1": Query("q1", 'a "b", c')}, QRELS, {}, SLICES, None)
    return evaluate_answers({name: answers_of_run(run, []) for name, run in RUNS.items()}, asked, CONFIG)


RESULT_KEYS = [
    *("n", "n_groups", "base", "tuned", "delta", "low", "high", "confidence", "p_value"),
    *("wins", "ties", "losses", "effect_size", "method", "resamples"),
]


def test_the_keys_of_verdict_json_are_stable(comparison):
    content = verdict_json(decide(comparison, CONFIG), comparison, CONFIG, {"runs": {"base": "a", "tuned": "b"}})
    assert list(content) == [
        *("schema", "outcome", "exit_code", "sentence", "measure", "gain", "queries", "groups", "rules"),
        *(
            "queries_to_decide",
            "resolvable_gain",
            "settings",
            "overall",
            "slices",
            "means_of_slices",
            "counted",
            "runs",
        ),
    ]
    assert content["schema"] == 2
    assert list(content["overall"]["MRR"]) == RESULT_KEYS
    assert list(content["slices"][0]) == ["name", *RESULT_KEYS, "large_enough", "loss_p_value", "harmed"]
    assert [sorted(rule) for rule in content["rules"]] == [["evidence", "name", "outcome"]] * 2
    assert content["counted"] == {
        "queries_without_positives": 1,
        "queries_missing_from_base_run": 1,
        "queries_missing_from_tuned_run": 0,
    }
    assert content["settings"] == CONFIG.resolved()


def test_verdict_json_of_several_systems_names_incumbent_and_contender_and_keeps_its_keys(evaluation, comparison):
    content = evaluation_json(evaluation, {"runs": {"base": "a", "tuned": "b"}})
    alone = verdict_json(decide(comparison, CONFIG), comparison, CONFIG, {})
    assert list(content) == [
        *alone,
        *("incumbent", "contender", "others", "gain_p_values", "bounds", "recall_curves", "sizes", "guard", "runs"),
    ]
    assert (content["incumbent"], content["contender"], content["others"]) == ("base", "tuned", {})
    assert {key: content[key] for key in alone} == alone


def test_verdict_json_holds_no_nan_and_no_infinity(comparison):
    content = verdict_json(decide(comparison, CONFIG), comparison, CONFIG, {})
    # One query alone has no spread: its interval is unbounded, and JSON has no word for that.
    assert (content["slices"][1]["n"], content["slices"][1]["low"], content["slices"][1]["high"]) == (1, None, None)
    text = json.dumps(content, allow_nan=False)
    assert json.loads(text) == content
    assert markdown(json.loads(text), None, {})


def test_a_test_set_of_one_query_still_gives_a_report():
    qrels = Qrels([Judgment("q0", "d1", 1)])
    found = compare(qrels, run_of({"q0": ["x", "d1"]}), run_of({"q0": ["d1"]}), CONFIG)
    content = verdict_json(decide(found, CONFIG), found, CONFIG, {})
    json.dumps(content, allow_nan=False)
    assert (content["outcome"], content["resolvable_gain"], content["queries_to_decide"]) == ("undecided", None, None)
    assert "[-inf, +inf] on 1 test queries: 1 independent queries decide nothing, whatever they show" in markdown(
        content, None, {}
    )


def test_the_per_query_table_has_base_tuned_and_delta_of_every_measure(evaluation, tmp_path):
    path = tmp_path / "per_query.csv"
    write_per_query(path, evaluation)
    with path.open(encoding="utf-8", newline="") as handle:
        found = list(csv.reader(handle))
    kinds = [f"{kind} {name}" for name in ("MRR", "recall@1") for kind in ("base", "tuned", "delta")]
    assert found[0] == ["query_id", "group", "query", *kinds]
    assert found[2] == ["q1", "q1", 'a "b", c', "0.500000", "1.000000", "0.500000", "0.000000", "1.000000", "1.000000"]
    assert len(found) == 5
