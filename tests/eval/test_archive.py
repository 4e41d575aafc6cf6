import json

import pytest

from closecall.errors import DataError
from eval.archive import counts, merged, read_archive, write_archive


def test_a_query_is_new_then_still_failing_then_fixed_then_regressed():
    entries = []
    for evaluation, failing in (("1", ["a", "b"]), ("2", ["a"]), ("3", ["a", "b", "c"])):
        entries = merged(entries, {q: f"text {q}" for q in failing}, {"a", "b", "c"}, evaluation)
    assert [(entry.query_id, entry.status) for entry in entries] == [
        ("b", "regressed"),
        ("c", "new"),
        ("a", "still_failing"),
    ]
    assert entries[0].history == (("1", "new"), ("2", "fixed"), ("3", "regressed"))
    assert counts(entries, {"a", "b"}) == {"regressed": 1, "new": 0, "still_failing": 1, "fixed": 0}


def test_a_query_that_was_not_asked_keeps_its_status():
    entries = merged([], {"a": "text"}, {"a"}, "1")
    assert merged(entries, {}, {"b"}, "2") == entries


def test_the_same_evaluation_twice_changes_nothing():
    entries = merged(merged([], {"a": "text"}, {"a"}, "1"), {"a": "text"}, {"a"}, "2")
    assert merged(entries, {"a": "text"}, {"a"}, "2") == entries


def test_an_archive_is_read_as_it_was_written(tmp_path):
    entries = merged([], {"a": 'a <b>\u2028 "c"', "b": "x"}, {"a", "b"}, "1")
    write_archive(tmp_path / "failures.jsonl", entries)
    assert read_archive(tmp_path / "failures.jsonl") == entries
    assert read_archive(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"query_id": "a"}', json.dumps({"query_id": "a", "query": "", "status": "odd", "history": []})],
)
def test_a_line_that_is_no_entry_is_named(tmp_path, line):
    write_archive(tmp_path / "f.jsonl", merged([], {"x": "x"}, {"x"}, "1"))
    with (tmp_path / "f.jsonl").open("a") as handle:
        handle.write(line + "\n")
    with pytest.raises(DataError, match=r"f\.jsonl line 2: no entry"):
        read_archive(tmp_path / "f.jsonl")


def test_a_query_that_stands_twice_is_refused(tmp_path):
    line = json.dumps({"query_id": "a", "query": "", "status": "new", "history": [["1", "new"]]})
    (tmp_path / "f.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match=r"line 2: query 'a' again"):
        read_archive(tmp_path / "f.jsonl")
