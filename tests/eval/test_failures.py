import pytest

from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from eval.answers import answers_of_run
from eval.failures import Finder, summarised


def run_of(**rankings):
    return Run({q: [ScoredDoc(doc, -float(at)) for at, doc in enumerate(ids)] for q, ids in rankings.items()})


TEXTS = {
    "pos": "how to rotate the access keys of a user in the console",
    "copy": "How to rotate  the access keys of a user in the console",
    "twin": "how to rotate the access keys of a user in the new console",
    "other": "billing reports for the last month",
    "german": "Schluessel",
    "cyrillic": "ключ доступа пользователя",
}


def finder(tuned, grades=None, query="please rotate keys of my user", documents=TEXTS, lexical=None, k=3, **more):
    """A finder over one query; the incumbent has the positive first."""
    grades = grades or {"pos": 1}
    queries = more.pop("queries", {"q": Query("q", query, more.pop("metadata", {}))})
    qrels = Qrels([Judgment("q", doc, grade) for doc, grade in grades.items()])
    extra = more.pop("judgments", ())
    if extra:
        qrels = Qrels([*qrels.judgments(), *extra])
    held = {
        doc: Document(doc, text, metadata=more.get("languages", {}).get(doc, {})) for doc, text in documents.items()
    }
    more.pop("languages", None)
    answers = {"base": answers_of_run(run_of(q=["pos"]), []), "tuned": answers_of_run(run_of(q=tuned), [])}
    found = None if lexical is None else answers_of_run(run_of(q=lexical), [])
    return Finder(queries, held, qrels, answers, "base", "tuned", lexical=found, k=k, **more)


def classes(tuned, **settings):
    (failure,) = finder(tuned, **settings).failures({"base": {"q": 1.0}, "tuned": {"q": 0.1}})
    return failure.classes, failure.remedy


FAR = ["x1", "x2", "x3"]


def test_a_query_is_a_failure_when_it_lost_or_has_no_positive_in_its_top():
    found = finder(["pos"])
    assert found.failures({"base": {"q": 0.5}, "tuned": {"q": 0.5}}) == []
    (lost,) = found.failures({"base": {"q": 0.6}, "tuned": {"q": 0.5}})
    assert (lost.lost, lost.missed) == (True, False)
    (missed,) = finder([*FAR, "pos"]).failures({"base": {"q": 0.0}, "tuned": {"q": 0.3}})
    assert (missed.lost, missed.missed) == (False, True)


@pytest.mark.parametrize(
    ("tuned", "settings", "expected"),
    [
        (FAR, {}, ("absent",)),
        ([*FAR, "pos"], {}, ("low",)),
        (["other", "pos"], {"grades": {"pos": 1, "other": 0}}, ("negative_above",)),
        (["pos", "other"], {"grades": {"pos": 1, "other": 0}}, ()),  # it stands below
        (["copy", "pos"], {}, ("duplicate_above", "twin_above")),
        (["copy", "pos"], {"grades": {"pos": 1, "copy": 1}}, ()),  # judged, so it is a positive itself
        (["twin", "pos"], {}, ("twin_above",)),
        (["other", "pos"], {}, ()),
        (FAR, {"truncated": frozenset(["pos"])}, ("cut", "absent")),
        (
            FAR,
            {"truncated": frozenset(["pos"]), "grades": {"pos": 1, "other": 1}},
            ("absent",),
        ),  # one can be read whole
        (FAR, {"lexical": ["other", "pos"]}, ("vocabulary", "absent")),
        (FAR, {"lexical": [*FAR, "pos"]}, ("absent",)),  # below its top 3
        (["other", "pos"], {"lexical": ["pos"]}, ()),  # the contender has it too
        (FAR, {"query": "rotate access keys"}, ("ambiguous", "absent")),
        (FAR, {"query": "rotate the access keys"}, ("absent",)),
        (FAR, {"grades": {"cyrillic": 1}}, ("foreign", "absent")),
        (FAR, {"metadata": {"language": "en"}, "languages": {"pos": {"language": "de"}}}, ("foreign", "absent")),
        (FAR, {"metadata": {"language": "de"}, "languages": {"pos": {"language": "de"}}}, ("absent",)),
    ],
)
def test_classes_follow_their_rules(tuned, settings, expected):
    assert classes(tuned, **settings)[0] == expected


def test_the_same_text_with_other_positives_is_ambiguous():
    queries = {name: Query(name, "please rotate keys of my user") for name in ("q", "r")}
    other = {"queries": queries, "judgments": [Judgment("r", "other", 1)]}
    assert classes(FAR, **other)[0] == ("ambiguous", "absent")
    assert classes(FAR, **(other | {"judgments": [Judgment("r", "pos", 1)]}))[0] == ("absent",)


def test_the_cheapest_remedy_is_named_first():
    assert classes(["copy", *FAR], truncated=frozenset(["pos"]), lexical=["pos"])[1] == "judge the documents above"
    assert classes(FAR, truncated=frozenset(["pos"]), lexical=["pos"])[1] == "chunk the documents"
    assert classes(FAR, lexical=["pos"])[1] == "hybrid search with BM25"
    assert classes([*FAR, "pos"])[1] == "a reranker"
    assert classes(FAR)[1] == "fine-tuning, or a stronger model"


def test_the_summary_counts_each_failure_once_and_says_how_many_training_can_help():
    found = [
        finder(tuned, **settings).failures({"base": {"q": 1.0}, "tuned": {"q": 0.1}})[0]
        for tuned, settings in ((FAR, {}), (["copy", "pos"], {}), (FAR, {"truncated": frozenset(["pos"])}))
    ]
    summary = summarised(found)
    assert (summary.failures, summary.lost, summary.missed) == (3, 3, 2)
    assert summary.classes == {"duplicate_above": 1, "twin_above": 1, "cut": 1, "absent": 2}
    assert sum(summary.remedies.values()) == 3
    assert summary.fixable_by_training == 1


def test_without_texts_the_classes_that_need_them_are_left_out():
    assert classes(["copy", "pos"], documents={}, query="")[0] == ()


def test_a_failure_holds_ranks_grades_and_texts_as_they_are():
    found = finder(["other", "pos"], grades={"pos": 2, "gone": 1}, query="<script>alert(1)</script> a b c")
    (failure,) = found.failures({"base": {"q": 1.0}, "tuned": {"q": 0.1}})
    assert failure.query == "<script>alert(1)</script> a b c"
    assert failure.positives == {"pos": {"base": 1, "tuned": 2}, "gone": {"base": None, "tuned": None}}
    assert [(shown.doc_id, shown.grade) for shown in failure.top["tuned"]] == [("other", None), ("pos", 2)]
    assert failure.top["tuned"][1].text == TEXTS["pos"]
