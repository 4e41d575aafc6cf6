"""What an experiment will take on this machine: time, memory and disk of each stage, from a short measurement."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from closecall.corpus import Texts
from closecall.dataset import Dataset, load_dataset
from closecall.encoder import TextEncoder
from closecall.encoding import Role
from closecall.processes import processes
from closecall.search import ExactIndex
from closecall.split import plan_split

if TYPE_CHECKING:
    from closecall.pipeline import Experiment

SAMPLE_TEXTS = 192
"""Documents that are encoded to measure the speed, and whose tokens are counted for all."""
TRAINED_TEXTS = 32
SEARCHED = (256, 16_384)
"""Queries and documents of the search that is measured."""
VECTOR_BYTES = 4
CANDIDATE_BYTES = 40
"""Of a candidate in the mined tables, compressed (nl2bash: 36)."""
TIMED_TEXTS = 2 * (30 + 3) + 64 + 30
"""Texts that the evaluation encodes to time a contender."""


@dataclass(frozen=True)
class Stage:
    """The cost of one stage."""

    name: str
    seconds: float
    memory_bytes: int
    """Peak of the process, without the vectors that are mapped from disk."""
    disk_bytes: int
    """What is there when the stage ends; while finetune runs, its resumable steps too."""


@dataclass(frozen=True)
class Forecast:
    """The cost of all stages."""

    stages: tuple[Stage, ...]
    documents: int
    documents_to_encode: int
    """The others have vectors already."""
    encode_tokens_per_second: float
    train_tokens_per_second: float

    def as_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self) | {"stages": [asdict(stage) for stage in self.stages]}


def forecast(experiment: Experiment) -> Forecast:
    """Measure for some seconds, and extend it to all stages. Nothing is written, and no test query is encoded."""
    started = time.perf_counter()
    dataset = load_dataset(experiment.config.data)
    assignment, _ = plan_split(dataset, experiment.config.split, experiment.output / "split")
    loading = time.perf_counter() - started
    return _Forecaster(experiment, dataset, assignment.part, loading).all()


class _Forecaster:
    """The measurements, and what each stage makes of them."""

    def __init__(self, experiment: Experiment, dataset: Dataset, part: Mapping[str, str], loading: float) -> None:
        self.config, self.store, self.encoder = experiment.config, experiment.store, experiment.base
        self.dataset, self.loading = dataset, loading
        self.queries = {
            name: [query.text for query in dataset.queries if part.get(query.query_id) == name]
            for name in ("train", "dev", "test")
        }
        train = [query.query_id for query in dataset.queries if part.get(query.query_id) == "train"]
        self.rows = sum(len(dataset.qrels.positives(query_id)) for query_id in train)
        self.texts = Texts(dataset.documents)
        self.count = len(dataset.documents)
        sample = [self.texts[row] for row in _spread(self.count, SAMPLE_TEXTS)]
        self.document_tokens = _mean_tokens(self.encoder, sample, "document")
        self.query_tokens = _mean_tokens(self.encoder, self.queries["train"][:SAMPLE_TEXTS] or [""], "query")
        self.encoding = self.document_tokens * len(sample) / _encode_seconds(self.encoder, sample)
        self.training = self._training_speed(sample)
        self.searching = _search_speed(self.encoder.dimension)
        self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def all(self) -> Forecast:
        """The four stages."""
        stages = (self._split(), self._mine(), self._finetune(), self._evaluate())
        missing = self._missing("document")
        return Forecast(stages, self.count, missing, round(self.encoding, 1), round(self.training, 1))

    def _training_speed(self, sample: Sequence[str]) -> float:
        from closecall.precision import resolved_precision
        from finetune.estimate import training_speed

        chosen = sample[:: max(1, len(sample) // TRAINED_TEXTS)][:TRAINED_TEXTS]
        tokens = round(_mean_tokens(self.encoder, chosen, "document") * len(chosen))
        precision = resolved_precision(self.config.finetune.precision, self.encoder.device, "finetune.precision")
        return training_speed(self.encoder.model, chosen, tokens, precision)

    def _split(self) -> Stage:
        size = sum(len(query.text) for query in self.dataset.queries) + 60 * len(list(self.dataset.qrels.judgments()))
        return Stage("split", self.loading, self.peak, size)

    def _mine(self) -> Stage:
        config, train = self.config.mining, len(self.queries["train"])
        encoded = self._encode(self._missing("document"), self.document_tokens)
        encoded += self._encode(self.store.missing(self.encoder, self.queries["train"], "query"), self.query_tokens)
        vectors = (self.count + train) * self.encoder.dimension * VECTOR_BYTES
        tables = self.rows * config.depth * CANDIDATE_BYTES
        return Stage("mine", encoded + train * self.count / self.searching, self.peak, vectors + tables)

    def _finetune(self) -> Stage:
        config = self.config.finetune
        negatives = self.config.mining.negatives if config.negatives is None else config.negatives
        row = self.query_tokens + self.document_tokens * (1 + negatives)
        trained = self.rows * config.epochs * row / self.training / processes()
        evaluations = max(1, round(config.evaluations_per_epoch * config.epochs)) + len(config.mix)
        dev = len(self.queries["dev"])
        pool = min(self.count, config.dev_documents + dev)
        probes = evaluations * (self._encode(pool, self.document_tokens) + self._encode(dev, self.query_tokens))
        confirm = self._encode(self.count - pool, self.document_tokens) + self._encode(dev, self.query_tokens)
        seconds = ((trained + probes) * len(config.seeds) + confirm) * config.rounds if config.epochs else 0.0
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.encoder.model.state_dict().values())
        vectors = (self.count + dev) * self.encoder.dimension * VECTOR_BYTES
        return Stage("finetune", seconds, self.peak + 4 * weights, 3 * 3 * weights + 3 * weights + vectors)

    def _evaluate(self) -> Stage:
        test = len(self.queries["test"])
        encoded = 2 * (self._encode(test, self.query_tokens) + self._encode(TIMED_TEXTS, self.document_tokens))
        searched = 2 * test * self.count / self.searching
        return Stage("eval", encoded + searched + self.loading, self.peak, 2 * test * 100 * CANDIDATE_BYTES)

    def _missing(self, role: Role) -> int:
        return self.store.missing(self.encoder, self.texts, role)

    def _encode(self, texts: int, tokens: float) -> float:
        """Seconds for so many texts of so many tokens."""
        return texts * tokens / self.encoding / processes()


def lines(found: Forecast) -> list[str]:
    """For a terminal."""
    head = f"{'stage':10}{'minutes':>9}{'memory GB':>11}{'disk GB':>9}"
    body = [
        f"{stage.name:10}{stage.seconds / 60:>9.1f}{stage.memory_bytes / 1e9:>11.1f}{stage.disk_bytes / 1e9:>9.2f}"
        for stage in found.stages
    ]
    total = sum(stage.seconds for stage in found.stages) / 60
    memory = max(stage.memory_bytes for stage in found.stages) / 1e9
    disk = sum(stage.disk_bytes for stage in found.stages) / 1e9
    return [
        head,
        *body,
        f"{'run':10}{total:>9.1f}{memory:>11.1f}{disk:>9.2f}",
        f"measured: {found.encode_tokens_per_second:,.0f} tokens/s encoded, "
        f"{found.train_tokens_per_second:,.0f} trained; "
        f"{found.documents_to_encode:,} of {found.documents:,} documents have no vectors yet",
    ]


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, count - 1, min(count, wanted))}) if count else []


def _mean_tokens(encoder: TextEncoder, texts: Sequence[str], role: Role) -> float:
    """Tokens of a text as the model reads them."""
    counts = encoder.token_counts(texts, role)
    return float(np.minimum(counts, encoder.max_length_tokens or counts.max()).mean())


def _encode_seconds(encoder: TextEncoder, texts: Sequence[str]) -> float:
    encoder.encode(texts[:8], "document")  # loads and warms up
    started = time.perf_counter()
    encoder.encode(texts, "document")
    return time.perf_counter() - started


def _search_speed(dimension: int) -> float:
    """(query, document) pairs per second."""
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(count, dimension)).astype(np.float32) for count in SEARCHED)
    index = ExactIndex(documents, [f"{row:06}" for row in range(len(documents))])
    index.search(queries[:8], 10)
    started = time.perf_counter()
    index.search(queries, 50)
    return SEARCHED[0] * SEARCHED[1] / (time.perf_counter() - started)
