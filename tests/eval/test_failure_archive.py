import json

import pytest

from closecall.errors import DataError
from eval.archive import Entry, counts, merged, read_archive, write_archive


def through(*evaluations, before=()):
    """The archive after evaluations written as ("e1", failing, asked), ids as "q1 q2"."""
    entries = list(before)
    for name, failing, asked in evaluations:
        entries = merged(
            entries, {query_id: f"text of {query_id}" for query_id in failing.split()}, asked.split(), name
        )
    return entries


def statuses(entries):
    return {entry.query_id: entry.status for entry in entries}


def test_a_query_is_new_then_still_failing_then_fixed_then_regressed():
    first = ("e1", "q1 q2", "q1 q2 q3")
    second = ("e2", "q1 q3", "q1 q2 q3")
    third = ("e3", "q1 q2", "q1 q2 q3")
    assert statuses(through(first)) == {"q1": "new", "q2": "new"}
    assert statuses(through(first, second)) == {"q1": "still_failing", "q2": "fixed", "q3": "new"}
    found = through(first, second, third)
    assert statuses(found) == {"q1": "still_failing", "q2": "regressed", "q3": "fixed"}
    history = {entry.query_id: entry.history for entry in found}
    assert history["q2"] == (("e1", "new"), ("e2", "fixed"), ("e3", "regressed"))
    assert history["q3"] == (("e2", "new"), ("e3", "fixed"))


def test_a_regressed_query_that_fails_once_more_still_fails_and_may_be_fixed_again():
    back = [("e1", "q1", "q1"), ("e2", "", "q1"), ("e3", "q1", "q1")]
    assert statuses(through(*back, ("e4", "q1", "q1"))) == {"q1": "still_failing"}
    assert statuses(through(*back, ("e4", "", "q1"))) == {"q1": "fixed"}


def test_a_query_that_never_failed_is_not_in_the_archive():
    assert through(("e1", "", "q1 q2")) == []


def test_a_query_that_was_not_asked_keeps_its_status_and_history():
    before = through(("e1", "q1 q2", "q1 q2"), ("e2", "q2", "q1 q2"))
    after = {entry.query_id: entry for entry in through(("e3", "", "q9"), before=before)}
    assert statuses(after.values()) == {"q1": "fixed", "q2": "still_failing"}
    assert [after[entry.query_id].history for entry in before] == [entry.history for entry in before]


def test_the_same_evaluation_merged_twice_changes_nothing():
    once = through(("e1", "q1 q2", "q1 q2 q3"), ("e2", "q2 q3", "q2 q3"))
    assert through(("e2", "q2 q3", "q2 q3"), before=once) == once
    assert through(("e1", "q1 q2", "q1 q2 q3"), before=once) == once  # an older one neither


def test_what_came_back_is_listed_first_and_what_is_fixed_last():
    found = through(
        ("e1", "q1 q2 q3", "q1 q2 q3"), ("e2", "q2 q3", "q1 q2 q3"), ("e3", "q0 q1 q2 q4", "q0 q1 q2 q3 q4")
    )
    assert [(entry.query_id, entry.status) for entry in found] == [
        ("q1", "regressed"),
        ("q0", "new"),
        ("q4", "new"),
        ("q2", "still_failing"),
        ("q3", "fixed"),
    ]


def test_an_entry_holds_the_text_the_query_had_when_it_last_failed():
    first = merged([], {"q1": "old", "q2": "kept"}, ["q1", "q2"], "e1")
    found = merged(first, {"q1": "mended"}, ["q1", "q2"], "e2")
    assert {entry.query_id: entry.query for entry in found} == {"q1": "mended", "q2": "kept"}


def test_merging_leaves_what_it_was_given_as_it_was():
    before = through(("e1", "q1", "q1"))
    kept = list(before)
    through(("e2", "q1 q2", "q1 q2"), before=before)
    assert before == kept


def test_only_queries_that_were_asked_are_counted():
    entries = through(("e1", "q1 q2", "q1 q2"), ("e2", "q3", "q1 q3"))
    assert counts(entries, ["q1", "q3"]) == {"regressed": 0, "new": 1, "still_failing": 0, "fixed": 1}


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "failures.jsonl"
    entries = merged(
        [], {"q1": "<script>\n\"ü\" 'x'</script>", "q2": "", "q3": "a\u2028b\x85c"}, ["q1", "q2", "q3"], "e1"
    )
    entries = merged(entries, {}, ["q1", "q3"], "e2")
    write_archive(path, entries)
    assert read_archive(path) == entries
    assert [json.loads(line)["query_id"] for line in path.read_bytes().splitlines()] == ["q2", "q1", "q3"]
    assert [file.name for file in tmp_path.iterdir()] == ["failures.jsonl"]  # nothing is left beside it


def test_a_write_that_fails_leaves_the_old_archive_whole(tmp_path):
    path = tmp_path / "failures.jsonl"
    entries = through(("e1", "q1", "q1"))
    write_archive(path, entries)
    with pytest.raises(UnicodeEncodeError):
        write_archive(path, [Entry("q2", "half a pair \ud800", "new", ())])
    assert read_archive(path) == entries


def test_no_file_is_an_empty_archive(tmp_path):
    assert read_archive(tmp_path / "failures.jsonl") == []


GOOD = '{"query_id": "q1", "query": "a", "status": "new", "history": [["e1", "new"]]}'


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        GOOD.replace("{", '{"schema": 2, '),
        "[]",
        "3",
        '{"query_id": "q2"',
        GOOD.replace('"query_id": "q1", ', ""),
        GOOD.replace('"status": "new", ', ""),
        GOOD.replace('"status": "new"', '"status": "broken"'),
        GOOD.replace('"status": "new"', '"status": ["new"]'),
        GOOD.replace('[["e1", "new"]]', '[["e1", "mended"]]'),
        GOOD.replace('[["e1", "new"]]', '[["e1"]]'),
        GOOD.replace('[["e1", "new"]]', "7"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_line(tmp_path, line):
    path = tmp_path / "failures.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n", encoding="utf-8")  # an empty line is none, but counts
    with pytest.raises(DataError, match=r"failures\.jsonl line 3: no entry of the failure archive"):
        read_archive(path)


def test_a_query_that_stands_twice_is_refused_with_file_and_line(tmp_path):
    path = tmp_path / "failures.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"failures\.jsonl line 2: query 'q1' again"):
        read_archive(path)


def test_bytes_that_are_no_utf_8_are_refused_with_file_and_line(tmp_path):
    path = tmp_path / "failures.jsonl"
    path.write_bytes(f"{GOOD}\n".encode() + b'{"query_id": "\xff"}\n')
    with pytest.raises(DataError, match=r"failures\.jsonl line 2: no entry"):
        read_archive(path)


def test_lines_written_before_there_was_a_schema_are_read(tmp_path):
    path = tmp_path / "failures.jsonl"
    path.write_text(f"{GOOD}\n", encoding="utf-8")
    assert read_archive(path) == [Entry("q1", "a", "new", (("e1", "new"),))]
