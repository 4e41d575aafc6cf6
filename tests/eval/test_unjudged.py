import itertools

import numpy as np
import pytest

from closecall.measures import Measure, per_query
from closecall.records import Judgment, Qrels, Run, ScoredDoc
from eval.answers import answers_of_run
from eval.unjudged import bounds, flattens_at, recall_curve


def answers(ranking):
    return answers_of_run(Run({"q": [ScoredDoc(doc, -at) for at, doc in enumerate(ranking)]}), [])


def brute(ranking, grades, measure, positive_from):
    """The extremes over every way to judge the unjudged documents of the top k."""
    top = [doc for doc in ranking[: measure.cutoff] if doc not in grades]
    run = Run({"q": [ScoredDoc(doc, -at) for at, doc in enumerate(ranking)]})
    found = []
    for chosen in itertools.product([0, 1], repeat=len(top)):
        more = {doc: positive_from for doc, yes in zip(top, chosen, strict=True) if yes}
        qrels = Qrels([Judgment("q", doc, grade) for doc, grade in (grades | more).items()], positive_from)
        found.append(float(per_query(qrels, run, [measure]).values[str(measure)][0]))
    return min(found), max(found)


@pytest.mark.parametrize("name", ["nDCG@5", "recall@4", "hit@3", "MRR@5", "MAP@5", "precision@4"])
@pytest.mark.parametrize("positive_from", [1, 2])
def test_bounds_are_the_extremes_over_every_way_to_judge_the_top(name, positive_from):
    rng, measure = np.random.default_rng(7), Measure.parse(name)
    for _ in range(40):
        ranking = [f"d{n}" for n in rng.permutation(8)]
        grades = {f"d{n}": int(rng.integers(0, 4)) for n in rng.choice(9, 4, replace=False)} | {"d8": 3}
        qrels = Qrels([Judgment("q", doc, grade) for doc, grade in grades.items()], positive_from)
        (found,) = bounds(answers(ranking), qrels, [measure], "exp")
        low, high = brute(ranking, grades, measure, positive_from)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
        assert found.low <= found.value <= found.high


def test_where_all_of_the_top_is_judged_the_bounds_are_the_value():
    qrels = Qrels([Judgment("q", "a", 1), Judgment("q", "b", 0)])
    (found,) = bounds(answers(["b", "a", "x"]), qrels, [Measure.parse("recall@2")], "exp")
    assert (found.low, found.value, found.high, found.judged, found.mostly_unjudged) == (1, 1, 1, 1, False)


def test_a_top_less_than_half_judged_is_warned_of():
    qrels = Qrels([Judgment("q", "a", 1)])
    (found,) = bounds(answers(["a", "x", "y"]), qrels, [Measure.parse("precision@3")], "exp")
    assert (found.judged, found.mostly_unjudged) == (pytest.approx(1 / 3), True)
    assert (found.low, found.high) == (pytest.approx(1 / 3), 1.0)


def test_the_recall_curve_is_mean_recall_at_each_k_and_flattens_where_ten_ranks_add_less_than_a_point():
    qrels = Qrels([Judgment("q", "a", 1), Judgment("q", "b", 1)])
    curve = recall_curve(answers(["a", "x", "b"]), qrels, 30)
    np.testing.assert_allclose(curve[:4], [0.5, 0.5, 1.0, 1.0])
    assert curve.shape == (30,)
    assert flattens_at(curve) == 3
    assert flattens_at(np.arange(1, 31) / 30) == 30
