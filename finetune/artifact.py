"""The checkpoint artifact: the model folder, and how it was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from closecall.manifest import Artifact

MODEL = "model"
CURVE = "curve.json"
PICTURE = "curve.svg"


@dataclass(frozen=True)
class CurvePoint:
    """Dev at one step of training."""

    step: int
    epoch: float
    dev: float
    loss: float | None
    """Mean training loss since the loss before was noted; None before training."""


@dataclass(frozen=True)
class Mixed:
    """Dev of an average of base and tuned weights."""

    share: float
    """Of the tuned weights, taken at the best step."""
    dev: float


@dataclass(frozen=True)
class SeedCurve:
    """What one training measured on dev."""

    seed: int
    points: tuple[CurvePoint, ...]
    losses: tuple[tuple[int, float], ...] = ()
    """(step, mean loss since the one before)."""
    mixed: tuple[Mixed, ...] = ()
    stopped: str = ""
    """Why training ended before its last step; empty when it did not."""

    @property
    def best_step(self) -> int:
        """The trained step with the highest dev, of equal ones the earliest; 0 when nothing was trained."""
        trained = self.points[1:] or self.points
        return max(trained, key=lambda point: (point.dev, -point.step)).step

    @property
    def best(self) -> tuple[float, float]:
        """(dev, share of the tuned weights) of the best candidate; of equal ones the nearest to the start."""
        step = self.point(self.best_step)
        found = [(self.points[0].dev, 0.0), *((mixed.dev, mixed.share) for mixed in self.mixed)]
        if step.step:
            found.append((step.dev, 1.0))
        return max(found, key=lambda candidate: (candidate[0], -candidate[1]))

    def point(self, step: int) -> CurvePoint:
        """The point measured at this step."""
        return next(point for point in self.points if point.step == step)


@dataclass(frozen=True)
class Chosen:
    """Which candidate the checkpoint is."""

    seed: int
    step: int
    """0 when the checkpoint is what training started from."""
    share: float
    """Of the tuned weights in the checkpoint; 1 is the step itself, 0 the start."""


@dataclass(frozen=True)
class Confirmed:
    """Dev of the start and of the best candidate, by search over the whole corpus."""

    documents: int
    base: float
    best: float


@dataclass(frozen=True)
class Curve:
    """What training measured on dev, and which candidate the checkpoint is."""

    measure: str
    documents: int
    """How many documents dev searched while training."""
    seeds: tuple[SeedCurve, ...]
    chosen: Chosen
    confirmed: Confirmed

    @property
    def base(self) -> float:
        """Dev before step 0, on the documents that dev searched while training."""
        return self.seeds[0].points[0].dev

    @property
    def spread(self) -> float | None:
        """Largest less smallest best dev over the seeds; None with one seed."""
        best = [curve.best[0] for curve in self.seeds]
        return max(best) - min(best) if len(best) > 1 else None

    def of(self, seed: int) -> SeedCurve:
        """The curve of one seed."""
        return next(curve for curve in self.seeds if curve.seed == seed)

    def as_json(self) -> dict[str, Any]:
        """The curve as plain JSON types."""
        return asdict(self) | {"spread": self.spread}


def choose(seeds: Sequence[SeedCurve]) -> Chosen:
    """The best candidate over all seeds; of equal ones that of the first seed, and none when nothing beat the start."""
    best = max(seeds, key=lambda curve: curve.best[0])
    share = best.best[1]
    return Chosen(best.seed, best.best_step if share else 0, share)


def described(curve: Curve) -> str:
    """Which candidate the checkpoint is, in words."""
    chosen, one = curve.chosen, curve.of(curve.chosen.seed)
    if chosen.share == 0:
        return "the base"
    step = f"step {chosen.step} of {one.points[-1].step}" if not one.stopped else f"step {chosen.step}"
    seed = f" with seed {chosen.seed}" if len(curve.seeds) > 1 else ""
    mixed = "" if chosen.share == 1 else f", {chosen.share:.0%} of it averaged with {1 - chosen.share:.0%} of the base"
    return step + seed + mixed


def model_folder(artifact: Artifact) -> Path:
    """The folder that plain `SentenceTransformer(path)` loads, after all its files were verified."""
    artifact.verify()
    return artifact.folder / MODEL


def read_curve(artifact: Artifact) -> Curve:
    """The training curve of a checkpoint."""
    content = artifact.read_json(CURVE)
    seeds = tuple(
        SeedCurve(
            seed["seed"],
            tuple(CurvePoint(**point) for point in seed["points"]),
            tuple((step, loss) for step, loss in seed["losses"]),
            tuple(Mixed(**mixed) for mixed in seed["mixed"]),
            seed["stopped"],
        )
        for seed in content["seeds"]
    )
    chosen, confirmed = Chosen(**content["chosen"]), Confirmed(**content["confirmed"])
    return Curve(content["measure"], content["documents"], seeds, chosen, confirmed)
