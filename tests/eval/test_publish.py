import json
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub.errors import OfflineModeIsEnabled
from sentence_transformers import SentenceTransformer

from closecall.errors import ArtifactError, ModelError
from closecall.pipeline import load_experiment


@pytest.fixture(scope="module")
def done(tmp_path_factory, toy_config, tiny_model):
    """A run that has ended."""
    made = load_experiment(toy_config(tmp_path_factory.mktemp("done"), tiny_model))
    made.run()
    return made


def test_a_published_folder_is_a_plain_model_whose_card_carries_the_verdict(done, tmp_path):
    folder = done.publish(tmp_path / "deep" / "model", None)
    ours = SentenceTransformer(str(done.output / "checkpoint" / "model"), device="cpu")
    assert (SentenceTransformer(str(folder), device="cpu").encode("a key") == ours.encode("a key")).all()
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---", 2)
    assert yaml.safe_load(head)["library_name"] == "sentence-transformers"
    verdict = json.loads((done.output / "verdict" / "verdict.json").read_text(encoding="utf-8"))
    assert (
        text.index("## Training") < text.index(f"## Verdict\n\n{verdict['sentence']}") < text.index("| all queries |")
    )
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert "## Verdict" not in (done.output / "checkpoint" / "model" / "README.md").read_text(encoding="utf-8")


def test_a_folder_that_is_there_is_never_written_over(done, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(ArtifactError, match=rf"{name}: is there already"):
            done.publish(tmp_path / name, None)
    assert (tmp_path / "full" / "mine.txt").read_text() == (tmp_path / "file").read_text() == "kept"
    assert (done.publish(tmp_path / "empty", None) / "README.md").exists()


def test_a_verdict_on_another_checkpoint_is_not_published(done, tmp_path, toy_config, tiny_model):
    other = load_experiment(toy_config(tmp_path, tiny_model))
    other.run()
    again = load_experiment(tmp_path / "toy.yaml", ["finetune.epochs=1"])
    again.finetune()
    with pytest.raises(ArtifactError, match=r"verdict: a verdict on another checkpoint .*run `closecall eval CONFIG`"):
        again.publish(tmp_path / "model", None)
    assert not (tmp_path / "model").exists()


def hub(monkeypatch, fault=None):
    """What the hub is asked for; with `fault` it refuses."""
    asked = []

    def create_repo(name, **kwargs):
        if fault:
            raise fault
        asked.append((name, kwargs))

    def upload_folder(**kwargs):
        asked.append(kwargs)

    api = SimpleNamespace(create_repo=create_repo, upload_folder=upload_folder)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    return asked


def test_nothing_goes_to_the_hub_unless_asked(done, tmp_path, monkeypatch):
    asked = hub(monkeypatch)
    done.publish(tmp_path / "one", None)
    assert asked == []
    folder = done.publish(tmp_path / "two", "us/model")
    assert asked[0] == ("us/model", {"private": True, "exist_ok": True})
    assert (asked[1]["repo_id"], asked[1]["folder_path"]) == ("us/model", folder)


def test_a_hub_that_refuses_is_named_and_the_folder_is_kept(done, tmp_path, monkeypatch):
    hub(monkeypatch, OfflineModeIsEnabled("no network"))
    with pytest.raises(ModelError, match=r"--push-to-hub us/model: no network; the folder .*model is ready"):
        done.publish(tmp_path / "model", "us/model")
    assert (tmp_path / "model" / "README.md").exists()
