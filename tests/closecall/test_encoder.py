"""A model is found or refused with one clear message, and texts become the vectors its settings ask for."""

import hashlib
import shutil
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from closecall.encoder import ModelConfig, TextEncoder, load_encoder
from closecall.encoding import prompt_of
from closecall.errors import ModelError
from closecall.models import resolve_model
from closecall.precision import computes_bfloat16

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


def test_float32_vectors_are_those_of_sentence_transformers(encoder, tiny_model):
    ours, plain = encoder(precision="float32"), SentenceTransformer(str(tiny_model), device="cpu")
    texts = [*TEXTS, "", "key " * 900, *(" ".join(["bucket"] * n) for n in range(40))]
    for role, encode in (("query", plain.encode_query), ("document", plain.encode_document)):
        assert_same(ours.encode(texts, role), encode(texts, normalize_embeddings=True))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_vector_of_a_text_does_not_depend_on_the_texts_it_is_encoded_with(encoder, precision):
    """To the last bit where the CPU multiplies bfloat16; an older one adds up in other orders."""
    slack = 0 if computes_bfloat16("cpu") else {"float32": 3e-7, "bfloat16": 0.003}[precision]
    loaded, rng = encoder(precision=precision), np.random.default_rng(0)
    words = ["create", "the", "bucket", "remove", "a", "key"]
    texts = [" ".join(rng.choice(words, size)) for size in rng.integers(1, 60, 150)]
    together = loaded.encode(texts, "document")
    for size in (1, 2, 7, 60):
        rows = rng.choice(len(texts), size, replace=False)
        found = loaded.encode([texts[row] for row in rows], "document")
        np.testing.assert_allclose(found, together[rows], rtol=0, atol=slack)


def test_low_precision_is_close_and_its_vectors_are_float32_unit_rows(encoder):
    exact, fast = encoder(precision="float32"), encoder(precision="bfloat16")
    vectors = fast.encode(TEXTS, "document")
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-6)
    cosines = (vectors * exact.encode(TEXTS, "document")).sum(axis=1)
    assert (cosines > 0.999).all()
    assert not (vectors == exact.encode(TEXTS, "document")).all()


def test_a_model_in_low_precision_leaves_the_loaded_model_as_it_is(encoder):
    fast = encoder(precision="bfloat16")
    fast.encode(TEXTS, "document")
    assert {parameter.dtype for parameter in fast.model.parameters()} == {torch.float32}


def test_a_long_text_costs_a_short_one_nothing(encoder, monkeypatch):
    """Batches hold so many tokens, padding included, of texts of like length."""
    loaded, seen = encoder(precision="float32", batch_tokens=256), []
    forward = loaded.model[0].forward
    monkeypatch.setattr(loaded.model[0], "forward", lambda features: seen.append(features) or forward(features))
    loaded.encode(["key " * 20, *["a key"] * 20], "document")
    assert seen[0]["input_ids"].shape == (64, 32)  # 22 tokens, in 2,048
    assert {batch["input_ids"].shape[1] for batch in seen[1:]} == {16}


def test_a_model_whose_folder_changes_before_it_is_loaded_is_refused(copied):
    loaded = load_encoder(ModelConfig(name=str(copied), device="cpu"))
    (copied / "config.json").write_text((copied / "config.json").read_text() + " ")
    with pytest.raises(ModelError, match="the model has changed since closecall looked at it; start again"):
        loaded.encode(TEXTS, "query")


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


def test_the_model_is_not_loaded_to_name_its_fingerprint_or_its_device(encoder):
    found = encoder()
    assert (found.device, "model" in found.__dict__) == ("cpu", False)


def test_the_fingerprint_does_not_change_with_the_folders_name(encoder, copied):
    assert TextEncoder(copied, ModelConfig(name="x")).fingerprint == encoder().fingerprint


def test_the_fingerprint_does_not_change_with_the_batch(encoder):
    assert encoder(batch_tokens=64).fingerprint == encoder(batch_tokens=128).fingerprint


@pytest.mark.parametrize(
    "settings",
    [{"query_prompt": "a"}, {"document_prompt": "a"}, {"query_prompt": ""}, {"max_length_tokens": 8}],
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


def test_a_vector_that_is_not_finite_is_refused_with_its_text(encoder):
    loaded = encoder(precision="float32")
    number = loaded.model.tokenizer("key")["input_ids"][1]
    loaded.model[0].auto_model.get_input_embeddings().weight.data[number] = float("inf")
    with pytest.raises(ModelError, match="a vector that is not finite for 1 texts, the first: 'remove a key'"):
        loaded.encode(TEXTS, "query")


def test_a_checkpoint_is_read_without_the_pin_of_its_base():
    config = ModelConfig(name="m", model_sha256="ab" * 32, query_prompt="q: ")
    assert config.unpinned() == ModelConfig(name="m", query_prompt="q: ")
