"""An artifact is there whole or not at all, and nobody reads a changed one."""

import errno
import hashlib
import json
from pathlib import Path

import pytest

from closecall import manifest as manifest_module
from closecall.errors import ArtifactError
from closecall.manifest import Artifact, Draft, sha256_file, sha256_json, up_to_date, writing


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out" / "mined"


def write(folder, text="one", *, stage="mine", inputs=None, config=None):
    """An artifact of two files; `text` is the content of the first."""
    with writing(folder, stage, inputs=inputs or {"corpus": "c1"}, config=config or {"depth": 5}, seed=7) as draft:
        draft.path("sub/a.txt").write_text(text, encoding="utf-8")
        draft.write_json("b.json", {"ü": [1, None]})
        draft.counts["rows"] = 2
    return Artifact.open(folder, stage)


def write_half(folder):
    with writing(folder, "mine", inputs={}, config={}) as draft:
        draft.path("sub/a.txt").write_text("two")
        raise RuntimeError("stop")


def test_an_artifact_is_read_as_it_was_written(folder):
    artifact = write(folder)
    assert artifact.file("sub/a.txt").read_text() == "one"
    assert artifact.read_json("b.json") == {"ü": [1, None]}
    assert sorted(item.name for item in folder.parent.iterdir()) == ["mined"]


def test_the_manifest_says_what_the_artifact_was_made_from(folder):
    found = dict(write(folder).manifest)
    assert (found["stage"], found["seed"], found["counts"]) == ("mine", 7, {"rows": 2})
    assert (found["inputs"], found["config"]) == ({"corpus": "c1"}, {"depth": 5})
    assert found["files"]["sub/a.txt"] == {"bytes": 3, "sha256": hashlib.sha256(b"one").hexdigest()}
    assert {"code", "libraries", "device", "machine", "durations_s", "written_at"} <= found.keys()
    assert found["libraries"]["numpy"][0].isdigit()


def test_an_error_while_writing_leaves_the_old_artifact(folder):
    old = write(folder)
    with pytest.raises(RuntimeError, match="stop"):
        write_half(folder)
    again = Artifact.open(folder, "mine")
    again.verify()
    assert again.manifest == old.manifest
    assert again.file("sub/a.txt").read_text() == "one"


def test_an_error_in_the_first_writing_leaves_no_artifact(folder):
    with pytest.raises(RuntimeError, match="stop"):
        write_half(folder)
    with pytest.raises(ArtifactError, match=r"no mine artifact here \(no manifest.json\); run `closecall mine CONFIG`"):
        Artifact.open(folder, "mine")


def test_what_a_killed_run_left_half_written_is_never_read(folder):
    partial = folder.with_name(".mined.partial")
    partial.mkdir(parents=True)
    (partial / "stale.txt").write_text("from the killed run")
    assert up_to_date(folder, "mine", {"corpus": "c1"}, {"depth": 5}) is None
    assert set(write(folder).manifest["files"]) == {"sub/a.txt", "b.json"}
    assert not (folder / "stale.txt").exists()


def test_the_manifest_comes_last(folder, monkeypatch):
    write_json = Draft.write_json
    there_before = {}

    def watched(self, name, value):
        there_before[name] = sorted(path.name for path in self.folder.rglob("*") if path.is_file())
        write_json(self, name, value)

    monkeypatch.setattr(Draft, "write_json", watched)
    write(folder)
    assert there_before["manifest.json"] == ["a.txt", "b.json"]


def test_a_kill_before_the_manifest_leaves_no_artifact(folder, monkeypatch):
    def killed(self, name, value):
        raise KeyboardInterrupt

    monkeypatch.setattr(Draft, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        write(folder)
    assert not folder.exists()


def test_a_folder_without_a_manifest_is_no_artifact(folder):
    write(folder)
    (folder / "manifest.json").unlink()
    assert up_to_date(folder, "mine", {"corpus": "c1"}, {"depth": 5}) is None
    with pytest.raises(ArtifactError, match="no mine artifact here"):
        Artifact.open(folder, "mine")


def test_a_changed_file_is_an_error_that_says_what_to_do(folder):
    artifact = write(folder)
    (folder / "sub/a.txt").write_text("One")
    with pytest.raises(ArtifactError) as error:
        artifact.file("sub/a.txt")
    before, after = hashlib.sha256(b"one").hexdigest()[:12], hashlib.sha256(b"One").hexdigest()[:12]
    assert str(error.value) == (
        f"{folder}/sub/a.txt: changed since it was written (sha256 {after}, manifest {before}); "
        f"restore the file, or delete {folder} and run `closecall mine CONFIG` again"
    )
    artifact.file("b.json")


def test_a_lost_file_is_an_error_that_says_what_to_do(folder):
    artifact = write(folder)
    (folder / "b.json").unlink()
    with pytest.raises(ArtifactError, match=r"b.json: cannot be read \(No such file or directory\); restore the file"):
        artifact.verify()


def test_a_file_that_the_manifest_does_not_know_is_not_handed_out(folder):
    artifact = write(folder)
    (folder / "extra.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"no file 'extra.json' in its manifest; run `closecall mine CONFIG` again"):
        artifact.read_json("extra.json")


def test_another_stages_folder_is_refused(folder):
    write(folder)
    with pytest.raises(ArtifactError, match="found the stage 'mine', expected 'finetune'; check the `output` folder"):
        Artifact.open(folder, "finetune")


@pytest.mark.parametrize("content", ["{", "", "\xff", "[]"])
def test_a_damaged_manifest_is_an_artifact_error(folder, content):
    write(folder)
    (folder / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(ArtifactError, match=r"manifest\.json: (cannot be read|found the stage None)"):
        up_to_date(folder, "mine", {}, {})


def test_a_manifest_that_lacks_its_files_is_an_artifact_error(folder):
    write(folder)
    (folder / "manifest.json").write_text('{"stage": "mine", "format": 1}')
    with pytest.raises(ArtifactError, match=r"lacks config, .*files, .*; delete"):
        Artifact.open(folder, "mine")


def test_another_format_is_refused(folder):
    write(folder)
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(ArtifactError, match="format 99, this version reads 1; write it again"):
        Artifact.open(folder, "mine")


def test_an_artifact_of_the_same_inputs_and_settings_is_up_to_date(folder):
    write(folder, inputs={"a": "1", "b": "2"}, config={"x": [1], "y": None})
    found = up_to_date(folder, "mine", {"b": "2", "a": "1"}, {"y": None, "x": [1]})
    assert found is not None
    assert found.folder == folder


@pytest.mark.parametrize(
    ("inputs", "config"),
    [({"corpus": "c2"}, {"depth": 5}), ({"corpus": "c1"}, {"depth": 6}), ({}, {"depth": 5}), ({"corpus": "c1"}, {})],
)
def test_an_artifact_of_other_inputs_or_settings_is_not_up_to_date(folder, inputs, config):
    write(folder)
    assert up_to_date(folder, "mine", inputs, config) is None


def test_an_artifact_of_another_code_version_is_not_up_to_date(folder, monkeypatch):
    write(folder)
    monkeypatch.setattr(manifest_module, "code_sha256", lambda: "another")
    assert up_to_date(folder, "mine", {"corpus": "c1"}, {"depth": 5}) is None


def test_a_changed_artifact_is_an_error_and_not_out_of_date(folder):
    write(folder)
    (folder / "sub/a.txt").write_text("tampered")
    with pytest.raises(ArtifactError, match="changed since it was written"):
        up_to_date(folder, "mine", {"corpus": "c1"}, {"depth": 5})


def test_nothing_on_disk_is_not_up_to_date(folder):
    assert up_to_date(folder, "mine", {}, {}) is None


def test_a_kill_between_the_two_renames_gives_the_old_artifact_back(folder, monkeypatch):
    write(folder)
    rename = Path.rename

    def killed(self, target):
        if self.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        write(folder, "two")
    monkeypatch.undo()
    assert not folder.exists()
    assert Artifact.open(folder, "mine").file("sub/a.txt").read_text() == "one"


def test_after_such_a_kill_the_old_artifact_is_still_up_to_date(folder):
    write(folder)
    folder.rename(folder.with_name(".mined.old"))
    assert up_to_date(folder, "mine", {"corpus": "c1"}, {"depth": 5}) is not None


def test_writing_again_leaves_only_the_new_artifact(folder):
    write(folder)
    assert write(folder, "two").file("sub/a.txt").read_text() == "two"
    assert [item.name for item in folder.parent.iterdir()] == ["mined"]


def test_the_same_content_has_the_same_content_hash_wherever_and_whenever(tmp_path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b", inputs={"other": "x"}, config={"depth": 9})
    assert first.content() == second.content()
    assert write(tmp_path / "c", "two").content() != first.content()


def test_a_renamed_file_is_other_content(tmp_path):
    contents = set()
    for name in ("a.txt", "b.txt"):
        with writing(tmp_path / name, "mine", inputs={}, config={}) as draft:
            draft.path(name).write_text("same")
        contents.add(Artifact.open(tmp_path / name, "mine").content())
    assert len(contents) == 2


def test_the_content_of_one_part_does_not_depend_on_the_others(tmp_path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b", "two")
    assert first.content("b.") == second.content("b.")
    assert first.content("sub/") != second.content("sub/")


def test_a_place_where_nothing_may_be_written_is_an_artifact_error(folder, monkeypatch):
    def refuse(self, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ArtifactError, match=r"mined: cannot be written \(Permission denied\); choose another `output`"):
        write(folder)


def test_an_output_that_is_a_file_is_an_artifact_error(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ArtifactError, match=r"cannot be written \(Not a directory\); choose another `output`"):
        write(tmp_path / "out" / "mined")


def test_a_hash_of_json_depends_on_content_and_not_on_the_order_of_keys():
    assert sha256_json({"a": 1, "b": [2, "ü"]}) == sha256_json({"b": [2, "ü"], "a": 1})
    assert sha256_json(["a", "b"]) != sha256_json(["b", "a"])
    assert sha256_json({}) == hashlib.sha256(b"{}").hexdigest()


def test_a_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"\x00\r\n")
    assert sha256_file(tmp_path / "f") == hashlib.sha256(b"\x00\r\n").hexdigest()
