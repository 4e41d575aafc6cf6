"""A sound judged set raises no alarm; each fault that is planted in it raises its own."""

import random

import pytest

from closecall.measures import Measure
from closecall.quality.material import BM25, Deciding, Material, _bm25
from closecall.quality.survey import survey
from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc

RNG = random.Random(7)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["".join(RNG.choices(LETTERS, k=RNG.randint(5, 9))) for _ in range(400)]
USER_WORDS = ["".join(RNG.choices(LETTERS, k=RNG.randint(4, 8))) for _ in range(300)]


def sound(n=400):
    """Documents, queries and grades of a set as people would make it: half of a query's words are its positive's."""
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=25)) for _ in range(n)]
    documents = [Document(f"d{row}", text) for row, text in enumerate(texts)]
    queries = [
        Query(f"q{row}", " ".join(rng.sample(text.split(), 4) + rng.choices(USER_WORDS, k=4)), {"team": f"t{row % 4}"})
        for row, text in enumerate(texts)
    ]
    return documents, queries, {(f"q{row}", f"d{row}"): 1 for row in range(n)}


def alarms(documents, queries, grades, runs=None, deciding=None):
    qrels = Qrels(Judgment(*pair, grade) for pair, grade in grades.items())
    runs = runs or {BM25: _bm25(documents, queries)}
    by_id = {document.doc_id: document for document in documents}
    material = Material(queries, qrels, by_id, runs, Measure.parse("nDCG@10"), "exp", deciding)
    return [one.name for one in survey(material) if one.alarm]


def reworded(queries, rows, change):
    return [
        Query(query.query_id, change(query.text, row), query.metadata) if row in rows else query
        for row, query in enumerate(queries)
    ]


def test_a_sound_set_raises_no_alarm():
    assert alarms(*sound(), deciding=Deciding(400, 400, 0.042, {"team=t1": ("team", 100)}, 30)) == []


def too_few_queries(documents, queries, grades):
    return documents, queries, grades, None, Deciding(12, 12, 0.24)


def slices_of_ten(documents, queries, grades):
    return documents, queries, grades, None, Deciding(80, 80, 0.09, {f"team={n}": ("team", 10) for n in range(8)}, 30)


def first_document_graded_zero(documents, queries, grades):
    """As Cranfield circulates: the source of a query has grade 0, what is judged positive stands behind it."""
    return documents, queries, {**{pair: 0 for pair in grades}, **{(f"q{row}", f"d{row - 1}"): 2 for row in range(400)}}


def same_text_other_positives(documents, queries, grades):
    return documents, reworded(queries, range(20), lambda text, row: queries[row // 2 * 2].text), grades


def top_three_of_one_model(documents, queries, grades):
    run = _bm25(documents, queries)
    zeros = {(q, one.doc_id): 0 for q in run for one in run.ranking(q)[:3]}
    return documents, queries, zeros | {pair: 1 for pair in grades if pair in zeros}


def pool_shallower_than_the_measure(documents, queries, grades):
    run = _bm25(documents, queries)
    zeros = {(q, one.doc_id): 0 for q in run for one in run.ranking(q)[1:6:2]}
    return documents, queries, zeros | grades


def judged_for_one_of_two_models(documents, queries, grades):
    run = _bm25(documents, queries)
    zeros = {(q, one.doc_id): 0 for q in run for one in run.ranking(q)[:10]}
    other = {q: [ScoredDoc(f"d{(int(q[1:]) + step) % 400}", 1 - step / 20) for step in range(10)] for q in run}
    return documents, queries, zeros | grades, {BM25: run, "other": Run(other)}


def questions_repeated(documents, queries, grades):
    copied = reworded(queries, range(200), lambda text, row: f"{queries[row // 2].text} x{row % 2}")
    return documents, copied, {(f"q{row}", f"d{row // 2 if row < 200 else row}"): 1 for row in range(400)}


def positives_with_unjudged_copies(documents, queries, grades):
    return documents + [Document(f"c{row}", documents[row].text + " again") for row in range(80)], queries, grades


def documents_twice(documents, queries, grades):
    return documents + [Document(f"c{row}", documents[row].text.upper()) for row in range(390)], queries, grades


def queries_copied_from_documents(documents, queries, grades):
    copied = reworded(queries, range(120), lambda text, row: " ".join(documents[row].text.split()[3:10]))
    return documents, copied, grades


def whole_texts_as_queries(documents, queries, grades):
    return documents, reworded(queries, range(400), lambda text, row: " ".join([text] * 7)), grades


def letters_dropped(documents, queries, grades):
    def misspell(text, row):
        own = text.split()
        return " ".join([own[0][:1] + own[0][2:], own[1][:2] + own[1][3:], *own[2:]])

    return documents, reworded(queries, range(250), misspell), grades


def part_numbers_of_another_catalogue(documents, queries, grades):
    return documents, reworded(queries, range(160), lambda text, row: f"{text} SKU-{row + 10000}"), grades


def another_script(documents, queries, grades):
    cyrillic = {ord(letter): chr(0x430 + place) for place, letter in enumerate(LETTERS)}
    return documents, reworded(queries, range(40), lambda text, row: text.translate(cyrillic)), grades


def wrong_encoding(documents, queries, grades):
    return documents, reworded(queries, range(40), lambda text, row: f"{text} K\u00c3\u00a4se"), grades


@pytest.mark.parametrize(
    ("plant", "alarm"),
    [
        (too_few_queries, "set_size"),
        (slices_of_ten, "small_slices"),
        (first_document_graded_zero, "first_graded_zero"),
        (same_text_other_positives, "same_text"),
        (top_three_of_one_model, "one_ranking"),
        (pool_shallower_than_the_measure, "judgments_per_query"),
        (judged_for_one_of_two_models, "uneven_pool"),
        (questions_repeated, "query_copies"),
        (positives_with_unjudged_copies, "positive_copies"),
        (documents_twice, "document_copies"),
        (queries_copied_from_documents, "copied_words"),
        (whole_texts_as_queries, "query_length"),
        (letters_dropped, "misspelt"),
        (part_numbers_of_another_catalogue, "identifiers"),
        (another_script, "scripts"),
        (wrong_encoding, "scripts"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_planted_fault_raises_its_alarm(plant, alarm):
    assert alarm in alarms(*plant(*sound()))


def test_findings_say_what_the_copies_do_to_the_measure():
    """Both find the copy first, which is unjudged: 1/log2(3) = 0.631; with it judged too the list is ideal."""
    documents = [Document("a", "red apple pie"), Document("b", "red apple pie"), Document("x", "blue sea")]
    queries = [Query("q1", "red apple"), Query("q2", "apple pie")]
    qrels = Qrels([Judgment("q1", "b", 1), Judgment("q2", "b", 1)])
    run = Run({q: [ScoredDoc("a", 2.0), ScoredDoc("b", 1.0)] for q in ("q1", "q2")})
    material = Material(queries, qrels, {d.doc_id: d for d in documents}, {"m": run}, Measure.parse("nDCG@10"))
    found = {one.name: one for one in survey(material)}
    assert found["positive_copies"].alarm
    assert "for 2 of 2 queries" in found["positive_copies"].found
    assert "m 63.1 -> 100.0" in found["positive_copies"].found


def test_without_texts_the_checks_that_need_none_are_made():
    qrels = Qrels([Judgment("q1", "b", 1)])
    material = Material([Query("q1", "")], qrels, {}, {"m": Run({"q1": [ScoredDoc("b", 1.0)]})}, Measure.parse("MRR"))
    assert [one.name for one in survey(material)] == ["judgments_per_query", "query_length"]
