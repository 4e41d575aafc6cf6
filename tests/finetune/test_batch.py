import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

from closecall.encoding import prompt_of
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from closecall.text import normalise
from finetune.batch import BLOCK_DOCUMENTS, BatchBuilder, Collator, GuideMask
from mining.artifact import HardNegative, Triple

UNJUDGED: dict = {"q1": {}, "q2": {}, "q3": {}}
TEXTS = {"A": "alpha", "B": "beta", "C": "gamma", "D": "delta", "E": "epsilon"}


def builder(rows, judged, texts=TEXTS, queries=None, negatives=None, positive_from=1):
    """`rows` are "query_id positive negative ...", `judged` is {query_id: {doc_id: grade}}; texts by id."""
    queries = queries or {query_id: f"query {query_id}" for query_id in judged}
    documents = {doc_id: Document(doc_id, text) for doc_id, text in texts.items()}
    judgments = [Judgment(query_id, *row) for query_id, grades in judged.items() for row in grades.items()]
    part = Part(tuple(Query(*row) for row in queries.items()), Qrels(judgments, positive_from), "")
    triples = []
    for row in rows:
        query_id, positive, *others = row.split()
        found = tuple(HardNegative(doc_id, texts[doc_id], 0.5, 1) for doc_id in others)
        triples.append(Triple(query_id, queries[query_id], positive, texts[positive], 0.9, found))
    return BatchBuilder(triples, part, documents, negatives)


def table(made, rows=None):
    """Per row the documents with their marks: + positive, - negative, x left out."""
    rows = list(range(len(made))) if rows is None else rows
    keys = made.keys(rows)
    masks = made.masks(rows, rows, keys)
    texts = [made.document_texts[key] for key in keys]
    return [
        " ".join(
            ("+" if column == masks.positive[row] else "x" if masks.documents[row, column] else "-") + text
            for column, text in enumerate(texts)
        )
        for row in range(len(rows))
    ]


def test_every_document_of_the_other_rows_is_an_in_batch_negative():
    made = builder(["q1 A C", "q2 B D"], {"q1": {"A": 1}, "q2": {"B": 1}})
    assert table(made) == ["+alpha -gamma -beta -delta", "-alpha -gamma +beta -delta"]


def test_another_positive_of_the_query_is_masked():
    # field notes I: q1 -> {A, B}, q2 -> {B}
    made = builder(["q1 A", "q2 B"], {"q1": {"A": 1, "B": 1}, "q2": {"B": 1}})
    assert table(made) == ["+alpha xbeta", "-alpha +beta"]


@pytest.mark.parametrize(("grade", "mark"), [(3, "x"), (1, "x"), (0, "-")])
def test_any_grade_above_zero_is_masked_and_grade_zero_is_a_negative(grade, mark):
    judged = {"q1": {"A": 2, "B": grade}, "q2": {"B": 2}}
    assert table(builder(["q1 A", "q2 B"], judged, positive_from=2))[0] == f"+alpha {mark}beta"


def test_a_copy_of_a_relevant_document_under_another_id_is_masked():
    texts = TEXTS | {"C": " Beta"}
    made = builder(["q1 A", "q2 C"], {"q1": {"A": 1, "B": 1}, "q2": {"C": 1}}, texts)
    assert table(made)[0] == "+alpha x Beta"


def test_the_querys_own_text_is_masked():
    texts, queries = TEXTS | {"B": "Lost  Card"}, {"q1": "lost card", "q2": "other"}
    made = builder(["q1 A", "q2 B"], {"q1": {"A": 1}, "q2": {"B": 1}}, texts, queries)
    assert table(made) == ["+alpha xLost  Card", "-alpha +Lost  Card"]


def test_judgments_are_pooled_over_queries_of_the_same_text():
    queries = {"q1": "lost card", "q2": "Lost card ", "q3": "other"}
    judged = {"q1": {"A": 1}, "q2": {"B": 1}, "q3": {"C": 1}}
    made = builder(["q1 A", "q2 B", "q3 C"], judged, queries=queries)
    assert table(made) == ["+alpha xbeta -gamma", "xalpha +beta -gamma", "-alpha -beta +gamma"]


def test_a_document_that_rows_share_stands_once():
    texts = TEXTS | {"E": "GAMMA "}
    made = builder(["q1 A C D", "q2 B C E", "q3 A D"], UNJUDGED, texts)
    assert table(made)[2] == "+alpha -gamma -delta -beta"


def test_rows_may_bring_different_numbers_of_negatives():
    made = builder(["q1 A C D", "q2 B", "q3 E C"], UNJUDGED)
    assert table(made) == [
        "+alpha -gamma -delta -beta -epsilon",
        "-alpha -gamma -delta +beta -epsilon",
        "-alpha -gamma -delta -beta +epsilon",
    ]


@pytest.mark.parametrize(("negatives", "expected"), [(None, "ACD"), (1, "AC"), (0, "A"), (9, "ACD")])
def test_the_nearest_negatives_are_used_up_to_the_limit(negatives, expected):
    made = builder(["q1 A C D"], {"q1": {"A": 1}}, negatives=negatives)
    assert [made.document_texts[key] for key in made.keys([0])] == [TEXTS[doc_id] for doc_id in expected]


def random_world(rng):
    """Judged queries of which some share a text, documents of which some are copies; a triple per positive."""
    texts = {f"d{n}": rng.choice(["", " "]) + f"text {n % 14}" for n in range(20)}
    queries = {f"q{n}": f"query {n % 9}" for n in range(12)}
    judged = {
        q: {d: rng.randint(0, 2) for d in rng.sample(sorted(texts), 5)} | {"d0": rng.randint(0, 1)} for q in queries
    }
    rows = [f"{q} {d}" for q, grades in judged.items() for d, grade in grades.items() if grade == 2]
    return rows, judged, texts, queries


def violations(batch_rows, judged, texts, queries, negatives):
    """(query, document) pairs in which a document known as relevant is a negative, straight from the qrels."""
    found = 0
    for row, documents in zip(batch_rows, negatives, strict=True):
        same_query = [q for q in judged if queries[q] == queries[row.split()[0]]]
        relevant = {texts[d].strip() for q in same_query for d, grade in judged[q].items() if grade > 0}
        found += sum(text.strip() in relevant for text in documents)
    return found


def test_no_batch_ever_holds_a_known_positive_as_a_negative_where_the_naive_rule_does():
    rng, ours, naive = random.Random(0), 0, 0
    for _ in range(10):
        rows, judged, texts, queries = random_world(rng)
        made = builder(rows, judged, texts, queries, positive_from=2)
        for _ in range(40):
            chosen = rng.sample(range(len(rows)), min(8, len(rows)))
            keys = made.keys(chosen)
            masks = made.masks(chosen, chosen, keys)
            masks.documents[range(len(chosen)), masks.positive] = True
            left = [[made.document_texts[keys[c]] for c in (~line).nonzero()[0]] for line in masks.documents]
            taken = [rows[row] for row in chosen]
            ours += violations(taken, judged, texts, queries, left)
            positives = [texts[row.split()[1]] for row in taken]
            others = [positives[:number] + positives[number + 1 :] for number in range(len(taken))]
            naive += violations(taken, judged, texts, queries, others)
            assert len({normalise(made.document_texts[key]) for key in keys}) == len(keys)
            found = [normalise(made.document_texts[keys[column]]) for column in masks.positive]
            assert found == [normalise(text) for text in positives]
    assert ours == 0
    assert naive > 1000


def test_the_stock_sampler_without_duplicates_makes_batches_with_known_positives_and_ours_mask_them_all():
    # field case: q1 -> {A, B}, q2 -> {B}: no text stands twice in a batch, and B is a negative of q1
    texts = {f"d{n}": f"text {n}" for n in range(60)}
    judged = {f"q{n}": {f"d{n}": 1, f"d{(n + 7) % 60}": 1} for n in range(60)}
    rows = [f"{query_id} {doc_id}" for query_id, grades in judged.items() for doc_id in grades]
    made = builder(rows, judged, texts)
    data = Dataset.from_dict({"query": [r.split()[0] for r in rows], "document": [r.split()[1] for r in rows]})
    broken = batches = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        sampler = NoDuplicatesBatchSampler(data, 10, False, generator=generator, seed=seed)
        for batch in sampler:
            batches += 1
            found = [(rows[one].split()[0], rows[two].split()[1]) for one in batch for two in batch if one != two]
            broken += any(doc_id in judged[query_id] for query_id, doc_id in found)
            keys = made.keys(batch)
            masks = made.masks(batch, batch, keys)
            for number, row in enumerate(batch):
                known = {texts[doc_id] for doc_id in judged[rows[row].split()[0]]}
                left = {made.document_texts[keys[column]] for column in (~masks.documents[number]).nonzero()[0]}
                assert left & known == {texts[rows[row].split()[1]]}
    assert batches > 400
    assert broken > batches / 4


def test_a_document_that_two_processes_hold_counts_once():
    made = builder(["q1 A", "q2 B"], UNJUDGED)
    keys = np.concatenate([made.keys([0]), made.keys([1, 0])])  # A, B, A
    masks = made.masks([0, 1], [0, 1], keys)
    assert masks.positive.tolist() == [0, 1]
    assert masks.documents.tolist() == [[False, False, True], [False, False, True]]


def test_queries_compete_unless_they_are_of_one_text_or_share_an_answer():
    queries = {"q1": "one", "q2": "two", "q3": "three", "q4": "One "}
    judged = {"q1": {"A": 1, "B": 1}, "q2": {"B": 1}, "q3": {"C": 1}, "q4": {"D": 1}}
    made = builder(["q1 A", "q2 B", "q3 C", "q4 D"], judged, queries=queries)
    masks = made.masks([0, 1, 2, 3], [0, 1, 2, 3], made.keys([0, 1, 2, 3]))
    linked = [True, True, False, True]  # q1 and q2 share B, q1 and q4 are one query, so q4 and q2 share B too
    expected = [linked, linked, [False, False, True, False], linked]
    assert masks.queries.tolist() == masks.positive_queries.tolist() == expected


def test_a_positive_competes_with_documents_that_are_neither_its_rows_own_nor_known():
    made = builder(["q1 A C", "q2 B D"], {"q1": {"A": 1, "B": 1}, "q2": {"B": 1}})
    masks = made.masks([0, 1], [0, 1], made.keys([0, 1]))  # A C B D
    assert masks.positive_documents.tolist() == [[True, True, True, False], [False, False, True, True]]
    assert masks.own.tolist() == [[True, True, False, False], [False, False, True, True]]


def unit(*angles):
    """Vectors of the plane at these degrees."""
    turns = np.radians(np.asarray(angles, dtype=np.float64))
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def guided(margin, documents=(20, 10, 60, 160), judged=UNJUDGED):
    made = builder(["q1 A C", "q2 B D"], judged)  # keys: A 0, C 1, B 2, D 3
    made.guide = GuideMask(unit(0, 70), unit(*documents), margin)
    return made.masks([0, 1], [0, 1], made.keys([0, 1]))


def test_what_the_guide_scores_above_the_positive_is_left_out():
    # q1 at 0: A cos 20 = .940, C cos 10 = .985, B cos 60 = .5; q2 at 70: B cos 10 = .985, A cos 50 = .643
    masks = guided(0.0)
    assert masks.documents.tolist() == [[False, True, False, False], [False, False, False, False]]
    # A at 20: C cos 10 above .940; B at 60: A cos 40 = .766 below .985
    assert masks.positive_documents.tolist() == [[True, True, False, False], [False, False, True, True]]
    assert not masks.queries[0, 1]
    assert not masks.positive_queries[0, 1]


def test_the_guides_margin_counts_from_the_positives_score():
    # q2: ceiling .985 * .3 = .295, so A (.643), C (cos 60 = .5) are left out, D (cos 90 = 0) is not
    assert guided(0.7).documents.tolist() == [[False, True, True, False], [True, True, False, False]]
    # and queries: cos 70 = .342 is above q1's .940 * .3 = .282
    assert guided(0.7).queries.tolist() == [[True, True], [True, True]]


def test_a_negative_score_of_the_positive_keeps_the_order():
    # q1: A at 110 scores -.342, the ceiling is -.342 - .034: C at 100 (-.174) is left out, D at 160 (-.940) is not
    assert guided(0.1, (110, 100, 60, 160)).documents[0].tolist() == [False, True, True, False]


def test_no_guide_leaves_out_what_is_judged_not_relevant():
    judged = {"q1": {"A": 1, "C": 0}, "q2": {"B": 1}}
    assert not guided(0.0, judged=judged).documents[0, 1]


@pytest.fixture
def model(tiny_model):
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(tiny_model), device="cpu")
    loaded.prompts = {"query": "please ", "document": "the "}
    return loaded


def collated(model, rows=("q1 A", "q2 B"), texts=None):
    texts = texts or {"A": "copy bucket", "B": "delete the user key"}
    queries = {"q1": "duplicate bucket", "q2": "drop user"}
    made = builder(rows, {query_id: {} for query_id in queries}, texts, queries)
    return Collator(made, model)([{"row": row} for row in range(len(rows))])


def words(model, inputs, prefix):
    ids = inputs[f"{prefix}_input_ids"]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in ids]


def test_each_column_gets_the_prompt_of_its_role(model):
    inputs = collated(model)
    assert words(model, inputs, "query0") == ["please duplicate bucket", "please drop user"]
    assert words(model, inputs, "document0") == ["the delete the user key", "the copy bucket"]


def test_labels_follow_the_texts_which_come_longest_first(model):
    label = collated(model)["label"]
    assert label["keys"].tolist() == [1, 0]  # B is longer
    assert label["rows"].tolist() == [0, 1]


def test_many_documents_come_in_blocks_of_16(model):
    texts = {f"d{n}": "a " * n + "key" for n in range(40)}
    inputs = collated(model, ["q1 " + " ".join(texts)], texts)
    assert [len(inputs[f"document{number}_input_ids"]) for number in range(3)] == [16, 16, 8]
    assert inputs["label"]["keys"].tolist() == list(range(39, -1, -1))  # d0 is the shortest text
    assert inputs["document2_input_ids"].shape[1] < inputs["document0_input_ids"].shape[1]
    assert BLOCK_DOCUMENTS == 16


@pytest.mark.parametrize(
    "prompts",
    [
        {"query": "please ", "document": "the "},
        {"query": "please ", "document": "", "passage": "the "},
        {"passage": "the "},
        {"document": "", "query": ""},
        {},
    ],
)
def test_training_reads_the_same_tokens_as_encoding(model, prompts):
    model.prompts = prompts
    assert prompt_of(model, "query") == prompts.get("query", "")
    inputs = collated(model, ["q1 A"])
    for prefix, text, encode in (
        ("query0", "duplicate bucket", model.encode_query),
        ("document0", "copy bucket", model.encode_document),
    ):
        features = {key.removeprefix(f"{prefix}_"): inputs[key] for key in inputs if key.startswith(prefix)}
        with torch.no_grad():
            trained = model.eval()(features)["sentence_embedding"][0]
        torch.testing.assert_close(trained, torch.from_numpy(encode(text)), atol=1e-6, rtol=0)
