import csv
import html
import json
import re
import shutil
import subprocess

import pytest

from closecall.errors import ArtifactError
from closecall.pipeline import load_experiment
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part, read_part
from mining.artifact import Dropped, FoundBy, HardNegative, Triple, read_triples
from mining.audit import WEIGHTS, Sign, closeness, suspects, suspicion
from mining.judge_import import import_marks
from mining.marks import read_marks
from mining.sheet import COLUMNS, audit, write_sheet

DOCUMENTS = {
    "p": "reset a forgotten password",
    "far": "opening hours on sunday",
    "near": "change the billing address",
    "like": "reset a forgotten pin",
    "other": "lock an account",
}
QUERIES = {
    "q1": "forgot my password",
    "q2": "forgot my password today",
    "q3": "when are you open",
    "q4": "forgot the code of my door",
}


def negative(doc_id, score, rank=1, guide=None, found_by=()):
    return HardNegative(doc_id, DOCUMENTS[doc_id], score, rank, guide, tuple(FoundBy(*said) for said in found_by))


def triple(*negatives, query_id="q1", positive_id="p", score=0.8, guide=None):
    texts = QUERIES[query_id], positive_id, DOCUMENTS[positive_id]
    return Triple(query_id, *texts, score, negatives, guide)


def dropped(doc_id, reason="within_margin", score=0.79, query_id="q1", positive_id="p"):
    return Dropped(query_id, positive_id, doc_id, 1, score, None, reason)


def train(*judgments):
    rows = judgments or (("q1", "p", 1),)
    queries = tuple(Query(query_id, text) for query_id, text in QUERIES.items())
    return Part(queries, Qrels(Judgment(*row) for row in rows), "")


def find(triples, spared=(), part=None, limit=10, **options):
    documents = [Document(doc_id, text) for doc_id, text in DOCUMENTS.items()]
    return suspects(triples, spared, part or train(), documents, limit, **options)


def ids(found):
    return [(suspect.doc_id, suspect.outcome) for suspect in found]


class TestSuspicion:
    def test_signs_add_up_to_one_minus_the_product_of_what_they_leave(self):
        """1 - (1 - 0.5 * 0.8) * (1 - 0.6 * 0.5) = 1 - 0.6 * 0.7"""
        assert (WEIGHTS["score"], WEIGHTS["words"]) == (0.5, 0.6)
        assert suspicion([Sign("score", 0.8, ""), Sign("words", 0.5, "")]) == 0.58
        assert suspicion([]) == 0
        assert suspicion([Sign(kind, 1.0, "") for kind in WEIGHTS]) <= 1

    def test_a_score_counts_by_its_distance_over_the_magnitude_of_the_positives(self):
        assert closeness(0.6, 0.8) == pytest.approx(0.75)
        assert closeness(0.9, 0.8) == 1
        assert closeness(-0.5, 0.2) == 0

    def test_below_zero_the_nearer_score_still_counts_more(self):
        assert closeness(-0.1, -0.2) == 1
        assert closeness(-0.22, -0.2) == pytest.approx(0.9)
        assert closeness(-0.3, -0.2) == pytest.approx(0.5)

    def test_a_score_that_is_no_number_says_nothing(self):
        assert closeness(float("nan"), 0.5) == closeness(0.5, float("nan")) == 0

    def test_each_sign_says_why_the_strongest_first(self):
        """near: score 0.776 / 0.8 = 97 %; guide 0.45 / 0.9; it answers q2, 3 of whose 4 words are q1's."""
        part = train(("q1", "p", 1), ("q2", "near", 1))
        found = find(
            [triple(negative("near", 0.776, 3, 0.45, [("dense", 3, 0.776), ("bm25", 2, 9.0)]), guide=0.9)],
            part=part,
            sources=["dense", "bm25"],
            base="dense",
        )
        assert found[0].why == (
            "answers the similar query q2",
            "scores 97 % of the positive",
            "by the guide scores 50 % of the positive",
            "also rank 2 in bm25",
        )
        left = (1 - 0.8 * 0.75) * (1 - 0.5 * 0.97) * (1 - 0.7 * 0.5) * (1 - 0.2)
        assert found[0].suspicion == pytest.approx(1 - left, abs=1e-4)

    def test_shared_words_with_the_positive_make_suspicious(self):
        """like: reset, a, forgotten of 5 words in all = 60 %"""
        (like,) = find([triple(negative("like", 0.4))])
        assert "shares 60 % of all words with the positive" in like.why
        assert like.suspicion == pytest.approx(1 - (1 - 0.5 * 0.5) * (1 - 0.6 * 0.6), abs=1e-4)

    def test_a_score_above_the_positives_and_one_beside_a_negative_score_are_said_in_words(self):
        assert find([triple(negative("far", 0.9))])[0].why == ("scores above the positive",)
        assert find([triple(negative("far", -0.3), score=-0.2)])[0].why == ("scores -0.30, the positive -0.20",)

    def test_a_query_that_is_little_alike_is_no_sign(self):
        """q4 shares 2 of 7 words with q1."""
        part = train(("q1", "p", 1), ("q4", "near", 1))
        assert find([triple(negative("near", 0.4))], part=part)[0].why == ("scores 50 % of the positive",)

    def test_a_source_without_ranks_is_no_sign(self):
        found = find([triple(negative("far", 0.4, found_by=[("random", 1, None)]))], sources=["dense"], base="dense")
        assert found[0].why == ("scores 50 % of the positive",)


class TestRanking:
    def test_kept_negatives_come_first_each_list_by_suspicion(self):
        found = find(
            [triple(negative("far", 0.3), negative("near", 0.7))],
            [dropped("like", "near_copy", 0.5), dropped("other", score=0.2)],
        )
        assert ids(found) == [("near", "kept"), ("far", "kept"), ("like", "near_copy"), ("other", "within_margin")]
        assert [suspect.suspicion for suspect in found[:2]] == sorted([s.suspicion for s in found[:2]], reverse=True)

    def test_only_suspected_false_negatives_are_shown_of_the_dropped(self):
        reasons = ("over_quota", "judged_positive", "same_text", "overused", "guide_not_finite")
        spared = [dropped(doc_id, reason) for doc_id, reason in zip(DOCUMENTS, reasons, strict=True)]
        assert find([triple()], [*spared, dropped("far", "outside_ranks")]) == find(
            [triple()], [dropped("far", "outside_ranks")]
        )

    def test_a_judged_candidate_is_not_shown_whatever_its_grade(self):
        part = train(("q1", "p", 1), ("q1", "near", 0), ("q1", "like", 1))
        assert find([triple(negative("near", 0.7))], [dropped("like")], part) == []

    def test_a_judgment_on_a_query_of_the_same_text_counts_too(self):
        queries = (Query("q1", "Forgot my  password"), Query("q9", "FORGOT my password"))
        part = Part(queries, Qrels([Judgment("q9", "near", 0)]), "")
        assert find([triple(negative("near", 0.7))], part=part) == []

    def test_what_was_marked_before_is_not_shown(self):
        found = find([triple(negative("near", 0.7), negative("far", 0.6))], [dropped("like")], done=[("q1", "near")])
        assert ids(found) == [("far", "kept"), ("like", "within_margin")]

    def test_a_query_and_document_stand_once_with_the_positive_that_makes_it_most_suspicious(self):
        triples = [
            triple(negative("near", 0.6), score=0.9),
            triple(negative("near", 0.6), positive_id="other", score=0.61),
        ]
        (near,) = find(triples)
        assert (near.positive_id, near.positive) == ("other", "lock an account")

    def test_what_is_kept_for_one_positive_is_shown_as_kept_though_dropped_for_another(self):
        triples = [triple(negative("near", 0.6)), triple(positive_id="other", score=0.61)]
        assert ids(find(triples, [dropped("near", positive_id="other")])) == [("near", "kept")]

    def test_each_list_has_half_of_the_places_and_those_the_other_leaves(self):
        kept = [triple(*(negative(doc_id, 0.5) for doc_id in ("far", "near")))]
        spared = [dropped("like"), dropped("other")]
        assert [outcome for _, outcome in ids(find(kept, spared, limit=3))] == ["kept", "kept", "within_margin"]
        assert [outcome for _, outcome in ids(find(kept, spared, limit=2))] == ["kept", "within_margin"]
        assert len(find(kept, [], limit=2)) == len(find([triple()], spared, limit=2)) == 2
        assert len(find(kept, [], limit=3)) == len(find([triple()], spared, limit=3)) == 2
        assert len(find(kept, spared[:1], limit=3)) == 3

    def test_ties_are_ordered_by_ids_whatever_the_order_of_the_triples(self):
        triples = [triple(negative("far", 0.4), query_id=query_id) for query_id in ("q3", "q1", "q2")]
        assert [suspect.query_id for suspect in find(triples)] == ["q1", "q2", "q3"]
        assert find(triples) == find(triples[::-1])


ODD = 'He said "no", twice;\r\nthen\tleft, 100 % sure, naïve 漢字 </script><script>alert(1)</script>'


@pytest.fixture
def odd():
    """Suspects with texts that a spreadsheet or a page could stumble over."""
    near = HardNegative("=d1", ODD, 0.7, 1)
    formulas = [HardNegative(f"{sign}d", f"{sign}1+1", 0.5, 2) for sign in "=+-@"]
    made = Triple("-q1", "=cmd|' /C calc'!A0", "@p", "+49 30 1234", 0.8, (near, *formulas))
    part = Part((Query("-q1", made.query),), Qrels([Judgment("-q1", "@p", 1)]), "")
    return suspects([made], [], part, [], 10)


def cells(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


class TestCsv:
    def test_it_has_a_byte_order_mark_and_the_documented_columns(self, odd, tmp_path):
        sheet = write_sheet(tmp_path / "review", odd, "key", {})
        assert sheet.csv.read_bytes().startswith(b"\xef\xbb\xbfmark,query_id,doc_id,query,")
        assert tuple(cells(sheet.csv)[0]) == COLUMNS
        assert (sheet.kept, sheet.dropped) == (5, 0)

    def test_texts_with_quotes_commas_and_line_breaks_come_back_whole(self, odd, tmp_path):
        assert ODD in [row["candidate"] for row in cells(write_sheet(tmp_path, odd, "key", {}).csv)]

    def test_no_text_can_be_a_formula_and_ids_stay_as_they_are(self, odd, tmp_path):
        rows = cells(write_sheet(tmp_path, odd, "key", {}).csv)
        texts = [row[name] for row in rows for name in ("query", "positive", "candidate", "why")]
        assert [text for text in texts if text.startswith(("=", "+", "-", "@"))] == []
        assert {row["candidate"] for row in rows} >= {"'=1+1", "'+1+1", "'-1+1", "'@1+1"}
        assert {row["doc_id"] for row in rows} == {"=d1", "=d", "+d", "-d", "@d"}
        assert {(row["query_id"], row["positive_id"]) for row in rows} == {("-q1", "@p")}

    def test_a_cell_is_no_longer_than_a_spreadsheet_takes(self, tmp_path):
        made = Triple("q1", "x", "p", "y", 0.8, (HardNegative("d", "word " * 9000, 0.7, 1),))
        part = Part((Query("q1", "x"),), Qrels([]), "")
        (row,) = cells(write_sheet(tmp_path, suspects([made], [], part, [], 5), "key", {}).csv)
        assert 30_000 < len(row["candidate"]) < 32_767
        assert row["candidate"].endswith(" …")

    def test_marked_rows_are_read_back_as_they_were_written(self, odd, tmp_path):
        path = write_sheet(tmp_path, odd, "key", {}).csv
        path.write_bytes(path.read_bytes().replace(b"\r\n,-q1", b"\r\nnot relevant,-q1"))
        found = read_marks(path)
        assert (found.faults, found.unmarked) == ([], 0)
        assert {mark.pair: mark.mark for mark in found.marks.values()} == {
            (suspect.query_id, suspect.doc_id): "not_relevant" for suspect in odd
        }


class TestReplacing:
    def mark(self, path, word="relevant"):
        path.write_bytes(path.read_bytes().replace(b"\r\n,-q1,=d1", f"\r\n{word},-q1,=d1".encode()))

    def test_marks_that_were_not_imported_are_never_lost(self, odd, tmp_path):
        path = write_sheet(tmp_path, odd, "key", {}).csv
        self.mark(path)
        before = path.read_bytes()
        with pytest.raises(ArtifactError, match=r"review.csv: holds 1 marks that were not imported; import them"):
            write_sheet(tmp_path, odd, "key", {})
        assert path.read_bytes() == before

    def test_misspelt_marks_are_not_lost_either(self, odd, tmp_path):
        self.mark(write_sheet(tmp_path, odd, "key", {}).csv, "relevnt")
        with pytest.raises(ArtifactError, match="holds 1 marks"):
            write_sheet(tmp_path, odd, "key", {})

    def test_a_sheet_without_marks_and_one_whose_marks_were_imported_are_replaced(self, odd, tmp_path):
        path = write_sheet(tmp_path, odd, "key", {}).csv
        write_sheet(tmp_path, odd, "key", {})
        self.mark(path)
        write_sheet(tmp_path, odd, "key", {("-q1", "=d1"): "relevant"})
        assert read_marks(path).marks == {}

    def test_a_mark_that_was_changed_after_the_import_is_not_lost(self, odd, tmp_path):
        self.mark(write_sheet(tmp_path, odd, "key", {}).csv)
        with pytest.raises(ArtifactError, match="holds 1 marks"):
            write_sheet(tmp_path, odd, "key", {("-q1", "=d1"): "unsure"})

    def test_what_is_no_sheet_is_not_replaced(self, odd, tmp_path):
        (tmp_path / "review.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ArtifactError, match=r"is no sheet to replace \(.*UTF-16.*\); choose another folder"):
            write_sheet(tmp_path, odd, "key", {})

    def test_no_sheet_is_written_into_an_artifact(self, odd, tmp_path):
        (tmp_path / "manifest.json").write_text("{}")
        with pytest.raises(ArtifactError, match="is an artifact, which holds nothing else; choose another folder"):
            write_sheet(tmp_path, odd, "key", {})


class TestPage:
    def test_it_names_no_other_resource_and_forbids_all(self, odd, tmp_path):
        page = write_sheet(tmp_path, odd, "key", {}).html.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src|href)\s*=\s*["']|https?:|url\(|@import|<link|<img""", page) == []
        assert "default-src 'none'" in page

    def test_texts_are_text_and_not_markup(self, odd, tmp_path):
        page = write_sheet(tmp_path, odd, "key", {}).html.read_text(encoding="utf-8")
        assert "<script>alert" not in page
        assert page.count("</script>") == 2
        assert html.escape('He said "no", twice;', quote=False) in page.replace("&#34;", '"')

    def test_every_suspect_has_a_card_with_the_three_marks_to_choose_from(self, odd, tmp_path):
        page = write_sheet(tmp_path, odd, "key", {}).html.read_text(encoding="utf-8")
        for number in range(len(odd)):
            assert re.findall(rf'name="{number}" value="(\w+)"', page) == ["relevant", "not_relevant", "unsure"]

    def test_a_sheet_without_suspects_says_so(self, tmp_path):
        sheet = write_sheet(tmp_path, [], "key", {})
        assert "There is nothing to review" in sheet.html.read_text(encoding="utf-8")
        assert cells(sheet.csv) == []

    @pytest.mark.skipif(shutil.which("node") is None, reason="the page's script runs in a browser or in node")
    def test_its_button_saves_the_bytes_of_the_csv_with_the_marks_in_it(self, odd, tmp_path):
        sheet = write_sheet(tmp_path, odd, "key", {})
        table, script = re.findall(r"<script[^>]*>(.*?)</script>", sheet.html.read_text(encoding="utf-8"), re.DOTALL)
        stub = f"""
const element = {{ textContent: {json.dumps(table)}, classList: {{ toggle() {{}} }}, querySelectorAll: () => [],
  addEventListener() {{}} }};
globalThis.document = {{ getElementById: () => element, addEventListener() {{}} }};
globalThis.localStorage = {{ getItem: () => null, setItem() {{}} }};
"""
        for marks, expected in (("", ""), ("mark(0, 'not_relevant');", "not_relevant")):
            code = f"{stub}{script}\n{marks}process.stdout.write(csv());"
            saved = subprocess.run(["node", "-e", code], capture_output=True, check=True, timeout=60).stdout
            first = f"{odd[0].query_id},{odd[0].doc_id},"
            assert saved == sheet.csv.read_bytes().replace(f",{first}".encode(), f"{expected},{first}".encode())


def test_a_marked_sheet_changes_the_next_mining_and_shows_no_test_query(config_file, toy_data, tmp_path):
    first = load_experiment(config_file)
    split = first.split()
    where = {name: {query.query_id for query in read_part(split, name).queries} for name in ("train", "dev", "test")}
    mined = first.mine()
    reviewed = tmp_path / "reviewed.tsv"

    def write():
        return audit(mined, split, first.corpus.documents, first.config.mining, reviewed, 40, tmp_path / "review")

    sheet = write()
    rows = cells(sheet.csv)
    assert (sheet.kept, sheet.dropped) == (20, 20)
    assert {row["query_id"] for row in rows} <= where["train"]
    shown = sheet.csv.read_text(encoding="utf-8") + sheet.html.read_text(encoding="utf-8")
    test = [query.text for query in read_part(split, "test").queries]
    assert [text for text in test if re.search(rf"\b{text}\b", shown)] == []

    kept, unsure, spared = rows[0], rows[1], rows[-1]
    kept["mark"], unsure["mark"], spared["mark"] = "Not relevant", "unsure", "relevant"
    with sheet.csv.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    import_marks(sheet.csv, first.corpus.documents, read_part(split, "train"), reviewed, mined)
    provenance = [json.loads(line) for line in (tmp_path / "reviewed.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {(entry["mined"], entry["model"]) for entry in provenance} == {(mined.key, first.base.fingerprint)}
    again = {(row["query_id"], row["doc_id"]) for row in cells(write().csv)}
    assert again.isdisjoint((row["query_id"], row["doc_id"]) for row in (kept, unsure, spared))

    second = load_experiment(config_file, [f"data.reviewed={reviewed}"])
    part = second.split()
    assert {name: {query.query_id for query in read_part(part, name).queries} for name in where} == where
    triples = read_triples(second.mine())
    assert (spared["query_id"], spared["doc_id"]) in {(row.query_id, row.positive_id) for row in triples}
    certified = [
        found
        for row in triples
        if row.query_id == kept["query_id"]
        for found in row.negatives
        if found.doc_id == kept["doc_id"]
    ]
    assert certified
    assert {said.source for found in certified for said in found.found_by} >= {"judged"}
