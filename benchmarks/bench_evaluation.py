"""Evaluation against sentence-transformers' InformationRetrievalEvaluator, on the same vectors; writes Markdown.

    python benchmarks/bench_evaluation.py speed [--repeats 3]       # 10,000 queries x 100,000 documents
    python benchmarks/bench_evaluation.py languages FOLDER MODEL    # query language x document language, zero-shot
    python benchmarks/bench_evaluation.py agreement QRELS BASE TUNED    # the verdict, and an independent computation

Each writes `benchmarks/evaluation-SECTION.md`. No test: it takes minutes, and times differ between machines.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from closecall.dataset import DataConfig, load_dataset
from closecall.encoder import ModelConfig, load_encoder
from closecall.measures import Measure
from closecall.records import Judgment, Qrels
from closecall.search import ExactIndex
from closecall.trec import read_run
from closecall.vectors import VectorStore
from eval.answers import Answers
from eval.languages import language_pairs
from eval.runs import RunFiles, compare_runs, load_qrels
from eval.systems import Dense, Searched

app = typer.Typer(add_completion=False)
HERE = Path(__file__).resolve().parent
QUERIES, DOCUMENTS, DIMENSION, DEPTH = 10_000, 100_000, 384, 100
MEASURES = ("nDCG@10", "recall@1", "recall@10", "MRR@10", "MAP@100", "precision@10")


def _vectors(folder: Path) -> None:
    """Documents in clusters, and queries near one document each, which is judged relevant, as are two at random."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((DOCUMENTS // 50, DIMENSION), dtype=np.float32)
    documents = centres[rng.integers(0, len(centres), DOCUMENTS)]
    documents += rng.standard_normal((DOCUMENTS, DIMENSION), dtype=np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    judged = rng.integers(0, DOCUMENTS, (QUERIES, 3))
    noise = rng.standard_normal((QUERIES, DIMENSION), dtype=np.float32) * np.float32(0.8 / DIMENSION**0.5)
    queries = documents[judged[:, 0]] + noise
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    for name, array in (("documents", documents), ("queries", queries), ("judged", judged)):
        np.save(folder / f"{name}.npy", array)


@app.command()
def speed(repeats: int = 3) -> None:
    """Seconds and memory beyond the vectors of FAISS alone, closecall and the evaluator, each in its own process."""
    kinds = ("faiss", "ours", "peer")
    with tempfile.TemporaryDirectory() as name:
        _vectors(Path(name))
        found = [{kind: _measured(kind, Path(name)) for kind in kinds} for _ in range(repeats)]
    agree = max(abs(a - b) for a, b in zip(found[0]["ours"]["values"], found[0]["peer"]["values"], strict=True))
    middle = {
        kind: {key: statistics.median(one[kind][key] for one in found) for key in ("seconds", "mib")} for kind in kinds
    }
    labels = {"faiss": "FAISS flat alone", "ours": "closecall", "peer": "InformationRetrievalEvaluator"}
    lines = ["| | seconds | times closecall | MiB beyond the vectors |", "| --- | --- | --- | --- |"]
    for kind in kinds:
        times = middle[kind]["seconds"] / middle["ours"]["seconds"]
        lines.append(f"| {labels[kind]} | {middle[kind]['seconds']:.1f} | {times:.2f} | {middle[kind]['mib']:,.0f} |")
    lines += ["", f"The six measures of the two differ by at most {agree:.1e} in the mean."]
    title = f"{QUERIES:,} queries x {DOCUMENTS:,} documents x {DIMENSION}, depth {DEPTH}, six measures"
    _write("speed", f"{title}; medians of {repeats}, one run", lines)


def _measured(kind: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "worker", kind, str(folder)]
    output = run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@app.command(hidden=True)
def worker(kind: str, folder: Path) -> None:
    """Print seconds, MiB and means as JSON; a hundredth is done first, so that imports are no part of it."""
    documents, queries, judged = (np.load(folder / f"{name}.npy") for name in ("documents", "queries", "judged"))
    work = {"faiss": _faiss, "ours": _ours, "peer": _peer}[kind]
    prepared = _prepared(kind, documents, queries, judged)
    work(*_prepared(kind, documents[:2000], queries[:50], judged[:50] % 2000))
    with _memory() as peak:
        started = time.perf_counter()
        values = work(*prepared)
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "mib": peak[1] - peak[0], "values": values}))  # noqa: T201


def _prepared(kind: str, documents: Any, queries: Any, judged: Any) -> tuple[Any, ...]:
    """What exists before an evaluation: vectors, ids, texts and judgments."""
    doc_ids = [f"d{row}" for row in range(len(documents))]
    query_ids = tuple(f"q{row}" for row in range(len(queries)))
    found = {q: [f"d{row}" for row in dict.fromkeys(line)] for q, line in zip(query_ids, judged.tolist(), strict=True)}
    if kind != "peer":
        qrels = Qrels(Judgment(query, doc, 1) for query, docs in found.items() for doc in docs)
        return documents, queries, doc_ids, query_ids, qrels
    texts = {doc_id: f"text {doc_id}" for doc_id in doc_ids}, {query_id: f"text {query_id}" for query_id in query_ids}
    return documents, queries, *texts, {query: set(docs) for query, docs in found.items()}


def _faiss(documents: Any, queries: Any, *rest: Any) -> list[float]:
    import faiss

    faiss.knn(queries, documents, DEPTH, metric=faiss.METRIC_INNER_PRODUCT)
    return []


def _ours(documents: Any, queries: Any, doc_ids: list[str], query_ids: tuple[str, ...], qrels: Qrels) -> list[float]:
    hits = ExactIndex(documents, doc_ids).search(queries, DEPTH)
    measures = [Measure.parse(name) for name in MEASURES]
    values = Answers(hits, query_ids, doc_ids).values(qrels, measures, "exp")
    return [values.mean(measure) for measure in measures]


def _peer(documents: Any, queries: Any, corpus: Any, asked: Any, relevant: Any) -> list[float]:
    import torch
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.util import cos_sim

    held = {"document": torch.from_numpy(documents), "query": torch.from_numpy(queries)}

    class Held(torch.nn.Module):
        """A model whose vectors are there already."""

        similarity, similarity_fn_name = staticmethod(cos_sim), "cosine"
        model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *given: None)

        def encode_query(self, texts: list[str], **kwargs: Any) -> Any:
            return held["query"][[int(text.rsplit("q", 1)[1]) for text in texts]]

        def encode_document(self, texts: list[str], **kwargs: Any) -> Any:
            return held["document"][[int(text.rsplit("d", 1)[1]) for text in texts]]

    evaluator = InformationRetrievalEvaluator(
        asked,
        corpus,
        relevant,
        mrr_at_k=[10],
        ndcg_at_k=[10],
        accuracy_at_k=[10],
        precision_recall_at_k=[1, 10],
        map_at_k=[100],
        show_progress_bar=False,
        write_csv=False,
        main_score_function="cosine",
        score_functions={"cosine": cos_sim},
    )
    found = evaluator(Held())
    names = ("ndcg@10", "recall@1", "recall@10", "mrr@10", "map@100", "precision@10")
    return [float(found[f"cosine_{name}"]) for name in names]


@app.command()
def languages(folder: Path, model: Annotated[str, typer.Argument(metavar="MODEL")]) -> None:
    """nDCG@10 of the model as it is, for each pair of languages, only documents of that language ranked."""
    dataset = load_dataset(DataConfig(folder=folder))
    with tempfile.TemporaryDirectory() as name:
        corpus = Searched(dataset.documents)
        encoder = load_encoder(ModelConfig(name=model, max_length_tokens=256))
        system = Dense(corpus, encoder, VectorStore(Path(name)), model)
        measure = Measure.parse("nDCG@10")
        asked = set((dataset.own_splits or {}).get("test", [query.query_id for query in dataset.queries]))
        queries = [query for query in dataset.queries if query.query_id in asked]
        pairs = language_pairs({"base": system}, corpus, queries, dataset.qrels, measure, "exp", DEPTH)
    names = sorted({pair.document for pair in pairs})
    value = {(pair.query, pair.document): pair for pair in pairs}
    lines = ["| query \\ documents | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for query in sorted({pair.query for pair in pairs}):
        cells = [f"{value[query, held].values['base']:.3f}" if (query, held) in value else "" for held in names]
        lines.append(f"| {query} | " + " | ".join(cells) + " |")
    count = {pair.n for pair in pairs}
    _write("languages", f"{folder.name}: nDCG@10 by language, {model}, n = {', '.join(map(str, sorted(count)))}", lines)


@app.command()
def agreement(qrels: Path, base: Path, tuned: Path) -> None:
    """The verdict on two runs against pytrec_eval's values, scipy's BCa bootstrap and its paired t-test."""
    import pytrec_eval
    from scipy import stats

    content = compare_runs(RunFiles(qrels, {"base": base, "tuned": tuned}), ["gain=linear"])
    judged = load_qrels(qrels, 1)
    grades = {query: dict(judged.grades(query)) for query in judged}
    evaluator = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10"})
    found = []
    for path in (base, tuned):
        ranked = read_run(path)
        ranks = {q: {d.doc_id: -float(rank) for rank, d in enumerate(ranked.ranking(q))} for q in ranked}
        values = evaluator.evaluate(ranks)
        found.append(np.asarray([values[q]["ndcg_cut_10"] if q in values else 0.0 for q in grades]))
    deltas = found[1] - found[0]
    options = {"method": "BCa", "n_resamples": 9999, "rng": np.random.default_rng(1)}
    interval = stats.bootstrap((deltas,), np.mean, **options).confidence_interval
    own = content["overall"]["nDCG@10"]
    lines = ["| | base | tuned | delta | low | high | p |", "| --- | --- | --- | --- | --- | --- | --- |"]
    cells = [own[key] for key in ("base", "tuned", "delta", "low", "high", "p_value")]
    lines.append("| closecall | " + " | ".join(f"{value:.4f}" for value in cells) + " |")
    t_test = stats.ttest_rel(found[1], found[0])
    cells = [found[0].mean(), found[1].mean(), deltas.mean(), interval.low, interval.high, t_test.pvalue]
    lines.append("| pytrec_eval, scipy BCa, t-test | " + " | ".join(f"{value:.4f}" for value in cells) + " |")
    resolvable = 100 * content["resolvable_gain"]
    lines += ["", f"n = {own['n']}; smallest gain with 80 % power: {resolvable:.1f} points. {content['sentence']}"]
    _write("agreement", f"{base.name} and {tuned.name}: nDCG@10 with linear gain", lines)


@contextmanager
def _memory() -> Iterator[list[float]]:
    """MiB of memory of its own: [at the start, at the highest]."""
    peak, done = [_anonymous_mib()] * 2, threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[1] = max(peak[1], _anonymous_mib())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield peak
    done.set()
    thread.join()


def _anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


def _write(section: str, title: str, lines: list[str]) -> None:
    text = "\n".join([f"# {title}", "", *lines]) + "\n"
    (HERE / f"evaluation-{section}.md").write_text(text, encoding="utf-8")
    print(text)  # noqa: T201


if __name__ == "__main__":
    app()
