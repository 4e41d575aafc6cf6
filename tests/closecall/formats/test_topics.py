"""TREC's files, engines' lists: read as their makers write them."""

import pytest

from closecall.errors import DataError
from closecall.formats.engines import engine_file, engine_kind
from closecall.formats.topics import topics

TAGGED = """<top>
<num> Number: 301
<title> International Organized Crime
<desc> Description:
Identify organizations that participate
in crime &amp; more.
<narr> Narrative:
A relevant document must name one.
</top>
<top><num>302</num><title>Poliomyelitis</title></top>
"""
XML = """<?xml version="1.0"?>
<topics task="t">
 <topic number="1"><query>ACE inhibitors</query><question>how &lt;fast&gt;?</question></topic>
 <topic number="2">plain text</topic>
</topics>
"""


def rows(found):
    faults = []
    return [(one.line, one.value) for part in found.queries for one in part.rows(faults)], faults


def test_topics_in_tags_give_number_title_and_columns(tmp_path):
    (tmp_path / "topics.txt").write_text(TAGGED)
    found, faults = rows(topics(tmp_path / "topics.txt"))

    assert faults == []
    assert found[0] == (1, {
        "_id": "301", "text": "International Organized Crime",
        "description": "Identify organizations that participate in crime & more.",
        "narrative": "A relevant document must name one.",
    })  # fmt: skip
    assert found[1] == (10, {"_id": "302", "text": "Poliomyelitis"})


def test_topics_in_xml_give_attributes_and_nested_text(tmp_path):
    (tmp_path / "topics.xml").write_text(XML)
    found, faults = rows(topics(tmp_path / "topics.xml"))
    assert (found, faults) == (
        [
            (3, {"_id": "1", "text": "ACE inhibitors", "question": "how <fast>?"}),
            (4, {"_id": "2", "text": "plain text"}),
        ],
        [],
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<?xml version='1.0'?>\n<topics>\n<topic number='1'>", r"topics.xml line 3: not valid XML"),
        ("<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x 'y'>]><a/>", r"topics.xml: declares the entity 'x'"),
        ("<top>\n<num> 3\n", r"topics.xml line 1: <top> is never closed"),
    ],
)
def test_topics_at_fault_are_refused_with_their_place(tmp_path, text, fault):
    (tmp_path / "topics.xml").write_text(text)
    with pytest.raises(DataError, match=fault):
        rows(topics(tmp_path / "topics.xml"))


def judgments(path):
    faults = []
    found = engine_file(path, engine_kind(path))
    return [tuple(one.value)[1:3] for part in found.judgments for one in part.rows(faults)], faults, rows(found)[0]


def test_opensearch_lists_are_read_in_both_spellings(tmp_path):
    (tmp_path / "a.json").write_text(
        '{"judgmentRatings": [{"query": "red", "ratings": [{"docId": "B0", "rating": "2.000"}]}]}'
    )
    (tmp_path / "b.json").write_text('{"judgmentRatings": {"red": [{"docId": "B0", "rating": "2.000"}]}}')
    for name in ("a.json", "b.json"):
        found, faults, asked = judgments(tmp_path / name)
        assert (found, faults) == ([("B0", 2)], [])
        assert asked[0][1]["text"] == "red"


def test_a_rank_eval_request_gives_id_text_and_ratings(tmp_path):
    (tmp_path / "r.json").write_text(
        '{"requests": [{"id": "q1", "request": {"query": {"bool": {"must": [1]}}}, "params": {"query_string": "red"},'
        ' "ratings": [{"_index": "i", "_id": "d1", "rating": 1}]}]}'
    )
    found, faults, asked = judgments(tmp_path / "r.json")
    assert (found, faults, asked) == ([("d1", 1)], [], [(1, {"_id": "q1", "text": "red"})])


def test_quepid_and_ltr_lists_are_read(tmp_path):
    (tmp_path / "case.json").write_text('{"queries": [{"query_text": "red", "ratings": {"d1": 3, "d2": 0}}]}')
    (tmp_path / "l.txt").write_text("3 qid:7 1:0.5 # d1 red dress\n0 qid:7 # d2 red dress\n")
    assert judgments(tmp_path / "case.json")[:2] == ([("d1", 3), ("d2", 0)], [])
    found, faults, asked = judgments(tmp_path / "l.txt")
    assert (found, faults, asked[0][1]) == ([("d1", 3), ("d2", 0)], [], {"_id": "7", "text": "red dress"})


def test_an_averaged_rating_is_no_grade(tmp_path):
    (tmp_path / "case.json").write_text('{"queries": [{"query_text": "red", "ratings": {"d1": 2.5}}]}')
    assert "case.json entry 1: grade '2.5' is no whole number" in judgments(tmp_path / "case.json")[1][0]
