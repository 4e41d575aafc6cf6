"""Training batches in which every known answer is known: unique documents, and what each query may not compete with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closecall.encoding import Role, Vectors, prompt_of
from closecall.records import Document
from closecall.split import Part
from closecall.text import normalise
from mining.artifact import Triple

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.int64]

BLOCK_DOCUMENTS = 16
"""Documents that go through the model together in training."""


@dataclass(frozen=True)
class Masks:
    """What the softmax of each row holds. Every mask is True for what is left out."""

    positive: Keys
    """int64 (n_rows,): column of the row's positive among the documents."""
    documents: Mask
    """bool (n_rows, n_documents): for the query, documents known or guessed to be relevant, and second copies."""
    own: Mask
    """bool (n_rows, n_documents): the row's own positive and hard negatives."""
    positive_documents: Mask
    """bool (n_rows, n_documents): for the row's positive as a query of its own (doc_to_doc)."""
    queries: Mask
    """bool (n_rows, n_queries): for the query, itself, its copies and queries that share an answer."""
    positive_queries: Mask
    """bool (n_rows, n_queries): for the row's positive, other queries that it may answer (doc_to_query)."""


@dataclass(frozen=True)
class GuideMask:
    """Vectors of a frozen model, by key: what it finds nearly as relevant as the positive is left out."""

    queries: Vectors
    """float32 (n_query_keys, dimension)."""
    documents: Vectors
    """float32 (n_document_keys, dimension)."""
    margin: float
    """A fraction of the positive's score: above `score - |score| * margin` is left out."""


class BatchBuilder:
    """Builds batches from row numbers of the triples, with conflicts looked up in the judgments.

    A *key* stands for one normalised text: documents, and queries, that differ in Unicode form, case or spaces alone
    have one key and are encoded once.
    """

    def __init__(
        self, triples: Sequence[Triple], part: Part, documents: Mapping[str, Document], negatives: int | None
    ) -> None:
        self.triples = triples
        self.document_texts: list[str] = []
        """By document key: the first spelling of the text."""
        self.query_texts: list[str] = []
        """By query key: the first spelling of the text."""
        self.guide: GuideMask | None = None
        numbers: dict[str, int] = {}
        query_numbers: dict[str, int] = {}
        self._docs: list[list[int]] = []
        """By row: the key of the positive, then those of its hard negatives."""
        row_query = []
        for triple in triples:
            texts = [triple.positive, *(negative.text for negative in triple.negatives[:negatives])]
            self._docs.append(list(dict.fromkeys(_key(text, numbers, self.document_texts) for text in texts)))
            row_query.append(_key(triple.query, query_numbers, self.query_texts))
        self.row_query: Keys = np.asarray(row_query, dtype=np.int64)
        """int64 (n_rows,): the key of each row's query."""
        self._row_positive: Keys = np.asarray([keys[0] for keys in self._docs], dtype=np.int64)
        self._relevant: dict[int, set[int]] = defaultdict(set)
        """By query key: documents of any grade above 0, and those that are the query's own text."""
        self._certified: dict[int, set[int]] = defaultdict(set)
        """By query key: documents judged 0, which no guide may leave out."""
        self._look_up(part, documents, numbers, query_numbers, negatives)

    def _look_up(
        self,
        part: Part,
        documents: Mapping[str, Document],
        numbers: Mapping[str, int],
        query_numbers: Mapping[str, int],
        negatives: int | None,
    ) -> None:
        text_of, full = part.text_of(), {}
        for query_id, doc_id, grade in part.qrels.judgments():
            query = query_numbers.get(normalise(text_of[query_id]))
            if query is None or doc_id not in documents:
                continue
            if doc_id not in full:
                full[doc_id] = numbers.get(normalise(documents[doc_id].full_text))
            key = full[doc_id]
            if key is not None:
                (self._relevant if grade > 0 else self._certified)[query].add(key)
        used = {doc_id for triple in self.triples for doc_id in _doc_ids(triple, negatives)}
        bare: dict[str, set[int]] = defaultdict(set)
        for doc_id in used & documents.keys():
            if documents[doc_id].title:
                bare[normalise(documents[doc_id].text)].add(numbers[normalise(documents[doc_id].full_text)])
        for text, query in query_numbers.items():
            self._relevant[query] |= bare.get(text, set()) | ({numbers[text]} if text in numbers else set())

    def __len__(self) -> int:
        return len(self.triples)

    def keys(self, rows: Sequence[int]) -> Keys:
        """int64 (n_documents,): the documents of these rows, each once, in the order in which they first occur."""
        return np.asarray(list(dict.fromkeys(key for row in rows for key in self._docs[row])), dtype=np.int64)

    def masks(self, rows: Sequence[int], batch: Sequence[int], keys: Keys) -> Masks:
        """The masks of `rows` in a batch that holds the rows `batch` and the documents `keys`.

        A document is left out of a query's softmax when the judgments give it any grade above 0 for that query or for
        another query of the same text, when it has the text of such a document or of the query itself, title or no
        title, when it stands in the batch a second time, or when the guide finds it as near as the positive.
        """
        first: dict[int, int] = {}
        for column, key in enumerate(keys.tolist()):
            first.setdefault(key, column)
        positive = np.asarray([first[self._docs[row][0]] for row in rows], dtype=np.int64)
        again = np.asarray([first[key] != column for column, key in enumerate(keys.tolist())], dtype=bool)
        relevant = _known(self._relevant, self.row_query[list(rows)], keys) | again
        own = np.zeros((len(rows), len(keys)), dtype=bool)
        for number, row in enumerate(rows):
            own[number, [first[key] for key in self._docs[row]]] = True
        queries = positive_queries = self._answers(rows, batch)
        left_out, positive_documents = relevant, relevant | own
        if self.guide is not None:
            close = self._guided(rows, batch, keys, positive)
            left_out, positive_documents = left_out | close[0], positive_documents | close[1]
            queries, positive_queries = queries | close[2], positive_queries | close[3]
        line = np.arange(len(rows))
        left_out[line, positive] = False
        positive_documents[line, positive] = True
        return Masks(positive, left_out, own, positive_documents, queries, positive_queries)

    def _answers(self, rows: Sequence[int], batch: Sequence[int]) -> Mask:
        """Bool (n_rows, n_batch): queries of the same text, and those of which one has a positive of the other."""
        own, others = self.row_query[list(rows)], self.row_query[list(batch)]
        positives, theirs = self._row_positive[list(rows)], self._row_positive[list(batch)]
        same = (own[:, None] == others) | (positives[:, None] == theirs)
        shared: Mask = same | _known(self._relevant, own, theirs) | _known(self._relevant, others, positives).T
        return shared

    def _guided(self, rows: Sequence[int], batch: Sequence[int], keys: Keys, positive: Keys) -> tuple[Mask, ...]:
        """Where the guide scores above the pair: query-document, positive-document, query-query, positive-query."""
        assert self.guide is not None
        own, others = self.guide.queries[self.row_query[list(rows)]], self.guide.queries[self.row_query[list(batch)]]
        documents = self.guide.documents[keys]
        positives = documents[positive]
        scores = own @ documents.T
        pair = np.take_along_axis(scores, positive[:, None], axis=1)
        ceiling = pair - np.abs(pair) * self.guide.margin
        close = scores > ceiling
        close &= ~_known(self._certified, self.row_query[list(rows)], keys)
        pairs = ((positives, documents), (own, others), (positives, others))
        return close, *(left @ right.T > ceiling for left, right in pairs)


@dataclass
class Collator:
    """Row numbers in, model inputs out: columns by role, each with the prompt of its role."""

    builder: BatchBuilder
    model: SentenceTransformer
    valid_label_columns: tuple[str, ...] = ("label",)

    def __call__(self, rows: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """`query0_*`, ..., `document0_*`, ... and `label`: `rows` and `keys`, which say whose texts they are.

        Texts come longest first in blocks of 16, each padded to its own longest text: padding one batch to its longest
        text costs more than the texts do. `rows` and `keys` are in that order.
        """
        import torch

        numbers = [row["row"] for row in rows]
        keys = self.builder.keys(numbers)
        documents = [self.builder.document_texts[key] for key in keys]
        queries = [self.builder.query_texts[self.builder.row_query[number]] for number in numbers]
        by_length = _longest_first(queries), _longest_first(documents)
        inputs: dict[str, Any] = {
            "label": {
                "rows": torch.tensor([numbers[n] for n in by_length[0]], dtype=torch.int64),
                "keys": torch.from_numpy(keys[by_length[1]]),
            }
        }
        inputs |= self._features("query", [queries[n] for n in by_length[0]])
        return inputs | self._features("document", [documents[n] for n in by_length[1]])

    def _features(self, role: Role, texts: list[str]) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        prompt = prompt_of(self.model, role) or None
        for number, start in enumerate(range(0, len(texts), BLOCK_DOCUMENTS)):
            features = self.model.preprocess(texts[start : start + BLOCK_DOCUMENTS], prompt=prompt, task=role)
            inputs |= {f"{role}{number}_{key}": value for key, value in features.items()}
        return inputs


def _longest_first(texts: Sequence[str]) -> list[int]:
    return sorted(range(len(texts)), key=lambda number: -len(texts[number]))


def _key(text: str, numbers: dict[str, int], texts: list[str]) -> int:
    """The number of a normalised text; a new one is added to `numbers`, its spelling to `texts`."""
    normal = normalise(text)
    if normal not in numbers:
        numbers[normal] = len(texts)
        texts.append(text)
    return numbers[normal]


def _known(of: Mapping[int, set[int]], queries: Keys, documents: Keys) -> Mask:
    """Bool (n_queries, n_documents): whether the document's key is among those `of` the query's."""
    columns: dict[int, list[int]] = defaultdict(list)
    for column, key in enumerate(documents.tolist()):
        columns[key].append(column)
    found = np.zeros((len(queries), len(documents)), dtype=bool)
    for number, query in enumerate(queries.tolist()):
        for key in columns.keys() & of.get(query, frozenset()):
            found[number, columns[key]] = True
    return found


def _doc_ids(triple: Triple, negatives: int | None) -> list[str]:
    return [triple.positive_id, *(negative.doc_id for negative in triple.negatives[:negatives])]
