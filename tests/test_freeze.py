"""A frozen set stays what it was: changes are refused, versions named, looks counted."""

import json
import shutil

import pytest

from closecall.errors import ArtifactError, ConfigError
from closecall.looks import add_look, false_gain_chance, read_looks, wear
from closecall.pipeline import load_experiment
from eval.against import against


@pytest.fixture(scope="module")
def judged(tmp_path_factory, toy_config, tiny_model):
    """A frozen toy experiment that has run once."""
    config = toy_config(tmp_path_factory.mktemp("frozen"), tiny_model)
    experiment = load_experiment(config)
    experiment.freeze(None, "")
    experiment.run()
    return config


@pytest.fixture
def config(judged, tmp_path):
    """A copy of it, with nothing in it that points to the original."""
    shutil.copytree(judged.parent, tmp_path / "copy")
    path = tmp_path / "copy" / judged.name
    path.write_text(path.read_text().replace(str(judged.parent), str(path.parent)))
    return path


def rejudge(config, old, new):
    data = config.parent / "data" / "qrels.tsv"
    assert old in data.read_text()
    data.write_text(data.read_text().replace(old, new))


def test_the_verdict_names_the_version_and_is_logged_once(config):
    experiment = load_experiment(config)
    verdict = experiment.run().read_json("verdict.json")
    assert (verdict["version"]["version"], verdict["looks"]) == ("1", 1)
    assert verdict["version"]["lock"] == experiment.lock.seal
    (look,) = read_looks(experiment.looks)
    assert (look["kind"], look["version"], look["outcome"]) == ("verdict", "1", verdict["outcome"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: rejudge(c, "create-bucket-0\tcreate-bucket\t1", "create-bucket-0\tcreate-bucket\t2"), "judgments"),
        (lambda c: _append(c, "queries.jsonl", '{"_id": "new", "text": "make it"}'), "queries"),
        (lambda c: _append(c, "corpus.jsonl", '{"_id": "new", "text": "a new page"}'), "corpus"),
    ],
)
def test_a_changed_set_is_refused_by_every_stage(config, change, named):
    change(config)
    for stage in ("run", "split", "verify"):
        with pytest.raises(ArtifactError, match=f"version 1 of this set is frozen.*{named}"):
            getattr(load_experiment(config), stage)()
    if named == "corpus":
        with pytest.raises(ArtifactError):
            load_experiment(config).mine()


def _append(config, name, line):
    with (config.parent / "data" / name).open("a") as handle:
        handle.write(line + "\n")


def test_a_new_version_may_judge_test_queries_anew_and_says_what_changed(config):
    experiment = load_experiment(config)
    first = config.parent / "first"
    shutil.copytree(experiment.output / "verdict", first)
    test_query = json.loads((experiment.output / "split/test/queries.jsonl").read_text().splitlines()[0])["_id"]
    document = test_query.rsplit("-", 1)[0]
    rejudge(config, f"{test_query}\t{document}\t1", f"{test_query}\t{document}\t2")

    with pytest.raises(ConfigError, match="--note"):
        load_experiment(config).freeze("2", "")
    lock = load_experiment(config).freeze("2", "the first was judged too low")
    assert (lock.current.version, lock.current.changed) == ("2", ("judgments", "split (test)"))
    verdict = load_experiment(config).run()
    assert verdict.read_json("verdict.json")["version"]["version"] == "2"
    assert verdict.read_json("verdict.json")["looks"] == 1  # none was given on these judgments before
    with pytest.raises(ArtifactError, match=r"different versions of the test set, version 1 .* version 2"):
        against(first, verdict.folder)


def test_a_version_never_changes_and_needs_a_reason(config):
    with pytest.raises(ConfigError, match=r"--version 1: is in .* already"):
        load_experiment(config).freeze("1", "again")
    with pytest.raises(ArtifactError, match="nothing has changed since version 1"):
        load_experiment(config).freeze("2", "again")


def test_a_lock_that_was_edited_is_refused(config):
    path = config.with_name("toy-frozen.json")
    path.write_text(path.read_text().replace('"test": "', '"test": "0', 1))
    with pytest.raises(ArtifactError, match="no lock as closecall writes it"):
        load_experiment(config).run()


def test_two_verdicts_on_one_version_are_compared_query_by_query(config):
    experiment = load_experiment(config)
    first = config.parent / "first"
    shutil.copytree(experiment.output / "verdict", first)
    second = load_experiment(config, ["eval.resamples=1999"]).evaluate()
    assert second.read_json("verdict.json")["looks"] == 2
    found = against(second.folder, first)  # the same model: nothing can differ
    assert (found.measure, found.result.delta, found.result.n) == ("nDCG@10", 0.0, found.result.ties)


def test_nine_verdicts_wear_a_test_set():
    """1 - 0.975^8 = 18.3 %, 1 - 0.975^9 = 20.4 %."""
    assert false_gain_chance(9, 0.95) == pytest.approx(0.2038, abs=1e-4)
    assert wear(1, 0.95) is None
    assert not wear(8, 0.95).alarm
    assert wear(9, 0.95).alarm
    assert "number 9" in wear(9, 0.95).found


def test_a_look_that_was_cut_off_is_left_out_and_the_next_one_whole(tmp_path):
    path = tmp_path / "looks.jsonl"
    add_look(path, {"kind": "verdict", "test": "t", "key": "a"})
    path.write_text(path.read_text() + '{"kind": "ver')
    assert [one["key"] for one in read_looks(path)] == ["a"]
    add_look(path, {"kind": "verdict", "test": "t", "key": "a"})
    add_look(path, {"kind": "verdict", "test": "t", "key": "b"})
    assert [one["key"] for one in read_looks(path)] == ["a", "b"]
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(ArtifactError, match="line 1"):
        read_looks(path)
