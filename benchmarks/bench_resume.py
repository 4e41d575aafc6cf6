"""Nothing is encoded twice: changed settings, added documents, and kill -9 at random moments of a run."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.common import LENGTH, MODEL, keep

STAGES = {"mine": "mined", "finetune": "checkpoint", "eval": "verdict"}
KILLS = 10
TIMED = {"costs.json", "report.html", "report.md"}
"""Files that hold measured times."""
CHANGED = {"mine": "mining.margin_fraction=0.2", "eval": "eval.resamples=4999"}
DOCUMENTS = 800
WORDS = 40
"""Of a synthetic document."""


def run(arguments: Namespace) -> None:
    """Results of all three, over a small synthetic dataset."""
    folder = arguments.work / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    _write(folder / "data", DOCUMENTS)
    result: dict[str, Any] = {"documents": DOCUMENTS}
    whole = _run(folder, "whole")
    result["encoded by a second run with other settings"] = sum(
        _counts(folder, "whole", stage, setting)["texts_encoded"] for stage, setting in CHANGED.items()
    )
    result["kills"] = _killed(folder, whole)
    _write(folder / "data", DOCUMENTS + DOCUMENTS // 100)
    subprocess.run(_command(folder, "whole", "split"), capture_output=True, check=True)
    result["encoded by mining after 1 % more documents"] = _counts(folder, "whole", "mine", "mining.depth=50")
    keep(arguments, "resume", result)


def _write(folder: Path, documents: int) -> None:
    rng = random.Random(0)
    words = [f"w{number}" for number in range(3000)]
    texts = [" ".join(rng.choices(words, k=WORDS)) for _ in range(documents)]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"_id": f"d{row}", "text": text}) for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = [" ".join(text.split()[3:9]) for text in texts[:400]]
    lines = [json.dumps({"_id": f"q{row}", "text": text}) for row, text in enumerate(asked)]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [f"q{row}\td{row}\t1" for row in range(400)]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _command(folder: Path, output: str, stage: str, *settings: str) -> list[str]:
    config = folder / f"{output}.yaml"
    config.write_text(
        f"output: {(folder / output).resolve()}\nmodel: {{name: '{MODEL}', max_length_tokens: {LENGTH}}}\n"
        f"data: {{folder: {(folder / 'data').resolve()}}}\nmining: {{negatives: 1}}\nfinetune: {{epochs: 1}}\n",
        encoding="utf-8",
    )
    more = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "closecall.cli", stage, str(config), "--quiet", *more]


def _run(folder: Path, output: str) -> dict[str, Any]:
    """Files of all stages with their digests."""
    subprocess.run(_command(folder, output, "run"), capture_output=True, check=False)
    return {stage: _manifest(folder / output / name)["files"] for stage, name in STAGES.items()}


def _manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def _counts(folder: Path, output: str, stage: str, *settings: str) -> dict[str, int]:
    subprocess.run(_command(folder, output, stage, *settings), capture_output=True, check=False)
    counts = _manifest(folder / output / STAGES[stage])["counts"]
    if settings and stage in CHANGED:
        subprocess.run(_command(folder, output, stage), capture_output=True, check=False)
    return {key: counts[key] for key in ("texts_encoded", "texts_reused")}


def _killed(folder: Path, whole: dict[str, Any]) -> dict[str, Any]:
    """A run that is killed ten times in each stage, at moments drawn evenly, ends with the files of one that is not."""
    rng, found = random.Random(0), {}
    shutil.rmtree(folder / "killed", ignore_errors=True)
    subprocess.run(_command(folder, "killed", "split"), capture_output=True, check=True)
    for stage, name in STAGES.items():
        took = _manifest(folder / "whole" / name)["durations_s"]["total"] + 4
        lost, kills = [], 0
        while kills < KILLS:
            before = _finished_texts(folder / "killed")
            process = subprocess.Popen(_command(folder, "killed", stage), stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(1, took))
            if process.poll() is not None:  # it was faster: once more from the beginning of the stage
                shutil.rmtree(folder / "killed" / name, ignore_errors=True)
                took = max(2.0, took * 0.8)  # what it computed before the last kill is not done again
                continue
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            lost.append(_finished_texts(folder / "killed") < before)
        subprocess.run(_command(folder, "killed", stage), capture_output=True, check=False)
        same = _untimed(_manifest(folder / "killed" / name)["files"]) == _untimed(whole[stage])
        found[stage] = {"kills": kills, "same files": same, "finished vectors lost": sum(lost)}
    return found


def _untimed(files: dict[str, Any]) -> dict[str, Any]:
    return {name: digest for name, digest in files.items() if name not in TIMED}


def _finished_texts(output: Path) -> int:
    from closecall.cache import kept

    store = output / "vectors"
    return sum(one.texts for one in kept(store)) if store.is_dir() else 0
