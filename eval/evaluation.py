"""Several systems on the same judged queries: values, comparisons with the incumbent, verdicts and the ruling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy.typing as npt

from closecall.errors import DataError
from closecall.measures import QueryValues
from closecall.records import Document, Qrels, Query
from closecall.slices import Slice
from eval.answers import Answers
from eval.compare import Comparison, compare_values, refuse_all_zero
from eval.config import EvalConfig
from eval.costs import Size, Times
from eval.guard import GuardResult
from eval.rules import Evidence
from eval.ruling import Ruling, corrected_gains, rule
from eval.unjudged import Bounds, bounds, recall_curve
from eval.verdict import Verdict, decide


@dataclass(frozen=True)
class Asked:
    """The judged queries, and what is known of them. Without documents all that needs texts is left out."""

    queries: Mapping[str, Query]
    qrels: Qrels
    documents: Mapping[str, Document]
    slices: Sequence[Slice]
    groups: Mapping[str, str] | None
    truncated: frozenset[str] = frozenset()
    """Ids of documents that are longer than the base model reads."""


@dataclass(frozen=True)
class Beside:
    """What a verdict rests on beside the answers, by contender."""

    guards: Mapping[str, GuardResult] = field(default_factory=dict)
    seed_spread: Mapping[str, float | None] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)

    def costs(self, name: str) -> dict[str, float | None]:
        """What the limits of the config are about, by their names."""
        found: dict[str, float | None] = {}
        if (size := self.sizes.get(name)) is not None and size.bytes_per_vector:
            found |= {"bytes_per_vector": size.bytes_per_vector, "index_gib": size.index_bytes / 2**30}
        if (times := self.times.get(name)) is not None:
            found |= {key: value for key, value in asdict(times).items() if key != "queries"}
        return found


@dataclass(frozen=True)
class Evaluation:
    """Everything that was found."""

    asked: Asked
    config: EvalConfig
    answers: Mapping[str, Answers]
    values: Mapping[str, QueryValues]
    comparisons: Mapping[str, Comparison]
    """Of each contender with the incumbent."""
    verdicts: Mapping[str, Verdict]
    ruling: Ruling
    p_values: Mapping[str, float | None]
    """Of each contender's gain, corrected over all of them."""
    bounds: Mapping[str, tuple[Bounds, ...]]
    curves: Mapping[str, npt.NDArray[Any]]
    """Mean recall@k for k = 1, 2, ... of each system."""
    beside: Beside

    @property
    def incumbent(self) -> str:
        """The system that the others are compared with."""
        return self.config.incumbent

    @property
    def chosen(self) -> Comparison:
        """The comparison that the ruling is about."""
        return self.comparisons[self.ruling.contender]


def evaluate_answers(
    answers: Mapping[str, Answers], asked: Asked, config: EvalConfig, beside: Beside | None = None
) -> Evaluation:
    """All systems over every query of the qrels that has a positive; missing in a system's answers scores 0."""
    beside = beside or Beside()
    measures = config.all_measures()
    values = {name: found.values(asked.qrels, measures, config.gain) for name, found in answers.items()}
    incumbent = config.incumbent
    if len(answers) < 2 or incumbent not in answers:
        raise DataError(f"eval: {incumbent!r} and at least one contender are needed; found {', '.join(answers)}")
    first = asked.qrels.only(values[incumbent].query_ids[:1])
    refuse_all_zero(values, config.measure, asked.qrels, answers[incumbent].run(first))
    comparisons = {
        name: compare_values(values[incumbent], found, config, asked.slices, asked.groups)
        for name, found in values.items()
        if name != incumbent
    }
    p_values = corrected_gains(comparisons, config)
    verdicts = {
        name: decide(
            comparison,
            config,
            Evidence(
                beside.guards.get(name),
                beside.seed_spread.get(name),
                p_values[name],
                len(comparisons),
                beside.costs(name),
            ),
        )
        for name, comparison in comparisons.items()
    }
    depth = min(config.depth, 100)
    return Evaluation(
        asked,
        config,
        answers,
        values,
        comparisons,
        verdicts,
        rule(verdicts, comparisons, config),
        p_values,
        {name: bounds(found, asked.qrels, measures, config.gain) for name, found in answers.items()},
        {name: recall_curve(found, asked.qrels, depth) for name, found in answers.items()},
        beside,
    )
