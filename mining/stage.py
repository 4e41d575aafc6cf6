"""The mining stage: the corpus and the train part of the split in, the artifact `mined/` out."""

from __future__ import annotations

from pathlib import Path

from closecall.dataset import Corpus
from closecall.encoder import Encoder
from closecall.manifest import Artifact, up_to_date, writing
from closecall.progress import say
from closecall.split import read_part
from closecall.vectors import VectorStore
from mining.artifact import DROPPED, STATS, TRIPLES, write_table
from mining.config import MiningConfig
from mining.mine import Miner
from mining.report import markdown, summary


def mine_inputs(corpus: Corpus, split: Artifact, encoder: Encoder) -> dict[str, str]:
    """What triples are made of, by content hash."""
    return {
        "corpus": corpus.sha256,
        "train": split.content("train/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "model": encoder.fingerprint,
    }


def mine(
    corpus: Corpus, split: Artifact, encoder: Encoder, store: VectorStore, config: MiningConfig, folder: Path
) -> Artifact:
    """The mined artifact in `folder`: the one on disk if its inputs and settings are the same, else mined now.

    Of the split only the train part is opened.
    """
    inputs = mine_inputs(corpus, split, encoder)
    found = up_to_date(folder, "mine", inputs, config.resolved())
    if found is not None:
        say(f"mine: unchanged, {folder} is used again")
        return found
    part = read_part(split, "train")
    with writing(folder, "mine", inputs=inputs, config=config.resolved()) as draft:
        texts = [document.full_text for document in corpus.documents]
        documents = store.get(encoder, texts, "document", f"{len(texts):,} documents")
        queries = store.get(encoder, [query.text for query in part.queries], "query", "training queries")
        mined = Miner(corpus.documents, documents, part, queries, config).mine()
        write_table(draft.path(TRIPLES), mined.triples_table)
        write_table(draft.path(DROPPED), mined.dropped_table)
        draft.write_json(STATS, mined.stats)
        draft.path("report.md").write_text(markdown(mined, config), encoding="utf-8")
        draft.counts |= {key: mined.stats[key] for key in ("queries", "pairs", "asked", "kept", "short", "retrieved")}
        draft.device = encoder.device
    say(summary(mined.stats))
    return Artifact.open(folder, "mine")
