"""The commands around a frozen judged set: freeze it, and see every verdict given on it."""

from __future__ import annotations

from typing import Annotated

import typer

from closecall.options import ConfigArgument, JsonOption, QuietOption, SetOption, print_result, say, set_quiet


def freeze(
    config: ConfigArgument,
    version: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the version; default: the next number.")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What changed and why; needed from the second on.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Only check the set against its lock.")] = False,
    set_: SetOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Lock corpus, queries, judgments and split as a version; what changes them later is refused."""
    from closecall.freeze import changelog
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    experiment = load_experiment(config, set_ or ())
    lock = experiment.verify() if verify else experiment.freeze(version, note)
    print_result(lock.named() | {"path": str(lock.path)} if json_ else str(lock.path))
    for line in changelog(lock):
        say(line)


def log(config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False) -> None:
    """List every verdict given on the frozen test set, and say whether it is worn."""
    from closecall.looks import read_looks, verdicts_on, wear
    from closecall.pipeline import load_experiment

    experiment = load_experiment(config, set_ or ())
    looks, lock = read_looks(experiment.looks), experiment.lock
    if json_:
        print_result(looks)
        return
    for one in looks:
        print_result(f"{one['at']}  version {one['version']}  {one['kind']}  {one['what']}")
    count = len(verdicts_on(looks, lock.named()["test"])) if lock else 0
    say(f"{count:,} verdicts on version {lock.current.version}" if lock else "not frozen: `closecall freeze CONFIG`")
    if (found := wear(count, experiment.config.eval.confidence)) is not None:
        say(f"{'ALARM  ' if found.alarm else ''}{found.meaning}; {found.advice}")
