import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mining.filters import (
    KEPT,
    OUTCOMES,
    judged_positive,
    not_finite,
    outcomes,
    over_quota,
    partly_relevant,
    within_margin,
)


def scores(*values):
    return np.asarray(values, dtype=np.float64)


def grades(*values):
    return np.asarray(values, dtype=np.int16)


def mask(*values):
    return np.asarray(values, dtype=np.bool_)


def words_of(marks, negatives):
    return [OUTCOMES[number] for number in outcomes(marks, negatives).tolist()]


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


def test_the_margin_is_a_fraction_of_the_positives_score():
    # 0.8 - 0.8 * 0.05 = 0.76: a candidate exactly there stays
    assert within_margin(scores(0.90, 0.77, 0.76, 0.10), 0.8, 0.05).tolist() == [True, True, False, False]


def test_below_zero_the_margin_still_lies_under_the_positive():
    # field notes row 2: the ceiling is -0.50 - 0.50 * 0.05 = -0.525, not -0.475
    assert within_margin(scores(-0.49, -0.80), -0.50, 0.05).tolist() == [True, False]
    assert within_margin(scores(-0.51, -0.53), -0.50, 0.05).tolist() == [True, False]


def test_margin_zero_drops_only_what_scores_above_the_positive():
    assert within_margin(scores(0.51, 0.50, 0.49), 0.50, 0.0).tolist() == [True, False, False]


def test_no_margin_drops_nothing():
    assert not within_margin(scores(0.99, -0.99), 0.5, None).any()


def test_quota_counts_only_what_passed():
    assert over_quota(mask(True, False, True, True, True), 2).tolist() == [False, False, False, True, True]


def test_each_row_has_a_quota_and_a_positive_of_its_own():
    found = np.asarray([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]])
    marks = [("within_margin", within_margin(found, np.asarray([[0.95], [0.8]]), 0.0))]
    assert outcomes(marks, 1).tolist() == [[0, 6, 6], [5, 0, 6]]


def test_the_nearest_candidates_are_kept_and_the_rest_is_over_quota():
    marks = [("within_margin", mask(True, False, False, False, True))]
    assert words_of(marks, 2) == ["within_margin", KEPT, KEPT, "over_quota", "within_margin"]


def test_a_candidate_gets_the_first_reason_of_those_that_mark_it():
    marks = [
        ("not_finite", mask(True, False, False, False)),
        ("judged_positive", mask(True, True, False, False)),
        ("same_text", mask(True, True, True, False)),
        ("within_margin", mask(True, True, True, True)),
    ]
    assert words_of(marks, 4) == ["not_finite", "judged_positive", "same_text", "within_margin"]


def test_the_reasons_stand_in_the_order_in_which_they_are_asked():
    assert OUTCOMES == (
        "kept",
        "not_finite",
        "judged_positive",
        "partly_relevant",
        "same_text",
        "within_margin",
        "over_quota",
    )


def test_a_score_that_is_no_number_says_so_even_for_a_judged_positive():
    found = scores(np.nan, 0.9)
    marks = [("not_finite", not_finite(found)), ("judged_positive", judged_positive(grades(1, 1), 1))]
    assert words_of(marks, 1) == ["not_finite", "judged_positive"]


def test_no_candidates_have_no_outcomes():
    assert words_of([("same_text", mask())], 3) == []


@given(
    st.lists(st.tuples(*[st.booleans()] * 3), max_size=30),
    st.integers(1, 8),
)
def test_every_candidate_has_exactly_one_outcome_and_it_is_the_right_one(rows, negatives):
    words = ("judged_positive", "same_text", "within_margin")
    marks = [(word, mask(*(row[column] for row in rows))) for column, word in enumerate(words)]
    expected, kept = [], 0
    for row in rows:
        reason = next((word for word, marked in zip(words, row, strict=True) if marked), None)
        if reason is None:
            reason = KEPT if kept < negatives else "over_quota"
            kept += 1
        expected.append(reason)
    assert words_of(marks, negatives) == expected
