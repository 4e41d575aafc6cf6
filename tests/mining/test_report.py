import re

import numpy as np
import pytest

import mining.mine
from closecall.records import Run, ScoredDoc
from closecall.slices import Slice
from mining.artifact import TRIPLES
from mining.filters import OUTCOMES
from mining.mine import Outside
from mining.report import LONG_TEXT, MEANINGS, examples, report_html, summary
from mining.stage import write_mined

TWO = {"p1": ("one", 0.8), "p2": ("two", 0.5), "b": ("three", 0.4), "c": ("four", 0.2)}
JUDGED = {"q1": {"p1": 1}, "q2": {"p2": 1}}


@pytest.fixture
def mined(miner, tmp_path):
    """Mines what these arguments say into a folder; gives the stats, the triples file and the config."""

    def mined(*arguments, slices=(), **settings):
        worker = miner(*arguments, **settings)
        stats = write_mined(worker, tmp_path, list(slices))
        return stats, tmp_path / TRIPLES, worker.config

    return mined


@pytest.fixture
def page(mined):
    """The page of what these arguments mine, with some of its stats replaced."""

    def page(corpus, judged, stats=None, **settings):
        found, triples, config = mined(corpus, judged, **settings)
        texts = {doc_id: row[0] for doc_id, row in corpus.items()}
        return report_html(found | (stats or {}), config, *examples(triples, np.random.default_rng(0)), texts, "base")

    return page


def named(found):
    return [(example.triple.query_id, example.triple.positive_id, example.negative.doc_id) for example in found]


def nearest(triples):
    return named(examples(triples, np.random.default_rng(0))[0])


def plain_text(html):
    """What a reader reads, in one line."""
    body = html[html.index("<body>") :]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_nearest_negative_is_the_one_with_the_smallest_gap_to_its_own_positive(mined):
    """q1, positive 0.8: p2 (0.8 - 0.5) / 0.8 = 0.375, b 0.5, c 0.75. q2, positive 0.5: p1 -0.6, b 0.2, c 0.6."""
    _, triples, _ = mined(TWO, JUDGED, negatives=3)
    found, _ = examples(triples, np.random.default_rng(0))
    assert [(query, negative) for query, _, negative in named(found)] == [
        ("q2", "p1"),
        ("q2", "b"),
        ("q1", "p2"),
        ("q1", "b"),
        ("q2", "c"),
        ("q1", "c"),
    ]
    assert [example.gap for example in found] == pytest.approx([-0.6, 0.2, 0.375, 0.5, 0.6, 0.75])


def test_below_zero_a_negative_above_its_positive_is_still_the_nearest(mined):
    """Positive -0.2: near is at (-0.2 + 0.1) / 0.2 = -0.5, far at (-0.2 + 0.5) / 0.2 = 1.5."""
    _, triples, _ = mined({"p": ("one", -0.2), "far": ("two", -0.5), "near": ("x", -0.1)}, {"q": {"p": 1}}, negatives=2)
    assert [negative for *_, negative in nearest(triples)] == ["near", "far"]


def test_equal_gaps_come_in_the_order_of_query_and_document(mined):
    """(0.8 - 0.4) / 0.8 four times, q2 before q1 in the file."""
    corpus = {"p": ("one", 0.8), "d2": ("two", 0.4), "d10": ("three", 0.4)}
    _, triples, _ = mined(corpus, {"q2": {"p": 1}, "q1": {"p": 1}}, negatives=2)
    assert nearest(triples) == [("q1", "p", "d10"), ("q1", "p", "d2"), ("q2", "p", "d10"), ("q2", "p", "d2")]


def test_gaps_that_differ_by_rounding_alone_are_equal(mined):
    """Both are 0.4, but (0.8 - 0.48) / 0.8 comes out as 0.4000000000000001 and (0.35 - 0.21) / 0.35 below 0.4."""
    corpus = {"p1": ("one", 0.8), "p2": ("two", 0.35), "d1": ("three", 0.48), "d2": ("four", 0.21)}
    _, triples, _ = mined(corpus, JUDGED, negatives=3)
    assert (0.8 - 0.48) / 0.8 > (0.35 - 0.21) / 0.35
    assert nearest(triples)[2:4] == [("q1", "p1", "d1"), ("q2", "p2", "d2")]


def test_a_negative_of_two_positives_of_a_query_is_shown_once_beside_the_nearer(mined):
    """d at 0.4 is 0.5 below p1 (0.8) and 0.2 below p2 (0.5)."""
    corpus = {"p1": ("one", 0.8), "p2": ("two", 0.5), "d": ("three", 0.4)}
    _, triples, _ = mined(corpus, {"q": {"p1": 1, "p2": 1}})
    assert nearest(triples) == [("q", "p2", "d")]


def test_ten_of_each_are_shown_and_the_drawn_ones_differ_by_the_seed_alone(mined):
    corpus = {f"d{number}": (f"text {number}", 0.9 - 0.02 * number) for number in range(1, 42)}
    _, triples, _ = mined(corpus, {"q": {"d1": 1}}, negatives=40)
    drawn = [named(examples(triples, np.random.default_rng(seed))[1]) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for found in drawn:
        ranks = [int(doc_id[1:]) for *_, doc_id in found]
        assert ranks == sorted(set(ranks))
        assert len(ranks) == 10
    assert nearest(triples) == [("q", "d1", f"d{number}") for number in range(2, 12)]


def test_examples_do_not_depend_on_the_row_groups_they_stand_in(mined, monkeypatch):
    judged = {f"q{number}": {"p1": 1} for number in range(9)}
    whole = examples(mined(TWO, judged, negatives=2)[1], np.random.default_rng(0))
    monkeypatch.setattr(mining.mine, "BLOCK_QUERIES", 2)
    assert examples(mined(TWO, judged, negatives=2)[1], np.random.default_rng(0)) == whole
    assert len(whole[0]) == len(whole[1]) == 10


def test_every_outcome_has_a_meaning():
    assert list(MEANINGS) == list(OUTCOMES)
    assert all(MEANINGS.values())


def test_the_page_has_the_counts_and_what_they_mean(page):
    """Of 4 documents for each of 2 queries, 1 is the positive; with a margin of 0.5, q1 keeps b and c and drops p2.

    q2 keeps c (0.2 <= 0.25) and drops p1 and b. Asked are 2 each: one is short.
    """
    read = plain_text(page(TWO, JUDGED, negatives=2, margin_fraction=0.5, max_depth=50))
    assert "Kept 3 hard negatives of 8 candidates for 2 (query, positive) pairs of 2 queries." in read
    assert "Asked 4 = kept 3 + short 1. Retrieved 8 = kept 3 + dropped 5." in read
    assert "Pairs short of negatives: 1, without any: 0." in read
    assert f"kept 3 37.5% {MEANINGS['kept']}" in read
    assert f"judged_positive 2 25.0% {MEANINGS['judged_positive']}" in read
    assert f"within_margin * 3 37.5% {MEANINGS['within_margin']}" in read
    assert "over_quota" not in read[: read.index("Sources")]
    assert "Suspected false negatives, 3 in all" in read
    assert "dense 8 3" in read


def test_the_page_has_the_point_of_the_curve_at_the_margin_in_use(page):
    """At 0.45 b and c of q1 are below 0.44 and c of q2 below 0.275: one pair is full, 3 negatives of 4 are there."""
    html = page(TWO, JUDGED, negatives=2, margin_fraction=0.45)
    assert "1 of 2 pairs have all their negatives there, 3 of the 4 negatives asked are there." in plain_text(html)
    assert ">0.45</text>" in html[: html.index("Scores with the base model")]
    assert "negatives there, " not in plain_text(page(TWO, JUDGED, negatives=2))


def test_the_page_has_distributions_and_pictures_of_the_scores(page):
    """Positives 0.8 and 0.5; negatives 0.5, 0.4, 0.2 and 0.8, 0.4, 0.2."""
    html = page(TWO, JUDGED, negatives=3)
    assert "positive 0.650 0.500 0.575 0.650 0.725 0.800" in plain_text(html)
    assert re.search(
        r"negative 0\.417 0\.200 [\d. ]+ 0\.800 difference 0\.233 -0\.300 [\d. ]+ 0\.600", plain_text(html)
    )
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', html)
    assert labels == [
        "What each margin would leave",
        "Scores with the base model",
        "Positive&#x27;s score minus negative&#x27;s",
    ]
    assert {"positives", "candidates", "negatives", "differences"} <= set(re.findall(r">(\w+)</text>", html))


def test_an_example_is_shown_with_texts_scores_rank_sources_and_what_is_suspicious(page):
    """q2 takes p1, (0.5 - 0.8) / 0.5 = -60 %; q1 takes p2, (0.8 - 0.5) / 0.8 = 37.5 %."""
    assert (
        "Nearest to their positive"
        " query q2 query q2 · negative 0.300 (60.0%) above the positive · rank 1 · found by dense (rank 1)"
        " positive, score 0.500: p2 two negative, score 0.800: p1 one"
        " query q1 query q1 · negative 0.300 (37.5%) below the positive · rank 2 · found by dense (rank 2)"
        " positive, score 0.800: p1 one negative, score 0.500: p2 two Drawn at random"
    ) in plain_text(page(TWO, JUDGED, negatives=1))


def test_a_negative_that_people_judged_says_so_and_has_no_rank_from_them(page):
    html = page(TWO, {"q": {"p1": 1, "c": 0}}, negatives=1, margin_fraction=1.0, sources=["dense", "judged"])
    read = plain_text(html)
    assert "found by dense (rank 4), judged · judged not relevant" in read
    assert "judged 1 1 judged not relevant: 1" in read
    assert "found by dense (rank 2), judged" not in read


def test_a_negative_that_nobody_judged_does_not_say_so(page):
    assert "· judged not relevant" not in plain_text(page(TWO, JUDGED, sources=["dense", "judged"]))


def test_a_run_says_what_it_lacks(page):
    outside = Outside(runs={"other": Run({"q1": [ScoredDoc("b", 2.0), ScoredDoc("nowhere", 1.0)]})})
    sources = ["dense", {"source": {"run": "other.trec"}}]
    read = plain_text(page(TWO, JUDGED, negatives=2, sources=sources, outside=outside))
    assert "other 1 1 queries without any: 1; documents that are not in the corpus: 1" in read
    assert "found by dense (rank 3), other (rank 1)" in read


def test_texts_and_ids_are_shown_as_they_are_and_never_run(page):
    corpus = {"p": ("<script>alert(1)</script>", 0.8), "<b>": ("</p><img src=x> & {{ 7 * 7 }}", 0.4)}
    html = page(corpus, {"q": {"p": 1}}, queries={"q": "<i>what</i>"})
    for shown in (
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&lt;/p&gt;&lt;img src=x&gt; &amp; {{ 7 * 7 }}",
        "&lt;i&gt;what",
    ):
        assert shown in html
    for raw in ("<script", "<img", "<i>what", "<b><"):
        assert raw not in html


def test_a_long_text_is_folded_and_complete(page):
    short, long = "s" * LONG_TEXT, "long " * LONG_TEXT
    html = page({"p": (short, 0.8), "d": (long, 0.4)}, {"q": {"p": 1}})
    assert f'<p class="text" dir="auto">{short}</p>' in html
    assert re.search(
        rf"<details class=\"text\"[^>]*><summary>.*?all 2,000 characters</span></summary>{long}</det", html
    )


def test_the_documents_used_most_are_shown_with_their_texts(page):
    """Both queries take b, q1 also p2 and q2 also p1, which are nearer."""
    read = plain_text(page(TWO, JUDGED, negatives=2))
    assert "document queries text b 2 three p1 1 one p2 1 two" in read


def test_slices_are_shown_with_the_share_that_is_suspected(page):
    """q1 has 4 candidates: its positive, p2 within the margin, and b and c, which are kept."""
    slices = [Slice("short", frozenset({"q1"}))]
    read = plain_text(page(TWO, JUDGED, negatives=3, margin_fraction=0.5, slices=slices))
    assert "slice queries pairs kept short pairs without suspected short 1 1 2 1 0 25.0%" in read
    assert "Slices" not in plain_text(page(TWO, JUDGED))


def test_numbers_have_thousands_separators(page):
    changed = {"retrieved": 1234567, "kept": 12345, "dropped": {"overused": 1222222}, "pairs": 4321, "asked": 54321}
    read = plain_text(page(TWO, JUDGED, stats=changed))
    assert "Kept 12,345 hard negatives of 1,234,567 candidates for 4,321 (query, positive) pairs" in read
    assert "Asked 54,321 = kept 12,345" in read
    assert "overused 1,222,222 99.0%" in read


def test_without_a_negative_the_page_says_so_and_shows_no_examples(page):
    """With a margin of 2 - nothing scores below -0.8."""
    html = page(TWO, {"q": {"p1": 1}}, margin_fraction=1.9)
    read = plain_text(html)
    assert "No candidate was kept, so there are no examples." in read
    assert "<article>" not in html
    for title in ("Nearest to their positive", "Drawn at random", "Documents used most", "Positive's score minus"):
        assert title not in read
    assert "negatives" not in re.findall(r">(\w+)</text>", html)
    assert "No candidate was kept" not in plain_text(page(TWO, {"q": {"p1": 1}}))


def test_the_page_has_the_settings(page):
    assert "margin_fraction: 0.125" in page(TWO, JUDGED, margin_fraction=0.125)


def test_the_page_loads_nothing(page):
    html = page(TWO, JUDGED, negatives=2)
    assert set(re.findall(r"\w+://[^\"'\s<]*", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe|base)\b|@import|url\((?!#)", html)
    assert "default-src 'none'" in html


def test_the_page_is_for_phones_and_for_the_dark(page):
    html = page(TWO, JUDGED)
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in html
    assert "prefers-color-scheme: dark" in html


def test_the_same_stats_give_the_same_bytes(page):
    assert page(TWO, JUDGED, negatives=2) == page(TWO, JUDGED, negatives=2)


def test_a_margin_beyond_the_curve_draws_no_line(page):
    html = page(TWO, JUDGED, margin_fraction=1.5)
    assert "The line is" not in plain_text(html)
    assert ">1.5</text>" not in html


def test_a_run_that_keeps_nothing_says_what_to_widen(mined):
    stats, _, _ = mined(TWO, JUDGED, max_score=-0.5)
    said = summary(stats)
    assert "NO HARD NEGATIVE was kept" in said
    assert "most candidates are outside_scores; widen what drops them" in said
    assert "NO HARD NEGATIVE" not in summary(mined(TWO, JUDGED)[0])
