"""The commands on what an experiment takes of this machine: time, memory and disk before it runs, stored vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closecall.options import ConfigArgument, JsonOption, QuietOption, SetOption, print_result, set_quiet


def plan(config: ConfigArgument, set_: SetOption = None, json_: JsonOption = False, quiet: QuietOption = False) -> None:
    """Estimate time, memory and disk of each stage on this machine, from a short measurement; nothing is written."""
    from closecall.forecast import forecast, lines
    from closecall.pipeline import load_experiment

    set_quiet(quiet)
    found = forecast(load_experiment(config, set_ or ()))
    print_result(found.as_json() if json_ else "\n".join(lines(found)))


def cache(
    place: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of an experiment, or a store's folder.")],
    prune: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0, help="Remove what was not used for so many days; 0: all.")
    ] = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """List stored vectors by model, with sizes and when they were last used; remove old ones."""
    from closecall.cache import as_json, kept, table
    from closecall.cache import prune as prune_store
    from closecall.pipeline import load_experiment
    from closecall.progress import console, say

    store = place if place.is_dir() else load_experiment(place, set_ or ()).store.folder
    found = kept(store) if prune is None else prune_store(store, prune)
    if not json_:
        console.print(table(found))
        say(f"{'stored' if prune is None else 'removed'}: {sum(one.bytes for one in found) / 1e6:,.1f} MB")
    print_result(as_json(store, found) if json_ else str(store))
