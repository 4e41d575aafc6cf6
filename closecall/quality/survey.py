"""All checks of a judged set, alarms first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from closecall.quality.contradictions import first_graded_zero, same_text
from closecall.quality.copies import document_copies, positive_copies, query_copies
from closecall.quality.coverage import judgments_per_query, one_ranking, uneven_pool
from closecall.quality.finding import Finding
from closecall.quality.material import Material
from closecall.quality.size import set_size, small_slices
from closecall.quality.wording import copied_words, identifiers, misspelt, query_length, scripts

CHECKS: tuple[Callable[[Material], Finding | None], ...] = (
    set_size,
    first_graded_zero,
    same_text,
    judgments_per_query,
    one_ranking,
    uneven_pool,
    query_copies,
    positive_copies,
    document_copies,
    copied_words,
    query_length,
    misspelt,
    identifiers,
    scripts,
    small_slices,
)


def survey(material: Material) -> list[Finding]:
    """What each check found, alarms before notes; nothing for a set without queries that have a positive."""
    if not material.queries:
        return []
    found = [one for check in CHECKS if (one := check(material)) is not None]
    return sorted(found, key=lambda one: not one.alarm)


def quality_lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The findings as lines for a person: alarms in full, notes with what was found."""
    lines = []
    for one in findings:
        mark = "ALARM     " if one["alarm"] else "quality   "
        lines.append(f"{mark} {one['name']}: {one['found']}")
        if one["alarm"]:
            lines += [f"           {one['meaning']}", f"           -> {one['advice']}"]
            lines += [f"           e.g. {_short(example)}" for example in one["examples"][:3]]
    return lines


def _short(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
