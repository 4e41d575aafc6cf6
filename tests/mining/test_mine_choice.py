"""Several sources, quotas, drawing, shared negatives and the cap on uses in a miner."""

import pytest

from mining.artifact import FoundBy

RUN = {"source": {"run": "run"}}


def lost_for(mined, reason):
    """Query ids of which a document was dropped for this reason, by document."""
    found = {}
    for row in mined.dropped:
        if row.reason == reason:
            found.setdefault(row.doc_id, []).append(row.query_id)
    return found


def test_a_document_that_two_sources_find_is_one_candidate_and_both_are_recorded(mine, run, plain):
    mined = mine(
        plain(4), {"q": {"d1": 1}}, 2, 3, max_depth=3, sources=["dense", RUN], outside=run(q=["d4", "d2", "d1"])
    )
    assert mined.stats["retrieved"] == 4
    assert [(negative.doc_id, negative.found_by) for negative in mined.triples[0].negatives] == [
        ("d2", (FoundBy("dense", 2, 0.85), FoundBy("run", 2, 9.0))),
        ("d3", (FoundBy("dense", 3, 0.8),)),
    ]
    assert [(row.doc_id, row.found_by) for row in mined.dropped] == [
        ("d1", (FoundBy("dense", 1, 0.9), FoundBy("run", 3, 8.0))),
        ("d4", (FoundBy("run", 1, 10.0),)),
    ]
    assert mined.stats["sources"]["dense"] == {"candidates": 3, "kept": 2}
    assert mined.stats["sources"]["run"] | {"candidates": 3, "kept": 1} == mined.stats["sources"]["run"]


def test_without_the_base_models_index_candidates_still_have_the_base_models_score(mine, run, plain):
    mined = mine(plain(4), {"q": {"d1": 1}}, 2, sources=[RUN], outside=run(q=["d4", "d2"]))
    assert [(negative.doc_id, negative.score) for negative in mined.triples[0].negatives] == [
        ("d2", 0.85),
        ("d4", 0.75),
    ]


def test_a_quota_keeps_places_for_a_source_and_gives_back_what_it_cannot_fill(mine, run, plain):
    sources, outside = ["dense", RUN | {"quota": 2}], run(q1=["d8", "d9"], q2=["d7", "d1"], q3=["d1"])
    mined = mine(plain(9), {f"q{n}": {"d1": 1} for n in (1, 2, 3)}, 3, sources=sources, outside=outside)
    assert mined.kept == [["d2", "d8", "d9"], ["d2", "d3", "d7"], ["d2", "d3", "d4"]]


def test_where_a_candidate_of_a_quota_is_a_near_copy_the_next_of_its_source_comes_in(mine, run, plain):
    copy = " ".join(f"w{n}" for n in range(20))
    corpus = {"p": (copy, 0.95)} | plain(5) | {"copy": (copy + " more", 0.2), "late": ("other", 0.1)}
    outside = run(q=["copy", "late"])
    mined = mine(corpus, {"q": {"p": 1}}, 2, sources=["dense", RUN | {"quota": 1}], outside=outside, near_copy=0.9)
    assert (mined.kept, mined.reasons["copy"]) == ([["d1", "late"]], "near_copy")


CORPUS = {"p1": ("a", 0.9), "p2": ("b", 0.5), "n1": ("c", 0.8), "n2": ("d", 0.46), "n3": ("e", 0.4), "n4": ("f", 0.3)}


def test_all_positives_of_a_query_can_share_what_the_lowest_of_them_allows(mine):
    # ceilings 0.9 * 0.9 = 0.81 and 0.5 * 0.9 = 0.45
    own = mine(CORPUS, {"q": {"p1": 1, "p2": 1}}, 2, margin_fraction=0.1)
    shared = mine(CORPUS, {"q": {"p1": 1, "p2": 1}}, 2, margin_fraction=0.1, per="query")
    assert own.kept == [["n1", "n2"], ["n3", "n4"]]
    assert shared.kept == [["n3", "n4"]] * 2
    assert [triple.positive_score for triple in shared.triples] == [0.9, 0.5]


def test_the_lowest_positive_is_that_of_the_same_query(mine):
    judged = {"q1": {"p1": 1}, "q2": {"p1": 1, "p2": 1}}
    assert mine(CORPUS, judged, margin_fraction=0.1, per="query").kept == [["n1"], ["n3"], ["n3"]]


@pytest.mark.parametrize("select", ["random", "weighted"])
def test_shared_negatives_are_drawn_once(mine, plain, select):
    judged = {f"q{n}": {"d1": 1, "d2": 1, "d3": 1} for n in range(9)}
    settings = {"select": select, "sample_from": 10}
    shared = mine(plain(18), judged, 2, per="query", **settings).kept
    assert all(shared[n] == shared[n + 1] == shared[n + 2] for n in range(0, 27, 3))
    own = mine(plain(18), judged, 2, **settings).kept
    assert any(own[n] != own[n + 1] for n in range(0, 27, 3))


JUDGED = {f"q{n}": {"d1": 1} for n in range(12)}


@pytest.mark.parametrize("select", ["random", "weighted"])
def test_a_draw_depends_on_the_seed_and_on_nothing_that_is_mined_beside_it(mine, plain, select):
    settings = {"negatives": 2, "select": select, "sample_from": 10}
    drawn = mine(plain(18), JUDGED, **settings).kept
    assert mine(plain(18), JUDGED, **settings).kept == drawn
    assert mine(plain(18), JUDGED, seed=1, **settings).kept != drawn
    assert mine(plain(18), {"new": {"d2": 1}} | JUDGED, **settings).kept[1:] == drawn
    assert mine(plain(18), dict(reversed(JUDGED.items())), **settings).kept[::-1] == drawn
    assert len({tuple(one) for one in drawn}) > 3


def test_drawn_negatives_are_among_the_nearest_that_passed_and_stand_nearest_first(mine, plain):
    mined = mine(plain(18), JUDGED, 2, select="random", sample_from=4)
    assert {doc_id for one in mined.kept for doc_id in one} == {"d2", "d3", "d4", "d5"}
    assert all(one == sorted(one) for one in mined.kept)
    assert mined.stats["dropped"] == {"judged_positive": 12, "over_quota": 12 * 15}


def test_hardness_runs_from_even_to_the_nearest(mine, plain):
    settings = {"negatives": 2, "sample_from": 10}
    even = mine(plain(18), JUDGED, select="random", **settings).kept
    assert mine(plain(18), JUDGED, select="weighted", hardness=0, **settings).kept == even
    assert mine(plain(18), JUDGED, select="weighted", hardness=1e5, **settings).kept == [["d2", "d3"]] * 12


def test_a_quota_holds_when_negatives_are_drawn(mine, run, plain):
    sources, outside = ["dense", RUN | {"quota": 1}], run(**{query: ["d17", "d18"] for query in JUDGED})
    kept = mine(plain(18), JUDGED, 2, select="random", sample_from=5, sources=sources, outside=outside).kept
    assert all({"d17", "d18"} & set(one) for one in kept)
    assert {doc_id for one in kept for doc_id in one} >= {"d17", "d18"}


@pytest.mark.parametrize("block_queries", [1, 4, 1024])
def test_no_document_is_a_negative_of_more_queries_than_allowed(mine, plain, monkeypatch, block_queries):
    monkeypatch.setattr("mining.mine.BLOCK_QUERIES", block_queries)
    mined = mine(plain(9), {f"q{n}": {"d1": 1} for n in range(5)}, max_uses=2)
    assert mined.kept == [["d2"], ["d2"], ["d3"], ["d3"], ["d4"]]
    assert lost_for(mined, "overused") == {"d2": ["q2", "q3", "q4"], "d3": ["q4"]}
    assert {row["doc_id"]: row["queries"] for row in mined.stats["most_used"]} == {"d2": 2, "d3": 2, "d4": 1}


@pytest.mark.parametrize("block_queries", [1, 1024])
def test_the_positives_of_a_query_use_a_document_once(mine, plain, monkeypatch, block_queries):
    monkeypatch.setattr("mining.mine.BLOCK_QUERIES", block_queries)
    judged = {f"q{n}": {"d1": 1, "d2": 1} for n in range(3)}
    assert mine(plain(9), judged, max_uses=2).kept == [["d3"]] * 4 + [["d4"]] * 2


def test_a_query_whose_documents_are_used_up_is_searched_deeper(mine, plain):
    mined = mine(plain(12), {f"q{n}": {"d1": 1} for n in range(4)}, 2, 3, max_uses=1)
    assert mined.kept == [["d2", "d3"], ["d4", "d5"], ["d6", "d7"], ["d8", "d9"]]


def test_what_is_used_up_leaves_its_place_to_one_that_the_other_filters_let_pass(mine):
    words = " ".join(f"w{n}" for n in range(10))
    corpus = {"p": (words, 0.9), "n1": ("x", 0.8), "copy": (words + " y", 0.7), "n2": ("z", 0.6)}
    mined = mine(corpus, {"q1": {"p": 1}, "q2": {"p": 1}}, near_copy=0.9, max_uses=1)
    assert mined.kept == [["n1"], ["n2"]]
    assert [(row.doc_id, row.reason) for row in mined.dropped if row.query_id == "q2"][1:] == [
        ("n1", "overused"),
        ("copy", "near_copy"),
    ]


def test_a_query_that_is_short_for_one_positive_does_not_use_up_its_own_documents(mine):
    # ceilings 0.81 and 0.45: the first four documents are enough for p1, not for p2
    corpus = {
        "p1": ("a", 0.9),
        "n1": ("b", 0.8),
        "p2": ("c", 0.5),
        "n2": ("d", 0.4),
        "n3": ("e", 0.3),
        "n4": ("f", 0.2),
    }
    mined = mine(corpus, {"q": {"p1": 1, "p2": 1}}, 2, 4, margin_fraction=0.1, max_uses=1)
    assert mined.kept == [["n1", "n2"], ["n2", "n3"]]
