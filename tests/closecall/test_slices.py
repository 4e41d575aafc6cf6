import time

import pytest

from closecall.errors import ConfigError
from closecall.records import Document, Judgment, Qrels, Query
from closecall.slices import SliceSource, find_slices, has_identifier, script_of


def source(queries, judgments=(), documents=(), truncated=()):
    """A SliceSource of plain values: {id: text} or {id: (text, metadata)}, {id: text}, {query: [positives]}."""
    made = [Query(name, *([value] if isinstance(value, str) else value)) for name, value in dict(queries).items()]
    qrels = Qrels(Judgment(query_id, doc_id, 1) for query_id, ids in dict(judgments).items() for doc_id in ids)
    docs = [
        Document(doc_id, *([value] if isinstance(value, str) else value)) for doc_id, value in dict(documents).items()
    ]
    return SliceSource(made, qrels, {doc.doc_id: doc for doc in docs}, frozenset(truncated))


def members(found):
    return {item.name: sorted(item.query_ids) for item in found}


LONG = "one two three four five"  # not short


def with_column(values, name="topic"):
    return source({f"q{number}": (LONG, {name: value}) for number, value in enumerate(values)})


def test_each_value_of_a_column_is_a_slice():
    found = members(find_slices(with_column(["mail", "web", "mail"]), None))
    assert found == {"topic=mail": ["q0", "q2"], "topic=web": ["q1"]}


@pytest.mark.parametrize(("size", "slices"), [(1, 0), (2, 2), (50, 50), (51, 0)])
def test_without_slice_by_every_column_with_2_to_50_values_is_used(size, slices):
    values = [f"v{number % size}" for number in range(102)]
    assert len(find_slices(with_column(values), None)) == slices


def test_a_column_with_one_value_that_only_some_queries_have_is_not_used_unless_asked_for():
    queries = source({"q1": (LONG, {"tag": "new"}), "q2": LONG})
    assert find_slices(queries, None) == []
    assert members(find_slices(queries, ["tag"])) == {"tag=new": ["q1"]}


def test_a_column_that_is_asked_for_may_have_any_number_of_values():
    assert len(find_slices(with_column([f"v{number}" for number in range(60)]), ["topic"])) == 60


def test_only_the_columns_asked_for_are_used():
    columns = source({"q1": (LONG, {"a": 1, "b": 1}), "q2": (LONG, {"a": 2, "b": 2})})
    assert list(members(find_slices(columns, ["b"]))) == ["b=1", "b=2"]
    assert find_slices(columns, []) == []


def test_the_columns_of_the_split_itself_are_no_slices():
    assert find_slices(with_column(["g1", "g2"], name="_group"), None) == []


def test_an_unknown_column_is_an_error_that_names_the_columns_there():
    queries = source({"q1": (LONG, {"topic": "mail", "year": 2024})})
    message = r"slice_by: no query has a value \(text, .*\) in the column 'topics'; columns there are: topic, year"
    with pytest.raises(ConfigError, match=message):
        find_slices(queries, ["topics"])
    with pytest.raises(ConfigError, match="columns there are: none"):
        find_slices(source({"q1": LONG}), ["topic"])


def test_values_that_are_no_text_or_number_make_no_slice():
    assert find_slices(with_column([["a"], {"b": 1}, None]), None) == []
    with pytest.raises(ConfigError, match=r"no query has a value \(text, .*\) in the column 'topic'"):
        find_slices(with_column([["a"], {"b": 1}, None]), ["topic"])


def test_a_column_of_ids_is_no_slice_unless_it_is_asked_for():
    numbered = with_column(["1", "2", "3", "4"])
    assert find_slices(numbered, None) == []
    assert len(find_slices(numbered, ["topic"])) == 4


def test_a_column_named_twice_is_sliced_once():
    assert list(members(find_slices(with_column(["a", "b", "a"]), ["topic", "topic"]))) == ["topic=a", "topic=b"]


def test_numbers_and_truth_values_are_slices_by_their_text():
    assert list(members(find_slices(with_column([2, True, 0.5, 2]), None))) == ["topic=0.5", "topic=2", "topic=True"]


def test_a_query_of_at_most_three_words_is_short():
    queries = {
        "one": "reset",
        "three": "reset my password",
        "four": "reset my password now",
        "dashes": "re-set my password",
    }
    assert members(find_slices(source(queries), None))["short_query"] == ["one", "three"]


IDENTIFIERS = [
    *(
        "part x9-12",
        "the s3 bucket",
        "error 0041827",
        "the F-16 engine",
        "set my_var",
        "the __init__ method",
        "std::map",
    ),
    *(
        "see https://x.org",
        "C:\\windows is full",
        "edit /etc/passwd",
        "./run it",
        "a/b/c",
        "~/notes",
        "open config.yaml",
    ),
    *("upgrade to 1.2.3", "v2.0 notes", "use --force", "an IAM user", "list all APIs", "call getUser", "order 12ab"),
]
PLAIN = [
    *(
        "Create a Bucket",
        "What is Love?",
        "and/or",
        "to/from the office",
        "he/she",
        "this, e.g. that",
        "that is, i.e. this",
    ),
    *("the 3rd place", "the mid-1990s", "at 5pm", "at 10:30 today", "open 24/7", "3.5 kg", "in 2024", "1,000.50 euros"),
    *(
        "note:this",
        "the end.Next one",
        "a well-known T-shirt",
        "cost--benefit",
        "wait... what",
        "HOW DO I RESET",
        "don't",
    ),
    *("", "été à Paris", "\u0645\u0631\u062d\u0628\u0627"),
]


@pytest.mark.parametrize("text", IDENTIFIERS)
def test_part_numbers_paths_versions_flags_and_acronyms_are_identifiers(text):
    assert has_identifier(source({}), Query("q", text))


@pytest.mark.parametrize("text", PLAIN)
def test_plain_words_ordinals_times_and_shouting_are_no_identifiers(text):
    assert not has_identifier(source({}), Query("q", text))


@pytest.mark.parametrize("letter", ["1", "a", "A", "a.", "a/", "_", "-", "/"])
def test_a_very_long_text_is_looked_through_in_no_time(letter):
    started = time.perf_counter()
    has_identifier(source({}), Query("q", letter * 20_000))
    assert time.perf_counter() - started < 2


def test_three_positives_are_many():
    judgments = {"q1": ["a", "b", "c"], "q2": ["a", "b"]}
    assert members(find_slices(source({"q1": LONG, "q2": LONG}, judgments), None))["many_positives"] == ["q1"]


def test_long_positive_holds_queries_whose_every_positive_is_cut():
    judgments = {"all": ["cut"], "some": ["cut", "whole"], "none": ["whole"], "gone": ["missing"]}
    queries = dict.fromkeys(judgments, "one two three four whole cut")
    found = find_slices(source(queries, judgments, {"cut": "cut", "whole": "whole"}, truncated=["cut"]), None)
    assert members(found)["long_positive"] == ["all"]


def test_no_shared_word_looks_at_title_and_text_of_every_positive():
    documents = {"d1": ("Delete it", "Users"), "d2": "remove a bucket"}
    queries = {
        "title": "users I want to drop",  # Users is the title of d1
        "text": "please DELETE my account",  # delete, whatever its case
        "second": "how do I empty a bucket",  # bucket stands in d2
        "none": "get rid of an account",
    }
    judgments = {"title": ["d1"], "text": ["d1"], "second": ["d1", "d2"], "none": ["d1"]}
    assert members(find_slices(source(queries, judgments, documents), None))["no_shared_word"] == ["none"]


def test_without_documents_the_slices_that_need_them_are_left_out():
    judgments = {"q1": ["d1"], "q2": ["d2"]}
    assert find_slices(source({"q1": LONG, "q2": LONG}, judgments), None) == []


def test_a_language_pair_is_that_of_a_query_and_its_positives():
    documents = {"d1": ("x", "", {"language": "en"}), "d2": ("x", "", {"language": "ar"}), "d3": "x"}
    queries = {
        "q1": (LONG, {"language": "en"}),
        "q2": (LONG, {"language": "en"}),
        "q3": (LONG, {"language": "ar"}),
        "q4": (LONG, {"language": "ar"}),
        "q5": LONG,
    }
    judgments = {"q1": ["d1"], "q2": ["d1", "d2"], "q3": ["d2"], "q4": ["d3"], "q5": ["d1"]}
    found = members(find_slices(source(queries, judgments, documents), []))
    pairs = {name: ids for name, ids in found.items() if name.startswith("languages=")}
    assert pairs == {"languages=ar->ar": ["q3"], "languages=en->ar": ["q2"], "languages=en->en": ["q1", "q2"]}


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("reset my password", "latin"),
        ("إعادة تعيين كلمة المرور", "arabic"),
        ("पासवर्ड रीसेट करें", "devanagari"),
        ("重置密码", "cjk"),
        ("重置密码吧 ok", "cjk"),  # five against two
        ("\uff52\uff45\uff53\uff45\uff54", "latin"),  # full-width letters
        ("\u0430\u0431 ab", "cyrillic"),  # two against two: the first by name
        ("12 34 !?", "none"),
        ("", "none"),
    ],
)
def test_the_script_is_that_of_most_letters(text, script):
    assert script_of(text) == script


def test_scripts_are_slices_only_where_there_are_several():
    mixed = {"q1": LONG, "q2": "إعادة تعيين كلمة المرور الآن"}
    assert members(find_slices(source(mixed), None)) == {"script=arabic": ["q2"], "script=latin": ["q1"]}
    assert find_slices(source({"q1": LONG, "q2": LONG}), None) == []


def test_a_slice_that_holds_all_queries_or_none_is_left_out():
    queries = {"q1": ("short one", {"topic": "mail"}), "q2": ("short two", {"topic": "mail"})}
    assert find_slices(source(queries), ["topic"]) == []  # all short, all mail, none with an identifier


def test_the_order_is_columns_then_languages_then_scripts_then_derived_whatever_order_queries_come_in():
    documents = {"d1": ("x", "", {"language": "en"}), "d2": ("x", "", {"language": "ar"})}
    queries = {
        "q1": ("reset the s3 bucket policy", {"topic": "web", "language": "en"}),
        "q2": ("كلمة المرور", {"topic": "mail", "language": "ar"}),
        "q3": ("reset the s3 bucket rule", {"topic": "web", "language": "en"}),
    }
    judgments = {"q1": ["d1"], "q2": ["d2"], "q3": ["d1"]}
    names = [item.name for item in find_slices(source(queries, judgments, documents), None)]
    assert names == [
        *("topic=mail", "topic=web", "language=ar", "language=en"),
        *("languages=ar->ar", "languages=en->en", "script=arabic", "script=latin", "short_query", "identifiers"),
    ]
    backwards = dict(reversed(queries.items()))
    assert [item.name for item in find_slices(source(backwards, judgments, documents), None)] == names
