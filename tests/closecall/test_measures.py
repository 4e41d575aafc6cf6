"""Promises of eval/measures.py. Rankings are lists of document ids, best first; expected values are worked by hand."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from closecall.errors import ConfigError, DataError
from closecall.measures import FORMULAS, Gain, Measure, QueryValues, dcg, parse_measures, per_query, per_query_of_rows
from closecall.records import Judgment, Qrels, Run, ScoredDoc


def ranked_run(rankings: dict[str, Sequence[str]]) -> Run:
    """A run with scores 0, -1, -2, ... in the order given."""
    return Run({q: [ScoredDoc(doc_id, -float(i)) for i, doc_id in enumerate(ids)] for q, ids in rankings.items()})


def graded(grades: dict[str, dict[str, int]], positive_from: int = 1) -> Qrels:
    return Qrels((Judgment(q, d, grade) for q, docs in grades.items() for d, grade in docs.items()), positive_from)


def one_query(grades: dict[str, int], ranking: Sequence[str], names: Sequence[str], gain: Gain = "exp") -> list[float]:
    """The values of the named measures for a single query."""
    values = per_query(graded({"q": grades}), ranked_run({"q": ranking}), parse_measures(names), gain)
    return [float(values.values[name][0]) for name in names]


SHOP_QRELS = {
    "q1": {"policy-refunds": 1, "faq-returns": 1},
    "q2": {"acct-recovery": 1},
    "q3": {"pricing-enterprise": 1},
}
SHOP_RUN = {
    "q1": ["policy-refunds", "faq-shipping", "faq-returns"],
    "q2": ["faq-login", "acct-recovery", "policy-privacy"],
    "q3": ["faq-login", "policy-refunds", "pricing-enterprise"],
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("recall@1", (1 / 2 + 0 + 0) / 3),  # 0.1667
        ("recall@5", (2 / 2 + 1 + 1) / 3),  # 1.0
        ("MRR", (1 + 1 / 2 + 1 / 3) / 3),  # 0.6111
        ("hit@1", (1 + 0 + 0) / 3),
        ("hit@2", (1 + 1 + 0) / 3),
        ("MRR@2", (1 + 1 / 2 + 0) / 3),
        ("precision@3", (2 / 3 + 1 / 3 + 1 / 3) / 3),
        ("precision@5", (2 / 5 + 1 / 5 + 1 / 5) / 3),  # by k, though three documents are returned
        ("MAP", ((1 / 1 + 2 / 3) / 2 + 1 / 2 + 1 / 3) / 3),
        ("MAP@2", (1 / 2 + 1 / 2 + 0) / 3),  # q1: the positive at rank 1 of two positives
        ("judged@2", (1 / 2 + 1 / 2 + 0) / 3),
        ("judged@5", (2 / 3 + 1 / 3 + 1 / 3) / 3),  # by the three returned
    ],
)
def test_the_shop_example_gives_the_means_worked_by_hand(name, expected):
    measure = Measure.parse(name)
    assert per_query(graded(SHOP_QRELS), ranked_run(SHOP_RUN), [measure]).mean(measure) == pytest.approx(expected)


def test_the_shop_example_gives_the_three_numbers_of_the_design():
    values = per_query(
        graded(SHOP_QRELS), ranked_run(SHOP_RUN), names := parse_measures(["recall@1", "recall@5", "MRR"])
    )
    assert [round(values.mean(measure), 4) for measure in names] == [0.1667, 1.0, 0.6111]


def test_first_positives_at_ranks_1_2_4_and_never_give_mrr_0_4375():
    qrels = graded({q: {"yes": 1} for q in "abcd"})
    run = ranked_run({"a": ["yes", "n1"], "b": ["n1", "yes"], "c": ["n1", "n2", "n3", "yes"], "d": ["n1", "n2"]})
    values = per_query(qrels, run, [Measure("MRR")])
    assert values.values["MRR"].tolist() == [1, 1 / 2, 1 / 4, 0]
    assert values.mean(Measure("MRR")) == 0.4375  # (1 + 0.5 + 0.25 + 0) / 4


def test_recall_divides_by_all_positives():
    grades = dict.fromkeys("ABCDE", 1)
    # A and B of five found: 2/5. At k = 2 only A of five: 1/5, not 1/2.
    assert one_query(grades, list("XAYZB"), ["recall@5", "recall@2"]) == [0.40, 0.20]


def test_ndcg_of_the_graded_example_is_0_535():
    # returned [1,0,3,2,0]: 1/log2(2) + 0 + 7/log2(4) + 3/log2(5) + 0 = 1 + 3.5 + 1.2920 = 5.792
    # ideal    [3,2,2,1,0]: 7/1 + 3/log2(3) + 3/log2(4) + 1/log2(5)  = 7 + 1.8928 + 1.5 + 0.4307 = 10.823
    assert dcg(np.array([1, 0, 3, 2, 0])) == pytest.approx(5.792, abs=5e-4)
    assert dcg(np.array([3, 2, 2, 1, 0])) == pytest.approx(10.823, abs=5e-4)
    grades = {"a": 1, "b": 0, "c": 3, "d": 2, "not-found": 2}
    assert one_query(grades, ["a", "b", "c", "d", "unjudged"], ["nDCG@5"])[0] == pytest.approx(0.535, abs=5e-4)


def test_linear_gain_takes_the_grade_itself():
    # returned [1, 3]: 1 + 3/log2(3); ideal [3, 1]: 3 + 1/log2(3)
    expected = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    assert one_query({"a": 1, "c": 3}, ["a", "c"], ["nDCG@2"], "linear") == [pytest.approx(expected)]
    # exponential: 1 + 7/log2(3) over 7 + 1/log2(3)
    expected = (1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3))
    assert one_query({"a": 1, "c": 3}, ["a", "c"], ["nDCG@2"]) == [pytest.approx(expected)]


def test_map_divides_by_all_positives_even_beyond_the_cutoff():
    # positives at ranks 1 and 3 of three positives, k = 3: (1/1 + 2/3) / 3
    assert one_query({"a": 1, "b": 1, "c": 1}, ["a", "x", "b"], ["MAP@3"]) == [pytest.approx((1 + 2 / 3) / 3)]


def test_judged_counts_grade_0_and_divides_by_the_documents_returned():
    # a (grade 1) and z (grade 0) are judged, x is not: 2/3 of the three returned; at k = 2: z and x, 1/2
    assert one_query({"a": 1, "z": 0}, ["z", "x", "a"], ["judged@10", "judged@2"]) == [2 / 3, 1 / 2]


def test_grades_under_positive_from_are_no_positives_but_keep_their_gain():
    qrels, run = graded({"q": {"a": 1, "b": 2}}, positive_from=2), ranked_run({"q": ["a", "b"]})
    values = per_query(qrels, run, parse_measures(["MRR", "recall@1", "nDCG@2"]))
    assert values.values["MRR"].tolist() == [1 / 2]  # b at rank 2
    assert values.values["recall@1"].tolist() == [0]
    # gains 1 and 3: (1 + 3/log2(3)) over (3 + 1/log2(3))
    expected = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    assert values.values["nDCG@2"].tolist() == [pytest.approx(expected)]


def test_an_unjudged_document_is_no_positive_even_when_positives_start_at_grade_0():
    qrels, run = graded({"q": {"a": 0}}, positive_from=0), ranked_run({"q": ["unjudged", "a"]})
    values = per_query(qrels, run, parse_measures(["MRR", "nDCG@2"]))
    assert (values.values["MRR"].tolist(), values.values["nDCG@2"].tolist()) == ([1 / 2], [0])


def test_the_qrels_fix_the_scored_queries_and_every_other_query_is_listed():
    qrels = graded({"late": {"d1": 1}, "no-positive": {"d1": 0}, "absent": {"d1": 1}, "empty": {"d1": 1}})
    run = ranked_run({"stranger": ["d1"], "no-positive": ["d1"], "empty": [], "late": ["d1"]})
    values = per_query(qrels, run, [Measure("hit", 1)])
    assert values.query_ids == ("late", "absent", "empty")  # the order of the qrels
    assert values.values["hit@1"].tolist() == [1, 0, 0]
    assert values.mean(Measure("hit", 1)) == 1 / 3  # the missing ones count as 0, no-positive does not count
    assert values.without_positives == ("no-positive",)
    assert values.missing_from_run == ("absent", "empty")
    assert values.unjudged_queries == ("stranger",)


def test_a_query_missing_from_the_run_scores_0_on_every_measure():
    measures = [Measure(name, 10) for name in FORMULAS]
    values = per_query(graded({"q": {"d1": 1}}), Run({}), [*measures, Measure("MRR"), Measure("MAP")])
    assert {name: array.tolist() for name, array in values.values.items()} == {name: [0] for name in values.values}


def test_a_mean_over_no_queries_is_refused():
    values = per_query(graded({"q": {"d1": 1}}, positive_from=2), Run({}), [Measure("MRR")])
    with pytest.raises(DataError, match="none of the 1 queries of the qrels has a positive; check the qrels and pos"):
        values.mean(Measure("MRR"))


def test_of_a_document_listed_twice_only_the_better_rank_counts():
    # a x a b is read as a x b: recall@2 = 1/2, MAP = (1/1 + 2/3) / 2
    values = one_query({"a": 1, "b": 1}, ["a", "x", "a", "b"], ["recall@2", "MAP", "nDCG@4"])
    assert values[:2] == [1 / 2, pytest.approx((1 + 2 / 3) / 2)]
    assert values[2] == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))


@pytest.mark.parametrize("order", [["d1", "d2", "d3"], ["d3", "d2", "d1"], ["d2", "d3", "d1"]])
def test_ties_go_by_doc_id_ascending_whatever_the_input_order(order):
    run = Run({"q": [ScoredDoc(doc_id, 0.5) for doc_id in order]})
    values = per_query(graded({"q": {"d2": 1}}), run, [Measure("MRR")])
    assert values.values["MRR"].tolist() == [1 / 2]  # d1, d2, d3


@pytest.mark.parametrize("seed", range(5))
def test_a_perfect_ranking_is_exactly_1_with_any_tail(seed):
    # a sum that adds in blocks (np.sum, np.dot) gives 0.9999999999999999 for some lengths of the tail
    best_first = sorted(np.random.default_rng(seed).integers(1, 4, size=30).tolist(), reverse=True)
    grades = {f"d{i}": grade for i, grade in enumerate(best_first)}
    values = [one_query(grades, [*grades, *(f"x{i}" for i in range(tail))], ["nDCG@100"]) for tail in range(60)]
    assert values == [[1.0]] * 60


def test_a_grade_too_large_for_the_exponential_gain_is_refused_but_fits_the_linear_one():
    with pytest.raises(DataError, match=r"query 'q': grade 1001 is too large .* use linear gain"):
        one_query({"a": 1001}, ["a"], ["nDCG@1"])
    assert one_query({"a": 1001}, ["a"], ["nDCG@1"], "linear") == [1.0]
    assert one_query({"a": 1000}, ["a"], ["nDCG@1"]) == [1.0]


def test_an_unknown_gain_is_refused():
    with pytest.raises(ConfigError, match=r"gain is 'square', expected 'exp' .* or 'linear'"):
        one_query({"a": 1}, ["a"], ["nDCG@1"], "square")  # type: ignore[arg-type]


# Cross-checks on random runs. Scores are whole numbers, all distinct, so that no tie rule and no float32 matters.


def random_case(seed: int, positive_from: int = 1, shortest: int = 0, empty_queries: bool = True) -> tuple[Qrels, Run]:
    """100 queries of 1 to 30 judgments with grades 0 to 3 and 100 rankings of up to 60 of 80 documents."""
    rng = np.random.default_rng(seed)
    grades: dict[str, dict[str, int]] = {}
    rankings: dict[str, list[ScoredDoc]] = {}
    for number in range(100):
        query_id, docs = f"q{number:03}", [f"d{i:02}" for i in range(80)]
        judged = rng.permutation(docs)[: rng.integers(1, 31)]
        grades[query_id] = {str(doc_id): int(rng.integers(0, 4)) for doc_id in judged}
        if rng.random() < 0.1 and empty_queries:
            continue  # a query that the run lacks
        found = rng.permutation(docs)[: rng.integers(max(shortest, 1), 61)]
        scores = rng.permutation(len(found))
        rankings[query_id] = [ScoredDoc(str(d), float(s)) for d, s in zip(found, scores, strict=True)]
    return graded(grades, positive_from), Run(rankings)


def as_dicts(qrels: Qrels, run: Run) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    return {q: dict(qrels.grades(q)) for q in qrels}, {q: dict(run.ranking(q)) for q in run}


def largest_difference(ours: QueryValues, name: str, theirs: Callable[[str], float]) -> float:
    """The largest difference over all scored queries."""
    return max(abs(ours.values[name][i] - theirs(q)) for i, q in enumerate(ours.query_ids))


TREC_NAMES = {
    **{f"nDCG@{k}": f"ndcg_cut_{k}" for k in (1, 5, 10, 100)},
    **{f"recall@{k}": f"recall_{k}" for k in (1, 5, 10, 100)},
    **{f"precision@{k}": f"P_{k}" for k in (1, 5, 10, 100)},
    **{f"MAP@{k}": f"map_cut_{k}" for k in (1, 5, 10, 100)},
    **{f"hit@{k}": f"success_{k}" for k in (1, 5, 10)},
    "MRR": "recip_rank",
    "MAP": "map",
}


@pytest.mark.parametrize("positive_from", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_values_agree_with_trec_eval_with_linear_gain(seed, positive_from):
    qrels, run = random_case(seed, positive_from)
    qrels_dict, run_dict = as_dicts(qrels, run)
    names = {
        trec.rsplit("_", 1)[0] + "." + trec.rsplit("_", 1)[1] for trec in TREC_NAMES.values() if trec[-1].isdigit()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrels_dict, names | {"recip_rank", "map"}, relevance_level=positive_from)
    theirs = evaluator.evaluate(run_dict)
    ours = per_query(qrels, run, parse_measures(TREC_NAMES), "linear")
    assert len(ours.missing_from_run) > 0
    assert len(ours.query_ids) > 60
    for name, trec in TREC_NAMES.items():
        difference = largest_difference(ours, name, lambda q, trec=trec: theirs[q][trec] if q in run else 0.0)
        assert difference < 1e-12, name


def test_1000_rankings_full_of_ties_agree_with_trec_eval_once_ties_go_by_document_id():
    """trec_eval itself puts the larger id first, so it is given the ranks that ours must have made of the ties."""
    rng = np.random.default_rng(11)
    docs = [f"d{i:02}" for i in range(40)]
    grades: dict[str, dict[str, int]] = {}
    rankings: dict[str, list[ScoredDoc]] = {}
    for number in range(1100):
        query_id = f"q{number:04}"
        grades[query_id] = {str(d): int(rng.integers(0, 4)) for d in rng.permutation(docs)[:12]}
        if rng.random() < 0.05:
            continue  # a query that the run lacks
        found = rng.permutation(docs)[: rng.integers(1, 31)]
        rankings[query_id] = [ScoredDoc(str(d), float(rng.integers(0, 5))) for d in found]
    qrels = graded(grades)
    strict = {
        q: {d.doc_id: -float(rank) for rank, d in enumerate(sorted(r, key=lambda d: (-d.score, d.doc_id)))}
        for q, r in rankings.items()
    }
    measures = {"ndcg_cut.10", "recall.10", "P.10", "map_cut.10", "success.5", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(dict(grades), measures).evaluate(strict)
    names = ("nDCG@10", "recall@10", "precision@10", "MAP@10", "hit@5", "MRR")
    ours = per_query(qrels, Run(rankings), parse_measures(names), "linear")
    assert len(ours.query_ids) - len(ours.missing_from_run) >= 1000
    for name in names:
        assert (
            largest_difference(ours, name, lambda q, t=TREC_NAMES[name]: theirs[q][t] if q in rankings else 0.0) < 1e-12
        )


RANX_NAMES = {
    "nDCG@10": "ndcg_burges@10",
    "nDCG@100": "ndcg_burges@100",
    "MRR": "mrr",
    "recall@10": "recall@10",
    "hit@5": "hit_rate@5",
    "precision@10": "precision@10",
    "MAP@10": "map@10",
}


RANX_SCRIPT = """
import json, sys
import ranx
qrels, run, names = json.load(sys.stdin)
arrays = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), names, return_mean=False)
json.dump({name: dict(zip(sorted(qrels), map(float, arrays[name]), strict=True)) for name in names}, sys.stdout)
"""


def ranx_values(qrels: Qrels, run: Run, names: list[str]) -> dict[str, dict[str, float]]:
    """Values by ranx's measure name and query; a query that is not in the run is left out.

    In a process of its own without numba's compiler: compiling takes 77 s on a fresh machine, interpreting 3 s.
    """
    qrels_dict, run_dict = as_dicts(qrels, run)
    request = json.dumps([{q: qrels_dict[q] for q in run_dict}, run_dict, names])
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", RANX_SCRIPT]
    answer = subprocess.run(command, input=request, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    values: dict[str, dict[str, float]] = json.loads(answer.stdout)
    return values


def test_values_agree_with_ranx_with_exponential_and_linear_gain():
    qrels, run = random_case(seed=4, shortest=10)  # ranx divides precision by the documents returned, we by k
    theirs = ranx_values(qrels, run, [*RANX_NAMES.values(), "ndcg@10"])
    ours = per_query(qrels, run, parse_measures(RANX_NAMES))
    assert len(ours.missing_from_run) > 0
    for name, ranx_name in RANX_NAMES.items():
        difference = largest_difference(ours, name, lambda q, column=theirs[ranx_name]: column.get(q, 0.0))
        assert difference < 1e-12, name
    linear = per_query(qrels, run, [Measure("nDCG", 10)], "linear")
    assert largest_difference(linear, "nDCG@10", lambda q: theirs["ndcg@10"].get(q, 0.0)) < 1e-12


# Properties.

DOCS = [f"d{i}" for i in range(12)]
ALL_MEASURES = parse_measures([f"{name}@{k}" for name in FORMULAS for k in (1, 3, 5, 10)] + ["MRR", "MAP"])
RANK_MEASURES = tuple(measure for measure in ALL_MEASURES if measure.name != "judged")
grade_maps = st.dictionaries(st.sampled_from(DOCS), st.integers(0, 4), min_size=1)
rankings_of_docs = st.lists(st.sampled_from(DOCS), unique=True)
gains = st.sampled_from(["exp", "linear"])


@given(grades=grade_maps, ranking=rankings_of_docs, gain=gains, positive_from=st.integers(0, 3))
def test_all_values_lie_between_0_and_1(grades, ranking, gain, positive_from):
    values = per_query(graded({"q": grades}, positive_from), ranked_run({"q": ranking}), ALL_MEASURES, gain)
    assert all(((array >= 0) & (array <= 1)).all() for array in values.values.values())


@given(grades=grade_maps, ranking=rankings_of_docs, gain=gains, positive_from=st.integers(1, 3))
def test_raising_a_positive_above_a_non_positive_lowers_no_measure(grades, ranking, gain, positive_from):
    qrels = graded({"q": grades}, positive_from)
    positives = set(qrels.positives("q"))
    before = per_query(qrels, ranked_run({"q": ranking}), RANK_MEASURES, gain)
    for i in range(1, len(ranking)):
        if ranking[i] in positives and ranking[i - 1] not in positives:
            swapped = [*ranking[: i - 1], ranking[i], ranking[i - 1], *ranking[i + 1 :]]
            after = per_query(qrels, ranked_run({"q": swapped}), RANK_MEASURES, gain)
            for name, array in before.values.items():
                assert after.values[name][0] >= array[0] - 1e-12, name


# Names.


@pytest.mark.parametrize("measure", [*ALL_MEASURES, Measure("nDCG", 1000)], ids=str)
def test_a_printed_measure_parses_back_to_itself_in_any_case(measure):
    parsed = [Measure.parse(text) for text in (str(measure), str(measure).upper(), f" {str(measure).lower()} ")]
    assert set(parsed) == {measure}


@pytest.mark.parametrize(
    ("alias", "canonical"),
    [
        ("ndcg@10", "nDCG@10"),
        ("R@10", "recall@10"),
        ("p@5", "precision@5"),
        ("rr@10", "MRR@10"),
        ("mrr", "MRR"),
        ("success@5", "hit@5"),
        ("ap@100", "MAP@100"),
        ("map@100", "MAP@100"),
        ("recall @ 05", "recall@5"),
    ],
)
def test_the_usual_other_names_mean_the_canonical_measure(alias, canonical):
    assert str(Measure.parse(alias)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndgc@10", r"measure 'ndgc@10': no measure is called 'ndgc'; did you mean 'nDCG@10'\? The names are nDCG@k, "),
        ("recal@x", r"no measure is called 'recal'; did you mean 'recall@x'\?"),
        ("BLEU", r"measure 'BLEU': no measure is called 'BLEU'\. The names are .*MRR, MRR@k.*judged@k"),
        ("", "measure '': no measure is called ''"),
        ("nDCG", "measure 'nDCG' needs a cutoff; write it like 'nDCG@10'"),
        ("recall", "measure 'recall' needs a cutoff"),
        ("hit", "measure 'hit' needs a cutoff"),
        ("precision", "measure 'precision' needs a cutoff"),
        ("judged", "measure 'judged' needs a cutoff"),
        ("hit@0", "measure 'hit@0': the cutoff is '0', not a whole number from 1 up"),
        ("MRR@", "measure 'MRR@': the cutoff is '', not"),
        ("MAP@-1", "the cutoff is '-1', not"),
        ("MAP@1.5", "the cutoff is '1.5', not"),
        ("nDCG@5@6", "the cutoff is '5@6', not"),
        ("nDCG@²", "the cutoff is '²', not"),
    ],
)
def test_a_bad_name_is_answered_with_what_was_found_and_what_is_expected(text, message):
    with pytest.raises(ConfigError, match=message):
        Measure.parse(text)


@pytest.mark.parametrize("cutoff", [0, -3, 2.0, True])
def test_a_measure_cannot_be_built_with_a_cutoff_that_is_no_rank(cutoff):
    with pytest.raises(ConfigError, match="not a whole number from 1 up"):
        Measure("nDCG", cutoff)


def test_a_measure_cannot_be_built_under_another_spelling():
    with pytest.raises(ConfigError, match=r"no measure is called 'ndcg'; did you mean 'nDCG@10'\?"):
        Measure("ndcg", 10)


def test_all_bad_names_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        parse_measures(["nDCG@10", "recal@5", "hit@0", "judged"])
    first, *faults = str(caught.value).splitlines()
    assert first == "measures: 3 faults"
    for fault, found in zip(faults, ["'recal@5'", "'hit@0'", "'judged'"], strict=True):
        assert f"measure {found}" in fault


def test_measures_keep_their_order_and_two_spellings_of_one_measure_count_once():
    assert [str(m) for m in parse_measures(["MRR", "ndcg@10", "nDCG@10", "rr"])] == ["MRR", "nDCG@10"]


@given(st.integers(0, 10_000))
def test_hits_have_the_values_of_the_run_they_make(seed):
    rng = np.random.default_rng(seed)
    doc_ids = [f"d{number}" for number in range(12)]
    names = [f"q{number}" for number in range(5)]
    judged = {q: {d: int(rng.integers(0, 4)) for d in rng.choice([*doc_ids, "gone"], 4, replace=False)} for q in names}
    asked = [q for q in [*names, "unjudged"] if rng.random() < 0.8]
    rows = np.asarray([rng.permutation(12)[:8] for _ in asked], dtype=np.int64).reshape(len(asked), 8)
    rows[rng.random(rows.shape) < 0.1] = -1
    rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)  # nothing comes last
    run = ranked_run({q: [doc_ids[row] for row in line if row >= 0] for q, line in zip(asked, rows, strict=True)})
    measures = parse_measures(["nDCG@5", "recall@3", "hit@2", "MRR", "MAP", "MAP@4", "precision@6", "judged@4"])
    qrels = graded(judged)
    by_run = per_query(qrels, run, measures)
    by_rows = per_query_of_rows(qrels, rows, asked, doc_ids, measures)
    assert by_rows.query_ids == by_run.query_ids
    assert by_rows.missing_from_run == by_run.missing_from_run
    for measure in measures:
        np.testing.assert_array_equal(by_rows.values[str(measure)], by_run.values[str(measure)])
