"""Measures and verdicts of run files from any engine: nothing here needs a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closecall.config import override, validate
from closecall.dataset import load_queries
from closecall.errors import ConfigError, DataError, fault_list
from closecall.measures import Gain, Measure, QueryValues, parse_measures, per_query
from closecall.records import Qrels, Query, Run
from closecall.slices import SliceSource, find_slices
from closecall.trec import read_qrels, read_run
from eval.artifact import verdict_json
from eval.compare import compare
from eval.config import EvalConfig
from eval.verdict import decide


@dataclass(frozen=True)
class MeasuredRun:
    """The values of one run."""

    measures: tuple[Measure, ...]
    values: QueryValues

    def as_json(self, with_queries: bool) -> dict[str, Any]:
        """Means with their n and gain; on request the value of every query."""
        content: dict[str, Any] = {
            "queries": len(self.values.query_ids),
            "gain": self.values.gain,
            "queries_without_positives": len(self.values.without_positives),
            "queries_missing_from_run": len(self.values.missing_from_run),
            "means": {str(measure): round(self.values.mean(measure), 6) for measure in self.measures},
        }
        if with_queries:
            content["per_query"] = {
                query_id: {str(m): round(float(self.values.values[str(m)][row]), 6) for m in self.measures}
                for row, query_id in enumerate(self.values.query_ids)
            }
        return content


def measure_run(qrels: Path, run: Path, names: Sequence[str], gain: str, positive_from: int) -> MeasuredRun:
    """The measures of a TREC run over every query of the qrels that has a positive."""
    if gain not in ("exp", "linear"):
        raise ConfigError(f"--gain {gain}: expected exp or linear")
    measures = parse_measures(names)
    chosen: Gain = "linear" if gain == "linear" else "exp"
    judged = load_qrels(qrels, positive_from)
    values = per_query(judged, _run_of(run, judged, qrels), measures, chosen)
    if not values.query_ids:
        raise DataError(f"{qrels}: no query has a document of grade {positive_from} or more; check --positive-from")
    return MeasuredRun(measures, values)


def measure_text(measured: MeasuredRun, with_queries: bool) -> str:
    """Lines of measure, query (or `all`) and value, tab-separated as trec_eval prints them, then what was counted."""
    values, lines = measured.values, []
    if with_queries:
        for row, query_id in enumerate(values.query_ids):
            lines += [f"{m}\t{query_id}\t{values.values[str(m)][row]:.4f}" for m in measured.measures]
    lines += [f"{measure}\tall\t{values.mean(measure):.4f}" for measure in measured.measures]
    lines.append(f"queries\tall\t{len(values.query_ids)}")
    if any(measure.name == "nDCG" for measure in measured.measures):
        lines.append(f"gain\tall\t{values.gain}")
    for label, ids in (
        ("missing from the run, scored 0", values.missing_from_run),
        ("without positives, left out", values.without_positives),
        ("of the run not judged, left out", values.unjudged_queries),
    ):
        if ids:
            lines.append(f"# {len(ids)} queries {label}: {', '.join(ids[:5])}{' ...' if len(ids) > 5 else ''}")
    return "\n".join(lines)


def compare_runs(
    qrels: Path,
    base: Path,
    tuned: Path,
    queries: Path | None,
    assignments: Sequence[str],
    positive_from: int,
    group_by: str | None = None,
) -> dict[str, Any]:
    """The content of a `verdict.json` for two TREC runs; the same code as the eval stage.

    Compared are the queries of the qrels, only those in `queries` where that is given. They are grouped by the column
    `group_by`, or by the groups that `split/*/queries.jsonl` name.
    """
    config = validate(EvalConfig, override({}, assignments), Path("--set"))
    judged = load_qrels(qrels, positive_from)
    known = load_queries(queries) if queries else []
    found = [query for query in known if query.query_id in judged]
    if queries and not found:
        raise DataError(f"{queries}: none of its ids stands in {qrels}; are these the queries of that set?")
    if queries:
        judged = judged.only(query.query_id for query in found)
    if not queries and config.slice_by:
        raise ConfigError("slice_by needs --queries FILE, whose columns it names")
    slices = find_slices(
        SliceSource(found or [Query(query_id, "") for query_id in judged], judged, {}), config.slice_by
    )
    groups = _groups(found, group_by)
    base_run, tuned_run = _run_of(base, judged, qrels), _run_of(tuned, judged, qrels)
    comparison = compare(judged, base_run, tuned_run, config, slices, groups)
    runs = {"runs": {"base": str(base), "tuned": str(tuned)}}
    return verdict_json(decide(comparison, config), comparison, config, runs)


def _run_of(path: Path, judged: Qrels, qrels: Path) -> Run:
    """A run that answers at least one of the judged queries; DataError when it answers none."""
    run = read_run(path)
    if not any(query_id in run for query_id in judged):
        raise DataError(
            f"{path}: none of its queries ({next(iter(run))!r}, ...) is judged in {qrels}; are these its qrels?"
        )
    return run


def _groups(queries: Sequence[Query], column: str | None) -> dict[str, str] | None:
    """The group of each query that has one; None where nothing names groups."""
    if column is not None and not any(column in query.metadata for query in queries):
        raise ConfigError(f"--group-by {column}: no query in --queries has this column")
    name = column or "_group"
    return {query.query_id: str(query.metadata[name]) for query in queries if name in query.metadata} or None


def load_qrels(path: Path, positive_from: int) -> Qrels:
    """The judgments of a file; DataError with all its faults."""
    rows, faults = read_qrels(path)
    if faults:
        raise DataError(fault_list(str(path), faults))
    if not rows:
        raise DataError(f"{path}: holds no judgments; expected lines of query-id, corpus-id, score")
    return Qrels((row.judgment for row in rows), positive_from)
