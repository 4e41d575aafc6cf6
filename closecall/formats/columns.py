"""What the columns of a table are: guessed from their names, or named by the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from closecall.errors import ConfigError

ROLES: dict[str, tuple[str, ...]] = {
    "query_id": ("query_id", "queryid", "query-id", "qid", "topic", "topic_id", "query number", "question_id"),
    "query": ("query", "question", "anchor", "query_text", "query text", "search_query", "title_query", "sentence1"),
    "doc_id": (
        "doc_id", "docid", "doc id", "corpus_id", "corpus-id", "document_id", "document id", "docno", "passage_id",
        "pid", "product_id", "chunk_id",
    ),
    "document": (
        "document", "passage", "doc_text", "document_text", "answer", "content", "body", "contents", "doc", "sentence2"
    ),
    "title": ("title", "headline", "doc_title"),
    "grade": ("grade", "score", "relevance", "rel", "label", "rating", "judgment", "judgement", "relevancy", "gain"),
    "positive": ("positive", "pos", "positive_passage"),
    "relevant_docs": ("relevant_docs", "relevant", "relevant_documents", "positives", "relevant_doc_ids"),
    "split": ("split", "subset", "fold"),
    "source_document": ("source_document", "parent_id", "source_doc", "source_id"),
    "id": ("_id", "id"),
    "text": ("text",),
}  # fmt: skip
"""Role -> names that a column of this role goes by, in any case."""
ALIASES = {alias: role for role, names in ROLES.items() for alias in names}
NEGATIVE = re.compile(r"(?:neg|negative|negative_passage)(?:[_-]?\d+)?|hard_negatives?|negatives", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Which column of a table has which role."""

    named: Mapping[str, str]
    """Role -> column."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that are negatives of the row's query."""
    others: tuple[str, ...] = ()
    """Columns without a role: metadata."""

    def __getitem__(self, role: str) -> str:
        return self.named[role]

    def __contains__(self, role: object) -> bool:
        return role in self.named

    @property
    def shown(self) -> str:
        """For people: "query_id <- qid, grade <- rating; 2 columns of metadata: lang, year"."""
        given = [f"{role} <- {name}" for role, name in self.named.items()]
        given += [f"negatives <- {', '.join(self.negatives)}"] if self.negatives else []
        rest = f"; metadata: {', '.join(self.others)}" if self.others else ""
        return f"{', '.join(given) or 'none is known'}{rest}"


def roles_of(names: Sequence[str], chosen: Mapping[str, str], path: Path | str) -> Columns:
    """The roles of these columns: as the user chose, the others by their names; the first name of a role wins.

    ConfigError when a chosen column is not there.
    """
    found = {role: name for role, name in chosen.items() if name in names}
    for name in names:
        role = ALIASES.get(name.strip().casefold())
        if role is not None and role not in found and name not in found.values():
            found[role] = name
    negatives = tuple(name for name in names if NEGATIVE.fullmatch(name.strip()) and name not in found.values())
    taken = {*found.values(), *negatives}
    return Columns(found, negatives, tuple(name for name in names if name not in taken))


def parse_choices(given: Sequence[str]) -> dict[str, str]:
    """`ROLE=COLUMN` options by role. ConfigError for another form, or a role that there is not."""
    found: dict[str, str] = {}
    for text in given:
        role, equals, name = text.partition("=")
        if not equals or role not in ROLES or not name:
            raise ConfigError(f"--column {text}: expected ROLE=COLUMN; roles: {', '.join(ROLES)}")
        found[role] = name
    return found


def check_chosen(chosen: Mapping[str, str], names: Sequence[str]) -> None:
    """ConfigError for a chosen column that no table has."""
    for role, name in chosen.items():
        if name not in names:
            raise ConfigError(f"--column {role}={name}: no such column; found {', '.join(names) or 'none'}")
