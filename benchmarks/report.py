"""The results of the benches as tables."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import LENGTH, MODEL


def write_report(work: Path, file: Path) -> None:
    """All results in the work folder as one page of Markdown."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*.json"))}
    parts = [
        "# Benchmarks",
        f"Written by `python -m benchmarks`. {MODEL}, {LENGTH} tokens; {_machine()}. Ratios of medians, by turns in "
        "one run. Mining, training and evaluation have pages of their own here: `mining-*.md`, `training.md`, "
        "`evaluation-*.md`.",
    ]
    for title, name, section in (
        ("Encoding against SentenceTransformer.encode", "encode-", _rows),
        ("The loop against sentence-transformers alone", "loop-", _rows),
    ):
        results = [result for key, result in found.items() if key.startswith(name)]
        if results:
            parts += [f"## {title}", section(results)]
    if "search" in found:
        parts += ["## Search", _search(found["search"])]
    if "resume" in found:
        parts += ["## Nothing twice", "```json\n" + json.dumps(found["resume"], indent=1) + "\n```"]
    if formats := [result for key, result in found.items() if key.startswith("formats-")]:
        parts += ["## Forms out and in again", _formats(formats)]
    if quality := [result for key, result in found.items() if key.startswith("quality-")]:
        parts += ["## Planted faults", _quality(quality)]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next(line for line in lines if line.startswith("flags")).split()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        cores = sum(line.startswith("processor") for line in lines)
    except (OSError, StopIteration):
        return model
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{cores} cores of {model} ({', '.join(known)})"


def _formats(results: Sequence[Mapping[str, Any]]) -> str:
    """What is lost by form over all sets, and what the export said of it."""
    lines = []
    for form in results[0]["forms"]:
        tried = [result["forms"][form] for result in results if "refused" not in result["forms"][form]]
        refused = [result["dataset"] for result in results if "refused" in result["forms"][form]]
        lost = sorted({part for one in tried for part in one["lost"]})
        said = sorted({part for one in tried for part in one["said"]})
        ratio = max(one["read_s"] / one["write_s"] for one in tried)
        lines.append([form, ", ".join(lost) or "nothing", ", ".join(said), ", ".join(refused), f"{ratio:.1f}"])
    sets = ", ".join(
        f"{one['dataset']} ({one['documents']:,} documents, {one['queries']:,} queries)" for one in results
    )
    header = ["form", "lost", "said to be left out", "refused", "import takes at most so many times as long as export"]
    return (
        f"{sets}.\n\n{_table(lines, header)}\n\nRefused: two queries have the same text, by which this form names them."
    )


def _quality(results: Sequence[Mapping[str, Any]]) -> str:
    """Each planted fault with the alarm that it should raise, and what was raised on each set."""
    lines = [
        [fault, found["expected"], *(", ".join(one["planted"][fault]["raised"]) or "none" for one in results)]
        for fault, found in results[0]["planted"].items()
    ]
    lines.insert(0, ["none: the set as it is", "none", *(", ".join(one["as it is"]) or "none" for one in results)])
    circulated = [
        f"{one['dataset']} as it circulates: {', '.join(one['as circulated'])}."
        for one in results
        if "as circulated" in one
    ]
    sets = ", ".join(f"{one['dataset']} ({one['queries']:,} queries)" for one in results)
    header = ["fault", "alarm", *(str(one["dataset"]) for one in results)]
    return "\n\n".join([f"{sets}.", _table(lines, header), *circulated])


def _rows(results: Sequence[Mapping[str, Any]]) -> str:
    return _table([[str(value) for value in result.values()] for result in results], list(results[0]))


def _search(found: Mapping[str, Any]) -> str:
    exact = {one["documents"]: one["seconds"] for one in found["results"] if one["kind"] == "exact"}
    rows = [
        [
            f"{one['documents']:,}",
            one["kind"],
            f"{exact[one['documents']] / one['seconds']:.1f}",
            f"{one.get('recall', 1):.3f}",
            str(one.get("effort", "")),
            f"{one['peak_mib'] - one['mapped_mib']:,}",
        ]
        for one in found["results"]
    ]
    head = ["documents", "kind", "times as fast as exact", "recall", "effort", "peak MiB beyond the mapped file"]
    note = (
        f"{found['queries']:,} queries, depth {found['depth']}, 384 dimensions; synthetic documents in clusters of a "
        "hundred, queries at cosine 0.9 to one: an easy case for lists and graphs. With queries at cosine 0.2 to any "
        "document ivf had to look into 1,024 of 4,000 lists for a recall of 0.97 at a million, and took 2.7 times as "
        "long as exact search."
    )
    return f"{_table(rows, head)}\n\n{note} Seconds of exact search grow with the documents to the {found['exponent']}."


def _table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))
