import gzip
import re

import pytest

from closecall.errors import DataError
from closecall.readers import open_lines, resolve
from closecall.records import Judgment, Run, ScoredDoc
from closecall.trec import read_qrels, read_run, write_qrels, write_run


@pytest.fixture
def qrels(tmp_path):
    def read(content, name="qrels.tsv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        rows, faults = read_qrels(path)
        return [tuple(row.judgment) for row in rows], [fault.removeprefix(f"{path}") for fault in faults]

    return read


@pytest.fixture
def run_file(tmp_path):
    def write(content):
        path = tmp_path / "bm25.run"
        path.write_text(content)
        return path

    return write


@pytest.mark.parametrize(
    "header", ["query-id\tcorpus-id\tscore\n", "query_id doc_id relevance\n", "QID docid mark\n", ""]
)
def test_a_header_is_optional_and_no_row_is_lost_to_it(qrels, header):
    assert qrels(f"{header}q1\td1\t1\nq2\td2\t0\n") == ([("q1", "d1", 1), ("q2", "d2", 0)], [])


@pytest.mark.parametrize("header", ["", "qid 0 docid rel\n", "Topic\tIter\tDocument\tJudgment\n"])
def test_trec_qrels_have_four_columns(qrels, header):
    assert qrels(f"{header}q1 0 d1 2\nq1 0 d2 0\n") == ([("q1", "d1", 2), ("q1", "d2", 0)], [])


def test_a_first_row_with_a_mistyped_grade_is_not_taken_for_a_header(qrels):
    rows, faults = qrels("q1\td1\thigh\nq2\td2\t1\n")
    assert rows == [("q2", "d2", 1)]
    assert faults == [
        " line 1: grade 'high' is no whole number; write 0 (judged, not relevant), 1, 2, ..."
        " (a header must name its columns: query-id, corpus-id, score)"
    ]


def test_a_header_further_down_is_a_fault(qrels):
    _, faults = qrels("q1\td1\t1\nquery-id\tcorpus-id\tscore\n")
    assert faults == [" line 2: grade 'score' is no whole number; write 0 (judged, not relevant), 1, 2, ..."]


def test_a_query_that_is_called_like_a_header_is_data_when_its_grade_is_a_number(qrels):
    assert qrels("query\tscore\t1\n") == ([("query", "score", 1)], [])


def test_ids_stay_text(qrels):
    rows, _ = qrels("007\t1e5\t1\nnan\tNULL\t1\n1.0\ttrue\t1\n")
    assert rows == [("007", "1e5", 1), ("nan", "NULL", 1), ("1.0", "true", 1)]


def test_with_tabs_ids_may_hold_spaces(qrels):
    assert qrels("my query\tsome doc\t1\n") == ([("my query", "some doc", 1)], [])


def test_byte_order_mark_crlf_and_blank_lines_are_no_content(qrels):
    assert qrels(b"\xef\xbb\xbfq1\td1\t1\r\n\r\n   \r\nq2\td2\t1.0\r\n") == ([("q1", "d1", 1), ("q2", "d2", 1)], [])


def test_a_gzip_file_is_read_like_a_plain_one(qrels):
    assert qrels(gzip.compress(b"q1 d1 1\n", mtime=0), "qrels.tsv.gz") == ([("q1", "d1", 1)], [])


@pytest.mark.parametrize("grade", ["0.5", "abc", "nan", "1e0", "1,0"])
def test_a_grade_that_is_no_whole_number_is_a_fault(qrels, grade):
    rows, faults = qrels(f"q1 d1 1\nq2 d2 {grade}\n")
    assert rows == [("q1", "d1", 1)]
    assert faults == [f" line 2: grade '{grade}' is no whole number; write 0 (judged, not relevant), 1, 2, ..."]


def test_a_negative_grade_is_refused_with_advice(qrels):
    rows, faults = qrels("1 0 184 3\n1 0 29 -1\n")
    assert rows == [("1", "184", 3)]
    assert faults == [
        " line 2: grade -1 is negative; say what it means: in Cranfield -1 is the query's own source paper, "
        "not 'irrelevant'; drop the line or map it to a grade >= 0"
    ]


def test_a_repeated_judgment_counts_once(qrels):
    assert qrels("q1 d1 1\nq1 d2 1\nq1 d1 1.0\n") == ([("q1", "d1", 1), ("q1", "d2", 1)], [])


def test_two_grades_for_the_same_pair_are_a_fault(qrels):
    _, faults = qrels("q1 d1 1\nq1 d1 0\n")
    assert faults == [" line 2: query 'q1' and document 'd1' have grade 0, but grade 1 on line 1; keep one"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("q1 d1", "2 columns; expected query-id, corpus-id, score"),
        ("q1 0 d1 1 x", "5 columns; expected query-id, corpus-id, score"),
        ("q1,d1,1", "1 column; .*these are commas, use tabs"),
        ("q1 0 d1 1", "4 columns, the lines before have 3; write all lines alike"),
        ("\td1\t1", "an id is empty; add it or drop the line"),
    ],
)
def test_a_line_with_other_columns_is_a_fault_that_names_the_line(qrels, line, fault):
    rows, faults = qrels(f"q0 d0 1\n{line}\n")
    assert rows == [("q0", "d0", 1)]
    assert len(faults) == 1
    assert re.match(f" line 2: {fault}", faults[0])


@pytest.mark.parametrize("content", ["", "\n\n", "query-id\tcorpus-id\tscore\n"])
def test_a_file_without_judgments_is_a_fault(qrels, content):
    assert qrels(content)[1] == [": holds no judgments; expected lines of query-id, corpus-id, score"]


def test_written_qrels_have_the_header_of_beir_and_read_back(tmp_path):
    path = tmp_path / "qrels.tsv"
    write_qrels(path, [Judgment("007", "d 1", 2), Judgment("q2", "d2", 0)])
    assert path.read_bytes() == b"query-id\tcorpus-id\tscore\n007\td 1\t2\nq2\td2\t0\n"
    assert [row.judgment for row in read_qrels(path)[0]] == [("007", "d 1", 2), ("q2", "d2", 0)]


def test_a_run_is_ranked_by_score_and_its_rank_column_is_ignored(run_file):
    run = read_run(run_file("q1 Q0 d1 1 0.5 bm25\nq1 Q0 d2 2 0.9 bm25\nq1 Q0 d0 3 0.5 bm25\n"))
    assert run.ranking("q1") == (("d2", 0.9), ("d0", 0.5), ("d1", 0.5))


def test_all_faults_of_a_run_are_reported_together(run_file):
    path = run_file(
        "q1 Q0 d1 1 0.5 bm25\nq1 Q0 d1 2 0.4 bm25\nq1 Q0 d2 3 nan bm25\nq1 Q0 d3 4 -inf bm25\n"
        "q1 Q0 d4 5 high bm25\nq1 d5 0.1\nq2 Q0 d1 1 0.5 bm25\n"
    )
    with pytest.raises(DataError) as error:
        read_run(path)
    assert str(error.value).splitlines() == [
        f"{path}: 5 faults",
        f"  - {path} line 2: document 'd1' again for query 'q1'; keep one line",
        f"  - {path} line 3: score 'nan' is no finite number; mend or drop the line",
        f"  - {path} line 4: score '-inf' is no finite number; mend or drop the line",
        f"  - {path} line 5: score 'high' is no finite number; mend or drop the line",
        f"  - {path} line 6: 3 columns; expected query, Q0, document, rank, score, tag",
    ]


def test_an_empty_run_file_is_a_fault(run_file):
    with pytest.raises(DataError, match=r"bm25\.run: holds no rankings; expected lines of query, Q0"):
        read_run(run_file("\n"))


def test_a_run_is_written_with_ranks_and_six_decimals_in_the_given_order(tmp_path):
    run = Run({"q2": [ScoredDoc("d1", 0.25), ScoredDoc("d2", 1 / 3)], "q1": [ScoredDoc("d b", 1)]})
    write_run(tmp_path / "a.run", run, "base", ["q1", "q3", "q2"])
    assert (tmp_path / "a.run").read_bytes() == (
        b"q1\tQ0\td b\t1\t1.000000\tbase\nq2 Q0 d2 1 0.333333 base\nq2 Q0 d1 2 0.250000 base\n"
    )
    assert read_run(tmp_path / "a.run").ranking("q1") == (("d b", 1.0),)


def test_an_order_that_leaves_out_a_query_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leaves out 1 queries of the run, 'q2' for one"):
        write_run(tmp_path / "a.run", Run({"q1": [], "q2": []}), "base", ["q1"])


def test_a_missing_file_is_named_with_what_is_there(tmp_path):
    (tmp_path / "corpus.json").touch()
    with pytest.raises(
        DataError, match=r"corpus.jsonl does not exist, nor does corpus.jsonl.gz; .* which holds corpus.json$"
    ):
        resolve(tmp_path / "corpus.jsonl")
    with pytest.raises(DataError, match=rf"the nearest folder is {tmp_path}, which holds corpus.json$"):
        resolve(tmp_path / "no" / "such" / "corpus.jsonl")


def test_a_name_stands_for_its_gzip_form_and_the_other_way_round(tmp_path):
    (tmp_path / "a.tsv.gz").touch()
    (tmp_path / "b.tsv").touch()
    assert resolve(tmp_path / "a.tsv") == tmp_path / "a.tsv.gz"
    assert resolve(tmp_path / "b.tsv.gz") == tmp_path / "b.tsv"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="is a folder, which is empty; name a file"):
        resolve(tmp_path)
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\), which is empty; name a file"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        (
            "a.tsv",
            b"q1\td1\t1\nq\xe92\td2\t1\n",
            "a.tsv line 2: not UTF-8, byte 2 of the line is 0xe9; save the file as",
        ),
        ("a.tsv", "q1\td1\t1\n".encode("utf-16"), "line 1: not UTF-8, .*starts like UTF-16.; save the file as UTF-8"),
        ("a.tsv", gzip.compress(b"q1 d1 1\n", mtime=0), "a.tsv is a gzip file; name it a.tsv.gz"),
        ("a.tsv.gz", b"q1 d1 1\n", r"a.tsv.gz is no gzip file .*; compress it, or name it without .gz"),
        (
            "a.tsv.gz",
            gzip.compress(b"q1 d1 1\n" * 99, mtime=0)[:-9],
            "a.tsv.gz is damaged after line .*; copy or compress it again",
        ),
    ],
)
def test_a_file_in_another_encoding_or_damaged_is_refused(tmp_path, name, content, fault):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fault):
        read_qrels(tmp_path / name)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(
        DataError, match=r"secret.tsv cannot be read \(Permission denied\); check the path and its perm"
    ):
        list(open_lines(tmp_path / "secret.tsv"))


def test_a_line_separator_inside_a_text_does_not_break_the_line(tmp_path):
    (tmp_path / "a.txt").write_text("one\u2028still one\u0085still\ntwo\n", encoding="utf-8")
    assert [number for number, _ in open_lines(tmp_path / "a.txt")] == [1, 2]
