"""The review sheet: the suspects as a CSV to mark, and as a page that works offline and saves the same CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from closecall.errors import ArtifactError, DataError
from closecall.manifest import MANIFEST, Artifact
from closecall.pages import render
from closecall.records import Document
from closecall.split import read_part
from mining.artifact import read_dropped, read_triples
from mining.audit import Suspect, suspects
from mining.config import MiningConfig
from mining.filters import KEPT, SUSPECTED
from mining.judge_import import read_review, replace
from mining.marks import MARKS, Pair, read_marks

CSV = "review.csv"
HTML = "review.html"
COLUMNS = (
    "mark",
    "query_id",
    "doc_id",
    "query",
    "positive_id",
    "positive",
    "candidate",
    "outcome",
    "score",
    "positive_score",
    "rank",
    "guide_score",
    "suspicion",
    "why",
    "mined",
)
"""The last is the key of the artifact that the row comes from, for the provenance of its mark."""

LONGEST_CELL = 30_000
"""Characters: a spreadsheet cuts a cell at 32,767 and puts the rest into the next row."""

DROPPED_TO_RANK = 20
"""Of the dropped candidates the nearest are looked at: a mined artifact holds millions."""

UNRANKED = ("judged", "random")
"""Sources whose ranks say nothing."""


@dataclass(frozen=True)
class Sheet:
    """A sheet that was written."""

    csv: Path
    html: Path
    kept: int
    """Rows of kept negatives."""
    dropped: int
    """Rows of dropped candidates."""


def audit(
    mined: Artifact,
    split: Artifact,
    documents: Sequence[Document],
    config: MiningConfig,
    reviewed: Path | None,
    rows: int,
    folder: Path,
) -> Sheet:
    """The sheet of the `rows` most suspicious candidates of a mined artifact, written into a folder.

    Of the split only the train part is opened. What was marked and imported before, as the file beside `reviewed` says,
    is left out.
    """
    marked = read_review(reviewed).marks
    base = next((source.label for source in config.sources if source.source == "dense" and source.model is None), None)
    found = suspects(
        read_triples(mined),
        read_dropped(mined, SUSPECTED, DROPPED_TO_RANK),
        read_part(split, "train"),
        documents,
        rows,
        [source.label for source in config.sources if source.source not in UNRANKED],
        base,
        marked.keys(),
    )
    return write_sheet(folder, found, mined.key, marked)


def write_sheet(folder: Path, found: Sequence[Suspect], mined: str, marked: Mapping[Pair, str]) -> Sheet:
    """Writes `review.csv` and `review.html`; ArtifactError where the CSV there holds marks that nobody imported.

    `marked` are the marks that were imported.
    """
    if (folder / MANIFEST).exists():
        raise ArtifactError(f"{folder}: is an artifact, which holds nothing else; choose another folder")
    _refuse_marked(folder / CSV, marked)
    rows = [_row(suspect, mined) for suspect in found]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / HTML, page(found, rows).encode("utf-8"))
        replace(folder / CSV, _csv(rows))
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
    kept = sum(suspect.outcome == KEPT for suspect in found)
    return Sheet(folder / CSV, folder / HTML, kept, len(found) - kept)


def page(found: Sequence[Suspect], rows: Sequence[Sequence[str]]) -> str:
    """The sheet as a self-contained HTML page, a card for each suspect; `rows` are its cells in the CSV."""
    numbered = list(enumerate(found))
    groups = {
        "Kept as negatives": [(number, suspect) for number, suspect in numbered if suspect.outcome == KEPT],
        "Dropped as suspected false negatives": [item for item in numbered if item[1].outcome != KEPT],
    }
    return render(
        "mining",
        "review.html.j2",
        groups=groups,
        total=len(found),
        marks=MARKS,
        table={"columns": COLUMNS, "rows": rows},
        file=CSV,
    )


def _refuse_marked(path: Path, marked: Mapping[Pair, str]) -> None:
    """ArtifactError when the sheet there holds marks that would be lost."""
    if not path.exists():
        return
    try:
        sheet = read_marks(path)
    except DataError as error:
        raise ArtifactError(f"{path}: is no sheet to replace ({error}); choose another folder") from error
    waiting = sum(marked.get(pair) != mark.mark for pair, mark in sheet.marks.items()) + len(sheet.faults)
    if waiting:
        raise ArtifactError(
            f"{path}: holds {waiting} marks that were not imported; import them with `closecall judge-import`, or "
            "choose another folder"
        )


def _row(suspect: Suspect, mined: str) -> list[str]:
    """The cells of a suspect in the order of COLUMNS, the mark empty."""
    return [
        "",
        suspect.query_id,
        suspect.doc_id,
        _text(suspect.query),
        suspect.positive_id,
        _text(suspect.positive),
        _text(suspect.candidate),
        suspect.outcome,
        str(suspect.score),
        str(suspect.positive_score),
        str(suspect.rank),
        "" if suspect.guide_score is None else str(suspect.guide_score),
        str(suspect.suspicion),
        _text("; ".join(suspect.why)),
        mined,
    ]


def _text(text: str) -> str:
    """The text as a spreadsheet takes it for one: an apostrophe before what would be a formula, and not too long."""
    shown = text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]} …"
    return f"'{shown}" if shown.lstrip().startswith(("=", "+", "-", "@")) else shown


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    """The rows with their header in UTF-8, with the byte-order mark by which Excel knows it."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return lines.getvalue().encode("utf-8-sig")
