"""The commands around mining: choose a margin, review candidates, take marks over, write for other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from closecall.options import ConfigArgument, JsonOption, QuietOption, SetOption, print_result, say, set_quiet


class _Exported(Protocol):
    """What an export of triples and one of a judged set have in common."""

    @property
    def folder(self) -> Path: ...

    @property
    def sentence(self) -> str: ...

    def as_json(self) -> dict[str, Any]: ...


def calibrate(
    config: ConfigArgument,
    depth: Annotated[
        int | None, typer.Option(min=1, help="How deep each query is searched; default: mining.max_depth.")
    ] = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what each mining margin and rank window would leave, from one search, and propose a margin."""
    from closecall.pipeline import load_experiment
    from mining.calibrate_report import show

    set_quiet(quiet)
    artifact = load_experiment(config, set_ or ()).calibrate(depth)
    print_result(show(artifact, json_))


def audit(
    config: ConfigArgument,
    to: Annotated[Path | None, typer.Option(help="Folder for the sheet; default: audit/ in the output.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Candidates to show.")] = 100,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Write a sheet of suspicious negatives and of dropped candidates, for a person to mark."""
    from closecall.pipeline import load_experiment

    sheet = load_experiment(config, set_ or ()).audit(rows, to)
    print_result({**vars(sheet), "csv": str(sheet.csv), "html": str(sheet.html)} if json_ else str(sheet.csv))
    say(f"{sheet.kept:,} kept negatives and {sheet.dropped:,} dropped candidates to mark; as a page: {sheet.html}")


def judge_import(
    config: ConfigArgument,
    sheet: Annotated[Path, typer.Argument(metavar="SHEET", help="review.csv with marks.")],
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Turn the marks of a sheet into judgments: relevant -> positive, not_relevant -> certified negative."""
    from closecall.pipeline import load_experiment

    experiment = load_experiment(config, set_ or ())
    found = experiment.judge_import(sheet)
    print_result(
        {**vars(found), "reviewed": str(found.reviewed), "provenance": str(found.provenance)}
        if json_
        else str(found.reviewed)
    )
    say(found.sentence)
    if experiment.config.data.reviewed is None:
        say(f"to use them, write under `data:` in {config}\n  reviewed: {found.reviewed}")


def export(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment, or the folder of a judged set.")
    ],
    form: Annotated[
        str,
        typer.Option(
            help="Triples: n-tuple, triplet, labeled-pair, labeled-list, flagembedding or tevatron. The judged set: "
            "beir, jsonl, csv, tsv, excel, yaml, parquet, hf, trec, quepid, opensearch, elasticsearch or ltr."
        ),
    ],
    to: Annotated[Path | None, typer.Option(help="Folder to write; default: export/FORM in the output.")] = None,
    negatives: Annotated[int | None, typer.Option(min=1, help="Hard negatives per positive; default: all.")] = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Write the mined triples for another trainer, or the judged set for another tool."""
    from closecall.formats.writers import WRITERS
    from closecall.pipeline import export_judged, load_experiment

    if form in WRITERS or config.is_dir():
        _print_exported(export_judged(config, form, to, set_ or ()), json_)
    else:
        _print_exported(load_experiment(config, set_ or ()).export(form, to, negatives), json_)


def _print_exported(found: _Exported, as_json: bool) -> None:
    print_result(found.as_json() if as_json else str(found.folder))
    say(found.sentence)
