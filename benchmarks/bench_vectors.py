"""Search over synthetic vectors in a mapped file: exact, IVF and HNSW, by size, with recall and memory."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import keep

WIDTH, QUERIES, DEPTH, CLUSTER = 384, 1000, 10, 100
HNSW_UP_TO = 100_000
"""It is built on one thread, so that it has the same bytes each time."""
AT_ONCE = 65_536


def run(arguments: Namespace) -> None:
    """Each size and kind in a process of its own, for its peak memory."""
    results = []
    for size in map(int, arguments.sizes.split(",")):
        file = arguments.work / f"vectors-{size}.f32"
        if not file.exists() or file.stat().st_size != size * WIDTH * 4:
            make(file, size)
        kinds = ["exact", "ivf", *(["hnsw"] if size <= HNSW_UP_TO else [])]
        for kind in kinds:
            worker = [sys.executable, "-m", "benchmarks.bench_vectors"]
            command = [*worker, str(file), str(size), kind, str(arguments.turns)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
            sys.stderr.write(f"{results[-1]}\n")
    keep(arguments, "search", {"results": results, "exponent": _exponent(results), "queries": QUERIES, "depth": DEPTH})


def make(file: Path, size: int) -> None:
    """Unit vectors in clusters of a hundred, as texts on one subject are."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(max(1, size // CLUSTER), WIDTH)).astype(np.float32)
    with file.open("wb") as handle:
        for start in range(0, size, AT_ONCE):
            count = min(AT_ONCE, size - start)
            near = centres[rng.integers(0, len(centres), count)]
            handle.write(unit(near + 0.7 * rng.normal(size=(count, WIDTH)).astype(np.float32)).tobytes())


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, float32."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def _exponent(results: list[dict[str, Any]]) -> float | None:
    """Of the seconds of exact search in the number of documents, fitted to all sizes."""
    exact = [(found["documents"], found["seconds"]) for found in results if found["kind"] == "exact"]
    if len(exact) < 2:
        return None
    sizes, seconds = zip(*exact, strict=True)
    return round(float(np.polyfit([math.log(n) for n in sizes], [math.log(s) for s in seconds], 1)[0]), 2)


def measured(file: Path, size: int, kind: str, turns: int) -> dict[str, Any]:
    """Median seconds of the queries, recall, and memory that is not the mapped file."""
    from closecall.approximate import SearchConfig, open_index

    vectors = np.memmap(file, np.float32, "r", shape=(size, WIDTH))
    rng = np.random.default_rng(1)
    near = np.asarray(vectors[np.sort(rng.integers(0, size, QUERIES))])
    # Half a unit away from a document in a random direction: cosine 0.9 to it.
    queries = unit(near + 0.5 * unit(rng.normal(size=near.shape)))
    started = time.perf_counter()
    settings = SearchConfig.model_validate({"kind": kind})
    index = open_index(vectors, [f"{row:08}" for row in range(size)], settings, file.parent / "indexes", queries, DEPTH)
    built = time.perf_counter() - started
    index.search(queries[:10], DEPTH)
    taken = []
    for _ in range(turns):
        started = time.perf_counter()
        index.search(queries, DEPTH)
        taken.append(time.perf_counter() - started)
    return {
        "kind": kind,
        "documents": size,
        "seconds": float(np.median(taken)),
        "built_seconds": round(built, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "mapped_mib": size * WIDTH * 4 >> 20,
        **{key: value for key, value in index.facts().items() if key != "search"},
    }


if __name__ == "__main__":
    found = measured(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    sys.stdout.write(json.dumps(found) + "\n")
