import numpy as np
import pytest

from closecall.errors import DataError
from closecall.records import Document
from mining.artifact import FoundBy
from mining.mine import Miner, Outside

TWO_MODELS = r"query vectors have 2 dimensions, the documents' 3: they come from two models; encode both with one"


def test_the_nearest_unjudged_documents_become_hard_negatives_with_score_and_rank(mine, plain):
    mined = mine(plain(4), {"q": {"d2": 1}}, negatives=2)
    triple = mined.triples[0]
    assert (triple.query, triple.positive_id, triple.positive, triple.positive_score) == (
        "query q",
        "d2",
        "text 2",
        0.85,
    )
    assert [(n.doc_id, n.text, n.score, n.rank) for n in triple.negatives] == [
        ("d1", "text 1", 0.9, 1),
        ("d3", "text 3", 0.8, 3),
    ]
    assert mined.reasons == {"d2": "judged_positive", "d4": "over_quota"}


def test_a_judged_positive_of_any_grade_is_never_a_negative(mine, plain):
    mined = mine(plain(5), {"q": {"d1": 3, "d2": 1, "d3": 2}}, negatives=2, positive_from=2)
    assert mined.kept == [["d4", "d5"], ["d4", "d5"]]
    assert mined.reasons == {"d1": "judged_positive", "d2": "partly_relevant", "d3": "judged_positive"}


def test_a_judged_zero_document_may_be_a_negative(mine, plain):
    assert mine(plain(2), {"q": {"d1": 0, "d2": 1}}).kept == [["d1"]]


@pytest.mark.parametrize("copy", ["Reset the  PIN ", "reset the pin", "Reset\tthe\u200b PIN", "\uff32eset the PIN"])
def test_a_copy_of_a_positive_under_another_id_is_dropped_as_same_text(mine, copy):
    corpus = {"p": ("Reset the PIN", 0.9), "copy": (copy, 0.9), "n": ("Reset the PUK", 0.8)}
    mined = mine(corpus, {"q": {"p": 1}})
    assert mined.kept == [["n"]]
    assert mined.reasons == {"p": "judged_positive", "copy": "same_text"}


def test_a_copy_of_a_partly_relevant_document_is_dropped_as_same_text(mine):
    corpus = {
        "p": ("full answer", 0.9),
        "half": ("half an answer", 0.8),
        "copy": ("Half an answer", 0.8),
        "n": ("x", 0.1),
    }
    mined = mine(corpus, {"q": {"p": 2, "half": 1}}, positive_from=2)
    assert mined.kept == [["n"]]
    assert mined.reasons["copy"] == "same_text"


def test_a_copy_of_a_judged_zero_document_may_be_a_negative(mine):
    corpus = {"p": ("answer", 0.9), "zero": ("no answer", 0.8), "copy": ("No answer", 0.7)}
    assert mine(corpus, {"q": {"p": 1, "zero": 0}}, negatives=2).kept == [["zero", "copy"]]


def test_a_copy_counts_with_its_title(mine):
    corpus = {
        "p": Document("p", "see below", "Refunds"),
        "joined": Document("joined", "refunds see below"),
        "other": Document("other", "see below", "Delivery"),
    }
    mined = mine(corpus, {"q": {"p": 1}})
    assert mined.kept == [["other"]]
    assert mined.reasons["joined"] == "same_text"


def test_the_querys_own_text_is_dropped_with_or_without_a_title(mine):
    corpus = {
        "own": Document("own", "How do I  reset my pin?"),
        "titled": Document("titled", "how do I reset my PIN?", "Question 12"),
        "n": Document("n", "How do I reset my puk?"),
        "p": Document("p", "Call us."),
    }
    mined = mine(corpus, {"q": {"p": 1}}, queries={"q": "How do I reset my PIN?"})
    assert mined.kept == [["n"]]
    assert [mined.reasons[doc_id] for doc_id in ("own", "titled")] == ["same_text", "same_text"]


def test_positives_are_pooled_over_queries_of_the_same_text(mine, plain):
    corpus = plain(4) | {"copy": ("Text  2", 0.7)}
    queries = {"q1": "lost card", "q2": "Lost  card", "q3": "stolen card"}
    mined = mine(corpus, {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}, negatives=2, queries=queries)
    assert [triple.query_id for triple in mined.triples] == ["q1", "q2", "q3"]
    assert mined.kept == [["d3", "d4"], ["d3", "d4"], ["d1", "d2"]]
    assert {(row.query_id, row.doc_id) for row in mined.dropped if row.reason == "same_text"} == {
        ("q1", "copy"),
        ("q2", "copy"),
    }


def test_the_higher_grade_counts_where_queries_of_the_same_text_disagree(mine, plain):
    queries = {"q1": "lost card", "q2": "lost card"}
    mined = mine(plain(3), {"q1": {"d1": 0, "d2": 1}, "q2": {"d1": 1, "d2": 0}}, queries=queries)
    assert mined.kept == [["d3"], ["d3"]]


def test_a_query_with_five_positives_in_the_top_six_gets_the_three_it_asks_for(mine, plain):
    mined = mine(plain(9), {"q": dict.fromkeys(("d1", "d2", "d3", "d5", "d6"), 1)}, negatives=3, depth=3)
    assert mined.kept == [["d4", "d7", "d8"]] * 5
    assert mined.stats["short"] == 0


def test_what_was_asked_is_kept_or_short(mine, plain):
    # two queries of one positive each, 15 negatives asked, 10 documents: 9 each at most
    mined = mine(plain(10), {"q1": {"d1": 1}, "q2": {"d4": 1}}, negatives=15)
    stats = {key: mined.stats[key] for key in ("pairs", "asked", "kept", "short", "pairs_short", "retrieved")}
    assert stats == {"pairs": 2, "asked": 30, "kept": 18, "short": 12, "pairs_short": 2, "retrieved": 20}
    assert mined.stats["dropped"] == {"judged_positive": 2}


def test_a_corpus_smaller_than_what_is_asked_is_searched_whole(mine, plain):
    mined = mine(plain(5), {"q": {"d3": 1}}, negatives=10, depth=10)
    assert mined.kept == [["d1", "d2", "d4", "d5"]]


def test_a_query_whose_positives_are_the_whole_corpus_has_no_negative_and_is_counted(mine, plain):
    mined = mine(plain(3), {"q": {"d1": 1, "d2": 1, "d3": 1}}, negatives=2)
    assert mined.kept == [[], [], []]
    assert (mined.stats["pairs_without_negatives"], mined.stats["short"]) == (3, 6)
    assert mined.stats["scores"]["negative"] is None


def test_each_positive_has_its_own_margin(mine):
    # ceilings 0.9 * 0.9 = 0.81 and 0.5 * 0.9 = 0.45
    corpus = {
        "p1": ("a", 0.9),
        "p2": ("b", 0.5),
        "n1": ("c", 0.82),
        "n2": ("d", 0.8),
        "n3": ("e", 0.46),
        "n4": ("f", 0.4),
    }
    mined = mine(corpus, {"q": {"p1": 1, "p2": 1}}, margin_fraction=0.1)
    assert mined.kept == [["n2"], ["n4"]]
    within = [(row.positive_id, row.doc_id) for row in mined.dropped if row.reason == "within_margin"]
    assert within == [("p1", "n1"), ("p2", "n1"), ("p2", "n2"), ("p2", "n3")]


def test_a_positive_below_zero_keeps_only_what_scores_lower_still(mine):
    corpus = {"p": ("a", -0.5), "n1": ("b", -0.49), "n2": ("c", -0.8)}
    mined = mine(corpus, {"q": {"p": 1}}, margin_fraction=0.05)
    assert (mined.kept, mined.reasons["n1"]) == ([["n2"]], "within_margin")


def test_equal_scores_are_ordered_by_document_id(mine):
    corpus = {"b": ("x", 0.5), "a": ("y", 0.5), "c": ("z", 0.5), "p": ("w", 0.9)}
    assert mine(corpus, {"q": {"p": 1}}, negatives=2).kept == [["a", "b"]]


def searches(worker, source="dense"):
    """(queries, depth) of each search of a source that the miner makes from now on."""
    calls, find = [], worker.sources[source].find
    worker.sources[source].find = lambda queries, depth: calls.append((len(queries), depth)) or find(queries, depth)
    return calls


def test_only_queries_that_are_short_are_searched_deeper(miner, written, plain):
    # q2 has the four nearest documents as positives: nothing is left for it in the first four
    worker = miner(plain(18), {"q1": {"d1": 1}, "q2": dict.fromkeys(("d1", "d2", "d3", "d4"), 1)}, depth=4)
    calls = searches(worker)
    assert written(worker).kept == [["d2"]] + [["d5"]] * 4
    assert calls == [(2, 4), (1, 16)]


def test_search_stops_at_max_depth_and_the_shortage_is_reported(miner, written, plain):
    worker = miner(plain(18), {"q": dict.fromkeys((f"d{n}" for n in range(1, 10)), 1)}, depth=2, max_depth=9)
    calls = searches(worker)
    mined = written(worker)
    assert calls == [(1, 2), (1, 8), (1, 9)]
    assert (mined.stats["kept"], mined.stats["short"], mined.stats["retrieved"]) == (0, 9, 81)


def test_a_query_without_positives_is_no_pair(mine, plain):
    mined = mine(plain(3), {"q1": {"d1": 0}, "q2": {"d1": 1}})
    assert [triple.query_id for triple in mined.triples] == ["q2"]


def test_training_queries_without_any_positive_are_an_error(miner, plain):
    with pytest.raises(DataError, match=r"^mining: no training query has a positive; judge some documents"):
        miner(plain(3), {"q": {"d1": 0, "d2": 1}}, positive_from=2)


def test_a_query_that_is_short_is_searched_deeper_by_all_sources(miner, written):
    # bm25 finds the positives alone, dense the positives first
    corpus = {"p1": ("fox one", 0.9), "p2": ("fox two", 0.8), "n1": ("a", 0.7), "n2": ("b", 0.6), "n3": ("c", 0.5)}
    queries, judged = {"q": "fox"}, {"q": {"p1": 1, "p2": 1}}
    worker = miner(corpus, judged, 2, 2, queries=queries, sources=["dense", "bm25"])
    dense, words = searches(worker), searches(worker, "bm25")
    mined = written(worker)
    assert (dense, words) == ([(1, 2), (1, 5)], [(1, 2), (1, 5)])
    assert mined.kept == [["n1", "n2"]] * 2
    assert [negative.found_by for negative in mined.triples[0].negatives] == [
        (FoundBy("dense", 3, 0.7),),
        (FoundBy("dense", 4, 0.6),),
    ]
    assert [said.source for said in mined.dropped[0].found_by] == ["dense", "bm25"]


def test_a_depth_of_its_own_grows_in_proportion_and_a_source_without_more_is_asked_for_the_same(miner, written, plain):
    sources = ["dense", {"source": "bm25", "depth": 3}, {"source": "random", "depth": 2}]
    judged = {"q": dict.fromkeys((f"d{n}" for n in range(1, 10)), 1)}
    worker = miner(plain(18), judged, 9, 9, queries={"q": "text"}, sources=sources, max_depth=15)
    calls = [searches(worker, source) for source in ("dense", "bm25", "random")]
    assert written(worker).stats["short"] > 0
    assert calls == [[(1, 9), (1, 15)], [(1, 3), (1, 5)], [(1, 2), (1, 2)]]


def test_no_source_is_searched_deeper_than_max_depth_but_where_its_own_depth_says_so(miner, written, plain):
    sources = ["dense", {"source": "bm25", "depth": 4}, {"source": "random", "depth": 9}]
    judged = {"q": dict.fromkeys((f"d{n}" for n in range(1, 19)), 1)}
    worker = miner(plain(18), judged, 1, 2, queries={"q": "text"}, sources=sources, max_depth=6)
    calls = [searches(worker, source) for source in ("dense", "bm25", "random")]
    written(worker)
    assert calls == [[(1, 2), (1, 6)], [(1, 4), (1, 6)], [(1, 9), (1, 9)]]


def test_a_run_is_read_to_its_end_where_it_is_the_only_source(mine, run, plain):
    judged = {"q": {"d1": 1, "d2": 1}}
    outside = run(q=["d1", "d2", "d5", "d4"])
    mined = mine(plain(9), judged, 2, 2, outside=outside, sources=[{"source": {"run": "run"}}])
    assert mined.kept == [["d4", "d5"]] * 2


def test_vectors_of_two_models_are_an_error(miner, plain):
    worker = miner(plain(3), {"q": {"d1": 1}})
    documents, vectors = worker.pairs.documents, np.eye(3, dtype=np.float32)
    with pytest.raises(DataError, match=TWO_MODELS):
        Miner(documents, vectors, worker.part, worker.query_vectors, worker.config)


def test_vectors_of_two_models_are_an_error_for_a_second_encoder_too(miner, written, plain):
    vectors = np.eye(3, dtype=np.float32), np.ones((1, 2), dtype=np.float32)
    sources = ["dense", {"source": {"dense": "other"}}]
    worker = miner(plain(3), {"q": {"d1": 1}}, outside=Outside({"dense-other": vectors}), sources=sources)
    with pytest.raises(DataError, match=TWO_MODELS):
        written(worker)


def test_queries_without_candidates_are_pairs_without_negatives(mine, plain):
    judged = {f"q{n}": {"d1": 1} for n in range(1, 5)}
    queries = {"q1": "zebra", "q2": "text", "q3": "", "q4": "lion"}
    mined = mine(plain(3), judged, queries=queries, sources=["bm25"])
    assert mined.kept == [[], ["d2"], [], []]
    stats = {key: mined.stats[key] for key in ("pairs", "asked", "kept", "short", "pairs_without_negatives")}
    assert stats == {"pairs": 4, "asked": 4, "kept": 1, "short": 3, "pairs_without_negatives": 3}


def test_the_survival_curve_counts_pairs_without_candidates_too(mine, plain):
    mined = mine(plain(3), {"q1": {"d1": 1}, "q2": {"d1": 1}}, queries={"q1": "zebra", "q2": "text"}, sources=["bm25"])
    assert mined.stats["survival"]["pairs"] == 2


def test_mining_that_finds_nothing_at_all_says_so_in_its_counts(mine, plain):
    mined = mine(plain(3), {"q": {"d1": 1}}, queries={"q": "zebra"}, sources=["bm25"])
    assert (mined.kept, mined.dropped, mined.stats["retrieved"], mined.stats["short"]) == ([[]], [], 0, 1)
