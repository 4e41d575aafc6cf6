"""Arguments and options that commands share, and how they print. Nothing heavy is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closecall.processes import rank

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; may be given several times."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks on stderr.")]
MeasureOption = Annotated[
    list[str] | None,
    typer.Option(
        "--measure", "-m", metavar="NAME", help="nDCG@10, recall@5, hit@1, MRR, MAP@100, precision@5, judged@10."
    ),
]
GainOption = Annotated[str, typer.Option(help="Gain of a grade in nDCG: exp (2^grade - 1) or linear.")]
PositiveOption = Annotated[int, typer.Option("--positive-from", min=1, help="The lowest grade that is relevant.")]


def say(message: str) -> None:
    """Print one plain line on stderr."""
    from closecall.progress import say as on_console

    on_console(message)


def set_quiet(quiet: bool) -> None:
    """Whether stderr stays silent."""
    from closecall.progress import console

    console.quiet = quiet or rank() > 0


def print_result(result: object) -> None:
    """The result on stdout, by the first process of a job: text as it is, anything else as JSON."""
    if rank() > 0:
        return
    if isinstance(result, str):
        typer.echo(result)
    else:
        import json

        typer.echo(json.dumps(result, indent=1, ensure_ascii=False))
