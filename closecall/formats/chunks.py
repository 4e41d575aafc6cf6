"""Judgments of documents for their chunks, and of chunks for their documents, by the column `source_document`.

A chunk is as good as the best that its document has to offer, and no other chunk of it is known to be: MaxP of Dai and
Callan (SIGIR 2019), which ranks a document by its best passage.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from closecall.bm25 import Bm25Index
from closecall.dataset import load_documents, load_queries
from closecall.errors import DataError, fault_list
from closecall.records import SPLITS, Document, Judgment
from closecall.trec import read_qrels, write_qrels

PARENT = "source_document"
RULES = {
    "to-chunks": "a document's grade goes to its chunk that BM25 ranks first for the query (its first chunk where none "
    "shares a word), its other chunks stay unjudged; grade 0 goes to all of its chunks",
    "to-documents": "a document has the highest grade of its judged chunks; its text is that of its chunks, in order",
}


def move_judgments(folder: Path, rule: str) -> str:
    """Rewrite the judgments of a folder in the native layout, and for `to-documents` its corpus; what was done.

    DataError when the corpus has no column `source_document`, or a judged document has no chunk.
    """
    documents = list(load_documents(folder / "corpus.jsonl"))
    lacking = next((document.doc_id for document in documents if not document.metadata.get(PARENT)), None)
    if lacking is not None:
        raise DataError(
            f"--chunks: document {lacking!r} has no {PARENT}; name the column of its document with "
            f"--column {PARENT}=COLUMN"
        )
    chunks: dict[str, list[int]] = defaultdict(list)
    for row, document in enumerate(documents):
        chunks[str(document.metadata[PARENT])].append(row)
    move = _for_chunks(folder, documents, chunks) if rule == "to-chunks" else _for_documents(documents)
    before = after = 0
    for path in _files(folder):
        counts = _moved(path, move)
        before, after = before + counts[0], after + counts[1]
    if rule == "to-documents":
        _write_documents(folder / "corpus.jsonl", documents, chunks)
    return f"{before:,} judgments became {after:,}: {RULES[rule]}"


def _moved(path: Path, move: Move) -> tuple[int, int]:
    """Rewrite a file of judgments; how many there were, and are."""
    rows, faults = read_qrels(path)
    grades: dict[tuple[str, str], int] = {}
    for row in rows:
        found = move(row.judgment)
        if isinstance(found, str):
            faults.append(f"{path} line {row.line}: {found}")
            continue
        for query_id, doc_id, grade in found:
            grades[query_id, doc_id] = max(grade, grades.get((query_id, doc_id), 0))
    if faults:
        raise DataError(fault_list(str(path), faults))
    write_qrels(path, [Judgment(*pair, grade) for pair, grade in grades.items()])
    return len(rows), len(grades)


def _files(folder: Path) -> Iterator[Path]:
    several = (folder / "qrels.tsv", *(folder / "qrels" / f"{split}.tsv" for split in SPLITS))
    return (path for path in several if path.exists())


Move = Callable[[Judgment], "list[Judgment] | str"]
"""One judgment as those it becomes, or what is wrong with it."""


def _for_chunks(folder: Path, documents: Sequence[Document], chunks: Mapping[str, list[int]]) -> Move:
    index = Bm25Index(documents)
    texts = {query.query_id: query.text for query in load_queries(folder / "queries.jsonl")}

    def best(query_id: str, rows: list[int]) -> int:
        words = index.known_words(texts.get(query_id, ""))
        if not words.size or len(rows) == 1:
            return rows[0]
        return rows[int(np.asarray(index.retriever.get_scores_from_ids(words))[rows].argmax())]

    def move(judgment: Judgment) -> list[Judgment] | str:
        query_id, doc_id, grade = judgment
        if not (rows := chunks.get(doc_id)):
            return f"document {doc_id!r} has no chunk in the corpus; add it or drop the line"
        chosen = rows if grade == 0 else [best(query_id, rows)]
        return [Judgment(query_id, documents[row].doc_id, grade) for row in chosen]

    return move


def _for_documents(documents: Sequence[Document]) -> Move:
    parent = {document.doc_id: str(document.metadata[PARENT]) for document in documents}

    def move(judgment: Judgment) -> list[Judgment] | str:
        query_id, doc_id, grade = judgment
        if doc_id not in parent:
            return f"chunk {doc_id!r} is not in the corpus; add it or drop the line"
        return [Judgment(query_id, parent[doc_id], grade)]

    return move


def _write_documents(path: Path, documents: list[Document], chunks: dict[str, list[int]]) -> None:
    """Each document with the text of its chunks; columns that all of its chunks agree on stay."""
    lines = []
    for doc_id, rows in chunks.items():
        own = [documents[row] for row in rows]
        shared = {
            key: value
            for key, value in own[0].metadata.items()
            if key != PARENT and all(one.metadata.get(key) == value for one in own)
        }
        title = {"title": own[0].title} if own[0].title else {}
        record = {"_id": doc_id} | title | {"text": "\n".join(one.text for one in own)} | shared
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
