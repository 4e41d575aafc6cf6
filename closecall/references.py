"""Do the judgments point to documents and queries that exist? If not, the likely reason is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from closecall.corpus_file import CorpusFile
from closecall.readers import Records, place, some
from closecall.records import Qrels, Query
from closecall.text import normalise
from closecall.trec import NumberedJudgment

_SAMPLE = 100


class JudgmentFile(NamedTuple):
    """The judgments of one file, and the split it stands for ("all" when it is the only one)."""

    split: str
    path: Path
    rows: Sequence[NumberedJudgment]


def reference_faults(
    file: JudgmentFile,
    corpus: CorpusFile | None,
    queries: Records[Query] | None,
) -> list[str]:
    """Faults of judgments on unknown ids. A file that could not be read is not asked."""
    doc_ids: Mapping[str, int] = corpus.lines if corpus else {}
    query_ids: Mapping[str, int] = queries.lines if queries else {}
    faults = []
    if corpus and doc_ids:
        named = [(row.judgment.doc_id, row.line) for row in file.rows]
        faults += _unknown(file.path, "doc_id", named, doc_ids, corpus.path, query_ids)
    if queries and query_ids:
        named = [(row.judgment.query_id, row.line) for row in file.rows]
        faults += _unknown(file.path, "query_id", named, query_ids, queries.path, doc_ids)
    return faults


def split_faults(files: Iterable[JudgmentFile]) -> list[str]:
    """A fault for each two splits that judge the same queries."""
    faults = []
    for first, second in combinations(files, 2):
        elsewhere = {row.judgment.query_id for row in first.rows}
        both = [row for row in second.rows if row.judgment.query_id in elsewhere]
        if both:
            ids = dict.fromkeys(row.judgment.query_id for row in both)
            where = place(second.path, [row.line for row in both])
            what = f"{len(ids):,} queries are judged in {first.path.name} too ({some(map(repr, ids))})"
            faults.append(f"{where}: {what}; a query belongs to one split, keep it in one file")
    return faults


def grade_faults(files: Sequence[JudgmentFile], positive_from: int) -> list[str]:
    """The fault of judgments among which no grade counts as positive."""
    grades = {row.judgment.relevance for file in files for row in file.rows}
    if not grades or max(grades) >= positive_from:
        return []
    found = f"no judgment has grade {positive_from} (data.positive_from) or more, the highest is {max(grades)}"
    return [f"{files[0].path}: {found}; lower data.positive_from or judge positives"]


def judgment_notes(queries: Iterable[Query], qrels: Qrels, dropped: int) -> list[str]:
    """Counts of queries that no measure can use, and of judgments dropped with their documents, for people."""
    ids = [query.query_id for query in queries]
    unjudged = sum(query_id not in qrels for query_id in ids)
    without = sum(query_id in qrels and not qrels.positives(query_id) for query_id in ids)
    counts = (
        (dropped, "judgments of documents without text were dropped with them"),
        (unjudged, f"of {len(ids):,} queries have no judgment; they are kept, and no measure can count them"),
        (without, f"of {len(ids):,} queries have judgments but no positive (grade {qrels.positive_from} or more)"),
    )
    return [f"{count:,} {what}" for count, what in counts if count]


def _unknown(
    path: Path,
    word: str,
    named: Sequence[tuple[str, int]],
    known: Mapping[str, int],
    source: Path,
    others: Collection[str],
) -> list[str]:
    bad = [(name, line) for name, line in named if name not in known]
    if not bad:
        return []
    ids = list(dict.fromkeys(name for name, _ in bad))
    none_known = len(bad) == len(named)
    where = place(path, [line for _, line in bad])
    what = f"{word} {ids[0]!r} is" if len(ids) == 1 else f"{len(ids):,} {word}s ({some(map(repr, ids))}) are"
    none = f" (no {word} of the file is)" if none_known and len(named) > 1 else ""
    reason = likely_reason(ids[:_SAMPLE], known, others, none_known)
    return [f"{where}: {what} not in {source}{none}; {reason or 'add it or drop the line'}"]


def _without_zeros(name: str) -> str:
    return re.sub(r"(?<!\d)0+(?=\d)", "", name)


def _without_decimals(name: str) -> str:
    return name.removesuffix(".0")


def _without_chunk(name: str) -> str:
    return re.sub(r"[-_#:@/.]+(chunk|part|p|c)?[-_]?\d+$", "", name)


_FORMS: tuple[tuple[Callable[[str], str], str], ...] = (
    (_without_zeros, "leading zeros differ; keep ids as text wherever they are written"),
    (_without_decimals, "ids became decimal numbers; keep ids as text wherever they are written"),
    (normalise, "upper and lower case or the form of characters differ; write ids alike"),
    (_without_chunk, "one side has ids of chunks; use corpus and qrels of the same chunking"),
)


def likely_reason(ids: Sequence[str], known: Collection[str], others: Collection[str], none_known: bool) -> str | None:
    """The likely reason that ids are unknown, if it holds for half of them."""
    if 2 * sum(name in others for name in ids) > len(ids):
        return "they are ids of the other file: are the columns swapped? the order is query-id, corpus-id, score"
    for form, words in _FORMS if none_known else _FORMS[:-1]:
        alike = {form(name): name for name in known}
        pairs = [(name, alike[form(name)]) for name in ids if form(name) in alike]
        if 2 * len(pairs) >= len(ids):
            return f"{pairs[0][0]!r} looks like {pairs[0][1]!r}: {words}"
    return None
