"""The guard set: another judged dataset that both models answer, so that a gain in one domain hides no general loss."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from closecall.dataset import DataConfig, Dataset, load_dataset
from closecall.errors import DataError
from closecall.records import Run
from closecall.text import normalise
from eval.compare import compare
from eval.config import EvalConfig
from eval.statistics import PairedResult, loss_p_value

STREAM = 5000
"""Of random numbers: none that the comparison itself draws from."""


@dataclass(frozen=True)
class GuardSet:
    """The guard's queries and documents: those of its test split where it has one of its own, else all."""

    dataset: Dataset
    name: str

    @property
    def query_ids(self) -> tuple[str, ...]:
        """The queries that are asked, those with a positive."""
        own = (self.dataset.own_splits or {}).get("test")
        wanted = None if own is None else set(own)
        ids = (query.query_id for query in self.dataset.queries if wanted is None or query.query_id in wanted)
        return tuple(query_id for query_id in ids if self.dataset.qrels.positives(query_id))


@dataclass(frozen=True)
class GuardResult:
    """Base and tuned on the guard set, by the deciding measure."""

    name: str
    documents: int
    result: PairedResult
    loss_p_value: float
    """Of "loses no more than max_guard_loss"."""
    harmed: bool

    def as_json(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        return asdict(self)


def load_guard(config: DataConfig) -> GuardSet:
    """The guard set of a config; DataError when none of its queries has a positive."""
    name = next(str(path) for path in (config.folder, config.judged, config.corpus) if path is not None)
    found = GuardSet(load_dataset(config), name)
    if not found.query_ids:
        raise DataError(f"eval.guard: {name}: no query has a positive, so nothing can be guarded; check its grades")
    return found


def guarded(guard: GuardSet, base: Run, tuned: Run, config: EvalConfig) -> GuardResult:
    """What the tuned model loses on the guard set; queries of one text count as one group."""
    qrels = guard.dataset.qrels.only(guard.query_ids)
    groups = {query_id: normalise(guard.dataset.query(query_id).text) for query_id in guard.query_ids}
    comparison = compare(qrels, base, tuned, config, group_of=groups)
    deltas = comparison.tuned.values[config.measure] - comparison.base.values[config.measure]
    labels = np.asarray(comparison.groups, dtype=object)
    rng = np.random.default_rng([config.seed, STREAM])
    p_value = loss_p_value(deltas, labels, config.max_guard_loss, rng=rng, resamples=config.resamples)
    harmed = p_value <= 1 - config.confidence
    return GuardResult(guard.name, len(guard.dataset.documents), comparison.deciding, p_value, harmed)
