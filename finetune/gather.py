"""Embeddings of several processes as one batch, with exact gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from closecall.processes import processes, rank


def gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes joined along the first axis, in the order of their numbers; gradients flow back.

    They may differ in length. The gradient that a process gets for its part is the sum of what all processes have for
    it, so the averaged gradient is that of one process with the whole batch.
    """
    if processes() == 1:
        return tensor
    lengths = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(processes())]
    dist.all_gather(lengths, torch.tensor([len(tensor)], device=tensor.device))
    counts = [int(length) for length in lengths]
    padding = tensor.new_zeros((max(counts) - len(tensor), *tensor.shape[1:]))
    found = _Gather.apply(torch.cat([tensor, padding]))  # type: ignore[no-untyped-call]
    return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])


class _Gather(torch.autograd.Function):
    """all_gather whose backward pass adds up the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, ...]:
        parts = [torch.empty_like(tensor) for _ in range(processes())]
        dist.all_gather(parts, tensor.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        stacked = torch.stack(gradients)
        dist.all_reduce(stacked)
        return stacked[rank()]
