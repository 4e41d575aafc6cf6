import gzip
import hashlib
import json

import pytest

from closecall.assign import SplitConfig
from closecall.dataset import DataConfig, load_dataset
from closecall.errors import ArtifactError, DataError
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part, make_split, read_part
from mining.judge_import import import_marks, read_review
from mining.marks import read_marks

HEADER = "mark,query_id,doc_id,query,candidate,outcome,score,positive_score,why,mined"


@pytest.fixture
def sheet(tmp_path):
    """Writes a sheet of these lines below a header, as text or as bytes, and gives its path."""

    def write(*lines, header=HEADER, name="review.csv", end="\n"):
        text = "".join(f"{line}{end}" for line in (header, *lines))
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return write


def marks(path):
    found = read_marks(path)
    assert found.faults == []
    return [(mark.line, mark.mark, *mark.pair) for mark in found.marks.values()]


def faults(path):
    return [fault.text.removeprefix(f"{path} ") for fault in read_marks(path).faults]


class TestReading:
    def test_marks_come_with_their_lines_and_rows_without_one_are_counted(self, sheet):
        path = sheet("relevant,q1,d1", ",q1,d2", "not_relevant,q2,d1", "unsure,q2,d3", " ,q3,d1")
        assert marks(path) == [
            (2, "relevant", "q1", "d1"),
            (4, "not_relevant", "q2", "d1"),
            (5, "unsure", "q2", "d3"),
        ]
        assert read_marks(path).unmarked == 2

    @pytest.mark.parametrize(
        "word", ["not_relevant", "Not relevant", "not-relevant", "NOT  RELEVANT", " not_relevant ", "Not\u2010Relevant"]
    )
    def test_case_spaces_and_hyphens_of_a_mark_do_not_matter(self, sheet, word):
        assert marks(sheet(f"{word},q1,d1")) == [(2, "not_relevant", "q1", "d1")]

    @pytest.mark.parametrize("delimiter", [",", ";", "\t"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("start", ["", "\ufeff"])
    def test_a_sheet_is_read_as_any_spreadsheet_saves_it(self, sheet, delimiter, end, start):
        header = start + delimiter.join(["mark", "query_id", "doc_id", "note"])
        row = delimiter.join(["relevant", "007", '"d,;1"', "1,5; so"])
        if delimiter != "\t":
            row = row.replace("1,5; so", '"1,5; so"')
        assert marks(sheet(row, header=header, end=end)) == [(2, "relevant", "007", "d,;1")]

    def test_the_delimiter_line_that_excel_knows_is_passed_over(self, sheet):
        assert marks(sheet("mark;query_id;doc_id", "relevant;q1;d1", header="sep=;")) == [(3, "relevant", "q1", "d1")]

    def test_columns_may_stand_in_any_order_beside_others(self, sheet):
        path = sheet("d1,mine,q1,Relevant", header="DOC_ID,note,Query_Id,mark")
        assert marks(path) == [(2, "relevant", "q1", "d1")]

    def test_lines_are_counted_through_cells_with_line_breaks(self, sheet):
        path = sheet('relevant,q1,d1,"two\nlines"', "relevnt,q1,d2", "unsure,q1,d3")
        assert [mark.line for mark in read_marks(path).marks.values()] == [2, 5]
        assert faults(path)[0].startswith("line 4: mark 'relevnt'")

    def test_rows_that_are_empty_or_that_a_spreadsheet_cut_short_are_no_fault(self, sheet):
        path = sheet(",,,", "", "relevant,q1,d1", ",q1")
        assert marks(path) == [(4, "relevant", "q1", "d1")]
        assert read_marks(path).unmarked == 1

    def test_the_same_mark_twice_counts_once(self, sheet):
        assert marks(sheet("relevant,q1,d1", "Relevant,q1,d1")) == [(2, "relevant", "q1", "d1")]


class TestFaultsOfReading:
    def test_a_misspelt_mark_is_named_with_what_was_expected(self, sheet):
        assert faults(sheet("relevnt,q1,d1", "x,q1,d2", "unsur,q1,d3")) == [
            "line 2: mark 'relevnt'; expected relevant, not_relevant, unsure or nothing, did you mean relevant?",
            "line 3: mark 'x'; expected relevant, not_relevant, unsure or nothing, write one of them",
            "line 4: mark 'unsur'; expected relevant, not_relevant, unsure or nothing, did you mean unsure?",
        ]

    def test_two_marks_on_one_pair_are_a_conflict(self, sheet):
        assert faults(sheet("relevant,q1,d1", "unsure,q1,d1")) == [
            "line 3: query 'q1' and document 'd1' are marked unsure, but relevant on line 2; keep one"
        ]

    def test_a_marked_row_without_an_id_is_a_fault(self, sheet):
        assert faults(sheet("relevant,,d1", "unsure,q1")) == [
            "line 2: marked relevant, but query_id is empty; copy the ids from the sheet, or drop the line",
            "line 3: marked unsure, but doc_id is empty; copy the ids from the sheet, or drop the line",
        ]

    @pytest.mark.parametrize(
        ("header", "found"),
        [
            ("mark,query,doc_id", "columns mark, query, doc_id; expected mark, query_id, doc_id, each once"),
            ("mark,query_id,doc_id,mark", "(see mark)"),
            ("", "columns (none); expected"),
        ],
    )
    def test_columns_that_are_missing_or_stand_twice_are_named(self, sheet, header, found):
        (fault,) = faults(sheet("relevant,q1,d1", header=header))
        assert fault.startswith("line 1: columns ")
        assert found in fault

    def test_a_row_with_more_cells_than_the_header_is_a_fault(self, sheet):
        assert faults(sheet("relevant,q1,d1,one, two", header="mark,query_id,doc_id,note")) == [
            "line 2: 5 cells, the header has 4; put quotes around cells that hold a delimiter"
        ]

    def test_a_quote_that_is_never_closed_swallows_no_marks(self, sheet):
        path = sheet("unsure,q1,d1", 'relevant,q1,d2,"open', "relevant,q1,d3")
        (fault,) = faults(path)
        assert fault.startswith("line 3: no readable row starts here (unexpected end of data); mend its quotes")

    def test_a_sheet_saved_in_another_encoding_says_how_to_save_it(self, sheet):
        path = sheet()
        path.write_bytes(f"{HEADER}\nrelevant,q1,d1,Größe\n".encode("cp1252"))
        with pytest.raises(DataError, match=r"review.csv line 2: not UTF-8, .*; save the file as UTF-8"):
            read_marks(path)

    def test_a_missing_sheet_is_named(self, tmp_path):
        with pytest.raises(DataError, match=r"review.csv cannot be read \(No such file or directory\)"):
            read_marks(tmp_path / "review.csv")


TRAIN = Part(
    (Query("q1", "lost my card"), Query("q2", "forgot password")),
    Qrels([Judgment("q1", "d1", 2), Judgment("q1", "d4", 0), Judgment("q2", "d2", 2), Judgment("q2", "d4", 1)], 2),
    "",
)
DOCUMENTS = [Document(f"d{number}", f"text {number}") for number in range(1, 7)]


@pytest.fixture
def take(sheet, tmp_path):
    """Imports a sheet of these lines; the grades after it, by pair."""

    def take(*lines, train=TRAIN, reviewed=None, **options):
        take.imported = import_marks(sheet(*lines, **options), DOCUMENTS, train, reviewed or tmp_path / "reviewed.tsv")
        return dict(read_review(take.imported.reviewed).judgments)

    return take


@pytest.fixture
def provenance(tmp_path):
    return lambda: [json.loads(line) for line in (tmp_path / "reviewed.jsonl").read_text("utf-8").splitlines()]


class TestImport:
    def test_relevant_becomes_a_positive_and_not_relevant_a_certified_negative(self, take, tmp_path):
        take("relevant,q1,d2", "not_relevant,q2,d3", ",q2,d5")
        text = (tmp_path / "reviewed.tsv").read_text("utf-8")
        assert text == "query-id\tcorpus-id\tscore\nq1\td2\t2\nq2\td3\t0\n"
        assert take.imported.marks == {"relevant": 1, "not_relevant": 1, "unsure": 0}
        assert take.imported.sentence == (
            "1 relevant, 1 not_relevant, 0 unsure: 2 new, 0 replaced, 0 unchanged; 1 rows without a mark"
        )

    def test_unsure_stands_in_the_provenance_alone(self, take, provenance, tmp_path):
        assert take("unsure,q1,d2") == {}
        assert (tmp_path / "reviewed.tsv").read_text("utf-8") == "query-id\tcorpus-id\tscore\n"
        assert [(entry["mark"], entry["grade"]) for entry in provenance()] == [("unsure", None)]

    def test_every_mark_has_a_line_of_provenance(self, take, provenance, tmp_path):
        take('relevant,q1,d2,cut,cut,kept,"0,71",0.8,scores 89 % of the positive,abc')
        (entry,) = provenance()
        assert entry.pop("imported_at").endswith("+00:00")
        assert entry.pop("sheet_sha256") == hashlib.sha256((tmp_path / "review.csv").read_bytes()).hexdigest()
        assert entry == {
            "query_id": "q1",
            "doc_id": "d2",
            "mark": "relevant",
            "grade": 2,
            "query": "lost my card",
            "document_sha256": hashlib.sha256(b"text 2").hexdigest(),
            "score": 0.71,
            "positive_score": 0.8,
            "outcome": "kept",
            "why": "scores 89 % of the positive",
            "sheet": "review.csv",
            "line": 2,
            "mined": "abc",
            "model": None,
        }

    def test_a_sheet_of_the_three_needed_columns_alone_can_be_imported(self, take, provenance):
        assert take("relevant,q1,d2", header="mark,query_id,doc_id") == {("q1", "d2"): 2}
        assert (provenance()[0]["score"], provenance()[0]["mined"]) == (None, None)

    def test_the_same_sheet_twice_changes_nothing(self, take, tmp_path):
        def state():
            return {
                path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
                for path in tmp_path.glob("reviewed*")
            }

        lines = ("relevant,q1,d2", "not_relevant,q2,d3", "unsure,q2,d5")
        take(*lines)
        before = state()
        take(*lines)
        assert state() == before
        assert (take.imported.new, take.imported.unchanged) == (0, 3)

    def test_a_later_mark_replaces_the_earlier_and_both_stand_in_the_provenance(self, take, provenance):
        take("relevant,q1,d2", "not_relevant,q2,d3")
        assert take("not_relevant,q1,d2") == {("q1", "d2"): 0, ("q2", "d3"): 0}
        assert (take.imported.new, take.imported.replaced) == (0, 1)
        assert take("unsure,q1,d2") == {("q2", "d3"): 0}
        found = [entry["mark"] for entry in provenance() if entry["doc_id"] == "d2"]
        assert found == ["relevant", "not_relevant", "unsure"]
        assert read_review(take.imported.reviewed).marks == {("q1", "d2"): "unsure", ("q2", "d3"): "not_relevant"}

    def test_a_mark_can_be_changed_after_the_split_took_it_over(self, take):
        take("relevant,q1,d2")
        grown = Part(TRAIN.queries, Qrels([*TRAIN.qrels.judgments(), Judgment("q1", "d2", 2)], 2), "")
        assert take("not_relevant,q1,d2", train=grown) == {("q1", "d2"): 0}
        assert take("unsure,q1,d2", train=grown) == {}
        assert take("not_relevant,q1,d2", train=grown) == {("q1", "d2"): 0}

    def test_what_the_dataset_says_already_is_not_judged_again(self, take, provenance):
        assert take("relevant,q1,d1", "not_relevant,q1,d4", "unsure,q2,d4") == {}
        assert [entry["grade"] for entry in provenance()] == [None, None, None]
        assert "; 2 say what the dataset says already; " in take.imported.sentence

    def test_a_judgment_that_went_missing_comes_back_with_its_mark(self, take, tmp_path):
        """A run killed between provenance and judgments is mended by the next import."""
        take("relevant,q1,d2")
        (tmp_path / "reviewed.tsv").unlink()
        assert take("relevant,q1,d2") == {("q1", "d2"): 2}

    def test_nothing_is_left_beside_the_two_files(self, take, tmp_path):
        take("relevant,q1,d2")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["review.csv", "reviewed.jsonl", "reviewed.tsv"]


class TestFaultsOfImport:
    def refused(self, take, tmp_path, *lines, **options):
        with pytest.raises(DataError) as error:
            take(*lines, **options)
        return str(error.value).replace(f"{tmp_path}/", "").splitlines()

    def test_every_fault_is_listed_by_line_and_nothing_is_imported(self, take, tmp_path):
        lines = [f"relevnt,q1,d{number}" for number in range(30)]
        found = self.refused(take, tmp_path, "relevant,q1,d2", *lines, "relevant,q9,d2", "relevant,q1,d9")
        assert found[0] == "review.csv: 32 faults, nothing was imported"
        assert [line.split(":")[0] for line in found[1:]] == [
            f"  - review.csv line {number}" for number in range(3, 35)
        ]
        assert not (tmp_path / "reviewed.tsv").exists()
        assert not (tmp_path / "reviewed.jsonl").exists()

    def test_one_fault_also_says_that_nothing_was_imported(self, take, tmp_path):
        found = self.refused(take, tmp_path, "relevant,q1,d2", "relevant,q9,d2")
        assert found == [
            "review.csv: 1 fault, nothing was imported",
            "  - review.csv line 3: query_id 'q9' is not a training query; drop the line",
        ]

    def test_an_id_that_a_spreadsheet_changed_is_recognised(self, take, tmp_path):
        found = self.refused(take, tmp_path, "relevant,q1,D2", "relevant,Q1,d3")
        assert found[1].startswith("  - review.csv line 2: doc_id 'D2' is not in the corpus; 'D2' looks like 'd2'")
        assert found[2].startswith("  - review.csv line 3: query_id 'Q1' is not a training query; 'Q1' looks like 'q1'")

    @pytest.mark.parametrize(
        ("line", "grade"),
        [("not_relevant,q1,d1", 2), ("relevant,q1,d4", 0), ("relevant,q2,d4", 1), ("not_relevant,q2,d4", 1)],
    )
    def test_a_mark_against_the_datasets_own_judgment_is_a_fault(self, take, tmp_path, line, grade):
        mark, query_id, doc_id = line.split(",")
        assert self.refused(take, tmp_path, line)[1] == (
            f"  - review.csv line 2: query '{query_id}' and document '{doc_id}' are marked {mark}, but the dataset's "
            f"own judgment has grade {grade} (positive from 2); mend the dataset, or drop the mark"
        )

    def test_a_sheet_without_marks_is_refused(self, take, tmp_path):
        (found,) = self.refused(take, tmp_path, ",q1,d2")
        assert found == "review.csv: holds no marks; write relevant, not_relevant, unsure in its column `mark`"

    def test_a_qrels_file_that_no_review_wrote_is_never_touched(self, take, tmp_path):
        own = tmp_path / "qrels.tsv"
        own.write_text("q1\td1\t2\n")
        (found,) = self.refused(take, tmp_path, "relevant,q1,d2", reviewed=own)
        assert found == (
            "qrels.tsv: holds judgments, but qrels.jsonl beside it says of none where it comes from; restore that, or "
            "set data.reviewed to a file of its own"
        )
        assert own.read_text() == "q1\td1\t2\n"

    def test_files_of_review_at_fault_are_refused_with_their_lines(self, take, tmp_path):
        take("relevant,q1,d2")
        (tmp_path / "reviewed.tsv").write_text("q1\td2\tx\n")
        with (tmp_path / "reviewed.jsonl").open("a") as file:
            file.write('{"query_id": "q1"}\n')
        found = self.refused(take, tmp_path, "unsure,q1,d3")
        assert [line.split(":")[0] for line in found[1:]] == ["  - reviewed.jsonl line 2", "  - reviewed.tsv line 1"]

    @pytest.mark.parametrize("name", ["reviewed.tsv.gz", "reviewed.jsonl"])
    def test_a_name_that_cannot_be_extended_is_refused(self, take, tmp_path, name):
        (found,) = self.refused(take, tmp_path, "relevant,q1,d2", reviewed=tmp_path / name)
        assert found.endswith("judgments of review are written as plain TSV; name the file reviewed.tsv")

    def test_a_packed_file_is_not_forked(self, take, tmp_path):
        take("relevant,q1,d2")
        with gzip.open(tmp_path / "reviewed.tsv.gz", "wb") as file:
            file.write((tmp_path / "reviewed.tsv").read_bytes())
        (tmp_path / "reviewed.tsv").unlink()
        (found,) = self.refused(take, tmp_path, "relevant,q1,d3")
        assert found == "reviewed.tsv.gz: marks cannot be added to a gzip file; unpack it to reviewed.tsv"


def write_own(folder, per_part=12):
    """A dataset of queries that each have a document of their own, with or without splits of its own."""
    names = [f"{part}{number}" for part in ("train", "test") for number in range(per_part)]
    rows = {name: f"q-{name}\td-{name}\t1\n" for name in names}
    texts = {name: f"{name}a {name}b {name}c" for name in [*names, "x1", "x2"]}
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(f'{{"_id": "d-{n}", "text": "{t}"}}\n' for n, t in texts.items()))
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "q-{n}", "text": "{t}?"}}\n' for n, t in texts.items()))
    for part in ("train", "test"):
        text = "".join(row for name, row in rows.items() if name.startswith(part))
        (folder / "qrels" / f"{part}.tsv").write_text(text)
    (folder / "all.tsv").write_text("".join(rows.values()))
    return folder


class TestFrozenSplit:
    @pytest.fixture(params=["its own splits", "one file"])
    def split(self, request, tmp_path):
        """Makes the split of a dataset of each kind, with the reviewed file where there is one."""
        data = write_own(tmp_path / "data")
        qrels = {"qrels": "all.tsv"} if request.param == "one file" else {}
        reviewed = tmp_path / "reviewed.tsv"

        def make():
            more = {"reviewed": reviewed} if reviewed.exists() else {}
            dataset = load_dataset(DataConfig(folder=data, **qrels, **more))
            config = SplitConfig(near_duplicate=1.0)
            artifact = make_split(dataset, config, tmp_path / "split")
            return dataset, artifact, {name: read_part(artifact, name) for name in ("train", "dev", "test")}

        return make

    def test_marks_join_the_training_part_and_no_query_moves(self, split, sheet, tmp_path):
        dataset, before, parts = split()
        query_id, other = (query.query_id for query in parts["train"].queries[:2])
        path = sheet(f"relevant,{query_id},d-x1", f"not_relevant,{other},d-x2", header="mark,query_id,doc_id")
        import_marks(path, dataset.documents, parts["train"], tmp_path / "reviewed.tsv")
        _, after, grown = split()
        ids = {name: [query.query_id for query in part.queries] for name, part in parts.items()}
        assert {name: [query.query_id for query in part.queries] for name, part in grown.items()} == ids
        assert grown["train"].qrels.positives(query_id)[1:] == ["d-x1"]
        assert grown["train"].qrels.grades(other)["d-x2"] == 0
        assert after.content("test/") == before.content("test/")
        assert after.content("dev/") == before.content("dev/")
        assert after.content("train/") != before.content("train/")

    @pytest.mark.parametrize("part", ["test", "dev"])
    def test_a_held_out_query_cannot_be_marked_and_its_part_is_not_opened(self, split, sheet, tmp_path, part):
        dataset, artifact, parts = split()
        for name in ("test", "dev"):
            for path in (artifact.folder / name).iterdir():
                path.unlink()
        train = read_part(artifact, "train")
        path = sheet(f"relevant,{parts[part].queries[0].query_id},d-x1", header="mark,query_id,doc_id")
        with pytest.raises(DataError, match="is not a training query"):
            import_marks(path, dataset.documents, train, tmp_path / "reviewed.tsv")

    def test_judgments_written_by_hand_on_a_test_query_break_the_frozen_split(self, split, tmp_path):
        _, _, parts = split()
        query_id = parts["test"].queries[0].query_id
        (tmp_path / "reviewed.tsv").write_text(f"{query_id}\td-x1\t1\n")
        with pytest.raises(ArtifactError, match=r"the test split is frozen, and 1 of its .* judged anew"):
            split()
