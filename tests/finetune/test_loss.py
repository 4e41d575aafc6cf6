import math

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from finetune.batch import MASKED, NEGATIVE, POSITIVE
from finetune.loss import JudgedMultipleNegativesRankingLoss, masked_cross_entropy


class Echo(torch.nn.Module):
    """A model whose embeddings are its input."""

    def forward(self, features):
        return {"sentence_embedding": features["embedding"]}


def judged_loss(queries, blocks, labels, scale=20.0):
    loss = JudgedMultipleNegativesRankingLoss(Echo(), scale=scale)
    return loss([{"embedding": queries}, *({"embedding": block} for block in blocks)], torch.tensor(labels))


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def diagonal(rows, columns):
    return [[POSITIVE if row == column else NEGATIVE for column in range(columns)] for row in range(rows)]


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("scale", [20.0, 1.0])
def test_with_distinct_documents_and_nothing_masked_it_is_the_stock_loss_with_its_gradients(negatives, scale):
    stock_inputs = [leaf(4, 6, seed=number) for number in range(2 + negatives)]
    stock = MultipleNegativesRankingLoss(Echo(), scale=scale).compute_loss_from_embeddings(stock_inputs, None)
    stock.backward()
    ours = [leaf(4, 6, seed=number) for number in range(2 + negatives)]
    loss = judged_loss(ours[0], ours[1:], diagonal(4, 4 * (1 + negatives)), scale)
    loss.backward()
    torch.testing.assert_close(loss, stock, atol=1e-6, rtol=0)
    for one, other in zip(ours, stock_inputs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=0)


def test_how_documents_are_cut_into_blocks_changes_nothing():
    queries, documents = leaf(2, 4, seed=1), leaf(5, 4, seed=2)
    whole = judged_loss(queries, [documents], diagonal(2, 5))
    torch.testing.assert_close(judged_loss(queries, documents.split([2, 2, 1]), diagonal(2, 5)), whole)


def test_a_score_matrix_worked_by_hand():
    scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    labels = torch.tensor([[POSITIVE, NEGATIVE, NEGATIVE], [MASKED, NEGATIVE, POSITIVE]])
    # row 1: ln(e^2 + e + 1) - 2 = 0.407606; row 2, its first masked: ln(e^3 + e) - 1 = 2.126928
    first = math.log(math.exp(2) + math.exp(1) + 1) - 2
    second = math.log(math.exp(3) + math.exp(1)) - 1
    assert (round(first, 6), round(second, 6)) == (0.407606, 2.126928)
    assert masked_cross_entropy(scores, labels).item() == pytest.approx((first + second) / 2, abs=1e-6)


def test_a_document_masked_for_all_others_has_no_influence_on_them():
    queries, labels = leaf(2, 4, seed=1), [[POSITIVE, NEGATIVE, MASKED], [NEGATIVE, POSITIVE, MASKED]]
    losses = []
    for seed in (3, 4):
        documents = torch.cat([leaf(2, 4, seed=2).detach(), leaf(1, 4, seed=seed).detach()]).requires_grad_()
        loss = judged_loss(queries, [documents], labels)
        loss.backward()
        losses.append(loss.item())
        assert documents.grad[2].tolist() == [0.0] * 4
        assert documents.grad[:2].abs().sum() > 0
    assert losses[0] == losses[1]


def test_a_document_masked_for_one_query_still_counts_for_the_other():
    queries, documents = leaf(2, 4, seed=1), leaf(2, 4, seed=2)
    loss = judged_loss(queries, [documents], [[POSITIVE, MASKED], [NEGATIVE, POSITIVE]])
    loss.backward()
    assert queries.grad[0].tolist() == [0.0] * 4  # its positive stands alone: loss 0
    assert queries.grad[1].abs().sum() > 0


def test_a_row_whose_positive_stands_alone_costs_nothing():
    assert masked_cross_entropy(torch.tensor([[0.3, 0.9]]), torch.tensor([[POSITIVE, MASKED]])).item() == 0.0


def test_rows_with_different_numbers_of_negatives_are_exact():
    # rows 1 and 2 bring two and no negatives of their own; row 3's positive is row 1's first negative
    queries, documents = leaf(3, 5, seed=1), leaf(4, 5, seed=2)
    labels = [
        [POSITIVE, NEGATIVE, NEGATIVE, NEGATIVE],
        [NEGATIVE, MASKED, NEGATIVE, POSITIVE],
        [MASKED, POSITIVE, NEGATIVE, NEGATIVE],
    ]
    cosine = torch.nn.functional.cosine_similarity(queries[:, None], documents[None], dim=2).double() * 20
    by_hand = [
        math.log(sum(math.exp(row[j]) for j in range(4) if marks[j] != MASKED)) - row[marks.index(POSITIVE)]
        for row, marks in zip(cosine.tolist(), labels, strict=True)
    ]
    loss = judged_loss(queries, [documents], labels)
    assert loss.item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)


def test_a_shared_positive_is_the_positive_of_both_rows_and_never_their_negative():
    queries, documents = leaf(2, 4, seed=1), leaf(2, 4, seed=2)
    shared = judged_loss(queries, [documents], [[POSITIVE, NEGATIVE], [POSITIVE, NEGATIVE]])
    alone = [judged_loss(queries[row : row + 1], [documents], [[POSITIVE, NEGATIVE]]) for row in range(2)]
    torch.testing.assert_close(shared, (alone[0] + alone[1]) / 2)
