"""Prompts that were forgotten, or that do harm: a model that needs them scores far lower without, and the reverse."""

from __future__ import annotations

import json
import re
from pathlib import Path

from closecall.encoder import TextEncoder
from closecall.encoding import prompt_of
from closecall.errors import ModelError

FAMILIES: tuple[tuple[str, str, str], ...] = (
    (r"multilingual-e5-\w+-instruct|e5-mistral", "Instruct: ...\\nQuery: ", ""),
    (r"(^|[/_-])e5-(small|base|large)", "query: ", "passage: "),
    (r"bge-(small|base|large)-en", "Represent this sentence for searching relevant passages: ", ""),
    (r"snowflake-arctic-embed|mxbai-embed", "Represent this sentence for searching relevant passages: ", ""),
    (r"nomic-embed-text", "search_query: ", "search_document: "),
    (r"qwen3-embedding", "Instruct: ...\\nQuery:", ""),
    (r"embeddinggemma", "task: search result | query: ", "title: none | text: "),
)
"""(names, query prompt, document prompt) of models trained with prompts, by their model cards."""
HARMFUL = 0.8
"""Prompts that bring dev below this share of what the model scores without them are a mistake, not a choice."""


def advice(encoder: TextEncoder) -> str:
    """What to set when a model of a family that was trained with prompts runs without any; else empty."""
    if _prompts(encoder) != ("", ""):
        return ""
    config = encoder.folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    names = f"{_tail(encoder.folder)} {encoder.config.name} {content.get('_name_or_path', '')}".lower()
    for pattern, query, document in FAMILIES:
        if re.search(pattern, names):
            second = f" and model.document_prompt to {document!r}" if document else ""
            return (
                f"{encoder.config.name} runs without prompts, but its family was trained with them: set "
                f"model.query_prompt to {query!r}{second}, as its model card says"
            )
    return ""


def has_prompts(encoder: TextEncoder) -> bool:
    """Whether a prompt is put before queries or documents."""
    return _prompts(encoder) != ("", "")


def check(encoder: TextEncoder, prompted: float, bare: float, measure: str) -> None:
    """ModelError when dev with the prompts is far below dev without."""
    if prompted >= bare * HARMFUL:
        return
    query, document = _prompts(encoder)
    raise ModelError(
        f"finetune: with the prompts {query!r} (queries) and {document!r} (documents) the base scores {measure} "
        f"{prompted:.4f} on dev, without any {bare:.4f}: these are not the prompts of this model; correct "
        'model.query_prompt and model.document_prompt ("" for none)'
    )


def _prompts(encoder: TextEncoder) -> tuple[str, str]:
    return prompt_of(encoder.model, "query"), prompt_of(encoder.model, "document")


def _tail(folder: Path) -> str:
    """The last names of a path: a hub snapshot's folder is called by its commit, its model two levels above."""
    return "/".join(folder.parts[-4:])
