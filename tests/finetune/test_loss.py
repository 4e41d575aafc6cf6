import itertools
import math

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    GISTEmbedLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch.nn import functional

from closecall.records import Document, Judgment, Qrels, Query
from closecall.split import Part
from finetune.batch import BatchBuilder, Collator, GuideMask
from finetune.config import FinetuneConfig
from finetune.loss import JudgedMultipleNegativesRankingLoss
from finetune.weights import float32_attention
from mining.artifact import HardNegative, Triple

ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
BOTH = ("query_to_doc", "doc_to_query")
HARDNESS = (None, "hard_negatives", "in_batch_negatives", "all_negatives")
OPTIONS = [
    *itertools.product([("query_to_doc",), BOTH, ALL], ["joint"], HARDNESS),
    *itertools.product([("query_to_doc",), BOTH], ["per_direction"], HARDNESS[:2]),
]


class Echo(torch.nn.Module):
    """A model whose embeddings are its input."""

    def forward(self, features):
        return {"sentence_embedding": features["embedding"]}

    def get_embedding_dimension(self):
        return 8


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def builder(rows, judged=None, queries=None):
    """`rows` are "query_id positive negative ...", a document's text is its id."""
    judged = judged or {row.split()[0]: {row.split()[1]: 1} for row in rows}
    names = {row.split()[0]: row.split()[0] for row in rows} | (queries or {})
    ids = {word for row in rows for word in row.split()[1:]} | {d for grades in judged.values() for d in grades}
    judgments = [Judgment(query_id, *row) for query_id, grades in judged.items() for row in grades.items()]
    part = Part(tuple(Query(*row) for row in names.items()), Qrels(judgments, 1), "")
    triples = []
    for row in rows:
        query_id, positive, *others = row.split()
        found = tuple(HardNegative(doc_id, doc_id, 0.5, 1) for doc_id in others)
        triples.append(Triple(query_id, names[query_id], positive, positive, 0.9, found))
    return BatchBuilder(triples, part, {doc_id: Document(doc_id, doc_id) for doc_id in ids}, None)


def distinct(rows, negatives):
    return builder([" ".join([f"q{n}", f"p{n}", *(f"n{n}-{k}" for k in range(negatives))]) for n in range(rows)])


def columns_of(inputs):
    """The one column of queries and the one of documents that a collator made."""
    return [
        {key.removeprefix(f"{name}_"): value for key, value in inputs.items() if key.startswith(name)}
        for name in ("query0", "document0")
    ]


def ours(made, queries, documents, model=None, **settings):
    """The loss of embeddings: `documents` in the order in which the rows name them."""
    loss = JudgedMultipleNegativesRankingLoss(model or Echo(), made, FinetuneConfig(**settings))
    rows = list(range(len(made)))
    labels = {"rows": torch.tensor(rows), "keys": torch.from_numpy(made.keys(rows))}
    return loss([{"embedding": queries}, {"embedding": documents}], labels)


def stock_order(columns):
    """Columns of sentence-transformers (positives, first negatives, ...) row by row."""
    return torch.stack(columns, dim=1).flatten(0, 1)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize(("directions", "partition", "hardness"), OPTIONS)
def test_with_distinct_documents_it_is_the_stock_loss_with_its_gradients(directions, partition, hardness, negatives):
    columns = [leaf(4, 6, seed=number) for number in range(2 + negatives)]
    stock = MultipleNegativesRankingLoss(
        Echo(), directions=directions, partition_mode=partition, hardness_mode=hardness, hardness_strength=5.0
    ).compute_loss_from_embeddings(columns, None)
    expected = torch.autograd.grad(stock, columns)
    settings = {"directions": directions, "partition": partition, "hardness": hardness, "hardness_strength": 5.0}
    loss = ours(distinct(4, negatives), columns[0], stock_order(columns[1:]), **settings)
    torch.testing.assert_close(loss, stock, atol=1e-5, rtol=0)
    for found, wanted in zip(torch.autograd.grad(loss, columns), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_scale_is_the_stock_losss(scale):
    columns = [leaf(4, 6, seed=number) for number in range(3)]
    stock = MultipleNegativesRankingLoss(Echo(), scale=scale).compute_loss_from_embeddings(columns, None)
    loss = ours(distinct(4, 1), columns[0], stock_order(columns[1:]), scale=scale)
    torch.testing.assert_close(loss, stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize("directions", [("query_to_doc",), ALL])
def test_matryoshka_dimensions_are_the_stock_losss_around_it(directions):
    columns, model = [leaf(4, 8, seed=number) for number in range(3)], Echo()
    inner = MultipleNegativesRankingLoss(model, directions=directions)
    stock = MatryoshkaLoss(model, inner, [8, 4, 2])([{"embedding": column} for column in columns], None)
    expected = torch.autograd.grad(stock, columns)
    settings = {"directions": directions, "matryoshka": (4, 2)}
    loss = ours(distinct(4, 1), columns[0], stock_order(columns[1:]), **settings)
    torch.testing.assert_close(loss, stock, atol=1e-5, rtol=0)
    for found, wanted in zip(torch.autograd.grad(loss, columns), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_rows_worked_by_hand():
    made = builder(["q1 A", "q2 B", "q3 C"], {"q1": {"A": 1, "B": 1}, "q2": {"B": 1}, "q3": {"C": 1}})
    turns = torch.tensor([0.0, 90.0, 180.0]).deg2rad()
    queries = torch.stack([turns.cos(), turns.sin()], dim=1)
    turns = torch.tensor([0.0, 60.0, 180.0]).deg2rad()
    documents = torch.stack([turns.cos(), turns.sin()], dim=1)
    # cosines: q1 1, .5, -1; q2 0, .866, 0; q3 -1, -.5, 1; B is masked for q1
    first = math.log(math.e + math.exp(-1)) - 1
    second = math.log(1 + math.exp(3**0.5 / 2) + 1) - 3**0.5 / 2
    third = math.log(math.exp(-1) + math.exp(-0.5) + math.e) - 1
    loss = ours(made, queries, documents, scale=1.0)
    assert loss.item() == pytest.approx((first + second + third) / 3, abs=1e-6)
    assert (round(first, 4), round(second, 4), round(third, 4)) == (0.1269, 0.6104, 0.3064)


def test_a_document_masked_for_all_has_no_influence():
    judged = {"q1": {"A": 1, "C": 1}, "q2": {"B": 1, "C": 1}}
    made, losses = builder(["q1 A C", "q2 B"], judged), []
    for seed in (3, 4):
        documents = leaf(3, 4, seed=2).detach().clone()
        documents[1] = leaf(4, seed=seed).detach()
        documents.requires_grad_()
        loss = ours(made, leaf(2, 4, seed=1), documents)
        loss.backward()
        losses.append(loss.item())
        assert documents.grad[1].tolist() == [0.0] * 4
        assert documents.grad[[0, 2]].abs().sum() > 0
    assert losses[0] == losses[1]


def test_a_shared_positive_is_the_positive_of_both_rows_and_never_their_negative():
    queries, documents = leaf(2, 4, seed=1), leaf(2, 4, seed=2)
    shared = ours(builder(["q1 A B", "q2 A"]), queries, documents)
    alone = [ours(builder([f"q{row} A B"]), queries[row - 1 : row], documents) for row in (1, 2)]
    torch.testing.assert_close(shared, (alone[0] + alone[1]) / 2)


def test_rows_with_different_numbers_of_negatives_are_exact():
    made = builder(["q1 A C D", "q2 B", "q3 C"], {"q1": {"A": 1}, "q2": {"B": 1, "D": 2}, "q3": {"C": 1}})
    queries, documents = leaf(3, 5, seed=1), leaf(4, 5, seed=2)  # A C D B
    kept = [(0, [0, 1, 2, 3]), (3, [0, 1, 3]), (1, [0, 1, 2, 3])]
    cosine = torch.nn.functional.cosine_similarity(queries[:, None], documents[None], dim=2).double() * 20
    by_hand = [
        math.log(sum(math.exp(row[j]) for j in columns)) - row[positive]
        for row, (positive, columns) in zip(cosine.tolist(), kept, strict=True)
    ]
    assert ours(made, queries, documents).item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)


def test_scores_are_float32_inside_low_precision():
    made = builder(["q1 A", "q2 B"])
    queries, documents = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.001], [0.9999, 0.01]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = ours(made, queries, documents, scale=100.0)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, ours(made, queries, documents, scale=100.0), atol=0, rtol=0)


class GuideEcho(torch.nn.Module):
    """A guide whose embeddings are its input."""

    def forward(self, features):
        return {"sentence_embedding": features["guide"]}


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_with_a_guide_it_is_the_gist_loss_with_its_gradients(margin):
    columns = [leaf(6, 5, seed=number) for number in range(2)]
    seen = [torch.nn.functional.normalize(leaf(6, 3, seed=number).detach(), dim=1) for number in (8, 9)]
    stock = GISTEmbedLoss.__new__(GISTEmbedLoss)
    torch.nn.Module.__init__(stock)
    vars(stock).update(temperature=0.05, margin=margin, margin_strategy="relative", must_retokenize=False)
    vars(stock).update(contrast_anchors=True, contrast_positives=True, gather_across_devices=False)
    stock.model, stock.guide = Echo(), GuideEcho()
    stock.similarity_fct, stock.cross_entropy_loss = torch.nn.CosineSimilarity(dim=-1), torch.nn.CrossEntropyLoss()
    expected = stock([{"embedding": one, "guide": two} for one, two in zip(columns, seen, strict=True)], None)
    made = distinct(6, 0)
    made.guide = GuideMask(seen[0].numpy(), seen[1].numpy(), margin)
    masks = made.masks(list(range(6)), list(range(6)), made.keys(list(range(6))))
    assert masks.documents.any()
    loss = ours(made, *columns, directions=("query_to_doc", "query_to_query", "doc_to_doc"))
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    wanted = torch.autograd.grad(expected, columns)
    for found, gradient in zip(torch.autograd.grad(loss, columns), wanted, strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=0)


WORLD = ["q0 copy-bucket delete-user", "q1 delete-user list-key show-key", "q2 list-key", "q3 copy-bucket"]
WORLD += ["q4 new-key"]
JUDGED = {
    "q0": {"copy-bucket": 1, "list-key": 1},
    "q1": {"delete-user": 1, "new-key": 2, "show-key": 0},
    "q2": {"list-key": 1},
    "q3": {"copy-bucket": 1},
    "q4": {"new-key": 1},
}
CACHED = [
    {},
    {"directions": BOTH, "partition": "per_direction"},
    {"directions": ALL},
    *({"hardness": hardness} for hardness in HARDNESS[1:]),
    {"matryoshka": (16, 8), "directions": ALL},
    {"guide": {}},
]


@pytest.mark.parametrize("settings", CACHED, ids=str)
def test_cached_gradients_are_the_plain_ones(tiny_model, settings):
    gradients = []
    for size in (None, 2):
        model = SentenceTransformer(str(tiny_model), device="cpu")
        made = builder(WORLD, JUDGED, {f"q{n}": f"please the key {n} bucket" for n in range(5)})
        made.document_texts = [text.replace("-", " the ") for text in made.document_texts]
        if "guide" in settings:
            vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
            made.guide = GuideMask(vectors[:5], vectors[5 : 5 + len(made.document_texts)], 0.1)
        inputs = Collator(made, model)([{"row": row} for row in range(5)])
        columns = columns_of(inputs)
        config = FinetuneConfig(mini_batch_size=size, **settings)
        torch.manual_seed(7)
        model.eval()  # dropout draws by the shape of what it gets, and plain and cached pass other shapes
        loss = JudgedMultipleNegativesRankingLoss(model, made, config)(columns, inputs["label"])
        loss.backward()
        gradients.append((loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    assert gradients[0][0] == pytest.approx(gradients[1][0], abs=1e-5)
    assert gradients[0][1].keys() == gradients[1][1].keys()
    for name, plain in gradients[0][1].items():
        torch.testing.assert_close(gradients[1][1][name], plain, atol=1e-5, rtol=0)
    assert max(float(gradient.abs().max()) for gradient in gradients[0][1].values()) > 1e-3


def test_the_cached_loss_replays_dropout(tiny_model):
    model = SentenceTransformer(str(tiny_model), device="cpu").train()
    made = builder(["q0 copy-bucket", "q1 delete-user"])
    inputs = Collator(made, model)([{"row": 0}, {"row": 1}])
    columns = columns_of(inputs)
    losses, gradients = [], []
    for size in (None, 2):  # one mini-batch per column: plain and cached draw alike
        torch.manual_seed(1)
        model.zero_grad()
        config = FinetuneConfig(mini_batch_size=size)
        loss = JudgedMultipleNegativesRankingLoss(model, made, config)([dict(c) for c in columns], inputs["label"])
        loss.backward()
        losses.append(loss.item())
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    for plain, cached in zip(*gradients, strict=True):
        torch.testing.assert_close(cached, plain, atol=1e-5, rtol=0)


def test_attention_under_autocast_on_a_cpu_is_that_of_float32_with_its_gradient():
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    mask = torch.zeros(2, 1, 5, 5, dtype=torch.bfloat16)
    mask[0, :, :, 3:] = float("-inf")
    expected = functional.scaled_dot_product_attention(*given, attn_mask=mask.float())
    expected.sum().backward()
    gradients = [tensor.grad.clone() for tensor in given]
    low = [tensor.detach().bfloat16().float().requires_grad_() for tensor in given]
    with torch.autocast("cpu", dtype=torch.bfloat16), float32_attention(torch.device("cpu")):
        found = functional.scaled_dot_product_attention(*low, attn_mask=mask)
    found.sum().backward()
    exact = functional.scaled_dot_product_attention(*(tensor.detach() for tensor in low), attn_mask=mask.float())
    assert torch.equal(found, exact)  # not a bit of bfloat16 but that of its inputs
    for tensor, gradient in zip(low, gradients, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, atol=0.05, rtol=0.05)


def test_attention_is_left_alone_without_autocast_and_after_it():
    before, given = functional.scaled_dot_product_attention, torch.randn(1, 1, 4, 4, dtype=torch.bfloat16)
    expected = before(given, given, given)
    with float32_attention(torch.device("cpu")):
        assert torch.equal(functional.scaled_dot_product_attention(given, given, given), expected)
    with pytest.raises(KeyError), float32_attention(torch.device("cpu")):
        raise KeyError
    assert functional.scaled_dot_product_attention is before


def test_training_on_a_cpu_in_bfloat16_computes_attention_in_float32(tiny_model, monkeypatch):
    """As the trainer does it: autocast is around the model's forward alone."""
    model, seen = SentenceTransformer(str(tiny_model), device="cpu"), []
    lower = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(query, *others, **options):
        seen.append(query.dtype)
        return lower(query, *others, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    monkeypatch.setattr(model, "forward", torch.autocast("cpu", dtype=torch.bfloat16)(model.forward))
    made = builder(["q0 copy-bucket", "q1 delete-user"])
    inputs = Collator(made, model)([{"row": 0}, {"row": 1}])
    loss = JudgedMultipleNegativesRankingLoss(model, made, FinetuneConfig())
    loss(columns_of(inputs), inputs["label"]).backward()
    assert set(seen) == {torch.float32}
