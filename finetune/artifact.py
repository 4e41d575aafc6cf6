"""The checkpoint artifact: the model folder, and how its step was chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from closecall.manifest import Artifact

MODEL = "model"
CURVE = "curve.json"


@dataclass(frozen=True)
class CurvePoint:
    """Dev at one step of training."""

    step: int
    epoch: float
    dev: float
    loss: float | None
    """Mean training loss since the point before; None before training."""


@dataclass(frozen=True)
class Curve:
    """What training measured on dev, and which step the checkpoint holds."""

    measure: str
    points: tuple[CurvePoint, ...]
    best_step: int
    """0 when no step beat the base: the checkpoint then is the base."""

    def point(self, step: int) -> CurvePoint:
        """The point measured at this step."""
        return next(point for point in self.points if point.step == step)

    def as_json(self) -> dict[str, Any]:
        """The curve as plain JSON types."""
        return asdict(self)


def model_folder(artifact: Artifact) -> Path:
    """The folder that plain `SentenceTransformer(path)` loads, after all its files were verified."""
    artifact.verify()
    return artifact.folder / MODEL


def read_curve(artifact: Artifact) -> Curve:
    """The training curve of a checkpoint."""
    content = artifact.read_json(CURVE)
    return Curve(**{**content, "points": tuple(CurvePoint(**point) for point in content["points"])})
