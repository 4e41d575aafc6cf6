"""A judged set in the forms that others read. What a form has no place for is named, and never lost in silence."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import Any

from closecall.dataset import Dataset
from closecall.errors import ConfigError, DataError
from closecall.formats.tables import AS_JSON, BATCH_ROWS
from closecall.formats.topics import xml_topics
from closecall.records import Document, Query

Record = dict[str, Any]
INT64 = 2**63


@dataclass(frozen=True)
class ExportedSet:
    """What was written, and what the form has no place for."""

    folder: Path
    form: str
    files: tuple[Path, ...]
    left_out: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, with paths as text."""
        return {**vars(self), "folder": str(self.folder), "files": [str(file) for file in self.files]}

    @property
    def sentence(self) -> str:
        """For people."""
        left = f"; this form has no place for {', '.join(self.left_out)}" if self.left_out else ""
        return f"export: {len(self.files)} files as {self.form}{left}"


def export_set(dataset: Dataset, form: str, folder: Path) -> ExportedSet:
    """The judged set in this form, in a new folder. `closecall import` reads each of them back.

    ConfigError for an unknown form or a folder that holds something; DataError for a set that the form cannot hold.
    """
    if form not in WRITERS:
        nearest = get_close_matches(form.lower(), WRITERS, n=1, cutoff=0.3)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ConfigError(f"form: found {form!r}; {hint}known forms: {', '.join(WRITERS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and holds something; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        left_out = WRITERS[form](dataset, work)
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    return ExportedSet(folder, form, files, tuple(left_out))


def document_record(document: Document) -> Record:
    """A document as a line of `corpus.jsonl` spells it."""
    title = {"title": document.title} if document.title else {}
    return {"_id": document.doc_id} | title | {"text": document.text} | dict(document.metadata)


def query_record(query: Query) -> Record:
    """A query as a line of `queries.jsonl` spells it."""
    return {"_id": query.query_id, "text": query.text} | dict(query.metadata)


def _judgments(dataset: Dataset) -> Iterator[tuple[str, Record]]:
    """Split ("" for none) and row of each judgment."""
    split_of = {query_id: split for split, query_ids in (dataset.own_splits or {}).items() for query_id in query_ids}
    for query_id, doc_id, grade in dataset.qrels.judgments():
        yield split_of.get(query_id, ""), {"query-id": query_id, "corpus-id": doc_id, "score": grade}


def _beir(dataset: Dataset, folder: Path) -> list[str]:
    """BEIR's folder: gzipped JSONL and `qrels/{split}.tsv`; a set without a split of its own is all test."""
    with gzip.GzipFile(folder / "corpus.jsonl.gz", "wb", mtime=0) as out:
        for document in dataset.documents:
            out.write((json.dumps(document_record(document), ensure_ascii=False) + "\n").encode("utf-8"))
    _jsonl(folder / "queries.jsonl", map(query_record, dataset.queries))
    (folder / "qrels").mkdir()
    for split, rows in _by_split(dataset).items():
        _tsv(folder / "qrels" / f"{split or 'test'}.tsv", rows)
    return []


def _native(dataset: Dataset, folder: Path) -> list[str]:
    _jsonl(folder / "corpus.jsonl", map(document_record, dataset.documents))
    _jsonl(folder / "queries.jsonl", map(query_record, dataset.queries))
    found = _by_split(dataset)
    for split, rows in found.items():
        (folder / "qrels").mkdir(exist_ok=True) if split else None
        _tsv(folder / "qrels" / f"{split}.tsv" if split else folder / "qrels.tsv", rows)
    return []


def _by_split(dataset: Dataset) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for split, row in _judgments(dataset):
        found.setdefault(split, []).append(row)
    return found


def _jsonl(path: Path, records: Iterable[Record]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _tsv(path: Path, rows: Iterable[Record], header: bool = True) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.write("query-id\tcorpus-id\tscore\n" if header else "")
        for row in rows:
            out.write("\t".join(map(str, row.values())) + "\n")


def _tables(dataset: Dataset) -> dict[str, Callable[[], Iterator[Record]]]:
    """Corpus, queries and judgments as rows; judgments with their split where the set has its own."""

    def qrels() -> Iterator[Record]:
        return (row | ({"split": split} if split else {}) for split, row in _judgments(dataset))

    return {
        "corpus": lambda: map(document_record, dataset.documents),
        "queries": lambda: map(query_record, dataset.queries),
        "qrels": qrels,
    }


def _kinds(rows: Iterable[Record]) -> dict[str, set[str]]:
    """Column -> the kinds of its values; "none" where a row lacks it or has an empty text: CSV cannot tell."""
    kinds: dict[str, set[str]] = {}
    count = 0
    seen: dict[str, int] = {}
    for row in rows:
        count += 1
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
            seen[name] = seen.get(name, 0) + 1
    for name, found in kinds.items():
        found |= {"absent"} if seen[name] < count else set()
    return kinds


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "text" if value else "empty"
    if isinstance(value, int):
        return "int" if -INT64 <= value < INT64 else "json"
    if isinstance(value, float):
        return "float" if math.isfinite(value) else "json"
    return "texts" if isinstance(value, list) and value and all(isinstance(one, str) for one in value) else "json"


def _csv(delimiter: str, name: str, excel: bool = False) -> Callable[[Dataset, Path], list[str]]:
    """A writer of three CSV files. Columns that are not all text are written as JSON, and called `...:json`."""

    def write(dataset: Dataset, folder: Path) -> list[str]:
        for part, rows in _tables(dataset).items():
            if name == "tsv" and part == "qrels" and dataset.own_splits is None:
                _tsv(folder / "qrels.tsv", rows())  # qrels in the usual columns are read without quotes
                continue
            plain = {key: kinds <= {"text", "absent"} or key in OWN for key, kinds in _kinds(rows()).items()}
            path = folder / f"{part}.{name}"
            with open(path, "w", encoding="utf-8-sig" if excel else "utf-8", newline="") as out:
                out.write(f"sep={delimiter}\r\n" if excel else "")
                writer = csv.writer(out, delimiter=delimiter, lineterminator="\r\n")
                writer.writerow([_named(key, one) for key, one in plain.items()])
                writer.writerows([_cell(row, key, one) for key, one in plain.items()] for row in rows())
        return []

    return write


OWN = ("_id", "text", "query-id", "corpus-id", "score", "split")
"""Columns that readers know to be text, or whole numbers."""


def _named(key: str, plain: bool) -> str:
    return key if plain and not key.endswith(AS_JSON) else key + AS_JSON


def _cell(row: Mapping[str, Any], key: str, plain: bool) -> str:
    if key not in row:
        return ""
    return str(row[key]) if plain and not key.endswith(AS_JSON) else json.dumps(row[key], ensure_ascii=False)


def _yaml(dataset: Dataset, folder: Path) -> list[str]:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    for part, rows in _tables(dataset).items():
        with open(folder / f"{part}.yaml", "w", encoding="utf-8", newline="\n") as out:
            for row in rows():
                yaml.dump([row], out, dumper, allow_unicode=True, sort_keys=False, width=2**30)
    return []


def _parquet(dataset: Dataset, folder: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(),
             "texts": pa.list_(pa.string())}  # fmt: skip
    for part, rows in _tables(dataset).items():
        columns = {key: _arrow(key, kinds) for key, kinds in _kinds(rows()).items()}
        names = {key: _named(key, kind != "json") for key, kind in columns.items()}
        schema = pa.schema([(names[key], types.get(kind, pa.string())) for key, kind in columns.items()])
        with pq.ParquetWriter(folder / f"{part}.parquet", schema) as writer:
            for batch in _batches(rows()):
                lines = [{names[key]: _stored(row, key, names[key]) for key in columns} for row in batch]
                writer.write_table(pa.Table.from_pylist(lines, schema))
    return []


def _arrow(key: str, kinds: set[str]) -> str:
    """The one kind that a column of these can be stored as; json for a mix."""
    own = {"text" if kind == "empty" else kind for kind in kinds} - {"absent"}
    return own.pop() if len(own) == 1 and not key.endswith(AS_JSON) else "json"


def _stored(row: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in row:
        return None
    return row[key] if name == key else json.dumps(row[key], ensure_ascii=False)


def _batches(rows: Iterator[Record]) -> Iterator[list[Record]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


def _hf(dataset: Dataset, folder: Path) -> list[str]:
    """Three datasets saved to disk, by way of Parquet."""
    from datasets import Dataset as Saved
    from datasets import disable_progress_bars

    disable_progress_bars()
    _parquet(dataset, folder)
    for part in _tables(dataset):
        path = folder / f"{part}.parquet"
        with tempfile.TemporaryDirectory() as cache:
            Saved.from_parquet(str(path), cache_dir=cache).save_to_disk(str(folder / part))
        path.unlink()
    return []


def _trec(dataset: Dataset, folder: Path) -> list[str]:
    """Topics as XML, qrels in TREC's four columns, by split; documents as JSONL, for which TREC has no one form."""
    text = xml_topics([(query.query_id, query.text) for query in dataset.queries])
    (folder / "topics.xml").write_text(text, encoding="utf-8", newline="\n")
    for split, rows in _by_split(dataset).items():
        with open(folder / f"qrels{'.' if split else ''}{split}.txt", "w", encoding="utf-8", newline="\n") as out:
            for row in rows:
                query_id, doc_id, grade = row.values()
                out.write(f"{query_id}\t0\t{doc_id}\t{grade}\n")
    _jsonl(folder / "corpus.jsonl", map(document_record, dataset.documents))
    return _query_columns(dataset)


def _query_columns(dataset: Dataset) -> list[str]:
    columns = dict.fromkeys(chain.from_iterable(query.metadata for query in dataset.queries))
    return [f"columns of queries ({', '.join(columns)})"] if columns else []


def _ratings(dataset: Dataset, form: str) -> Iterator[tuple[Query, list[tuple[str, int]]]]:
    """Each judged query with its grades. DataError when the form names queries by texts that are not unique."""
    known: dict[str, str] = {}
    for query in dataset.queries:
        grades = list(dataset.qrels.grades(query.query_id).items())
        if grades:
            other = known.setdefault(query.text, query.query_id)
            if other != query.query_id and form != "elasticsearch":
                raise DataError(
                    f"queries {other!r} and {query.query_id!r} have the same text, by which {form} names them; merge "
                    "them, or choose another form"
                )
            yield query, grades


def _beside(dataset: Dataset, folder: Path) -> list[str]:
    """What a list of judgments lacks, as files that `import` takes with it."""
    _jsonl(folder / "corpus.jsonl", map(document_record, dataset.documents))
    _jsonl(folder / "queries.jsonl", map(query_record, dataset.queries))
    return ["the split"] if dataset.own_splits else []


def _quepid(dataset: Dataset, folder: Path) -> list[str]:
    with open(folder / "quepid.csv", "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(["query", "docid", "rating"])
        for query, grades in _ratings(dataset, "quepid"):
            writer.writerows([query.text, doc_id, grade] for doc_id, grade in grades)
    return _beside(dataset, folder)


def _opensearch(dataset: Dataset, folder: Path) -> list[str]:
    entries = [
        {"query": query.text, "ratings": [{"docId": doc_id, "rating": str(grade)} for doc_id, grade in grades]}
        for query, grades in _ratings(dataset, "opensearch")
    ]
    content = {"name": "closecall", "type": "IMPORT_JUDGMENT", "judgmentRatings": entries}
    _write_json(folder / "opensearch.json", content)
    return _beside(dataset, folder)


def _elasticsearch(dataset: Dataset, folder: Path) -> list[str]:
    requests = [
        {
            "id": query.query_id,
            "request": {"query": {"match": {"text": query.text}}},
            "ratings": [{"_index": "corpus", "_id": doc_id, "rating": grade} for doc_id, grade in grades],
        }
        for query, grades in _ratings(dataset, "elasticsearch")
    ]
    _write_json(folder / "rank_eval.json", {"requests": requests, "metric": {"dcg": {"k": 10, "normalize": True}}})
    return _beside(dataset, folder)


def _ltr(dataset: Dataset, folder: Path) -> list[str]:
    lines = []
    for query, grades in _ratings(dataset, "ltr"):
        for doc_id, grade in grades:
            if bad := next((name for name in (query.query_id, doc_id) if re.search(r"[\s#]", name)), None):
                raise DataError(f"id {bad!r} holds a space or #, which LTR text parts its fields by; rename it")
            lines.append(f"{grade} qid:{query.query_id} # {doc_id} {' '.join(query.text.split())}\n")
    (folder / "judgments.ltr").write_text("".join(lines), encoding="utf-8", newline="\n")
    return _beside(dataset, folder)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


WRITERS: dict[str, Callable[[Dataset, Path], Sequence[str]]] = {
    "beir": _beir, "jsonl": _native, "csv": _csv(",", "csv"), "tsv": _csv("\t", "tsv"),
    "excel": _csv(";", "csv", excel=True), "yaml": _yaml, "parquet": _parquet, "hf": _hf, "trec": _trec,
    "quepid": _quepid, "opensearch": _opensearch, "elasticsearch": _elasticsearch, "ltr": _ltr,
}  # fmt: skip
