"""Vectors in fewer bits, as FAISS holds them, with the best scored again in float32."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from closecall.encoding import Vectors
from closecall.search import ExactIndex, Hits

Quantise = Literal["int8", "binary"]


class QuantisedIndex:
    """Search over 8-bit or 1-bit vectors; what it finds is scored again with the float32 vectors.

    int8 is FAISS's uniform scalar quantiser per dimension, binary the signs, by Hamming distance (Yamada et al. 2021,
    whose BPR rescores too).
    """

    def __init__(self, exact: ExactIndex, vectors: Vectors, quantise: Quantise, rescore: int) -> None:
        self.exact, self.quantise, self.rescore = exact, quantise, rescore
        self._index = _binary(vectors) if quantise == "binary" else _int8(vectors)

    def search(self, queries: Vectors, depth: int) -> Hits:
        """The best `depth` by float32 cosine among `depth * rescore` by quantised vectors, ties by document id."""
        fetch = min(depth * self.rescore, len(self.exact))
        asked = np.packbits(queries > 0, axis=1) if self.quantise == "binary" else np.ascontiguousarray(queries)
        rows: npt.NDArray[np.int64] = self._index.search(asked, fetch)[1]
        lines = np.repeat(np.arange(len(queries), dtype=np.int64), fetch)
        scores = self.exact.score(queries, rows.ravel(), lines).reshape(rows.shape)
        order = np.lexsort((self.exact.id_rank[rows], -scores), axis=1)[:, :depth]
        return Hits(np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1))


def bytes_per_vector(width: int, quantise: Quantise | None) -> int:
    """What an index holds of a vector of so many dimensions."""
    return {None: 4 * width, "int8": width, "binary": -(-width // 8)}[quantise]


def _binary(vectors: Vectors) -> Any:
    import faiss

    codes = np.packbits(vectors > 0, axis=1)
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    return index


def _int8(vectors: Vectors) -> Any:
    import faiss

    index = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(np.ascontiguousarray(vectors))
    index.add(np.ascontiguousarray(vectors))
    return index
