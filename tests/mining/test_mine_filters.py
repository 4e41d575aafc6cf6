"""Windows, margins, near copies and the guide in a miner: whom they drop, whom they spare, and who takes the place."""

import numpy as np
import pytest

from mining.guide import EncoderGuide
from mining.mine import Outside

WORDS = " ".join(f"w{n}" for n in range(10))
CROSS = {"cross_encoder": "x"}


class Guide:
    """Gives documents the scores it is told, whatever the query, and remembers what it was asked: (query, doc_id)."""

    def __init__(self, corpus, **scores):
        self.doc_ids, self.of, self.calls = list(corpus), scores, []

    def scores(self, queries, rows):
        asked = [self.doc_ids[row] for row in rows.tolist()]
        self.calls.append(list(zip(queries.tolist(), asked, strict=True)))
        return np.asarray([self.of.get(doc_id, 0.0) for doc_id in asked])


@pytest.fixture(scope="session")
def guided(mine):
    """Mines with a guide that gives these scores; returns what was written and what the guide was asked."""

    def guided(corpus, judged, *arguments, scores, guide=CROSS, **settings):
        made = Guide(corpus, **scores)
        return mine(corpus, judged, *arguments, outside=Outside(guide=made), guide=guide, **settings), made.calls

    return guided


SUSPICIONS = {
    "margin_fraction": {"margin_fraction": 0.1},
    "margin": {"margin": 0.1},
    "min_rank": {"min_rank": 2},
    "max_rank": {"max_rank": 1},
    "min_score": {"min_score": 0.75},
    "max_score": {"max_score": 0.85},
    "near_copy": {"near_copy": 0.9},
    "guide": {"guide": CROSS},
}


@pytest.mark.parametrize("name", SUSPICIONS)
def test_no_suspicion_applies_to_a_document_that_was_judged_not_relevant(mine, name):
    far = name in ("max_rank", "min_score")
    zero = ("other words", 0.7) if far else (WORDS.removesuffix(" w9"), 0.9)
    corpus = {"zero": zero, "p": (WORDS, 0.8), "n": ("far", 0.6)}
    outside = Outside(guide=Guide(corpus, p=0.5, zero=0.9)) if name == "guide" else None
    settings = {"near_copy": None, "outside": outside} | SUSPICIONS[name]
    assert mine(corpus, {"q": {"p": 1}}, **settings).kept == [[]] if far else [["n"]]
    assert mine(corpus, {"q": {"p": 1, "zero": 0}}, **settings).kept == [["zero"]]


def test_a_copy_of_a_positive_is_no_negative_even_if_it_was_judged_not_relevant(mine):
    mined = mine({"p": ("Answer", 0.8), "zero": ("answer", 0.7)}, {"q": {"p": 1, "zero": 0}})
    assert (mined.kept, mined.reasons["zero"]) == ([[]], "same_text")


def test_documents_judged_not_relevant_come_in_although_no_search_finds_them(mine, plain):
    judged = {"q": {"d1": 1, "d9": 0}}
    mined = mine(plain(9), judged, 2, 2, max_depth=2)
    assert mined.kept == [["d2", "d9"]]
    assert [said.source for said in mined.triples[0].negatives[1].found_by] == ["judged"]
    assert mine(plain(9), judged, 2, 2, max_depth=2, sources=["dense"]).kept == [["d2"]]


def test_the_rank_window_asks_for_the_best_rank_of_any_source(mine, run, plain):
    # ranks of d1 to d6: dense 1 to 6; run 2, -, -, 3, 1, -
    settings = {"sources": ["dense", {"source": {"run": "run"}}], "outside": run(q=["d5", "d1", "d4"])}
    mined = mine(plain(6), {"q": {"d2": 1}}, 2, 6, min_rank=2, max_rank=3, **settings)
    assert mined.kept == [["d3", "d4"]]
    assert mined.reasons == dict.fromkeys(("d1", "d5", "d6"), "outside_ranks") | {"d2": "judged_positive"}


def test_what_is_drawn_at_random_has_no_rank_that_could_be_outside(mine, plain):
    sources = [{"source": "dense", "depth": 2}, {"source": "random", "depth": 6}]
    mined = mine(plain(6), {"q": {"d1": 1}}, 2, 2, max_rank=2, max_depth=2, sources=sources)
    assert mined.kept == [["d2", "d3"]]
    assert mined.reasons == {"d1": "judged_positive"} | dict.fromkeys(("d4", "d5", "d6"), "over_quota")


def test_a_query_is_searched_until_the_rank_window_has_enough(mine, plain):
    assert mine(plain(18), {"q": {"d1": 1}}, 2, 2, min_rank=11).kept == [["d11", "d12"]]


def test_the_score_window_keeps_what_lies_between(mine, plain):
    # 0.85, 0.80, 0.75, 0.70, 0.65
    mined = mine(plain(6), {"q": {"d1": 1}}, 2, 6, min_score=0.75, max_score=0.8)
    assert mined.kept == [["d3", "d4"]]
    assert mined.reasons == dict.fromkeys(("d2", "d5", "d6"), "outside_scores") | {"d1": "judged_positive"}


def test_an_absolute_margin_counts_from_the_positive(mine, plain):
    mined = mine(plain(6), {"q": {"d2": 1}}, margin=0.1)  # 0.85 - 0.1: d4 has 0.75
    assert (mined.kept, mined.reasons["d3"]) == ([["d4"]], "within_margin")


COPIES = {
    "p": (WORDS, 0.9),
    "copy": (WORDS.removesuffix(" w9"), 0.8),
    "n1": ("other words", 0.7),
    "late": (WORDS.removesuffix(" w9"), 0.6),
}


def test_a_near_copy_is_dropped_and_the_next_takes_its_place(mine):
    mined = mine(COPIES, {"q": {"p": 1}}, near_copy=0.9)
    assert mined.kept == [["n1"]]
    assert mined.reasons["copy"] == "near_copy"
    assert mine(COPIES, {"q": {"p": 1}}, near_copy=0.91).kept == [["copy"]]
    assert mine(COPIES, {"q": {"p": 1}}, near_copy=None).kept == [["copy"]]


def test_a_near_copy_that_would_not_be_chosen_anyway_is_not_looked_at(mine):
    assert mine(COPIES, {"q": {"p": 1}}, near_copy=0.9).reasons["late"] == "over_quota"


def test_by_default_near_copies_are_dropped(mine):
    assert mine(COPIES, {"q": {"p": 1}}).kept == [["n1"]]


def test_the_guide_drops_by_a_margin_on_its_own_scores(guided, plain):
    # 80 - 80 * 0.05 = 76
    scores = {"d1": 80.0, "d2": 77.0, "d3": 76.0, "d4": -5.0}
    mined, _ = guided(plain(4), {"q": {"d1": 1}}, 2, scores=scores)
    assert mined.kept == [["d3", "d4"]]
    assert mined.reasons["d2"] == "within_guide_margin"
    triple = mined.triples[0]
    assert (triple.positive_guide_score, [n.guide_score for n in triple.negatives]) == (80.0, [76.0, -5.0])
    assert {row.doc_id: row.guide_score for row in mined.dropped} == {"d1": None, "d2": 77.0}


def test_the_guide_has_an_absolute_margin_too(guided, plain):
    guide = CROSS | {"margin_fraction": None, "margin": 30}
    mined, _ = guided(plain(4), {"q": {"d1": 1}}, scores={"d1": 80.0, "d2": 51.0, "d3": 50.0}, guide=guide)
    assert mined.kept == [["d3"]]


def test_the_guide_is_asked_only_about_what_could_be_chosen(guided, plain):
    scores = {"d1": 1.0, "d2": 1.0, "d3": 0.5, "d4": 0.5}
    mined, calls = guided(plain(9), {"q": {"d1": 1}}, 2, scores=scores)
    assert mined.kept == [["d3", "d4"]]
    assert calls == [[(0, "d1")], [(0, "d2"), (0, "d3")], [(0, "d4")]]


def test_the_guide_is_not_asked_about_copies_or_what_people_judged(guided):
    corpus = COPIES | {"zero": ("judged", 0.75)}
    mined, calls = guided(corpus, {"q": {"p": 1, "zero": 0}}, 2, scores={"p": 1.0, "n1": 0.5})
    assert mined.kept == [["zero", "n1"]]
    assert mined.triples[0].negatives[0].guide_score is None
    assert [doc_id for call in calls for _, doc_id in call] == ["p", "n1"]


def test_the_guide_is_asked_about_all_queries_at_once(guided, plain):
    judged = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    _, calls = guided(plain(9), judged, scores={"d1": 1.0, "d2": 1.0, "d3": 0.5})
    assert calls == [[(0, "d1"), (1, "d2")], [(0, "d2"), (1, "d1")], [(0, "d3"), (1, "d3")]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_guide_score_that_is_no_number_never_passes(guided, plain, value):
    mined, _ = guided(plain(4), {"q": {"d1": 1}}, scores={"d1": 1.0, "d2": value, "d3": 0.5})
    assert (mined.kept, mined.reasons["d2"]) == ([["d3"]], "guide_not_finite")
    assert mined.stats["dropped"]["guide_not_finite"] == 1


def test_a_positive_without_a_guide_score_lets_nothing_pass(guided, plain):
    scores = {"d1": np.nan, "d2": 1.0, "d3": 0.5, "d4": 0.4}
    mined, _ = guided(plain(4), {"q": {"d1": 1, "d2": 1}}, scores=scores)
    assert mined.kept == [[], ["d3"]]
    reasons = {(row.positive_id, row.doc_id): row.reason for row in mined.dropped}
    assert reasons["d1", "d3"] == reasons["d1", "d4"] == "guide_not_finite"
    assert [triple.positive_guide_score for triple in mined.triples] == [None, 1.0]


def test_an_encoder_guides_with_its_own_vectors(mine, plain):
    documents = np.asarray([[1, 0], [1, 0], [0.6, 0.8]], dtype=np.float32)
    outside = Outside(guide=EncoderGuide(np.asarray([[1, 0]], dtype=np.float32), documents))
    mined = mine(plain(3), {"q": {"d1": 1}}, outside=outside, guide={"encoder": "x"})
    assert (mined.kept, mined.triples[0].negatives[0].guide_score) == ([["d3"]], 0.6)


def test_a_query_of_which_the_guide_leaves_nothing_is_searched_deeper(guided, plain):
    scores = dict.fromkeys((f"d{n}" for n in range(1, 9)), 1.0)
    mined, _ = guided(plain(12), {"q": {"d1": 1}}, 1, 2, scores=scores)
    assert mined.kept == [["d9"]]
