"""Every form out and in again on real judged sets: what is lost, and how long it takes."""

from __future__ import annotations

import shutil
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.common import keep
from closecall.dataset import DataConfig, Dataset, load_dataset
from closecall.errors import DataError
from closecall.formats.importer import import_set
from closecall.formats.source import Asked
from closecall.formats.writers import WRITERS, document_record, export_set, query_record

LISTS = {"quepid": "quepid.csv", "opensearch": "opensearch.json", "elasticsearch": "rank_eval.json",
         "ltr": "judgments.ltr"}  # fmt: skip
"""Forms of judgments alone: the texts come from files beside them."""


def run(arguments: Namespace) -> None:
    """For each dataset and form: seconds of the export and of the import, and whether the set is the same."""
    for folder in sorted(path for path in arguments.data.iterdir() if (path / "qrels").is_dir()):
        own = folder / "qrels" / "all.tsv"
        dataset = load_dataset(DataConfig(folder=folder, qrels=own if own.exists() else None))
        size = {"documents": len(dataset.documents), "queries": len(dataset.queries)}
        forms = {form: _round_trip(dataset, form, arguments.work / "formats" / form) for form in WRITERS}
        keep(arguments, f"formats-{folder.name}", {"dataset": folder.name, **size, "forms": forms})


def _round_trip(dataset: Dataset, form: str, place: Path) -> dict[str, Any]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    started = time.perf_counter()
    try:
        exported = export_set(dataset, form, place / "out")
    except DataError as error:
        return {"refused": str(error)}
    written = time.perf_counter()
    beside = {name: place / "out" / f"{name}.jsonl" for name in ("corpus", "queries")}
    source = place / "out" / LISTS.get(form, "")
    import_set(Asked(str(source), **(beside if form in LISTS else {})), place / "back")
    read = time.perf_counter()
    back = load_dataset(DataConfig(folder=place / "back"))
    lost = [part for part, same in _same(dataset, back).items() if not same]
    shutil.rmtree(place)
    return {"lost": lost, "said": list(exported.left_out), "write_s": written - started, "read_s": read - written}


def _same(one: Dataset, other: Dataset) -> dict[str, bool]:
    splits = [{split: sorted(ids) for split, ids in (found.own_splits or {}).items()} for found in (one, other)]
    return {
        "documents": _records(one) == _records(other),
        "queries": {q.query_id: query_record(q) for q in one.queries}
        == {q.query_id: query_record(q) for q in other.queries},
        "judgments": sorted(one.qrels.judgments()) == sorted(other.qrels.judgments()),
        "split": splits[0] == splits[1],
    }


def _records(dataset: Dataset) -> dict[str, Any]:
    return {document.doc_id: document_record(document) for document in dataset.documents}
