"""Qrels and run files: BEIR's three columns, TREC's four and six. Faults are collected, each with its line."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from closecall.errors import DataError, fault_list
from closecall.readers import inside, open_lines, resolve
from closecall.records import SPLITS, Judgment, Run, ScoredDoc

NEGATIVE_GRADE_ADVICE = (
    "say what it means: in Cranfield -1 is the query's own source paper, not 'irrelevant'; "
    "drop the line or map it to a grade >= 0"
)

# A first row is a header only if its words say so. "No number in the last column" would not do: it would
# swallow a first row of data whose grade is mistyped.
_GRADE_HEADER = re.compile(r"score|rel|relevancy|relevance(score|grade)?|label|grade|judge?ment|rating|gain|qrel|value")
_QUERY_HEADER = re.compile(r"query(id)?|qid|topic(id)?")


GRADE_DIGITS = 3
"""More digits than this are no grade: an id in the wrong column, most likely."""


class NumberedJudgment(NamedTuple):
    """A judgment and the line it stands on."""

    judgment: Judgment
    line: int


def grade_of(text: str) -> int | str:
    """The grade written as "2" or "2.0", or what is wrong with the text."""
    if not re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text):
        return f"grade {text!r} is no whole number; write 0 (judged, not relevant), 1, 2, ..."
    digits = text.partition(".")[0]
    if len(digits.lstrip("+-0")) > GRADE_DIGITS:
        return f"grade {text[:20]!r} is larger than any scale of judgments; write 0 (judged, not relevant), 1, 2, ..."
    grade = int(digits)
    return grade if grade >= 0 else f"grade {grade} is negative; {NEGATIVE_GRADE_ADVICE}"


def read_qrels(path: Path) -> tuple[list[NumberedJudgment], list[str]]:
    """The judgments of a qrels file in its order, and the faults. Raises DataError if the file cannot be read.

    Columns: query, document, grade; or TREC's query, 0, document, grade. They are parted by tabs if the line has one,
    else by spaces. A header is optional.
    """
    faults: list[str] = []
    kept, conflicts = merge_judgments(path, stream_qrels(path, faults))
    if not kept and not faults:
        faults.append(f"{path}: holds no judgments; expected lines of query-id, corpus-id, score")
    return kept, faults + conflicts


def stream_qrels(path: Path, faults: list[str]) -> Iterator[NumberedJudgment]:
    """Each judgment of a qrels file, as `read_qrels` reads it; what is wrong with a line is added to `faults`."""
    width = 0
    for number, cells in _rows(path):
        first, width = not width, width or len(cells)
        if fault := _shape_fault(cells, width):
            faults.append(f"{path} line {number}: {fault}")
            width = 0 if first else width
        elif first and _is_header(cells):
            continue
        elif isinstance(grade := grade_of(cells[-1]), str):
            faults.append(f"{path} line {number}: {grade}" + (_HEADER_ADVICE if first else ""))
        else:
            yield NumberedJudgment(Judgment(cells[0], cells[-2], grade), number)


_HEADER_ADVICE = " (a header must name its columns: query-id, corpus-id, score)"


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each line that is not blank. With tabs in the line, ids may hold spaces."""
    for number, line in open_lines(path):
        if line.strip():
            yield number, [cell.strip() for cell in line.rstrip().split("\t")] if "\t" in line else line.split()


def _shape_fault(cells: list[str], width: int) -> str | None:
    found = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
    if len(cells) not in (3, 4):
        commas = "; these are commas, use tabs" if len(cells) == 1 and "," in cells[0] else ""
        return f"{found}; expected query-id, corpus-id, score (or TREC's query, 0, document, grade){commas}"
    if len(cells) != width:
        return f"{found}, the lines before have {width}; write all lines alike"
    return None if cells[0] and cells[-2] else "an id is empty; add it or drop the line"


def _is_header(cells: list[str]) -> bool:
    query, grade = (re.sub(r"[-_ ]", "", cell).casefold() for cell in (cells[0], cells[-1]))
    is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", grade) is not None
    return not is_number and bool(_GRADE_HEADER.fullmatch(grade) or _QUERY_HEADER.fullmatch(query))


def merge_judgments(path: Path, rows: Iterable[NumberedJudgment]) -> tuple[list[NumberedJudgment], list[str]]:
    """The rows without repeats, and a fault for each pair of query and document that has two grades."""
    kept: dict[tuple[str, str], NumberedJudgment] = {}
    faults = []
    for row in rows:
        query_id, doc_id, grade = row.judgment
        first = kept.setdefault((query_id, doc_id), row)
        if first.judgment.relevance != grade:
            found = f"query {query_id!r} and document {doc_id!r} have grade {grade}"
            before = f"grade {first.judgment.relevance} on line {first.line}"
            faults.append(f"{path} line {row.line}: {found}, but {before}; keep one")
    return list(kept.values()), faults


def split_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Split -> file of a folder with train.tsv, test.tsv and perhaps dev.tsv, and the names of its other files."""
    found: dict[str, Path] = {}
    for split in SPLITS:
        with suppress(DataError):
            found[split] = resolve(folder / f"{split}.tsv")
    if not {"train", "test"} <= found.keys():
        advice = f"add them, or set data.qrels to one file with all judgments ({folder.name}/...) to have it split"
        raise DataError(f"{folder}, {inside(folder)}, needs train.tsv and test.tsv (dev.tsv is optional); {advice}")
    read = {path.name for path in found.values()}
    return found, sorted(name for name in os.listdir(folder) if name not in read)


def write_qrels(path: Path, judgments: Iterable[Judgment]) -> None:
    """Writes the judgments in BEIR's form, with its header."""
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, judgment)) for judgment in judgments)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def read_run(path: Path) -> Run:
    """The run of a TREC file. The rank column is ignored in favour of the score, as trec_eval does.

    Raises DataError with all faults: column counts, scores that are no finite number, repeated documents.
    """
    rankings: dict[str, dict[str, float]] = {}
    faults: list[str] = []
    for number, cells in _rows(path):
        if len(cells) != 6:
            faults.append(f"{path} line {number}: {len(cells)} columns; expected query, Q0, document, rank, score, tag")
            continue
        ranking = rankings.setdefault(cells[0], {})
        doc_id, score = cells[2], _score(cells[4])
        if score is None:
            faults.append(f"{path} line {number}: score {cells[4]!r} is no finite number; mend or drop the line")
        elif doc_id in ranking:
            faults.append(f"{path} line {number}: document {doc_id!r} again for query {cells[0]!r}; keep one line")
        else:
            ranking[doc_id] = score
    if not rankings and not faults:
        faults.append(f"{path}: holds no rankings; expected lines of query, Q0, document, rank, score, tag")
    if faults:
        raise DataError(fault_list(str(path), faults))
    return Run({query_id: map(ScoredDoc, ranking, ranking.values()) for query_id, ranking in rankings.items()})


def _score(text: str) -> float | None:
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def write_run(path: Path, run: Run, tag: str, query_order: Iterable[str]) -> None:
    """Writes the run in TREC's form: ranks from 1, scores with 6 decimals, the queries in `query_order`.

    Raises ValueError if `query_order` leaves out a query of the run.
    """
    order = [query_id for query_id in query_order if query_id in run]
    if left_out := set(run) - set(order):
        raise ValueError(f"query_order leaves out {len(left_out)} queries of the run, {min(left_out)!r} for one")
    lines = [
        _run_line(query_id, "Q0", scored.doc_id, str(rank), f"{scored.score:.6f}", tag)
        for query_id in order
        for rank, scored in enumerate(run.ranking(query_id), start=1)
    ]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def _run_line(*cells: str) -> str:
    """Spaces between the cells, as usual; tabs where a cell holds a space."""
    has_spaces = any(char.isspace() for cell in cells for char in cell)
    return ("\t" if has_spaces else " ").join(cells) + "\n"
