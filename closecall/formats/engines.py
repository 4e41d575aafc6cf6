"""Judgment lists of search engines' tools: Quepid, OpenSearch, Elasticsearch, and the text of learning to rank.

They name a query by its text, as a rule. Where the queries are given beside them the text finds their ids; else an id
is made of it. The forms, as their makers document them:

- Quepid: the CSV of a case (query, docid, rating), read as a table, and the JSON of a case (`queries`, each with
  `query_text` and `ratings`: {document: rating}).
- OpenSearch, search relevance: `judgmentRatings`, a list of {query, ratings: [{docId, rating}]}, or {query: ratings}.
- Elasticsearch and OpenSearch `_rank_eval`: `requests` of {id, request, ratings: [{_index, _id, rating}]}.
- Learning to rank (RankLib, and Quepid's LTR export): lines of `grade qid:1 features # document query`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from closecall.errors import DataError
from closecall.formats.parts import Graded, JudgedSet, Part, Placed, Record, text_id
from closecall.formats.tables import read_json
from closecall.readers import id_of, open_lines, resolve
from closecall.trec import grade_of

LTR = re.compile(
    r"(?P<grade>\S+)\s+qid:(?P<qid>\S+)(?P<features>(?:\s+\d+:\S+)*)\s*#\s*(?P<doc>\S+)(?:\s+(?P<text>.*))?"
)


def engine_kind(path: Path) -> str | None:
    """Which of these forms a JSON or text file has; None for none of them."""
    if path.name.removesuffix(".gz").endswith(".json"):
        content = read_json(path)
        if isinstance(content, dict):
            known = {"judgmentRatings": "opensearch", "requests": "elasticsearch", "queries": "quepid"}
            return next((form for key, form in known.items() if key in content), None)
        return None
    if path.name.removesuffix(".gz").endswith((".txt", ".ltr", ".dat")):
        first = next((text for _, text in open_lines(path) if text.strip() and not text.startswith("#")), "")
        return "ltr" if LTR.match(first) else None
    return None


def engine_file(path: Path, form: str) -> JudgedSet:
    """The judgments of a file of this form, and the queries that it names. DataError when it has another form."""
    file = resolve(path)
    if form == "ltr":
        return _set(file, form, lambda faults: _ltr(file, faults), by_text=False)
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file}: not one JSON object; expected the {form} form")
    read = {"opensearch": _opensearch, "elasticsearch": _rank_eval, "quepid": _quepid}[form]
    return _set(file, form, lambda faults: read(file, content, faults), by_text=form != "elasticsearch")


Rating = tuple[int, str, str, Any, Any]
"""Entry or line, query id or "", query text, document, grade."""


def _set(file: Path, form: str, read: Any, by_text: bool) -> JudgedSet:
    """Queries and judgments of the ratings, each made from a pass of its own."""

    def queries(faults: list[str]) -> Iterator[Placed[Record]]:
        for line, query_id, text, _, _ in read([]):
            if text.strip():
                yield Placed(line, {"_id": query_id or text_id("q", text), "text": text})

    def judgments(faults: list[str]) -> Iterator[Placed[Graded]]:
        for line, query_id, text, doc, value in read(faults):
            doc_id, grade = id_of(doc), grade_of(str(value).strip())
            if doc_id is None or isinstance(grade, str):
                found = f"document id {doc!r} is no id" if doc_id is None else grade
                faults.append(f"{file} entry {line}: {found}; mend it")
            else:
                yield Placed(line, Graded(query_id or text_id("q", text), doc_id, grade))

    parts = [Part(file, queries)], [Part(file, judgments)]
    return JudgedSet(queries=parts[0], judgments=parts[1], files=[file], form=form, text_ids=by_text)


def _entries(file: Path, several: object, name: str, faults: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(several, list):
        raise DataError(f"{file}: {name} is no list; expected a list of objects")
    for number, entry in enumerate(several, start=1):
        if isinstance(entry, dict):
            yield number, entry
        else:
            faults.append(f"{file} entry {number} of {name}: no object; write {{...}}")


def _opensearch(file: Path, content: dict[str, Any], faults: list[str]) -> Iterator[Rating]:
    given = content.get("judgmentRatings")
    if isinstance(given, dict):
        given = [{"query": text, "ratings": ratings} for text, ratings in given.items()]
    for number, entry in _entries(file, given, "judgmentRatings", faults):
        if not isinstance(text := entry.get("query"), str) or not text.strip():
            faults.append(f"{file} entry {number} of judgmentRatings: no query; write its text")
            continue
        for _, rating in _entries(file, entry.get("ratings", []), "ratings", faults):
            yield number, "", text, rating.get("docId"), rating.get("rating")


def _rank_eval(file: Path, content: dict[str, Any], faults: list[str]) -> Iterator[Rating]:
    for number, entry in _entries(file, content.get("requests"), "requests", faults):
        query_id = id_of(entry.get("id"))
        if query_id is None:
            faults.append(f"{file} entry {number} of requests: no id; write it as text")
            continue
        text = _asked(entry.get("params") or entry.get("request") or {})
        for _, rating in _entries(file, entry.get("ratings", []), "ratings", faults):
            yield number, query_id, text, rating.get("_id"), rating.get("rating")


def _asked(value: object) -> str:
    """The text that a request searches for: the first under `query`, `query_string` or a match."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("query_string", "query", "match", "multi_match", "match_phrase"):
            if key in value and (found := _asked(value[key])):
                return found
        return _asked(next((v for k, v in value.items() if k not in ("fields", "operator", "type")), ""))
    return ""


def _quepid(file: Path, content: dict[str, Any], faults: list[str]) -> Iterator[Rating]:
    several = content.get("queries")
    several = list(several.values()) if isinstance(several, dict) else several
    for number, entry in _entries(file, several, "queries", faults):
        text = entry.get("query_text", entry.get("queryText", entry.get("query")))
        ratings = entry.get("ratings", {})
        if not isinstance(text, str) or not isinstance(ratings, dict):
            faults.append(f"{file} entry {number} of queries: expected query_text and ratings: {{document: rating}}")
            continue
        for doc_id, rating in ratings.items():
            value = rating.get("rating") if isinstance(rating, dict) else rating
            yield number, "", text, doc_id, value


def _ltr(file: Path, faults: list[str]) -> Iterator[Rating]:
    for line, text in open_lines(file):
        content = text.strip()
        if not content or content.startswith("#"):
            continue
        if not (found := LTR.fullmatch(content)):
            faults.append(
                f"{file} line {line}: expected `grade qid:ID ... # document query`; name the document after #"
            )
        else:
            yield line, found["qid"], found["text"] or "", found["doc"], found["grade"]
