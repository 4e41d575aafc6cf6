"""The command line: one Typer app. Commands read a config, call one plain function and say where the result is.

Nothing heavy is imported here, so that `--help` answers at once; stages are imported inside the commands.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from closecall.errors import CloseCallError
from closecall.eval_commands import compare, measure, print_verdict, show_verdict
from closecall.formats_commands import import_set
from closecall.freeze_commands import freeze, log
from closecall.machine_commands import cache, plan
from closecall.mining_commands import audit, calibrate, export, judge_import
from closecall.options import (
    ConfigArgument,
    JsonOption,
    QuietOption,
    SetOption,
    print_result,
    set_quiet,
)
from closecall.processes import leave, rank

app = typer.Typer(
    name="closecall",
    help="Mine hard negatives, fine-tune an embedding model on them, and get a verdict on held-out queries.\n\n"
    "In order: check, split, mine, finetune, eval; `run` does all of them. Exit codes of a verdict: 0 adopt, "
    "10 reject, 11 undecided; 2 is a fault of the input, 1 one of closecall.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)

STOPPED = 130
"""The exit code that typer makes of Ctrl-C, without a word."""
FIRST_SPEAKS_S = 5.0
"""How long another process than the first one keeps its error to itself."""


def _print_version(asked: bool) -> None:
    if asked:
        from closecall import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def closecall(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of closecall itself; its help is that of the app."""


app.command("import")(import_set)


@app.command()
def check(
    config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Check the data, and say what a split of it could show; nothing is written."""
    from closecall.check import lines
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    report = load_experiment(config, set_ or ()).check()
    print_result(report if json_ else "\n".join(lines(report)))
    raise typer.Exit(2 if "split_fault" in report else 0)


@app.command()
def split(
    config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Divide the judged queries into train, dev and test, once; the split is then frozen."""
    _stage(config, set_, "split", json_, quiet)


@app.command()
def mine(config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False) -> None:
    """Mine hard negatives for the training queries from the base model's index."""
    _stage(config, set_, "mine", json_, quiet)


app.command()(calibrate)
app.command()(audit)
app.command("judge-import")(judge_import)
app.command()(export)


@app.command()
def finetune(
    config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Train the base model on the mined triples; the best step on dev becomes the checkpoint."""
    _stage(config, set_, "finetune", json_, quiet)


@app.command("eval")
def evaluate(
    config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Compare base and checkpoint on the held-out test queries, and give the verdict."""
    _verdict(config, set_, "evaluate", json_, quiet)


@app.command()
def run(config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False) -> None:
    """Split, mine, finetune and eval; what is unchanged is kept."""
    _verdict(config, set_, "run", json_, quiet)


@app.command()
def publish(
    config: ConfigArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; it must not be there yet.")],
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload it to this repository, private if it is new.")
    ] = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Copy the checkpoint to hand it on, with the verdict in its model card; uploaded only when asked."""
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    print_result(str(load_experiment(config, set_ or ()).publish(folder, push_to_hub)))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the demo's data and artifacts.")] = Path(
        "closecall-demo"
    ),
    services: Annotated[
        str, typer.Option(help="AWS services, separated by commas; `all` for everything; default: about a dozen.")
    ] = "",
    set_: SetOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The whole workflow on real data from installed packages, in a few minutes; exit code 0 whatever the verdict."""
    from closecall.pipeline import demo_experiment

    set_quiet(quiet)
    print_verdict(demo_experiment(output, services, set_ or ()).run().folder, json_)


app.command()(measure)
app.command()(compare)
app.command("verdict")(show_verdict)
app.command()(plan)
app.command()(freeze)
app.command()(log)
app.command()(cache)


def main() -> None:
    """The console script: runs the app, and turns what goes wrong into one message and an exit code."""
    # A user's own `eval/` folder or PYTHONPATH=. must not shadow ours.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another encoding must not end a run
    try:
        app()
    except CloseCallError as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; mend it and run the same command again")
    except SystemExit as end:
        if end.code == STOPPED:
            sys.stderr.write("stopped; what was finished is kept, and the same command goes on from there\n")
        else:
            leave()
        raise


def _fail(message: str) -> NoReturn:
    """Say what went wrong and end with exit code 2.

    Of several processes with the same fault the first one says it, and its end is that of all.
    """
    from closecall.storage import with_addresses

    if rank() > 0:
        time.sleep(FIRST_SPEAKS_S)
    sys.stderr.write(f"error: {with_addresses(message)}\n")
    sys.exit(2)


def _stage(config: Path, assignments: list[str] | None, stage: str, as_json: bool, quiet: bool) -> None:
    """Run one stage and print its folder, or with --json its manifest."""
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    artifact = getattr(load_experiment(config, assignments or ()), stage)()
    print_result({"folder": str(artifact.folder), **artifact.manifest} if as_json else str(artifact.folder))


def _verdict(config: Path, assignments: list[str] | None, stage: str, as_json: bool, quiet: bool) -> None:
    """Run the stages that end in a verdict, print it, and exit with its code."""
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    artifact = getattr(load_experiment(config, assignments or ()), stage)()
    raise typer.Exit(print_verdict(artifact.folder, as_json))


if __name__ == "__main__":
    main()
