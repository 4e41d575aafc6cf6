"""The commands that bring judged sets in, and out again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closecall.options import JsonOption, QuietOption, print_result, say, set_quiet


def import_set(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[SOURCE] FOLDER", help="A folder, a file, hf:OWNER/NAME or ir:ID; the folder to write."
        ),
    ],
    form: Annotated[
        str | None, typer.Option("--from", metavar="FORM", help="What the source is; by default it is looked at.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(metavar="FILE", help="The documents.")] = None,
    queries: Annotated[Path | None, typer.Option(metavar="FILE", help="The queries: a table, or TREC topics.")] = None,
    qrels: Annotated[Path | None, typer.Option(metavar="FILE", help="The judgments, in any form.")] = None,
    run_: Annotated[
        list[Path] | None, typer.Option("--run", metavar="FILE", help="A TREC run to take along; may be repeated.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="ROLE=COLUMN", help="Name a column: query_id, query, doc_id, grade, ..."),
    ] = None,
    chunks: Annotated[
        str | None, typer.Option(help="Move judgments by the column source_document: to-chunks or to-documents.")
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read a judged set of any form into the native layout, checked, with a file that says where it is from."""
    from closecall.formats.columns import parse_choices
    from closecall.formats.importer import import_set as bring
    from closecall.formats.source import Asked

    set_quiet(quiet)
    source, folder = (places[0], places[1]) if len(places) == 2 else ("", places[0])
    if len(places) > 2:
        raise typer.BadParameter("expected [SOURCE] FOLDER")
    asked = Asked(source, form, corpus, queries, qrels, tuple(run_ or ()), parse_choices(column or ()))
    found = bring(asked, Path(folder), chunks)
    for line in found.lines():
        say(line)
    print_result(found.provenance | {"folder": folder} if json_ else folder)
