"""Which of the candidates that passed become the negatives of a row: nearest, drawn, by quota, and not too often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mining.filters import Mask, Scores, first

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Lane = tuple[Mask, int]
"""The candidates of a source with a quota, and the quota."""


def pool(passed: Mask, lanes: Sequence[Lane], size: int) -> Mask:
    """The candidates among which is chosen: the nearest `size` that passed, and as many of each source with a quota."""
    marked = first(passed, size)
    for members, _ in lanes:
        marked |= first(passed & members, size)
    return marked


def choose(candidates: Mask, lanes: Sequence[Lane], negatives: int, keys: Scores | None = None) -> Mask:
    """At most `negatives` of each row: first those of the sources with a quota, then whatever comes next.

    A candidate comes before another by its place in the row, or where `keys` are given by the smaller key.
    """
    if keys is None:
        return _choose(candidates, lanes, negatives)
    order = np.argsort(np.where(candidates, keys, np.inf), axis=1, kind="stable")
    sorted_lanes = [(np.take_along_axis(members, order, 1), quota) for members, quota in lanes]
    chosen = np.zeros(candidates.shape, dtype=np.bool_)
    picked = _choose(np.take_along_axis(candidates, order, 1), sorted_lanes, negatives)
    np.put_along_axis(chosen, order, picked, 1)
    return chosen


def _choose(candidates: Mask, lanes: Sequence[Lane], negatives: int) -> Mask:
    chosen = np.zeros(candidates.shape, dtype=np.bool_)
    for members, quota in lanes:
        chosen |= first(candidates & members & ~chosen, quota)
    rest = negatives - chosen.sum(axis=1, keepdims=True)
    return chosen | first(candidates & ~chosen, rest)


def overused(chosen: Mask, rows: Integers, queries: Integers, uses: npt.NDArray[np.int32], max_uses: int) -> Mask:
    """Chosen candidates whose document is a negative of `max_uses` queries already: those of earlier queries stay.

    `uses` counts by document what was settled before; lines of the same query count once. Asked again after others
    were chosen instead, this ends where no document is over its limit (deferred acceptance, Gale and Shapley 1962).
    """
    line, column = np.nonzero(chosen)
    documents, askers = rows[line, column], queries[line]
    document, asker = _once(documents, askers)
    starts = np.searchsorted(document, document, "left")
    number = np.arange(len(starts)) - starts + uses[document]
    excess = number >= max_uses
    result = np.zeros(chosen.shape, dtype=np.bool_)
    result[line, column] = np.isin(_code(documents, askers), _code(document[excess], asker[excess]))
    return result


def count_uses(uses: npt.NDArray[np.int32], rows: Integers, queries: Integers) -> None:
    """Add to `uses`, by document row, the queries it became a negative of: once each, for however many positives."""
    np.add.at(uses, _once(rows, queries)[0], 1)


def _code(rows: Integers, queries: Integers) -> Integers:
    return (rows << 32) | queries


def _once(rows: Integers, queries: Integers) -> tuple[Integers, Integers]:
    """Each different (document, query), sorted by document and then by query."""
    codes = np.unique(_code(rows, queries))
    return codes >> 32, codes & 0xFFFFFFFF


def uniform(*hashes: Hashes | int) -> Scores:
    """Numbers in (0, 1) that depend on the hashes alone, whatever else is drawn: broadcast, then mixed (splitmix64).

    So a query draws the same however many queries there are beside it. Steele et al., OOPSLA 2014.
    """
    state = np.zeros(1, dtype=np.uint64)
    for value in hashes:
        state = _mixed(state + np.asarray(value, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return np.asarray((state >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52  # 53 bits and a half round to 1


def _mixed(state: Hashes) -> Hashes:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def draw_keys(drawn: Scores, scores: Scores, hardness: float) -> Scores:
    """Keys whose smallest k are a draw without replacement with weights exp(hardness * score); hardness 0: even.

    The Gumbel-top-k form of weighted sampling (Kool et al., ICML 2019), in logarithms, so no weight overflows.
    """
    gumbel = -np.log(-np.log(drawn))
    return -(hardness * np.where(np.isfinite(scores), scores, 0.0) + gumbel)
