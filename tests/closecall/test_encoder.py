"""A model is found or refused with one clear message, and texts become the vectors its settings ask for."""

import hashlib
import shutil
import sys

import numpy as np
import pytest

from closecall.encoder import ModelConfig, TextEncoder, load_encoder, prompt_of
from closecall.errors import ModelError
from closecall.models import resolve_model

TEXTS = ["create the bucket", "remove a key", "please show all the queue"]


@pytest.fixture
def encoder(tiny_model):
    """An encoder of the tiny model with the given settings."""
    return lambda **settings: load_encoder(ModelConfig(name=str(tiny_model), device="cpu", **settings))


@pytest.fixture
def copied(tiny_model, tmp_path):
    """A copy of the tiny model's folder that a test may change."""
    return shutil.copytree(tiny_model, tmp_path / "copy")


def refusal(name, **settings):
    with pytest.raises(ModelError) as error:
        load_encoder(ModelConfig(name=str(name), **settings))
    return str(error.value)


def test_a_model_inside_an_installed_package_is_found(copied, tmp_path, monkeypatch):
    package = tmp_path / "my_model_package"
    package.mkdir()
    (package / "__init__.py").touch()
    copied.rename(package / "model")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("package:my_model_package/model") == package / "model"
    assert "my_model_package" not in sys.modules


def test_a_package_that_is_not_installed_says_how_to_get_it():
    assert refusal("package:no_such_model/model") == (
        "model.name: no installed package 'no_such_model'; try `pip install no-such-model`"
    )


@pytest.mark.parametrize("name", ["package:", "package:../etc", "package:this"])
def test_a_name_that_is_no_package_is_refused(name):
    assert "no installed package" in refusal(name)


def test_a_package_without_that_folder_says_where_it_looked():
    message = refusal("package:closecall/model")
    assert message.startswith("model.name: the package 'closecall' has no folder 'model' (looked in /")


def test_a_folder_that_is_no_model_says_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    message = f"{tmp_path}: not a model folder: neither modules.json nor config.json; found notes.txt"
    assert refusal(tmp_path) == message


def test_an_empty_folder_is_no_model(tmp_path):
    assert refusal(tmp_path).endswith("found nothing")


def test_a_folder_without_weights_is_refused(copied):
    (copied / "model.safetensors").unlink()
    assert refusal(copied) == f"{copied}: no weights (*.safetensors or *.bin) in this model folder; download it whole"


def test_a_folder_that_does_not_load_is_one_model_error(copied):
    (copied / "model.safetensors").write_bytes(b"no weights")
    encoder = load_encoder(ModelConfig(name=str(copied), device="cpu"))
    with pytest.raises(ModelError, match="copy: cannot be loaded as a model: "):
        encoder.encode(TEXTS, "query")


def test_other_weights_than_the_pinned_are_refused_with_both_digests(copied):
    found, pinned = hashlib.sha256((copied / "model.safetensors").read_bytes()).hexdigest(), "ab" * 32
    message = refusal(copied, model_sha256=pinned)
    assert f"weights have sha256 {found}, model.model_sha256 expects {pinned}" in message
    assert load_encoder(ModelConfig(name=str(copied), model_sha256=found.upper())).weights_sha256 == found


@pytest.mark.parametrize("name", ["./mine", "~/mine", "/mine", "a/b/c"])
def test_a_missing_local_folder_is_not_looked_for_on_the_hub(name):
    assert refusal(name) == (
        f"model.name: no folder {name!r}; a path counts from the config's folder, or from the working directory"
    )


def test_an_unknown_hub_name_offline_is_one_model_error(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal("nobody/no-such-model-here")
    assert message.startswith("model.name: 'nobody/no-such-model-here' is no local folder, and cannot be had from")
    assert message.endswith("check the name, or give a folder or `package:name/folder`")
    assert "\n" not in message


def test_vectors_are_float32_unit_rows(encoder):
    vectors = encoder().encode(TEXTS, "document")
    assert (vectors.dtype, vectors.shape) == (np.float32, (3, 32))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-6)
    assert encoder().dimension == 32


def test_no_texts_are_no_rows(encoder):
    assert encoder().encode([], "query").shape == (0, 32)


def test_the_prompt_of_the_config_is_put_before_texts_of_its_role(encoder):
    plain, prompted = encoder(), encoder(query_prompt="please show ", document_prompt="the ")
    assert_same(prompted.encode(TEXTS, "query"), plain.encode([f"please show {text}" for text in TEXTS], "query"))
    assert_same(prompted.encode(TEXTS, "document"), plain.encode([f"the {text}" for text in TEXTS], "document"))
    assert not np.allclose(prompted.encode(TEXTS, "query"), plain.encode(TEXTS, "query"), atol=1e-3)


@pytest.mark.parametrize("settings", [{}, {"document_prompt": ""}, {"document_prompt": "the "}])
@pytest.mark.parametrize("saved", [{}, {"passage": "all "}, {"document": "all "}, {"query": "all ", "corpus": "all "}])
def test_prompt_of_names_the_prompt_that_encode_uses(copied, saved, settings):
    """Training puts `prompt_of` before its texts; evaluation encodes: they must not differ."""
    save_prompts(copied, saved)
    encoder = load_encoder(ModelConfig(name=str(copied), device="cpu", **settings))
    bare = load_encoder(ModelConfig(name=str(copied), device="cpu", query_prompt="", document_prompt=""))
    for role in ("query", "document"):
        prompt = prompt_of(encoder.model, role)
        assert_same(encoder.encode(TEXTS, role), bare.encode([prompt + text for text in TEXTS], role))


def test_the_prompt_saved_with_the_model_holds_when_the_config_names_none(copied):
    save_prompts(copied, {"query": "please "})
    saved = load_encoder(ModelConfig(name=str(copied), device="cpu"))
    bare = load_encoder(ModelConfig(name=str(copied), device="cpu", query_prompt=""))
    assert_same(saved.encode(TEXTS, "query"), bare.encode([f"please {text}" for text in TEXTS], "query"))


def save_prompts(folder, prompts):
    import json

    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": prompts}))


def assert_same(left, right):
    np.testing.assert_allclose(left, right, atol=1e-6)


def test_a_text_is_cut_at_max_length_tokens(encoder):
    """Six tokens: [CLS], four words, [SEP]."""
    cut, whole = encoder(max_length_tokens=6), encoder()
    long, short = "create the bucket key user queue", "create the bucket key"
    assert cut.max_length_tokens == 6
    assert_same(cut.encode([long], "query"), whole.encode([short], "query"))
    assert not np.allclose(whole.encode([long], "query"), whole.encode([short], "query"), atol=1e-3)


def test_tokens_are_counted_with_prompt_and_special_tokens_before_anything_is_cut(encoder):
    counts = encoder(max_length_tokens=4, query_prompt="please show ").token_counts(TEXTS, "query")
    assert counts.tolist() == [2 + 2 + 3, 2 + 2 + 3, 2 + 2 + 5]


def test_the_model_is_not_loaded_to_name_its_fingerprint(encoder):
    assert "model" not in encoder().__dict__


def test_the_fingerprint_does_not_change_with_the_folders_name(encoder, copied):
    assert TextEncoder(copied, ModelConfig(name="x")).fingerprint == encoder().fingerprint


def test_the_fingerprint_does_not_change_with_the_batch_or_the_device(encoder):
    assert encoder(batch_size=8).fingerprint == encoder(batch_size=16).fingerprint


@pytest.mark.parametrize(
    "settings", [{"query_prompt": "a"}, {"document_prompt": "a"}, {"query_prompt": ""}, {"max_length_tokens": 8}]
)
def test_the_fingerprint_changes_with_every_setting_that_decides_a_vector(encoder, settings):
    assert encoder(**settings).fingerprint != encoder().fingerprint


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "1_Pooling/config.json"])
def test_the_fingerprint_changes_with_every_file_that_decides_a_vector(encoder, copied, name):
    (copied / name).write_bytes((copied / name).read_bytes() + b" ")
    assert TextEncoder(copied, ModelConfig(name="x")).fingerprint != encoder().fingerprint


def test_the_fingerprint_does_not_change_with_a_readme(encoder, copied):
    (copied / "README.md").write_text("new")
    assert TextEncoder(copied, ModelConfig(name="x")).fingerprint == encoder().fingerprint


def test_weights_in_several_files_have_one_digest(copied):
    before = load_encoder(ModelConfig(name=str(copied))).weights_sha256
    (copied / "model-2.safetensors").write_bytes(b"more")
    after = load_encoder(ModelConfig(name=str(copied))).weights_sha256
    assert len(after) == 64
    assert after != before


def test_a_vector_that_is_not_finite_is_refused_with_its_text(encoder, monkeypatch):
    loaded = encoder()
    vectors = np.array([[1, 0], [np.nan, 0], [np.inf, 0]], dtype=np.float32)
    monkeypatch.setattr(loaded.model, "encode_query", lambda *arguments, **options: vectors)
    with pytest.raises(ModelError, match="a vector that is not finite for 2 texts, the first: 'remove a key'"):
        loaded.encode(TEXTS, "query")


def test_a_checkpoint_is_read_without_the_pin_of_its_base():
    config = ModelConfig(name="m", model_sha256="ab" * 32, query_prompt="q: ")
    assert config.unpinned() == ModelConfig(name="m", query_prompt="q: ")
