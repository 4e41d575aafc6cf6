"""The batches of a training, planned from row numbers before it starts: the promised length is the real length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from closecall.encoding import Vectors
from closecall.search import ExactIndex
from finetune.config import FinetuneConfig

Rows = npt.NDArray[np.int64]

NEIGHBOURS = 32
"""Nearest queries that are looked at for the rows of one group."""


@dataclass(frozen=True)
class Plan:
    """Which rows go into which batch, and after which steps dev is measured."""

    batches: tuple[Rows, ...]
    """A batch for each process of step 1, then those of step 2, and so on."""
    steps_per_epoch: int
    evaluations: frozenset[int]
    """Steps after which dev is measured; the last step is always one."""
    processes: int = 1

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return len(self.batches) // self.processes

    def rows(self, step: int) -> Rows:
        """The rows of a step, counted from 1, over all processes."""
        first = (step - 1) * self.processes
        return np.concatenate(self.batches[first : first + self.processes])


def plan(rows: int, config: FinetuneConfig, seed: int = 0, neighbours: Rows | None = None, processes: int = 1) -> Plan:
    """The plan for this many rows. Each epoch has its own order, and a seed repeats all of them.

    An epoch is cut into batches of equal size, give or take one row: a remainder of half a batch or more makes one
    more batch, a smaller one is spread over the others. None is dropped. Takes time linear in the rows.
    """
    per_epoch = max(1, math.floor(rows / config.batch_size + 0.5)) if rows else 0
    steps = math.ceil(per_epoch * config.epochs)
    batches: list[Rows] = []
    for epoch in range(math.ceil(config.epochs) if per_epoch else 0):
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(rows) if neighbours is None else grouped(neighbours, config.related, rng)
        for batch in np.array_split(order, per_epoch):
            batches.extend(np.array_split(batch, processes))
    count = max(1, math.ceil(config.evaluations_per_epoch * config.epochs))
    evaluations = {math.ceil(steps * number / count) for number in range(1, count + 1)} if steps else set()
    return Plan(tuple(batches[: steps * processes]), per_epoch, frozenset(evaluations), processes)


def nearest_rows(queries: Vectors, row_query: Rows) -> Rows:
    """int64 (n_rows, 32 or fewer): for each row those of the nearest other queries, -1 where there are no more.

    `queries` are unit vectors (n_queries, dimension), `row_query` int64 (n_rows,) says whose each row is. A query that
    has several rows lends the first of them.
    """
    first = np.full(len(queries), -1, dtype=np.int64)
    first[row_query[::-1]] = np.arange(len(row_query))[::-1]
    names = [str(number) for number in range(len(queries))]
    hits = ExactIndex(queries, names).search(queries, min(NEIGHBOURS + 1, len(queries)))
    others = np.where(hits.rows == np.arange(len(queries))[:, None], -1, hits.rows)
    found = np.where(others >= 0, first[others], -1)
    return np.asarray(found[row_query], dtype=np.int64)


def grouped(neighbours: Rows, size: int, rng: np.random.Generator) -> Rows:
    """All rows in a random order in which each drawn row is followed by up to `size` - 1 free rows near it."""
    free = np.ones(len(neighbours), dtype=bool)
    order: list[int] = []
    for row in rng.permutation(len(neighbours)).tolist():
        if not free[row]:
            continue
        near = [other for other in neighbours[row].tolist() if other >= 0 and other != row and free[other]]
        group = [row, *near[: size - 1]]
        free[group] = False
        order.extend(group)
    return np.asarray(order, dtype=np.int64)


class PlannedBatches:
    """The batches of a plan in the form of a torch batch sampler; the trainer skips those before a resumed step."""

    drop_last = False
    batch_size = None
    """They differ in size: of those of a set size accelerate would hand none out that is smaller."""

    def __init__(self, schedule: Plan) -> None:
        self.schedule = schedule

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.schedule.batches:
            yield batch.tolist()

    def __len__(self) -> int:
        return len(self.schedule.batches)
