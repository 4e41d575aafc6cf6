import json

import pytest

from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from eval.answers import answers_of_run
from eval.failures import CLASSES, REMEDIES, Failure, Finder, summarised

K = 3
TEXTS = {
    "pos": "Restart the print service before you install the driver",
    "copy": "restart the print  SERVICE before you install the driver",
    # The positive has 8 different words: with "again" Jaccard is 8 / 9 = 0.89, without two of them 6 / 8 = 0.75.
    "twin": "Restart the print service before you install the driver again",
    "near": "Restart the print service before install",
    "neg": "Opening hours of the library in summer",
    **{f"x{at}": f"something else number {at}" for at in range(1, 6)},
}
QUERY = "how do I install the printer driver"


def documents(**languages):
    return {
        doc_id: Document(doc_id, text, metadata={"language": languages[doc_id]} if doc_id in languages else {})
        for doc_id, text in TEXTS.items()
    }


def answers(rankings):
    """Rankings written as "a b c", best first."""
    found = {q: [ScoredDoc(doc_id, -at) for at, doc_id in enumerate(r.split())] for q, r in rankings.items()}
    return answers_of_run(Run(found), list(TEXTS))


def failures(
    after, before="pos", grades=None, query=QUERY, values=(1.0, 0.0), metadata=None, docs=None, bm25=None, **more
):
    """Failures of query q1, whose positive is `pos`; `values` are those of the incumbent and the contender."""
    asked = {"q1": Query("q1", query, metadata or {}), **more.pop("others", {})}
    qrels = Qrels([Judgment("q1", d, g) for d, g in (grades or {"pos": 1}).items()] + more.pop("judged", []))
    finder = Finder(
        asked,
        documents() if docs is None else docs,
        qrels,
        {"base": answers({"q1": before}), "tuned": answers({"q1": after})},
        "base",
        "tuned",
        lexical=None if bm25 is None else answers({"q1": bm25}),
        k=K,
        **more,
    )
    return finder.failures({"base": {"q1": values[0]}, "tuned": {"q1": values[1]}})


def classes(after, **more):
    (failure,) = failures(after, **more)
    return failure.classes


@pytest.mark.parametrize(
    ("after", "values", "lost", "missed"),
    [
        ("x1 x2 pos", (1.0, 0.5), True, False),
        ("x1 x2 x3 pos", (0.0, 0.0), False, True),
        ("x1 x2 x3", (1.0, 0.0), True, True),
        ("", (1.0, 0.0), True, True),
    ],
)
def test_a_query_that_lost_or_has_no_positive_in_the_top_k_is_a_failure(after, values, lost, missed):
    (failure,) = failures(after, values=values)
    assert (failure.lost, failure.missed) == (lost, missed)
    assert failure.values == {"base": values[0], "tuned": values[1]}


def test_a_query_that_neither_lost_nor_missed_is_none():
    assert failures("x1 x2 pos", values=(0.5, 0.5)) == []
    assert failures("x1 x2 pos", values=(0.2, 0.5)) == []


def test_a_failure_shows_the_top_k_of_every_system_and_the_rank_of_every_positive_in_each():
    (failure,) = failures("neg x1 x2 pos", before="second pos", grades={"pos": 1, "second": 2, "neg": 0})
    assert failure.positives == {"pos": {"base": 2, "tuned": 4}, "second": {"base": 1, "tuned": None}}
    assert [(shown.doc_id, shown.score, shown.grade) for shown in failure.top["tuned"]] == [
        ("neg", 0.0, 0),
        ("x1", -1.0, None),
        ("x2", -2.0, None),
    ]
    assert [shown.doc_id for shown in failure.top["base"]] == ["second", "pos"]
    assert [shown.text for shown in failure.top["base"]] == ["", TEXTS["pos"]]  # the corpus lacks `second`


def test_a_shown_text_is_title_and_text_cut_to_300_characters():
    long = Document("x1", "word " * 100, "A title")
    (failure,) = failures("x1", docs=documents() | {"x1": long})
    text = failure.top["tuned"][0].text
    assert len(text) == 300
    assert text.startswith("A title word")


def test_markup_in_a_query_or_a_document_stays_as_it_is():
    text = "<script>alert('&amp;')</script>"
    (failure,) = failures("x1", query=text, docs=documents() | {"x1": Document("x1", text)})
    written = json.loads(json.dumps(failure.as_json()))
    assert (written["query"], written["top"]["tuned"][0]["text"]) == (text, text)


def test_metadata_of_the_query_is_kept_but_for_private_columns():
    (failure,) = failures("x1", metadata={"language": "en", "_line": 7})
    assert failure.metadata == {"language": "en"}


def test_absent_is_no_positive_among_what_was_retrieved():
    assert "absent" in classes("x1 x2 x3 x4")
    assert "absent" in classes("")
    assert "absent" not in classes("x1 x2 x3 pos")


def test_low_is_a_positive_retrieved_below_the_top_k():
    assert "low" in classes("x1 x2 x3 pos")
    assert "low" not in classes("x1 x2 pos")
    assert "low" not in classes("x1 x2 x3")


def test_negative_above_is_a_document_judged_0_over_the_best_positive():
    grades = {"pos": 1, "neg": 0}
    assert "negative_above" in classes("neg pos", grades=grades)
    assert "negative_above" not in classes("pos neg", grades=grades)
    assert "negative_above" not in classes("neg pos")  # unjudged is not negative
    assert "negative_above" in classes("neg pos", grades=grades, docs={})  # grades need no texts


def test_duplicate_above_is_an_unjudged_copy_of_a_positive_over_it():
    assert "duplicate_above" in classes("copy pos")
    assert "duplicate_above" not in classes("pos copy")
    assert "duplicate_above" not in classes("copy pos", grades={"pos": 1, "copy": 0})
    assert "duplicate_above" not in classes("twin pos")
    assert "duplicate_above" not in classes("copy pos", docs={})


def test_negative_above_is_also_an_unjudged_copy_of_a_document_judged_0():
    docs = documents() | {"x1": Document("x1", TEXTS["neg"].upper())}
    assert "negative_above" in classes("x1 pos", grades={"pos": 1, "neg": 0}, docs=docs)
    assert "negative_above" not in classes("pos x1", grades={"pos": 1, "neg": 0}, docs=docs)
    contradicted = docs | {"x1": Document("x1", TEXTS["pos"])}  # its text is judged relevant and not
    assert "negative_above" not in classes("x1 pos", grades={"pos": 1, "copy": 0}, docs=contradicted)


def test_duplicate_above_looks_at_the_positive_that_was_copied_not_at_the_best_one():
    both = {"pos": 1, "x5": 1}
    assert "duplicate_above" in classes("x5 copy pos", grades=both)
    assert "duplicate_above" in classes("x5 copy", grades=both)  # the copy is found, the positive is not
    assert "duplicate_above" not in classes("pos copy x5", grades=both)
    assert "duplicate_above" not in classes("x5 x1 x2 copy pos", grades=both)  # below the top k it costs nothing


def test_twin_above_is_an_unjudged_document_that_shares_80_percent_of_the_words_of_a_positive():
    assert "twin_above" in classes("twin pos")
    assert "twin_above" not in classes("near pos")
    assert "twin_above" not in classes("pos twin")
    assert "twin_above" not in classes("twin pos", grades={"pos": 1, "twin": 0})
    assert "twin_above" not in classes("twin pos", docs={})


def test_an_overlap_of_exactly_80_percent_is_a_twin_and_texts_without_words_are_none():
    def docs(own, other):
        return {"pos": Document("pos", own), "x1": Document("x1", other)}

    assert "twin_above" in classes("x1 pos", docs=docs("a b c d e", "a b c d"))  # 4 / 5
    assert "twin_above" not in classes("x1 pos", docs=docs("a b c d", "a b c"))  # 3 / 4
    assert "twin_above" not in classes("x1 pos", docs=docs("!", "?"))


def test_cut_is_every_positive_longer_than_the_model_reads():
    both = {"pos": 1, "x5": 1}
    assert "cut" in classes("x1", truncated=frozenset({"pos"}))
    assert "cut" not in classes("x1", grades=both, truncated=frozenset({"pos"}))
    assert "cut" in classes("x1", grades=both, truncated=frozenset({"pos", "x5"}))
    assert "cut" not in classes("x1", truncated=frozenset({"x1"}))


def test_vocabulary_is_a_positive_in_the_top_k_of_bm25_alone():
    assert "vocabulary" in classes("x1 x2 x3 pos", bm25="x1 x2 pos")
    assert "vocabulary" not in classes("x1 x2 x3 pos", bm25="x1 x2 x3 pos")
    assert "vocabulary" not in classes("x1 x2 pos", bm25="pos")
    assert "vocabulary" not in classes("x1 x2 x3 pos")


def test_ambiguous_is_three_words_or_fewer():
    assert "ambiguous" in classes("x1", query="install printer driver")
    assert "ambiguous" not in classes("x1", query="install the printer driver")
    assert "ambiguous" not in classes("x1", query="")  # run files alone have no texts


def test_ambiguous_is_the_text_of_another_query_with_other_positives():
    others = {"q2": Query("q2", QUERY.upper())}
    assert "ambiguous" in classes("x1", others=others, judged=[Judgment("q2", "neg", 1)])
    assert "ambiguous" not in classes("x1", others=others, judged=[Judgment("q2", "pos", 1)])
    assert "ambiguous" not in classes("x1", others=others)  # one that nobody judged says nothing
    other_text = {"q2": Query("q2", "when is the library open in summer")}
    assert "ambiguous" not in classes("x1", others=other_text, judged=[Judgment("q2", "neg", 1)])


def test_foreign_is_another_language_than_every_positive():
    asked, both = {"language": "en"}, {"pos": 1, "x5": 1}
    assert "foreign" in classes("x1", metadata=asked, docs=documents(pos="de"))
    assert "foreign" not in classes("x1", metadata=asked, docs=documents(pos="en"))
    assert "foreign" not in classes("x1", metadata=asked, grades=both, docs=documents(pos="de", x5="en"))
    assert "foreign" not in classes("x1", docs=documents(pos="de"))  # nothing says what the query is in


def test_foreign_is_another_script_where_no_language_is_given():
    assert "foreign" in classes("x1", query="как установить драйвер принтера")
    assert "foreign" not in classes("x1")
    assert "foreign" not in classes("x1", query="2041 77 12 9000")  # digits have no script
    assert "foreign" not in classes("x1", query="как установить драйвер принтера", docs={})


def test_without_texts_only_the_classes_that_need_none_are_given():
    asked = {"after": "copy twin x1 pos", "query": "", "docs": {}}
    assert classes(**asked) == ("low",)


def test_the_remedies_go_from_cheap_to_dear_and_cover_every_class_once():
    assert list(REMEDIES) == [
        "judge the documents above",
        "chunk the documents",
        "clean or complete the query",
        "hybrid search with BM25",
        "a multilingual model",
        "a reranker",
        "fine-tuning, or a stronger model",
    ]
    assert [name for helps in REMEDIES.values() for name in helps] == list(CLASSES)
    assert all(rule.__doc__ for rule in CLASSES.values())  # the report prints them


REMEDY_CASES = [
    ("judge the documents above", {"after": "copy x1 x2 pos"}),
    ("chunk the documents", {"truncated": frozenset({"pos"})}),
    ("clean or complete the query", {"query": "драйвер"}),
    ("hybrid search with BM25", {"query": "как установить драйвер принтера", "bm25": "pos"}),
    ("a multilingual model", {"query": "как установить драйвер принтера"}),
    ("a reranker", {}),
    ("fine-tuning, or a stronger model", {"after": "x1 x2 x3"}),
]


def every_class_from(at):
    """The features of case `at` and of all dearer ones up to the reranker; the cheapest of them has to be named."""
    features = {"after": "x1 x2 x3 pos"}
    for _, own in reversed(REMEDY_CASES[at:6]):
        features |= own
    return features if at < 6 else REMEDY_CASES[6][1]


@pytest.mark.parametrize("at", range(7))
def test_a_failure_counts_under_the_cheapest_remedy_that_applies(at):
    (failure,) = failures(**every_class_from(at))
    assert failure.remedy == REMEDY_CASES[at][0]


def test_a_failure_without_a_class_counts_under_the_last_remedy():
    (found,) = failures("x1 pos")
    assert (found.classes, found.remedy) == ((), "fine-tuning, or a stronger model")


@pytest.mark.parametrize(("rank", "remedy"), [(100, "a reranker"), (101, "fine-tuning, or a stronger model")])
def test_a_reranker_is_named_for_a_positive_in_the_top_100_alone(rank, remedy):
    (found,) = failures(" ".join(f"y{at}" for at in range(1, rank)) + " pos")
    assert (found.classes, found.remedy) == (("low",), remedy)


def failure(remedy, *names, lost=True, missed=True):
    return Failure("q", "", {}, lost, missed, {}, {}, {}, names, remedy)


def test_the_summary_counts_a_failure_in_each_class_but_under_one_remedy():
    labels, reranker = "judge the documents above", "a reranker"
    found = summarised(
        [
            failure(reranker, "low", missed=False),
            failure(labels, "duplicate_above", "twin_above", "low"),
            failure(labels, "twin_above", lost=False),
        ]
    )
    assert (found.failures, found.lost, found.missed) == (3, 2, 2)
    assert dict(found.classes) == {"duplicate_above": 1, "twin_above": 2, "low": 2}
    assert list(found.remedies.items()) == [(labels, 2), (reranker, 1)]  # the cheapest first


@pytest.mark.parametrize("name", CLASSES)
def test_fine_tuning_is_not_expected_to_help_with_labels_or_chunking(name):
    found = summarised([failure("", "absent"), failure("", name, "absent"), failure("")])
    assert found.fixable_by_training == (2 if name in ("duplicate_above", "twin_above", "cut") else 3)


def test_no_failures_make_a_summary_of_zeros():
    found = summarised([])
    assert (found.failures, found.fixable_by_training, dict(found.classes), dict(found.remedies)) == (0, 0, {}, {})


def test_the_queries_that_lost_most_come_first_and_equal_ones_by_id():
    names = ["q1", "q2", "q3"]
    finder = Finder(
        {},
        {},
        Qrels([Judgment(name, "pos", 1) for name in names]),
        {name: answers(dict.fromkeys(names, "x1")) for name in ("base", "tuned")},
        "base",
        "tuned",
    )
    found = finder.failures({"base": {"q3": 0.5, "q2": 0.5, "q1": 0.2}, "tuned": dict.fromkeys(names, 0.0)})
    assert [failure.query_id for failure in found] == ["q2", "q3", "q1"]
