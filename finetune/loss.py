"""MultipleNegativesRankingLoss over judged batches: known answers never serve as in-batch negatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor, nn
from torch.nn.functional import normalize

from closecall.processes import processes
from finetune.batch import BatchBuilder, Masks
from finetune.config import FinetuneConfig
from finetune.gather import gather
from finetune.weights import float32_attention


class JudgedMultipleNegativesRankingLoss(CachedLossMixin, nn.Module):
    """MNRL (InfoNCE, van den Oord et al. 2018) in which what is left out of each softmax is looked up in the judgments.

    Directions, partition, hardness weighting (Lan et al. 2025; Schechter Vera et al. 2025) and Matryoshka dimensions
    (Kusupati et al. 2022) are those of sentence-transformers, and where no document is masked or shared so is the
    value. With `mini_batch_size` the gradients of the embeddings are cached (GradCache, Gao et al. 2021), which bounds
    memory by the mini-batch. Over several processes the batch is that of all of them, with exact gradients.
    """

    def __init__(self, model: nn.Module, builder: BatchBuilder, config: FinetuneConfig) -> None:
        super().__init__()
        self.model, self.builder, self.config = model, builder, config
        self.uses_gradient_cache = config.mini_batch_size is not None
        self.mini_batch_size = config.mini_batch_size or config.batch_size

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Mapping[str, Tensor]) -> Tensor:
        """The mean over the rows of all processes of -log softmax at the positive; a scalar.

        The first columns of features are those of the queries, all others those of the documents. `labels` holds
        `rows`, int64 (n_queries,), and `keys`, int64 (n_documents,).
        """
        with float32_attention(labels["rows"].device):
            return self._loss(list(sentence_features), labels)

    def _loss(self, features: list[dict[str, Tensor]], labels: Mapping[str, Tensor]) -> Tensor:
        if self.uses_gradient_cache:
            cached: Tensor = self.forward_cached(features, labels)  # type: ignore[operator]
            return cached
        return self.calculate_loss([[self.model(column)["sentence_embedding"]] for column in features], labels)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False) -> Tensor:
        """The loss of these embeddings, float32; `with_backward` leaves their gradients, a block of rows at a time."""
        embeddings = torch.cat([part for column in reps for part in column]).float()
        rows = labels["rows"]
        all_rows, keys = gather(rows), gather(labels["keys"])
        queries, documents = gather(embeddings[: len(rows)]), gather(embeddings[len(rows) :])
        offset = int((all_rows == rows[0]).nonzero()[0])
        leaves = (queries.detach().requires_grad_(), documents.detach().requires_grad_())
        used = leaves if with_backward else (queries, documents)
        total = embeddings.new_zeros(())
        for start in range(0, len(rows), self.mini_batch_size):
            block = rows[start : start + self.mini_batch_size]
            masks = self.builder.masks(block.tolist(), all_rows.tolist(), keys.cpu().numpy())
            first = offset + start
            loss = self._of_block(*used, first, _on(masks, embeddings.device)) * processes() / len(all_rows)
            if with_backward:
                loss.backward()  # type: ignore[no-untyped-call]
                loss = loss.detach()
            total = total + loss
        if with_backward:
            torch.autograd.backward([queries, documents], [_gradient(leaf) for leaf in leaves])
        return total

    def _of_block(self, queries: Tensor, documents: Tensor, first: int, masks: dict[str, Tensor]) -> Tensor:
        """The sum over a block of rows, the first of which is query number `first`, for each dimension."""
        dimensions = [queries.shape[1], *self.config.matryoshka]
        with torch.autocast(queries.device.type, enabled=False):
            sums = [
                self._sum(queries[:, :size], documents[:, :size], first, masks) for size in dict.fromkeys(dimensions)
            ]
        return torch.stack(sums).sum()

    def _sum(self, queries: Tensor, documents: Tensor, first: int, masks: dict[str, Tensor]) -> Tensor:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
        config, positive = self.config, masks["positive"]
        own_queries, own_documents = queries[first : first + len(positive)], documents[positive]
        line = torch.arange(len(positive), device=queries.device)
        cosine = own_queries @ documents.T
        logits = cosine * config.scale
        pair = logits[line, positive]
        if config.hardness is not None and config.hardness_strength > 0:
            logits = logits + config.hardness_strength * cosine.detach() * self._hard(masks)
        parts = [logits.masked_fill(masks["documents"], -torch.inf)]
        if "query_to_query" in config.directions:
            parts.append(_scores(own_queries, queries, config.scale, masks["queries"]))
        if "doc_to_query" in config.directions:
            other = masks["positive_queries"].clone()
            other[line, first + line] = False
            parts.append(_scores(own_documents, queries, config.scale, other))
        if "doc_to_doc" in config.directions:
            parts.append(_scores(own_documents, documents, config.scale, masks["positive_documents"]))
        if config.partition == "joint":
            below = torch.logsumexp(torch.cat(parts, dim=1), dim=1)
        else:
            below = torch.stack([torch.logsumexp(part, dim=1) for part in parts]).mean(dim=0)
        return (below - pair).sum()

    def _hard(self, masks: dict[str, Tensor]) -> Tensor:
        """1 where hardness weighting applies to a document, 0 elsewhere; never at the positive."""
        own, line = masks["own"], torch.arange(len(masks["positive"]), device=masks["own"].device)
        hard = {"hard_negatives": own, "in_batch_negatives": ~own}.get(
            str(self.config.hardness), torch.ones_like(own)
        ).clone()
        hard[line, masks["positive"]] = False
        return hard.float()


def _scores(left: Tensor, right: Tensor, scale: float, left_out: Tensor) -> Tensor:
    return (left @ right.T * scale).masked_fill(left_out, -torch.inf)


def _gradient(leaf: Tensor) -> Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


def _on(masks: Masks, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value).to(device) for name, value in vars(masks).items()}
