"""Files of rows, streamed: CSV and TSV of any making, JSONL, JSON, YAML, Parquet. Every value keeps its spelling."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from closecall.errors import DataError
from closecall.readers import Item, placed_lines, read_yaml, resolve, stream_jsonl

DELIMITERS = (",", ";", "\t", "|")
CELL_LIMIT = 1 << 30
"""Characters of one CSV cell; Python's own limit of 131,072 is shorter than many documents."""
AS_JSON = ":json"
"""Ends the name of a column whose cells are JSON: numbers, lists and null keep their type in a file of text."""
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".yaml", ".yml", ".parquet")
SNIFFED_BYTES = 1 << 16
BATCH_ROWS = 1024


class Row(NamedTuple):
    """A row and where it stands: the line of a text file, the row of a Parquet file, from 1."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A file of rows."""

    path: Path
    columns: tuple[str, ...]
    """As the file names them; of JSON, those of the first rows."""
    rows: Callable[[list[str]], Iterator[Row]]
    """The rows from the beginning; what is wrong with one is added to the list. DataError for an unreadable file."""
    form: str
    """csv, jsonl, json, yaml or parquet."""


def suffix_of(path: Path) -> str:
    """The ending of a name without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def open_table(path: Path, known: Sequence[str] = ()) -> Table:
    """The table in a file, by its ending. `known` are column names by which the delimiter of a CSV is told.

    DataError when the file is not there, has another ending, or holds no row.
    """
    file = resolve(path)
    kind = suffix_of(file)
    if kind in (".csv", ".tsv", ".txt"):
        return _csv(file, known)
    if kind == ".parquet":
        return _parquet(file)
    if kind in (".jsonl", ".ndjson"):
        return _of_items(file, "jsonl", lambda faults: _jsonl(file, faults))
    if kind == ".json":
        return _of_items(file, "json", lambda faults: _json(file, faults))
    if kind in (".yaml", ".yml"):
        return _of_items(file, "yaml", lambda faults: _yaml(file, faults))
    raise DataError(f"{path}: of no known kind; expected a name that ends in {', '.join(SUFFIXES)}, or those with .gz")


def decoded(row: Row, columns: Sequence[str], path: Path, faults: list[str]) -> Row:
    """The row with the cells of `:json` columns as what they spell; an empty one is no value."""
    values = dict(row.values)
    for name in columns:
        cell = values.pop(name, None)
        if cell in (None, ""):
            continue
        try:
            values[name.removesuffix(AS_JSON)] = json.loads(cell)
        except (ValueError, TypeError):
            faults.append(
                f"{path} line {row.line}: column {name!r} holds {str(cell)[:40]!r}, which is no JSON; mend it"
            )
    return Row(row.line, values)


def with_json(table: Table) -> Table:
    """The table with its `:json` columns decoded."""
    encoded = [name for name in table.columns if name.endswith(AS_JSON)]
    if not encoded:
        return table

    def rows(faults: list[str]) -> Iterator[Row]:
        return (decoded(row, encoded, table.path, faults) for row in table.rows(faults))

    return Table(table.path, tuple(name.removesuffix(AS_JSON) for name in table.columns), rows, table.form)


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    """The text of a file: UTF-8 with or without BOM, or UTF-16 with one, as Excel writes it."""
    with open(path, "rb") as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        start = stream.peek(2)[:2] if hasattr(stream, "peek") else b""
        encoding = "utf-16" if start in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(stream, encoding=encoding, newline="") as text:
            yield text


def _csv(path: Path, known: Sequence[str]) -> Table:
    delimiter = _delimiter(path, known)

    def rows(faults: list[str]) -> Iterator[Row]:
        columns: list[str] = []
        for line, cells in _csv_cells(path, delimiter):
            if not columns:
                columns = _header(path, line, cells)
            elif len(cells) != len(columns):
                faults.append(
                    f"{path} line {line}: {len(cells)} cells, the header has {len(columns)}; put cells that hold "
                    f"{_named(delimiter)} or a line break in double quotes"
                )
            else:
                yield Row(line, {name: cell for name, cell in zip(columns, cells, strict=True) if cell})

    first = next(_csv_cells(path, delimiter), None)
    if first is None:
        raise DataError(f"{path}: is empty; expected a header and rows")
    return with_json(Table(path, tuple(_header(path, *first)), rows, "csv"))


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if "" in names or twice:
        found = f"column {twice[0]!r} twice" if twice else "a column without a name"
        raise DataError(f"{path} line {line}: the header has {found}; name each column once")
    return names


def _named(delimiter: str) -> str:
    return "a tab" if delimiter == "\t" else repr(delimiter)


def _csv_cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line each record starts on, and its cells; blank lines and Excel's `sep=` line are passed over."""
    csv.field_size_limit(CELL_LIMIT)
    before = 0
    try:
        with _text(path) as text:
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            for cells in reader:
                line, before = before + 1, reader.line_num
                told = line == 1 and cells and cells[0].startswith("sep=")
                if cells and not told and not (len(cells) == 1 and not cells[0].strip()):
                    yield line, cells
    except csv.Error as error:
        found = "a quote is opened and never closed" if "unexpected end" in str(error) else str(error)
        raise DataError(
            f"{path} line {before + 1}: {found}; write quotes inside a cell twice, cells in quotes"
        ) from None
    except UnicodeError as error:
        raise DataError(f"{path} after line {before}: not UTF-8 ({error}); save the file as CSV UTF-8") from None
    except (EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read after line {before} ({error}); copy it again") from None


def _delimiter(path: Path, known: Sequence[str]) -> str:
    """What parts the cells: told by `sep=`, else what gives the header the most known names, then the most cells."""
    try:
        with _text(path) as text:
            start = text.read(SNIFFED_BYTES)
    except (UnicodeError, EOFError, OSError):
        return ","  # the reader says what is wrong
    first = start.split("\n", 1)[0].strip("\r")
    if first.startswith("sep=") and len(first) == 5:
        return first[4]
    names = {name.casefold() for name in known}

    def fitness(delimiter: str) -> tuple[int, int, bool]:
        csv.field_size_limit(CELL_LIMIT)
        try:
            cells = next(csv.reader(io.StringIO(start), delimiter=delimiter), [])
        except csv.Error:
            return 0, 0, False
        own = "\t" if suffix_of(path) == ".tsv" else ","
        return sum(cell.strip().casefold() in names for cell in cells), len(cells), delimiter == own

    return max(DELIMITERS, key=fitness)


def _of_items(path: Path, form: str, read: Callable[[list[str]], Iterator[Row]]) -> Table:
    unread: list[str] = []
    columns: dict[str, None] = {}
    for number, row in enumerate(read(unread)):
        columns |= dict.fromkeys(row.values)
        if number >= BATCH_ROWS:
            break
    if not columns and not unread:
        raise DataError(f"{path}: is empty; expected one object per row")
    return Table(path, tuple(columns), read, form)


def _jsonl(path: Path, faults: list[str]) -> Iterator[Row]:
    for _, item in stream_jsonl(path, placed_lines(path), faults):
        yield Row(item.line, item.value)


def read_json(path: Path) -> Any:
    """The content of a JSON file. DataError with line and column if it is none."""
    text = "\n".join(line.text for line in placed_lines(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} line {error.lineno} column {error.colno}: not valid JSON, {error.msg}; mend it"
        ) from None
    except RecursionError:
        raise DataError(f"{path}: nested too deep; expected a list of objects") from None


def _json(path: Path, faults: list[str]) -> Iterator[Row]:
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: one JSON object; expected a list of objects, or JSONL")
    for number, value in enumerate(content, start=1):
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            faults.append(f"{path} entry {number}: no object; write {{...}}")


def _yaml(path: Path, faults: list[str]) -> Iterator[Row]:
    items, found = read_yaml(path, ("query_id", "relevant_docs", "_id", "id", "doc_id"))
    faults += found
    yield from (Row(*_item(item)) for item in items)


def _item(item: Item) -> tuple[int, dict[str, Any]]:
    return item.line, item.value


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows(faults: list[str]) -> Iterator[Row]:
        number = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(number, {name: value for name, value in values.items() if value is not None})

    try:
        with pq.ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}); write it again") from None
    return with_json(Table(path, columns, rows, "parquet"))
