"""Text files into numbered lines, JSON or YAML objects, and checked records. Every fault says its place."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Generic, NamedTuple, NoReturn, TypeVar, cast

import yaml

from closecall.errors import DataError
from closecall.records import Document, Query

Record = TypeVar("Record", Document, Query)
LISTED = 3


class Item(NamedTuple):
    """An object of a JSONL or YAML file and the line it starts on."""

    line: int
    value: dict[str, object]


class Line(NamedTuple):
    """A line of a text file: its number from 1, its text, and where its bytes are."""

    number: int
    text: str
    start: int
    size: int


@dataclass
class Records(Generic[Record]):
    """What a file of documents or queries holds, and what is wrong or odd in it."""

    path: Path
    """The file that was read."""
    lines: dict[str, int] = field(default_factory=dict)
    """Every id seen, also of a record that is at fault, and the line it was first seen on."""
    rows: dict[str, Record] = field(default_factory=dict)
    """The sound records by id, in the order of the file."""
    faults: list[str] = field(default_factory=list)
    """What must be mended."""
    notes: list[str] = field(default_factory=list)
    """What was merged or converted, counted."""


def some(names: Iterable[object], limit: int = LISTED) -> str:
    """The first few names, and how many more there are."""
    listed = [str(name) for name in names]
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def place(path: Path, lines: Sequence[int]) -> str:
    """Where something stands: "qrels/dev.tsv lines 4, 9, 12 and 7 more"."""
    return f"{path} line{'s' if len(lines) > 1 else ''} {some(lines)}"


def kind(value: object) -> str:
    """The type of a JSON value in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    named = ((str, "text"), (list, "a list"), (dict, "an object"))
    return next((name for python_type, name in named if isinstance(value, python_type)), "a number")


def inside(folder: Path) -> str:
    """What a folder holds, in words, for an error that asks for another file."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"which cannot be listed ({error.strerror})"
    return f"which holds {some(names, 10)}" if names else "which is empty"


def resolve(path: Path) -> Path:
    """The file that is there: `path`, or the same name with (or without) `.gz`."""
    other = path.with_name(path.name.removesuffix(".gz") if path.suffix == ".gz" else f"{path.name}.gz")
    for candidate in (path, other):
        if os.path.isfile(candidate):
            return candidate
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder, {inside(path)}; name a file")
    near = next((parent for parent in path.parents if os.path.isdir(parent)), path.parent)
    raise DataError(f"{path} does not exist, nor does {other.name}; the nearest folder is {near}, {inside(near)}")


def open_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each line of a UTF-8 file, gzip if named `.gz`, without BOM and line end."""
    return ((line.number, line.text) for line in placed_lines(path))


def placed_lines(path: Path, copy: BinaryIO | None = None) -> Iterator[Line]:
    """As `open_lines`, with the place of each line in the (unpacked) file, all of which is written to `copy`."""
    number = start = 0
    try:
        # Opened through open() in both cases, so that the raw file is closed even if the gzip header is bad.
        with open(path, "rb") as raw:
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            for chunk in stream:
                if copy is not None:
                    copy.write(chunk)
                # Bytes break at \n, \r\n and \r alone, text would at U+2028 too.
                for line in chunk.splitlines(keepends=True):
                    number += 1
                    text = _decoded(path, number, line.rstrip(b"\r\n"))
                    yield Line(number, text.removeprefix("\ufeff") if number == 1 else text, start, len(line))
                    start += len(line)
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} is no gzip file ({error}); compress it, or name it without .gz") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged after line {number} ({error}); copy or compress it again") from error
    except OSError as error:
        advice = f", {inside(path)}; name a file" if os.path.isdir(path) else "; check the path and its permissions"
        raise DataError(f"{path} cannot be read ({error.strerror or error}){advice}") from error


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and line.startswith(b"\x1f\x8b"):
            raise DataError(f"{path} is a gzip file; name it {path.name}.gz") from error
        known = " (it starts like UTF-16)" if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        found = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        raise DataError(f"{path} line {number}: not UTF-8, {found}{known}; save the file as UTF-8") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value; write null, or leave the field out")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {twice!r} stands twice; keep one")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)


def read_jsonl(path: Path) -> tuple[list[Item], list[str]]:
    """The objects of a JSONL file, and the faults of the lines that are none. Blank lines are skipped."""
    faults: list[str] = []
    return [item for _, item in stream_jsonl(path, placed_lines(path), faults)], faults


def stream_jsonl(path: Path, lines: Iterable[Line], faults: list[str]) -> Iterator[tuple[Line, Item]]:
    """Each object of a JSONL file with its line; faults of lines that hold none are added to `faults`."""
    first = True
    for line in lines:
        if not (content := line.text.strip()):
            continue
        where = f"{path} line {line.number}"
        if first and (content.startswith("[") or content == "{"):
            found = "one JSON list" if content.startswith("[") else "one object over several lines"
            faults.append(f"{where}: the file is {found}; write each object on a line of its own (JSONL)")
            return
        first = False
        try:
            value = _DECODER.decode(content)
        except json.JSONDecodeError as error:
            column = error.pos + 1 + len(line.text) - len(line.text.lstrip())
            faults.append(f"{where} column {column}: not valid JSON, {error.msg}; mend or drop the line")
        except (ValueError, RecursionError) as error:
            faults.append(f"{where}: {error}")
        else:
            if isinstance(value, dict):
                yield line, Item(line.number, value)
            else:
                faults.append(f"{where}: {kind(value)}, not an object; write {{...}} on each line")


class _Strict:
    """YAML with unique keys, in which dates stay text and `language: no` is Norwegian, no truth value."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [rule for rule in rules if rule[0] not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)  # type: ignore[misc]
        if len(mapping) != len(node.value):
            keys = [(key.value, key.start_mark) for key, _ in node.value]
            twice, mark = next(key for i, key in enumerate(keys) if key[0] in dict(keys[:i]))
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} stands twice", mark)
        return mapping


class _Yaml(_Strict, yaml.SafeLoader):
    """Says where a fault is."""


class _FastYaml(_Strict, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Ten times as fast; its faults name the place where it noticed them."""


for _loader in (_Yaml, _FastYaml):
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )


def read_yaml(path: Path, id_keys: Sequence[str]) -> tuple[list[Item], list[str]]:
    """The objects of a YAML list, and the faults; an id (under `id_keys`) that YAML takes for no text is one."""
    text = "\n".join(line for _, line in open_lines(path))
    try:
        return _yaml_items(path, _FastYaml(text), id_keys)
    except yaml.YAMLError:
        pass  # read again, for the place
    except _NOT_YAML as error:
        return [], [f"{path}: cannot be read as YAML, {error or type(error).__name__}; mend it"]
    try:
        return _yaml_items(path, _Yaml(text), id_keys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        return [], [f"{path}{where}: not valid YAML, {error.problem}; mend it"]
    except _NOT_YAML as error:
        return [], [f"{path}: cannot be read as YAML, {error or type(error).__name__}; mend it"]


_NOT_YAML = (yaml.YAMLError, ValueError, AttributeError, TypeError, StopIteration, RecursionError)
"""A tag such as `!!int x`, a number of 5,000 digits, a key that is a list, ten thousand brackets."""


def _yaml_items(path: Path, loader: Any, id_keys: Sequence[str]) -> tuple[list[Item], list[str]]:
    root = loader.get_single_node()
    if not isinstance(root, yaml.SequenceNode):
        return [], [f"{path}: not a YAML list; write each judged query as one `- query_id: ...` entry"]
    items: list[Item] = []
    faults: list[str] = []
    for node in root.value:
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                faults += _unquoted_ids(path, value) if key.value in id_keys else []
            content = loader.construct_mapping(node, deep=True)
            items.append(Item(line, {str(key): value for key, value in content.items()}))
        else:
            faults.append(f"{path} line {line}: not a mapping; write `query_id: ...`, `query: ...` and so on")
    return items, faults


def _unquoted_ids(path: Path, node: Any) -> Iterator[str]:
    """Faults of ids that are no text; each is then made text, so that it is not reported twice."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag != "tag:yaml.org,2002:str":
            where = f"{path} line {node.start_mark.line + 1}"
            yield f'{where}: YAML takes the id {node.value} for no text; put it in quotes: "{node.value}"'
            node.tag = "tag:yaml.org,2002:str"
    else:
        children = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else node.value
        for child in children:
            yield from _unquoted_ids(path, child)


def id_of(value: object) -> str | None:
    """The id as text, or None if it cannot be one: ids are text; a whole number is taken as its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or value != value.strip() or not value or _unwritable(value):
        return None
    return None if re.search(r"[\t\r\n]", value) else value


def _unwritable(value: str) -> bool:
    """Half a surrogate pair: JSON can spell it, UTF-8 cannot, and a tokenizer fails on it."""
    return not value.isascii() and re.search("[\ud800-\udfff]", value) is not None


def text_fault(key: str, item: Item) -> str | None:
    """What is wrong with a text field; None if nothing is."""
    value = item.value.get(key)
    if key not in item.value:
        return f'no "{key}" (found: {some(item.value, 8) or "nothing"}); add it'
    if not isinstance(value, str):
        return f"{key} is {kind(value)}; make it text"
    return f"{key} holds half a surrogate pair; mend the text" if _unwritable(value) else None


def read_records(
    path: Path, items: Sequence[Item], id_key: str, make: Callable[[str, Item], Record | str]
) -> Records[Record]:
    """The records made of the items. `make` gives a record, or the fault as text. Equal repeats are merged."""
    records: Records[Record] = Records(path)
    numbers = repeats = 0
    for item in items:
        raw = item.value.get(id_key)
        if (record_id := id_of(raw)) is None:
            records.faults.append(f"{path} line {item.line}: {id_fault(id_key, raw, item)}")
            continue
        numbers += not isinstance(raw, str)
        made = value_fault(item) or make(record_id, item)
        first = records.lines.setdefault(record_id, item.line)
        if isinstance(made, str):
            records.faults.append(f"{path} line {item.line}: {made}")
        elif record_id not in records.rows:
            records.rows[record_id] = made
        elif records.rows[record_id] == made:
            repeats += 1
        else:
            fault = f"{id_key} {record_id!r} stands on line {first} with other content; rename or drop one"
            records.faults.append(f"{path} line {item.line}: {fault}")
    if repeats:
        records.notes.append(f"{path.name}: {repeats:,} repeated lines with the same id and content were merged")
    if numbers:
        records.notes.append(f"{path.name}: {numbers:,} ids are numbers; they were taken as text")
    return records


def value_fault(item: Item) -> str | None:
    """What makes a record unfit to be written as JSON: a date or bytes from YAML, half a surrogate pair."""
    if all(type(value) is str and value.isascii() and key.isascii() for key, value in item.value.items()):
        return None  # most lines: no need to try
    try:
        json.dumps(item.value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        name = next((key for key, value in item.value.items() if _unwritable(f"{key} {value!s}")), None)
        return f"{name or 'a value'} holds half a surrogate pair; mend the text".encode("ascii", "replace").decode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"holds a value that JSON has no form for ({error}); write text, a number or a list"
    return None


def id_fault(id_key: str, raw: object, item: Item) -> str:
    """What is wrong with the id of a record."""
    if id_key not in item.value:
        return f'no "{id_key}" (found: {some(item.value, 8) or "nothing"}); add it or rename the field that holds it'
    if isinstance(raw, str):
        return f"{id_key} {raw!r} is empty, or has spaces around it, a tab, a line break or half a surrogate; mend it"
    return f"{id_key} is {kind(raw)}{'' if raw is None else f' ({raw})'}; write it as text, in quotes"
