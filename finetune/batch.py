"""Training batches in which every known answer is known: unique documents, and a label for each (query, document)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closecall.encoder import Role, prompt_of
from closecall.records import Document
from closecall.split import Part
from closecall.text import normalise
from mining.artifact import Triple

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

POSITIVE, NEGATIVE, MASKED = 1, 0, -1
"""Labels of a document for a query in a batch. Masked: known or partly known to be relevant, so not in the softmax."""

BLOCK_DOCUMENTS = 32
"""Documents that go through the model together in training."""


@dataclass(frozen=True)
class Batch:
    """Texts of one batch. `labels[i][j]` says what document j is for query i."""

    queries: list[str]
    documents: list[str]
    labels: list[list[int]]


class BatchBuilder:
    """Builds batches from row numbers of the triples, with conflicts looked up in the judgments."""

    def __init__(
        self, triples: Sequence[Triple], part: Part, documents: Mapping[str, Document], negatives: int | None
    ) -> None:
        self.triples, self.negatives = triples, negatives
        self._relevant = _relevant_texts(part, documents)
        used = {doc_id for triple in triples for doc_id in _doc_ids(triple, negatives)}
        titled = (documents[doc_id] for doc_id in used if doc_id in documents and documents[doc_id].title)
        self._bare = {normalise(document.full_text): normalise(document.text) for document in titled}
        self._key = {text: normalise(text) for triple in triples for text in _texts(triple, negatives)}

    def __len__(self) -> int:
        return len(self.triples)

    def build(self, rows: Sequence[int]) -> Batch:
        """The batch of these triples. A document that several rows hold, or hold under two ids, stands once.

        A document is masked for a query when the judgments give it any grade above 0 for that query or for another
        query of the same text, or when it has the text of such a document or of the query itself, title or no title.
        """
        triples = [self.triples[row] for row in rows]
        documents: dict[str, str] = {}
        for triple in triples:
            for text in _texts(triple, self.negatives):
                documents.setdefault(self._key[text], text)
        labels = [self._labels(triple, list(documents)) for triple in triples]
        return Batch([triple.query for triple in triples], list(documents.values()), labels)

    def _labels(self, triple: Triple, keys: Sequence[str]) -> list[int]:
        positive, query = self._key[triple.positive], normalise(triple.query)
        relevant = self._relevant[query]
        return [
            POSITIVE
            if key == positive
            else MASKED
            if key in relevant or query in (key, self._bare.get(key))
            else NEGATIVE
            for key in keys
        ]


@dataclass
class Collator:
    """Row numbers in, model inputs out: columns by role, each with the prompt of its role."""

    builder: BatchBuilder
    model: SentenceTransformer
    valid_label_columns: tuple[str, ...] = ("label",)

    def __call__(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """`query_*`, `document0_*`, `document1_*`, ... and `label`, int64 (n_queries, n_documents).

        Documents come longest first in blocks of 32, each padded to its own longest text: padding one batch to its
        longest document costs more than the documents do. The columns of `label` are in that order.
        """
        import torch

        batch = self.builder.build([row["row"] for row in rows])
        order = sorted(range(len(batch.documents)), key=lambda column: -len(batch.documents[column]))
        documents = [batch.documents[column] for column in order]
        inputs: dict[str, Any] = {"label": torch.tensor(batch.labels, dtype=torch.int64)[:, order]}
        inputs |= self._features("query", batch.queries, "query")
        for number, start in enumerate(range(0, len(documents), BLOCK_DOCUMENTS)):
            block = documents[start : start + BLOCK_DOCUMENTS]
            inputs |= self._features(f"document{number}", block, "document")
        return inputs

    def _features(self, prefix: str, texts: list[str], role: Role) -> dict[str, Any]:
        features = self.model.preprocess(texts, prompt=prompt_of(self.model, role) or None, task=role)
        return {f"{prefix}_{key}": value for key, value in features.items()}


def _texts(triple: Triple, negatives: int | None) -> list[str]:
    return [triple.positive, *(negative.text for negative in triple.negatives[:negatives])]


def _doc_ids(triple: Triple, negatives: int | None) -> list[str]:
    return [triple.positive_id, *(negative.doc_id for negative in triple.negatives[:negatives])]


def _relevant_texts(part: Part, documents: Mapping[str, Document]) -> dict[str, set[str]]:
    """Normalised texts of all documents of any grade above 0, by normalised query text."""
    relevant: dict[str, set[str]] = defaultdict(set)
    text_of = part.text_of()
    for query_id, doc_id, grade in part.qrels.judgments():
        if grade > 0 and doc_id in documents:
            relevant[normalise(text_of[query_id])].add(normalise(documents[doc_id].full_text))
    return relevant
