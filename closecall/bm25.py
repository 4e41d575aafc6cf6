"""BM25 over a corpus, as bm25s computes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from closecall.records import Document
from closecall.search import NOTHING, SCORE_DECIMALS, Hits
from closecall.text import words


class Bm25Index:
    """Documents that share words with a query, by BM25 (Lucene's form, k1 1.5, b 0.75).

    Words are those of `closecall.text.words`: no stemming and no stop words, so that every language is treated alike.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        import bm25s

        self.size = len(documents)
        self.vocabulary: dict[str, int] = {}
        ids = [
            [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words(document.full_text)]
            for document in documents
        ]
        self.retriever = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
        if self.vocabulary:
            self.retriever.index((ids, self.vocabulary), show_progress=False, leave_progress=False)
        order = np.argsort(np.asarray([document.doc_id for document in documents], dtype=object), kind="stable")
        self._id_order = order

    def known_words(self, text: str) -> npt.NDArray[np.int32]:
        """int32 (n,): the words of a text that some document has, each once."""
        found = {self.vocabulary[word] for word in words(text) if word in self.vocabulary}
        return np.asarray(sorted(found), dtype=np.int32)

    def search(self, queries: Sequence[npt.NDArray[np.int32]], depth: int) -> Hits:
        """The `depth` best that share a word, ties by document id; row -1 where there are no more."""
        depth = min(depth, self.size)
        rows = np.full((len(queries), depth), NOTHING, dtype=np.int64)
        scores = np.full((len(queries), depth), np.nan)
        for line, query in enumerate(queries):
            if query.size:
                found, values = self._best(query, depth)
                rows[line, : len(found)], scores[line, : len(found)] = found, values
        return Hits(rows, scores)

    def _best(self, query: npt.NDArray[np.int32], depth: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        raw = np.asarray(self.retriever.get_scores_from_ids(query), dtype=np.float64)
        scores = np.round(raw, SCORE_DECIMALS)[self._id_order]
        if depth < len(scores):  # everything that scores as much as the last one, so that ties are cut by id
            floor = np.partition(scores, len(scores) - depth)[len(scores) - depth]
            near = np.flatnonzero(scores >= max(floor, np.nextafter(0.0, 1.0)))
        else:
            near = np.flatnonzero(scores > 0)
        best = near[np.argsort(-scores[near], kind="stable")][:depth]
        return self._id_order[best].astype(np.int64), scores[best].astype(np.float64)
