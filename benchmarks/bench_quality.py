"""Faults planted in real judged sets, and the alarms that they raise; the sets as they are raise none."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.common import keep
from closecall.bm25 import Bm25Index
from closecall.corpus import by_id
from closecall.dataset import DataConfig, load_dataset
from closecall.measures import Measure
from closecall.quality.material import BM25, DEPTH, Deciding, Material
from closecall.quality.survey import survey
from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from closecall.search import as_run

SETS = {"nl2bash": "dev.tsv", "cranfield": "all.tsv"}
SAMPLE = 400


@dataclass(frozen=True)
class Given:
    """A judged set as the checks see it."""

    documents: list[Document]
    queries: list[Query]
    grades: Mapping[tuple[str, str], int]
    others: Mapping[str, Run] = field(default_factory=dict)
    deciding: Deciding | None = None

    def run(self) -> Run:
        """BM25's rankings."""
        index = Bm25Index(self.documents)
        hits = index.search([index.known_words(query.text) for query in self.queries], DEPTH)
        return as_run(hits, [q.query_id for q in self.queries], [d.doc_id for d in self.documents])

    def positives(self, query_id: str) -> list[str]:
        """Graded 1 or more."""
        return [doc_id for (asked, doc_id), grade in self.grades.items() if asked == query_id and grade > 0]

    def alarms(self) -> list[str]:
        """Names of the alarms."""
        qrels = Qrels(Judgment(*pair, grade) for pair, grade in self.grades.items())
        queries = [query for query in self.queries if qrels.positives(query.query_id)]
        runs = {BM25: self.run(), **self.others}
        known = {document.doc_id: document for document in self.documents}
        material = Material(queries, qrels, known, runs, Measure.parse("nDCG@10"), "exp", self.deciding)
        return [one.name for one in survey(material) if one.alarm]

    def reworded(self, share: float, change: Callable[[str, int], str]) -> Given:
        """With the first so many queries worded otherwise."""
        last = share * len(self.queries)
        return replace(
            self,
            queries=[
                replace(query, text=change(query.text, row)) if row < last else query
                for row, query in enumerate(self.queries)
            ],
        )


def run(arguments: Namespace) -> None:
    """Alarms of each set as it is, and of it with each fault."""
    for name, file in SETS.items():
        given = _given(arguments.data / name, file)
        result = {"dataset": name, "queries": len(given.queries), "as it is": given.alarms()}
        result["planted"] = {
            fault: {"expected": alarm, "raised": plant(given).alarms()} for fault, (alarm, plant) in FAULTS.items()
        }
        if name == "cranfield":
            result["as circulated"] = _given(arguments.data / name, "as-circulated.tsv").alarms()
        keep(arguments, f"quality-{name}", result)


def _given(folder: Path, file: str) -> Given:
    dataset = load_dataset(DataConfig(folder=folder, qrels=folder / "qrels" / file))
    asked = [query for query in dataset.queries if dataset.qrels.positives(query.query_id)][:SAMPLE]
    grades = {(q.query_id, d): g for q in asked for d, g in dataset.qrels.grades(q.query_id).items()}
    wanted = {doc_id for _, doc_id in grades}
    documents = [by_id(dataset.documents)[doc_id] for doc_id in sorted(wanted)]
    others = [document for document in dataset.documents if document.doc_id not in wanted]
    return Given([*documents, *others[:2000]], asked, grades, {}, Deciding(len(asked), len(asked), 0.05))


def _first_zero(given: Given) -> Given:
    tops = given.run()
    found = {(q, tops.ranking(q)[0].doc_id): 0 for q in list(tops)[::2]}
    kept = {
        query.query_id
        for query in given.queries
        if any((query.query_id, d) not in found for d in given.positives(query.query_id))
    }
    return replace(given, grades={**given.grades, **{pair: 0 for pair in found if pair[0] in kept}})


def _same_text(given: Given) -> Given:
    return given.reworded(0.1, lambda text, row: given.queries[row // 2 * 2].text)


def _prefix(given: Given) -> Given:
    run = given.run()
    zeros = {(q, one.doc_id): 0 for q in run for one in run.ranking(q)[:3]}
    return replace(given, grades=zeros | {pair: grade for pair, grade in given.grades.items() if pair in zeros})


def _shallow(given: Given) -> Given:
    run = given.run()
    return replace(
        given, grades={(q, one.doc_id): 0 for q in run for one in run.ranking(q)[1:5:2]} | dict(given.grades)
    )


def _uneven(given: Given) -> Given:
    run, rng = given.run(), random.Random(0)
    zeros = {(q, one.doc_id): 0 for q in run for one in run.ranking(q)[:10]}
    ids = [document.doc_id for document in given.documents]
    other = Run({q: [ScoredDoc(doc_id, 1 - n / 20) for n, doc_id in enumerate(rng.sample(ids, 10))] for q in run})
    return replace(given, grades=zeros | dict(given.grades), others={"other": other})


def _repeated(given: Given) -> Given:
    more = [replace(query, query_id=f"again-{query.query_id}") for query in given.queries[::2]]
    grades = {(f"again-{q}", d): grade for (q, d), grade in given.grades.items()}
    return replace(given, queries=[*given.queries, *more], grades=dict(given.grades) | grades)


def _copied_documents(given: Given, share: float, change: Callable[[str], str]) -> Given:
    known = {document.doc_id: document for document in given.documents}
    wanted = dict.fromkeys(
        d for query in given.queries[: int(share * len(given.queries))] for d in given.positives(query.query_id)
    )
    copies = [replace(known[d], doc_id=f"copy-{d}", text=change(known[d].text)) for d in wanted]
    return replace(given, documents=[*given.documents, *copies])


def _copied_words(given: Given) -> Given:
    known = {document.doc_id: document for document in given.documents}

    def sentence(text: str, row: int) -> str:
        return " ".join(known[given.positives(given.queries[row].query_id)[0]].full_text.split()[:12])

    return given.reworded(0.5, sentence)


def _misspelt(text: str, row: int) -> str:
    rng, own = random.Random(row), text.split()
    long = [number for number, word in enumerate(own) if len(word) > 5]
    for number in rng.sample(long, min(2, len(long))):
        place = rng.randrange(1, len(own[number]))
        own[number] = own[number][:place] + own[number][place + 1 :]
    return " ".join(own)


CYRILLIC = {ord("a") + place: chr(0x430 + place) for place in range(26)}
FAULTS: dict[str, tuple[str, Callable[[Given], Given]]] = {
    "twelve queries": ("set_size", lambda g: replace(g, deciding=Deciding(12, 12, 0.24))),
    "slices of ten": (
        "small_slices",
        lambda g: replace(g, deciding=Deciding(80, 80, 0.09, {f"team={n}": ("team", 10) for n in range(8)}, 30)),
    ),
    "BM25's first document graded 0 for half of the queries": ("first_graded_zero", _first_zero),
    "a tenth of the queries with another's text": ("same_text", _same_text),
    "only BM25's first three judged": ("one_ranking", _prefix),
    "a pool of two documents": ("judgments_per_query", _shallow),
    "BM25's top judged, another model's not": ("uneven_pool", _uneven),
    "half of the queries twice": ("query_copies", _repeated),
    "near-copies of positives": ("positive_copies", lambda g: _copied_documents(g, 0.5, lambda text: f"{text} .")),
    "copies of documents": ("document_copies", lambda g: _copied_documents(g, 1, str.upper)),
    "half of the queries copied from a positive": ("copied_words", _copied_words),
    "queries eight times as long": ("query_length", lambda g: g.reworded(1, lambda text, row: " ".join([text] * 8))),
    "a letter dropped from two words": ("misspelt", lambda g: g.reworded(0.8, _misspelt)),
    "unknown part numbers": ("identifiers", lambda g: g.reworded(0.4, lambda text, row: f"part SKU-{row + 10000}")),
    "a tenth in Cyrillic": ("scripts", lambda g: g.reworded(0.1, lambda text, row: text.lower().translate(CYRILLIC))),
    "a tenth in a wrong encoding": ("scripts", lambda g: g.reworded(0.1, lambda text, row: f"{text} caf\u00c3\u00a9")),
}  # fmt: skip
