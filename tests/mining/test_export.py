import json
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import load_dataset, load_from_disk

from closecall.errors import ArtifactError, ConfigError, DataError
from closecall.records import Document
from mining.artifact import HardNegative, Triple
from mining.export import FORMS, MARK, export

LOST = HardNegative("d2", "card lost", 0.5, 1)
BACK = HardNegative("007", "Überweisung\nzurück", 0.25, 4)
LINE = HardNegative("d4", "one\u2028line", 0.125, 2)
TRIPLES = [  # ragged: 2, 0, 1 and 2 hard negatives; the queries q1 and q3 have two and one positives, q2 one
    Triple("q1", "lost card", "d1", "block the card", 0.875, (LOST, BACK)),
    Triple("q1", "lost card", "d9", "call us", 0.25, ()),
    Triple("q2", "卡", "d3", "card", -0.5, (BACK,)),
    Triple("q3", "hello", "d5", "hi", 0.75, (LINE, LOST)),
]
TABLES = FORMS[:4]
LINES = FORMS[4:]


def table(folder, name="train.parquet"):
    """The rows of a written table as lists of values."""
    cache = str(folder.parent / "cache")
    if name == "dataset":
        rows = load_from_disk(str(folder / name))
    else:
        rows = load_dataset("parquet", data_files=str(folder / name), split="train", cache_dir=cache)
    return [list(row.values()) for row in rows]


def lines(folder):
    """The parsed lines of `train.jsonl`, which end with a newline and nothing else."""
    assert b"\r" not in (folder / "train.jsonl").read_bytes()
    with (folder / "train.jsonl").open(encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def about(folder):
    return json.loads((folder / MARK).read_text(encoding="utf-8"))


def content(folder):
    """Bytes by name of everything in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def to(tmp_path):
    return tmp_path / "out"


def test_an_n_tuple_has_a_column_for_each_of_n_negatives_and_pairs_with_fewer_are_counted(to):
    exported = export(TRIPLES, "n-tuple", to)
    assert table(to) == [
        ["lost card", "block the card", "card lost", "Überweisung\nzurück"],
        ["hello", "hi", "one\u2028line", "card lost"],
    ]
    assert about(to)["columns"] == ["query", "positive", "negative_1", "negative_2"]
    assert (exported.rows, exported.left_out, exported.why) == (2, 2, "fewer than 2 hard negatives")


def test_an_n_tuple_of_one_holds_the_nearest_negative_of_every_pair_that_has_one(to):
    exported = export(TRIPLES, "n-tuple", to, negatives=1)
    assert table(to) == [
        ["lost card", "block the card", "card lost"],
        ["卡", "card", "Überweisung\nzurück"],
        ["hello", "hi", "one\u2028line"],
    ]
    assert (exported.left_out, exported.why) == (1, "no hard negative")
    assert exported.unused == 2  # the second ones of d1 and d5


def test_a_triplet_holds_one_hard_negative_and_pairs_without_are_counted(to):
    exported = export(TRIPLES, "triplet", to)
    assert table(to) == [
        ["lost card", "block the card", "card lost"],
        ["lost card", "block the card", "Überweisung\nzurück"],
        ["卡", "card", "Überweisung\nzurück"],
        ["hello", "hi", "one\u2028line"],
        ["hello", "hi", "card lost"],
    ]
    assert about(to)["columns"] == ["query", "positive", "negative"]
    assert (exported.rows, exported.left_out, exported.why) == (5, 1, "no hard negative")


def test_a_labeled_pair_is_written_once_however_many_triples_repeat_it(to):
    again = Triple("q1", "lost card", "d9", "call us", 0.25, (BACK,))
    copied = replace(TRIPLES[0], query_id="q7", negatives=(replace(LOST, doc_id="d77"),))  # the same texts, other ids
    exported = export([*TRIPLES, again, copied], "labeled-pair", to)
    assert table(to) == [
        ["lost card", "block the card", 1],
        ["lost card", "card lost", 0],
        ["lost card", "Überweisung\nzurück", 0],
        ["lost card", "call us", 1],
        ["卡", "card", 1],
        ["卡", "Überweisung\nzurück", 0],
        ["hello", "hi", 1],
        ["hello", "one\u2028line", 0],
        ["hello", "card lost", 0],
    ]
    assert about(to)["columns"] == ["query", "document", "label"]
    assert (exported.rows, exported.repeats) == (9, 4)  # call us, zurück; block the card, card lost
    assert (exported.left_out, exported.why) == (0, "")


def test_a_labeled_list_holds_the_positive_first_and_pairs_without_negatives_are_counted(to):
    exported = export(TRIPLES, "labeled-list", to)
    assert table(to) == [
        ["lost card", ["block the card", "card lost", "Überweisung\nzurück"], [1, 0, 0]],
        ["卡", ["card", "Überweisung\nzurück"], [1, 0]],
        ["hello", ["hi", "one\u2028line", "card lost"], [1, 0, 0]],
    ]
    assert about(to)["columns"] == ["query", "documents", "labels"]
    assert (exported.rows, exported.left_out, exported.why) == (3, 1, "no hard negative")


def test_flagembedding_lines_hold_one_positive_with_its_negatives_and_their_scores(to):
    exported = export(TRIPLES, "flagembedding", to)
    first, second, third = lines(to)
    assert first == {
        "query": "lost card",
        "pos": ["block the card"],
        "neg": ["card lost", "Überweisung\nzurück"],
        "pos_scores": [0.875],
        "neg_scores": [0.5, 0.25],
    }
    assert list(second) == list(third) == ["query", "pos", "neg", "pos_scores", "neg_scores"]
    assert second["neg_scores"] == [0.25]
    assert third["neg"] == ["one\u2028line", "card lost"]
    assert (exported.rows, exported.left_out, exported.why) == (3, 1, "no hard negative")


def test_flagembedding_gets_the_guides_scores_when_it_scored_all_and_never_a_mixture(to):
    guided = [replace(TRIPLES[2], positive_guide_score=9.0, negatives=(replace(BACK, guide_score=-3.0),))]
    export(guided, "flagembedding", to)
    assert (lines(to)[0]["pos_scores"], lines(to)[0]["neg_scores"], about(to)["scores"]) == ([9.0], [-3.0], "guide")
    half = [replace(TRIPLES[0], positive_guide_score=8.0, negatives=(replace(LOST, guide_score=1.0), BACK))]
    export([*guided, *half], "flagembedding", to)
    assert [line["pos_scores"] + line["neg_scores"] for line in lines(to)] == [[-0.5, 0.25], [0.875, 0.5, 0.25]]
    assert about(to)["scores"] == "base model"
    export([replace(guided[0], positive_guide_score=None)], "flagembedding", to)
    assert (lines(to)[0]["pos_scores"], lines(to)[0]["neg_scores"]) == ([-0.5], [0.25])


def test_tevatron_lines_hold_passages_with_an_id_a_title_and_a_text(to):
    exported = export(TRIPLES, "tevatron", to)
    assert lines(to)[1] == {
        "query_id": "q2",
        "query": "卡",
        "positive_passages": [{"docid": "d3", "title": "", "text": "card"}],
        "negative_passages": [{"docid": "007", "title": "", "text": "Überweisung\nzurück"}],
    }
    assert [line["query_id"] for line in lines(to)] == ["q1", "q2", "q3"]
    assert (exported.rows, exported.left_out, exported.why) == (3, 1, "no hard negative")


def test_tevatron_gets_titles_apart_from_texts_where_the_documents_are_given(to):
    documents = {"d3": Document("d3", "card"), "007": Document("007", "zurück", title="Überweisung")}
    mined = [replace(TRIPLES[2], negatives=(replace(BACK, text="Überweisung zurück"),))]
    export(mined, "tevatron", to, documents=documents)
    assert lines(to)[0]["positive_passages"] == [{"docid": "d3", "title": "", "text": "card"}]
    assert lines(to)[0]["negative_passages"] == [{"docid": "007", "title": "Überweisung", "text": "zurück"}]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({"d3": Document("d3", "card")}, "document '007': was mined but is not in the corpus; mine again"),
        ({"d3": Document("d3", "a card")}, "document 'd3': was mined but has another text in the corpus; mine again"),
    ],
)
def test_documents_of_another_corpus_are_refused(to, documents, message):
    with pytest.raises(DataError, match=message):
        export(TRIPLES[2:3], "tevatron", to, documents=documents)
    assert not to.exists()


@pytest.mark.parametrize("form", TABLES)
def test_the_dataset_and_the_parquet_file_give_back_the_same_columns_and_rows(to, form):
    exported = export(TRIPLES, form, to)
    assert exported.files == (to / "dataset", to / "train.parquet")
    assert load_from_disk(str(to / "dataset")).column_names == about(to)["columns"]
    assert table(to, "dataset") == table(to)


@pytest.mark.parametrize("form", LINES)
def test_the_lines_load_with_datasets_which_their_trainers_use(to, form):
    assert export(TRIPLES, form, to).files == (to / "train.jsonl",)
    data = load_dataset("json", data_files=str(to / "train.jsonl"), split="train", cache_dir=str(to.parent / "cache"))
    assert data.column_names == about(to)["columns"]
    assert data.to_list() == lines(to)


@pytest.mark.parametrize("form", FORMS[1:])
def test_the_number_of_negatives_caps_every_form_and_what_is_not_used_is_counted(to, form):
    exported = export(TRIPLES, form, to, negatives=1)
    assert exported.unused == 2
    assert "card lost" not in (table(to)[-1] if form in TABLES else json.dumps(lines(to)[2]))


@pytest.mark.parametrize("form", FORMS)
def test_the_same_input_gives_the_same_bytes_and_no_temporary_folder_stays(tmp_path, form):
    for name in ("one", "two"):
        export(TRIPLES, form, tmp_path / name, source="a1")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_what_was_written_and_left_out_stands_in_the_export(to):
    export(TRIPLES, "n-tuple", to, negatives=1, source="a1b2")
    assert about(to) == {
        "form": "n-tuple",
        "source": "a1b2",
        "negatives": 1,
        "columns": ["query", "positive", "negative_1"],
        "pairs": 4,
        "rows": 3,
        "left_out": 1,
        "repeats": 0,
        "unused": 2,
        "why": "no hard negative",
    }


def test_what_was_not_written_is_said_in_a_sentence_and_in_json(to):
    exported = export(TRIPLES, "n-tuple", to, negatives=1)
    assert exported.sentence == (
        "export: 3 rows as n-tuple; 1 (query, positive) pairs left out: no hard negative; "
        "2 more hard negatives not asked for"
    )
    assert json.loads(json.dumps(exported.as_json())) == {
        "folder": str(to),
        "form": "n-tuple",
        "files": [str(to / "dataset"), str(to / "train.parquet")],
        "rows": 3,
        "left_out": 1,
        "why": "no hard negative",
        "repeats": 0,
        "unused": 2,
    }
    twice = export([TRIPLES[2], TRIPLES[2]], "labeled-pair", to)
    assert twice.sentence == "export: 2 rows as labeled-pair; 2 repeated pairs written once"


def test_an_earlier_export_is_replaced_whole(to):
    export(TRIPLES, "triplet", to)
    export(TRIPLES, "tevatron", to)
    assert sorted(content(to)) == [MARK, "train.jsonl"]
    assert list(to.parent.iterdir()) == [to]


def test_an_empty_folder_is_filled(to):
    to.mkdir()
    assert export(TRIPLES, "tevatron", to).rows == 3


def test_a_folder_that_is_no_export_stays_as_it_is(to):
    to.mkdir()
    (to / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"out: holds files but no export\.json, so it is no earlier export"):
        export(TRIPLES, "triplet", to)
    assert content(to) == {"thesis.txt": b"mine"}
    assert list(to.parent.iterdir()) == [to]


def test_a_file_is_not_replaced(to):
    to.write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match="out: is a file, so it is no earlier export"):
        export(TRIPLES, "triplet", to)
    assert to.read_text(encoding="utf-8") == "mine"


def test_a_hidden_folder_of_the_user_is_not_lost(to):
    kept = to.with_name(".out.old")
    kept.mkdir()
    (kept / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"\.out\.old: holds files"):
        export(TRIPLES, "triplet", to)
    assert content(kept) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("written", ["train.parquet", MARK])
def test_an_export_that_fails_leaves_the_earlier_one(to, monkeypatch, written):
    export(TRIPLES, "tevatron", to)
    before = content(to)

    def broken(*_arguments, **_options):
        raise RuntimeError("disk full")

    target = "mining.export.pq.write_table" if written == "train.parquet" else "pathlib.Path.write_text"
    with monkeypatch.context() as patch:
        patch.setattr(target, broken)
        with pytest.raises(RuntimeError, match="disk full"):
            export(TRIPLES, "triplet", to)
    assert content(to) == before
    assert list(to.parent.iterdir()) == [to]


def test_an_export_killed_between_its_renames_is_there_again_when_the_next_one_fails(to, monkeypatch):
    export(TRIPLES, "tevatron", to)
    before = content(to)
    to.rename(to.with_name(".out.old"))
    monkeypatch.setattr("mining.export._write_jsonl", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(TRIPLES, "tevatron", to)
    assert content(to) == before


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"out: cannot be written \(.*\); choose another folder"):
        export(TRIPLES, "triplet", tmp_path / "file" / "out")


def test_the_folder_may_be_the_one_of_the_shell(to, monkeypatch):
    to.mkdir()
    monkeypatch.chdir(to)
    export(TRIPLES, "tevatron", Path("."))
    assert sorted(content(to)) == [MARK, "train.jsonl"]


@pytest.mark.parametrize(
    ("form", "hint"),
    [("tuple", "'n-tuple'"), ("Triplets", "'triplet'"), ("labelled_pair", "'labeled-pair'"), ("FlagEmbed", "'flagemb")],
)
def test_an_unknown_form_names_the_nearest_and_all_of_them(to, form, hint):
    every = "n-tuple, triplet, labeled-pair, labeled-list, flagembedding, tevatron"
    with pytest.raises(ConfigError, match=f"form: found '{form}'; did you mean {hint}.* known forms: {every}$"):
        export(TRIPLES, form, to)


def test_no_negatives_at_all_cannot_be_asked_for(to):
    with pytest.raises(ConfigError, match="negatives: found 0; it must be 1 or more"):
        export(TRIPLES, "triplet", to, negatives=0)


@pytest.mark.parametrize(
    ("triples", "form", "negatives", "message"),
    [
        ([], "labeled-pair", None, r"there is no \(query, positive\) pair.*; mine judged queries first"),
        (
            TRIPLES[1:2],
            "triplet",
            None,
            "none of the 1 .* pairs has a hard negative; loosen the filters .*labeled-pair",
        ),
        (TRIPLES[1:2], "n-tuple", None, "none of the 1 .* pairs has a hard negative"),
        (TRIPLES[1:2], "n-tuple", 3, "none of the 1 .* pairs has a hard negative"),
        (TRIPLES, "n-tuple", 3, "none of the 4 .* pairs has 3 hard negatives, the most is 2; ask for 2 or fewer"),
    ],
)
def test_an_export_without_a_row_is_an_error_that_says_why(to, triples, form, negatives, message):
    with pytest.raises(DataError, match=f"nothing to export: {message}"):
        export(triples, form, to, negatives)
    assert not to.exists()


def test_pairs_without_negatives_are_still_labeled_pairs(to):
    assert export(TRIPLES[1:2], "labeled-pair", to).rows == 1
    assert table(to) == [["lost card", "call us", 1]]


@pytest.mark.parametrize("form", FORMS)
def test_a_negative_with_the_text_of_a_positive_of_its_query_is_an_error_and_never_dropped(to, form):
    own = [replace(TRIPLES[0], negatives=(replace(LOST, text="  Block the\u200b CARD"), BACK))]
    other = [  # the positive of another triple, whose query is the same but for its case
        replace(TRIPLES[0], negatives=(LOST, replace(BACK, doc_id="d2", text="Call  us"))),
        replace(TRIPLES[1], query_id="q7", query="Lost card"),
    ]
    for triples in (own, other):
        with pytest.raises(DataError, match="query 'q1', positive 'd1': the hard negative 'd2' has the text of a pos"):
            export(triples, form, to)
    assert not to.exists()


def test_a_negative_that_is_another_querys_positive_is_a_negative(to):
    assert export([TRIPLES[0], replace(TRIPLES[3], positive="card lost", negatives=())], "triplet", to).rows == 2


def train(data, model_folder, loss, folder):
    """One training step of sentence-transformers on the data as they are; the loss of that step."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    model = SentenceTransformer(str(model_folder), device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        str(folder),
        max_steps=1,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
    )
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss(model))
    return trainer.train().training_loss


@pytest.mark.parametrize(
    ("form", "loss", "name"),
    [
        ("n-tuple", "MultipleNegativesRankingLoss", "dataset"),
        ("triplet", "MultipleNegativesRankingLoss", "dataset"),
        ("triplet", "TripletLoss", "train.parquet"),
        ("labeled-pair", "OnlineContrastiveLoss", "dataset"),
        ("labeled-pair", "ContrastiveLoss", "train.parquet"),
    ],
)
def test_sentence_transformers_trains_on_it_as_it_is(to, tiny_model, form, loss, name):
    from sentence_transformers.sentence_transformer import losses

    export(TRIPLES, form, to)
    if name == "dataset":
        data = load_from_disk(str(to / name))
    else:
        data = load_dataset("parquet", data_files=str(to / name), split="train", cache_dir=str(to.parent / "cache"))
    assert train(data, tiny_model, getattr(losses, loss), to.parent / "run") > 0
