"""Judged queries and their vectors in, candidates with their outcome out: all arrays, in blocks of queries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closecall.approximate import open_index
from closecall.corpus import ids_of
from closecall.encoding import Vectors
from closecall.errors import DataError
from closecall.records import Document, Run
from closecall.search import NOTHING, ExactIndex
from closecall.split import Part
from mining.artifact import Found, Pairs, SourceColumns
from mining.candidates import Candidates, Integers, merge, of_one
from mining.config import MiningConfig, SourceConfig
from mining.filters import (
    CODE,
    Mask,
    Outcomes,
    Scores,
    certified,
    judged_positive,
    near_copy,
    not_finite,
    outcomes,
    outside_ranks,
    outside_scores,
    partly_relevant,
    within_margin,
)
from mining.guide import Guide
from mining.known import judged_rows, known_documents
from mining.overlap import WordOverlap
from mining.select import Lane, choose, count_uses, draw_keys, overused, pool, uniform
from mining.sources import Bm25Source, DenseSource, JudgedSource, RandomSource, RunSource, Source

ABSENT = 255
"""The outcome of what only fills a line up."""

BLOCK_QUERIES = 1024
"""Queries searched and filtered at once: memory grows with the block, not with the number of queries."""


@dataclass(frozen=True)
class Outside:
    """What sources and guide need beside the base model: vectors of other encoders and runs by source name."""

    dense: Mapping[str, tuple[Vectors, Vectors]] = field(default_factory=dict)
    """Document and query vectors, unit rows."""
    runs: Mapping[str, Run] = field(default_factory=dict)
    guide: Guide | None = None
    indexes: Path | None = None
    """Where approximate indexes are kept."""


class Miner:
    """Mines one set of judged queries against one corpus. Vectors are unit rows in the order of the texts."""

    def __init__(
        self,
        documents: Sequence[Document],
        document_vectors: Vectors,
        part: Part,
        query_vectors: Vectors,
        config: MiningConfig,
        outside: Outside | None = None,
    ) -> None:
        _check_dimensions(query_vectors, document_vectors)
        self.part, self.config, self.query_vectors = part, config, query_vectors
        self.outside = outside or Outside()
        self.index = self._index(documents, document_vectors, query_vectors)
        self.known = known_documents(part, documents)
        self.overlap = WordOverlap(documents, self.known)
        self.hashes = _hashes([query.query_id for query in part.queries])
        self.base = next((s.label for s in config.sources if s.source == "dense" and s.model is None), None)
        self.sources = {source.label: self._source(source, documents) for source in config.sources}
        scored = {name: source.scored and name != self.base for name, source in self.sources.items()}
        self.columns = SourceColumns(scored, self.base)
        self.pairs = self._pairs(documents)
        self.ceilings = self._of_query(self.pairs.score)
        guide_score = self.pairs.guide_score
        self.guide_ceilings = None if guide_score is None else self._of_query(guide_score)
        self.uses = np.zeros(len(documents), dtype=np.int32)

    def blocks(self) -> Iterator[tuple[Found, int]]:
        """The candidates of all pairs with their outcome, block by block, and the number of pairs done by then.

        A query that is short of negatives is searched four times deeper, that one alone, until it has enough or the
        limit is reached; what it was given before is then judged again in the longer list.
        """
        starts = range(0, len(self.part.queries), BLOCK_QUERIES)
        edges = np.searchsorted(self.pairs.query, [*starts, len(self.part.queries)]).tolist()
        blocks = [np.arange(begin, end) for begin, end in pairwise(edges) if begin < end]
        # While a block is filtered and written on one core, the next one is searched on the others.
        with ThreadPoolExecutor(1) as ahead:
            searches = [ahead.submit(self.candidates, self.pairs.query[blocks[0]], self.config.depth)]
            for number, pairs in enumerate(blocks):
                candidates = searches.pop().result()
                if number + 1 < len(blocks):
                    queries = self.pairs.query[blocks[number + 1]]
                    searches.append(ahead.submit(self.candidates, queries, self.config.depth))
                yield Found.joined(list(self._rounds(pairs, candidates))), int(pairs[-1]) + 1

    def _rounds(self, pairs: Integers, candidates: Candidates) -> Iterator[Found]:
        depth, limit = self.config.depth, min(self.config.max_depth, len(self.index))
        while True:
            outcome, guide_score = self._judge(pairs, candidates)
            short = (outcome == CODE["kept"]).sum(axis=1) < self.config.negatives
            short = np.isin(self.pairs.query[pairs], self.pairs.query[pairs][short])
            done = ~short if depth < limit and self._deepens else np.ones(len(pairs), dtype=np.bool_)
            if self.config.max_uses is not None:
                self._settle(self.pairs.query[pairs[done]], candidates.rows[done], outcome[done])
            yield _found(pairs, candidates, outcome, guide_score, np.flatnonzero(done))
            pairs, depth = pairs[~done], min(depth * 4, limit)
            if not pairs.size:
                return
            candidates = self.candidates(self.pairs.query[pairs], depth)

    @property
    def _deepens(self) -> bool:
        return any(source.deepens for source in self.sources.values())

    def candidates(self, queries: Integers, depth: int) -> Candidates:
        """What the sources find for the query of each line, `depth` or the source's own number of documents each."""
        searched, line = np.unique(queries, return_inverse=True)
        found = {}
        for config in self.config.sources:
            found[config.label] = self.sources[config.label].find(searched, self._wanted(config, depth))
        others = [name for name, hits in found.items() if name != self.base and (hits.rows != NOTHING).any()]
        if self.base is not None and not others:
            candidates = of_one(self.base, found[self.base], self.columns.scored)
        else:
            candidates = merge(found, self.columns.scored, self.base, self.index, self.query_vectors[searched])
        return candidates if len(searched) == len(queries) else candidates.lines(line)

    def _wanted(self, config: SourceConfig, depth: int) -> int:
        """How many a source is asked for at this depth of the search: its own number grows in proportion."""
        own = config.depth or self.config.depth
        if not self.sources[config.label].deepens:
            return own
        return min(own * depth // self.config.depth, max(own, self.config.max_depth))

    def marks(self, pairs: Integers, candidates: Candidates) -> list[tuple[str, Mask]]:
        """What the judgments and texts say of every candidate, as (reason, mask): no score is asked but for NaN."""
        queries, positive_from = self.pairs.query[pairs], self.part.qrels.positive_from
        grades = self.known.grades(queries, candidates.rows)
        return [
            ("not_finite", not_finite(candidates.scores)),
            ("judged_positive", judged_positive(grades, positive_from)),
            ("partly_relevant", partly_relevant(grades, positive_from)),
            ("same_text", self.known.same_text(queries, candidates.rows)),
            ("certified", certified(grades)),
        ]

    def _judge(self, pairs: Integers, candidates: Candidates) -> tuple[Outcomes, Scores | None]:
        """The outcome of every candidate, uint8 (n_pairs, width), and the guide's scores where it was asked."""
        *marks, (_, exempt) = self.marks(pairs, candidates)
        outcome = outcomes([*marks, *((reason, mask & ~exempt) for reason, mask in self._windows(pairs, candidates))])
        outcome[candidates.rows == NOTHING] = ABSENT
        guide_score = None if self.outside.guide is None else np.full(outcome.shape, np.nan)
        self._choose(pairs, candidates, outcome, exempt, guide_score)
        return outcome, guide_score

    def _windows(self, pairs: Integers, candidates: Candidates) -> Iterator[tuple[str, Mask]]:
        """The filters on ranks and scores, those that are in use."""
        config, scores = self.config, candidates.scores
        if config.min_rank > 1 or config.max_rank is not None:
            ranks = candidates.best_ranks([name for name, source in self.sources.items() if source.ranked])
            yield "outside_ranks", outside_ranks(ranks, config.min_rank, config.max_rank)
        if config.min_score is not None or config.max_score is not None:
            yield "outside_scores", outside_scores(scores, config.min_score, config.max_score)
        ceilings = self.ceilings[pairs, None]
        yield "within_margin", within_margin(scores, ceilings, config.margin_fraction, config.margin)

    def _choose(
        self, pairs: Integers, candidates: Candidates, outcome: Outcomes, exempt: Mask, guide_score: Scores | None
    ) -> None:
        """Screen the nearest that passed until enough of them pass, choose among these, and write the outcomes."""
        config = self.config
        lanes = [(candidates.ranks[s.label] > 0, s.quota) for s in config.sources if s.quota is not None]
        size = config.negatives if config.select == "top" else config.sample_from
        keys = None if config.select == "top" else self._keys(pairs, candidates)
        screened = exempt.copy()
        while True:
            eligible = self._screen(pairs, candidates, outcome, screened, lanes, size, guide_score)
            chosen = choose(eligible, lanes, config.negatives, keys)
            if config.max_uses is None:
                break
            queries = self.pairs.query[pairs]
            over = overused(chosen, candidates.rows, queries, self.uses, config.max_uses)
            if not over.any():
                break
            outcome[over] = CODE["overused"]
        outcome[(outcome == CODE["kept"]) & ~chosen] = CODE["over_quota"]

    def _screen(
        self,
        pairs: Integers,
        candidates: Candidates,
        outcome: Outcomes,
        screened: Mask,
        lanes: Sequence[Lane],
        size: int,
        guide_score: Scores | None,
    ) -> Mask:
        """The candidates to choose from, after `near_copy` and the guide; who fails makes room for the next."""
        while True:
            eligible = pool(outcome == CODE["kept"], lanes, size)
            line, column = np.nonzero(eligible & ~screened)
            if not line.size:
                return eligible
            screened[line, column] = True
            rows, queries = candidates.rows[line, column], self.pairs.query[pairs[line]]
            if (threshold := self.config.near_copy) is not None:
                copies = near_copy(self.overlap.similarity(queries, rows, threshold), threshold)
                outcome[line[copies], column[copies]] = CODE["near_copy"]
                line, column, rows, queries = line[~copies], column[~copies], rows[~copies], queries[~copies]
            if guide_score is not None:
                guide_score[line, column] = self._ask_guide(queries, rows)
                outcome[line, column] = self._guided(pairs[line], guide_score[line, column])

    def _ask_guide(self, queries: Integers, rows: Integers) -> Scores:
        assert self.outside.guide is not None
        return self.outside.guide.scores(queries, rows)

    def _guided(self, pairs: Integers, scores: Scores) -> Outcomes:
        """What the guide's scores make of candidates, each of a pair: kept or dropped."""
        guide = self.config.guide
        assert guide is not None
        assert self.guide_ceilings is not None
        ceilings = self.guide_ceilings[pairs]
        return outcomes(
            [
                ("guide_not_finite", not_finite(scores) | not_finite(ceilings)),
                ("within_guide_margin", within_margin(scores, ceilings, guide.margin_fraction, guide.margin)),
            ]
        )

    def _keys(self, pairs: Integers, candidates: Candidates) -> Scores:
        """What decides the draw: the same for a (query, positive, document) whatever else is mined."""
        shared = self.config.per == "query"
        positives = np.zeros(len(pairs), np.uint64) if shared else self.document_hashes[self.pairs.positive[pairs]]
        drawn = uniform(
            self.config.seed,
            self.hashes[self.pairs.query[pairs]][:, None],
            positives[:, None],
            self.document_hashes[candidates.rows],
        )
        return draw_keys(drawn, candidates.scores, 0.0 if self.config.select == "random" else self.config.hardness)

    @cached_property
    def document_hashes(self) -> npt.NDArray[np.uint64]:
        """uint64 (n_documents,): a hash of each id."""
        return _hashes(ids_of(self.pairs.documents))

    def _settle(self, queries: Integers, rows: Integers, outcome: Outcomes) -> None:
        """Count what was kept for good: once per query, however many positives it is kept for."""
        line, column = np.nonzero(outcome == CODE["kept"])
        count_uses(self.uses, rows[line, column], queries[line])

    def _of_query(self, scores: Scores) -> Scores:
        """The score each pair's margins count from: its positive's, or the lowest of the query's positives."""
        if self.config.per == "positive":
            return scores
        lowest = np.full(len(self.part.queries), np.inf)
        with np.errstate(invalid="ignore"):  # NaN when one of them is: then nothing passes
            np.minimum.at(lowest, self.pairs.query, scores)
        return lowest[self.pairs.query]

    def _source(self, config: SourceConfig, documents: Sequence[Document]) -> Source:
        queries, label = self.part.queries, config.label
        if config.source == "bm25":
            return Bm25Source(documents, queries)
        if config.source == "run":
            return RunSource(label, self.outside.runs[label], documents, queries)
        if config.source == "judged":
            return JudgedSource(self.known)
        if config.source == "random":
            return RandomSource(self.hashes, len(documents), self.config.seed)
        if config.model is None:
            return DenseSource(self.index, self.query_vectors)
        document_vectors, query_vectors = self.outside.dense[label]
        return DenseSource(self._index(documents, document_vectors, query_vectors), query_vectors)

    def _index(self, documents: Sequence[Document], vectors: Vectors, queries: Vectors) -> ExactIndex:
        return open_index(
            vectors, ids_of(documents), self.config.search, self.outside.indexes, queries, self.config.depth
        )

    def _pairs(self, documents: Sequence[Document]) -> Pairs:
        """Every (query, positive), in the order of the file, with the scores of base model and guide."""
        query, positive = _positives(self.part, documents)
        score = self.index.score(self.query_vectors, positive, query)
        guide = self.outside.guide
        guided = None if guide is None else guide.scores(query, positive)
        return Pairs(self.part.queries, documents, query, positive, score, guided)


def _check_dimensions(query_vectors: Vectors, document_vectors: Vectors) -> None:
    if query_vectors.shape[1] != document_vectors.shape[1]:
        raise DataError(
            f"mining: query vectors have {query_vectors.shape[1]} dimensions, the documents' "
            f"{document_vectors.shape[1]}: they come from two models; encode both with one"
        )


def _positives(part: Part, documents: Sequence[Document]) -> tuple[Integers, Integers]:
    """Position of the query and row of the positive of every pair."""
    row_of = judged_rows(part, documents)
    pairs = [
        (position, row_of[doc_id])
        for position, query in enumerate(part.queries)
        for doc_id in part.qrels.positives(query.query_id)
    ]
    if not pairs:
        raise DataError("mining: no training query has a positive; judge some documents as relevant first")
    array = np.asarray(pairs, dtype=np.int64)
    return array[:, 0], array[:, 1]


def _found(
    pairs: Integers, candidates: Candidates, outcome: Outcomes, guide_score: Scores | None, lines: Integers
) -> Found:
    """Some lines of a round as flat arrays, without what only fills lines up."""
    there = outcome[lines] != ABSENT
    numbers = np.broadcast_to(np.arange(1, there.shape[1] + 1, dtype=np.int32), there.shape)

    def flat(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(values[lines][there])

    return Found(
        np.repeat(pairs[lines], there.sum(axis=1)),
        numbers[there],
        flat(candidates.rows),
        flat(candidates.scores),
        flat(outcome),
        None if guide_score is None else flat(guide_score),
        {name: flat(ranks) for name, ranks in candidates.ranks.items()},
        {name: flat(scores) for name, scores in candidates.source_scores.items()},
    )


def _hashes(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """uint64 (n,): a hash of each id that is the same everywhere."""
    joined = b"".join(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest() for text in ids)
    return np.frombuffer(joined, dtype="<u8")
