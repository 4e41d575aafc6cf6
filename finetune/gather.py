"""Batches over several processes: embeddings gathered with their gradients, and who does what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

PATIENCE = timedelta(days=1)
"""How long processes wait for each other: the first one encodes for all while they do."""


def join() -> int:
    """Join the processes that `torchrun` or `accelerate launch` started, if any did; how many there are."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and processes() == 1:
        from accelerate import PartialState

        PartialState(timeout=PATIENCE)
    return processes()


def processes() -> int:
    """How many processes train together; 1 outside `torchrun` and `accelerate launch`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if processes() > 1 else 0


def from_main(value: Any) -> Any:
    """What the first process has, in all of them; any picklable object."""
    if processes() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def main_first() -> Iterator[None]:
    """The block runs in the first process, and then in the others, which find what it has written."""
    if rank() > 0:
        from_main(None)
    yield
    if rank() == 0:
        from_main(None)


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
