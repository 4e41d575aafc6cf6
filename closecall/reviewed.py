"""Judgments made in review, in a qrels file of their own: read, and joined with the dataset's."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from closecall.errors import DataError
from closecall.readers import open_lines, resolve
from closecall.references import JudgmentFile
from closecall.trec import NumberedJudgment, read_qrels

_HEADER = "query-id\tcorpus-id\tscore"


def read_reviewed(path: Path) -> tuple[JudgmentFile, list[str]]:
    """The judgments of a reviewed file, and the faults. A header alone holds none, and is no fault.

    Raises DataError if the file cannot be read.
    """
    try:
        found = resolve(path)
    except DataError as error:
        raise DataError(f"{error}; `closecall judge-import` writes it, leave data.reviewed out until then") from None
    if [line for _, line in open_lines(found) if line.strip()] == [_HEADER]:
        return JudgmentFile("reviewed", found, ()), []
    rows, faults = read_qrels(found)
    return JudgmentFile("reviewed", found, rows), faults


def with_reviewed(
    files: Sequence[JudgmentFile], reviewed: JudgmentFile, query_ids: Container[str]
) -> tuple[list[JudgmentFile], list[str]]:
    """The dataset's files with each reviewed judgment added where its query is judged, and the faults.

    A fault is another grade than the dataset's own, or a query of `query_ids` that no split judges.
    """
    own = {row.judgment[:2]: (file, row) for file in files for row in file.rows}
    split_of = {row.judgment.query_id: file.split for file in files for row in file.rows}
    added: dict[str, list[NumberedJudgment]] = {file.split: [] for file in files}
    faults: list[str] = []
    for row in reviewed.rows:
        split = "all" if "all" in added else split_of.get(row.judgment.query_id)
        if row.judgment[:2] in own:
            faults += _conflict(reviewed.path, row, *own[row.judgment[:2]])
        elif split is not None:
            added[split].append(row)
        elif row.judgment.query_id in query_ids:
            faults.append(_homeless(reviewed.path, row, files))
    return [file._replace(rows=[*file.rows, *added[file.split]]) for file in files], faults


def _conflict(path: Path, row: NumberedJudgment, file: JudgmentFile, other: NumberedJudgment) -> Iterable[str]:
    """The fault when two files judge a pair differently."""
    query_id, doc_id, grade = row.judgment
    if grade != other.judgment.relevance:
        found = f"query {query_id!r} and document {doc_id!r} have grade {grade}"
        before = f"grade {other.judgment.relevance} in {file.path} line {other.line}"
        yield f"{path} line {row.line}: {found}, but {before}; keep one"


def _homeless(path: Path, row: NumberedJudgment, files: Iterable[JudgmentFile]) -> str:
    names = ", ".join(file.path.name for file in files)
    return (
        f"{path} line {row.line}: query {row.judgment.query_id!r} is judged in none of {names}, so it belongs to no "
        "split; judge it there, or drop the line"
    )
