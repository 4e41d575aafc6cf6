"""What a source is: a folder, a file, a name on the hub or in ir_datasets; and which parts of a judged set it holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from closecall.errors import ConfigError, DataError
from closecall.formats import hub
from closecall.formats.columns import ALIASES
from closecall.formats.engines import engine_file, engine_kind
from closecall.formats.parts import JudgedSet, of_table
from closecall.formats.tables import SUFFIXES, open_table, suffix_of
from closecall.formats.topics import qrels, topics
from closecall.readers import inside, open_lines, resolve

FORMS = ("beir", "csv", "jsonl", "yaml", "parquet", "hf", "ir_datasets", "trec", "quepid", "opensearch",
         "elasticsearch", "ltr")  # fmt: skip
"""What `--from` may name; without it the source tells."""
ENGINES = ("quepid", "opensearch", "elasticsearch", "ltr")
STEMS = {"corpus": ("corpus", "documents", "docs", "passages", "collection"),
         "queries": ("queries", "topics", "questions"),
         "qrels": ("qrels", "judgments", "judgements", "qrel"),
         "judged": ("judged",)}  # fmt: skip
SPLIT_FILE = re.compile(r"qrels[._-](?P<split>train|dev|test|val|valid|validation)\.(?:txt|tsv|csv)(?:\.gz)?")
KNOWN = tuple(ALIASES)


@dataclass(frozen=True)
class Asked:
    """What an import was asked to read."""

    source: str
    """A path, `hf:NAME` or `ir:NAME`; "" when all is named by the files below."""
    form: str | None = None
    corpus: Path | None = None
    queries: Path | None = None
    qrels: Path | None = None
    runs: tuple[Path, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role -> column, as the user named them."""


def read_source(asked: Asked) -> JudgedSet:
    """All parts of the judged set. A part that is named by its own file is not read from the source as well."""
    if asked.form is not None and asked.form not in FORMS:
        raise ConfigError(f"--from {asked.form}: no such form; expected one of {', '.join(FORMS)}")
    chosen = dict(asked.columns)
    found = _of_source(asked, chosen) if asked.source else JudgedSet()
    own = {"documents": asked.corpus, "queries": asked.queries, "judgments": asked.qrels}
    for name, path in own.items():
        if path is not None and not (name == "queries" and found.text_ids):
            getattr(found, name).clear()
    for path, read in ((asked.corpus, _corpus), (asked.queries, _queries), (asked.qrels, _qrels)):
        if path is not None:
            found.add(read(path, chosen))
    found.runs += [resolve(path) for path in asked.runs]
    if not (found.documents or found.queries or found.judgments):
        raise DataError(f"{asked.source or 'import'}: nothing to read; expected documents, queries and judgments")
    return found


def _of_source(asked: Asked, chosen: dict[str, str]) -> JudgedSet:
    if asked.source.startswith("hf:"):
        return hub.from_hub(asked.source.removeprefix("hf:"), chosen)
    if asked.source.startswith("ir:") or asked.form == "ir_datasets":
        return hub.from_ir_datasets(asked.source.removeprefix("ir:"))
    path = Path(asked.source)
    if os.path.isdir(path):
        return _folder(path, chosen, asked)
    return _file(resolve(path), chosen, asked.form)


def _corpus(path: Path, chosen: dict[str, str]) -> JudgedSet:
    return _part(path, chosen, "corpus")


def _queries(path: Path, chosen: dict[str, str]) -> JudgedSet:
    return topics(path) if _is_topics(path) else _part(path, chosen, "queries")


def _qrels(path: Path, chosen: dict[str, str]) -> JudgedSet:
    if os.path.isdir(path):
        return _qrels_folder(path, chosen)
    file = resolve(path)
    form = engine_kind(file)
    return engine_file(file, form) if form else qrels(file, chosen)


def _part(path: Path, chosen: dict[str, str], what: str) -> JudgedSet:
    if os.path.isdir(path) and hub.is_saved(path):
        return hub.saved(path, chosen)
    return of_table(open_table(path, KNOWN), chosen, what)


def _is_topics(path: Path) -> bool:
    """XML, or text whose first words are TREC's tags."""
    if os.path.isdir(path):
        return False
    file = resolve(path)
    if suffix_of(file) in (".xml", ".topics"):
        return True
    if suffix_of(file) not in (".txt", ""):
        return False
    first = next((text for _, text in open_lines(file) if text.strip()), "")
    return first.lstrip().lower().startswith(("<top", "<?xml"))


def _file(file: Path, chosen: dict[str, str], form: str | None) -> JudgedSet:
    """One file: topics, a judgment list of an engine, qrels or a run of TREC, or a table."""
    if form in ENGINES and not (form == "quepid" and suffix_of(file) == ".csv"):
        return engine_file(file, str(form))
    if _is_topics(file):
        return topics(file)
    if suffix_of(file) in (".json", ".txt", ".ltr", ".dat") and (kind := engine_kind(file)):
        return engine_file(file, kind)
    width = _trec_width(file)
    if width == 6:
        return JudgedSet(runs=[file], files=[file], form="trec")
    if width:
        return qrels(file, chosen)
    return of_table(open_table(file, KNOWN), chosen)


def _trec_width(file: Path) -> int:
    """3 or 4 for qrels, 6 for a run, by the first line of a text file; 0 for anything else."""
    if suffix_of(file) in SUFFIXES and suffix_of(file) not in (".txt", ".tsv"):
        return 0
    line = next((text for _, text in open_lines(file) if text.strip()), "")
    cells = line.split("\t") if "\t" in line else line.split()
    if len(cells) == 6 and re.fullmatch(r"[-+.\deE]+", cells[4]):
        return 6
    return len(cells) if len(cells) in (3, 4) and re.fullmatch(r"[-+]?\d+(\.0*)?", cells[-1].strip()) else 0


def _folder(folder: Path, chosen: dict[str, str], asked: Asked) -> JudgedSet:
    """A BEIR folder, or any with files or saved datasets called corpus, queries and qrels (or judged)."""
    if hub.is_saved(folder):
        return hub.saved(folder, chosen)
    found, names = JudgedSet(), sorted(os.listdir(folder))
    readers: dict[str, Callable[[Path], JudgedSet]] = {
        "corpus": lambda path: _saved_or(path, chosen, "corpus", _corpus),
        "queries": lambda path: _saved_or(path, chosen, "queries", _queries),
        "qrels": lambda path: _saved_or(path, chosen, "qrels", _qrels),
        "judged": lambda path: of_table(open_table(path, KNOWN), chosen, "judged"),
    }
    given = {"corpus": asked.corpus, "queries": asked.queries, "qrels": asked.qrels, "judged": None}
    for what, read in readers.items():
        if given[what] is None and (path := _named(folder, names, what)) is not None:
            found.add(read(path))
    if given["qrels"] is None and not found.judgments:
        for name in names:
            if match := SPLIT_FILE.fullmatch(name):
                found.add(qrels(folder / name, chosen, hub.SPLITS[match["split"]]))
    if (folder / "runs").is_dir():
        found.runs += sorted(path for path in (folder / "runs").iterdir() if path.is_file())
    if not (found.documents or found.queries or found.judgments) and not any(given.values()):
        raise DataError(
            f"{folder}, {inside(folder)}: no corpus, queries or qrels by these names; name the files with --corpus, "
            "--queries and --qrels"
        )
    found.form = "beir" if (folder / "qrels").is_dir() and found.form == "jsonl" else found.form
    return found


def _named(folder: Path, names: list[str], what: str) -> Path | None:
    """The file or folder that is called so; DataError for two of them."""
    stems = STEMS[what]
    found = [
        name
        for name in names
        if name.removesuffix(".gz").rpartition(".")[0] in stems and suffix_of(Path(name)) in (*SUFFIXES, ".xml")
    ]
    found += [name for name in names if name in stems and (os.path.isdir(folder / name) or not found)]
    if len(found) > 1:
        raise DataError(f"{folder} holds {' and '.join(found)}; name the one that counts with --{what} FILE")
    return folder / found[0] if found else None


def _saved_or(
    path: Path, chosen: dict[str, str], what: str, read: Callable[[Path, dict[str, str]], JudgedSet]
) -> JudgedSet:
    return hub.saved(path, chosen, what) if os.path.isdir(path) and hub.is_saved(path) else read(path, chosen)


def _qrels_folder(folder: Path, chosen: dict[str, str]) -> JudgedSet:
    """A folder of qrels by split: train, dev and test, or BEIR's names for them."""
    found = JudgedSet()
    for name in sorted(os.listdir(folder)):
        stem = name.removesuffix(".gz").partition(".")[0].lower()
        if stem in hub.SPLITS:
            found.add(qrels(folder / name, chosen, hub.SPLITS[stem]))
        elif stem in ("qrels", "all"):
            found.add(qrels(folder / name, chosen))
        else:
            found.notes.append(f"{folder.name}/{name}: not read; splits are train, dev and test")
    if not found.judgments:
        raise DataError(f"{folder}, {inside(folder)}: no judgments; expected train.tsv, dev.tsv, test.tsv")
    return found
