"""TREC's files: topics as text with tags or as XML, qrels and runs. Topics have no other reader that keeps lines."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from closecall.errors import DataError
from closecall.formats.columns import ALIASES, roles_of
from closecall.formats.parts import Graded, JudgedSet, Part, Placed, Record, of_table
from closecall.formats.tables import open_table
from closecall.readers import id_of, open_lines, placed_lines, resolve
from closecall.trec import stream_qrels

TAG = re.compile(r"<(num|title|desc|narr|top|/top|query|question|narrative|description)>", re.IGNORECASE)
LABEL = re.compile(r"^\s*(?:Number|Topic|Description|Narrative)\s*:\s*", re.IGNORECASE)
FIELDS = {"title": "title", "desc": "description", "description": "description", "narr": "narrative",
          "narrative": "narrative", "query": "query", "question": "question"}  # fmt: skip
NOT_XML = re.compile("[^\\t\\n\\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TEXTS = ("query", "title", "question", "description")
"""Fields that may be the query, the first that is there."""


def topics(path: Path) -> JudgedSet:
    """The topics of a file as queries: id, the title as text, description and narrative as columns."""
    file = resolve(path)
    start = next((text for _, text in open_lines(file) if text.strip()), "").lstrip()
    xml = start.startswith("<?xml") or re.match(r"<(xml|topics|queries|parameters)\b", start) or "<topic " in start
    read = _xml if xml else _tagged

    def rows(faults: list[str]) -> Iterator[Placed[Record]]:
        some = False
        for line, number, fields in read(file):
            some = True
            if (query_id := id_of(number)) is None:
                faults.append(f"{file} line {line}: a topic without a number; add <num>")
                continue
            text = next((fields.pop(name) for name in TEXTS if fields.get(name)), "")
            if text:
                yield Placed(line, {"_id": query_id, "text": text} | {k: v for k, v in fields.items() if v})
            else:
                faults.append(f"{file} line {line}: topic {query_id} has no title and no query; add one")
        if not some:
            faults.append(f"{file}: holds no topics; expected <top> with <num> and <title>, or XML with <topic>")

    return JudgedSet(queries=[Part(file, rows)], files=[file], form="trec")


def _tagged(path: Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """(line, number, fields) of each `<top>`; a tag is closed by the next one, as in TREC's files."""
    fields: dict[str, list[str]] = {}
    line_of, current, inside = 0, "", False
    for line, text in open_lines(path):
        position = 0
        for tag in [*TAG.finditer(text), None]:
            end = tag.start() if tag else len(text)
            if current:
                fields.setdefault(current, []).append(text[position:end])
            if tag is None:
                break
            position, name = tag.end(), tag.group(1).lower()
            if name == "top":
                fields, line_of, current, inside = {}, line, "", True
            elif name == "/top":
                if inside:
                    yield line_of, *_closed(fields)
                fields, current, inside = {}, "", False
            else:
                current = name
    if inside:
        raise DataError(f"{path} line {line_of}: <top> is never closed; add </top>")


def _closed(fields: dict[str, list[str]]) -> tuple[str, dict[str, str]]:
    plain = {name: _clean(" ".join(parts)) for name, parts in fields.items()}
    return plain.pop("num", ""), {FIELDS[name]: text for name, text in plain.items()}


def _clean(text: str) -> str:
    """One line, without the label that TREC writes into the field, without a closing tag."""
    text = re.sub(r"</\w+>\s*$", "", text.strip())
    return " ".join(html.unescape(LABEL.sub("", text)).split())


def _xml(path: Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """(line, number, fields) of each topic of an XML file. No entity is expanded, and nothing outside is read."""
    builder = _Lines()
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, attributes: builder.start(tag, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity(path)
    try:
        parser.Parse("\n".join(line.text for line in placed_lines(path)), True)
    except expat.ExpatError as error:
        raise DataError(
            f"{path} line {error.lineno}: not valid XML, {expat.ErrorString(error.code)}; mend it"
        ) from None
    yield from builder.topics


def _refuse_entity(path: Path) -> Callable[..., None]:
    def handler(name: str, *rest: object) -> None:
        raise DataError(f"{path}: declares the entity {name!r}; write the text itself")

    return handler


class _Lines:
    """Topics as they are closed: elements <topic> or <query> with a number."""

    def __init__(self) -> None:
        self.topics: list[tuple[int, str, dict[str, str]]] = []
        self.open: tuple[int, str, dict[str, str]] | None = None
        self.field = ""
        self.own: list[str] = []
        self.parts: list[str] = []
        self.kept = False
        """Whether spaces around the field's text are its own."""

    def start(self, tag: str, attributes: dict[str, str], line: int) -> None:
        name = tag.lower()
        if self.open is None and name in ("topic", "query", "top"):
            number = next((attributes[key] for key in ("number", "id", "num") if key in attributes), "")
            self.open, self.own = (line, number, {}), []
        elif self.open is not None:
            self.field, self.parts, self.kept = name, [], attributes.get("xml:space") == "preserve"

    def data(self, text: str) -> None:
        (self.parts if self.field else self.own).append(text)

    def end(self, tag: str) -> None:
        name, text = tag.lower(), "".join(self.parts)
        text = text if self.kept else text.strip()
        if self.open is None:
            return
        line, number, fields = self.open
        if self.field == name:
            if name in ("num", "number"):
                self.open = line, text, fields
            elif name in FIELDS or name == "text":
                fields["query" if name == "text" else FIELDS[name]] = text
            self.field = ""
        elif name in ("topic", "query", "top"):
            if not any(fields.values()) and (own := "".join(self.own).strip()):
                fields["query"] = own
            self.topics.append((line, number, fields))
            self.open = None


def qrels(path: Path, chosen: dict[str, str], split: str = "") -> JudgedSet:
    """Judgments of a file: TREC's four columns, BEIR's three, or a table that names its columns."""
    file = resolve(path)
    if not file.name.removesuffix(".gz").endswith((".csv", ".jsonl", ".json", ".yaml", ".yml", ".parquet")):
        names = next((text.split("\t") for _, text in open_lines(file) if text.strip()), [])
        roles = roles_of([name.strip() for name in names], chosen, file)
        usual = [role for role in ("query_id", "doc_id", "grade") if role in roles]
        if len(usual) < 3 or [roles[role] for role in usual] == [name.strip() for name in names]:
            return JudgedSet(judgments=[_judgments(file, split)], files=[file], form="trec")
    return of_table(open_table(file, tuple(ALIASES)), chosen, "qrels", split)


def _judgments(file: Path, split: str) -> Part[Graded]:
    def rows(faults: list[str]) -> Iterator[Placed[Graded]]:
        for judgment, line in stream_qrels(file, faults):
            yield Placed(line, Graded(*judgment, split))

    return Part(file, rows)


def xml_topics(queries: Sequence[tuple[str, str]]) -> str:
    """The XML of topics as TREC's later tracks write it: a number, and the text in <query>.

    DataError for a text with a character that XML has no form for.
    """
    lines = ["<?xml version='1.0' encoding='utf-8'?>", "<topics>"]
    for query_id, text in queries:
        if bad := NOT_XML.search(query_id + text):
            raise DataError(f"query {query_id!r} holds {bad.group()!r}, which XML has no form for; choose another form")
        space = ' xml:space="preserve"' if text != text.strip() else ""
        inner = escape(text, {"\r": "&#13;"})
        lines.append(f"<topic number={quoteattr(query_id)}><query{space}>{inner}</query></topic>")
    return "\n".join([*lines, "</topics>"]) + "\n"
