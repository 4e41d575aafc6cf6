"""Progress on stderr: a bar with the time left on a terminal, plain lines when piped, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from closecall.processes import rank

PIPED_WIDTH = 110
"""Columns when stderr is no terminal, where rich would assume 80 and fold the table."""

console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPED_WIDTH, quiet=rank() > 0)
"""Of several processes of one job the first one speaks."""
LINE_EVERY_S = 10.0


def say(message: str) -> None:
    """One plain line on stderr."""
    console.print(message, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of steps done since the last call."""
    if console.quiet or total <= 0:
        yield lambda steps: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda steps: bar.advance(task, steps)
    else:
        yield _Lines(label, total).advance


class _Lines:
    """Plain progress: a line at most every ten seconds, with the time left at the speed so far."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self.started = self.last = time.monotonic()

    def advance(self, steps: int) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.last < LINE_EVERY_S or self.done >= self.total:
            return
        self.last = now
        left_s = (now - self.started) / self.done * (self.total - self.done)
        say(f"  {self.label}: {self.done:,} of {self.total:,}, about {left_s:,.0f} s left")
