import pytest
from hypothesis import given
from hypothesis import strategies as st

from closecall.text import (
    near_duplicate_groups,
    near_duplicate_links,
    normalise,
    words,
)


def near_duplicate_pairs(texts, threshold):
    """The links of a list with itself, each once."""
    return [(i, j) for i, j in near_duplicate_links(texts, texts, threshold) if i < j]


LITTLE_TEXTS = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=8).map(" ".join), max_size=12)
THRESHOLDS = st.sampled_from([0.1, 0.29, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.9, 1.0])


def brute_force(left, right, threshold):
    sets = [[set(words(text)) for text in texts] for texts in (left, right)]
    return [
        (i, j)
        for i, a in enumerate(sets[0])
        for j, b in enumerate(sets[1])
        if a and b and len(a & b) / len(a | b) >= threshold
    ]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("  Reset\tmy\n password ", "reset my password"),
        ("STRASSE", "straße"),
        ("\ufb01le \uff12", "file 2"),  # ligature and full-width digit
        ("pass\u200bword\ufeff", "password"),
        ("Cafe\u0301", "café"),
        ("\u03aa\u0301", "\u0390"),  # Greek iota with two marks, upper and lower case: casefolding undoes NFKC
        ("\u200b \u00a0", ""),
    ],
)
def test_texts_that_look_the_same_are_the_same(text, same):
    assert normalise(text) == normalise(same)


def test_a_text_of_invisible_characters_is_empty():
    assert normalise("\ufeff \u200b\u00a0\n") == ""


@given(st.text())
def test_a_normalised_text_stays_as_it_is(text):
    assert normalise(normalise(text)) == normalise(text)


def test_words_are_split_at_punctuation_and_space():
    assert words("Where's my card? (The 2nd one.)") == ["where", "s", "my", "card", "the", "2nd", "one"]


def test_a_hindi_word_is_not_cut_at_its_vowel_signs():
    assert words("हिन्दी में") == ["हिन्दी", "में"]


def test_each_han_character_is_a_word():
    assert words("重置密码 now") == ["重", "置", "密", "码", "now"]


def test_word_sets_that_share_nine_of_ten_words_are_near_duplicates_at_0_9():
    ten, nine, eight = "a b c d e f g h i j", "j i h g f e d c b", "c d e f g h i j"
    assert near_duplicate_pairs([ten, nine, eight], 0.9) == [(0, 1)]  # 9/10; 8/10; 7/10 of b..j and c..j


def test_texts_without_words_match_nothing():
    assert near_duplicate_pairs(["?!", "?!", "", ""], 0.1) == []


def test_the_same_text_twice_in_one_list_is_a_pair_once():
    assert near_duplicate_pairs(["my card", "My card!", "card my"], 1.0) == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(threshold):
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        near_duplicate_pairs(["a"], threshold)


@given(LITTLE_TEXTS, THRESHOLDS)
def test_pairs_are_those_of_the_brute_force(texts, threshold):
    expected = [(i, j) for i, j in brute_force(texts, texts, threshold) if i < j]
    assert near_duplicate_pairs(texts, threshold) == expected


@given(LITTLE_TEXTS, THRESHOLDS)
def test_groups_connect_what_the_brute_force_connects(texts, threshold):
    def components(pairs):
        label = list(range(len(texts)))
        for i, j in pairs:
            label = [label[i] if found == label[j] else found for found in label]
        return [[label[j] == label[i] for j in range(len(texts))] for i in range(len(texts))]

    pairs = brute_force(texts, texts, threshold)
    assert components(near_duplicate_groups(texts, threshold)) == components(pairs)


@given(LITTLE_TEXTS, LITTLE_TEXTS, THRESHOLDS)
def test_links_between_two_lists_are_those_of_the_brute_force(left, right, threshold):
    assert near_duplicate_links(left, right, threshold) == brute_force(left, right, threshold)
