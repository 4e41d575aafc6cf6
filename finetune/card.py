"""The model card of a checkpoint: what was trained, how it was chosen, and how to use it."""

from __future__ import annotations

from pathlib import Path

import yaml

from closecall import __version__
from closecall.encoder import TextEncoder
from closecall.encoding import prompt_of
from finetune.artifact import Curve, described
from finetune.config import FinetuneConfig

USE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_NAME")
queries = model.encode_query(["..."])
documents = model.encode_document(["..."])
model.similarity(queries, documents)
```"""


def training_card(curve: Curve, config: FinetuneConfig, encoder: TextEncoder) -> str:
    """README.md of the model folder, with the YAML header that the hub reads."""
    head = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", "closecall"],
    }
    if not Path(encoder.config.name).is_dir() and ":" not in encoder.config.name:
        head["base_model"] = encoder.config.name
    settings = ", ".join(f"{key} {value}" for key, value in _changed(config).items()) or "defaults"
    prompts = [f"`{prompt_of(encoder.model, role)}`" for role in ("query", "document")]
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {Path(encoder.config.name).name}, tuned with closecall",
        f"An embedding model for retrieval: [sentence-transformers](https://www.sbert.net), "
        f"{encoder.dimension} dimensions, cosine, at most {encoder.max_length_tokens} tokens.",
        USE,
        "## Training",
        f"MultipleNegativesRankingLoss over mined hard negatives, with what is judged relevant masked in every batch; "
        f"closecall {__version__}; settings that differ from its defaults: {settings}.",
        f"Base: `{encoder.config.name}`, weights sha256 `{encoder.weights_sha256}`. "
        f"Prompts: queries {prompts[0]}, documents {prompts[1]} (`` for none).",
        f"Checkpoint: {described(curve)}, chosen on dev: {curve.measure} {curve.confirmed.base:.4f} -> "
        f"{curve.confirmed.best:.4f} over {curve.confirmed.documents:,} documents. Dev chose it, so this gain is an "
        "optimistic one; the verdict on held-out queries is what counts.",
    ]
    return "\n\n".join(lines) + "\n"


def _changed(config: FinetuneConfig) -> dict[str, object]:
    defaults = FinetuneConfig().resolved()
    return {key: value for key, value in config.resolved().items() if value != defaults[key]}
