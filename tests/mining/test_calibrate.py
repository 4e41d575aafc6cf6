import json
import re
import shutil

import pytest
from rich.console import Console

from closecall import cli
from closecall.pipeline import load_experiment
from mining.calibrate import calibrate, open_config, propose
from mining.calibrate_report import margin_rows, sentence, tables, window_rows
from mining.config import GuideConfig, MiningConfig
from mining.survival import MARGINS

QUERIES = {f"q{number}": {"p1": 1, "p2": 1} for number in range(15)}
"""Each query has two positives: 30 times there is another positive, the fewest from which a risk is told."""


def at(values, margin):
    return values[MARGINS.tolist().index(margin)]


@pytest.fixture
def calibrated(miner):
    """The calibration of this corpus with one negative, searched to its end."""

    def calibrated(corpus, judged, negatives=1, **settings):
        worker = miner(corpus, judged, negatives=negatives, depth=50, max_depth=50, near_copy=None)
        return calibrate(worker, MiningConfig(negatives=negatives, **settings))

    return calibrated


def test_a_candidate_survives_every_margin_up_to_its_own_gap(mine):
    """Below p at 0.8 by 1.25 %, 10 % and 50 %. Two are asked: 3, 2, 2, 1 and 1 pass, and at most 2 count."""
    corpus = {"p": ("one", 0.8), "a": ("two", 0.79), "b": ("three", 0.72), "c": ("four", 0.4)}
    curve = mine(corpus, {"q": {"p": 1}}, negatives=2).stats["survival"]
    assert [at(curve["available"], margin) for margin in (0.0, 0.01, 0.05, 0.1, 0.11, 0.5)] == [2, 2, 2, 2, 1, 1]
    assert [at(curve["filled"], margin) for margin in (0.1, 0.11)] == [1, 0]
    assert (curve["pairs"], curve["asked"]) == (1, 2)


def test_the_curve_does_not_depend_on_the_margin_that_was_mined_with(mine):
    corpus = {"p": ("one", 0.8), "a": ("two", 0.79), "b": ("three", 0.72), "c": ("four", 0.4)}
    found = [mine(corpus, {"q": {"p": 1}}, margin_fraction=margin).stats["survival"] for margin in (None, 0.05, 0.3)]
    assert found[0] == found[1] == found[2]


def test_below_zero_the_gap_is_a_fraction_of_the_positives_magnitude(mine):
    """p at -0.5: a at -0.55 lies 10 % below, b at -0.49 above it."""
    corpus = {"p": ("one", -0.5), "a": ("two", -0.55), "b": ("three", -0.49)}
    curve = mine(corpus, {"q": {"p": 1}}).stats["survival"]
    assert [at(curve["available"], margin) for margin in (0.0, 0.1, 0.11)] == [1, 1, 0]


def test_another_positive_is_taken_when_it_passes_and_nothing_that_passes_is_nearer(calibrated):
    """For p1 (0.8), p2 (0.72) is 10 % below. a (0.76) is nearer, until a margin above 5 % drops it. p1 never passes."""
    corpus = {"p1": ("one", 0.8), "p2": ("two", 0.72), "a": ("three", 0.76), "b": ("four", 0.4)}
    content = calibrated(corpus, QUERIES)
    assert content["known_other_positives"] == 30
    risk = content["risk"]["1"]
    assert [at(risk, margin) for margin in (0.0, 0.05, 0.06, 0.1, 0.11)] == [0.0, 0.0, 0.5, 0.5, 0.0]


def test_a_rank_window_drops_what_is_nearer_whatever_it_scores(calibrated):
    """Ranks: p1 1, a 2, p2 3, b 4. From rank 3 on a is gone, so p2 is taken at margin 0; from rank 5 on nothing is."""
    corpus = {"p1": ("one", 0.8), "p2": ("two", 0.72), "a": ("three", 0.76), "b": ("four", 0.4)}
    content = calibrated(corpus, QUERIES)
    assert [at(content["risk"][rank], 0.0) for rank in ("1", "2", "3", "5")] == [0.0, 0.0, 0.5, 0.0]
    assert [at(content["windows"][rank]["filled"], 0.0) for rank in ("1", "3", "5")] == [30, 30, 0]


def test_the_proposal_is_the_smallest_margin_that_is_safe(calibrated):
    """p2 is taken for p1 up to the margin of 0.10, where it passes; b is left for every pair."""
    content = calibrated({"p1": ("one", 0.8), "p2": ("two", 0.72), "b": ("four", 0.4)}, QUERIES)
    found = content["proposal"]
    assert (found["margin_fraction"], found["risk"], found["filled"]) == (0.11, 0.0, 1.0)
    assert "at most 2% of relevant documents would become negatives: 0.0% would" in sentence(content)


def test_no_margin_is_proposed_that_takes_the_negatives_of_too_many_pairs(calibrated):
    """b at 0.7 is all there is for p2 (2.8 % below) and p1 (12.5 %): from 0.03 on half of the pairs have nothing."""
    content = calibrated({"p1": ("one", 0.8), "p2": ("two", 0.72), "b": ("four", 0.7)}, QUERIES)
    found = content["proposal"]
    assert (found["margin_fraction"], found["risk"]) == (0.0, 0.5)
    assert found["reason"].startswith("none that leaves enough negatives brings the risk to 2%")


def test_without_enough_second_positives_the_risk_is_not_told_and_the_usual_margin_proposed(calibrated):
    content = calibrated({"p1": ("one", 0.8), "b": ("four", 0.4)}, {f"q{number}": {"p1": 1} for number in range(40)})
    assert (content["risk"], content["known_other_positives"]) == (None, 0)
    assert content["proposal"]["margin_fraction"] == 0.05
    assert "too few queries have a second positive" in sentence(content)
    assert {row[-1] for row in (*margin_rows(content), *window_rows(content))} == {"not known"}


def test_a_proposal_for_nothing_at_all_is_still_a_margin():
    content = {"margin_fraction": MARGINS.tolist(), "risk": None}
    empty = {"filled": [0] * len(MARGINS), "pairs": 3}
    assert propose(content | {"windows": {"1": empty}})["margin_fraction"] == 0.05


def test_calibration_looks_at_candidates_before_any_filter_on_ranks_and_scores():
    asked = MiningConfig(
        negatives=2,
        min_rank=3,
        max_score=0.5,
        margin_fraction=0.3,
        margin=0.1,
        guide=GuideConfig(encoder={"name": "x"}),
        max_uses=2,
        select="random",
        sources=[{"source": "dense", "quota": 1}, "bm25"],
    )
    found = open_config(asked, 70)
    off = (found.margin_fraction, found.margin, found.max_score, found.guide, found.near_copy, found.max_uses)
    assert off == (None,) * 6
    assert (found.min_rank, found.select, found.depth, found.max_depth, found.negatives) == (1, "top", 70, 70, 2)
    assert [(source.source, source.quota) for source in found.sources] == [("dense", None), ("bm25", None)]


def test_the_tables_name_the_margin_in_use_and_the_proposal(calibrated):
    content = calibrated({"p1": ("one", 0.8), "p2": ("two", 0.72), "b": ("four", 0.4)}, QUERIES, margin_fraction=0.2)
    names = [row[0] for row in margin_rows(content)]
    assert "0.2 in use" in names
    assert "0.11 proposed" in names
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables(content))
    console.file.close()
    assert re.search(r"0\.11 proposed +100\.0% +█{24} +100\.0% +0\.0%", console.export_text())


def test_the_command_writes_a_page_opens_no_test_query_and_encodes_nothing_twice(config_file, monkeypatch, capsys):
    experiment = load_experiment(config_file)
    experiment.split()
    experiment.mine()
    for part in ("test", "dev"):
        shutil.rmtree(experiment.output / "split" / part)
    again = load_experiment(config_file)
    folder = again.calibrate().folder
    assert (again.store.encoded, again.store.reused > 0) == (0, True)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "<h2>By margin_fraction</h2>" in page
    monkeypatch.setattr("sys.argv", ["closecall", "calibrate", str(config_file), "--json"])
    cli.app(standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
