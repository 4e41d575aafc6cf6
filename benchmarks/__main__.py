"""Loop, encoding, search, resuming, forms: `python -m benchmarks --data FOLDER [--reference SCRIPT] [--only NAMES]`.

FOLDER holds judged sets in the native layout (nl2bash, scifact). `reference SCRIPT` mines, trains and evaluates with
sentence-transformers alone: `SCRIPT DATASET MODEL --epochs --negatives --max-length`, one JSON object on stdout.
Results are kept in `--work` as JSON, a file for each bench and dataset; `benchmarks/README.md` is written from all.
Mining, training and evaluation have benches of their own beside this file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import bench_encode, bench_formats, bench_loop, bench_quality, bench_resume, bench_vectors
from benchmarks.report import write_report

BENCHES = {
    "encode": bench_encode,
    "formats": bench_formats,
    "loop": bench_loop,
    "quality": bench_quality,
    "resume": bench_resume,
    "search": bench_vectors,
}


def main() -> None:
    """Run what is asked for, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmarks-work"))
    parser.add_argument("--only", default=",".join(BENCHES), help=",".join(BENCHES))
    parser.add_argument("--datasets", default="nl2bash,scifact")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="documents of the search bench")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in arguments.only.split(","):
        BENCHES[name].run(arguments)
    write_report(arguments.work, Path(__file__).parent / "README.md")


if __name__ == "__main__":
    main()
