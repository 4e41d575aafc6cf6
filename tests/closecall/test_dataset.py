import gzip
import json

import pytest
from pydantic import ValidationError

from closecall.dataset import DataConfig, corpus_file, load_corpus, load_dataset
from closecall.errors import DataError

SOUND = {
    "corpus.jsonl": """\
{"_id": "d1", "title": "Cards", "text": "How to block a card", "language": "en", "tags": ["a", 1, null]}
{"_id": "d2", "title": null, "text": "How to reset a password"}
{"_id": "007", "text": "Opening hours"}
""",
    "queries.jsonl": """\
{"_id": "q1", "text": "lost my card", "language": "en"}
{"_id": "q2", "text": "forgot password"}
""",
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n",
}
JUDGED = '{"query_id": "q1", "query": "lost my card", "relevant_docs": ["d1"], "language": "en"}\n'


@pytest.fixture
def folder(tmp_path):
    """Writes the sound dataset with some files changed (None: left out), and gives its folder."""

    def write(changes=None):
        for name, content in (SOUND | (changes or {})).items():
            if content is not None:
                (tmp_path / name).parent.mkdir(exist_ok=True)
                data = content if isinstance(content, bytes) else content.encode()
                (tmp_path / name).write_bytes(data)
        return tmp_path

    return write


@pytest.fixture
def load(folder):
    def load(changes=None, **settings):
        return load_dataset(DataConfig(folder=folder(changes), **settings))

    return load


@pytest.fixture
def faults(folder):
    """The faults of a changed dataset, with paths shortened to those inside the folder."""

    def faults(changes, **settings):
        place = folder(changes)
        with pytest.raises(DataError) as error:
            load_dataset(DataConfig(folder=place, **settings))
        lines = str(error.value).replace(f"{place}/", "").splitlines()
        return lines if len(lines) == 1 else [line.removeprefix("  - ") for line in lines[1:]]

    return faults


def more(name, line):
    return {name: SOUND[name] + line + "\n"}


class TestConfig:
    def test_relative_files_count_from_the_folder(self, tmp_path):
        data = DataConfig(folder=tmp_path, corpus="docs.jsonl", qrels="qrels/all.tsv")
        assert (data.corpus, data.qrels) == (tmp_path / "docs.jsonl", tmp_path / "qrels" / "all.tsv")

    @pytest.mark.parametrize("other", ["queries", "qrels"])
    def test_judged_beside_queries_or_qrels_is_a_contradiction(self, other):
        with pytest.raises(ValidationError, match=f"data.judged already holds .* drop it, or data.{other}"):
            DataConfig(folder="x", judged="judged.yaml", **{other: "x.tsv"})

    def test_files_that_are_not_given_are_named(self):
        with pytest.raises(
            ValidationError, match=r"give data\.folder, or data\.corpus and data\.queries and data\.qrels"
        ):
            DataConfig()
        with pytest.raises(ValidationError, match=r"give data\.folder, or data\.qrels"):
            DataConfig(corpus="c.jsonl", queries="q.jsonl")

    def test_every_setting_is_described_in_one_line(self):
        for name, setting in DataConfig.model_fields.items():
            assert setting.description, name
            assert "\n" not in setting.description

    def test_an_unknown_setting_is_refused(self):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            DataConfig(folder="x", qrel="y")


class TestSoundDatasets:
    def test_documents_queries_and_judgments_come_out_in_the_order_of_the_files(self, load):
        dataset = load()
        assert [document.doc_id for document in dataset.documents] == ["d1", "d2", "007"]
        assert dataset.query("q1").text == "lost my card"
        assert [tuple(row) for row in dataset.qrels.judgments()] == [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1)]
        assert dataset.own_splits is None
        assert dataset.notes == ()

    def test_metadata_is_kept_as_it_is_and_a_null_title_is_none(self, load):
        first, second, _ = load().documents
        assert first.metadata == {"language": "en", "tags": ["a", 1, None]}
        assert (second.title, second.full_text) == ("", "How to reset a password")

    def test_gzip_byte_order_mark_and_crlf_change_nothing(self, load, tmp_path):
        dataset = load(
            {
                "corpus.jsonl": None,
                "corpus.jsonl.gz": gzip.compress(SOUND["corpus.jsonl"].encode()),
                "queries.jsonl": b"\xef\xbb\xbf" + SOUND["queries.jsonl"].replace("\n", "\r\n\r\n").encode(),
            }
        )
        assert (len(dataset.documents), len(dataset.queries)) == (3, 2)
        assert dataset.files == tuple(tmp_path / name for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels.tsv"))

    def test_positive_from_decides_what_is_positive(self, load):
        dataset = load(positive_from=2)
        assert dataset.qrels.positives("q1") == ["d1"]
        assert dataset.notes == ("1 of 2 queries have judgments but no positive (grade 2 or more)",)

    def test_queries_without_judgments_are_kept_and_counted(self, load):
        dataset = load(more("queries.jsonl", '{"_id": "q3", "text": "hello"}'))
        assert len(dataset.queries) == 3
        assert dataset.notes == ("1 of 3 queries have no judgment; they are kept, and no measure can count them",)

    def test_repeated_records_are_merged_and_counted(self, load):
        dataset = load(more("corpus.jsonl", '{"text": "Opening hours", "_id": "007"}'))
        assert len(dataset.documents) == 3
        assert dataset.notes == ("corpus.jsonl: 1 repeated lines with the same id and content were merged",)

    def test_unjudged_documents_without_text_are_dropped_and_counted(self, load):
        empty = '{"_id": "e1", "text": ""}\n{"_id": "e2", "text": " \\u200b "}\n{"_id": "e3", "title": "T", "text": ""}'
        dataset = load(more("corpus.jsonl", empty))
        assert [document.doc_id for document in dataset.documents] == ["d1", "d2", "007", "e3"]
        assert dataset.notes == ("corpus.jsonl: 2 documents without text were dropped",)

    def test_a_negative_judgment_on_a_document_without_text_goes_with_it_and_is_counted(self, load):
        dataset = load(more("corpus.jsonl", '{"_id": "e1", "text": ""}') | more("qrels.tsv", "q1\te1\t0"))
        assert "e1" not in dataset.qrels.grades("q1")
        assert "1 judgments of documents without text were dropped with them" in dataset.notes

    def test_a_positive_on_a_document_without_text_goes_with_it_and_is_counted(self, load):
        dataset = load(more("corpus.jsonl", '{"_id": "e1", "text": ""}') | more("qrels.tsv", "q1\te1\t1"))
        assert dataset.qrels.positives("q1") == ["d1"]
        assert "1 judgments of documents without text were dropped with them" in dataset.notes

    def test_documents_with_the_same_text_are_counted(self, load):
        dataset = load(more("corpus.jsonl", '{"_id": "d9", "text": "OPENING  hours"}'))
        note = "corpus.jsonl: 2 of 4 documents (50.0%) have the text of another id (1 different texts)"
        assert dataset.notes == (note,)

    def test_whole_numbers_as_ids_become_their_digits_with_a_note(self, load):
        dataset = load(more("corpus.jsonl", '{"_id": 12, "text": "twelve"}') | more("qrels.tsv", "q2\t12\t1"))
        assert dataset.qrels.positives("q2") == ["d2", "12"]
        assert dataset.notes == ("corpus.jsonl: 1 ids are numbers; they were taken as text",)

    def test_the_hash_is_that_of_names_and_contents_wherever_the_folder_is(self, load, tmp_path):
        before = load()
        assert load().sha256 == before.sha256
        (tmp_path / "elsewhere").mkdir()
        for name, content in SOUND.items():
            (tmp_path / "elsewhere" / name).write_text(content)
        assert load_dataset(DataConfig(folder=tmp_path / "elsewhere")).sha256 == before.sha256
        assert load(more("qrels.tsv", "q2\td1\t0")).sha256 != before.sha256


class TestCorpusAlone:
    def test_neither_queries_nor_qrels_are_opened(self, folder):
        place = folder({"queries.jsonl": b"\xff\xff", "qrels.tsv": None})
        data = DataConfig(folder=place)
        corpus = load_corpus(data)
        assert [document.doc_id for document in corpus.documents] == ["d1", "d2", "007"]
        assert corpus.file == corpus_file(data) == place / "corpus.jsonl"

    def test_its_hash_depends_on_the_corpus_only(self, folder):
        before = load_corpus(DataConfig(folder=folder())).sha256
        assert load_corpus(DataConfig(folder=folder({"queries.jsonl": ""}))).sha256 == before
        assert load_corpus(DataConfig(folder=folder({"corpus.jsonl": '{"_id": "x", "text": "y"}'}))).sha256 != before

    def test_its_documents_are_those_of_the_dataset(self, folder):
        data = DataConfig(folder=folder(more("corpus.jsonl", '{"_id": "e1", "text": ""}')))
        assert load_corpus(data).documents == load_dataset(data).documents

    def test_its_faults_are_reported_together(self, folder):
        data = DataConfig(folder=folder(more("corpus.jsonl", '{"text": "x"}\n{"_id": "d9"}')))
        with pytest.raises(DataError, match=r"(?s)2 faults.*line 4: no \"_id\".*line 5: no \"text\""):
            load_corpus(data)


class TestFaultsOfRecords:
    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ('{"_id": "d9", "text": }', "line 4 column 23: not valid JSON, Expecting value; mend or drop the line"),
            ('"d9"', "line 4: text, not an object; write {...} on each line"),
            (
                '{"id": "d9", "text": "x"}',
                'line 4: no "_id" (found: id, text); add it or rename the field that holds it',
            ),
            ('{"_id": "d9", "contents": "x"}', 'line 4: no "text" (found: _id, contents); add it'),
            ('{"_id": "d9", "text": 5}', "line 4: text is a number; make it text"),
            ('{"_id": "d9", "text": null}', "line 4: text is null; make it text"),
            ('{"_id": "d9", "text": ["x"]}', "line 4: text is a list; make it text"),
            ('{"_id": "d9", "text": "x", "title": 5}', "line 4: title is a number; make it text"),
            (
                '{"_id": "d9", "text": "x", "title": NaN}',
                "line 4: NaN is no JSON value; write null, or leave the field out",
            ),
            ('{"_id": "d9", "text": "\\ud83d"}', "line 4: text holds half a surrogate pair; mend the text"),
            ('{"_id": "d9", "text": "x", "text": "y"}', "line 4: the key 'text' stands twice; keep one"),
            ('{"_id": 1.0, "text": "x"}', "line 4: _id is a number (1.0); write it as text, in quotes"),
            ('{"_id": true, "text": "x"}', "line 4: _id is true (True); write it as text, in quotes"),
            ('{"_id": null, "text": "x"}', "line 4: _id is null; write it as text, in quotes"),
            (
                '{"_id": " d9", "text": "x"}',
                "line 4: _id ' d9' is empty, or has spaces around it, a tab, a line break or half a surrogate; mend it",
            ),
            (
                '{"_id": "d1", "text": "Another text"}',
                "line 4: _id 'd1' stands on line 1 with other content; rename or drop one",
            ),
        ],
    )
    def test_a_document_at_fault_is_named_with_its_line(self, faults, line, fault):
        assert faults(more("corpus.jsonl", line)) == [f"corpus.jsonl {fault}"]

    def test_a_repeated_query_with_other_metadata_is_a_fault(self, faults):
        changes = more("queries.jsonl", '{"_id": "q1", "text": "lost my card", "language": "de"}')
        assert faults(changes) == [
            "queries.jsonl line 3: _id 'q1' stands on line 1 with other content; rename or drop one"
        ]

    @pytest.mark.parametrize("text", ["", "  ", "\\u200b"])
    def test_a_query_without_text_is_a_fault(self, faults, text):
        changes = more("queries.jsonl", f'{{"_id": "q3", "text": "{text}"}}')
        assert faults(changes) == ["queries.jsonl line 3: query 'q3' has no text; write it or drop the query"]

    @pytest.mark.parametrize(
        ("content", "found"),
        [('[{"_id": "d1"},\n{"_id": "d2"}]', "one JSON list"), ('{\n"_id": "d1"\n}', "one object over several lines")],
    )
    def test_a_json_file_that_is_not_jsonl_is_one_fault(self, faults, content, found):
        fault = f"corpus.jsonl line 1: the file is {found}; write each object on a line of its own (JSONL)"
        assert faults({"corpus.jsonl": content}) == [fault]

    def test_files_without_content_are_faults(self, faults):
        assert faults({"corpus.jsonl": "", "queries.jsonl": "\n", "qrels.tsv": ""}) == [
            "corpus.jsonl: holds no documents with a text; expected lines of _id, title, text",
            "queries.jsonl: holds no queries; expected one object per line",
            "qrels.tsv: holds no judgments; expected lines of query-id, corpus-id, score",
        ]

    def test_missing_files_are_all_named(self, faults, tmp_path):
        found = faults({"corpus.jsonl": None, "queries.jsonl": None})
        assert [fault.split(";")[0] for fault in found] == [
            "corpus.jsonl does not exist, nor does corpus.jsonl.gz",
            "queries.jsonl does not exist, nor does queries.jsonl.gz",
        ]
        assert found[0].endswith("which holds qrels.tsv")

    def test_faults_of_all_files_are_reported_together(self, faults):
        changes = more("corpus.jsonl", '{"_id": "d9"}') | more("queries.jsonl", "{") | more("qrels.tsv", "q1\td93\t-1")
        changes |= {"qrels.tsv": changes["qrels.tsv"] + "q1\td94\t1\n"}
        assert [fault.partition(":")[0] for fault in faults(changes)] == [
            "corpus.jsonl line 4",
            "queries.jsonl line 3 column 2",
            "qrels.tsv line 5",
            "qrels.tsv line 6",
        ]


class TestFaultsOfReferences:
    def test_an_unknown_document_is_named_with_its_line(self, faults):
        found = faults(more("qrels.tsv", "q1\td93\t1"))
        assert found == ["qrels.tsv line 5: doc_id 'd93' is not in corpus.jsonl; add it or drop the line"]

    def test_many_unknown_queries_are_one_fault_with_the_first_lines_and_the_total(self, faults):
        found = faults(more("qrels.tsv", "\n".join(f"x{i}\td1\t1" for i in range(10))))
        assert found == [
            "qrels.tsv lines 5, 6, 7 and 7 more: 10 query_ids ('x0', 'x1', 'x2' and 7 more) are not in queries.jsonl; "
            "add it or drop the line"
        ]

    @pytest.mark.parametrize(
        ("rows", "reason"),
        [
            (["q1\td1_0\t1", "q2\td2_3\t1"], "'d1_0' looks like 'd1': one side has ids of chunks"),
            (["q1\tD1\t1", "q2\tD2\t1"], "'D1' looks like 'd1': upper and lower case"),
            (["q1\t7\t1", "q2\t07\t1"], "'7' looks like '007': leading zeros differ"),
            (["q1\td1.0\t1", "q2\td2.0\t1"], "'d1.0' looks like 'd1': ids became decimal numbers"),
        ],
    )
    def test_when_no_id_is_known_the_likely_reason_is_named(self, faults, rows, reason):
        (found,) = faults({"qrels.tsv": "\n".join(rows)})
        assert f"are not in corpus.jsonl (no doc_id of the file is); {reason}" in found

    def test_swapped_columns_are_recognised(self, faults):
        found = faults({"qrels.tsv": "d1\tq1\t1\nd2\tq2\t1\n"})
        assert len(found) == 2
        assert all("are the columns swapped? the order is query-id, corpus-id, score" in fault for fault in found)

    def test_a_document_at_fault_is_not_reported_as_unknown_too(self, faults):
        changes = more("corpus.jsonl", '{"_id": "d9", "text": 5}') | more("qrels.tsv", "q1\td9\t1")
        assert faults(changes) == ["corpus.jsonl line 4: text is a number; make it text"]

    def test_half_a_surrogate_pair_in_a_column_is_a_fault(self, faults):
        found = faults(more("queries.jsonl", '{"_id": "q3", "text": "hello", "city": "\\ud800"}'))
        assert len(found) == 1
        assert "holds half a surrogate pair; mend the text" in found[0]

    @pytest.mark.parametrize("grade", ["9" * 5000, "1000", "99999999999999999999"])
    def test_a_grade_larger_than_any_scale_is_a_fault(self, faults, grade):
        found = faults(more("qrels.tsv", f"q1\td2\t{grade}"))
        assert len(found) == 1
        assert "is larger than any scale of judgments" in found[0]

    def test_a_dataset_without_positives_is_refused(self, faults):
        assert faults({}, positive_from=3) == [
            "qrels.tsv: no judgment has grade 3 (data.positive_from) or more, the highest is 2; "
            "lower data.positive_from or judge positives"
        ]


OWN = {"qrels.tsv": None, "qrels/train.tsv": "q1\td1\t1\n", "qrels/test.tsv": "q2\td2\t1\n"}


class TestOwnSplits:
    def test_a_dataset_with_train_and_test_files_brings_its_own_split(self, load):
        dataset = load(OWN)
        assert dataset.own_splits == {"train": ("q1",), "test": ("q2",)}
        assert dataset.qrels.positives("q1") + dataset.qrels.positives("q2") == ["d1", "d2"]

    def test_one_file_of_the_folder_can_be_chosen(self, load):
        dataset = load(OWN, qrels="qrels/train.tsv")
        assert (dataset.own_splits, len(dataset.qrels)) == (None, 1)

    def test_files_that_are_no_split_are_not_read_but_named(self, load):
        dataset = load(OWN | {"qrels/val.tsv": "q9\td9\t1\n"})
        assert dataset.notes == ("qrels/: not read: val.tsv; splits are train.tsv, dev.tsv, test.tsv",)

    def test_a_folder_without_train_and_test_lists_what_is_there(self, faults):
        assert faults({"qrels.tsv": None, "qrels/all.tsv": "q1\td1\t1\n"}) == [
            "qrels, which holds all.tsv, needs train.tsv and test.tsv (dev.tsv is optional); "
            "add them, or set data.qrels to one file with all judgments (qrels/...) to have it split"
        ]

    def test_a_query_judged_in_two_splits_is_a_fault(self, faults):
        assert faults(OWN | {"qrels/dev.tsv": "q2\td1\t1\n"}) == [
            "qrels/test.tsv line 1: 1 queries are judged in dev.tsv too ('q2'); "
            "a query belongs to one split, keep it in one file"
        ]

    def test_a_qrels_file_beside_a_qrels_folder_is_ambiguous(self, folder, faults):
        (found,) = faults(OWN | {"qrels.tsv": SOUND["qrels.tsv"]})
        assert "holds both qrels.tsv and qrels/; set data.qrels to the one that counts" in found


class TestReviewed:
    def test_its_judgments_join_those_of_the_one_qrels_file(self, load, tmp_path):
        dataset = load({"reviewed.tsv": "query-id\tcorpus-id\tscore\nq1\t007\t1\nq2\td1\t0\n"}, reviewed="reviewed.tsv")
        assert dataset.qrels.positives("q1") == ["d1", "007"]
        assert dataset.qrels.grades("q2") == {"d2": 1, "d1": 0}
        assert dataset.own_splits is None
        assert dataset.files[-1] == tmp_path / "reviewed.tsv"

    def test_a_query_that_was_judged_in_review_alone_is_judged(self, load):
        changes = more("queries.jsonl", '{"_id": "q3", "text": "hello"}') | {"reviewed.tsv": "q3\t007\t1\n"}
        assert load(changes, reviewed="reviewed.tsv").qrels.positives("q3") == ["007"]

    def test_they_join_judged_queries_too(self, load):
        changes = {"judged.jsonl": JUDGED, "reviewed.tsv": "q1\td2\t0\n"}
        dataset = load(changes, judged="judged.jsonl", reviewed="reviewed.tsv")
        assert dataset.qrels.grades("q1") == {"d1": 1, "d2": 0}

    def test_with_own_splits_each_joins_the_split_its_query_is_in(self, load):
        dataset = load(OWN | {"reviewed.tsv": "q1\td2\t1\nq2\td1\t0\n"}, reviewed="reviewed.tsv")
        assert dataset.own_splits == {"train": ("q1",), "test": ("q2",)}
        assert dataset.qrels.positives("q1") == ["d1", "d2"]
        assert dataset.qrels.grades("q2") == {"d2": 1, "d1": 0}

    def test_they_change_the_hash_of_the_dataset_and_not_that_of_the_corpus(self, load):
        before = load()
        hashes = set()
        for line in ("q1\t007\t1\n", "q1\t007\t0\n"):
            dataset = load({"reviewed.tsv": line}, reviewed="reviewed.tsv")
            hashes.add(dataset.sha256)
            assert dataset.corpus_sha256 == before.corpus_sha256
        assert len(hashes | {before.sha256}) == 3

    def test_a_judgment_that_says_the_same_as_the_datasets_is_no_fault(self, load):
        dataset = load({"reviewed.tsv": "q1\td1\t2\n"}, reviewed="reviewed.tsv")
        assert dataset.qrels.grades("q1") == {"d1": 2, "d2": 0}

    def test_another_grade_than_the_datasets_is_a_fault_that_names_both_lines(self, faults):
        assert faults({"reviewed.tsv": "q2\td1\t1\nq1\td2\t1\n"}, reviewed="reviewed.tsv") == [
            "reviewed.tsv line 2: query 'q1' and document 'd2' have grade 1, but grade 0 in qrels.tsv line 3; keep one"
        ]

    def test_its_faults_are_reported_with_those_of_the_other_files(self, faults):
        changes = more("qrels.tsv", "q1\td93\t1") | {"reviewed.tsv": "q1\td94\t1\nq9\td1\t0\nq1\td2\t-1\n"}
        assert [fault.partition(" is ")[0] for fault in faults(changes, reviewed="reviewed.tsv")] == [
            "reviewed.tsv line 3: grade -1",
            "qrels.tsv line 5: doc_id 'd93'",
            "reviewed.tsv line 1: doc_id 'd94'",
            "reviewed.tsv line 2: query_id 'q9'",
        ]

    def test_with_own_splits_a_query_that_none_judges_is_a_fault(self, faults):
        changes = OWN | more("queries.jsonl", '{"_id": "q3", "text": "hello"}') | {"reviewed.tsv": "q3\td1\t1\n"}
        assert faults(changes, reviewed="reviewed.tsv") == [
            "reviewed.tsv line 1: query 'q3' is judged in none of train.tsv, test.tsv, so it belongs to no split; "
            "judge it there, or drop the line"
        ]

    def test_with_own_splits_an_unknown_query_is_one_fault(self, faults):
        assert faults(OWN | {"reviewed.tsv": "q9\td1\t1\n"}, reviewed="reviewed.tsv") == [
            "reviewed.tsv line 1: query_id 'q9' is not in queries.jsonl; add it or drop the line"
        ]

    def test_a_header_alone_holds_no_judgments_and_is_no_fault(self, load):
        dataset = load({"reviewed.tsv": "query-id\tcorpus-id\tscore\n"}, reviewed="reviewed.tsv")
        assert list(dataset.qrels.judgments()) == list(load().qrels.judgments())

    def test_a_file_that_is_not_there_says_who_writes_it(self, faults):
        (fault,) = faults({}, reviewed="reviewed.tsv")
        assert fault.startswith("reviewed.tsv does not exist, nor does reviewed.tsv.gz; ")
        assert fault.endswith("; `closecall judge-import` writes it, leave data.reviewed out until then")

    def test_a_judgment_on_a_document_without_text_goes_with_it_and_is_counted(self, load):
        changes = more("corpus.jsonl", '{"_id": "e1", "text": ""}') | {"reviewed.tsv": "q1\te1\t1\n"}
        dataset = load(changes, reviewed="reviewed.tsv")
        assert dataset.qrels.positives("q1") == ["d1"]
        assert "1 judgments of documents without text were dropped with them" in dataset.notes


class TestJudged:
    def test_jsonl_gives_queries_judgments_and_metadata(self, load):
        more_lines = '{"query_id": "q2", "query": "password", "relevant_docs": {"d2": 2, "007": 0}}\n'
        dataset = load({"judged.jsonl": JUDGED + more_lines, "queries.jsonl": None}, judged="judged.jsonl")
        assert [tuple(row) for row in dataset.qrels.judgments()] == [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "007", 0)]
        assert dataset.query("q1").metadata == {"language": "en"}
        assert [file.name for file in dataset.files] == ["corpus.jsonl", "judged.jsonl"]

    def test_yaml_says_the_same(self, load):
        content = """\
- query_id: q1
  query: lost my card
  relevant_docs: [d1, "007"]
  language: no
  asked: 2024-01-31
- {query_id: q2, query: forgot password, relevant_docs: {d2: 1}}
"""
        dataset = load({"judged.yaml": content}, judged="judged.yaml")
        assert [tuple(row) for row in dataset.qrels.judgments()] == [("q1", "d1", 1), ("q1", "007", 1), ("q2", "d2", 1)]
        assert dataset.query("q1").metadata == {"language": "no", "asked": "2024-01-31"}

    def test_a_listed_document_is_positive_whatever_positive_from_is(self, load):
        dataset = load({"judged.jsonl": JUDGED}, judged="judged.jsonl", positive_from=2)
        assert dataset.qrels.positives("q1") == ["d1"]

    def test_ids_that_yaml_takes_for_numbers_must_be_quoted(self, faults):
        content = """\
- query_id: 12
  query: lost my card
  relevant_docs: [d1, 007]
- query_id: q2
  query: password
  relevant_docs: {1e5: 1}
"""
        found = faults({"judged.yml": content}, judged="judged.yml")
        assert found[:2] == [
            'judged.yml line 1: YAML takes the id 12 for no text; put it in quotes: "12"',
            'judged.yml line 3: YAML takes the id 007 for no text; put it in quotes: "007"',
        ]

    @pytest.mark.parametrize(
        ("name", "content", "fault"),
        [
            (
                "judged.yaml",
                "query_id: q1\n",
                "judged.yaml: not a YAML list; write each judged query as one `- query_id:",
            ),
            ("judged.yaml", "- q1\n", "judged.yaml line 1: not a mapping; write `query_id: ...`"),
            ("judged.yaml", "- {query_id: q1\n", "judged.yaml line 1 column 16: not valid YAML, expected .*; mend it"),
            (
                "judged.yaml",
                "- query_id: q1\n  query: x\n  relevant_docs: {d1: 1, d1: 0}\n",
                "judged.yaml line 3 column 26: not valid YAML, the key 'd1' stands twice; mend it",
            ),
            (
                "judged.yaml",
                "- {query_id: q1, query: 5, relevant_docs: [d1]}",
                "line 1: query is a number; make it text",
            ),
        ],
    )
    def test_a_yaml_file_at_fault_is_named_with_its_line(self, folder, name, content, fault):
        with pytest.raises(DataError, match=fault):
            load_dataset(DataConfig(folder=folder({name: content}), judged=name))

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({"relevant_docs": "d1"}, "relevant_docs is text; write a list of document ids, or {id: grade}"),
            ({"relevant_docs": None}, "relevant_docs is null; write a list of document ids, or {id: grade}"),
            ({"relevant_docs": [None]}, "relevant_docs holds None, which is no id; write ids as text"),
            ({"relevant_docs": {"d1": "1"}}, "document 'd1': grade is text; write a whole number"),
            ({"relevant_docs": {"d1": True}}, "document 'd1': grade is true; write a whole number"),
            (
                {"relevant_docs": {"d1": 0.5}},
                "document 'd1': grade '0.5' is no whole number; write 0 (judged, not relevant), 1, 2, ...",
            ),
            ({"query": ""}, "query 'q2' has no text; write it or drop the query"),
            ({"query_id": None}, "query_id is null; write it as text, in quotes"),
            ({"relevant_docs": ["d93"]}, "doc_id 'd93' is not in corpus.jsonl; add it or drop the line"),
        ],
    )
    def test_a_judged_query_at_fault_is_named_with_its_line(self, faults, change, fault):
        line = json.dumps({"query_id": "q2", "query": "password", "relevant_docs": ["d2"]} | change)
        assert faults({"judged.jsonl": JUDGED + line}, judged="judged.jsonl") == [f"judged.jsonl line 2: {fault}"]

    def test_a_negative_grade_is_refused_with_advice(self, faults):
        line = '{"query_id": "q2", "query": "password", "relevant_docs": {"d2": -1}}'
        (found,) = faults({"judged.jsonl": JUDGED + line}, judged="judged.jsonl")
        assert found.startswith("judged.jsonl line 2: document 'd2': grade -1 is negative; say what it means")

    def test_a_query_judged_twice_with_two_grades_is_a_fault(self, faults):
        line = '{"query_id": "q1", "query": "lost my card", "relevant_docs": {"d1": 0}, "language": "en"}'
        assert faults({"judged.jsonl": JUDGED + line}, judged="judged.jsonl") == [
            "judged.jsonl line 2: query 'q1' and document 'd1' have grade 0, but grade 1 on line 1; keep one"
        ]
