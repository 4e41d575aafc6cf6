import random

import pytest
import torch

from closecall.encoder import prompt_of
from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from closecall.text import normalise
from finetune.batch import MASKED, NEGATIVE, POSITIVE, BatchBuilder, Collator
from mining.artifact import HardNegative, Triple

MARKS = {POSITIVE: "+", NEGATIVE: "-", MASKED: "x"}
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


def table(batch):
    """Per query the documents with their marks: + positive, - negative, x masked."""
    return [
        " ".join(f"{MARKS[label]}{text}" for label, text in zip(row, batch.documents, strict=True))
        for row in batch.labels
    ]


def test_every_document_of_the_other_rows_is_an_in_batch_negative():
    batch = builder(["q1 A C", "q2 B D"], {"q1": {"A": 1}, "q2": {"B": 1}}).build([0, 1])
    assert batch.queries == ["query q1", "query q2"]
    assert table(batch) == ["+alpha -gamma -beta -delta", "-alpha -gamma +beta -delta"]


def test_another_positive_of_the_query_is_masked():
    # field notes I: q1 -> {A, B}, q2 -> {B}
    batch = builder(["q1 A", "q2 B"], {"q1": {"A": 1, "B": 1}, "q2": {"B": 1}}).build([0, 1])
    assert table(batch) == ["+alpha xbeta", "-alpha +beta"]


@pytest.mark.parametrize(("grade", "mark"), [(3, "x"), (1, "x"), (0, "-")])
def test_any_grade_above_zero_is_masked_and_grade_zero_is_a_negative(grade, mark):
    judged = {"q1": {"A": 2, "B": grade}, "q2": {"B": 2}}
    assert table(builder(["q1 A", "q2 B"], judged, positive_from=2).build([0, 1]))[0] == f"+alpha {mark}beta"


def test_a_copy_of_a_relevant_document_under_another_id_is_masked():
    texts = TEXTS | {"C": " Beta"}
    batch = builder(["q1 A", "q2 C"], {"q1": {"A": 1, "B": 1}, "q2": {"C": 1}}, texts).build([0, 1])
    assert table(batch)[0] == "+alpha x Beta"


def test_the_querys_own_text_is_masked():
    texts, queries = TEXTS | {"B": "Lost  Card"}, {"q1": "lost card", "q2": "other"}
    batch = builder(["q1 A", "q2 B"], {"q1": {"A": 1}, "q2": {"B": 1}}, texts, queries).build([0, 1])
    assert table(batch) == ["+alpha xLost  Card", "-alpha +Lost  Card"]


def test_judgments_are_pooled_over_queries_of_the_same_text():
    queries = {"q1": "lost card", "q2": "Lost card ", "q3": "other"}
    judged = {"q1": {"A": 1}, "q2": {"B": 1}, "q3": {"C": 1}}
    batch = builder(["q1 A", "q2 B", "q3 C"], judged, queries=queries).build([0, 1, 2])
    assert table(batch) == ["+alpha xbeta -gamma", "xalpha +beta -gamma", "-alpha -beta +gamma"]


def test_a_document_that_rows_share_stands_once():
    texts = TEXTS | {"E": "GAMMA "}
    batch = builder(["q1 A C D", "q2 B C E", "q3 A D"], UNJUDGED, texts).build([0, 1, 2])
    assert batch.documents == ["alpha", "gamma", "delta", "beta"]
    assert table(batch)[2] == "+alpha -gamma -delta -beta"


def test_rows_may_bring_different_numbers_of_negatives():
    batch = builder(["q1 A C D", "q2 B", "q3 E C"], UNJUDGED).build([0, 1, 2])
    assert batch.documents == ["alpha", "gamma", "delta", "beta", "epsilon"]
    assert [row.count(POSITIVE) for row in batch.labels] == [1, 1, 1]


@pytest.mark.parametrize(("negatives", "expected"), [(None, "ACD"), (1, "AC"), (0, "A"), (9, "ACD")])
def test_the_nearest_negatives_are_used_up_to_the_limit(negatives, expected):
    batch = builder(["q1 A C D"], {"q1": {"A": 1}}, negatives=negatives).build([0])
    assert batch.documents == [TEXTS[doc_id] for doc_id in expected]


def random_world(rng):
    """Judged queries of which some share a text, documents of which some are copies; a triple per positive."""
    texts = {f"d{n}": rng.choice(["", " "]) + f"text {n % 14}" for n in range(20)}
    queries = {f"q{n}": f"query {n % 9}" for n in range(12)}
    judged = {
        q: {d: rng.randint(0, 2) for d in rng.sample(sorted(texts), 5)} | {"d0": rng.randint(0, 1)} for q in queries
    }
    rows = [f"{q} {d}" for q, grades in judged.items() for d, grade in grades.items() if grade == 2]
    return rows, judged, texts, queries


def violations(batch_rows, judged, texts, queries, labels, documents):
    """(query, document) pairs in which a document known as relevant is a negative, straight from the qrels."""
    found = 0
    for row, marks in zip(batch_rows, labels, strict=True):
        same_query = [q for q in judged if queries[q] == queries[row.split()[0]]]
        relevant = {texts[d].strip() for q in same_query for d, grade in judged[q].items() if grade > 0}
        found += sum(mark == NEGATIVE and text.strip() in relevant for mark, text in zip(marks, documents, strict=True))
    return found


def test_no_batch_ever_holds_a_known_positive_as_a_negative_where_the_naive_rule_does():
    rng, ours, naive = random.Random(0), 0, 0
    for _ in range(10):
        rows, judged, texts, queries = random_world(rng)
        made = builder(rows, judged, texts, queries, positive_from=2)
        for _ in range(40):
            chosen = rng.sample(range(len(rows)), min(8, len(rows)))
            batch = made.build(chosen)
            taken = [rows[row] for row in chosen]
            ours += violations(taken, judged, texts, queries, batch.labels, batch.documents)
            diagonal = [[POSITIVE if i == j else NEGATIVE for j in range(len(taken))] for i in range(len(taken))]
            positives = [texts[row.split()[1]] for row in taken]
            naive += violations(taken, judged, texts, queries, diagonal, positives)
            assert len({normalise(text) for text in batch.documents}) == len(batch.documents)
            for row, marks in zip(taken, batch.labels, strict=True):
                place = [normalise(text) for text in batch.documents].index(normalise(texts[row.split()[1]]))
                assert (marks[place], marks.count(POSITIVE)) == (POSITIVE, 1)
    assert ours == 0
    assert naive > 1000


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
    assert words(model, inputs, "query") == ["please duplicate bucket", "please drop user"]
    assert words(model, inputs, "document0") == ["the delete the user key", "the copy bucket"]


def test_labels_follow_the_documents_which_come_longest_first(model):
    assert collated(model)["label"].tolist() == [[NEGATIVE, POSITIVE], [POSITIVE, NEGATIVE]]


def test_many_documents_come_in_blocks_of_32(model):
    texts = {f"d{n}": "a " * n + "key" for n in range(40)}
    inputs = collated(model, ["q1 " + " ".join(texts)], texts)
    assert [len(inputs[f"document{number}_input_ids"]) for number in (0, 1)] == [32, 8]
    assert inputs["label"].shape == (1, 40)
    assert inputs["label"][0].tolist().index(POSITIVE) == 39  # d0, the shortest text, is the positive
    assert inputs["document1_input_ids"].shape[1] < inputs["document0_input_ids"].shape[1]


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
        ("query", "duplicate bucket", model.encode_query),
        ("document0", "copy bucket", model.encode_document),
    ):
        features = {key.removeprefix(f"{prefix}_"): inputs[key] for key in inputs if key.startswith(prefix)}
        with torch.no_grad():
            trained = model.eval()(features)["sentence_embedding"][0]
        torch.testing.assert_close(trained, torch.from_numpy(encode(text)), atol=1e-6, rtol=0)
