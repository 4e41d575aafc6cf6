"""The small hand-written form of judged queries: JSONL or YAML of query_id, query, relevant_docs, and metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from closecall.readers import Item, Records, id_of, kind, read_jsonl, read_records, read_yaml, text_fault
from closecall.records import Judgment, Query
from closecall.trec import NumberedJudgment, grade_of, merge_judgments

_KEYS = ("query_id", "query", "relevant_docs")


def read_judged(path: Path, listed_grade: int) -> tuple[Records[Query], list[NumberedJudgment], list[str]]:
    """The queries, their judgments, and the faults. Documents listed without a grade get `listed_grade`.

    A repeated query with the same content counts once; with other content it is a fault.
    """
    is_yaml = path.name.removesuffix(".gz").endswith((".yaml", ".yml"))
    items, faults = read_yaml(path, ("query_id", "relevant_docs")) if is_yaml else read_jsonl(path)
    records = read_records(path, items, "query_id", _query)
    rows: list[NumberedJudgment] = []
    for item in items:
        if (query_id := id_of(item.value.get("query_id"))) is None:
            continue  # already a fault
        for made in _judgments(query_id, item, listed_grade):
            if isinstance(made, str):
                faults.append(f"{path} line {item.line}: {made}")
            else:
                rows.append(NumberedJudgment(made, item.line))
    kept, conflicts = merge_judgments(path, rows)
    return records, kept, faults + conflicts


def _query(query_id: str, item: Item) -> Query | str:
    metadata = {key: value for key, value in item.value.items() if key not in _KEYS}
    return text_fault("query", item) or Query(query_id, str(item.value["query"]), metadata)


def _judgments(query_id: str, item: Item, listed_grade: int) -> Iterable[Judgment | str]:
    """The judgments of one object; what cannot be read comes as the fault."""
    relevant = item.value.get("relevant_docs")
    if not isinstance(relevant, list | Mapping):
        found = f"is {kind(relevant)}" if "relevant_docs" in item.value else "is missing"
        yield f"relevant_docs {found}; write a list of document ids, or {{id: grade}}"
        return
    pairs = relevant.items() if isinstance(relevant, Mapping) else ((doc_id, listed_grade) for doc_id in relevant)
    for raw, value in pairs:
        doc_id, grade = id_of(raw), _grade(value)
        if doc_id is None:
            yield f"relevant_docs holds {raw!r}, which is no id; write ids as text"
        elif isinstance(grade, str):
            yield f"document {doc_id!r}: {grade}"
        else:
            yield Judgment(query_id, doc_id, grade)


def _grade(value: object) -> int | str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return grade_of(str(value))
    return f"grade is {kind(value)}; write a whole number"
