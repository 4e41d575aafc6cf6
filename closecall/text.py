"""What counts as the same text, what its words are, and the exact search for near-duplicates."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from scipy.cluster.hierarchy import DisjointSet

_ASCII_WORDS = re.compile(r"[a-z0-9_]+")
_SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996: the filters may let too much through, never too little


def normalise(text: str) -> str:
    """The one form in which texts are compared; "" when nothing visible is left.

    NFKC, casefolded, format characters (category Cf: zero-width space, byte-order mark, soft hyphen) removed,
    whitespace collapsed and stripped.
    """
    if not text.isascii():
        hidden = {ord(char): None for char in set(text) if unicodedata.category(char) == "Cf"}
        folded = unicodedata.normalize("NFKC", text.translate(hidden)).casefold()
        text = unicodedata.normalize("NFKC", folded)  # casefold undoes NFKC in places: U+0390
    return " ".join(text.casefold().split())


def words(text: str) -> list[str]:
    """The words of the normalised text: runs of letters, digits, marks and "_"; each Han character is a word."""
    if text.isascii():
        return _ASCII_WORDS.findall(text.lower())
    folded = normalise(text)
    return folded.translate({ord(char): _spaced(char) for char in set(folded)}).split()


@cache
def _spaced(char: str) -> str:
    """The character, with spaces where words end. Marks stay: a regex's word class cuts Hindi at its vowels."""
    if "\u3400" <= char <= "\u9fff" or "\U00020000" <= char <= "\U0003ffff":
        return f" {char} "  # Han text has no spaces: unsplit, a whole sentence would be one word
    return char if char.isalnum() or char == "_" or unicodedata.category(char).startswith("M") else " "


def near_duplicate_groups(texts: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    """Links (i, j) that connect just what `near_duplicate_links` of the texts with themselves would, but far fewer.

    Texts that are connected already are not compared: a thousand texts from one template take no million comparisons.
    """
    groups = list(_by_word_set(texts).items())
    rarity = _rarity([word_set for word_set, _ in groups])
    index: dict[str, list[int]] = defaultdict(list)
    connected = DisjointSet(range(len(groups)))
    links = [(indices[0], other) for _, indices in groups for other in indices[1:]]
    for number, (word_set, indices) in enumerate(groups):
        prefix = _prefix(word_set, rarity, threshold)
        for other in dict.fromkeys(other for word in prefix for other in index[word]):
            if not connected.connected(other, number) and _similar(word_set, groups[other][0], threshold):
                connected.merge(other, number)
                links.append((groups[other][1][0], indices[0]))
        for word in prefix:
            index[word].append(number)
    return links


def near_duplicate_links(left: Sequence[str], right: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    """All (index in left, index in right) whose word sets have a Jaccard similarity of `threshold` or more, sorted.

    Exact. Two sets can only be that similar if they share one of their few rarest words (prefix filter; Bayardo et al.,
    WWW 2007), so only sets that do are compared. A text without words matches nothing here.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; it must be above 0 and at most 1")
    left_groups, right_groups = _by_word_set(left), _by_word_set(right)
    rarity = _rarity([*left_groups, *right_groups])
    index: dict[str, list[frozenset[str]]] = defaultdict(list)
    for word_set in right_groups:
        for word in _prefix(word_set, rarity, threshold):
            index[word].append(word_set)
    links: list[tuple[int, int]] = []
    for word_set, left_indices in left_groups.items():
        candidates = {other for word in _prefix(word_set, rarity, threshold) for other in index.get(word, ())}
        for other in candidates:
            if _similar(word_set, other, threshold):
                links.extend((i, j) for i in left_indices for j in right_groups[other])
    return sorted(links)


def _by_word_set(texts: Sequence[str]) -> dict[frozenset[str], list[int]]:
    """The distinct word sets that are not empty, and the indices of the texts that have each."""
    groups: dict[frozenset[str], list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        if word_set := frozenset(words(text)):
            groups[word_set].append(i)
    return groups


def _rarity(word_sets: Iterable[frozenset[str]]) -> dict[str, int]:
    """A rank per word, rarest first: the order that makes prefixes selective."""
    counts = Counter(word for word_set in word_sets for word in word_set)
    return {word: rank for rank, word in enumerate(sorted(counts, key=lambda word: (counts[word], word)))}


def _prefix(word_set: frozenset[str], rarity: Mapping[str, int], threshold: float) -> list[str]:
    """The rarest n - ceil(threshold * n) + 1 words: a set that shares none of them shares too few in all."""
    kept = len(word_set) - max(1, math.ceil(threshold * len(word_set) - _SLACK)) + 1
    return sorted(word_set, key=rarity.__getitem__)[:kept]


def _similar(first: frozenset[str], second: frozenset[str], threshold: float) -> bool:
    small, large = sorted((len(first), len(second)))
    if small < threshold * large - _SLACK:
        return False
    shared = len(first & second)
    return shared / (small + large - shared) >= threshold
