"""The report as one HTML page that works from disk: verdict, deltas, queries side by side, failures, costs, rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from closecall.pages import render, script_policy
from eval.evaluation import Evaluation
from eval.failures import CLASSES, REMEDIES
from eval.pictures import all_pictures, forest_picture
from eval.tables import CONTENDER_HEADER, contender_rows, cost_rows, header, rows, status_line

QUERIES_SHOWN = 2000
"""Queries in the table of the page, those that moved most; `per_query.csv` has all."""
FAILURES_SHOWN = 100


def page(
    content: Mapping[str, Any],
    costs: Mapping[str, Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    queries: Sequence[Mapping[str, Any]],
) -> str:
    """The page of a `verdict.json`, its `costs.json`, its failures and `query_rows`."""
    script = files("eval").joinpath("templates/report.js").read_text(encoding="utf-8")
    contents = {content["contender"]: content, **content["others"]}
    meanings = {name: (rule.__doc__ or "").strip() for name, rule in CLASSES.items()}
    return render(
        "eval",
        "report.html.j2",
        content=content,
        script=script,
        policy=script_policy(script),
        tables={name: _table(content, name, found) for name, found in contents.items()},
        contenders=[CONTENDER_HEADER, *contender_rows(content)],
        rules={name: found["rules"] for name, found in contents.items()},
        forest=forest_picture(content),
        pictures=all_pictures(content, costs),
        costs=cost_rows(content, costs),
        queries=queries[:QUERIES_SHOWN],
        queries_in_all=len(queries),
        slices=sorted({name for row in queries[:QUERIES_SHOWN] for name in row["slices"]}),
        failures=failures[:FAILURES_SHOWN],
        failures_in_all=len(failures),
        meanings=meanings,
        statuses=status_line(content),
        remedies=REMEDIES,
        languages=_matrices(content),
    )


def _table(content: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Header and rows of one contender's comparison."""
    return [header({**content, "contender": name}), *rows({**content, **found})]


def query_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Per scored query: text, values of incumbent and contender, delta and slices; those that moved most first."""
    chosen, measure = evaluation.chosen, evaluation.config.measure
    base, tuned = (values.values[measure].tolist() for values in (chosen.base, chosen.tuned))
    member: dict[str, list[str]] = {}
    for item in evaluation.asked.slices:
        for query_id in item.query_ids:
            member.setdefault(query_id, []).append(item.name)
    found = []
    for query_id, before, after in zip(chosen.base.query_ids, base, tuned, strict=True):
        query = evaluation.asked.queries.get(query_id)
        text = query.text if query is not None else ""
        found.append(
            {"query_id": query_id, "text": text, "base": before, "tuned": after, "delta": after - before}
            | {"slices": member.get(query_id, [])}
        )
    return sorted(found, key=lambda row: (-abs(row["delta"]), row["query_id"]))


def _matrices(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each system: query languages, document languages, and the value and n of each pair."""
    pairs = content.get("languages") or []
    asked, held = (list(dict.fromkeys(pair[key] for pair in pairs)) for key in ("query", "document"))
    names = list(pairs[0]["values"]) if pairs else []
    return {
        name: {
            "queries": asked,
            "documents": held,
            "cells": {(pair["query"], pair["document"]): (pair["values"][name], pair["n"]) for pair in pairs},
        }
        for name in names
    }
