"""Mining against sentence-transformers' `mine_hard_negatives`, on the same vectors, in one run; writes Markdown.

    python benchmarks/bench_mining.py planted FOLDER... --model MODEL   # judged sets with qrels/train.tsv
    python benchmarks/bench_mining.py rows FOLDER --model MODEL         # rows that are lost
    python benchmarks/bench_mining.py speed                             # 10,000 queries x 100,000 documents
    python benchmarks/bench_mining.py large                             # 1,000 queries x 1,000,000 documents

Each section writes `benchmarks/mining-SECTION.md`. No test: it takes minutes, and times differ between machines.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from closecall.dataset import DataConfig, Dataset, load_dataset
from closecall.encoder import ModelConfig, load_encoder
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from closecall.text import normalise
from closecall.vectors import VectorStore
from mining.artifact import TRIPLES, Triple, read_triples_table
from mining.calibrate import calibrate, open_config
from mining.config import MiningConfig
from mining.mine import Miner
from mining.stage import write_mined

app = typer.Typer(add_completion=False)
HERE = Path(__file__).resolve().parent
HIDDEN_SHARE, PLANTED, NEGATIVES, SEED, SEEDS, LENGTH = 0.3, 500, 4, 0, 5, 256


# --- planted truth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A dataset in which it is known which unjudged documents are no negatives."""

    documents: list[Document]
    part: Part
    hidden: dict[str, set[str]]
    """By query: normalised texts of its positives that were made unjudged."""


def plant(dataset: Dataset, seed: int) -> Planted:
    """Hide 30 % of the train judgments above grade 0; add copies of positives and queries' own texts as documents.

    The copies are planted with the first seed alone: what is hidden by chance is counted over several.
    """
    rng = np.random.default_rng(seed)
    assert dataset.own_splits is not None
    qrels = dataset.qrels.only(dataset.own_splits["train"])
    judgments = list(qrels.judgments())
    relevant = [judgment for judgment in judgments if judgment.relevance > 0]
    chosen = set(rng.choice(len(relevant), int(HIDDEN_SHARE * len(relevant)), replace=False).tolist())
    hidden = {relevant[number][:2] for number in chosen}
    left = Qrels(judgment for judgment in judgments if judgment[:2] not in hidden)
    queries = [dataset.query(query_id) for query_id in left if left.positives(query_id)]
    documents = {document.doc_id: document for document in dataset.documents}
    kept = left.only(query.query_id for query in queries)
    added = _added(queries, kept, documents, rng) if seed == SEED else []
    texts: dict[str, set[str]] = {query.query_id: set() for query in queries}
    for query_id, doc_id in hidden:
        if query_id in texts:
            texts[query_id].add(normalise(documents[doc_id].full_text))
    return Planted([*dataset.documents, *added], Part(tuple(queries), kept, ""), texts)


def _added(
    queries: Sequence[Query], qrels: Qrels, documents: dict[str, Document], rng: np.random.Generator
) -> list[Document]:
    added = []
    for number in rng.choice(len(queries), min(PLANTED, len(queries)), replace=False).tolist():
        query = queries[number]
        text = documents[qrels.positives(query.query_id)[0]].full_text
        spaced = text.replace(" ", "  ", 1) + " "
        for name, planted in (("exact", text), ("spaced", spaced), ("own", query.text)):
            added.append(Document(f"planted-{name}-{number}", planted))
    return added


@dataclass(frozen=True)
class Counted:
    """What came out of a miner."""

    pairs: int
    rows: int
    negatives: int
    planted: int
    copies: int
    own_text: int
    hidden: int


def count(rows: list[tuple[str, str, list[str]]], planted: Planted) -> Counted:
    """Planted false negatives in (query id, positive text, negative texts)."""
    queries = {query.query_id: normalise(query.text) for query in planted.part.queries}
    relevant = _relevant_texts(planted)
    copies = own = hidden = negatives = 0
    for query_id, _, texts in rows:
        for text in map(normalise, texts):
            negatives += 1
            copies += text in relevant[query_id]
            own += text == queries[query_id]
            hidden += text in planted.hidden[query_id] - relevant[query_id]
    pairs = sum(len(planted.part.qrels.positives(query_id)) for query_id in planted.part.qrels)
    hidden_in_all = sum(map(len, planted.hidden.values()))
    return Counted(pairs, len(rows), negatives, hidden_in_all, copies, own, hidden)


def _relevant_texts(planted: Planted) -> dict[str, set[str]]:
    documents = {document.doc_id: document for document in planted.documents}
    qrels = planted.part.qrels
    return {
        query_id: {normalise(documents[doc_id].full_text) for doc_id in qrels.positives(query_id)} for query_id in qrels
    }


@dataclass(frozen=True)
class Embedded:
    """A planted dataset and its vectors."""

    planted: Planted
    document_vectors: np.ndarray[Any, np.dtype[np.float32]]
    query_vectors: np.ndarray[Any, np.dtype[np.float32]]


def embed(planted: Planted, dataset: Dataset, ids: Sequence[str], model: str, cache: Path) -> Embedded:
    """Vectors by one encoder, for both miners; those of the documents and of the queries `ids` are made once."""
    encoder, store = load_encoder(ModelConfig(name=model, max_length_tokens=LENGTH)), VectorStore(cache)
    added = planted.documents[len(dataset.documents) :]
    documents = [
        store.get(encoder, [document.full_text for document in group], "document", "documents")
        for group in (dataset.documents, added)
    ]
    vectors = store.get(encoder, [dataset.query(query_id).text for query_id in ids], "query", "queries")
    row = {query_id: number for number, query_id in enumerate(ids)}
    return Embedded(
        planted, np.concatenate(documents), vectors[[row[query.query_id] for query in planted.part.queries]]
    )


def ours(data: Embedded, config: MiningConfig) -> list[Triple]:
    """The triples that closecall mines."""
    import pyarrow.parquet as pq

    planted = data.planted
    miner = Miner(planted.documents, data.document_vectors, planted.part, data.query_vectors, config)
    with tempfile.TemporaryDirectory() as folder:
        write_mined(miner, Path(folder), [])
        return read_triples_table(pq.read_table(Path(folder) / TRIPLES))


def proposed_margin(data: Embedded) -> float:
    """What `closecall calibrate` proposes, from the judgments that are left: the hidden ones are not looked at."""
    config, planted = MiningConfig(negatives=NEGATIVES), data.planted
    looked_at = open_config(config, config.max_depth)
    miner = Miner(planted.documents, data.document_vectors, planted.part, data.query_vectors, looked_at)
    return float(calibrate(miner, config)["proposal"]["margin_fraction"])


class VectorModel:
    """What `mine_hard_negatives` needs of a model, with vectors that are there already."""

    def __init__(self, data: Embedded) -> None:
        import torch

        planted = data.planted
        self.known = [
            ([document.full_text for document in planted.documents], data.document_vectors),
            ([query.text for query in planted.part.queries], data.query_vectors),
        ]
        self.device, self.prompts, self.similarity_fn_name = torch.device("cpu"), {}, "cosine"
        self.model_card_data: Any = type("Card", (), {"base_model": "vectors", "model_name": "vectors"})()

    def encode_document(self, texts: Sequence[str], **_: object) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Their vectors: where they lie when all are asked for in order, else gathered."""
        for own, vectors in self.known:
            if list(texts) == own:
                return np.asarray(vectors)
        rows = {text: vector for own, vectors in self.known for text, vector in zip(own, vectors, strict=True)}
        return np.stack([rows[text] for text in texts])

    encode_query = encode = encode_document

    def get_embedding_dimension(self) -> int:
        """Length of a vector."""
        return int(self.known[0][1].shape[1])

    @staticmethod
    def similarity(first: Any, second: Any) -> Any:
        """Products of unit vectors."""
        import torch

        return torch.as_tensor(first) @ torch.as_tensor(second).T

    @staticmethod
    def similarity_pairwise(first: Any, second: Any) -> Any:
        """The same, row by row."""
        import torch

        return (torch.as_tensor(first) * torch.as_tensor(second)).sum(dim=1)


def peers(data: Embedded, **settings: Any) -> list[tuple[str, str, list[str]]]:
    """The rows of `mine_hard_negatives`, n-tuples, from the same vectors."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    planted = data.planted
    documents = {document.doc_id: document.full_text for document in planted.documents}
    pairs = [
        (query, documents[doc_id])
        for query in planted.part.queries
        for doc_id in planted.part.qrels.positives(query.query_id)
    ]
    ids = {query.text: query.query_id for query in planted.part.queries}
    rows = mine_hard_negatives(
        Dataset.from_dict({"anchor": [query.text for query, _ in pairs], "positive": [text for _, text in pairs]}),
        VectorModel(data),  # type: ignore[arg-type]
        corpus=[document.full_text for document in planted.documents],
        output_format="n-tuple",
        verbose=False,
        **settings,
    )
    names = [name for name in rows.column_names if name.startswith("negative")]
    return [(ids[row["anchor"]], row["positive"], [row[name] for name in names]) for row in rows]


def as_rows(triples: Sequence[Triple], full: bool = True) -> list[tuple[str, str, list[str]]]:
    """Triples as the peer's rows; `full`: those with all negatives alone, as the peer writes them."""
    return [
        (triple.query_id, triple.positive, [negative.text for negative in triple.negatives])
        for triple in triples
        if not full or len(triple.negatives) == NEGATIVES
    ]


@app.command()
def planted(folders: list[Path], model: Annotated[str, typer.Option()], cache: Path = Path("bench-cache")) -> None:
    """Planted false negatives that reach the output."""
    header = ("dataset", "miner", "margin", "rows", "negatives", "copies", "own text", "hidden positives", "per 1,000")
    lines = ["| " + " | ".join(header) + " |", "| --- " * len(header) + "|"]
    for folder in folders:
        dataset = load_dataset(DataConfig(folder=folder))
        assert dataset.own_splits is not None
        seen: dict[str, list[Counted]] = {}
        for seed in range(SEED, SEED + SEEDS):
            data = embed(plant(dataset, seed), dataset, dataset.own_splits["train"], model, cache)
            for name, found in _mined_by_each(data).items():
                seen.setdefault(name, []).append(count(found, data.planted))
        lines += [_planted_line(folder.name, name, counted) for name, counted in seen.items()]
    lines += ["", "Rows, negatives, copies and own texts of the first seed; hidden positives of all seeds."]
    _write("planted", f"Planted truth: {NEGATIVES} negatives, model {model}, {SEEDS} seeds", lines)


def _mined_by_each(data: Embedded) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Rows by miner and margin."""
    calibrated = MiningConfig(negatives=NEGATIVES, margin_fraction=proposed_margin(data))
    return {
        "mine_hard_negatives | none": peers(data, num_negatives=NEGATIVES),
        "mine_hard_negatives | 0.05": peers(data, relative_margin=0.05, num_negatives=NEGATIVES),
        "closecall | 0.05": as_rows(ours(data, MiningConfig(negatives=NEGATIVES))),
        "closecall | calibrated": as_rows(ours(data, calibrated)),
    }


def _planted_line(dataset: str, name: str, counted: Sequence[Counted]) -> str:
    first, hidden = counted[0], sum(item.hidden for item in counted)
    share = 1000 * hidden / max(1, sum(item.negatives for item in counted))
    cells = (dataset, name, f"{first.rows:,} of {first.pairs:,}", f"{first.negatives:,}", str(first.copies))
    cells += (str(first.own_text), f"{hidden} of {sum(item.planted for item in counted)}", f"{share:.2f}")
    return "| " + " | ".join(cells) + " |"


# --- lost rows -------------------------------------------------------------------------------------------------------


@app.command()
def rows(
    folder: Path,
    model: Annotated[str, typer.Option()],
    queries: int = 640,
    negatives: int = 1,
    cache: Path = Path("bench-cache"),
) -> None:
    """Rows of the first queries of a set that get their negatives."""
    dataset = load_dataset(DataConfig(folder=folder))
    assert dataset.own_splits is not None
    ids = dataset.own_splits["train"][:queries]
    part = Part(tuple(dataset.query(query_id) for query_id in ids), dataset.qrels.only(ids), "")
    data = embed(Planted(list(dataset.documents), part, {}), dataset, ids, model, cache)
    pairs = sum(len(part.qrels.positives(query_id)) for query_id in ids)
    triples = ours(data, MiningConfig(negatives=negatives))
    full = sum(len(triple.negatives) == negatives for triple in triples)
    theirs = peers(data, relative_margin=0.05, num_negatives=negatives, use_faiss=True)
    lines = [
        "| miner | rows with all negatives | of |",
        "| --- | --- | --- |",
        f"| mine_hard_negatives | {len(theirs)} | {pairs} |",
        f"| closecall | {full} | {pairs} |",
    ]
    if full < pairs:
        lines.append(f"\n{pairs - full} rows of closecall are short: the corpus ends before they have enough.")
    _write("rows", f"Lost rows: {folder.name}, {negatives} negative, margin 0.05, model {model}", lines)


# --- speed and memory ------------------------------------------------------------------------------------------------


@app.command()
def speed(repeats: int = 3) -> None:
    """Search and all that follows: 10,000 x 100,000 x 384, 20 negatives from depth 200 with a margin of 5 %."""
    with tempfile.TemporaryDirectory() as name:
        folder = _made(Path(name), 10_000, 100_000)
        results = [{kind: _worker(kind, folder) for kind in ("faiss", "ours", "peer")} for _ in range(repeats)]
    medians = {
        kind: {key: statistics.median(result[kind][key] for result in results) for key in results[0][kind]}
        for kind in results[0]
    }
    alone = medians["faiss"]["seconds"]
    lines = [
        "| | seconds | times FAISS alone | MiB beyond the vectors | MiB per FAISS's |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {title} | {medians[kind]['seconds']:.1f} | {medians[kind]['seconds'] / alone:.2f} "
            f"| {medians[kind]['mib']:.0f} | {medians[kind]['mib'] / max(1.0, medians['faiss']['mib']):.1f} |"
            for kind, title in (
                ("faiss", "FAISS flat alone"),
                ("ours", "closecall, tables on disk"),
                ("peer", "mine_hard_negatives, use_faiss=True"),
            )
        ),
        "",
        f"What closecall takes beyond FAISS alone is {medians['ours']['seconds'] / alone - 1:.0%} of FAISS's time. "
        f"It wrote {medians['ours']['rows']:,.0f} rows with all negatives, the peer {medians['peer']['rows']:,.0f}.",
    ]
    title = "10,000 queries x 100,000 documents x 384, 20 negatives, depth 200, margin 0.05"
    _write("speed", f"{title}; medians of {repeats}, one run", lines)


@app.command()
def large() -> None:
    """1,000 queries x 1,000,000 documents, vectors mapped from disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = _made(Path(name), 1_000, 1_000_000)
        alone, result = _worker("faiss", folder), _worker("ours", folder)
    lines = [
        "| | seconds | MiB beyond the mapped vectors |",
        "| --- | --- | --- |",
        f"| FAISS flat alone | {alone['seconds']:.1f} | {alone['mib']:.0f} |",
        f"| closecall, tables on disk | {result['seconds']:.1f} | {result['mib']:.0f} |",
        "",
        "Texts of the documents aside: they are read before the measurement begins.",
    ]
    _write("large", "1,000 queries x 1,000,000 documents x 384, 20 negatives, depth 200, margin 0.05", lines)


def _made(folder: Path, queries: int, documents: int, dimension: int = 384) -> Path:
    """Vectors of documents in clusters, and of queries near one document each, as files to map."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((documents // 50, dimension), dtype=np.float32)
    vectors = np.lib.format.open_memmap(folder / "documents.npy", "w+", np.float32, (documents, dimension))
    for start in range(0, documents, 50_000):
        size = min(50_000, documents - start)
        block = centres[rng.integers(0, len(centres), size)] + rng.standard_normal((size, dimension), dtype=np.float32)
        vectors[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    positives = rng.integers(0, documents, queries)
    noise = rng.standard_normal((queries, dimension), dtype=np.float32) * np.float32(0.8 / dimension**0.5)
    near = vectors[positives] + noise
    np.save(folder / "queries.npy", near / np.linalg.norm(near, axis=1, keepdims=True))
    np.save(folder / "positives.npy", positives)
    vectors.flush()
    return folder


def _worker(kind: str, folder: Path) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "worker", kind, str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])  # type: ignore[no-any-return]


@app.command(hidden=True)
def worker(kind: str, folder: Path) -> None:
    """Print seconds and MiB of one miner as JSON."""
    documents, queries = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("documents", "queries"))
    texts = _texts(len(documents))
    positives = np.load(folder / "positives.npy").tolist()
    corpus = [Document(f"d{row}", text) for row, text in enumerate(texts)]
    asked = tuple(Query(f"q{row}", f"question {row}") for row in range(len(queries)))
    qrels = Qrels(Judgment(f"q{row}", f"d{positive}", 1) for row, positive in enumerate(positives))
    data = Embedded(Planted(corpus, Part(asked, qrels, ""), {}), documents, queries)
    measured = {"faiss": _faiss, "ours": _ours, "peer": _peer}[kind]
    measured(_small(data))  # what is imported once is no part of it
    with _memory() as peak:
        start = time.perf_counter()
        count_rows = measured(data)
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "mib": peak[1] - peak[0], "rows": count_rows}))  # noqa: T201


def _small(data: Embedded) -> Embedded:
    """A hundredth of the queries, each with its positive, and some documents."""
    qrels = data.planted.part.qrels
    queries = data.planted.part.queries[:50]
    positives = [int(qrels.positives(query.query_id)[0][1:]) for query in queries]
    rows = sorted({*positives, *range(1000)})
    planted = Planted(
        [data.planted.documents[row] for row in rows], Part(queries, qrels.only(q.query_id for q in queries), ""), {}
    )
    return Embedded(planted, np.asarray(data.document_vectors[rows]), np.asarray(data.query_vectors[:50]))


def _texts(number: int) -> list[str]:
    rng = np.random.default_rng(SEED)
    words = [f"w{word}" for word in range(20_000)]
    return [" ".join([words[word] for word in line]) for line in rng.integers(0, 20_000, (number, 12)).tolist()]


def _faiss(data: Embedded) -> int:
    import faiss

    faiss.knn(data.query_vectors, data.document_vectors, 200, metric=faiss.METRIC_INNER_PRODUCT)
    return 0


def _ours(data: Embedded) -> int:
    config = MiningConfig(negatives=20, depth=200, max_depth=200)
    planted = data.planted
    miner = Miner(planted.documents, data.document_vectors, planted.part, data.query_vectors, config)
    with tempfile.TemporaryDirectory() as folder:
        stats = write_mined(miner, Path(folder), [])
    return int(stats["pairs"] - stats["pairs_short"])


def _peer(data: Embedded) -> int:
    return len(peers(data, relative_margin=0.05, num_negatives=20, range_max=200, use_faiss=True))


@contextmanager
def _memory() -> Iterator[list[float]]:
    """MiB of memory of its own (not mapped from files): [at the start, at the highest]."""
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


def _write(section: str, title: str, lines: Sequence[str]) -> None:
    text = "\n".join([f"# {title}", "", *lines]) + "\n"
    (HERE / f"mining-{section}.md").write_text(text, encoding="utf-8")
    print(text)  # noqa: T201


if __name__ == "__main__":
    app()
