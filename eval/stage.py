"""The evaluation stage: base and checkpoint on the test part of the split in, the artifact `verdict/` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from closecall.dataset import Corpus
from closecall.encoder import Encoder, Vectors
from closecall.leaks import texts_in_training
from closecall.manifest import Artifact, up_to_date, writing
from closecall.progress import say
from closecall.records import Document, Query, Run
from closecall.search import ExactIndex, as_run
from closecall.slices import Slice, SliceSource, find_slices
from closecall.split import Part, read_part
from closecall.trec import write_run
from closecall.vectors import VectorStore
from eval.artifact import BASE_RUN, PER_QUERY, REPORT, TUNED_RUN, VERDICT, verdict_json, write_per_query
from eval.compare import Comparison, compare
from eval.config import EvalConfig
from eval.guard import guarded, load_guard
from eval.report import Shown, markdown
from eval.verdict import decide
from finetune.artifact import Curve, described, read_curve
from mining.artifact import read_triples


@dataclass(frozen=True)
class Contender:
    """A model under evaluation: how it is called, and its encoder."""

    role: str
    name: str
    encoder: Encoder


def evaluate(
    corpus: Corpus,
    split: Artifact,
    mined: Sequence[Artifact],
    checkpoint: Artifact,
    base: Contender,
    tuned: Contender,
    store: VectorStore,
    config: EvalConfig,
    folder: Path,
) -> Artifact:
    """The verdict in `folder`: the one on disk if its inputs and settings are the same, else given now.

    `mined` holds what each round of training read. Both models rank the whole corpus for the same test queries, in
    float32, ties by document id.
    """
    inputs = {
        "corpus": corpus.sha256,
        "test": split.content("test/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "split": split.content(),
        "mined": " ".join(artifact.content() for artifact in mined),
        "checkpoint": checkpoint.content(),
        "base": base.encoder.fingerprint,
        "tuned": tuned.encoder.fingerprint,
    }
    guard = load_guard(config.guard) if config.guard is not None else None
    if guard is not None:
        inputs["guard"] = guard.dataset.sha256
    found = up_to_date(folder, "eval", inputs, config.resolved())
    if found is not None:
        say(f"eval: unchanged, {folder} is used again")
        return found
    part = read_part(split, "test")
    documents = {document.doc_id: document for document in corpus.documents}
    with writing(folder, "eval", inputs=inputs, config=config.resolved(), seed=config.seed) as draft:
        depth = max(config.depth, *(measure.cutoff or 0 for measure in config.all_measures()))
        contenders = (base, tuned)
        runs = {c.role: _rank(corpus.documents, part.queries, c, store, depth) for c in contenders}
        slices = _slices(corpus, part, base.encoder, config)
        groups = {query.query_id: str(query.metadata["_group"]) for query in part.queries}
        comparison = compare(part.qrels, runs[base.role], runs[tuned.role], config, slices, groups)
        kept = None
        if guard is not None:
            asked = [guard.dataset.query(query_id) for query_id in guard.query_ids]
            before, after = (_rank(guard.dataset.documents, asked, c, store, depth) for c in contenders)
            kept = guarded(guard, before, after, config)
        curve = read_curve(checkpoint)
        facts = {
            "models": {c.role: {"name": c.name, "weights_sha256": c.encoder.weights_sha256} for c in contenders},
            "training": _training(curve),
            "seeds": {str(one.seed): one.best[0] for one in curve.seeds},
            "guard": None if kept is None else kept.as_json(),
            "leaks": _leaks(split, mined, part),
        }
        content = verdict_json(decide(comparison, config, kept, curve.spread), comparison, config, facts)
        for name, contender in ((BASE_RUN, base), (TUNED_RUN, tuned)):
            order = [query.query_id for query in part.queries]
            write_run(draft.path(name), runs[contender.role], contender.role, order)
        write_per_query(draft.path(PER_QUERY), comparison, part.text_of())
        queries = {query.query_id: query for query in part.queries}
        shown = Shown(queries, documents, part.qrels, runs[base.role], runs[tuned.role])
        draft.path(REPORT).write_text(markdown(content, shown, _values(comparison)), encoding="utf-8")
        draft.write_json(VERDICT, content)
        draft.counts |= {"queries": comparison.deciding.n, "documents": len(documents)}
        draft.device = tuned.encoder.device
    return Artifact.open(folder, "eval")


def _rank(
    corpus: Sequence[Document], queries: Sequence[Query], contender: Contender, store: VectorStore, depth: int
) -> Run:
    """The run of one model on these queries."""
    texts = [document.full_text for document in corpus]
    doc_ids = [document.doc_id for document in corpus]
    encoder, role = contender.encoder, contender.role
    documents: Vectors = store.get(encoder, texts, "document", f"{len(texts):,} documents ({role})")
    asked = store.get(encoder, [query.text for query in queries], "query", f"{len(queries):,} queries ({role})")
    hits = ExactIndex(documents, doc_ids).search(asked, depth)
    return as_run(hits, [query.query_id for query in queries], doc_ids)


def _slices(corpus: Corpus, part: Part, encoder: Encoder, config: EvalConfig) -> Sequence[Slice]:
    """All slices of the test queries; positives are counted in tokens to find those the model cannot read whole."""
    documents = {document.doc_id: document for document in corpus.documents}
    wanted = {doc_id for query_id in part.qrels for doc_id in part.qrels.positives(query_id)}
    positives = sorted(doc_id for doc_id in wanted if doc_id in documents)
    counts = encoder.token_counts([documents[doc_id].full_text for doc_id in positives], "document")
    limit = encoder.max_length_tokens or float("inf")
    truncated = frozenset(doc_id for doc_id, count in zip(positives, counts, strict=True) if count > limit)
    return find_slices(SliceSource(part.queries, part.qrels, documents, truncated), config.slice_by)


def _training(curve: Curve) -> str:
    """How the checkpoint was chosen, in a sentence."""
    base, best = curve.confirmed.base, curve.confirmed.best
    if curve.chosen.share == 0:
        return f"No step of training beat the base on dev ({curve.measure} {base:.4f}): the checkpoint is the base."
    spread = "" if curve.spread is None else f" {len(curve.seeds)} seeds differ by {curve.spread:.4f} on dev."
    return (
        f"Chosen on dev: {described(curve)}, {curve.measure} {base:.4f} -> {best:.4f}; "
        f"dev chose it, so its gain is an optimistic one.{spread}"
    )


def _leaks(split: Artifact, mined: Sequence[Artifact], part: Part) -> dict[str, int]:
    """Leaks of test that the split found, and test queries whose text stands in the training rows."""
    triples = [triple for artifact in mined for triple in read_triples(artifact)]
    texts = (
        text for triple in triples for text in (triple.query, triple.positive, *(n.text for n in triple.negatives))
    )
    found = {kind: count for kind, count in split.manifest["counts"]["leaks"].items() if kind.startswith("test~")}
    return found | {"test query text in training rows": len(texts_in_training(part.text_of(), texts))}


def _values(comparison: Comparison) -> dict[str, tuple[float, float]]:
    base, tuned = (values.values[comparison.measure] for values in (comparison.base, comparison.tuned))
    pairs = zip(base.tolist(), tuned.tolist(), strict=True)
    return dict(zip(comparison.base.query_ids, pairs, strict=True))
