"""The verdict artifact: `verdict.json`, both runs in TREC form, values per query and a report."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.compare import Comparison
from eval.config import EvalConfig
from eval.statistics import PairedResult
from eval.verdict import Verdict

VERDICT = "verdict.json"
BASE_RUN = "base.run"
TUNED_RUN = "tuned.run"
PER_QUERY = "per_query.csv"
REPORT = "report.md"
SCHEMA = 1


def verdict_json(
    verdict: Verdict, comparison: Comparison, config: EvalConfig, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The verdict, its rule, its inputs and its evidence as plain JSON types. `facts` are what the caller knows."""
    return {
        "schema": SCHEMA,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "sentence": verdict.sentence,
        "measure": comparison.measure,
        "gain": config.gain,
        "queries": comparison.deciding.n,
        "groups": comparison.deciding.n_groups,
        "rules": [asdict(rule) for rule in verdict.rules],
        "queries_to_decide": verdict.queries_to_decide,
        "resolvable_gain": _number(verdict.resolvable_gain),
        "settings": config.resolved(),
        "overall": {name: _result(result) for name, result in comparison.overall.items()},
        "slices": [
            {
                "name": item.name,
                **_result(item.result),
                "large_enough": item.large_enough,
                "loss_p_value": _number(item.loss_p_value),
                "harmed": item.harmed,
            }
            for item in comparison.slices
        ],
        "counted": {
            "queries_without_positives": len(comparison.base.without_positives),
            "queries_missing_from_base_run": len(comparison.base.missing_from_run),
            "queries_missing_from_tuned_run": len(comparison.tuned.missing_from_run),
        },
        **facts,
    }


def write_per_query(path: Path, comparison: Comparison, texts: Mapping[str, str]) -> None:
    """One CSV line per scored query: id, group, text, and base, tuned and delta of every measure."""
    base, tuned = comparison.base, comparison.tuned
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        names = list(comparison.overall)
        writer.writerow(["query_id", "group", "query", *(f"{kind} {name}" for name in names for kind in KINDS)])
        for row, query_id in enumerate(base.query_ids):
            group = comparison.groups[row] if comparison.groups else query_id
            cells = []
            for name in names:
                before, after = float(base.values[name][row]), float(tuned.values[name][row])
                cells += [f"{before:.6f}", f"{after:.6f}", f"{after - before:.6f}"]
            writer.writerow([query_id, group, " ".join(texts.get(query_id, "").split()), *cells])


KINDS = ("base", "tuned", "delta")


def _result(result: PairedResult) -> dict[str, Any]:
    return {key: _number(value) if isinstance(value, float) else value for key, value in asdict(result).items()}


def _number(value: float | None) -> float | None:
    """A float that JSON can hold: six decimals; None for an interval without a bound."""
    if value is None or value in (float("inf"), float("-inf")) or value != value:
        return None
    return round(float(value), 6)
