"""Exports: the mined triples as files that other trainers read as they are.

The reader of each form was looked up:

- `n-tuple`, `triplet`, `labeled-pair`, `labeled-list`: the output formats of `mine_hard_negatives` of
  sentence-transformers 6.2. Its first two columns bear the names of the user's dataset; here they are `query`, and
  `positive`, `document` or `documents`. As there, a list needs a negative, a labeled positive does not.
- `flagembedding`: the data format of FlagEmbedding. `pos_scores` and `neg_scores`, the teacher's, are read with
  `--knowledge_distillation True` alone. Give it `train.jsonl`: of a folder it reads every JSON file.
- `tevatron`: `query_id`, `query`, `positive_passages` and `negative_passages` of {docid, title, text}, which every
  version of Tevatron trains on: 1, 1.5 (it fails without `title`), and the later ones, which call it legacy.
  The form that those prefer, ids into a corpus (`positive_document_ids`), the older ones do not read.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from closecall.errors import ArtifactError, ConfigError, DataError
from closecall.records import Document
from closecall.text import normalise
from mining.artifact import Triple

MARK = "export.json"
DATASET = "dataset"
PARQUET = "train.parquet"
JSONL = "train.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True)
class Exported:
    """What was written, and what of the triples was not."""

    folder: Path
    form: str
    files: tuple[Path, ...]
    """What a trainer reads: `dataset` and `train.parquet`, which hold the same rows, or `train.jsonl`."""
    rows: int
    left_out: int
    """(query, positive) pairs that are in no row."""
    why: str
    """What the pairs that are left out lack; "" when none is."""
    repeats: int
    """Labeled pairs that have a row already, with the same two texts, and are not written again."""
    unused: int
    """Hard negatives of the written pairs beyond the number asked for."""

    def as_json(self) -> dict[str, Any]:
        """Everything, with paths as text."""
        return {**vars(self), "folder": str(self.folder), "files": [str(file) for file in self.files]}

    @property
    def sentence(self) -> str:
        """The counts for a person."""
        left = f"; {self.left_out:,} (query, positive) pairs left out: {self.why}" if self.left_out else ""
        repeats = f"; {self.repeats:,} repeated pairs written once" if self.repeats else ""
        unused = f"; {self.unused:,} more hard negatives not asked for" if self.unused else ""
        return f"export: {self.rows:,} rows as {self.form}{left}{repeats}{unused}"


def export(
    triples: Sequence[Triple],
    form: str,
    folder: Path,
    negatives: int | None = None,
    documents: Mapping[str, Document] | None = None,
    source: str = "",
) -> Exported:
    """The triples in the form of this name, as files in `folder`, which may replace nothing but an earlier export.

    `negatives` is how many of a pair's hard negatives are written, nearest first: for `n-tuple` just so many (default:
    the most that a pair has), for the other forms at most. `documents` gives `tevatron` the titles, which the texts of
    the other forms begin with. `source` is the key of the mined artifact. The same input gives the same bytes.
    """
    _check_asked(form, negatives)
    whole, why = _choose(triples, form, negatives)
    chosen = [replace(triple, negatives=triple.negatives[:negatives]) for triple in whole]
    _check_apart(triples, chosen)
    rows = list(_tevatron(chosen, documents) if form == "tevatron" else MAKERS[form](chosen))
    counts = {
        "rows": len(rows),
        "left_out": len(triples) - len(chosen),
        "repeats": len(chosen) + _negatives(chosen) - len(rows) if form == "labeled-pair" else 0,
        "unused": _negatives(whole) - _negatives(chosen),
    }
    about = {"form": form, "source": source, "negatives": negatives, "columns": list(rows[0]), "pairs": len(triples)}
    if form == "flagembedding":
        about["scores"] = "guide" if _guided(chosen) else "base model"
    with _replacing(folder) as partial:
        names = (_write_jsonl if form in JSONL_FORMS else _write_tables)(rows, partial)
        text = json.dumps(about | counts | {"why": why}, indent=1, ensure_ascii=False)
        (partial / MARK).write_text(text + "\n", encoding="utf-8")
    return Exported(folder, form, tuple(folder / name for name in names), why=why, **counts)


def _negatives(triples: Sequence[Triple]) -> int:
    return sum(len(triple.negatives) for triple in triples)


def _check_asked(form: str, negatives: int | None) -> None:
    """ConfigError when there is no form of this name, or the number of negatives is none."""
    if form not in FORMS:
        nearest = get_close_matches(form.lower(), FORMS, n=1, cutoff=0.3)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ConfigError(f"form: found {form!r}; {hint}known forms: {', '.join(FORMS)}")
    if negatives is not None and negatives < 1:
        raise ConfigError(f"negatives: found {negatives}; it must be 1 or more")


def _choose(triples: Sequence[Triple], form: str, negatives: int | None) -> tuple[list[Triple], str]:
    """The pairs that the form can hold, whole, and what the others lack; DataError when it can hold none."""
    most = max((len(triple.negatives) for triple in triples), default=0)
    fewest = {"labeled-pair": 0, "n-tuple": negatives or max(1, most)}.get(form, 1)
    kept = [triple for triple in triples if len(triple.negatives) >= fewest]
    if not kept:
        raise DataError(_nothing(len(triples), fewest, most))
    lacking = f"fewer than {fewest} hard negatives" if fewest > 1 else "no hard negative"
    return kept, lacking if len(kept) < len(triples) else ""


def _nothing(pairs: int, fewest: int, most: int) -> str:
    """Why an export would have no row, and what to do."""
    if pairs == 0:
        return "nothing to export: there is no (query, positive) pair, expected one or more; mine judged queries first"
    if most == 0:
        return (
            f"nothing to export: none of the {pairs} (query, positive) pairs has a hard negative; loosen the filters "
            "of `mining` and mine again, or export labeled-pair, which needs none"
        )
    return (
        f"nothing to export: none of the {pairs} (query, positive) pairs has {fewest} hard negatives, the most is "
        f"{most}; ask for {most} or fewer, or mine more"
    )


def _check_apart(triples: Sequence[Triple], chosen: Sequence[Triple]) -> None:
    """DataError when a negative that would be written has the text of a positive of its query, under any id."""
    same = cache(normalise)  # of a document once, though many queries have it
    positives: dict[str, set[str]] = defaultdict(set)
    for triple in triples:
        positives[same(triple.query)].add(same(triple.positive))
    for triple in chosen:
        for negative in triple.negatives:
            if same(negative.text) in positives[same(triple.query)]:
                raise DataError(
                    f"query {triple.query_id!r}, positive {triple.positive_id!r}: the hard negative "
                    f"{negative.doc_id!r} has the text of a positive of this query; mine again, nothing was exported"
                )


def _n_tuples(triples: Sequence[Triple]) -> Iterator[Row]:
    for triple in triples:
        texts = {f"negative_{i}": negative.text for i, negative in enumerate(triple.negatives, 1)}
        yield {"query": triple.query, "positive": triple.positive, **texts}


def _triplets(triples: Sequence[Triple]) -> Iterator[Row]:
    for triple in triples:
        for negative in triple.negatives:
            yield {"query": triple.query, "positive": triple.positive, "negative": negative.text}


def _labeled_pairs(triples: Sequence[Triple]) -> Iterator[Row]:
    """One row per two texts: a query with two positives has the same negatives in two triples."""
    pairs = dict.fromkeys((triple.query, *labeled) for triple in triples for labeled in _labeled(triple))
    for query, document, label in pairs:
        yield {"query": query, "document": document, "label": label}


def _labeled_lists(triples: Sequence[Triple]) -> Iterator[Row]:
    for triple in triples:
        documents, labels = zip(*_labeled(triple), strict=True)
        yield {"query": triple.query, "documents": list(documents), "labels": list(labels)}


def _labeled(triple: Triple) -> list[tuple[str, int]]:
    """The texts of a triple with their labels, the positive first."""
    return [(triple.positive, 1), *((negative.text, 0) for negative in triple.negatives)]


def _flagembedding(triples: Sequence[Triple]) -> Iterator[Row]:
    guided = _guided(triples)
    for triple in triples:
        negatives = triple.negatives
        yield {
            "query": triple.query,
            "pos": [triple.positive],
            "neg": [negative.text for negative in negatives],
            "pos_scores": [triple.positive_guide_score if guided else triple.positive_score],
            "neg_scores": [negative.guide_score if guided else negative.score for negative in negatives],
        }


def _guided(triples: Sequence[Triple]) -> bool:
    """Whether the guide scored all of them: else the base model's scores are written, as the two must not be mixed."""
    scores: list[float | None] = [triple.positive_guide_score for triple in triples]
    return None not in [*scores, *(negative.guide_score for triple in triples for negative in triple.negatives)]


def _tevatron(triples: Sequence[Triple], documents: Mapping[str, Document] | None) -> Iterator[Row]:
    for triple in triples:
        yield {
            "query_id": triple.query_id,
            "query": triple.query,
            "positive_passages": [_passage(triple.positive_id, triple.positive, documents)],
            "negative_passages": [_passage(found.doc_id, found.text, documents) for found in triple.negatives],
        }


def _passage(doc_id: str, text: str, documents: Mapping[str, Document] | None) -> dict[str, str]:
    """The document as Tevatron wants it, always with a title: some versions fail without."""
    if documents is None:
        return {"docid": doc_id, "title": "", "text": text}
    document = documents.get(doc_id)
    if document is None or document.full_text != text:
        what = "is not in the corpus" if document is None else "has another text in the corpus"
        raise DataError(
            f"document {doc_id!r}: was mined but {what}; mine again, or export from the corpus it came from"
        )
    return {"docid": doc_id, "title": document.title, "text": document.text}


MAKERS: dict[str, Callable[[Sequence[Triple]], Iterator[Row]]] = {
    "n-tuple": _n_tuples,
    "triplet": _triplets,
    "labeled-pair": _labeled_pairs,
    "labeled-list": _labeled_lists,
    "flagembedding": _flagembedding,
}
FORMS = (*MAKERS, "tevatron")
JSONL_FORMS = ("flagembedding", "tevatron")
TYPES = {"label": pa.int64(), "labels": pa.list_(pa.int64()), "documents": pa.list_(pa.string())}
"""Types of columns that are not one text."""


def _write_jsonl(rows: Sequence[Row], folder: Path) -> list[str]:
    with (folder / JSONL).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return [JSONL]


def _write_tables(rows: Sequence[Row], folder: Path) -> list[str]:
    """The rows as a saved dataset and as Parquet."""
    from datasets import Dataset, disable_progress_bars  # takes a second, and JSONL needs none of it

    table = pa.Table.from_pylist(rows, pa.schema([(name, TYPES.get(name, pa.string())) for name in rows[0]]))
    pq.write_table(table, folder / PARQUET)
    disable_progress_bars()
    Dataset(table).save_to_disk(str(folder / DATASET))
    return [DATASET, PARQUET]


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A hidden sibling to write in, renamed into the place of `folder` when the block ends without an error."""
    folder = folder.resolve()  # `.` has no sibling
    partial, old = (folder.with_name(f".{folder.name}.{word}") for word in ("partial", "old"))
    for place in (folder, old):
        _refuse_foreign(place)
    try:
        if old.exists() and not folder.exists():  # killed between the two renames below
            old.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _refuse_foreign(folder: Path) -> None:
    """ArtifactError when there is something else than an earlier export or an empty folder: it would be lost."""
    if folder.is_dir() and ((folder / MARK).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        what = f"holds files but no {MARK}" if folder.is_dir() else "is a file"
        raise ArtifactError(f"{folder}: {what}, so it is no earlier export to replace; choose another folder")
