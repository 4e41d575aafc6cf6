"""Rulings over several contenders, each a run whose one positive stands at a rank per query."""

import pytest

from closecall.errors import DataError
from closecall.records import Judgment, Qrels, Query, Run, ScoredDoc
from eval.answers import answers_of_run
from eval.config import EvalConfig
from eval.evaluation import Asked, evaluate_answers

CONFIG = EvalConfig(measure="MRR", measures=("recall@1",), resamples=999, min_slice_queries=10)
QUERIES = [f"q{number}" for number in range(40)]


def answers(ranks):
    found = {
        q: [ScoredDoc("pos" if at == rank else f"x{at}", -at) for at in range(1, 6)]
        for q, rank in zip(QUERIES, ranks, strict=True)
    }
    return answers_of_run(Run(found), [])


def evaluated(config=CONFIG, **contenders):
    """The evaluation of contenders given as the rank of each query's positive."""
    asked = Asked({q: Query(q, "") for q in QUERIES}, Qrels(Judgment(q, "pos", 1) for q in QUERIES), {}, (), None)
    return evaluate_answers({name: answers(ranks) for name, ranks in contenders.items()}, asked, config)


BASE = [2] * 40
BEST = [1] * 36 + [2] * 4
GOOD = [1] * 30 + [2] * 10
WORSE = [3] * 36 + [2] * 4
UNSURE = [1] * 10 + [3] * 14 + [2] * 16


def test_the_best_of_those_that_pass_is_adopted_and_the_choice_is_called_optimistic():
    found = evaluated(base=BASE, good=GOOD, best=BEST, worse=WORSE, unsure=UNSURE)
    assert {name: verdict.outcome for name, verdict in found.verdicts.items()} == {
        "good": "adopt",
        "best": "adopt",
        "worse": "reject",
        "unsure": "undecided",
    }
    assert (found.ruling.outcome, found.ruling.contender, found.ruling.exit_code) == ("adopt", "best", 0)
    assert found.ruling.sentence.startswith("adopt best in place of base: MRR 50.0 -> 95.0, +45.0 points [")
    assert found.ruling.sentence.endswith(
        "; it was chosen among 4 on these same queries by 7.5 points, so its gain is an optimistic one "
        "(the others: 1 adopt, 1 reject, 1 undecided)."
    )


def test_none_is_adopted_where_none_passes():
    undecided = evaluated(base=BASE, worse=WORSE, unsure=UNSURE).ruling
    assert (undecided.outcome, undecided.contender, undecided.exit_code) == ("undecided", "unsure", 11)
    rejected = evaluated(base=BASE, worse=WORSE, worst=[5] * 40).ruling
    assert (rejected.outcome, rejected.contender, rejected.exit_code) == ("reject", "worse", 10)
    assert rejected.sentence.startswith("reject all 2 contenders; the best, worse: MRR 50.0 -> 35.0")


def test_a_single_contender_speaks_for_itself():
    found = evaluated(base=BASE, tuned=BEST)
    assert found.ruling.sentence == found.verdicts["tuned"].sentence
    assert found.p_values == {"tuned": None}


def test_another_incumbent_is_compared_with():
    found = evaluated(CONFIG.model_copy(update={"incumbent": "good"}), base=BASE, good=GOOD, best=BEST)
    assert list(found.comparisons) == ["base", "best"]
    assert found.comparisons["best"].deciding.delta == pytest.approx(0.5 * 6 / 40)


def test_an_incumbent_that_did_not_answer_is_named():
    with pytest.raises(DataError, match="'base' and at least one contender are needed; found tuned, other"):
        evaluated(tuned=BEST, other=GOOD)
