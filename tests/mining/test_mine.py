import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closecall.errors import DataError
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from mining.artifact import DROPPED, TRIPLES, read_dropped_table, read_triples_table
from mining.config import MiningConfig
from mining.mine import Miner
from mining.stage import write_mined

QUERY = [1.0, 0.0]


def at(cosine):
    """The unit vector whose cosine with QUERY is this."""
    return [cosine, np.sqrt(1 - cosine * cosine)]


def miner(corpus, judged, negatives=1, depth=50, positive_from=1, margin=None, queries=None, outside=None, **settings):
    """`corpus` is {doc_id: (text, cosine)}, `judged` {query_id: {doc_id: grade}}, `queries` {query_id: text}."""
    queries = queries or {query_id: f"query {query_id}" for query_id in judged}
    documents = [row if isinstance(row, Document) else Document(doc_id, row[0]) for doc_id, row in corpus.items()]
    cosines = [0.9 if isinstance(row, Document) else row[1] for row in corpus.values()]
    judgments = [Judgment(query_id, *row) for query_id, grades in judged.items() for row in grades.items()]
    part = Part(tuple(Query(*row) for row in queries.items()), Qrels(judgments, positive_from), "")
    config = MiningConfig(negatives=negatives, depth=depth, margin_fraction=margin, **settings)
    vectors = np.asarray([at(cosine) for cosine in cosines], dtype=np.float32)
    return Miner(documents, vectors, part, np.asarray([QUERY] * len(queries), dtype=np.float32), config, outside)


def mine(worker):
    """What a miner writes, read back: triples, dropped candidates and stats."""
    with tempfile.TemporaryDirectory() as folder:
        stats = write_mined(worker, Path(folder), [])
        tables = [pq.read_table(Path(folder) / name) for name in (TRIPLES, DROPPED)]
    return SimpleNamespace(triples=read_triples_table(tables[0]), dropped=read_dropped_table(tables[1]), stats=stats)


def kept(mined):
    return [[negative.doc_id for negative in triple.negatives] for triple in mined.triples]


def reasons(mined):
    return {row.doc_id: row.reason for row in mined.dropped}


def plain(count, top=0.9):
    """d1, d2, ... from near to far, each with a text of its own."""
    return {f"d{n}": (f"text {n}", top - 0.05 * (n - 1)) for n in range(1, count + 1)}


def test_the_nearest_unjudged_documents_become_hard_negatives_with_score_and_rank():
    mined = mine(miner(plain(4), {"q": {"d2": 1}}, negatives=2))
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
    assert reasons(mined) == {"d2": "judged_positive", "d4": "over_quota"}


def test_a_judged_positive_of_any_grade_is_never_a_negative():
    mined = mine(miner(plain(5), {"q": {"d1": 3, "d2": 1, "d3": 2}}, negatives=2, positive_from=2))
    assert kept(mined) == [["d4", "d5"], ["d4", "d5"]]
    assert reasons(mined) == {"d1": "judged_positive", "d2": "partly_relevant", "d3": "judged_positive"}


def test_a_judged_zero_document_may_be_a_negative():
    assert kept(mine(miner(plain(2), {"q": {"d1": 0, "d2": 1}}))) == [["d1"]]


@pytest.mark.parametrize("copy", ["Reset the  PIN ", "reset the pin", "Reset\tthe\u200b PIN", "\uff32eset the PIN"])
def test_a_copy_of_a_positive_under_another_id_is_dropped_as_same_text(copy):
    corpus = {"p": ("Reset the PIN", 0.9), "copy": (copy, 0.9), "n": ("Reset the PUK", 0.8)}
    mined = mine(miner(corpus, {"q": {"p": 1}}))
    assert kept(mined) == [["n"]]
    assert reasons(mined) == {"p": "judged_positive", "copy": "same_text"}


def test_a_copy_of_a_partly_relevant_document_is_dropped_as_same_text():
    corpus = {
        "p": ("full answer", 0.9),
        "half": ("half an answer", 0.8),
        "copy": ("Half an answer", 0.8),
        "n": ("x", 0.1),
    }
    mined = mine(miner(corpus, {"q": {"p": 2, "half": 1}}, positive_from=2))
    assert kept(mined) == [["n"]]
    assert reasons(mined)["copy"] == "same_text"


def test_a_copy_of_a_judged_zero_document_may_be_a_negative():
    corpus = {"p": ("answer", 0.9), "zero": ("no answer", 0.8), "copy": ("No answer", 0.7)}
    assert kept(mine(miner(corpus, {"q": {"p": 1, "zero": 0}}, negatives=2))) == [["zero", "copy"]]


def test_a_copy_counts_with_its_title():
    corpus = {
        "p": Document("p", "see below", "Refunds"),
        "joined": Document("joined", "refunds see below"),
        "other": Document("other", "see below", "Delivery"),
    }
    mined = mine(miner(corpus, {"q": {"p": 1}}))
    assert kept(mined) == [["other"]]
    assert reasons(mined)["joined"] == "same_text"


def test_the_querys_own_text_is_dropped_with_or_without_a_title():
    corpus = {
        "own": Document("own", "How do I  reset my pin?"),
        "titled": Document("titled", "how do I reset my PIN?", "Question 12"),
        "n": Document("n", "How do I reset my puk?"),
        "p": Document("p", "Call us."),
    }
    mined = mine(miner(corpus, {"q": {"p": 1}}, queries={"q": "How do I reset my PIN?"}))
    assert kept(mined) == [["n"]]
    assert [reasons(mined)[doc_id] for doc_id in ("own", "titled")] == ["same_text", "same_text"]


def test_positives_are_pooled_over_queries_of_the_same_text():
    corpus = plain(4) | {"copy": ("Text  2", 0.7)}
    queries = {"q1": "lost card", "q2": "Lost  card", "q3": "stolen card"}
    mined = mine(miner(corpus, {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}, negatives=2, queries=queries))
    assert [triple.query_id for triple in mined.triples] == ["q1", "q2", "q3"]
    assert kept(mined) == [["d3", "d4"], ["d3", "d4"], ["d1", "d2"]]
    assert {(row.query_id, row.doc_id) for row in mined.dropped if row.reason == "same_text"} == {
        ("q1", "copy"),
        ("q2", "copy"),
    }


def test_the_higher_grade_counts_where_queries_of_the_same_text_disagree():
    queries = {"q1": "lost card", "q2": "lost card"}
    mined = mine(miner(plain(3), {"q1": {"d1": 0, "d2": 1}, "q2": {"d1": 1, "d2": 0}}, queries=queries))
    assert kept(mined) == [["d3"], ["d3"]]


def test_a_query_with_five_positives_in_the_top_six_gets_the_three_it_asks_for():
    mined = mine(miner(plain(9), {"q": dict.fromkeys(("d1", "d2", "d3", "d5", "d6"), 1)}, negatives=3, depth=3))
    assert kept(mined) == [["d4", "d7", "d8"]] * 5
    assert mined.stats["short"] == 0


def test_what_was_asked_is_kept_or_short():
    # two queries of one positive each, 15 negatives asked, 10 documents: 9 each at most
    mined = mine(miner(plain(10), {"q1": {"d1": 1}, "q2": {"d4": 1}}, negatives=15))
    stats = {key: mined.stats[key] for key in ("pairs", "asked", "kept", "short", "pairs_short", "retrieved")}
    assert stats == {"pairs": 2, "asked": 30, "kept": 18, "short": 12, "pairs_short": 2, "retrieved": 20}
    assert mined.stats["dropped"] == {"judged_positive": 2}


def test_a_corpus_smaller_than_what_is_asked_is_searched_whole():
    mined = mine(miner(plain(5), {"q": {"d3": 1}}, negatives=10, depth=10))
    assert kept(mined) == [["d1", "d2", "d4", "d5"]]


def test_a_query_whose_positives_are_the_whole_corpus_has_no_negative_and_is_counted():
    mined = mine(miner(plain(3), {"q": {"d1": 1, "d2": 1, "d3": 1}}, negatives=2))
    assert kept(mined) == [[], [], []]
    assert (mined.stats["pairs_without_negatives"], mined.stats["short"]) == (3, 6)
    assert mined.stats["scores"]["negative"] is None


def test_each_positive_has_its_own_margin():
    # ceilings 0.9 * 0.9 = 0.81 and 0.5 * 0.9 = 0.45
    corpus = {
        "p1": ("a", 0.9),
        "p2": ("b", 0.5),
        "n1": ("c", 0.82),
        "n2": ("d", 0.8),
        "n3": ("e", 0.46),
        "n4": ("f", 0.4),
    }
    mined = mine(miner(corpus, {"q": {"p1": 1, "p2": 1}}, margin=0.1))
    assert kept(mined) == [["n2"], ["n4"]]
    within = [(row.positive_id, row.doc_id) for row in mined.dropped if row.reason == "within_margin"]
    assert within == [("p1", "n1"), ("p2", "n1"), ("p2", "n2"), ("p2", "n3")]


def test_a_positive_below_zero_keeps_only_what_scores_lower_still():
    corpus = {"p": ("a", -0.5), "n1": ("b", -0.49), "n2": ("c", -0.8)}
    mined = mine(miner(corpus, {"q": {"p": 1}}, margin=0.05))
    assert (kept(mined), reasons(mined)["n1"]) == ([["n2"]], "within_margin")


def test_equal_scores_are_ordered_by_document_id():
    corpus = {"b": ("x", 0.5), "a": ("y", 0.5), "c": ("z", 0.5), "p": ("w", 0.9)}
    assert kept(mine(miner(corpus, {"q": {"p": 1}}, negatives=2))) == [["a", "b"]]


def searches(worker):
    """(queries, depth) of each search the miner makes from now on."""
    calls, search = [], worker.index.search
    worker.index.search = lambda queries, depth: calls.append((len(queries), depth)) or search(queries, depth)
    return calls


def test_only_queries_that_are_short_are_searched_deeper():
    # q2 has the four nearest documents as positives: nothing is left for it in the first four
    worker = miner(plain(18), {"q1": {"d1": 1}, "q2": dict.fromkeys(("d1", "d2", "d3", "d4"), 1)}, depth=4)
    calls = searches(worker)
    assert kept(mine(worker)) == [["d2"]] + [["d5"]] * 4
    assert calls == [(2, 4), (1, 16)]


def test_search_stops_at_max_depth_and_the_shortage_is_reported():
    worker = miner(plain(18), {"q": dict.fromkeys((f"d{n}" for n in range(1, 10)), 1)}, depth=2, max_depth=9)
    calls = searches(worker)
    mined = mine(worker)
    assert calls == [(1, 2), (1, 8), (1, 9)]
    assert (mined.stats["kept"], mined.stats["short"], mined.stats["retrieved"]) == (0, 9, 81)


def test_a_query_without_positives_is_no_pair():
    mined = mine(miner(plain(3), {"q1": {"d1": 0}, "q2": {"d1": 1}}))
    assert [triple.query_id for triple in mined.triples] == ["q2"]


def test_training_queries_without_any_positive_are_an_error():
    with pytest.raises(DataError, match=r"^mining: no training query has a positive; judge some documents"):
        miner(plain(3), {"q": {"d1": 0, "d2": 1}}, positive_from=2)


@st.composite
def corpora(draw):
    size = draw(st.integers(1, 12))
    texts = draw(st.lists(st.sampled_from(["a", "A ", "b", "c", "d", "e", "query q1"]), min_size=size, max_size=size))
    cosines = draw(st.lists(st.integers(-10, 10), min_size=size, max_size=size))
    corpus = {f"d{n}": (text, cosine / 10) for n, (text, cosine) in enumerate(zip(texts, cosines, strict=True))}
    grades = st.dictionaries(st.sampled_from(sorted(corpus)), st.integers(0, 2))
    judged = {f"q{n}": draw(grades) for n in (1, 2)}
    judged["q2"][draw(st.sampled_from(sorted(corpus)))] = 2
    return corpus, judged


@given(corpora(), st.integers(1, 4), st.integers(0, 6), st.sampled_from([None, 0.0, 0.05, 0.5]))
@settings(max_examples=150, deadline=None)
def test_every_retrieved_candidate_is_kept_or_dropped_once_and_no_negative_is_relevant(data, negatives, more, margin):
    (corpus, judged), depth = data, negatives + more
    mined = mine(miner(corpus, judged, negatives, depth, margin=margin))
    for triple in mined.triples:
        pair = (triple.query_id, triple.positive_id)
        dropped = [(row.rank, row.doc_id) for row in mined.dropped if (row.query_id, row.positive_id) == pair]
        both = sorted([*dropped, *((n.rank, n.doc_id) for n in triple.negatives)])
        assert [rank for rank, _ in both] == list(range(1, len(both) + 1))
        assert len({doc_id for _, doc_id in both}) == len(both) >= min(depth, len(corpus))
        if len(triple.negatives) < negatives:
            assert len(both) == len(corpus)
        relevant = {corpus[doc_id][0].strip().lower() for doc_id, grade in judged[triple.query_id].items() if grade > 0}
        found = {negative.text.strip().lower() for negative in triple.negatives}
        assert not found & (relevant | {triple.query})
    stats = mined.stats
    assert stats["retrieved"] == stats["kept"] + sum(stats["dropped"].values())
    assert stats["asked"] == stats["kept"] + stats["short"] == len(mined.triples) * negatives
