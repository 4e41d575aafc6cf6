"""How alike two texts are in their words: what tells a near-copy without the encoder that is being fooled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from closecall.records import Document
from closecall.text import words
from mining.filters import Scores
from mining.known import Integers, Known

WORDS_OF_BITS = 4
"""A signature has 256 bits: texts of some hundred words still differ in many of them."""

Signatures = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


class WordOverlap:
    """Jaccard similarity of word sets between candidates and what is relevant to a query, of any grade above 0."""

    def __init__(self, documents: Sequence[Document], known: Known) -> None:
        self.documents = documents
        self._bits = np.zeros((len(documents), WORDS_OF_BITS), dtype=np.uint64)
        self._length = np.full(len(documents), -1, dtype=np.int32)
        relevant = known.grade > 0
        self._query, self._row = known.grade_query[relevant], known.grade_row[relevant]

    def similarity(self, queries: Integers, rows: Integers, at_least: float) -> Scores:
        """float64 (n,): the highest Jaccard similarity of candidate i to a document relevant to query i.

        0 where it cannot reach `at_least`, which the signatures tell for nearly all without looking at a word. A text
        without words is like nothing.
        """
        self._sign(np.unique(np.concatenate([rows, self._row[np.isin(self._query, queries)]])))
        first, last = (np.searchsorted(self._query, queries, side) for side in ("left", "right"))
        number = np.repeat(np.arange(len(rows)), last - first)
        starts = np.repeat(first - np.concatenate(([0], np.cumsum(last - first)[:-1])), last - first)
        other = self._row[np.arange(len(number)) + starts]
        result = np.zeros(len(rows))
        for place in np.flatnonzero(self._may_reach(rows[number], other, at_least)).tolist():
            found = jaccard(self._words(rows[number[place]]), self._words(other[place]))
            result[number[place]] = max(result[number[place]], found if found >= at_least else 0.0)
        return result

    def _may_reach(self, rows: Integers, others: Integers, at_least: float) -> npt.NDArray[np.bool_]:
        """Whether two texts can be so alike: each bit in which they differ is a word that one of them lacks.

        Of sets with a and b members that are t alike, at most (a + b) (1 - t) / (1 + t) members are in one alone.
        """
        differ = np.bitwise_count(self._bits[rows] ^ self._bits[others]).sum(axis=1)
        total = self._length[rows] + self._length[others]
        return np.asarray(differ <= total * (1 - at_least) / (1 + at_least) + 1e-9)

    def _sign(self, rows: Integers) -> None:
        """Make the signatures of documents that have none yet."""
        new = rows[self._length[rows] < 0]
        for start in range(0, len(new), SIGNED_AT_ONCE):
            part = new[start : start + SIGNED_AT_ONCE]
            self._bits[part], self._length[part] = signatures([self.documents[row].full_text for row in part.tolist()])

    def _words(self, row: int) -> frozenset[str]:
        return frozenset(words(self.documents[row].full_text))


SIGNED_AT_ONCE = 4096


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared words over all words of two texts, in [0, 1]; 0 when one has none."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared) if shared else 0.0


_SPACE, _END = 0x20, 0x0A
_IS_WORD = np.zeros(256, dtype=np.bool_)
_IS_WORD[[ord(char) for char in "abcdefghijklmnopqrstuvwxyz0123456789_"]] = True
_IS_WORD[128:] = True
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def signatures(texts: Sequence[str]) -> tuple[Signatures, npt.NDArray[np.int32]]:
    """uint64 (n, 4), int32 (n,): the bits that the words of each text set, and its number of words with repeats.

    Words are those of `closecall.text.words`. Equal words set the same bit; which one is a hash of their bytes.
    """
    plain = (text.lower().replace("\n", " ") if text.isascii() else " ".join(words(text)) for text in texts)
    data = np.frombuffer(("\n".join(plain) + "\n").encode("utf-8"), dtype=np.uint8)
    inside = _IS_WORD[data]
    starts = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
    ends = np.flatnonzero(inside & ~np.concatenate((inside[1:], [False]))) + 1
    text_of = np.searchsorted(np.flatnonzero(data == _END), starts)
    length = np.bincount(text_of, minlength=len(texts)).astype(np.int32)
    bits = np.zeros(len(texts) * WORDS_OF_BITS, dtype=np.uint64)
    if len(starts):
        bit = (_hashes(data, starts, ends) >> np.uint64(56)).astype(np.int64)
        np.bitwise_or.at(bits, text_of * WORDS_OF_BITS + bit // 64, np.uint64(1) << (bit % 64).astype(np.uint64))
    return bits.reshape(-1, WORDS_OF_BITS), length


def _hashes(data: Bytes, starts: Integers, ends: Integers) -> Signatures:
    """uint64 (n_words,): a hash of the length of each word, its first eight bytes and its last two.

    Words that differ in the middle alone get the same: that costs a comparison now and then, never a near-copy.
    """
    state = (ends - starts).astype(np.uint64)
    for offset in range(8):
        state = state * _FACTOR + data[np.minimum(starts + offset, ends - 1)]
    for offset in range(2):
        state = state * _FACTOR + data[np.maximum(ends - 1 - offset, starts)]
    return np.asarray((state ^ (state >> np.uint64(31))) * _FACTOR)
