"""Datasets of Hugging Face, on disk or on the hub, and of ir_datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from closecall.errors import ConfigError, DataError
from closecall.formats.parts import Graded, JudgedSet, Part, Placed, Record, of_table
from closecall.formats.tables import Row, Table, with_json

PARTS = {"corpus": "corpus", "documents": "corpus", "docs": "corpus", "passages": "corpus", "collection": "corpus",
         "queries": "queries", "topics": "queries", "questions": "queries",
         "qrels": "qrels", "default": "qrels", "judgments": "qrels"}  # fmt: skip
"""What a subset or a folder of this name holds. BEIR's mirrors call the judgments `default`."""
SPLITS = {"validation": "dev", "valid": "dev", "val": "dev", "dev": "dev", "train": "train", "test": "test"}


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / name).exists() for name in ("dataset_dict.json", "state.json"))


def saved(folder: Path, chosen: dict[str, str], what: str | None = None) -> JudgedSet:
    """A folder written by `save_to_disk`: pairs, triplets, judged rows; or splits called corpus, queries and qrels.

    `what` is corpus, queries or qrels where the folder's place says so.
    """
    from datasets import load_from_disk

    try:
        return _of_splits(load_from_disk(str(folder)), folder, chosen, what)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read as a saved dataset ({error}); save it again") from None


def from_hub(name: str, chosen: dict[str, str]) -> JudgedSet:
    """`owner/name` on the hub: its corpus, queries and qrels subsets, or its one subset of pairs or rows."""
    from datasets import get_dataset_config_names, load_dataset

    found, place = JudgedSet(), Path(name)
    try:
        for subset in get_dataset_config_names(name):
            what = PARTS.get(subset.removeprefix("beir-").lower())
            found.add(_of_splits(load_dataset(name, subset), place / subset, chosen, what))
        try:
            judged = get_dataset_config_names(f"{name}-qrels") if not found.judgments else []
        except Exception:
            judged = []  # BEIR's mirrors keep the judgments in a dataset of their own; others have none
        for subset in judged:
            found.add(_of_splits(load_dataset(f"{name}-qrels", subset), place / "qrels", chosen, "qrels"))
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"hf:{name} cannot be read ({str(error).splitlines()[0]}); check the name, or save it"
        ) from None
    found.files = []
    return found


def _of_splits(dataset: Any, place: Path, chosen: dict[str, str], what: str | None) -> JudgedSet:
    """A Dataset or DatasetDict as the parts it holds. Splits of these names are those of the judgments."""
    splits = dict(dataset) if hasattr(dataset, "keys") else {"": dataset}
    found = JudgedSet()
    several = len(set(splits) & SPLITS.keys()) > 1
    for name, rows in splits.items():
        kind = what or PARTS.get(name)
        split = SPLITS.get(name, "") if several and kind in (None, "qrels") else ""
        found.add(of_table(_table(rows, place / name if name else place), chosen, kind, split))
    found.form, found.files = "hf", sorted(path for path in place.rglob("*") if path.is_file())
    return found


def _table(rows: Any, place: Path) -> Table:
    def read(faults: list[str]) -> Iterator[Row]:
        for number, values in enumerate(rows, start=1):
            yield Row(number, {name: value for name, value in values.items() if value is not None})

    return with_json(Table(place, tuple(rows.column_names), read, "hf"))


def from_ir_datasets(name: str) -> JudgedSet:
    """An `ir_datasets` id: documents, queries and qrels as it gives them."""
    try:
        import ir_datasets
    except ImportError:
        raise ConfigError("ir:... needs ir_datasets; pip install 'closecall[ir-datasets]'") from None
    try:
        dataset = ir_datasets.load(name)
    except KeyError:
        raise DataError(f"ir:{name}: no dataset of this name; see ir_datasets.com for the names") from None
    return of_ir(dataset, Path(name))


def of_ir(dataset: Any, place: Path) -> JudgedSet:
    """A dataset with `docs_iter`, `queries_iter` and `qrels_iter`, each where `has_docs()` and so on say so."""
    found = JudgedSet(form="ir_datasets")
    if dataset.has_docs():
        found.documents.append(_part(place / "docs", dataset.docs_iter, _ir_document))
    if dataset.has_queries():
        found.queries.append(_part(place / "queries", dataset.queries_iter, _ir_query))
    if dataset.has_qrels():
        found.judgments.append(_part(place / "qrels", dataset.qrels_iter, lambda one: _ir_judgment(one)))
    return found


def _part(place: Path, read: Callable[[], Any], make: Callable[[Any], Any]) -> Part[Any]:
    def rows(faults: list[str]) -> Iterator[Placed[Any]]:
        for number, one in enumerate(read(), start=1):
            made = make(one)
            if isinstance(made, str):
                faults.append(f"{place} row {number}: {made}")
            else:
                yield Placed(number, made)

    return Part(place, rows)


def _ir_fields(one: Any, own: tuple[str, ...]) -> Record:
    return {name: value for name, value in one._asdict().items() if name not in own and value not in (None, "")}


def _ir_document(one: Any) -> Record:
    title = getattr(one, "title", "") or ""
    text = getattr(one, "text", None)
    text = one.default_text() if text is None else text
    rest = _ir_fields(one, ("doc_id", "text", "title"))
    return {"_id": one.doc_id} | ({"title": title} if title else {}) | {"text": text} | rest


def _ir_query(one: Any) -> Record:
    text = getattr(one, "text", None) or one.default_text()
    return {"_id": one.query_id, "text": text} | _ir_fields(one, ("query_id", "text"))


def _ir_judgment(one: Any) -> Graded | str:
    if one.relevance < 0:
        return f"grade {one.relevance} of query {one.query_id!r} is negative; say what it means, and map it to one >= 0"
    return Graded(one.query_id, one.doc_id, int(one.relevance))
