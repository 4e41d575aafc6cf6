import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mining.filters import (
    KEPT,
    OUTCOMES,
    SUSPECTED,
    certified,
    first,
    judged_positive,
    near_copy,
    not_finite,
    outcomes,
    outside_ranks,
    outside_scores,
    partly_relevant,
    within_margin,
)


def scores(*values):
    return np.asarray(values, dtype=np.float64)


def grades(*values):
    return np.asarray(values, dtype=np.int16)


def ranks(*values):
    return np.asarray(values, dtype=np.int32)


def mask(*values):
    return np.asarray(values, dtype=np.bool_)


def words_of(marks):
    return [OUTCOMES[number] for number in outcomes(marks).tolist()]


def test_a_score_that_is_no_number_is_dropped():
    assert not_finite(scores(0.5, np.nan, np.inf, -np.inf, -1.0)).tolist() == [False, True, True, True, False]


def test_every_grade_from_positive_from_on_is_a_positive():
    assert judged_positive(grades(-1, 0, 1, 2, 3), 2).tolist() == [False, False, False, True, True]


def test_a_grade_between_zero_and_positive_from_is_partly_relevant():
    assert partly_relevant(grades(-1, 0, 1, 2, 3), 3).tolist() == [False, False, True, True, False]
    assert not partly_relevant(grades(-1, 0, 1, 2, 3), 1).any()


def test_judged_zero_and_unjudged_documents_pass_both_judgment_filters():
    given_grades = grades(0, -1)
    assert not (judged_positive(given_grades, 1) | partly_relevant(given_grades, 1)).any()


def test_only_judged_zero_is_certified():
    assert certified(grades(-1, 0, 1, 2)).tolist() == [False, True, False, False]


def test_the_rank_window_keeps_both_its_ends():
    assert outside_ranks(ranks(1, 2, 3, 4, 5), 2, 4).tolist() == [True, False, False, False, True]
    assert outside_ranks(ranks(1, 2, 1000), 2, None).tolist() == [True, False, False]


def test_what_no_source_ranks_is_in_every_rank_window():
    assert outside_ranks(ranks(0, 0, 9), 5, 8).tolist() == [False, False, True]


def test_the_score_window_keeps_both_its_ends():
    found = scores(0.9, 0.8, 0.5, 0.2, 0.1)
    assert outside_scores(found, 0.2, 0.8).tolist() == [True, False, False, False, True]
    assert outside_scores(found, None, 0.5).tolist() == [True, True, False, False, False]
    assert outside_scores(found, 0.2, None).tolist() == [False, False, False, False, True]
    assert not outside_scores(found, None, None).any()


def test_the_score_window_may_end_at_zero():
    assert outside_scores(scores(0.1, -0.1), 0.0, None).tolist() == [False, True]
    assert outside_scores(scores(0.1, -0.1), None, 0.0).tolist() == [True, False]


def test_the_margin_is_a_fraction_of_the_positives_score():
    # 0.8 - 0.8 * 0.05 = 0.76: a candidate exactly there stays
    assert within_margin(scores(0.90, 0.77, 0.76, 0.10), 0.8, 0.05).tolist() == [True, True, False, False]


def test_below_zero_the_margin_still_lies_under_the_positive():
    # field notes row 2: the ceiling is -0.50 - 0.50 * 0.05 = -0.525, not -0.475
    assert within_margin(scores(-0.49, -0.80), -0.50, 0.05).tolist() == [True, False]
    assert within_margin(scores(-0.51, -0.53), -0.50, 0.05).tolist() == [True, False]


def test_margin_zero_drops_only_what_scores_above_the_positive():
    assert within_margin(scores(0.51, 0.50, 0.49), 0.50, 0.0).tolist() == [True, False, False]
    assert within_margin(scores(0.51, 0.50, 0.49), 0.50, None, 0.0).tolist() == [True, False, False]


def test_no_margin_drops_nothing():
    assert not within_margin(scores(0.99, -0.99), 0.5, None).any()


def test_an_absolute_margin_is_a_difference_of_scores():
    assert within_margin(scores(0.75, 0.71, 0.70, 0.10), 0.8, None, 0.1).tolist() == [True, True, False, False]
    assert within_margin(scores(-0.55, -0.60), -0.5, None, 0.1).tolist() == [True, False]


def test_of_two_margins_the_lower_ceiling_counts():
    # 0.8 - 0.8 * 0.05 = 0.76 and 0.8 - 0.1 = 0.70; 0.8 - 0.8 * 0.25 = 0.60 and 0.70
    assert within_margin(scores(0.75, 0.70), 0.8, 0.05, 0.1).tolist() == [True, False]
    assert within_margin(scores(0.70, 0.60), 0.8, 0.25, 0.1).tolist() == [True, False]


def test_a_candidate_exactly_at_the_ceiling_stays_whatever_binary_fractions_make_of_it():
    # 0.3 - 0.1 is 0.19999999999999998 in floating point, and 0.35 - 0.35 * 0.05 is 0.33249999999999996
    assert within_margin(scores(0.2, 0.200001), 0.3, None, 0.1).tolist() == [False, True]
    assert within_margin(scores(0.3325, 0.332501), 0.35, 0.05).tolist() == [False, True]


def test_each_row_has_a_positive_of_its_own():
    found = np.asarray([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]])
    marks = [("within_margin", within_margin(found, np.asarray([[0.95], [0.75]]), 0.0))]
    assert outcomes(marks).tolist() == [[0, 0, 0], [OUTCOMES.index("within_margin")] * 2 + [0]]


def test_a_near_copy_is_at_the_threshold_or_above():
    assert near_copy(scores(0.89, 0.9, 1.0), 0.9).tolist() == [False, True, True]
    assert not near_copy(scores(1.0), None).any()


def test_the_first_count_only_what_is_marked():
    assert first(mask(True, False, True, True, True), 2).tolist() == [True, False, True, False, False]
    assert not first(mask(True, True), 0).any()


def test_each_row_has_its_own_number_of_firsts():
    found = first(np.ones((3, 3), dtype=np.bool_), np.asarray([[0], [2], [9]]))
    assert found.sum(axis=1).tolist() == [0, 2, 3]


def test_a_candidate_that_nothing_marks_is_kept():
    assert words_of([("within_margin", mask(True, False)), ("same_text", mask(False, False))]) == [
        "within_margin",
        KEPT,
    ]


def test_a_candidate_gets_the_first_reason_of_those_that_mark_it():
    marks = [
        ("not_finite", mask(True, False, False, False)),
        ("judged_positive", mask(True, True, False, False)),
        ("same_text", mask(True, True, True, False)),
        ("within_margin", mask(True, True, True, True)),
    ]
    assert words_of(marks) == ["not_finite", "judged_positive", "same_text", "within_margin"]


def test_the_reasons_stand_in_the_order_in_which_they_are_asked():
    assert OUTCOMES == (
        "kept",
        "not_finite",
        "judged_positive",
        "partly_relevant",
        "same_text",
        "outside_ranks",
        "outside_scores",
        "within_margin",
        "near_copy",
        "guide_not_finite",
        "within_guide_margin",
        "overused",
        "over_quota",
    )


def test_what_was_judged_or_is_a_copy_or_one_too_many_is_no_suspected_false_negative():
    settled = {"kept", "not_finite", "judged_positive", "partly_relevant", "same_text", "guide_not_finite"}
    assert set(OUTCOMES) - set(SUSPECTED) == settled | {"overused", "over_quota"}


def test_a_score_that_is_no_number_says_so_even_for_a_judged_positive():
    found = scores(np.nan, 0.9)
    marks = [("not_finite", not_finite(found)), ("judged_positive", judged_positive(grades(1, 1), 1))]
    assert words_of(marks) == ["not_finite", "judged_positive"]


def test_no_candidates_have_no_outcomes():
    assert words_of([("same_text", mask())]) == []


@given(st.lists(st.tuples(*[st.booleans()] * 3), max_size=30))
def test_every_candidate_has_exactly_one_outcome_and_it_is_the_right_one(rows):
    words = ("judged_positive", "same_text", "within_margin")
    marks = [(word, mask(*(row[column] for row in rows))) for column, word in enumerate(words)]
    expected = [next((word for word, marked in zip(words, row, strict=True) if marked), KEPT) for row in rows]
    assert words_of(marks) == expected


@pytest.mark.parametrize("margin_fraction", [None, 0.0, 0.05, 1.5])
@pytest.mark.parametrize("margin", [None, 0.0, 0.1, 1.9])
def test_no_margin_lets_anything_above_the_positive_pass(margin_fraction, margin):
    positives = np.linspace(-1, 1, 21)[:, None]
    dropped = within_margin(positives + 0.001, positives, margin_fraction, margin)
    assert dropped.all() == dropped.any() == ((margin_fraction, margin) != (None, None))


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 5))
def test_the_firsts_are_those_of_a_list(marked, limit):
    places = [place for place, is_marked in enumerate(marked) if is_marked][:limit]
    assert np.flatnonzero(first(mask(*marked), limit)).tolist() == places
