import io
import json

import pyarrow.parquet as pq
import pytest

from closecall.pipeline import load_experiment
from closecall.progress import console
from mining.artifact import DROPPED, STATS, TRIPLES, read_triples


@pytest.fixture
def said(monkeypatch):
    """What the stages say on stderr, as one growing text."""
    text = io.StringIO()
    monkeypatch.setattr(console, "_file", text)  # `file` would be restored to what stderr was then
    return text


@pytest.fixture
def experiment(config_file):
    made = load_experiment(config_file)
    made.split()
    return made


def test_the_artifact_holds_triples_dropped_candidates_stats_and_a_report(experiment):
    artifact = experiment.mine()
    files = sorted(path.name for path in artifact.folder.iterdir())
    assert files == sorted(["manifest.json", "report.html", STATS, TRIPLES, DROPPED])
    assert sorted(artifact.manifest["files"]) == sorted(set(files) - {"manifest.json"})


def test_the_stats_add_up_with_the_files(experiment):
    artifact = experiment.mine()
    stats, triples = artifact.read_json(STATS), read_triples(artifact)
    reasons = pq.read_table(artifact.file(DROPPED))["reason"].to_pylist()
    kept = sum(len(triple.negatives) for triple in triples)
    assert (stats["pairs"], stats["kept"]) == (len(triples), kept)
    assert stats["asked"] == 2 * len(triples) == kept + stats["short"]
    assert stats["retrieved"] == kept + len(reasons)
    assert stats["dropped"] == {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    assert {key: artifact.manifest["counts"][key] for key in ("pairs", "kept", "short")} == {
        key: stats[key] for key in ("pairs", "kept", "short")
    }


def test_only_training_queries_are_mined(experiment):
    folder = experiment.output / "split" / "train" / "queries.jsonl"
    train = {json.loads(line)["_id"] for line in folder.read_text(encoding="utf-8").splitlines()}
    for name in ("dev", "test"):  # the stage must not open them
        for path in (experiment.output / "split" / name).iterdir():
            path.unlink()
    assert {triple.query_id for triple in read_triples(experiment.mine())} == train


def test_an_unchanged_run_is_skipped_and_says_so(experiment, config_file, said):
    first = experiment.mine()
    written = (first.folder / "manifest.json").read_bytes()
    again = load_experiment(config_file)
    again.mine()
    assert f"mine: unchanged, {first.folder} is used again" in said.getvalue()
    assert (first.folder / "manifest.json").read_bytes() == written
    assert again.store.encoded + again.store.reused == 0


def test_a_changed_margin_mines_again_without_encoding_again(experiment, config_file, said):
    before = experiment.mine().read_json(STATS)
    again = load_experiment(config_file, ["mining.margin_fraction=0.3"])
    after = again.mine().read_json(STATS)
    assert (again.store.encoded, again.store.reused > 0) == (0, True)
    assert "unchanged" not in said.getvalue()
    assert after["dropped"]["within_margin"] > before["dropped"]["within_margin"]


def test_mining_twice_from_nothing_gives_the_same_bytes(experiment, config_file, tmp_path):
    first = experiment.mine()
    other = load_experiment(config_file, [f"output={tmp_path / 'other'}"])
    other.split()
    second = other.mine()
    assert first.manifest["files"] == second.manifest["files"]


def test_the_report_says_what_was_asked_kept_and_short_and_shows_examples(experiment, said):
    artifact = experiment.mine()
    stats, report = artifact.read_json(STATS), artifact.file("report.html").read_text(encoding="utf-8")
    assert f"Asked {stats['asked']:,} = kept {stats['kept']:,} + short {stats['short']:,}." in report
    assert f"Kept {stats['kept']:,} hard negatives of {stats['retrieved']:,} candidates" in report
    assert report.count("<article>") == 20
    for used in stats["most_used"]:
        assert f"<th>{used['doc_id']}</th>" in report
    assert f"mine: {stats['kept']:,} hard negatives for {stats['pairs']:,} (query, positive) pairs" in said.getvalue()


def test_nothing_goes_to_stdout(experiment, capfd):
    experiment.mine()
    assert capfd.readouterr().out == ""
