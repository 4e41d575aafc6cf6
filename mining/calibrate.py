"""Which margin to mine with: from one search, what each margin and rank window would leave, and what it would risk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mining.artifact import Found
from mining.config import MiningConfig
from mining.filters import CODE
from mining.mine import Miner
from mining.stats import Histogram, distribution
from mining.survival import MARGINS, OPEN, Risk, Survival, gaps, survivors

FIRST_RANKS = (1, 2, 3, 5, 10, 20, 30, 50)
"""Rank windows that are looked at: those that begin here."""

MIN_KNOWN = 30
"""With fewer known other positives than this nothing is said of the risk."""

USUAL_MARGIN = 0.05
"""NV-Retriever's (arXiv:2407.15831), proposed where the judgments cannot tell the risk."""

MAX_RISK = 0.02
MIN_FILLED = 0.95
"""The proposal: the smallest margin at which at most 2 % of relevant documents would become negatives, as long as of
the pairs that get all their negatives without a margin 95 % still do."""


def open_config(config: MiningConfig, depth: int) -> MiningConfig:
    """The settings with every filter on ranks and scores off, searched to one depth: what calibration looks at."""
    sources = tuple(source.model_copy(update={"quota": None}) for source in config.sources)
    off: dict[str, Any] = dict.fromkeys(("max_rank", "min_score", "max_score", "margin_fraction", "margin"))
    off |= dict.fromkeys(("guide", "near_copy", "max_uses")) | {"min_rank": 1, "select": "top", "sources": sources}
    return config.model_copy(update={**off, "depth": depth, "max_depth": depth})


def calibrate(miner: Miner, config: MiningConfig) -> dict[str, Any]:
    """The content of `calibration.json`, from a miner with `open_config`; `config` has the settings in use."""
    tally = _Tally.of(miner)
    for block, last in miner.blocks():
        tally.add(block, last)
    return tally.result(config)


@dataclass
class _Tally:
    """What is counted of the blocks."""

    miner: Miner
    windows: Mapping[int, Survival]
    risks: Mapping[int, Risk]
    candidates: Histogram
    counted: int = 0
    """Pairs so far."""

    @classmethod
    def of(cls, miner: Miner) -> _Tally:
        negatives = miner.config.negatives
        windows = {first: Survival(negatives) for first in FIRST_RANKS}
        return cls(miner, windows, {first: Risk(negatives) for first in FIRST_RANKS}, Histogram())

    def add(self, block: Found, last: int) -> None:
        """Count the pairs up to before `last`, once for each window."""
        first, pairs, self.counted = self.counted, last - self.counted, last
        gap = gaps(block, self.miner.ceilings)
        left_open = np.isin(block.outcome, OPEN)
        self.candidates.add(block.score[left_open])
        positive = self.miner.pairs.positive[block.pair]
        others = (block.outcome == CODE["judged_positive"]) & (block.row != positive)
        for rank, survival in self.windows.items():
            inside = block.rank >= rank
            counted = left_open & inside
            passing = survivors(block, gap, counted, first, pairs)
            survival.add(passing)
            self.risks[rank].add(block, gap, counted, others & inside, passing, first)

    def result(self, config: MiningConfig) -> dict[str, Any]:
        """Curves by window, distributions and the proposal."""
        pairs = self.miner.pairs
        known = int((np.bincount(pairs.query)[pairs.query] - 1).sum())
        enough = known >= MIN_KNOWN  # a positive that was not retrieved is not taken
        risk = (
            {str(rank): (item.taken / known).round(4).tolist() for rank, item in self.risks.items()} if enough else None
        )
        content = {
            "queries": len(np.unique(pairs.query)),
            "pairs": len(pairs),
            "negatives": config.negatives,
            "depth": self.miner.config.depth,
            "in_use": {"margin_fraction": config.margin_fraction, "min_rank": config.min_rank},
            "margin_fraction": MARGINS.tolist(),
            "windows": {str(rank): item.as_json() for rank, item in self.windows.items()},
            "risk": risk,
            "known_other_positives": known,
            "scores": {
                "positive": distribution(pairs.score),
                "candidate": self.candidates.distribution(),
            },
            "histograms": {
                "edges": Histogram.edges(),
                "positive": Histogram.of(pairs.score),
                "candidate": self.candidates.counts.tolist(),
            },
        }
        return content | {"proposal": propose(content)}


def propose(content: Mapping[str, Any]) -> dict[str, Any]:
    """The margin to mine with and why."""
    margins, survival = content["margin_fraction"], content["windows"]["1"]
    filled = [count / survival["pairs"] for count in survival["filled"]]
    enough = [number for number, share in enumerate(filled) if share >= MIN_FILLED * filled[0]]
    if content["risk"] is None:
        risk = None
        chosen = min(margins.index(USUAL_MARGIN), enough[-1])
        why = "the usual one: too few queries have a second positive to tell what a margin lets through; see the audit"
    else:
        risk = content["risk"]["1"]
        safe = [number for number in enough if risk[number] <= MAX_RISK]
        chosen = safe[0] if safe else min(enough, key=lambda number: (risk[number], number))
        why = (
            f"the smallest at which at most {MAX_RISK:.0%} of relevant documents would become negatives"
            if safe
            else f"none that leaves enough negatives brings the risk to {MAX_RISK:.0%}, this one has the lowest"
        )
    return {
        "margin_fraction": margins[chosen],
        "risk": None if risk is None else risk[chosen],
        "filled": round(filled[chosen], 4),
        "reason": why,
    }
