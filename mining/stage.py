"""The mining stage: the corpus and the train part of the split in, the artifact `mined/` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closecall.corpus import Texts, by_id
from closecall.cross_encoder import CrossEncoderScorer, ScoreCache, cross_encoder_fingerprint
from closecall.dataset import Corpus
from closecall.encoder import Encoder, load_encoder
from closecall.encoding import Vectors
from closecall.manifest import Artifact, sha256_file, up_to_date, writing
from closecall.progress import progress, say
from closecall.slices import Slice, SliceSource, find_slices
from closecall.split import Part, read_part
from closecall.trec import read_run
from closecall.vectors import VectorStore
from mining.artifact import CALIBRATION, STATS, TRIPLES, MinedWriter
from mining.calibrate import calibrate as calibrated
from mining.calibrate import open_config
from mining.calibrate_report import page
from mining.config import GuideConfig, MiningConfig
from mining.guide import CrossEncoderGuide, EncoderGuide, Guide, guide_folder
from mining.mine import Miner, Outside
from mining.report import examples, report_html, summary
from mining.sources import facts_of
from mining.stats import Statistics


def mine_inputs(corpus: Corpus, split: Artifact, encoder: Encoder, config: MiningConfig) -> dict[str, str]:
    """What triples are made of, by content hash."""
    inputs = {
        "corpus": corpus.sha256,
        "train": split.content("train/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "model": encoder.fingerprint,
    }
    for source in config.sources:
        if source.run is not None:
            inputs[f"run {source.label}"] = sha256_file(source.run)
        if source.model is not None:
            inputs[f"model {source.label}"] = load_encoder(source.model).fingerprint
    if config.guide is not None:
        inputs["guide"] = _guide_fingerprint(config.guide)
    return inputs


def _guide_fingerprint(config: GuideConfig) -> str:
    if config.encoder is not None:
        return load_encoder(config.encoder).fingerprint
    return cross_encoder_fingerprint(guide_folder(config), config.scorer())


def mine(
    corpus: Corpus, split: Artifact, encoder: Encoder, store: VectorStore, config: MiningConfig, folder: Path
) -> Artifact:
    """The mined artifact in `folder`: the one on disk if its inputs and settings are the same, else mined now.

    Of the split only the train part is opened.
    """
    inputs = mine_inputs(corpus, split, encoder, config)
    found = up_to_date(folder, "mine", inputs, config.resolved())
    if found is not None:
        say(f"mine: unchanged, {folder} is used again")
        return found
    part, before = read_part(split, "train"), store.counted
    with writing(folder, "mine", inputs=inputs, config=config.resolved(), seed=config.seed) as draft:
        miner = make_miner(corpus, part, encoder, store, config)
        stats = write_mined(miner, draft.folder, train_slices(part, corpus, config))
        draft.write_json(STATS, stats)
        report = mined_page(stats, draft.folder, corpus, encoder, config)
        draft.path("report.html").write_text(report, encoding="utf-8")
        draft.counts |= {key: stats[key] for key in ("queries", "pairs", "asked", "kept", "short", "retrieved")}
        draft.counts |= store.counted.since(before)
        draft.device = encoder.device
    say(summary(stats))
    return Artifact.open(folder, "mine")


def calibrate(
    corpus: Corpus,
    split: Artifact,
    encoder: Encoder,
    store: VectorStore,
    config: MiningConfig,
    depth: int,
    folder: Path,
) -> Artifact:
    """The artifact `calibration/`: what each margin and rank window would leave of one search to rank `depth`.

    Of the split only the train part is opened, and nothing is encoded that mining would not encode.
    """
    looked_at = open_config(config, max(depth, config.negatives))
    inputs = mine_inputs(corpus, split, encoder, looked_at)
    before = store.counted
    with writing(folder, "calibrate", inputs=inputs, config=config.resolved() | {"calibrate_depth": depth}) as draft:
        content = calibrated(make_miner(corpus, read_part(split, "train"), encoder, store, looked_at), config)
        draft.write_json(CALIBRATION, content)
        draft.path("report.html").write_text(page(content), encoding="utf-8")
        draft.counts |= {key: content[key] for key in ("queries", "pairs", "depth")} | store.counted.since(before)
        draft.device = encoder.device
    return Artifact.open(folder, "calibrate")


def make_miner(corpus: Corpus, part: Part, encoder: Encoder, store: VectorStore, config: MiningConfig) -> Miner:
    """The miner of these settings, with all vectors, runs and the guide that they name; nothing is encoded twice."""
    texts = Texts(corpus.documents)
    queries = [query.text for query in part.queries]

    def vectors(model: Encoder, name: str = "") -> tuple[Vectors, Vectors]:
        of = f" ({name})" if name else ""
        documents = store.get(model, texts, "document", f"{len(texts):,} documents{of}")
        return documents, store.get(model, queries, "query", f"training queries{of}")

    document_vectors, query_vectors = vectors(encoder)
    outside = Outside(
        {source.label: vectors(load_encoder(source.model), source.label) for source in config.sources if source.model},
        {source.label: read_run(source.run) for source in config.sources if source.run},
        _guide(config.guide, texts, queries, vectors, store.folder.with_name("guide") / "scores.sqlite"),
        store.folder.with_name("indexes"),
    )
    return Miner(corpus.documents, document_vectors, part, query_vectors, config, outside)


def _guide(
    config: GuideConfig | None,
    texts: Sequence[str],
    queries: Sequence[str],
    vectors: Callable[[Encoder, str], tuple[Vectors, Vectors]],
    cache: Path,
) -> Guide | None:
    if config is None:
        return None
    if config.encoder is not None:
        document_vectors, query_vectors = vectors(load_encoder(config.encoder), "guide")
        return EncoderGuide(query_vectors, document_vectors)
    scorer = CrossEncoderScorer(guide_folder(config), config.scorer(), ScoreCache(cache), "guide")
    return CrossEncoderGuide(scorer, queries, texts)


def write_mined(miner: Miner, folder: Path, slices: Sequence[Slice]) -> dict[str, Any]:
    """Mine, write the tables into the folder as blocks are done, and return the content of `stats.json`."""
    stats = Statistics(miner.pairs, miner.ceilings, miner.config.negatives, list(miner.sources))
    done = 0
    with (
        MinedWriter(folder, miner.pairs, miner.columns) as writer,
        progress("mine (query, positive) pairs", len(miner.pairs)) as advance,
    ):
        for block, last in miner.blocks():
            writer.write(block, last)
            stats.add(block, last)
            advance(last - done)
            done = last
    return stats.result(facts_of(miner.sources), slices)


def mined_page(stats: dict[str, Any], folder: Path, corpus: Corpus, encoder: Encoder, config: MiningConfig) -> str:
    """The HTML report of the tables in the folder."""
    worst, drawn = examples(folder / TRIPLES, np.random.default_rng(config.seed))
    documents = by_id(corpus.documents)
    texts = {item["doc_id"]: documents[item["doc_id"]].full_text for item in stats["most_used"]}
    return report_html(stats, config, worst, drawn, texts, f"fingerprint {encoder.fingerprint[:12]}")


def train_slices(part: Part, corpus: Corpus, config: MiningConfig) -> list[Slice]:
    """The slices of the training queries."""
    documents = by_id(corpus.documents)
    return find_slices(SliceSource(part.queries, part.qrels, documents), config.slice_by)
