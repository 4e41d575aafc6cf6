"""What a dataset is, before anything is trained on it: sizes, grades, duplicates, truncation, split and leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from closecall.assign import Assignment
from closecall.corpus import Texts
from closecall.dataset import Dataset
from closecall.encoder import Encoder
from closecall.encoding import Role
from closecall.leaks import Leaks
from closecall.quality.survey import quality_lines
from closecall.records import SPLITS
from closecall.text import normalise

SAMPLE_TEXTS = 5000
SHOWN_VALUES = 12


def describe(dataset: Dataset, encoder: Encoder) -> dict[str, Any]:
    """Facts of a dataset as plain JSON types. Nothing is encoded; texts are counted in tokens."""
    qrels = dataset.qrels
    grades = Counter(judgment.relevance for judgment in qrels.judgments())
    positives = [len(qrels.positives(query.query_id)) for query in dataset.queries]
    documents = Texts(dataset.documents)
    queries = [query.text for query in dataset.queries]
    return {
        "documents": len(documents),
        "queries": len(queries),
        "judgments": sum(grades.values()),
        "grades": {str(grade): grades[grade] for grade in sorted(grades)},
        "positive_from": qrels.positive_from,
        "queries_without_positives": sum(count == 0 for count in positives),
        "positives_per_query": round(float(np.mean([count for count in positives if count])), 2),
        "duplicate_documents": _duplicates(documents),
        "duplicate_queries": _duplicates(queries),
        "columns": _columns(dataset),
        "max_length_tokens": encoder.max_length_tokens,
        "truncated": {
            "documents": _truncated(encoder, documents, "document"),
            "queries": _truncated(encoder, queries, "query"),
        },
        "notes": list(dataset.notes),
    }


def describe_split(dataset: Dataset, assignment: Assignment, leaks: Leaks) -> dict[str, Any]:
    """Facts of the split that a dataset would get."""
    sizes = Counter(assignment.part.values())
    return {
        "split": {name: sizes[name] for name in SPLITS} | {"groups": len(set(assignment.group.values()))},
        "own_splits": dataset.own_splits is not None,
        "set_aside": {reason: len(ids) for reason, ids in assignment.set_aside.items() if ids},
        "leaks": leaks.counts,
    }


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines for a person."""
    cut = report["truncated"]
    grades = ", ".join(f"{count:,} of grade {grade}" for grade, count in report["grades"].items())
    limit = f"{report['max_length_tokens']:,} tokens" if report["max_length_tokens"] else "texts of any length"
    return [
        f"corpus     {report['documents']:,} documents, {report['duplicate_documents']:,} of them copies of another",
        f"queries    {report['queries']:,}, {report['duplicate_queries']:,} of them copies of another, "
        f"{report['queries_without_positives']:,} without positives",
        f"judgments  {report['judgments']:,}: {grades}; positive from {report['positive_from']}, "
        f"{report['positives_per_query']} positives per query that has one",
        f"length     the model reads {limit}: {_cut(cut['documents'], 'documents')}, "
        f"{_cut(cut['queries'], 'queries')} are cut",
        *_precision_lines(report.get("precision", {})),
        *(f"column     {name}: {_values(values)}" for name, values in report["columns"].items()),
        *(f"note       {note}" for note in report["notes"]),
        *(_split_lines(report) if "split" in report else [f"split      cannot be made: {report['split_fault']}"]),
        *quality_lines(report.get("quality", ())),
    ]


def _precision_lines(effect: Mapping[str, Any]) -> list[str]:
    """What encoding in fewer bits gains and costs; nothing for float32."""
    if "documents" not in effect:
        return []
    (measure, values), name = next(item for item in effect.items() if "@" in item[0]), effect["name"]
    return [
        f"precision  {name}, {effect['times_as_fast']} times as fast as float32 on {effect['documents']} documents: "
        f"cosine to float32 {effect['mean_cosine']} (least {effect['least_cosine']}), {measure} of "
        f"{effect['queries']} queries among them {values['float32']} -> {values[name]}; model.precision sets it"
    ]


def _split_lines(report: Mapping[str, Any]) -> list[str]:
    split, own = report["split"], " (the dataset's own)" if report["own_splits"] else ""
    found = [
        f"split      train {split['train']:,}, dev {split['dev']:,}, test {split['test']:,} queries in "
        f"{split['groups']:,} groups{own}",
        *(f"set aside  {count:,} queries: {reason}" for reason, count in report["set_aside"].items()),
        *(f"LEAK       {kind}: {count:,} queries" for kind, count in report["leaks"].items()),
        *([] if report["leaks"] else ["leaks      none found between test, dev and train"]),
    ]
    if "test_slices" in report:
        sizes = ", ".join(f"{name} {count:,}" for name, count in report["test_slices"].items()) or "none"
        found.append(f"slices     of test: {sizes}; below {report['min_slice_queries']} too few to judge")
    if "resolvable_gain" in report:
        gain = report["resolvable_gain"]
        found.append(
            f"power      {split['test']:,} test queries show a gain of {gain['points']:.1f} points or more with 80 % "
            f"power (if the gain of one query spreads by {gain['assumed_spread']}; the verdict says the real figure)"
        )
    return found


def _duplicates(texts: Sequence[str]) -> int:
    """How many texts repeat an earlier one, after normalisation."""
    return len(texts) - len({normalise(text) for text in texts})


def _truncated(encoder: Encoder, texts: Sequence[str], role: Role) -> dict[str, Any]:
    """Share of texts longer than the model reads; of a seeded sample where there are more than 5,000."""
    rng = np.random.default_rng(0)
    sample = texts
    if len(texts) > SAMPLE_TEXTS:
        sample = [texts[row] for row in rng.choice(len(texts), SAMPLE_TEXTS, replace=False)]
    counts = encoder.token_counts(sample, role)
    limit = encoder.max_length_tokens or np.inf
    return {
        "share": round(float((counts > limit).mean()), 4),
        "longest_tokens": int(counts.max()),
        "sample": len(sample),
    }


def _cut(found: Mapping[str, Any], what: str) -> str:
    return f"{found['share']:.1%} of {what} (longest {found['longest_tokens']:,})"


def _columns(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Values of each query column with their counts, the most frequent first."""
    names = dict.fromkeys(name for query in dataset.queries for name in query.metadata)
    return {
        name: dict(Counter(str(query.metadata.get(name)) for query in dataset.queries).most_common()) for name in names
    }


def _values(values: Mapping[str, int]) -> str:
    shown = ", ".join(f"{value} {count:,}" for value, count in list(values.items())[:SHOWN_VALUES])
    more = f", and {len(values) - SHOWN_VALUES:,} more values" if len(values) > SHOWN_VALUES else ""
    return shown + more
