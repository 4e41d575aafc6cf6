"""Several processes of one job, as `torchrun` and `accelerate launch` start them: who is who, and who waits.

With one process nothing here loads torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from closecall.errors import CloseCallError

Result = TypeVar("Result")

LAUNCHED = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher of several processes says to each of them."""
PATIENCE = timedelta(days=1)
"""How long processes wait for each other: the first one encodes for all while they do."""


def processes() -> int:
    """How many processes work on this job; 1 when nobody started several."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in LAUNCHED) else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


def join() -> None:
    """Meet the other processes, if there are any and they have not met; each takes a GPU of its own where there are."""
    if processes() == 1:
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available() and distributed.is_nccl_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank())) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, timeout=PATIENCE)


def from_main(value: Any) -> Any:
    """What the first process has, in all of them; any picklable object."""
    if processes() == 1:
        return value
    from torch import distributed

    join()
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def by_main(work: Callable[[], Result]) -> Result:
    """What `work` returns, a picklable object, or the fault it ends with, in all processes; the first alone does it."""
    join()
    if rank() > 0:
        found = from_main(None)
        if isinstance(found, CloseCallError):
            raise found
        return found  # type: ignore[no-any-return]
    try:
        done = work()
    except CloseCallError as error:
        from_main(error)
        raise
    from_main(done)
    return done


@contextmanager
def main_first() -> Iterator[None]:
    """The block runs in the first process, and then in the others, which find what it has written."""
    if rank() > 0:
        from_main(None)
    yield
    if rank() == 0:
        from_main(None)


def wait_for_all() -> None:
    """Go on when all processes have come here."""
    if processes() == 1:
        return
    import torch
    from torch import distributed

    join()
    distributed.all_reduce(torch.zeros(1))


def leave() -> None:
    """Part from the other processes when all have done their work; one that ends earlier may be the end of all."""
    if processes() == 1:
        return
    from torch import distributed

    if distributed.is_initialized():
        wait_for_all()
        distributed.destroy_process_group()
