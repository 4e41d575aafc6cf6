"""Datasets and artifacts in object storage are those of local folders; what is half there is never read."""

import json
import shutil

import fsspec
import pytest

from closecall.errors import ConfigError, DataError
from closecall.pipeline import load_experiment
from closecall.storage import Mirror, fetched, is_address, with_addresses

BUCKET = "memory://bucket"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """An empty file system in memory, and an empty cache."""
    monkeypatch.setenv("CLOSECALL_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    return files


@pytest.fixture
def counted(memory, monkeypatch):
    """The files that are fetched and sent, in their order."""
    moved = []
    for name in ("get_file", "put_file"):
        move = getattr(type(memory), name)

        def counting(self, source, target, *rest, move=move, name=name, **options):
            moved.append((name[:3], (source if name == "get_file" else target).rsplit("bucket/")[-1]))
            return move(self, source, target, *rest, **options)

        monkeypatch.setattr(type(memory), name, counting)
    return moved


def test_what_is_an_address():
    assert [is_address(value) for value in ("s3://a/b", "gs://a", "memory://a")] == [True] * 3
    assert [is_address(value) for value in ("data", "/data", "file:///data", None, 3)] == [False] * 5


def test_a_file_is_fetched_once_and_again_when_it_changed(memory, counted):
    memory.pipe("/bucket/corpus.jsonl", b"one")
    first = fetched(f"{BUCKET}/corpus.jsonl")
    assert (first.name, first.read_bytes()) == ("corpus.jsonl", b"one")
    assert fetched(f"{BUCKET}/corpus.jsonl") == first
    assert len(counted) == 1
    memory.pipe("/bucket/corpus.jsonl", b"three")
    assert fetched(f"{BUCKET}/corpus.jsonl").read_bytes() == b"three"


def test_of_a_folder_the_files_of_a_dataset_are_fetched_and_nothing_else(memory):
    for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels/test.tsv", "notes.txt", "vectors/big.bin"):
        memory.pipe(f"/bucket/set/{name}", b"x")
    folder = fetched(f"{BUCKET}/set")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"corpus.jsonl.gz", "queries.jsonl", "qrels/test.tsv"}


def test_faults_are_one_message_with_the_address(memory, monkeypatch):
    with pytest.raises(DataError, match=r"memory://bucket/none: nothing there, or a folder without corpus\.jsonl"):
        fetched(f"{BUCKET}/none")
    with pytest.raises(DataError, match=r"nosuch://x: cannot be used \(ValueError: Protocol not known: nosuch\)"):
        fetched("nosuch://x")

    def missing(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ConfigError, match=r"b/c: what reads s3:// is not installed; pip install 'closecall\[s3\]'"):
        fetched("s3://b/c")


def test_messages_name_the_address_and_not_its_copy(memory):
    memory.pipe("/bucket/corpus.jsonl", b"one")
    place = fetched(f"{BUCKET}/corpus.jsonl")
    assert with_addresses(f"{place} line 1: wrong") == "memory://bucket/corpus.jsonl line 1: wrong"


def artifact(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "triples.txt").write_text(text)
    (folder / "manifest.json").write_text(json.dumps({"text": text}))


def test_a_mirror_sends_what_changed_with_the_manifest_last(memory, counted):
    mirror = Mirror(f"{BUCKET}/out")
    artifact(mirror.folder / "mined", "one")
    (mirror.folder / ".lock").touch()
    mirror.push()
    assert counted == [("put", "out/mined/triples.txt"), ("put", "out/mined/manifest.json")]
    mirror.push()
    assert len(counted) == 2
    assert not memory.exists("/bucket/out/.lock")


def test_a_mirror_that_is_gone_or_on_another_machine_is_fetched(memory, counted):
    first = Mirror(f"{BUCKET}/out")
    artifact(first.folder / "mined", "one")
    first.push()
    shutil.rmtree(first.folder)
    again = Mirror(f"{BUCKET}/out")
    again.pull()
    assert (again.folder / "mined" / "triples.txt").read_text() == "one"
    moved = len(counted)
    again.pull()
    again.push()
    assert len(counted) == moved


def test_an_upload_that_is_cut_off_leaves_no_manifest_and_goes_on_at_the_next_file(memory, counted, monkeypatch):
    mirror = Mirror(f"{BUCKET}/out")
    artifact(mirror.folder / "mined", "one")
    mirror.push()
    artifact(mirror.folder / "mined", "three")
    (mirror.folder / "mined" / "more.txt").write_text("more")
    put = type(memory).put_file

    def cut(self, source, target, *rest, **options):
        if target.endswith("triples.txt"):
            raise ConnectionError("cut off")
        return put(self, source, target, *rest, **options)

    monkeypatch.setattr(type(memory), "put_file", cut)
    with pytest.raises(DataError, match=r"memory://bucket/out: cannot be used \(ConnectionError: cut off\)"):
        mirror.push()
    assert not memory.exists("/bucket/out/mined/manifest.json")
    monkeypatch.setattr(type(memory), "put_file", put)
    del counted[:]
    Mirror(f"{BUCKET}/out").push()
    assert memory.cat("/bucket/out/mined/triples.txt") == b"three"
    assert json.loads(memory.cat("/bucket/out/mined/manifest.json")) == {"text": "three"}


def test_files_that_an_artifact_has_no_more_go_there_too(memory):
    mirror = Mirror(f"{BUCKET}/out")
    artifact(mirror.folder / "mined", "one")
    (mirror.folder / "mined" / "old.txt").write_text("old")
    mirror.push()
    (mirror.folder / "mined" / "old.txt").unlink()
    mirror.push()
    assert not memory.exists("/bucket/out/mined/old.txt")
    assert memory.exists("/bucket/out/mined/manifest.json")


def test_mining_with_everything_in_object_storage_is_that_of_local_folders(memory, config_file, toy_data, tmp_path):
    local = load_experiment(config_file)
    local.split()
    mined = local.mine().manifest
    for path in toy_data.rglob("*"):
        if path.is_file():
            memory.pipe(f"/bucket/data/{path.relative_to(toy_data).as_posix()}", path.read_bytes())
    text = config_file.read_text().replace(f"folder: {toy_data}", f"folder: '{BUCKET}/data'")
    config_file.write_text(text.replace("output: out", f"output: '{BUCKET}/out'"))
    shutil.rmtree(toy_data)
    remote = load_experiment(config_file)
    remote.split()
    assert remote.mine().manifest["files"] == mined["files"]
    shutil.rmtree(tmp_path / "cache")  # another machine
    again = load_experiment(config_file)
    assert (
        again.mine().manifest["written_at"] == json.loads(memory.cat("/bucket/out/mined/manifest.json"))["written_at"]
    )
    assert again.store.counted == (0, 0)
