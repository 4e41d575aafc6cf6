"""What holds of mining whatever the settings: nothing vanishes, no negative is relevant, blocks decide nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closecall.records import Run, ScoredDoc
from mining.mine import Outside

QUERIES = {"q1": "query q1", "q2": "b c"}


class Guide:
    """Scores by document row; some are no numbers."""

    def scores(self, queries, rows):
        return np.asarray([np.nan, 0.9, 0.2, 0.7, 0.5])[(rows * 3 + queries) % 5]


@st.composite
def corpora(draw):
    size = draw(st.integers(1, 12))
    texts = draw(st.lists(st.sampled_from(["a", "A ", "b", "c", "d", "e", "query q1"]), min_size=size, max_size=size))
    cosines = draw(st.lists(st.integers(-10, 10), min_size=size, max_size=size))
    corpus = {f"d{n}": (text, cosine / 10) for n, (text, cosine) in enumerate(zip(texts, cosines, strict=True))}
    grades = st.dictionaries(st.sampled_from(sorted(corpus)), st.integers(0, 2))
    judged = {f"q{n}": draw(grades) for n in (1, 2)}
    judged["q2"][draw(st.sampled_from(sorted(corpus)))] = 2
    return corpus, judged


@st.composite
def choices(draw):
    """Settings of a miner, and the outside that they need."""
    negatives = draw(st.integers(1, 4))
    kinds = draw(st.sets(st.sampled_from(["bm25", "run", "judged", "random"]), max_size=3))
    left, sources = negatives, [{"source": "dense"}]
    for kind in sorted(kinds):
        quota = draw(st.integers(0, left))
        left -= quota
        own = {"quota": quota} if quota else {}
        own |= {"depth": draw(st.integers(1, 3))} if draw(st.booleans()) else {}
        sources.append(own | {"source": {"run": "run"} if kind == "run" else kind})
    ranked = draw(st.permutations([f"d{n}" for n in range(13)]))
    listed = [
        doc_id for doc_id in ranked if doc_id in ("d0", *ranked[:6])
    ]  # a run must name one document of the corpus
    runs = {"run": Run({"q2": [ScoredDoc(doc_id, float(-n)) for n, doc_id in enumerate(listed)]})}
    guided = draw(st.booleans())
    some = {
        "negatives": negatives,
        "depth": negatives + draw(st.integers(0, 6)),
        "sources": sources,
        "margin_fraction": draw(st.sampled_from([None, 0.0, 0.05, 0.5])),
        "margin": draw(st.sampled_from([None, 0.1])),
        "near_copy": draw(st.sampled_from([None, 0.5])),
        "min_rank": draw(st.sampled_from([1, 1, 2])),
        "max_score": draw(st.sampled_from([None, 0.8])),
        "guide": {"cross_encoder": "x"} if guided else None,
        "per": draw(st.sampled_from(["positive", "query"])),
        "select": draw(st.sampled_from(["top", "random", "weighted"])),
        "sample_from": negatives + draw(st.integers(0, 3)),
        "max_uses": draw(st.sampled_from([None, 1, 2])),
    }
    return some, Outside(runs=runs, guide=Guide() if guided else None)


def of_pair(mined, triple):
    pair = (triple.query_id, triple.positive_id)
    return [row for row in mined.dropped if (row.query_id, row.positive_id) == pair]


@given(corpora(), choices())
@settings(max_examples=70)
def test_every_retrieved_candidate_is_kept_or_dropped_once_and_no_negative_is_relevant(mine, data, chosen):
    (corpus, judged), (some, outside) = data, chosen
    mined = mine(corpus, judged, queries=QUERIES, outside=outside, **some)
    for triple in mined.triples:
        dropped = of_pair(mined, triple)
        both = sorted((row.rank, row.doc_id) for row in (*dropped, *triple.negatives))
        assert [rank for rank, _ in both] == list(range(1, len(both) + 1))
        assert len({doc_id for _, doc_id in both}) == len(both) >= min(some["depth"], len(corpus))
        assert all(row.found_by for row in (*dropped, *triple.negatives))
        if len(triple.negatives) < some["negatives"]:
            assert len(both) == len(corpus)
            assert not [row for row in dropped if row.reason == "over_quota"]
        relevant = {corpus[doc_id][0].strip().lower() for doc_id, grade in judged[triple.query_id].items() if grade > 0}
        found = {negative.text.strip().lower() for negative in triple.negatives}
        assert not found & (relevant | {triple.query})
    stats = mined.stats
    assert stats["retrieved"] == stats["kept"] + sum(stats["dropped"].values())
    assert stats["retrieved"] == len(mined.dropped) + sum(map(len, mined.kept))
    assert stats["asked"] == stats["kept"] + stats["short"] == len(mined.triples) * some["negatives"]
    assert stats["survival"]["pairs"] == stats["pairs"] == len(mined.triples)


@given(corpora(), choices())
@settings(max_examples=70)
def test_quotas_are_filled_uses_are_limited_and_shared_negatives_are_shared(mine, data, chosen):
    (corpus, judged), (some, outside) = data, chosen
    mined = mine(corpus, judged, queries=QUERIES, outside=outside, **some)
    for source in some["sources"]:
        name = source["source"] if isinstance(source["source"], str) else "run"
        for triple in mined.triples:
            kept = [row for row in triple.negatives if name in {said.source for said in row.found_by}]
            left = [row for row in of_pair(mined, triple) if name in {said.source for said in row.found_by}]
            assert len(kept) >= source.get("quota", 0) or "over_quota" not in {row.reason for row in left}
    users = {}
    for triple in mined.triples:
        for negative in triple.negatives:
            users.setdefault(negative.doc_id, set()).add(triple.query_id)
    assert max(map(len, users.values()), default=0) <= (some["max_uses"] or len(QUERIES))
    if some["per"] == "query":
        kept = {}
        for triple in mined.triples:
            kept.setdefault(triple.query_id, set()).add(tuple(n.doc_id for n in triple.negatives))
        assert all(len(different) == 1 for different in kept.values())


@given(corpora(), choices(), st.lists(st.sampled_from(sorted(QUERIES)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_the_size_of_a_block_decides_nothing(mine, data, chosen, more):
    (corpus, judged), (some, outside) = data, chosen
    copies = {f"{query}-{number}": (query, QUERIES[query]) for number, query in enumerate(more)}
    judged = judged | {copy: judged[query] for copy, (query, _) in copies.items()}
    queries = QUERIES | {copy: f"{text} {copy}" for copy, (_, text) in copies.items()}
    results = []
    for size in (1, 2, 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mining.mine.BLOCK_QUERIES", size)
            made = mine(corpus, judged, queries=queries, outside=outside, **(some | {"max_uses": None}))
        results.append([table.to_pylist() for table in made.tables] + [made.stats])
    assert results[0] == results[1] == results[2]
