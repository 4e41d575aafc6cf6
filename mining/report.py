"""What a person reads of a mined artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(stats: Mapping[str, Any]) -> str:
    """One line: what was kept of what was retrieved, and what is short."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats["dropped"].items())
    short = f"; {stats['short']:,} short in {stats['pairs_short']:,} pairs" if stats["short"] else ""
    return (
        f"mine: {stats['kept']:,} hard negatives for {stats['pairs']:,} (query, positive) pairs of "
        f"{stats['queries']:,} queries{short}; {stats['retrieved']:,} candidates, dropped: {dropped}"
    )
