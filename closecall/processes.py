"""Several processes of one job, as `torchrun` and `accelerate launch` start them: who is who, who waits, who helps.

The first process leads: it reads and writes, and does alone what is only done once. The others wait for what it says,
and do the tasks that it shares in the meantime. With one process nothing here loads torch.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from closecall.errors import ArtifactError, CloseCallError

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


@dataclass(frozen=True)
class _Task:
    """Something that the first process asks of the others while they wait for it."""

    work: Callable[..., Any]
    arguments: Sequence[tuple[Any, ...]]
    """By process."""


_sharing = threading.Lock()
"""Held while a task is with the others: two threads of the first process take turns."""
_helped: list[None] = []
"""Not empty while the others wait, and can be given tasks."""


def helpers() -> int:
    """How many other processes wait for tasks just now."""
    return processes() - 1 if _helped and rank() == 0 else 0


def share(work: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]) -> list[Result]:
    """`work` of each tuple of arguments, in their order; each process takes one, as many at a time as there are.

    `work` is a function of a module, its arguments and results can be pickled. A CloseCallError in one of them is
    raised here. With nobody waiting, all is done in this process.
    """
    done: list[Result] = []
    step = helpers() + 1
    for start in range(0, len(arguments), step):
        done += _together(work, arguments[start : start + step]) if step > 1 else [work(*arguments[start])]
    return done


def _together(work: Callable[..., Result], arguments: Sequence[tuple[Any, ...]]) -> list[Result]:
    """One round: the first process takes the first of the arguments."""
    from torch import distributed

    with _sharing, _nobody_lost():
        _broadcast(_Task(work, arguments))
        own = _outcome(work, arguments[0])
        found: list[Any] = [None] * processes()
        distributed.gather_object(own, found, dst=0)
    for outcome in found[: len(arguments)]:
        if isinstance(outcome, CloseCallError):
            raise outcome
    return found[: len(arguments)]


def _outcome(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return work(*arguments)
    except CloseCallError as error:
        return error


def _broadcast(value: Any) -> Any:
    from torch import distributed

    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def _nobody_lost() -> Iterator[None]:
    """ArtifactError when another process has ended in the meantime."""
    try:
        yield
    except RuntimeError as error:
        raise ArtifactError(
            f"process {rank()} on {socket.gethostname()}: another process of this job has ended, see what it said; "
            f"finished blocks are kept, start the job again ({str(error).strip().splitlines()[0][:120]})"
        ) from error


def from_main(value: Any) -> Any:
    """What the first process has, in all of them; any picklable object. The others do its tasks until it says so."""
    if processes() == 1:
        return value
    from torch import distributed

    join()
    with _nobody_lost():
        while isinstance(found := _broadcast(value), _Task):
            mine = found.arguments[rank()] if rank() < len(found.arguments) else None
            distributed.gather_object(None if mine is None else _outcome(found.work, mine), None, dst=0)
    return found


def same_everywhere(what: dict[str, str]) -> None:
    """ArtifactError when another process was started with something else, named by hash."""
    if processes() == 1:
        return
    from torch import distributed

    join()
    found: list[Any] = [None] * processes()
    with _nobody_lost():
        distributed.all_gather_object(found, (socket.gethostname(), what))
    for number, (host, theirs) in enumerate(found):
        other = [name for name, value in found[0][1].items() if theirs.get(name) != value]
        if other:
            raise ArtifactError(
                f"process {number} on {host}: has another {' and '.join(other)} than process 0 on {found[0][0]}; "
                "start all processes with the same files and settings"
            )


def by_main(work: Callable[[], Result]) -> Result:
    """What `work` returns, a picklable object, or the fault it ends with, in all processes; the first alone does it."""
    join()
    if rank() > 0:
        found = from_main(None)
        if isinstance(found, CloseCallError):
            raise found
        return found  # type: ignore[no-any-return]
    try:
        with _helping():
            done = work()
    except CloseCallError as error:
        from_main(error)
        raise
    from_main(done)
    return done


@contextmanager
def _helping() -> Iterator[None]:
    """The others wait in `from_main` until the block ends, and do what is shared in it."""
    _helped.append(None)
    try:
        yield
    finally:
        _helped.pop()


@contextmanager
def main_first() -> Iterator[None]:
    """The block runs in the first process, and then in the others, which find what it has written."""
    if rank() > 0:
        from_main(None)
        yield
    else:
        with _helping():
            yield
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
