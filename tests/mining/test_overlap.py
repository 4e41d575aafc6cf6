import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from closecall.text import words
from mining.known import known_documents
from mining.overlap import WordOverlap


def overlap(texts, judged, positive_from=1):
    """`texts` of d0, d1, ...; `judged` is {query number: {document number: grade}}."""
    documents = [text if isinstance(text, Document) else Document(f"d{n}", text) for n, text in enumerate(texts)]
    rows = [(f"q{query}", f"d{row}", grade) for query, grades in judged.items() for row, grade in grades.items()]
    made = tuple(Query(f"q{query}", f"query number {query}") for query in judged)
    part = Part(made, Qrels((Judgment(*row) for row in rows), positive_from), "")
    return WordOverlap(documents, known_documents(part, documents))


def similarity(worker, pairs, at_least):
    queries, rows = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    return worker.similarity(queries, rows, at_least).tolist()


def test_the_similarity_is_shared_words_over_all_words():
    # 3 words shared, 5 in all; words count once, whatever their case
    worker = overlap(["Block the lost card", "block THE card, now now"], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 0.5) == [3 / 5]


def test_texts_of_the_same_words_are_wholly_alike():
    worker = overlap(["block the card", "The card? Block! Block!"], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 1.0) == [1.0]


def test_the_most_similar_of_the_relevant_documents_counts():
    # with d0 2 of 4, with d1 3 of 4
    worker = overlap(["a b x", "a b c d", "a b c"], {0: {0: 1, 1: 1}})
    assert similarity(worker, [(0, 2)], 0.1) == [3 / 4]


def test_partly_relevant_documents_count_and_judged_zero_ones_do_not():
    worker = overlap(["a b c", "x y z", "x y z", "a b c"], {0: {0: 2, 1: 1, 3: 0}}, positive_from=2)
    assert similarity(worker, [(0, 2), (0, 3)], 0.5) == [1.0, 1.0]
    worker = overlap(["a b c", "x y z", "x y z"], {0: {0: 1, 1: 0}})
    assert similarity(worker, [(0, 2)], 0.5) == [0.0]


def test_each_query_is_compared_with_what_is_relevant_to_it():
    worker = overlap(["a b", "c d", "a b", "c d"], {0: {0: 1}, 1: {1: 1}})
    assert similarity(worker, [(0, 2), (0, 3), (1, 2), (1, 3)], 0.5) == [1.0, 0.0, 0.0, 1.0]


def test_what_cannot_reach_the_threshold_is_0():
    # 2 of 3 words
    worker = overlap(["a b", "a b c"], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 0.7) == [0.0]
    assert similarity(worker, [(0, 1)], 2 / 3) == [2 / 3]


def test_a_similarity_of_exactly_the_threshold_is_reached():
    positive = " ".join(f"w{n}" for n in range(10))
    worker = overlap([positive, positive.removesuffix(" w9")], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 0.9) == [0.9]


def test_a_text_without_words_is_like_nothing():
    worker = overlap(["!?", "...", "a"], {0: {0: 1}})
    assert similarity(worker, [(0, 1), (0, 2)], 0.1) == [0.0, 0.0]


def test_the_title_counts():
    worker = overlap([Document("d0", "call us", "Lost card"), "lost card call us"], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 0.9) == [1.0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("ÜBER die Brücke", "über die brücke", 1.0),
        ("信用卡丢了", "信用卡", 3 / 5),
        ("कार्ड खो गया", "कार्ड मिल गया", 2 / 4),
    ],
)
def test_words_of_every_language_count(first, second, expected):
    assert similarity(overlap([first, second], {0: {0: 1}}), [(0, 1)], 0.5) == [expected]


def test_line_breaks_part_words_not_texts():
    worker = overlap(["a\nb\r\nc", "a b c", "d"], {0: {0: 1}})
    assert similarity(worker, [(0, 1), (0, 2)], 0.5) == [1.0, 0.0]


def test_words_that_differ_in_the_middle_alone_are_different_words():
    worker = overlap(["abcdefghiXXXyz", "abcdefghiYYYyz"], {0: {0: 1}})
    assert similarity(worker, [(0, 1)], 0.5) == [0.0]


def test_asking_for_nothing_gives_nothing():
    assert similarity(overlap(["a"], {0: {0: 1}}), [], 0.5) == []


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "é", "卡", "x_1"]), max_size=8).map(" ".join)


@given(st.lists(TEXTS, min_size=2, max_size=8), st.sampled_from([0.05, 0.3, 0.5, 2 / 3, 0.75, 0.9, 1.0]), st.data())
def test_wherever_the_threshold_is_reached_the_result_is_the_plain_similarity(texts, at_least, data):
    grades = st.dictionaries(st.integers(0, len(texts) - 1), st.integers(0, 2), max_size=4)
    judged = {0: data.draw(grades), 1: data.draw(grades)}
    worker = overlap(texts, judged)
    pairs = [(query, row) for query in judged for row in range(len(texts))]
    for _ in range(2):  # the second time, what is remembered of each text is used
        for (query, row), found in zip(pairs, similarity(worker, pairs, at_least), strict=True):
            expected = 0.0
            for other, grade in judged[query].items():
                first, second = set(words(texts[row])), set(words(texts[other]))
                if grade > 0 and first and second:
                    expected = max(expected, len(first & second) / len(first | second))
            assert found == (expected if expected >= at_least else 0.0)
