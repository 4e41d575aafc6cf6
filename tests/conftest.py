"""A model small enough to build in a test, and judged queries that it gets half right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time, and no deadline: a busy machine is no fault of the code.
settings.register_profile("closecall", deadline=None, derandomize=True)
settings.load_profile("closecall")

ACTIONS = {
    "create": "make new",
    "delete": "remove drop",
    "list": "show all",
    "update": "change modify",
    "describe": "explain details",
    "copy": "duplicate clone",
}
NOUNS = ("bucket", "user", "queue", "table", "key", "alarm", "image", "policy")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors are slower on several threads: most of the time goes to waiting for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a one-layer BERT with seeded random weights and a word vocabulary."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = sorted({word for pair in ACTIONS.items() for text in pair for word in text.split()} | set(NOUNS))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "please", "##s", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=32)
    model = SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture
def toy_data(tmp_path):
    """A folder in the native layout: 48 documents, 144 queries in the words of another person, grouped by document."""
    return write_toy(tmp_path / "data")


def write_toy(folder: Path) -> Path:
    """Write the toy dataset: one document per action and noun, three queries each, the noun as a column."""
    folder.mkdir(parents=True)
    documents, queries, qrels = [], [], []
    for action, other_words in ACTIONS.items():
        for noun in NOUNS:
            doc_id = f"{action}-{noun}"
            documents.append({"_id": doc_id, "title": "", "text": f"{action} the {noun}"})
            first, second = other_words.split()
            for number, text in enumerate(
                (f"{first} a {noun}", f"please {second} the {noun}", f"{first} {second} {noun}")
            ):
                queries.append({"_id": f"{doc_id}-{number}", "text": text, "noun": noun, "document": doc_id})
                qrels.append(f"{doc_id}-{number}\t{doc_id}\t1")
    write_jsonl(folder / "corpus.jsonl", documents)
    write_jsonl(folder / "queries.jsonl", queries)
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n", encoding="utf-8")
    return folder


def write_jsonl(path: Path, rows: list[dict]) -> None:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def config_file(tmp_path, toy_data, tiny_model):
    """A config over the toy data and the tiny model; its artifacts go to `out` beside it."""
    return write_config(tmp_path, toy_data, tiny_model)


def write_config(folder: Path, data: Path, model: Path) -> Path:
    """Write `toy.yaml` into a folder."""
    path = folder / "toy.yaml"
    path.write_text(
        f"""
output: out
model: {{name: {model}, device: cpu}}
data: {{folder: {data}}}
split: {{held_out: 0.4, dev: 0.2, group_by: document, stratify_by: noun}}
mining: {{negatives: 2, depth: 10}}
finetune: {{epochs: 2, batch_size: 8, learning_rate: 0.003}}
eval: {{resamples: 999, slice_by: [noun], min_slice_queries: 5, min_groups: 5}}
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="session")
def toy_config():
    """Writes the toy data and a config over it into a folder, for fixtures that outlive one test."""

    def write(folder: Path, model: Path) -> Path:
        data = folder / "data"
        return write_config(folder, data if data.exists() else write_toy(data), model)

    return write
