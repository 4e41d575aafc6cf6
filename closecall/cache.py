"""What a store of vectors holds, and how to make it smaller."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.table import Table
from rich.text import Text

from closecall.errors import ArtifactError
from closecall.segments import Segment
from closecall.vectors import LOCK, MODEL, check_format

DAY_S = 86_400.0


@dataclass(frozen=True)
class Kept:
    """The vectors of one model and role."""

    name: str
    """Of the folder."""
    model: str
    role: str
    texts: int
    """With finished vectors."""
    unfinished: int
    """Planned and not encoded: an encode was killed, or blocks are damaged."""
    dimensions: int
    bytes: int
    last_used_days: float
    """Since an encode or a read."""


def kept(store: Path) -> list[Kept]:
    """The content of a store, the longest unused first; every vector is read, to find damage.

    ArtifactError when there is no store, or a newer closecall made it.
    """
    if not store.is_dir():
        raise ArtifactError(f"{store}: no store of vectors; name a config whose stages have run, or its folder")
    check_format(store)
    folders = [path for path in store.iterdir() if path.is_dir()]
    return sorted((_kept(folder) for folder in folders), key=lambda one: (-one.last_used_days, one.name))


def prune(store: Path, unused_days: float) -> list[Kept]:
    """Remove what was not used for so many days, and files that belong to nothing; what was removed.

    ArtifactError when another closecall is encoding there.
    """
    gone = [one for one in kept(store) if one.last_used_days >= unused_days]
    for one in gone:
        folder = store / one.name
        try:
            with FileLock(folder / LOCK, blocking=False):
                (folder / MODEL).unlink(missing_ok=True)
                for plan in folder.glob("*.json"):
                    plan.unlink()  # without its plan a segment is nothing: a kill from here on leaves no half of one
        except Timeout:
            raise ArtifactError(f"{folder}: another closecall is encoding here; wait for it") from None
        shutil.rmtree(folder)
    return gone


def _kept(folder: Path) -> Kept:
    try:
        about = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        used = (folder / MODEL).stat().st_mtime
    except (OSError, ValueError):
        about, used = {}, folder.stat().st_mtime
    texts = unfinished = dimensions = 0
    for plan in folder.glob("*.json"):
        if plan.name == MODEL:
            continue
        try:
            segment = Segment(plan)
        except ArtifactError:
            continue
        done = int(segment.usable.sum())
        texts, unfinished, dimensions = texts + done, unfinished + segment.count - done, segment.dimension
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    days = max(0.0, (time.time() - used) / DAY_S)
    model, role = str(about.get("model", "unknown")), str(about.get("role", ""))
    return Kept(folder.name, model, role, texts, unfinished, dimensions, size, round(days, 2))


def table(found: Sequence[Kept]) -> Table:
    """For a terminal."""
    view = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "role", "texts", "unfinished", "dimensions", "MB", "unused for days"):
        view.add_column(name, justify="left" if name in ("model", "role") else "right")
    for one in found:
        numbers = (f"{one.texts:,}", f"{one.unfinished:,}", str(one.dimensions), f"{one.bytes / 1e6:,.1f}")
        view.add_row(Text(one.model), one.role, *numbers, f"{one.last_used_days:,.1f}")
    return view


def as_json(store: Path, found: Sequence[Kept]) -> dict[str, Any]:
    """The content of a store as plain JSON types."""
    return {"store": str(store), "bytes": sum(one.bytes for one in found), "kept": [asdict(one) for one in found]}
