"""The whole loop against a script of sentence-transformers alone: mine, train an epoch, evaluate base and tuned."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.common import LENGTH, MODEL, datasets, keep
from closecall.models import resolve_model


def run(arguments: Namespace) -> None:
    """Seconds of both by turns, each in a process of its own, and the held-out nDCG@10 of both."""
    for folder in datasets(arguments):
        turns = [_turn(folder, arguments) for _ in range(arguments.turns)]
        ours, theirs = [turn[0] for turn in turns], [turn[1] for turn in turns]
        result = {
            "dataset": folder.name,
            "turns": arguments.turns,
            "times as fast": round(
                statistics.median(t["seconds"] for t in theirs) / statistics.median(t["seconds"] for t in ours), 2
            ),
            "rows": {"ours": ours[0]["rows"], "reference": theirs[0]["rows"]},
            "n": ours[0]["n"],
            "base": ours[0]["base"],
            "ours": ours[0]["tuned"],
            "reference": theirs[0]["tuned"],
        }
        keep(arguments, f"loop-{folder.name}", result)


def _turn(folder: Path, arguments: Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    return _ours(folder, arguments.work), _reference(folder, arguments.reference)


def _ours(folder: Path, work: Path) -> dict[str, Any]:
    output, config = work.resolve() / f"loop-{folder.name}", work / f"loop-{folder.name}.yaml"
    shutil.rmtree(output, ignore_errors=True)
    config.write_text(
        f"output: {output}\nmodel: {{name: '{MODEL}', max_length_tokens: {LENGTH}}}\n"
        f"data: {{folder: {folder.resolve()}}}\nmining: {{negatives: 1}}\nfinetune: {{epochs: 1}}\n",
        encoding="utf-8",
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "closecall.cli", "run", str(config), "--quiet"], check=False)
    seconds = time.perf_counter() - started
    verdict = json.loads((output / "verdict" / "verdict.json").read_text(encoding="utf-8"))["overall"]["nDCG@10"]
    rows = json.loads((output / "checkpoint" / "manifest.json").read_text(encoding="utf-8"))["counts"]["triples"]
    return {"seconds": seconds, "rows": rows} | {key: verdict[key] for key in ("n", "base", "tuned")}


def _reference(folder: Path, script: Path) -> dict[str, Any]:
    command = [sys.executable, str(script), str(folder), str(resolve_model(MODEL)), "--epochs", "1", "--negatives", "1"]
    started = time.perf_counter()
    done = subprocess.run([*command, "--max-length", str(LENGTH)], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    return {"seconds": seconds, "rows": found["training_rows"], "tuned": found["tuned"]["ndcg@10"]}
