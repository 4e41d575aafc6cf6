"""The marks of a review sheet, with the line of each and what is wrong with it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from closecall.readers import open_lines

MARKS = ("relevant", "not_relevant", "unsure")
NEEDED = ("mark", "query_id", "doc_id")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}

Pair = tuple[str, str]
"""Query id and document id."""


class Fault(NamedTuple):
    """What is wrong with a sheet, and the line it stands on."""

    line: int
    text: str


class Mark(NamedTuple):
    """A row of a sheet that a person marked."""

    line: int
    mark: str
    query_id: str
    doc_id: str
    cells: Mapping[str, str]
    """All cells of the row by column."""

    @property
    def pair(self) -> Pair:
        """What was marked."""
        return self.query_id, self.doc_id


@dataclass
class Marked:
    """What a sheet holds."""

    marks: dict[Pair, Mark] = field(default_factory=dict)
    """By pair, in the order of the sheet."""
    unmarked: int = 0
    faults: list[Fault] = field(default_factory=list)


def read_marks(path: Path) -> Marked:
    """The marks of a sheet and its faults. Raises DataError if the file cannot be read.

    Commas, semicolons or tabs part the cells, whatever a spreadsheet saved; columns may stand in any order.
    """
    lines = [f"{line}\n" for _, line in open_lines(path)]
    hint = 1 if lines and re.fullmatch(r'"?sep=."?\s*', lines[0], re.IGNORECASE) else 0  # Excel's own first line
    header, delimiter = _header(lines[hint] if len(lines) > hint else "")
    sheet = Marked()
    if lacking := [name for name in NEEDED if header.count(name) != 1]:
        found = f"columns {', '.join(filter(None, header)) or '(none)'}"
        advice = f"expected {', '.join(NEEDED)}, each once, parted by {', '.join(DELIMITERS.values())}"
        sheet.faults.append(Fault(hint + 1, f"{path} line {hint + 1}: {found}; {advice} (see {', '.join(lacking)})"))
        return sheet
    for line, cells in _records(path, lines, hint + 1, delimiter, sheet.faults):
        row = dict(zip(header, cells, strict=False))
        if len(cells) > len(header) and any(cells[len(header) :]):
            text = f"{len(cells)} cells, the header has {len(header)}; put quotes around cells that hold a delimiter"
            sheet.faults.append(Fault(line, f"{path} line {line}: {text}"))
        elif any(cell.strip() for cell in cells):
            _take(sheet, path, line, row)
    return sheet


def _header(line: str) -> tuple[list[str], str]:
    """The column names and the delimiter under which most of the needed ones are found."""
    headers = {}
    for delimiter in DELIMITERS:
        cells = next(csv.reader([line], delimiter=delimiter), [])
        headers[delimiter] = [cell.strip().casefold() for cell in cells]
    best = max(headers, key=lambda delimiter: sum(name in headers[delimiter] for name in NEEDED))
    return headers[best], best


def _records(
    path: Path, lines: Sequence[str], first: int, delimiter: str, faults: list[Fault]
) -> Iterator[tuple[int, list[str]]]:
    """The line on which each row starts, and its cells; a fault where the quotes do not match."""
    reader = csv.reader(lines[first:], delimiter=delimiter, strict=True)
    line = first + 1
    try:
        for cells in reader:
            yield line, cells
            line = first + reader.line_num + 1
    except csv.Error as error:
        faults.append(Fault(line, f"{path} line {line}: no readable row starts here ({error}); mend its quotes"))


def _take(sheet: Marked, path: Path, line: int, row: Mapping[str, str]) -> None:
    """Add a row to what the sheet holds: its mark, or its fault, or the count of rows without one."""
    found, query_id, doc_id = (row.get(name, "").strip() for name in NEEDED)
    word = re.sub(r"[\s_\-\u2010-\u2015]+", "_", found.casefold())
    if not found:
        sheet.unmarked += 1
    elif word not in MARKS:
        near = get_close_matches(word, MARKS, n=1)
        advice = f"did you mean {near[0]}?" if near else "write one of them"
        text = f"mark {found!r}; expected {', '.join(MARKS)} or nothing, {advice}"
        sheet.faults.append(Fault(line, f"{path} line {line}: {text}"))
    elif not query_id or not doc_id:
        lacking = "query_id" if not query_id else "doc_id"
        text = f"marked {word}, but {lacking} is empty; copy the ids from the sheet, or drop the line"
        sheet.faults.append(Fault(line, f"{path} line {line}: {text}"))
    else:
        mark = Mark(line, word, query_id, doc_id, row)
        before = sheet.marks.setdefault(mark.pair, mark)
        if before.mark != word:
            text = f"query {query_id!r} and document {doc_id!r} are marked {word}, but {before.mark} on line"
            sheet.faults.append(Fault(line, f"{path} line {line}: {text} {before.line}; keep one"))
