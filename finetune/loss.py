"""MultipleNegativesRankingLoss over labelled batches: judged documents never serve as in-batch negatives."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from finetune.batch import MASKED, POSITIVE


class JudgedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """MNRL (van den Oord et al. 2018, InfoNCE) with the negatives of each query given by labels.

    The first column of features are the queries, all others blocks of documents. The batch holds each document once,
    and `labels[i, j]` is 1 for the positive of row i, 0 for a negative and -1 for a document that is masked out of its
    softmax. Where no document is masked or shared this is the stock loss.
    """

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The mean over rows of -log softmax at the positive; a scalar."""
        queries, *documents = (self.model(features)["sentence_embedding"] for features in sentence_features)
        scores = self.similarity_fct(queries, torch.cat(documents)) * self.scale
        return masked_cross_entropy(scores, labels)


def masked_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean over rows of -log(exp(positive) / sum of exp over positive and negatives).

    `scores` is float (n_queries, n_documents), `labels` int64 of the same shape with exactly one positive a row.
    """
    allowed = scores.masked_fill(labels == MASKED, -torch.inf)
    positive = scores[labels == POSITIVE]
    return (torch.logsumexp(allowed, dim=1) - positive).mean()
