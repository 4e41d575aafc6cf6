"""The cells of every table of a verdict, for the terminal, Markdown and the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.rules import points

TOO_SMALL = "too few to judge"


def header(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The heads of `rows`, with the names of incumbent and contender."""
    names = content.get("incumbent", "base"), content.get("contender", "tuned")
    return ("", "measure", *names, "delta", "interval", "n", "")


def rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the table: every measure overall, then the deciding measure per slice. Measures in points."""
    cells = [("all queries", name, *cells_of(result), "") for name, result in content["overall"].items()]
    for item in content.get("means_of_slices", ()):
        cells.append((f"mean of {item['slices']} {item['column']}", content["measure"], *cells_of(item), ""))
    for item in content["slices"]:
        remark = "HARMED" if item["harmed"] else "" if item["large_enough"] else TOO_SMALL
        values = cells_of(item)
        if not item["large_enough"]:
            values = (*values[:3], "", values[4])
        cells.append((item["name"], content["measure"], *values, remark))
    return cells


def status_line(content: Mapping[str, Any]) -> str:
    """How many failures are new, still there, fixed or back, in words."""
    found = content["failures"]["status"].items()
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in found if count) or "none"


CONTENDER_HEADER = ("contender", "outcome", "mean", "delta", "interval", "n")


def contender_rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line for each contender, that of the verdict first: outcome, mean, delta and interval, in points."""
    found = []
    for name, one in {content["contender"]: content, **content["others"]}.items():
        _, *cells = cells_of(one["overall"][content["measure"]])
        found.append((name, one["outcome"], *cells))
    return found


COST_HEADER = (
    "system", "measure", "points per MiB", "bytes per vector", "index MiB", "index GiB per million", "model MiB",
    "s per 1,000 documents", "s per 1,000 queries", "ms p50", "ms p95", "price per 1,000 queries",
)  # fmt: skip


def cost_rows(content: Mapping[str, Any], costs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Header and a line for each system: its mean, what it takes, and the points gained for each MiB of index."""
    own, measure = content["overall"][content["measure"]], content["measure"]
    means = {name: other["overall"][measure]["tuned"] for name, other in content.get("others", {}).items()}
    if "incumbent" in content:
        means |= {content["incumbent"]: own["base"], content["contender"]: own["tuned"]}
    sizes = content.get("sizes", {})
    lines = [_cost_row(name, means, sizes.get(name, {}), costs.get(name, {}), content["incumbent"]) for name in sizes]
    return [COST_HEADER, *lines] if lines else []


def _cost_row(
    name: str,
    means: Mapping[str, float],
    size: Mapping[str, Any],
    times: Mapping[str, Any],
    incumbent: str,
) -> tuple[str, ...]:
    index = size["index_bytes"] / 2**20
    gained = means[name] - means[incumbent]
    figures = (
        points(means[name]),
        f"{100 * gained / index:+.2f}" if index and name != incumbent else "",
        f"{size['bytes_per_vector']:,}" if index else "",
        f"{index:,.1f}" if index else "",
        f"{size['index_bytes_per_million'] / 2**30:.2f}" if index else "",
        f"{size['model_bytes'] / 2**20:,.0f}" if size["model_bytes"] else "",
    )
    names = ("encode_documents_s", "encode_queries_s", "latency_p50_ms", "latency_p95_ms", "price_per_1000_queries")
    return (name, *figures, *(f"{times[key]:,.3g}" if times.get(key) else "" for key in names))


def cells_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Both means, delta, interval (blank without a bound) and n of a result, in points."""
    low, high = result["low"], result["high"]
    interval = "" if low is None or high is None else f"[{points(low, True)}, {points(high, True)}]"
    return (
        points(result["base"]),
        points(result["tuned"]),
        points(result["delta"], True),
        interval,
        f"{result['n']:,}",
    )
