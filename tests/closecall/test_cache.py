"""`closecall cache` says what is stored and removes what is old, and nothing else."""

import json
import os
import time

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from closecall.cache import kept, prune
from closecall.cli import app
from closecall.errors import ArtifactError
from closecall.vectors import VectorStore


class Encoder:
    """Vectors of three dimensions, all equal."""

    dimension, device, max_length_tokens, weights_sha256 = 3, "cpu", 0, ""

    def __init__(self, name):
        self.fingerprint = self.description = name

    def encode(self, texts, role):
        return np.ones((len(texts), 3), dtype=np.float32)


@pytest.fixture
def store(tmp_path):
    """A store with two models, of which `old` was last used ten days ago."""
    made = VectorStore(tmp_path / "vectors")
    made.get(Encoder("new"), ["a", "b"], "query", "texts")
    made.get(Encoder("old"), ["a", "b", "c"], "document", "texts")
    about = next(path for path in made.folder.glob("*/model.json") if json.loads(path.read_text())["model"] == "old")
    then = time.time() - 10 * 86_400
    os.utime(about, (then, then))
    return made.folder


def names(found):
    return [(one.model, one.role, one.texts, one.unfinished, one.dimensions) for one in found]


def test_each_model_is_listed_with_its_texts_the_longest_unused_first(store):
    found = kept(store)
    assert names(found) == [("old", "document", 3, 0, 3), ("new", "query", 2, 0, 3)]
    assert found[0].last_used_days == pytest.approx(10, abs=0.1)
    for one in found:
        assert one.bytes == sum(path.stat().st_size for path in (store / one.name).iterdir())


def test_damaged_rows_are_counted_as_unfinished(store):
    rows = next((store / kept(store)[1].name).glob("*.rows"))
    rows.write_bytes(bytes(len(rows.read_bytes())))
    assert names(kept(store))[1] == ("new", "query", 0, 2, 3)


def test_pruning_removes_what_was_not_used_for_so_many_days_alone(store):
    assert names(prune(store, 30)) == []
    assert names(prune(store, 9)) == [("old", "document", 3, 0, 3)]
    assert names(kept(store)) == [("new", "query", 2, 0, 3)]
    assert VectorStore(store).get(Encoder("new"), ["a"], "query", "texts").shape == (1, 3)


def test_folders_of_an_earlier_format_are_listed_and_pruned(store):
    (store / "0f").mkdir()
    (store / "0f" / "000000.npy").write_bytes(b"1234")
    assert ("unknown", "", 0, 0, 0) in names(kept(store))
    prune(store, 0)
    assert [path.name for path in store.iterdir()] == ["store.json"]


def test_what_another_closecall_is_encoding_is_not_pruned(store):
    with FileLock(store / kept(store)[0].name / ".lock"), pytest.raises(ArtifactError, match="is encoding here; wait"):
        prune(store, 9)
    assert len(kept(store)) == 2


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="no store of vectors; name a config whose stages have run"):
        kept(tmp_path / "none")


def test_the_command_takes_a_config_or_a_folder(store, config_file):
    config_file.write_text(config_file.read_text() + f"vectors: {store}\n")
    for place in (config_file, store):
        result = CliRunner().invoke(app, ["cache", str(place), "--json"])
        assert result.exit_code == 0
        assert [one["model"] for one in json.loads(result.stdout)["kept"]] == ["old", "new"]
    CliRunner().invoke(app, ["cache", str(store), "--prune", "0"])
    assert kept(store) == []
