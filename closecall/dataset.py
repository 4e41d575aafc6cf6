"""Corpus, queries and qrels in, checked: everything that is wrong is reported at once, with file, line and advice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from closecall.config import ConfigPath, Settings, usable_path
from closecall.corpus import Documents
from closecall.corpus_file import CorpusFile, read_corpus_file
from closecall.errors import DataError, fault_list
from closecall.judged import read_judged
from closecall.manifest import sha256_file, sha256_json
from closecall.readers import Item, Records, read_jsonl, read_records, resolve, text_fault
from closecall.records import Qrels, Query
from closecall.references import JudgmentFile, grade_faults, judgment_notes, reference_faults, split_faults
from closecall.reviewed import read_reviewed, with_reviewed
from closecall.text import normalise
from closecall.trec import read_qrels, split_files


def _beside_folder(path: Path, info: ValidationInfo) -> Path:
    """A relative path counts from `folder`; without one, from the folder of the config file."""
    return usable_path(path, info.data.get("folder") or (info.context or {}).get("folder"))


DataPath = Annotated[Path, AfterValidator(_beside_folder)]


class DataConfig(Settings):
    """Where the dataset is: a folder in the native layout, or its files one by one."""

    folder: ConfigPath | None = Field(None, description="holds corpus.jsonl, queries.jsonl and qrels.tsv or qrels/")
    corpus: DataPath | None = Field(None, description="the documents, JSONL; by default corpus.jsonl in the folder")
    queries: DataPath | None = Field(None, description="the queries, JSONL; by default queries.jsonl in the folder")
    qrels: DataPath | None = Field(None, description="judgments: a TSV, or a folder of train, dev, test.tsv")
    judged: DataPath | None = Field(None, description="JSONL or YAML of query_id, query, relevant_docs")
    reviewed: DataPath | None = Field(None, description="judgments of review, as judge-import writes them")
    positive_from: int = Field(1, ge=1, description="the lowest grade that counts as positive")

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        both = [f"data.{name}" for name in ("queries", "qrels") if getattr(self, name) is not None]
        if self.judged is not None and both:
            raise ValueError(f"data.judged already holds queries and judgments; drop it, or {' and '.join(both)}")
        needed = ("corpus",) if self.judged is not None else ("corpus", "queries", "qrels")
        missing = [f"data.{name}" for name in needed if getattr(self, name) is None]
        if self.folder is None and missing:
            raise ValueError(f"give data.folder, or {' and '.join(missing)} (or data.corpus and data.judged)")
        return self


@dataclass(frozen=True)
class Corpus:
    """All documents with a text. Reading it opens neither queries nor qrels."""

    documents: Documents
    """In the order of the file."""
    notes: tuple[str, ...]
    """What was merged, dropped or is odd, for people."""
    file: Path
    """Where they were read."""
    sha256: str
    """Hash over name, size and content of the file."""


@dataclass(frozen=True)
class Dataset:
    """Documents, queries and judgments that fit together."""

    documents: Documents
    """All documents with a text, in the order of the file."""
    queries: tuple[Query, ...]
    """All queries, judged or not, in the order of the file."""
    qrels: Qrels
    """All judgments of these queries on these documents, of all splits."""
    own_splits: Mapping[str, tuple[str, ...]] | None
    """Split -> ids of the queries judged in it, when the dataset brings its own split."""
    notes: tuple[str, ...]
    """What was merged, dropped or is odd, for people."""
    files: tuple[Path, ...]
    """Every file that was read."""
    sha256: str
    """Hash over name, size and content of the files."""
    corpus_sha256: str
    """The same over the file of the documents alone, as in `Corpus`."""

    @cached_property
    def _by_id(self) -> Mapping[str, Query]:
        return {query.query_id: query for query in self.queries}

    def query(self, query_id: str) -> Query:
        """The query with this id; KeyError if there is none."""
        return self._by_id[query_id]


@dataclass
class _Reading:
    """What was read so far, and all that is wrong with it."""

    corpus: CorpusFile | None = None
    queries: Records[Query] | None = None
    judgments: list[JudgmentFile] = field(default_factory=list)
    reviewed: list[JudgmentFile] = field(default_factory=list)
    empty: Mapping[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[[_Reading], None]) -> None:
        """Reads one part; a file that cannot be read is one fault among the others."""
        try:
            read(self)
        except DataError as error:
            self.faults.append(str(error))


def corpus_file(data: DataConfig) -> Path:
    """The file of the documents."""
    return resolve(_named(data, data.corpus, "corpus.jsonl"))


def _named(data: DataConfig, given: Path | None, name: str) -> Path:
    return given if given is not None else (data.folder or Path()) / name


def load_corpus(data: DataConfig) -> Corpus:
    """The documents alone; no queries and no qrels are opened. Raises one DataError with all faults."""
    reading = _Reading()
    _read_corpus(reading, data)
    assert reading.corpus is not None
    file = reading.corpus.path
    if reading.faults:
        raise DataError(fault_list(str(file), reading.faults))
    return Corpus(reading.corpus.documents, tuple(reading.notes), file, _content_hash([file]))


def load_documents(path: Path) -> Documents:
    """The documents of a file alone. Raises one DataError with all faults."""
    reading = _Reading()
    _read_documents(reading, path)
    if reading.faults:
        raise DataError(fault_list(str(path), reading.faults))
    assert reading.corpus is not None
    return reading.corpus.documents


def load_queries(path: Path) -> list[Query]:
    """The queries of a file alone. Raises one DataError with all faults."""
    reading = _Reading()
    _read_queries(reading, path)
    if reading.faults:
        raise DataError(fault_list(str(path), reading.faults))
    assert reading.queries is not None
    return list(reading.queries.rows.values())


def load_dataset(data: DataConfig) -> Dataset:
    """The whole dataset. Raises one DataError with all faults of all files."""
    reading = _Reading()
    reading.attempt(lambda found: _read_corpus(found, data))
    if data.judged is not None:
        reading.attempt(lambda found: _read_judged(found, data))
    else:
        reading.attempt(lambda found: _read_queries(found, _named(data, data.queries, "queries.jsonl")))
        reading.attempt(lambda found: _read_qrels(found, data))
    reading.attempt(lambda found: _read_reviewed(found, data.reviewed))
    _check_references(reading, data.positive_from)
    if reading.faults:
        raise DataError(fault_list(str(data.folder or data.corpus), reading.faults))
    return _dataset(reading, data)


def _read_corpus(reading: _Reading, data: DataConfig) -> None:
    _read_documents(reading, corpus_file(data))


def _read_documents(reading: _Reading, path: Path) -> None:
    found = read_corpus_file(path)
    reading.corpus, reading.empty = found, found.empty
    reading.faults += found.faults
    reading.notes += found.notes


def _read_queries(reading: _Reading, given: Path) -> None:
    path = resolve(given)
    items, faults = read_jsonl(path)
    reading.faults += faults
    _take_queries(reading, read_records(path, items, "_id", _query), bool(faults))


def _query(query_id: str, item: Item) -> Query | str:
    metadata = {key: value for key, value in item.value.items() if key not in ("_id", "text")}
    return text_fault("text", item) or Query(query_id, str(item.value["text"]), metadata)


def _read_judged(reading: _Reading, data: DataConfig) -> None:
    assert data.judged is not None
    path = resolve(data.judged)
    records, rows, faults = read_judged(path, data.positive_from)
    reading.faults += faults
    _take_queries(reading, records, bool(faults))
    reading.judgments.append(JudgmentFile("all", path, rows))


def _take_queries(reading: _Reading, records: Records[Query], at_fault: bool) -> None:
    reading.queries = records
    reading.faults += records.faults
    reading.notes += records.notes
    for query_id, query in records.rows.items():
        if not normalise(query.text):
            where = f"{records.path} line {records.lines[query_id]}"
            reading.faults.append(f"{where}: query {query_id!r} has no text; write it or drop the query")
    if not records.rows and not at_fault and not records.faults:
        reading.faults.append(f"{records.path}: holds no queries; expected one object per line")


def _read_qrels(reading: _Reading, data: DataConfig) -> None:
    for split, path in _qrels_files(reading, data).items():
        rows, faults = read_qrels(path)
        reading.faults += faults
        reading.judgments.append(JudgmentFile(split, path, rows))


def _qrels_files(reading: _Reading, data: DataConfig) -> dict[str, Path]:
    """Split -> file when the dataset brings its own split, else its one file as "all"."""
    place = _named(data, data.qrels, "qrels")
    if data.qrels is None:
        file = place.with_name("qrels.tsv")
        with suppress(DataError):
            file = resolve(file)
        if os.path.isdir(place) and file.exists():
            raise DataError(f"{place.parent} holds both {file.name} and qrels/; set data.qrels to the one that counts")
        place = place if os.path.isdir(place) else file
    if not os.path.isdir(place):
        return {"all": resolve(place)}
    found, unread = split_files(place)
    if unread:
        reading.notes.append(f"{place.name}/: not read: {', '.join(unread)}; splits are train.tsv, dev.tsv, test.tsv")
    return found


def _read_reviewed(reading: _Reading, path: Path | None) -> None:
    if path is not None:
        file, faults = read_reviewed(path)
        reading.reviewed.append(file)
        reading.faults += faults


def _check_references(reading: _Reading, positive_from: int) -> None:
    for file in (*reading.judgments, *reading.reviewed):
        reading.faults += reference_faults(file, reading.corpus, reading.queries)
    reading.faults += split_faults(reading.judgments)
    for file in reading.reviewed:
        known = reading.queries.lines if reading.queries else {}
        reading.judgments, faults = with_reviewed(reading.judgments, file, known)
        reading.faults += faults
    reading.faults += grade_faults(reading.judgments, positive_from)


def _dataset(reading: _Reading, data: DataConfig) -> Dataset:
    assert reading.corpus is not None
    assert reading.queries is not None
    by_split = {
        file.split: [row.judgment for row in file.rows if row.judgment.doc_id not in reading.empty]
        for file in reading.judgments
    }
    qrels = Qrels((row for rows in by_split.values() for row in rows), data.positive_from)
    own = None if "all" in by_split else {split: tuple(Qrels(rows)) for split, rows in by_split.items()}
    queries = tuple(reading.queries.rows.values())
    dropped = sum(len(file.rows) for file in reading.judgments) - sum(map(len, by_split.values()))
    notes = [*reading.notes, *judgment_notes(queries, qrels, dropped)]
    judged_in = (*reading.judgments, *reading.reviewed)
    files = list(dict.fromkeys([reading.corpus.path, reading.queries.path, *(file.path for file in judged_in)]))
    documents = reading.corpus.documents
    hashes = (_content_hash(files), _content_hash([reading.corpus.path]))
    return Dataset(documents, queries, qrels, own, tuple(notes), tuple(files), *hashes)


def _content_hash(files: Iterable[Path]) -> str:
    return sha256_json([[path.name, path.stat().st_size, sha256_file(path)] for path in files])
