"""Documents, queries and judgments out of tables, streamed, each with the line it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from closecall.errors import DataError
from closecall.formats.columns import Columns, roles_of
from closecall.formats.tables import Row, Table
from closecall.readers import id_of, kind
from closecall.trec import grade_of

T = TypeVar("T")
Record = dict[str, Any]
BEIR = {"_id", "title", "text", "metadata"}


class Graded(NamedTuple):
    """A judgment and the split it is given for; "" for none."""

    query_id: str
    doc_id: str
    grade: int
    split: str = ""


class Placed(NamedTuple, Generic[T]):
    """Something and the line it was read from."""

    line: int
    value: T


@dataclass(frozen=True)
class Part(Generic[T]):
    """One file's documents, queries or judgments. `rows` adds what is wrong to the list it gets."""

    path: Path
    rows: Callable[[list[str]], Iterator[Placed[T]]]


@dataclass
class JudgedSet:
    """All that an import reads."""

    documents: list[Part[Record]] = field(default_factory=list)
    queries: list[Part[Record]] = field(default_factory=list)
    judgments: list[Part[Graded]] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    """TREC run files, which are copied."""
    files: list[Path] = field(default_factory=list)
    """Every file that is read."""
    form: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    """File -> which column is what."""
    notes: list[str] = field(default_factory=list)
    text_ids: bool = False
    """Whether judgments name queries by their text."""

    def add(self, other: JudgedSet) -> None:
        """Take over what another one reads."""
        for name in ("documents", "queries", "judgments", "runs", "files", "notes"):
            getattr(self, name).extend(getattr(other, name))
        self.columns |= other.columns
        self.form = self.form or other.form
        self.text_ids |= other.text_ids


def text_id(prefix: str, text: str) -> str:
    """An id for a text that has none: the same text always has the same."""
    return f"{prefix}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def of_table(table: Table, chosen: Mapping[str, str], what: str | None = None, split: str = "") -> JudgedSet:
    """What a table holds: `what` is corpus, queries, qrels, or None where its columns tell.

    `split` is that of judgments whose rows name none. DataError when the columns do not suffice.
    """
    columns = roles_of(table.columns, chosen, table.path)
    what = what or _what(columns)
    found = JudgedSet(files=[table.path], form=table.form, columns={table.path.name: columns.shown})
    maker = {
        "corpus": _corpus, "queries": _queries, "qrels": _qrels, "judged": _judged, "pairs": _pairs, "rows": _wide,
    }.get(what or "")  # fmt: skip
    if maker is None:
        raise DataError(
            f"{table.path}: cannot tell what it holds; its columns: {columns.shown}. Say --corpus, --queries or "
            "--qrels FILE, or name columns with --column ROLE=COLUMN"
        )
    maker(found, table, columns, split)
    return found


def _what(columns: Columns) -> str | None:
    """The kind of table that such columns make; None where it could be documents as well as queries."""
    asks = "query" in columns or "query_id" in columns
    if asks and "relevant_docs" in columns:
        return "judged"
    if "query" in columns and "positive" in columns:
        return "pairs"
    if asks and "grade" in columns and ("doc_id" in columns or "document" in columns or "text" in columns):
        return "rows"
    if "query" in columns and "query_id" in columns:
        return "queries"
    return "corpus" if "doc_id" in columns and ("document" in columns or "text" in columns) else None


def _need(table: Table, columns: Columns, *choices: str) -> str:
    """The column of the first of these roles that is there."""
    for role in choices:
        if role in columns:
            return columns[role]
    raise DataError(
        f"{table.path}: no column for {' or '.join(choices)}; found {', '.join(table.columns)}. Name it with "
        f"--column {choices[0]}=COLUMN"
    )


def _records(table: Table, make: Callable[[Row], T | str | None]) -> Part[T]:
    """A part whose rows are made one by one; text is what is wrong with a row, None is a row that has none."""

    def rows(faults: list[str]) -> Iterator[Placed[T]]:
        for row in table.rows(faults):
            made = make(row)
            if isinstance(made, str):
                faults.append(f"{table.path} line {row.line}: {made}")
            elif made is not None:
                yield Placed(row.line, made)

    return Part(table.path, rows)


def _identity(row: Row, name: str) -> str | tuple[str]:
    """The id in a column as a tuple of one, or what is wrong with it."""
    value = row.values.get(name)
    if (made := id_of(value)) is not None:
        return (made,)
    if value is None:
        return f"no {name}; every row needs one"
    if isinstance(value, float):
        return f"{name} is the number {value}, which may have lost digits; write ids as text"
    return f"{name} {value!r} is no id: empty, spaces around it, a tab, a line break, or not text; mend it"


def _text_of(row: Row, name: str) -> str | tuple[str]:
    value = row.values.get(name)
    if value is None:
        return ("",)
    return (value,) if isinstance(value, str) else f"{name} is {kind(value)}; write text"


def _record(row: Row, id_name: str, text_name: str, title: str | None) -> Record | str:
    """`_id`, `title` where there is one, `text` and all other columns as they are."""
    made, text = _identity(row, id_name), _text_of(row, text_name)
    head = _text_of(row, title) if title is not None else ("",)
    for fault in (made, text, head):
        if isinstance(fault, str):
            return fault
    rest = {key: value for key, value in row.values.items() if key not in (id_name, text_name, title)}
    if set(row.values) <= BEIR and isinstance(rest.get("metadata"), dict):
        rest = rest["metadata"]
    if clash := {"_id", "text", "title"} & rest.keys():
        return f"a column {min(clash)!r} beside the one that was taken for it; rename it, or use --column"
    return {"_id": made[0]} | ({"title": head[0]} if head[0] else {}) | {"text": text[0]} | rest


def _native(table: Table) -> bool:
    return {"_id", "text"} <= set(table.columns)


def _corpus(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    id_name = "_id" if _native(table) else _need(table, columns, "doc_id", "id")
    text = "text" if _native(table) else _need(table, columns, "document", "text")
    title = columns.named.get("title") if "title" in columns and columns["title"] != text else None
    parent = columns.named.get("source_document", "source_document")

    def make(row: Row) -> Record | str:
        record = _record(row, id_name, text, title)
        if isinstance(record, dict) and parent != "source_document" and parent in record:
            record["source_document"] = record.pop(parent)
        return record

    found.documents.append(_records(table, make))


def _queries(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    id_name = "_id" if _native(table) else _need(table, columns, "query_id", "id", "doc_id")
    text = "text" if _native(table) else _need(table, columns, "query", "text", "title")
    found.queries.append(_records(table, lambda row: _record(row, id_name, text, None)))


def _grade(value: object) -> int | str:
    if isinstance(value, bool):
        return int(value)
    if value is None or not isinstance(value, str | int | float):
        return f"the grade is {'missing' if value is None else kind(value)}; write 0 (judged, not relevant), 1, 2, ..."
    return grade_of(str(value).strip())


def _graded(query_id: str | tuple[str], doc_id: str | tuple[str], value: object, split: object) -> Graded | str:
    grade = _grade(value)
    for fault in (query_id, doc_id, grade):
        if isinstance(fault, str):
            return fault
    return Graded(query_id[0], doc_id[0], int(grade), "" if split is None else str(split))


def _split_of(row: Row, columns: Columns, split: str) -> object:
    return row.values.get(columns["split"]) or split if "split" in columns else split


def _qrels(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    query, doc = _need(table, columns, "query_id"), _need(table, columns, "doc_id")
    grade = _need(table, columns, "grade")

    def make(row: Row) -> Graded | str:
        named = _identity(row, query), _identity(row, doc)
        return _graded(*named, row.values.get(grade), _split_of(row, columns, split))

    found.judgments.append(_records(table, make))


def _query_id(row: Row, columns: Columns) -> str | tuple[str]:
    """The row's own id of its query, or one made of its text."""
    if "query_id" in columns:
        return _identity(row, columns["query_id"])
    text = _text_of(row, columns["query"])
    if isinstance(text, str):
        return text
    return (text_id("q", text[0]),) if text[0].strip() else "the query has no text; write it or drop the row"


def _asked(found: JudgedSet, table: Table, columns: Columns, rest: bool = False) -> None:
    """The queries of rows that have their text; with `rest`, columns without a role are theirs."""

    def make(row: Row) -> Record | str:
        made, text = _query_id(row, columns), _text_of(row, columns["query"])
        if isinstance(made, str) or isinstance(text, str):
            return made if isinstance(made, str) else str(text)
        own = {name: row.values[name] for name in columns.others if name in row.values} if rest else {}
        return {"_id": made[0], "text": text[0]} | own

    if "query" in columns:
        found.queries.append(_records(table, make))
    if columns.others and not rest:
        found.notes.append(f"{table.path.name}: {', '.join(columns.others)} belong to neither, and are left out")


def _judged(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    """Rows of a query and its relevant documents: a list, `{id: grade}`, or ids parted by spaces or commas."""
    _asked(found, table, columns, rest=True)
    name = columns["relevant_docs"]

    def rows(faults: list[str]) -> Iterator[Placed[Graded]]:
        for row in table.rows(faults):
            given = row.values.get(name)
            pairs = _listed(given)
            if isinstance(pairs, str):
                faults.append(f"{table.path} line {row.line}: {name} {pairs}")
                continue
            for doc_id, grade in pairs:
                named = _identity(Row(row.line, {name: doc_id}), name)
                made = _graded(_query_id(row, columns), named, grade, _split_of(row, columns, split))
                if isinstance(made, str):
                    faults.append(f"{table.path} line {row.line}: {made}")
                else:
                    yield Placed(row.line, made)

    found.judgments.append(Part(table.path, rows))


def _listed(given: object) -> list[tuple[object, object]] | str:
    if isinstance(given, Mapping):
        return list(given.items())
    if isinstance(given, str):
        given = [name.strip() for name in given.replace(",", " ").split()]
    if not isinstance(given, list):
        return f"is {'missing' if given is None else kind(given)}; write a list of document ids, or {{id: grade}}"
    return [(doc_id, 1) for doc_id in given]


def _document(text: str, title: str = "") -> Record:
    whole = f"{title}\n{text}" if title else text
    return {"_id": text_id("d", whole)} | ({"title": title} if title else {}) | {"text": text}


def _pairs(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    """Pairs and triplets: positives are judged 1; negatives become documents without a judgment.

    A negative of a triplet was mined, as a rule, and seen by nobody: unjudged is not negative.
    """
    _asked(found, table, columns)
    texts = (columns["positive"], *columns.negatives)

    def given(row: Row, name: str) -> list[str]:
        value = row.values.get(name)
        several = value if isinstance(value, list) else [value]
        return [one for one in several if isinstance(one, str) and one.strip()]

    def documents(faults: list[str]) -> Iterator[Placed[Record]]:
        for row in table.rows(faults):
            yield from (Placed(row.line, _document(text)) for name in texts for text in given(row, name))

    def judgments(faults: list[str]) -> Iterator[Placed[Graded]]:
        for row in table.rows(faults):
            query_id, positives = _query_id(row, columns), given(row, texts[0])
            if isinstance(query_id, str) or not positives:
                reason = query_id if isinstance(query_id, str) else f"no text in {texts[0]}"
                faults.append(f"{table.path} line {row.line}: {reason}; mend or drop the row")
                continue
            for text in positives:
                split_name = str(_split_of(row, columns, split) or "")
                yield Placed(row.line, Graded(query_id[0], text_id("d", text), 1, split_name))

    found.documents.append(Part(table.path, documents))
    found.judgments.append(Part(table.path, judgments))
    if columns.negatives:
        found.notes.append(
            f"{table.path.name}: negatives of triplets become documents, not judgments: nobody is known to have judged "
            "them"
        )


def _wide(found: JudgedSet, table: Table, columns: Columns, split: str) -> None:
    """Rows of one judgment each, with the texts of its query and of its document where they are there."""
    _asked(found, table, columns)
    text = columns.named.get("document", columns.named.get("text", ""))
    title = columns.named.get("title", "")

    def document(row: Row) -> Record | str:
        body, head = _text_of(row, text), _text_of(row, title) if title else ("",)
        if isinstance(body, str) or isinstance(head, str):
            return body if isinstance(body, str) else str(head)
        record = _document(body[0], head[0])
        named = _identity(row, columns["doc_id"]) if "doc_id" in columns else (record["_id"],)
        return named if isinstance(named, str) else record | {"_id": named[0]}

    def judgment(row: Row) -> Graded | str:
        made = document(row) if "doc_id" not in columns else None
        named = _identity(row, columns["doc_id"]) if made is None else made if isinstance(made, str) else (made["_id"],)
        query_id = _query_id(row, columns) if "query_id" in columns or "query" in columns else "no query"
        return _graded(query_id, named, row.values.get(columns["grade"]), _split_of(row, columns, split))

    if text:
        found.documents.append(_records(table, document))
    found.judgments.append(_records(table, judgment))
    found.text_ids |= "query_id" not in columns
