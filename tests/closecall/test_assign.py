"""Which query goes to which part: groups stay whole, strata keep their shares, old queries stay where they were."""

import random
from collections import Counter

import pytest

from closecall.assign import SplitConfig, assign, assign_own
from closecall.errors import ConfigError


def texts(count, start=0):
    """Queries that have no word in common."""
    return {f"q{number}": f"alpha{number} beta{number}" for number in range(start, start + count)}


def shares(part, of=None):
    sizes = Counter(name for query_id, name in part.items() if of is None or query_id in of)
    return [round(sizes[name] / sizes.total(), 2) for name in ("train", "dev", "test")]


def test_every_query_with_a_positive_gets_one_part_of_the_asked_size(dataset):
    found = assign(dataset(texts(200)), SplitConfig(held_out=0.3, dev=0.15), {})
    assert found.part.keys() == texts(200).keys()
    assert shares(found.part) == [0.55, 0.15, 0.30]


def test_queries_without_a_positive_are_set_aside(dataset):
    found = assign(dataset(texts(20), without=("q3", "q7")), SplitConfig(), {})
    assert found.set_aside == {"no_positives": ["q3", "q7"]}
    assert found.part.keys() == texts(20).keys() - {"q3", "q7"}


def test_a_value_of_the_group_column_never_straddles(dataset):
    thread = {f"q{number}": number % 40 for number in range(200)}
    found = assign(dataset(texts(200), thread=thread), SplitConfig(group_by="thread"), {})
    parts = {value: {found.part[q] for q in thread if thread[q] == value} for value in range(40)}
    assert all(len(names) == 1 for names in parts.values())
    assert shares(found.part) == [0.70, 0.10, 0.20]


@pytest.mark.parametrize(
    "variant", ["Alpha{0}  BETA{0}", "alpha{0}\u00a0beta{0}", "\uff41lpha{0} beta{0}", "beta{0}, alpha{0}!"]
)
def test_the_same_text_in_another_spelling_never_straddles(dataset, variant):
    twins = {f"twin{number}": variant.format(number) for number in range(100)}
    found = assign(dataset(texts(100) | twins), SplitConfig(held_out=0.4), {})
    assert all(found.part[f"q{number}"] == found.part[f"twin{number}"] for number in range(100))


def test_near_duplicates_never_straddle(dataset):
    """Ten words, and nine of them with another tenth: Jaccard 9 / 11 = 0.82."""
    first = {f"a{n}": " ".join(f"w{n}x{k}" for k in range(10)) for n in range(60)}
    second = {f"b{n}": " ".join(f"w{n}x{k}" for k in range(1, 11)) for n in range(60)}
    together = assign(dataset(first | second), SplitConfig(held_out=0.4, near_duplicate=0.81), {})
    apart = assign(dataset(first | second), SplitConfig(held_out=0.4, near_duplicate=0.83), {})
    assert all(together.part[f"a{n}"] == together.part[f"b{n}"] for n in range(60))
    assert any(apart.part[f"a{n}"] != apart.part[f"b{n}"] for n in range(60))


def test_links_chain_into_one_group(dataset):
    """q0 and q1 share a thread, q1 and twin a text: all three stay together."""
    data = dataset(texts(30) | {"twin": "alpha1 beta1"}, thread={"q0": "t", "q1": "t"})
    for seed in range(10):
        found = assign(data, SplitConfig(group_by="thread", seed=seed), {})
        assert found.group["q0"] == found.group["q1"] == found.group["twin"] == "text:alpha1 beta1"
        assert len({found.part[query_id] for query_id in ("q0", "q1", "twin")}) == 1


def test_strata_keep_their_shares(dataset):
    language = {f"q{number}": "en" if number < 160 else "fi" for number in range(200)}
    found = assign(dataset(texts(200), language=language), SplitConfig(stratify_by="language"), {})
    for value in ("en", "fi"):
        assert shares(found.part, {q for q in language if language[q] == value}) == [0.70, 0.10, 0.20]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 10])
def test_many_small_strata_add_up_to_the_asked_shares(dataset, size):
    """60 strata of one group each: none alone is large enough to give a fifth of itself away."""
    topic = {f"q{number}": f"t{number // size}" for number in range(60 * size)}
    config = SplitConfig(stratify_by="topic", group_by="topic")
    found = assign(dataset(texts(60 * size), topic=topic), config, {})
    assert shares(found.part) == pytest.approx([0.70, 0.10, 0.20], abs=0.021)


def test_one_huge_group_leaves_the_other_strata_their_shares(dataset):
    """A thread of 100 in a stratum of its own goes to train; the 100 others are divided as if it were not there."""
    topic = {f"q{number}": "huge" if number < 100 else "rest" for number in range(200)}
    thread = {f"q{number}": "t" for number in range(100)}
    config = SplitConfig(stratify_by="topic", group_by="thread")
    found = assign(dataset(texts(200), topic=topic, thread=thread), config, {})
    assert {found.part[q] for q in thread} == {"train"}
    assert shares(found.part, topic.keys() - thread.keys()) == pytest.approx([0.70, 0.10, 0.20], abs=0.021)


def test_parts_do_not_depend_on_the_order_of_the_file(dataset):
    queries = list(texts(120).items())
    before = assign(dataset(dict(queries)), SplitConfig(), {})
    random.Random(0).shuffle(queries)
    after = assign(dataset(dict(queries)), SplitConfig(), {})
    assert after.part == before.part
    assert after.group == before.group


def test_another_seed_is_another_split(dataset):
    data = dataset(texts(100))
    assert assign(data, SplitConfig(seed=1), {}).part != assign(data, SplitConfig(seed=0), {}).part


def test_adding_queries_leaves_the_others_where_they_were(dataset):
    before = assign(dataset(texts(100)), SplitConfig(), {}).part
    after = assign(dataset(texts(150)), SplitConfig(), before).part
    assert {query_id: after[query_id] for query_id in before} == before
    assert shares(after) == [0.70, 0.10, 0.20]


def test_a_new_query_joins_the_part_of_the_old_one_it_is_linked_to(dataset):
    before = assign(dataset(texts(40)), SplitConfig(held_out=0.4), {}).part
    twins = {f"twin{number}": f"Alpha{number} beta{number}" for number in range(40)}
    after = assign(dataset(texts(40) | twins), SplitConfig(held_out=0.4), before).part
    assert all(after[f"twin{number}"] == before[f"q{number}"] for number in range(40))


def test_a_new_query_that_links_two_parts_is_set_aside(dataset):
    before = {"q0": "train", "q1": "test", "q2": "dev"}
    data = dataset(texts(3) | {"bridge": "alpha0 beta0"}, thread={"q1": "t", "bridge": "t"})
    found = assign(data, SplitConfig(group_by="thread"), before)
    assert found.part == before
    assert found.set_aside["bridges_two_parts"] == ["bridge"]


def test_a_removed_query_moves_no_other(dataset):
    before = assign(dataset(texts(100)), SplitConfig(), {}).part
    fewer = {query_id: text for query_id, text in texts(100).items() if query_id != "q50"}
    after = assign(dataset(fewer), SplitConfig(), before).part
    assert after == {query_id: name for query_id, name in before.items() if query_id != "q50"}


def test_own_splits_are_kept(dataset):
    own = {"train": ("q0", "q1"), "dev": ("q2",), "test": ("q3", "q4")}
    found = assign_own(dataset(texts(5), own=own, without=("q4",)), SplitConfig(), {})
    assert found.part == {"q0": "train", "q1": "train", "q2": "dev", "q3": "test"}
    assert found.set_aside == {"no_positives": ["q4"]}


def test_a_missing_dev_is_taken_from_train_alone_and_in_groups(dataset):
    """0.1 of all, where test has 0.2 of all: 0.1 / 0.8 of the 80 queries of train are 10."""
    names = list(texts(100))
    thread = {query_id: int(query_id[1:]) // 2 for query_id in names}
    data = dataset(texts(100), own={"train": tuple(names[:80]), "test": tuple(names[80:])}, thread=thread)
    found = assign_own(data, SplitConfig(group_by="thread"), {})
    assert {q for q, name in found.part.items() if name == "test"} == set(names[80:])
    assert Counter(found.part.values()) == {"train": 70, "dev": 10, "test": 20}
    assert all(found.part[f"q{2 * n}"] == found.part[f"q{2 * n + 1}"] for n in range(50))


@pytest.mark.parametrize("key", ["group_by", "stratify_by"])
def test_a_column_that_no_query_has_is_an_error_that_names_the_columns(dataset, key):
    data = dataset(texts(20), thread={"q0": 1}, language={"q0": "en"})
    message = f"split.{key}: no query has a column 'thraed'; the columns are language, thread"
    with pytest.raises(ConfigError, match=message):
        assign(data, SplitConfig(**{key: "thraed"}), {})
    with pytest.raises(ConfigError, match=message):
        assign_own(data, SplitConfig(**{key: "thraed"}), {})
