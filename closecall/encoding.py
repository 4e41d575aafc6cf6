"""Texts through a model, fast: sorted by length, in batches of so many tokens, in the model's precision."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from closecall.errors import ModelError
from closecall.precision import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

Role = Literal["query", "document"]
Vectors = npt.NDArray[np.float32]

TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65_536}
"""Tokens in a batch, padding included. On two AVX512 cores 2,048 to 8,192 are equally fast (all-MiniLM-L6-v2)."""
FULL_TOKENS = 2048
"""A smaller batch is filled up with its own texts: below about 1,000 tokens a matrix product takes another path, and
rounds in another way."""
WIDTH, NARROW_WIDTH = 16, 32
"""Texts are padded to a multiple of so many tokens, the second in formats of 16 bits: a CPU adds up so many products at
a time, and what is left over in another order, so that a text's vector would depend on the length of its neighbours."""
TEXTS_AT_ONCE = 1024
"""Texts that are tokenised together, in a thread of its own, while the model works on those before."""


def prompt_of(model: SentenceTransformer, role: Role) -> str:
    """The prompt that `encode_query` or `encode_document` puts before a text; empty when there is none.

    As there, the first of these names that the model has counts, even with an empty prompt.
    """
    names = ("query",) if role == "query" else ("document", "passage", "corpus")
    return next((model.prompts[name] or "" for name in names if name in model.prompts), "")


def in_precision(model: SentenceTransformer, precision: Precision) -> SentenceTransformer:
    """A model that computes in this precision; the model itself for float32.

    Only the transformer is converted, in a copy: what it gives for each token is float32 again before it is pooled and
    normalised. A model that does not begin with a transformer stays float32.
    """
    import torch

    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    if kind is None or not hasattr(model[0], "auto_model"):
        return model
    fast = copy.deepcopy(model)
    fast.__dict__.pop("forward", None)  # a trainer's wrapper
    fast[0].to(kind)
    fast[0].register_forward_hook(lambda module, given, features: _float32(features))
    return fast.eval()


def _float32(features: dict[str, Any]) -> dict[str, Any]:
    """The features with every floating-point tensor in float32."""
    import torch

    return {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in features.items()
    }


def encode_texts(
    model: SentenceTransformer, texts: Sequence[str], role: Role, tokens: int | None = None, fill: bool = True
) -> Vectors:
    """float32 (n_texts, dimension), unit rows; ModelError when the model returns a vector that is not finite.

    `tokens` go through the model at once (default: by device). With `fill`, the vector of a text does not depend on the
    other texts: to the last bit on CPUs with AVX512, to 1e-7 in float32 on others. Without, one text costs only itself.
    """
    import torch

    if not texts:
        return np.empty((0, int(model.get_embedding_dimension() or 0)), dtype=np.float32)
    budget = tokens or TOKENS_AT_ONCE.get(model.device.type, TOKENS_AT_ONCE["cpu"])
    vectors: Vectors | None = None
    model.eval()
    with torch.inference_mode():
        for rows, features in _batches(model, texts, role, budget, fill):
            found = model(features, task=role)["sentence_embedding"][: len(rows)]
            found = torch.nn.functional.normalize(found.float(), dim=1).cpu().numpy()
            if vectors is None:
                vectors = np.empty((len(texts), found.shape[1]), dtype=np.float32)
            vectors[rows] = found
    assert vectors is not None
    _check_finite(vectors, texts)
    return vectors


def _check_finite(vectors: Vectors, texts: Sequence[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        text = texts[int(bad[0])][:60]
        raise ModelError(f"the model gives a vector that is not finite for {bad.size} texts, the first: {text!r}")


def _batches(
    model: SentenceTransformer, texts: Sequence[str], role: Role, budget: int, fill: bool
) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, Any]]]:
    """Rows of the texts, and their features on the model's device; the longest texts first."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    parts = [order[start : start + TEXTS_AT_ONCE] for start in range(0, len(order), TEXTS_AT_ONCE)]
    prompt = prompt_of(model, role) or None
    width = WIDTH if next(model[0].parameters()).dtype.itemsize == 4 else NARROW_WIDTH
    padding = int(getattr(model.tokenizer, "pad_token_id", None) or 0)

    def tokenised(part: npt.NDArray[np.int64]) -> dict[str, Any]:
        return dict(model.preprocess([texts[row] for row in part], prompt=prompt, task=role))

    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(tokenised, parts[0])
        for number, part in enumerate(parts):
            features = coming.result()
            if number + 1 < len(parts):
                coming = ahead.submit(tokenised, parts[number + 1])
            for rows, batch in _by_tokens(features, budget, fill, width, padding):
                yield part[rows], {name: _on(value, model) for name, value in batch.items()}


def _on(value: Any, model: SentenceTransformer) -> Any:
    import torch

    return value.to(model.device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def _by_tokens(
    features: Mapping[str, Any], budget: int, fill: bool, multiple: int, padding: int
) -> Iterator[tuple[npt.NDArray[np.int64], Mapping[str, Any]]]:
    """The features in batches of at most so many tokens, each cut to its longest text; in one where none are padded."""
    mask = features.get("attention_mask")
    if mask is None or mask.dim() != 2:
        count = len(features["offsets"]) if "offsets" in features else len(next(iter(features.values())))
        yield np.arange(count), features
        return
    lengths = mask.sum(dim=1).numpy()
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = multiple * max(1, -(-int(lengths[order[start]]) // multiple))
        rows = order[start : start + max(1, budget // width)]
        start += len(rows)
        filled = np.resize(rows, -(-FULL_TOKENS // width)) if fill and len(rows) * width < FULL_TOKENS else rows
        yield rows, {name: _cut(name, value, mask, filled, width, padding) for name, value in features.items()}


def _cut(name: str, value: Any, mask: Tensor, rows: npt.NDArray[np.int64], width: int, padding: int) -> Any:
    """These rows of what has one per text, so many columns wide: without those that pad all of them."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() == 0 or len(value) != len(mask):
        return value
    chosen = value[torch.from_numpy(rows)]
    if value.dim() != 2 or value.shape[1] != mask.shape[1]:
        return chosen
    if not bool(mask[:, 0].all()):  # padded at the left
        return chosen[:, -width:]
    missing = max(0, width - chosen.shape[1])
    return torch.nn.functional.pad(chosen[:, :width], (0, missing), value=padding if name == "input_ids" else 0)
