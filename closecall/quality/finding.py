"""One thing that is to be known of a judged set before its numbers are believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

EXAMPLES = 5


@dataclass(frozen=True)
class Finding:
    """What was found, what it means, and what to do."""

    name: str
    """In snake_case, the same in every report."""
    alarm: bool
    """Whether the numbers should not be believed as they are; else it is a fact to know."""
    found: str
    meaning: str
    advice: str
    examples: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON types."""
        return asdict(self) | {"examples": list(self.examples)}


def finding(name: str, alarm: bool, texts: tuple[str, str, str], examples: Sequence[str] = ()) -> Finding:
    """A finding of (found, meaning, advice), with the first few examples."""
    return Finding(name, alarm, *texts, tuple(examples[:EXAMPLES]))
