"""The verdict artifact: `verdict.json`, every run in TREC form, values per query, failures and reports."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from closecall.errors import ArtifactError
from closecall.manifest import MANIFEST, Artifact, artifact_around, sha256_json
from closecall.trec import write_run
from eval.answers import Answers
from eval.archive import ORDER, Entry, counts, json_lines, merged, read_archive, write_archive
from eval.compare import Comparison
from eval.config import EvalConfig
from eval.contenders import NAME
from eval.evaluation import Evaluation
from eval.failures import Failure, Finder, summarised
from eval.page import page, query_rows
from eval.quality import quality_of
from eval.report import Shown, markdown
from eval.statistics import PairedResult
from eval.unjudged import flattens_at
from eval.verdict import Verdict

VERDICT = "verdict.json"
PER_QUERY = "per_query.csv"
REPORT = "report.md"
PAGE = "report.html"
COSTS = "costs.json"
FAILURES = "failures.jsonl"
ARCHIVE = "failures.jsonl"
"""Beside the verdict's folder, which each evaluation writes anew."""
PARTIAL = ".closecall.partial"
"""Of a report that is being written."""
SCHEMA = 2


def write_evaluation(
    folder: Path,
    evaluation: Evaluation,
    facts: Mapping[str, Any],
    lexical: Answers | None,
    archive: Sequence[Entry],
    key: str,
) -> dict[str, Any]:
    """Write all files of a verdict; the content of its `verdict.json`. `archive`: failures before this evaluation."""
    failures = failures_of(evaluation, lexical)
    entries = merged(archive, {f.query_id: f.query for f in failures}, evaluation.chosen.base.query_ids, key)
    content = evaluation_json(evaluation, facts) | {
        "quality": quality_of(evaluation, lexical, facts.get("looks", 0)),
        "failures": summarised(failures).as_json() | {"status": counts(entries, evaluation.chosen.base.query_ids)},
    }
    for name, answers in evaluation.answers.items():
        write_run(folder / run_name(name), answers.run(), name, answers.query_ids)
    write_per_query(folder / PER_QUERY, evaluation)
    costs = {name: asdict(times) for name, times in evaluation.beside.times.items()}
    status = {entry.query_id: entry.status for entry in entries}
    found = [failure.as_json() | {"status": status[failure.query_id]} for failure in failures]
    found.sort(key=lambda failure: ORDER.index(failure["status"]))  # what was fixed once and is back comes first
    lines = "".join(json.dumps(failure, ensure_ascii=False) + "\n" for failure in found)
    (folder / FAILURES).write_text(lines, encoding="utf-8")
    (folder / COSTS).write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")
    (folder / REPORT).write_text(markdown(content, _examples(evaluation), _pairs(evaluation), costs), encoding="utf-8")
    (folder / PAGE).write_text(page(content, costs, found, query_rows(evaluation)), encoding="utf-8")
    # A report of `compare` has no manifest that would tell of a change.
    sealed = content | ({"seal": sha256_json(content)} if "runs" in content else {})
    (folder / VERDICT).write_text(json.dumps(sealed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return content


def _pairs(evaluation: Evaluation) -> dict[str, tuple[float, float]]:
    """(incumbent, contender) of the deciding measure by query."""
    chosen, measure = evaluation.chosen, evaluation.config.measure
    base, tuned = (values.values[measure].tolist() for values in (chosen.base, chosen.tuned))
    return dict(zip(chosen.base.query_ids, zip(base, tuned, strict=True), strict=True))


def _examples(evaluation: Evaluation) -> Shown | None:
    """What the examples of the report are drawn from; None without texts."""
    asked = evaluation.asked
    if not asked.documents:
        return None
    runs = (evaluation.answers[name].run() for name in (evaluation.incumbent, evaluation.ruling.contender))
    return Shown(asked.queries, asked.documents, asked.qrels, *runs)


def read_report(folder: Path) -> dict[str, Any] | None:
    """The verdict in a folder that `compare` wrote, which has no manifest; None where there is none."""
    path = folder / VERDICT
    if (folder / MANIFEST).exists() or not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA or "runs" not in content:
            raise ValueError(f"schema {content['schema']!r}, expected {SCHEMA} with runs")
        if content.pop("seal", None) != sha256_json(content) or not all(re.fullmatch(NAME, n) for n in content["runs"]):
            raise ValueError("changed since it was written")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: no verdict of this closecall ({error}); move it away and compare the runs again"
        ) from None
    return content


def free_report(folder: Path, names: Collection[str], read: Collection[Path]) -> list[Path]:
    """The files of an earlier report in the folder, which one on systems with these names would replace.

    ArtifactError where a file would be replaced that no report wrote, or that is `read` for this one, or where the
    folder belongs to an artifact.
    """
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder}: is a file; name a folder for the report")
    if (artifact := artifact_around(folder)) is not None:
        raise ArtifactError(f"{folder}: lies in the artifact {artifact}, which takes no more files; name another")
    before = read_report(folder)
    old = [] if before is None else _report_files(folder, before["runs"])
    new = _report_files(folder, names)
    if foreign := [path for path in new if path not in old and os.path.lexists(path)]:
        raise ArtifactError(f"{foreign[0]}: is there, and no report wrote it; move it away, or name another folder")
    places = {path.resolve() for path in (*old, *new)}
    if lost := [path for path in read if path.resolve() in places]:
        raise ArtifactError(f"{lost[0]}: is read here, and the report would replace it; name another folder")
    return old


@contextmanager
def replacing_report(folder: Path, old: Sequence[Path]) -> Iterator[Path]:
    """A folder for the files of a report, which take the place of the old ones when the block ends without an error."""
    partial = folder / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        made = [path.name for path in partial.iterdir()]
        for path in old:
            if path.name not in made:
                path.unlink(missing_ok=True)
        for name in sorted(made, key=lambda name: name == VERDICT):  # a verdict is there when all else is
            (partial / name).replace(folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _report_files(folder: Path, names: Collection[str]) -> list[Path]:
    """Those of a report on systems with these names, all but the archive."""
    return [folder / name for name in (PER_QUERY, REPORT, PAGE, COSTS, FAILURES, *map(run_name, names), VERDICT)]


def failures_of(evaluation: Evaluation, lexical: Answers | None) -> list[Failure]:
    """The failures of the contender that the ruling is about."""
    asked, named = evaluation.asked, evaluation.ruling.contender
    finder = Finder(
        asked.queries,
        asked.documents,
        asked.qrels,
        evaluation.answers,
        evaluation.incumbent,
        named,
        asked.truncated,
        lexical,
    )
    ids = evaluation.chosen.base.query_ids
    measure = evaluation.config.measure
    return finder.failures(
        {
            name: dict(zip(ids, values.values[measure].tolist(), strict=True))
            for name, values in evaluation.values.items()
        }
    )


def keep_failures(verdict: Artifact, archive: Path, key: str) -> None:
    """Merge the failures of a verdict into the archive; a second time changes nothing."""
    lines = map(json.loads, json_lines(verdict.file(FAILURES)))
    failing = {found["query_id"]: found["query"] for found in lines}
    csv.field_size_limit(2**31 - 1)  # texts of queries may be longer than the 131,072 characters that csv reads
    with verdict.file(PER_QUERY).open(encoding="utf-8", newline="") as handle:
        asked = {row["query_id"] for row in csv.DictReader(handle)}
    before = read_archive(archive)
    entries = merged(before, failing, asked, key)
    if entries != before:
        write_archive(archive, entries)


def run_name(system: str) -> str:
    """The file that a system's run is in."""
    return f"{system}.run"


def evaluation_json(evaluation: Evaluation, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `verdict.json`: the ruling and the contender that it is about, then what all systems have.

    Times are no part of it: they stand in `costs.json`, so that the same inputs give the same bytes here.
    """
    ruling, named = evaluation.ruling, evaluation.ruling.contender
    config = evaluation.config
    found = {
        name: verdict_json(evaluation.verdicts[name], comparison, config, {})
        for name, comparison in evaluation.comparisons.items()
    }
    own = ("outcome", "sentence", "rules", "queries_to_decide", "resolvable_gain", "overall", "slices")
    return (
        found[named]
        | {"outcome": ruling.outcome, "exit_code": ruling.exit_code, "sentence": ruling.sentence}
        | {"incumbent": evaluation.incumbent, "contender": named}
        | {
            "others": {
                name: {key: content[key] for key in (*own, "means_of_slices")}
                for name, content in found.items()
                if name != named
            },
            "gain_p_values": {name: _number(value) for name, value in evaluation.p_values.items()},
            "bounds": {name: [_numbers(asdict(b)) for b in several] for name, several in evaluation.bounds.items()},
            "recall_curves": {
                name: {"recall": [_number(value) for value in curve.tolist()], "flattens_at": flattens_at(curve)}
                for name, curve in evaluation.curves.items()
            },
            "sizes": {name: asdict(size) for name, size in evaluation.beside.sizes.items()},
            "guard": {name: guard.as_json() for name, guard in evaluation.beside.guards.items()} or None,
        }
        | {**facts, "counted": _counted(evaluation) | facts.get("counted", {})}
    )


def _counted(evaluation: Evaluation) -> dict[str, int]:
    without = len(evaluation.values[evaluation.incumbent].without_positives)
    missing = {f"queries_missing_from_{name}_run": len(v.missing_from_run) for name, v in evaluation.values.items()}
    return {"queries_without_positives": without, **missing}


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
        "means_of_slices": [_numbers(asdict(item)) for item in comparison.means_of_slices],
        "counted": {
            "queries_without_positives": len(comparison.base.without_positives),
            "queries_missing_from_base_run": len(comparison.base.missing_from_run),
            "queries_missing_from_tuned_run": len(comparison.tuned.missing_from_run),
        },
        **facts,
    }


def write_per_query(path: Path, evaluation: Evaluation) -> None:
    """One CSV line per scored query: id, group, text, and per measure the value of each system and each delta."""
    names, asked = list(evaluation.values), evaluation.asked
    first = evaluation.chosen
    measures = list(first.overall)
    columns = [column for measure in measures for column in _columns(evaluation, measure)]
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["query_id", "group", "query", *columns])
        for row, query_id in enumerate(first.base.query_ids):
            group = first.groups[row] if first.groups else query_id
            query = asked.queries.get(query_id)
            cells = []
            for measure in measures:
                values = {name: float(evaluation.values[name].values[measure][row]) for name in names}
                others = [values[name] - values[evaluation.incumbent] for name in evaluation.comparisons]
                cells += [f"{value:.6f}" for value in [*values.values(), *others]]
            writer.writerow([query_id, group, " ".join((query.text if query else "").split()), *cells])


def _columns(evaluation: Evaluation, measure: str) -> list[str]:
    several = len(evaluation.comparisons) > 1
    deltas = [f"{name} - {evaluation.incumbent}" if several else "delta" for name in evaluation.comparisons]
    return [f"{name} {measure}" for name in [*evaluation.values, *deltas]]


def _result(result: PairedResult) -> dict[str, Any]:
    return _numbers(asdict(result))


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _number(value) if isinstance(value, float) else value for key, value in values.items()}


def _number(value: float | None) -> float | None:
    """A float that JSON can hold: six decimals; None for an interval without a bound."""
    if value is None or value in (float("inf"), float("-inf")) or value != value:
        return None
    return round(float(value), 6)
