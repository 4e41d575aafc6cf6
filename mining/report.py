"""What a person reads of a mined artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mining.config import MiningConfig

if TYPE_CHECKING:
    from mining.mine import Mined

EXAMPLES = 10


def summary(stats: Mapping[str, Any]) -> str:
    """One line: what was kept of what was retrieved, and what is short."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats["dropped"].items())
    short = f"; {stats['short']:,} short in {stats['pairs_short']:,} pairs" if stats["short"] else ""
    return (
        f"mine: {stats['kept']:,} hard negatives for {stats['pairs']:,} (query, positive) pairs of "
        f"{stats['queries']:,} queries{short}; {stats['retrieved']:,} candidates, dropped: {dropped}"
    )


def markdown(mined: Mined, config: MiningConfig) -> str:
    """Counts, score distributions and the first triples."""
    stats = mined.stats
    lines = [
        "# Mined hard negatives",
        "",
        summary(stats) + ".",
        "",
        f"Asked {stats['asked']:,} = kept {stats['kept']:,} + short {stats['short']:,}. "
        f"Retrieved {stats['retrieved']:,} = kept {stats['kept']:,} + dropped {sum(stats['dropped'].values()):,}. "
        f"{stats['pairs_without_negatives']:,} pairs have no hard negative and train on in-batch negatives alone.",
        "",
        "| scores | mean | min | p25 | median | p75 | max |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_distribution(name, values) for name, values in stats["scores"].items() if values),
        "",
        f"Cosine with the base model; margin_fraction {config.margin_fraction}. "
        "`difference` is positive minus negative.",
        "",
        "## First triples",
        "",
    ]
    for triple in mined.triples[:EXAMPLES]:
        lines.append(f"- **{triple.query}** ({triple.query_id})")
        lines.append(f"  - positive {triple.positive_id} {triple.positive_score:.3f}: {_short(triple.positive)}")
        lines += [f"  - rank {n.rank}, {n.doc_id} {n.score:.3f}: {_short(n.text)}" for n in triple.negatives]
    return "\n".join(lines) + "\n"


def _distribution(name: str, values: Mapping[str, float]) -> str:
    cells = (f"{values[key]:.3f}" for key in ("mean", "min", "p25", "median", "p75", "max"))
    return f"| {name} | " + " | ".join(cells) + " |"


def _short(text: str, length: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
