"""What a person sees of a verdict: one table for the terminal and for Markdown, and the report around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from closecall.records import Document, Qrels, Query, Run
from eval.rules import points
from eval.tables import CONTENDER_HEADER, TOO_SMALL, contender_rows, cost_rows, header, rows, status_line
from eval.unjudged import MOSTLY

EXAMPLES = 5
SMALL_SHOWN = 10


@dataclass(frozen=True)
class Shown:
    """What the examples of the report are drawn from."""

    queries: Mapping[str, Query]
    documents: Mapping[str, Document]
    qrels: Qrels
    base: Run
    tuned: Run


def table(content: Mapping[str, Any]) -> Table:
    """The rows of a `verdict.json` as a terminal table; many slices too small to judge are left to the report."""
    shown, left_out = _without_many_small(rows(content))
    view = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="dim")
    notes = [f"{left_out} slices are too small to judge, and left to the report"] if left_out else []
    notes += [f"in points (hundredths); {_interval_note(content)}", *_mostly_unjudged(content)]
    notes += alarm_lines(content)
    notes += [*_models(content), *_searches(content), *_counted(content)]
    view.caption = Text("\n".join(notes))  # names and paths are no markup
    heads = header(content)
    for number, name in enumerate(heads):
        # A pipe counts as 80 columns: names and remarks may wrap there, a number is never cut.
        is_text = number in (0, len(heads) - 1)
        view.add_column(name, justify="right" if 2 <= number <= 6 else "left", no_wrap=not is_text, overflow="fold")
    for number, cells in enumerate(shown):
        style = "bold" if number == 0 else "red" if cells[-1] == "HARMED" else "dim" if cells[-1] else ""
        view.add_row(*map(Text, cells), style=style, end_section=number == len(content["overall"]) - 1)
    return view


def _contenders(content: Mapping[str, Any]) -> list[str]:
    """The table of contenders where there are several."""
    if not content.get("others"):
        return []
    return [
        f"## Contenders against {content['incumbent']}",
        _markdown_table(CONTENDER_HEADER, contender_rows(content)),
    ]


def others_table(content: Mapping[str, Any]) -> Table:
    """The lines of all contenders for the terminal."""
    view = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    view.title = f"contenders against {content['incumbent']}, by {content['measure']}"
    for number, name in enumerate(CONTENDER_HEADER):
        view.add_column(name, justify="right" if number >= 2 else "left", no_wrap=number >= 2, overflow="fold")
    for cells in contender_rows(content):
        view.add_row(*map(Text, cells))
    return view


def _without_many_small(cells: Sequence[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], int]:
    """The rows to show, and how many slices were left out: those too small to judge, when there are more than ten."""
    kept = [row for row in cells if row[-1] != TOO_SMALL]
    few = len(cells) - len(kept) <= SMALL_SHOWN
    return (list(cells), 0) if few else (kept, len(cells) - len(kept))


def markdown(
    content: Mapping[str, Any],
    shown: Shown | None,
    values: Mapping[str, tuple[float, float]],
    costs: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The whole report of a `verdict.json` as Markdown. `values`: (base, tuned) of the deciding measure by query id."""
    parts = [f"# Verdict: {content['outcome']}", *results(content), *_others(content), *_unjudged(content)]
    parts += [*_quality(content), *_costs(content, costs or {}), *_failures(content), *_facts(content)]
    if shown is not None:
        parts += _examples(content["measure"], values, shown)
    return "\n\n".join(part for part in parts if part) + "\n"


def results(content: Mapping[str, Any]) -> list[str]:
    """The sentence of a `verdict.json`, its rules and its table, as paragraphs of Markdown."""
    result = content["overall"][content["measure"]]
    resolvable = content["resolvable_gain"]
    parts = [
        content["sentence"],
        "\n".join(f"- {rule['name']}: **{rule['outcome']}**, {rule['evidence']}" for rule in content["rules"]),
        f"The smallest gain that this test set shows with 80 % power is {points(resolvable)} points of "
        f"{content['measure']}."
        if resolvable is not None
        else "",
        *_contenders(content),
        "## Measures and slices",
        _markdown_table(header(content), rows(content)),
        f"In points (hundredths); {_interval_note(content)}. Overall: p = {result['p_value']:.4f} (permutation), "
        f"effect size {result['effect_size']:.2f} (Cohen's d of the deltas), {result['wins']} wins, "
        f"{result['ties']} ties, {result['losses']} losses. nDCG gain: {content['gain']}.",
    ]
    return [part for part in parts if part]


def _others(content: Mapping[str, Any]) -> list[str]:
    """The table of each contender that the verdict is not about."""
    parts = []
    for name, other in content.get("others", {}).items():
        parts += [f"## {name} against {content['incumbent']}: {other['outcome']}", other["sentence"]]
        parts += [_markdown_table(header({**content, "contender": name}), rows({**content, **other}))]
    return parts


def _mostly_unjudged(content: Mapping[str, Any]) -> list[str]:
    """A line where most of the top of the deciding measure is unjudged."""
    several = content.get("bounds", {}).get(content.get("contender"), ())
    return [
        f"{one['judged']:.0%} of the top is judged: {one['measure']} {points(one['value'])} could lie between "
        f"{points(one['low'])} and {points(one['high'])}"
        for one in several
        if one["measure"] == content["measure"] and one["judged"] < MOSTLY
    ]


def _unjudged(content: Mapping[str, Any]) -> list[str]:
    """Measures of the contender whose top is mostly unjudged, with what these documents could make of them."""
    several = content.get("bounds", {}).get(content.get("contender"), ())
    lines = [
        f"- {one['measure']} {points(one['value'])}: {one['judged']:.0%} of the top is judged; between "
        f"{points(one['low'])} and {points(one['high'])} if the unjudged were relevant or not"
        for one in several
        if one["judged"] < MOSTLY
    ]
    return ["## Mostly unjudged", "\n".join(lines)] if lines else []


def alarm_lines(content: Mapping[str, Any]) -> list[str]:
    """What should be known before the numbers are believed."""
    alarms = [one for one in content.get("quality", ()) if one["alarm"]]
    return [f"ALARM {one['name']}: {one['found']}: {one['meaning']}" for one in alarms]


def _quality(content: Mapping[str, Any]) -> list[str]:
    """What is to be known of the test set, alarms first."""
    lines = [
        f"- {'**ALARM** ' if one['alarm'] else ''}{one['name']}: {one['found']}. {_sentence(one['meaning'])} "
        f"{_sentence(one['advice'])}"
        for one in content.get("quality", ())
    ]
    return ["## The test set", "\n".join(lines)] if lines else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _costs(content: Mapping[str, Any], costs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = cost_rows(content, costs) if content.get("sizes") else []
    return ["## Costs", _markdown_table(found[0], found[1:])] if found else []


def _failures(content: Mapping[str, Any]) -> list[str]:
    """What would help with the queries that lost or missed, the cheapest first."""
    found = content.get("failures")
    if not found or not found["failures"]:
        return []
    lines = [f"- {name}: {count:,}" for name, count in found["remedies"].items()]
    return [
        "## Failures",
        f"{found['failures']:,} queries lost against {content['incumbent']} ({found['lost']:,}) or have no positive in "
        f"the top 10 ({found['missed']:,}): {status_line(content)}. {found['fixable_by_training']:,} of them are "
        "no label or chunking problem; fine-tuning can be expected to help with these alone. What would "
        "help, the cheapest first:",
        "\n".join(lines),
    ]


def _version(content: Mapping[str, Any]) -> list[str]:
    """A line for the frozen version of the test set."""
    if "version" not in content:
        return []
    version = content["version"]
    return [f"test set: version {version['version']}, lock {version['lock'][:12]}, verdict {content['looks']} on it"]


def _models(content: Mapping[str, Any]) -> list[str]:
    """A line for each model, or each run file, that was compared, and for the version of the test set."""
    models = content.get("models", {}).items()
    runs = content.get("runs", {}).items()
    digests = {role: model["weights_sha256"][:12] for role, model in models}
    lines = [
        f"{role}: {model['name']}" + (f", weights {digests[role]}" if digests[role] else "") for role, model in models
    ]
    return [*lines, *(f"{role}: {path}" for role, path in runs), *_version(content)]


def _searches(content: Mapping[str, Any]) -> list[str]:
    """A line for each approximate search: its recall, at what depth, on how many queries."""
    return [
        f"{name}: searched by {found['search']}, which finds {found['recall']:.3f} of what exact search finds "
        f"(depth {found['recall_depth']}, n = {found['recall_queries']})"
        for name, found in content.get("search", {}).items()
    ]


def _counted(content: Mapping[str, Any]) -> list[str]:
    """Lines for the queries that were scored 0 or left out; none where there are none."""
    counted = content.get("counted", {}).items()
    return [f"{count:,} {name.replace('_', ' ')}" for name, count in counted if count]


def _interval_note(content: Mapping[str, Any]) -> str:
    result = content["overall"][content["measure"]]
    grouped = f", {result['n_groups']:,} groups resampled whole" if result["n_groups"] < result["n"] else ""
    return f"{result['confidence']:.0%} intervals of the paired delta ({result['method']}{grouped})"


def _markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _facts(content: Mapping[str, Any]) -> list[str]:
    """Models, training and leaks, each where the stage knew of it."""
    parts = []
    if _models(content):
        parts += ["## Models", "\n".join(f"- {line}" for line in _models(content))]
    if _searches(content):
        parts += ["## Search", "\n".join(f"- {line}" for line in _searches(content))]
    if _counted(content):
        parts += ["## Counted apart", "\n".join(f"- {line}" for line in _counted(content))]
    if content.get("training"):
        parts.append(content["training"])
    for name, guard in (content.get("guard") or {}).items():
        result = guard["result"]
        low, high = points(result["low"], True), points(result["high"], True)
        parts.append(
            f"Guard set {guard['name']} ({guard['documents']:,} documents), {name}: {content['measure']} "
            f"{points(result['base'])} -> {points(result['tuned'])}, {points(result['delta'], True)} [{low}, {high}], "
            f"n = {result['n']:,}."
        )
    if "leaks" in content:
        found = [f"- {kind}: {count} test queries" for kind, count in content["leaks"].items() if count]
        parts += ["## Leaks", "\n".join(found) or "None found between test and what training read."]
    return parts


def _examples(measure: str, values: Mapping[str, tuple[float, float]], shown: Shown) -> list[str]:
    """The queries that moved most, with the positive that moved them and its rank before and after."""
    order = sorted(values, key=lambda query_id: (values[query_id][0] - values[query_id][1], query_id))
    wins = [query_id for query_id in order[:EXAMPLES] if values[query_id][1] > values[query_id][0]]
    losses = [query_id for query_id in reversed(order[-EXAMPLES:]) if values[query_id][1] < values[query_id][0]]
    header = ("query", "delta", "positive that moved", "rank before", "rank after", "now first")
    parts = []
    for title, chosen in ((f"Largest wins in {measure}", wins), (f"Largest losses in {measure}", losses)):
        if chosen:
            lines = [_example(query_id, values[query_id], shown) for query_id in chosen]
            parts += [f"## {title}", _markdown_table(header, lines)]
    return parts


def _example(query_id: str, value: tuple[float, float], shown: Shown) -> tuple[str, ...]:
    positive, before, after = _moved_positive(query_id, shown)
    ranking = shown.tuned.ranking(query_id)
    first = ranking[0].doc_id if ranking else ""
    delta = points(value[1] - value[0], True)
    return (_short(shown.queries[query_id].text), delta, _title(positive, shown), before, after, _title(first, shown))


def _moved_positive(query_id: str, shown: Shown) -> tuple[str, str, str]:
    """The positive that moved most among those of the highest grade that moved, and its ranks in both runs."""
    grades = shown.qrels.grades(query_id)
    before, after = (_ranks(run, query_id) for run in (shown.base, shown.tuned))

    def moved(doc_id: str) -> tuple[bool, int, float]:
        change = abs(_inverse(before, doc_id) - _inverse(after, doc_id))
        return change > 0, grades[doc_id], change

    best = max(shown.qrels.positives(query_id), key=moved)
    return best, str(before.get(best, "not found")), str(after.get(best, "not found"))


def _ranks(run: Run, query_id: str) -> dict[str, int]:
    return {scored.doc_id: rank for rank, scored in enumerate(run.ranking(query_id), start=1)}


def _inverse(ranks: Mapping[str, int], doc_id: str) -> float:
    return 1 / ranks[doc_id] if doc_id in ranks else 0.0


def _title(doc_id: str, shown: Shown) -> str:
    document = shown.documents.get(doc_id)
    return _short(f"{doc_id}: {document.title or document.text}") if document else doc_id


def _short(text: str, length: int = 80) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
