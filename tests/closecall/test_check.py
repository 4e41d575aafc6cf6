"""The facts of a small dataset, counted by hand."""

import json

import pytest

from closecall.assign import SplitConfig
from closecall.check import describe, describe_split, lines
from closecall.dataset import DataConfig, load_dataset
from closecall.encoder import ModelConfig, load_encoder
from closecall.pipeline import load_experiment
from closecall.split import plan_split

LONG = "please show all the queue " * 7  # 35 words and 2 special tokens: over the tiny model's 32
CORPUS = [
    {"_id": "d1", "title": "create", "text": "the bucket"},
    {"_id": "d2", "text": "Create the BUCKET"},
    {"_id": "d3", "text": "delete the key"},
    {"_id": "d4", "text": LONG},
]
QUERIES = [
    {"_id": "t1", "text": "make a bucket", "language": "en"},
    {"_id": "t2", "text": "make new bucket", "language": "en"},
    {"_id": "v1", "text": "remove a key", "language": "fi"},
    {"_id": "e1", "text": "Make a  bucket", "language": "en"},
    {"_id": "e2", "text": "show all", "language": "fi"},
    {"_id": "none", "text": "drop the user"},
]
QRELS = {
    "train": "t1\td1\t2\nt1\td3\t0\nt2\td1\t1\nt2\td2\t1\nnone\td3\t0\n",
    "dev": "v1\td3\t1\n",
    "test": "e1\td1\t1\ne2\td4\t2\n",
}


@pytest.fixture
def report(tmp_path, tiny_model):
    """The report on the dataset above, with its own split or as one file to be split."""

    def report(own=True, **settings):
        for name, rows in (("corpus", CORPUS), ("queries", QUERIES)):
            (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "qrels").mkdir()
        for name, text in QRELS.items():
            (tmp_path / "qrels" / f"{name}.tsv").write_text(text)
        if not own:
            (tmp_path / "all.tsv").write_text("".join(QRELS.values()))
        qrels = None if own else tmp_path / "all.tsv"
        dataset = load_dataset(DataConfig(folder=tmp_path, qrels=qrels))
        assignment, leaks = plan_split(dataset, SplitConfig(**settings), tmp_path / "out")
        encoder = load_encoder(ModelConfig(name=str(tiny_model), device="cpu"))
        return describe(dataset, encoder) | describe_split(dataset, assignment, leaks)

    return report


def test_sizes_and_grades_are_counted(report):
    found = report()
    assert (found["documents"], found["queries"], found["judgments"]) == (4, 6, 8)
    assert found["grades"] == {"0": 2, "1": 4, "2": 2}
    assert found["positive_from"] == 1


def test_queries_without_positives_are_counted_and_not_averaged(report):
    """Positives: t1 1, t2 2, v1 1, e1 1, e2 1, none 0; 6 over 5 queries."""
    found = report()
    assert found["queries_without_positives"] == 1
    assert found["positives_per_query"] == 1.2
    assert found["set_aside"] == {"no_positives": 1}


def test_copies_are_counted_after_normalisation(report):
    found = report()
    assert (found["duplicate_documents"], found["duplicate_queries"]) == (1, 1)


def test_the_share_of_texts_that_the_model_cuts_is_counted_in_tokens(report):
    """d4 has 35 words and 2 special tokens; the longest query 3 words and 2."""
    found = report()
    assert found["max_length_tokens"] == 32
    assert found["truncated"]["documents"] == {"share": 0.25, "longest_tokens": 37, "sample": 4}
    assert found["truncated"]["queries"] == {"share": 0.0, "longest_tokens": 5, "sample": 6}


def test_a_text_of_just_the_models_length_is_not_cut(report, monkeypatch):
    monkeypatch.setitem(CORPUS[3], "text", "key " * 30)
    assert report()["truncated"]["documents"] == {"share": 0.0, "longest_tokens": 32, "sample": 4}


def test_own_splits_and_their_leaks_are_shown(report):
    found = report()
    assert found["own_splits"] is True
    assert found["split"] == {"train": 2, "dev": 1, "test": 2, "groups": 4}
    assert found["leaks"] == {"test~train same_text": 1}


def test_a_split_of_ours_has_no_leak(report):
    found = report(own=False, held_out=0.4, dev=0.2)
    assert found["own_splits"] is False
    assert found["leaks"] == {}
    assert sum(found["split"][name] for name in ("train", "dev", "test")) == 5


def test_columns_list_their_values_by_frequency(report):
    assert report()["columns"] == {"language": {"en": 3, "fi": 2, "None": 1}}


def test_the_report_is_plain_json(report):
    found = report()
    assert json.loads(json.dumps(found)) == found


def test_the_lines_say_all_of_it(report):
    found = report()
    notes = [f"note       {note}" for note in found["notes"]]
    assert lines(found) == [
        "corpus     4 documents, 1 of them copies of another",
        "queries    6, 1 of them copies of another, 1 without positives",
        "judgments  8: 2 of grade 0, 4 of grade 1, 2 of grade 2; positive from 1, 1.2 positives per query that has one",
        "length     the model reads 32 tokens: 25.0% of documents (longest 37), 0.0% of queries (longest 5) are cut",
        "column     language: en 3, fi 2, None 1",
        *notes,
        "split      train 2, dev 1, test 2 queries in 4 groups (the dataset's own)",
        "set aside  1 queries: no_positives",
        "LEAK       test~train same_text: 1 queries",
    ]


def test_a_split_without_leaks_is_said_to_have_none(report):
    assert "leaks      none found between test, dev and train" in lines(report(own=False, held_out=0.4, dev=0.2))


def test_a_column_of_many_values_is_cut_short(report):
    many = report() | {"columns": {"thread": {f"t{number}": 1 for number in range(15)}}}
    line = next(line for line in lines(many) if line.startswith("column"))
    assert line.endswith("t11 1, and 3 more values")


def test_the_effect_of_a_precision_is_measured_and_said(config_file):
    report = load_experiment(config_file, ["model.precision=bfloat16"]).check()
    effect = report["precision"]
    assert (effect["name"], effect["documents"], effect["queries"]) == ("bfloat16", 48, 32)
    assert 0.99 < effect["least_cosine"] <= effect["mean_cosine"] < 1
    assert set(effect["nDCG@10"]) == {"float32", "bfloat16"}
    assert any(line.startswith("precision  bfloat16, ") for line in lines(report))


def test_float32_has_nothing_to_say_of_precision(config_file):
    report = load_experiment(config_file, ["model.precision=float32"]).check()
    assert report["precision"] == {"name": "float32"}
    assert not any(line.startswith("precision") for line in lines(report))
