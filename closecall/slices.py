"""Named groups of queries, reported apart: values of query columns, and derived ones."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from closecall.errors import ConfigError
from closecall.records import Document, Qrels, Query
from closecall.text import normalise, words

MAX_VALUES = 50
SHORT_WORDS = 3
MANY_POSITIVES = 3
IDENTIFIER = re.compile(
    r"""
      \b (?! \d+ (?: st | nd | rd | th | s | am | pm ) \b ) (?= \w* \d ) \d* [^\W\d]  # x9, 12ab; not 3rd, 1990s, 5pm
    | \b \d{5,} \b                         # 0041827
    | \b [A-Z] [A-Za-z]* -\d               # F-16
    | [^\W_] _+ [^\W_] | \b __\w           # snake_case, __init__
    | \w :: \w | :// | [\w:] \\ \w         # std::map, https://x, C:\x
    | (?<! [\w/] ) (?: ~ | \.\.? )? / \w   # /etc, ./run; not and/or
    | \b \w+ / \w+ / \w                    # a/b/c
    | \b [^\W\d] \w+ \. [a-z]              # file.txt; not e.g.
    | \b \d+ \. \d+ \. \d                  # 1.2.3; not 3.5
    | (?<! [\w-] ) -- [A-Za-z]             # --flag
    | [a-z] [A-Z]                          # camelCase
    """,
    re.VERBOSE,
)
ACRONYM = re.compile(r"\b[A-Z]{2,}s?\b")


@dataclass(frozen=True)
class Slice:
    """A name and the queries that belong to it."""

    name: str
    query_ids: frozenset[str]
    column: str = ""
    """The column, or columns, whose value it is; empty for a derived slice."""


@dataclass(frozen=True)
class SliceSource:
    """What slices are derived from. Without documents (two run files alone) those that need them are left out."""

    queries: Sequence[Query]
    qrels: Qrels
    documents: Mapping[str, Document]
    truncated: frozenset[str] = frozenset()
    """Ids of documents that are longer than the model reads."""

    def positives(self, query: Query) -> list[Document]:
        """The positives of a query that the corpus holds."""
        ids = self.qrels.positives(query.query_id)
        return [self.documents[doc_id] for doc_id in ids if doc_id in self.documents]


def find_slices(source: SliceSource, columns: Sequence[str] | None) -> list[Slice]:
    """Column slices, language pairs and derived slices, in that order; none that is empty or holds every query."""
    found = [*_column_slices(source.queries, columns), *_language_pairs(source), *_scripts(source.queries)]
    for name, test in DERIVED.items():
        found.append(Slice(name, frozenset(query.query_id for query in source.queries if test(source, query))))
    return [item for item in found if 0 < len(item.query_ids) < len(source.queries)]


def is_short(source: SliceSource, query: Query) -> bool:
    """At most three words."""
    return len(words(query.text)) <= SHORT_WORDS


def has_identifier(source: SliceSource, query: Query) -> bool:
    """Identifiers, part numbers, paths, acronyms (unless all is in capitals): what models split into pieces."""
    text = query.text
    return bool(IDENTIFIER.search(text) or (text != text.upper() and ACRONYM.search(text)))


def has_many_positives(source: SliceSource, query: Query) -> bool:
    """Three positives or more."""
    return len(source.qrels.positives(query.query_id)) >= MANY_POSITIVES


def has_long_positive(source: SliceSource, query: Query) -> bool:
    """Every positive is longer than the model reads, so that its end is never seen."""
    positives = source.positives(query)
    return bool(positives) and all(document.doc_id in source.truncated for document in positives)


def shares_no_word(source: SliceSource, query: Query) -> bool:
    """No word in common with any positive: lexical search cannot find it."""
    positives = source.positives(query)
    own = set(words(query.text))
    return bool(positives) and not any(own & set(words(document.full_text)) for document in positives)


DERIVED: dict[str, Callable[[SliceSource, Query], bool]] = {
    "short_query": is_short,
    "identifiers": has_identifier,
    "many_positives": has_many_positives,
    "long_positive": has_long_positive,
    "no_shared_word": shares_no_word,
}
"""Derived slices by name; each docstring says which queries belong."""


def _column_slices(queries: Sequence[Query], columns: Sequence[str] | None) -> list[Slice]:
    values = {name: _values(queries, name) for name in _columns(queries)}
    if columns is None:
        columns = [name for name, by_query in values.items() if _worth_slicing(list(by_query.values()))]
    slices = []
    for name in dict.fromkeys(columns):
        labels = _labels(values, name)
        if not labels:
            raise ConfigError(
                f"slice_by: no query has a value (text, number, truth value) in the column {name!r}; "
                f"columns there are: {', '.join(values) or 'none'}; two of them together are written `a+b`"
            )
        for label in sorted(set(labels.values())):
            members = frozenset(query_id for query_id, found in labels.items() if found == label)
            slices.append(Slice(label, members, name))
    return slices


def _labels(values: Mapping[str, Mapping[str, str]], name: str) -> dict[str, str]:
    """The slice of each query that has a value: `column=value`, or of two columns `a=x+b=y`."""
    columns = (name,) if name in values else tuple(part.strip() for part in name.split("+"))
    if not set(columns) <= values.keys():
        return {}
    queries = [query_id for query_id in values[columns[0]] if all(query_id in values[column] for column in columns)]
    return {query_id: "+".join(f"{column}={values[column][query_id]}" for column in columns) for query_id in queries}


def _worth_slicing(values: Sequence[str]) -> bool:
    """Few enough different values, and not each of them once, as ids are."""
    different = len(set(values))
    return 2 <= different <= MAX_VALUES and different < len(values)


def _columns(queries: Sequence[Query]) -> list[str]:
    names = dict.fromkeys(name for query in queries for name in query.metadata)
    return [name for name in names if not name.startswith("_")]


def _values(queries: Sequence[Query], column: str) -> dict[str, str]:
    found = ((query.query_id, query.metadata.get(column)) for query in queries)
    return {query_id: str(value) for query_id, value in found if isinstance(value, str | int | float | bool)}


def _language_pairs(source: SliceSource) -> list[Slice]:
    """Query language x language of its positives, where both are given and they are not all the same pair."""
    members: dict[str, set[str]] = {}
    for query in source.queries:
        language = query.metadata.get("language")
        for document in source.positives(query):
            if language and document.metadata.get("language"):
                members.setdefault(f"{language}->{document.metadata['language']}", set()).add(query.query_id)
    return [Slice(f"languages={pair}", frozenset(ids), "languages") for pair, ids in sorted(members.items())]


def _scripts(queries: Sequence[Query]) -> list[Slice]:
    """The writing system of most letters of the query, where there is more than one among the queries."""
    members: dict[str, set[str]] = {}
    for query in queries:
        members.setdefault(script_of(query.text), set()).add(query.query_id)
    return [Slice(f"script={name}", frozenset(ids)) for name, ids in sorted(members.items())]


def script_of(text: str) -> str:
    """The script of most letters, by the first word of their Unicode names (`latin`, `arabic`, `cjk`); else `none`."""
    letters = (unicodedata.name(letter, "unknown").split()[0].lower() for letter in normalise(text) if letter.isalpha())
    counts = Counter(letters)
    return min(counts, key=lambda name: (-counts[name], name)) if counts else "none"
