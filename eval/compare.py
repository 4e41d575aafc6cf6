"""Two runs on the same judged queries, paired: values, deltas and intervals, overall and per slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from closecall.errors import DataError
from closecall.measures import QueryValues, per_query
from closecall.records import Qrels, Run
from closecall.slices import Slice
from eval.config import EvalConfig
from eval.slice_means import interval_of_slice_means
from eval.statistics import PairedResult, holm, loss_p_value, paired


@dataclass(frozen=True)
class SliceResult:
    """Base and tuned on the queries of one slice, by the deciding measure."""

    name: str
    result: PairedResult
    large_enough: bool
    """At least `min_slice_queries` queries in `min_groups` groups; else the delta stands alone, too small to judge."""
    loss_p_value: float | None
    """Of "loses no more than max_slice_loss", Holm-corrected over the slices that are large enough."""
    harmed: bool


@dataclass(frozen=True)
class MeanOfSlices:
    """The slices of one column with the same weight each, by the deciding measure: a large one hides no small one."""

    column: str
    slices: int
    n: int
    base: float
    tuned: float
    delta: float
    low: float
    """-inf, as `high` is inf, where one of the slices is too small to judge: no interval holds then."""
    high: float


@dataclass(frozen=True)
class Comparison:
    """Everything a verdict is made of."""

    measure: str
    overall: Mapping[str, PairedResult]
    """By measure name; the deciding one first."""
    slices: tuple[SliceResult, ...]
    means_of_slices: tuple[MeanOfSlices, ...]
    base: QueryValues
    tuned: QueryValues
    groups: tuple[str, ...] | None
    """The group of each query, where the split grouped them."""

    @property
    def deciding(self) -> PairedResult:
        """The result on the deciding measure, over all queries."""
        return self.overall[self.measure]

    @property
    def unchanged(self) -> bool:
        """Whether no query has another value in any measure."""
        return all(np.array_equal(self.base.values[name], self.tuned.values[name]) for name in self.overall)


def compare(
    qrels: Qrels,
    base: Run,
    tuned: Run,
    config: EvalConfig,
    slices: Sequence[Slice] = (),
    group_of: Mapping[str, str] | None = None,
) -> Comparison:
    """Base and tuned on every query of `qrels` that has a positive, paired by id; missing in a run scores 0."""
    measures = config.all_measures()
    values = {name: per_query(qrels, run, measures, config.gain) for name, run in (("base", base), ("tuned", tuned))}
    refuse_all_zero(values, config.measure, qrels, base)
    return compare_values(values["base"], values["tuned"], config, slices, group_of)


def compare_values(
    base: QueryValues,
    tuned: QueryValues,
    config: EvalConfig,
    slices: Sequence[Slice] = (),
    group_of: Mapping[str, str] | None = None,
) -> Comparison:
    """The comparison of values over the same queries."""
    ids = base.query_ids
    groups = tuple(group_of.get(query_id, query_id) for query_id in ids) if group_of else None
    labels = np.asarray(groups, dtype=object) if groups else None
    overall = {
        str(measure): _paired(base, tuned, str(measure), labels, config, number)
        for number, measure in enumerate(config.all_measures())
    }
    return Comparison(
        config.measure,
        overall,
        _slices(slices, base, tuned, labels, config),
        _means_of_slices(slices, base, tuned, labels, config),
        base,
        tuned,
        groups,
    )


def _means_of_slices(
    slices: Sequence[Slice],
    base: QueryValues,
    tuned: QueryValues,
    groups: npt.NDArray[np.object_] | None,
    config: EvalConfig,
) -> tuple[MeanOfSlices, ...]:
    """One for each column whose values make two slices or more that hold scored queries."""
    columns: dict[str, list[npt.NDArray[np.bool_]]] = {}
    for item in slices:
        mask = np.fromiter((query_id in item.query_ids for query_id in base.query_ids), np.bool_)
        if item.column and mask.any():
            columns.setdefault(item.column, []).append(mask)
    found = []
    for number, (column, masks) in enumerate(columns.items()):
        if len(masks) < 2:
            continue
        before, after = (values.values[config.measure] for values in (base, tuned))
        rng = np.random.default_rng([config.seed, 4000 + number])
        low, high = -math.inf, math.inf
        if all(_large_enough(mask, groups, config) for mask in masks):
            low, high = interval_of_slice_means(
                after - before,
                np.asarray(masks),
                groups,
                confidence=config.confidence,
                resamples=config.resamples,
                rng=rng,
            )
        first, last = (float(np.mean([values[mask].mean() for mask in masks])) for values in (before, after))
        together = int(np.any(masks, axis=0).sum())
        found.append(MeanOfSlices(column, len(masks), together, first, last, last - first, low, high))
    return tuple(found)


def _paired(
    base: QueryValues,
    tuned: QueryValues,
    measure: str,
    groups: npt.NDArray[np.object_] | None,
    config: EvalConfig,
    stream: int,
    mask: npt.NDArray[np.bool_] | None = None,
) -> PairedResult:
    keep = np.ones(len(base.query_ids), dtype=np.bool_) if mask is None else mask
    result = paired(
        base.values[measure][keep],
        tuned.values[measure][keep],
        None if groups is None else groups[keep],
        confidence=config.confidence,
        resamples=config.resamples,
        rng=np.random.default_rng([config.seed, stream]),
    )
    # Measures lie in [0, 1], so no delta lies outside [-1, 1], however wide Student's t of a few groups may be.
    low, high = (end if math.isinf(end) else min(max(end, -1.0), 1.0) for end in (result.low, result.high))
    return replace(result, low=low, high=high)


def _slices(
    slices: Sequence[Slice],
    base: QueryValues,
    tuned: QueryValues,
    groups: npt.NDArray[np.object_] | None,
    config: EvalConfig,
) -> tuple[SliceResult, ...]:
    masks = [np.fromiter((q in item.query_ids for q in base.query_ids), np.bool_) for item in slices]
    judged = [_large_enough(mask, groups, config) for mask in masks]
    raw = [
        _loss(base, tuned, groups, config, 1000 + number, mask)
        for number, (mask, large) in enumerate(zip(masks, judged, strict=True))
        if large
    ]
    corrected = iter(holm(np.asarray(raw)).tolist() if raw else [])
    results = []
    for number, (item, mask, large) in enumerate(zip(slices, masks, judged, strict=True)):
        if not mask.any():
            continue
        result = _paired(base, tuned, config.measure, groups, config, 2000 + number, mask)
        p_value = next(corrected) if large else None
        harmed = p_value is not None and p_value <= 1 - config.confidence
        results.append(SliceResult(item.name, result, large, p_value, harmed))
    return tuple(results)


def _large_enough(mask: npt.NDArray[np.bool_], groups: npt.NDArray[np.object_] | None, config: EvalConfig) -> bool:
    """Enough queries, and enough independent ones, for a slice to be judged."""
    queries = int(mask.sum())
    independent = queries if groups is None else len(set(groups[mask].tolist()))
    return queries >= config.min_slice_queries and independent >= config.min_groups


def _loss(
    base: QueryValues,
    tuned: QueryValues,
    groups: npt.NDArray[np.object_] | None,
    config: EvalConfig,
    stream: int,
    mask: npt.NDArray[np.bool_],
) -> float:
    deltas = (tuned.values[config.measure] - base.values[config.measure])[mask]
    rng = np.random.default_rng([config.seed, stream])
    return loss_p_value(
        deltas, None if groups is None else groups[mask], config.max_slice_loss, rng=rng, resamples=config.resamples
    )


def refuse_all_zero(values: Mapping[str, QueryValues], measure: str, qrels: Qrels, run: Run) -> None:
    """DataError when nothing is scored, or when all values of all systems are 0.

    The latter is almost always ids that do not meet (FlagEmbedding #893), not useless systems; `run` is for the advice.
    """
    query_ids = next(iter(values.values())).query_ids
    if not query_ids:
        raise DataError("eval: no query in the qrels has a positive, so nothing can be measured; check the grades")
    if any(found.values[measure].any() for found in values.values()):
        return
    first = query_ids[0]
    found = [scored.doc_id for scored in run.ranking(first)[:3]]
    raise DataError(
        f"eval: {measure} is 0 for every query of {'both runs' if len(values) == 2 else 'all runs'}. Do the ids meet? "
        f"Query {first!r} has the positive {qrels.positives(first)[0]!r}, and its run begins with "
        f"{', '.join(map(repr, found)) or 'nothing'}"
    )
