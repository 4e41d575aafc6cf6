"""Measures and verdicts of run files from any engine: nothing here needs a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closecall.config import override, validate
from closecall.dataset import load_documents, load_queries
from closecall.errors import ConfigError, DataError, fault_list
from closecall.manifest import sha256_json
from closecall.measures import Gain, Measure, QueryValues, parse_measures, per_query
from closecall.records import Document, Qrels, Query, Run
from closecall.slices import SliceSource, find_slices
from closecall.trec import read_qrels, read_run
from eval.answers import Answers, answers_of_run
from eval.archive import merged, read_archive, write_archive
from eval.artifact import evaluation_json, failures_of, free_report, replacing_report, write_evaluation
from eval.config import EvalConfig
from eval.contenders import BASE
from eval.evaluation import Asked, Evaluation, evaluate_answers
from eval.systems import Lexical, Searched

OF_EXPERIMENTS = ("contenders", "guard", "limits")
ARCHIVE_OF_RUNS = "archive.jsonl"
"""Failures kept across reports in the same folder."""


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
        raise _no_positives(qrels, positive_from)
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


@dataclass(frozen=True)
class RunFiles:
    """What `compare` is given."""

    qrels: Path
    runs: Mapping[str, Path]
    """By name; base is the run of the system in use, unless `eval.incumbent` names another."""
    queries: Path | None = None
    corpus: Path | None = None
    """For texts in the report, and for why queries fail."""
    positive_from: int = 1
    group_by: str | None = None

    @property
    def files(self) -> list[Path]:
        """All that are read."""
        return [path for path in (self.qrels, *self.runs.values(), self.queries, self.corpus) if path is not None]


def compare_runs(given: RunFiles, assignments: Sequence[str], report: Path | None = None) -> dict[str, Any]:
    """The content of a `verdict.json` for TREC runs; the same code as the eval stage. Files go to `report`.

    Compared are the queries of the qrels, only those in `queries` where that is given. They are grouped by the column
    `group_by`, or by the groups that `split/*/queries.jsonl` name.
    """
    config = _run_config(given, assignments)
    replaced = [] if report is None else free_report(report, given.runs, given.files)
    judged = load_qrels(given.qrels, given.positive_from)
    known = load_queries(given.queries) if given.queries else []
    found = [query for query in known if query.query_id in judged]
    asked_for = len(judged)
    if given.queries and not found:
        raise DataError(f"{given.queries}: none of its ids stands in {given.qrels}; are these the queries of that set?")
    if given.queries:
        judged = judged.only(query.query_id for query in found)
    if not given.queries and config.slice_by:
        raise ConfigError("slice_by needs --queries FILE, whose columns it names")
    if not any(map(judged.positives, judged)):
        raise _no_positives(given.qrels, given.positive_from)
    documents = load_documents(given.corpus) if given.corpus else []
    asked = _asked(found or [Query(query_id, "") for query_id in judged], judged, documents, config, given.group_by)
    doc_ids = [document.doc_id for document in documents]
    runs = {name: _run_of(path, judged, given.qrels) for name, path in given.runs.items()}
    for name, run in runs.items():
        _refuse_other_ids(given.runs[name], run, judged, given.qrels, doc_ids, given.corpus)
    answers = {name: answers_of_run(run, doc_ids) for name, run in runs.items()}
    evaluation = evaluate_answers(answers, asked, config)
    facts = {
        "runs": {name: str(path) for name, path in given.runs.items()},
        "counted": {"judged_queries_that_the_file_of_queries_lacks": asked_for - len(judged)},
    }
    if report is None:
        return evaluation_json(evaluation, facts)
    return _reported(report, evaluation, facts, documents, replaced)


def _run_config(given: RunFiles, assignments: Sequence[str]) -> EvalConfig:
    """The settings of `--set`; the incumbent must be one of the runs."""
    content = override({}, assignments)
    if beside := [name for name in OF_EXPERIMENTS if name in content]:
        raise ConfigError(
            f"--set {beside[0]}: needs models and a corpus, so it is of experiments; name runs with --run"
        )
    incumbent = content.pop("incumbent", BASE)
    if not isinstance(incumbent, str) or incumbent not in given.runs:
        raise ConfigError(f"--set incumbent={incumbent}: no such run; there are {', '.join(given.runs)}")
    return validate(EvalConfig, content, Path("--set")).model_copy(update={"incumbent": incumbent})


def _asked(
    queries: Sequence[Query], judged: Qrels, documents: Sequence[Document], config: EvalConfig, group_by: str | None
) -> Asked:
    by_id = {document.doc_id: document for document in documents}
    slices = find_slices(SliceSource(queries, judged, by_id), config.slice_by)
    return Asked({query.query_id: query for query in queries}, judged, by_id, slices, _groups(queries, group_by))


def _reported(
    report: Path,
    evaluation: Evaluation,
    facts: Mapping[str, Any],
    documents: Sequence[Document],
    replaced: Sequence[Path],
) -> dict[str, Any]:
    """All files of a verdict in the folder, and failures merged into the archive that is there."""
    asked = list(evaluation.asked.queries.values())
    lexical = None
    if documents and any(query.text for query in asked):
        searched = Searched(documents)
        hits = Lexical(searched).search(asked, 20)
        lexical = Answers(hits, tuple(query.query_id for query in asked), searched.doc_ids)
    archive = report / ARCHIVE_OF_RUNS
    before = read_archive(archive)
    key = sha256_json(evaluation_json(evaluation, facts))[:12]
    with replacing_report(report, replaced) as partial:
        content = write_evaluation(partial, evaluation, facts, lexical, before, key)
    failing = {f.query_id: f.query for f in failures_of(evaluation, lexical)}
    write_archive(archive, merged(before, failing, evaluation.chosen.base.query_ids, key))
    return content


def _run_of(path: Path, judged: Qrels, qrels: Path) -> Run:
    """A run that answers at least one of the judged queries; DataError when it answers none."""
    run = read_run(path)
    if not any(query_id in run for query_id in judged):
        raise DataError(
            f"{path}: none of its queries ({next(iter(run))!r}, ...) is judged in {qrels}; are these its qrels?"
        )
    return run


def _refuse_other_ids(
    path: Path, run: Run, judged: Qrels, qrels: Path, doc_ids: Sequence[str], corpus: Path | None
) -> None:
    """DataError for a run without a document that is judged for any query, or that stands in the corpus."""
    found = {scored.doc_id: None for query_id in run for scored in run.ranking(query_id)}
    known = {doc_id for query_id in judged for doc_id in judged.grades(query_id)}
    for ids, place in ((known, qrels), (set(doc_ids), corpus)):
        if ids and ids.isdisjoint(found):
            raise DataError(
                f"{path}: none of its documents ({', '.join(map(repr, list(found)[:3]))}, ...) stands in {place} "
                f"({min(ids)!r}, ...). Do the ids meet? Search the same corpus, with the same ids"
            )


def _no_positives(qrels: Path, positive_from: int) -> DataError:
    return DataError(f"{qrels}: no query has a document of grade {positive_from} or more; check --positive-from")


def _groups(queries: Sequence[Query], column: str | None) -> dict[str, str] | None:
    """The group of each query that has one; None where nothing names groups. A query without a value is its own."""
    name = column or "_group"
    found = {q.query_id: str(value) for q in queries if (value := q.metadata.get(name)) is not None}
    if column is not None and not found:
        raise ConfigError(f"--group-by {column}: no query has a value in this column of --queries FILE; name another")
    return found or None


def load_qrels(path: Path, positive_from: int) -> Qrels:
    """The judgments of a file; DataError with all its faults."""
    rows, faults = read_qrels(path)
    if faults:
        raise DataError(fault_list(str(path), faults))
    if not rows:
        raise DataError(f"{path}: holds no judgments; expected lines of query-id, corpus-id, score")
    return Qrels((row.judgment for row in rows), positive_from)
