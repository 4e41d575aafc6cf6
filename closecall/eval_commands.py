"""The commands around evaluation: measures and verdicts of run files, and a verdict printed again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from closecall.errors import ConfigError
from closecall.options import (
    GainOption,
    JsonOption,
    MeasureOption,
    PositiveOption,
    QuietOption,
    print_result,
    say,
    set_quiet,
)


def measure(
    qrels: Annotated[Path, typer.Option("--qrels", help="Judgments: BEIR TSV or TREC qrels.")],
    run_: Annotated[Path, typer.Option("--run", help="Run in TREC form.")],
    measures: MeasureOption = None,
    gain: GainOption = "exp",
    positive_from: PositiveOption = 1,
    per_query: Annotated[bool, typer.Option("--per-query", help="One line per query and measure too.")] = False,
    json_: JsonOption = False,
) -> None:
    """Measures of a run from any engine. No model is needed."""
    from eval.runs import measure_run, measure_text

    result = measure_run(qrels, run_, measures or ("nDCG@10", "recall@1", "recall@5", "MRR"), gain, positive_from)
    print_result(result.as_json(per_query) if json_ else measure_text(result, per_query))


def compare(
    qrels: Annotated[Path, typer.Option("--qrels", help="Judgments: BEIR TSV or TREC qrels.")],
    base: Annotated[Path, typer.Option("--base", help="Run of the system in use, in TREC form.")],
    tuned: Annotated[Path, typer.Option("--tuned", help="Run of the system that might replace it.")],
    run_: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="NAME=FILE", help="Another system's run; may be given several times."),
    ] = None,
    queries: Annotated[Path | None, typer.Option("--queries", help="queries.jsonl, to slice by its columns.")] = None,
    corpus: Annotated[Path | None, typer.Option("--corpus", help="corpus.jsonl, to say why queries fail.")] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Column of --queries whose values are resampled whole; default: as in split/.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Folder for report.html, report.md, verdict.json and failures.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the eval section: measure=MRR.")
    ] = None,
    positive_from: PositiveOption = 1,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare runs on the same queries: paired deltas, intervals, slices and the verdict. No model is needed."""
    from eval.runs import RunFiles, compare_runs

    set_quiet(quiet)
    runs = {"base": base, "tuned": tuned, **_named_runs(run_ or ())}
    given = RunFiles(qrels, runs, queries, corpus, positive_from, group_by)
    content = compare_runs(given, set_ or (), report)
    code = print_content(content, json_)
    if report is not None:
        say(f"report: {report / 'report.html'}")
    raise typer.Exit(code)


def show_verdict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A verdict/ folder, or the output that holds it.")],
    other: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="DIR", help="An earlier verdict on the same frozen test set to compare with."
        ),
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print a verdict again, with its exit code; or compare its contender with that of an earlier verdict."""
    from eval.against import against

    set_quiet(quiet)
    place = _verdict_folder(folder)
    if other is None:
        raise typer.Exit(print_verdict(place, json_))
    found = against(_verdict_folder(other), place)
    print_result(found.as_json() if json_ else found.sentence)


def _verdict_folder(folder: Path) -> Path:
    return folder / "verdict" if (folder / "verdict").is_dir() else folder


def print_verdict(folder: Path, as_json: bool) -> int:
    """The verdict in a folder, of an experiment or of `compare`, and where its report is; the exit code."""
    from closecall.manifest import Artifact
    from eval.artifact import read_report

    of_runs = read_report(folder)
    code = print_content(of_runs or Artifact.open(folder, "eval").read_json("verdict.json"), as_json)
    say(f"report: {folder / 'report.html'}")
    if of_runs is None:
        say(f"artifacts: {folder.parent} (split, mined, checkpoint, verdict)")
    return code


def print_content(content: dict[str, Any], as_json: bool) -> int:
    """The table on stderr, the verdict's sentence (or all of it as JSON) on stdout; its exit code."""
    from closecall.progress import console
    from eval.report import others_table, table

    console.print(table(content))
    if content["others"]:
        console.print(others_table(content))
    print_result(content if as_json else content["sentence"])
    return int(content["exit_code"])


def _named_runs(given: Sequence[str]) -> dict[str, Path]:
    """`NAME=FILE` by name; ConfigError for one that is not of this form, or a name that is taken."""
    from eval.contenders import NAME

    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not file or not re.fullmatch(NAME, name) or name in ("base", "tuned", *found):
            expected = "NAME=FILE, with a name of at most 60 letters, digits, dots and dashes that no other run has"
            raise ConfigError(f"--run {text}: expected {expected}")
        found[name] = Path(file)
    return found
