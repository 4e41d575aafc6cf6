"""The evaluation stage: base and checkpoint on the test part of the split in, the artifact `verdict/` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from closecall.corpus import by_id
from closecall.dataset import Corpus
from closecall.encoder import Encoder, TextEncoder
from closecall.leaks import texts_in_training
from closecall.looks import Frozen
from closecall.manifest import Artifact, artifact_key, up_to_date, writing
from closecall.measures import Measure
from closecall.progress import say
from closecall.records import Document
from closecall.slices import SliceSource, find_slices
from closecall.split import Part, read_part
from closecall.vectors import VectorStore
from eval.answers import Answers
from eval.archive import read_archive
from eval.artifact import ARCHIVE, keep_failures, write_evaluation
from eval.build import Builder, Contender, model
from eval.config import EvalConfig
from eval.contenders import BASE, TUNED, inputs_of
from eval.costs import TIMINGS, Times, remembered, size_of, times_key, times_of
from eval.evaluation import Asked, Beside, Evaluation, evaluate_answers
from eval.guard import GuardResult, GuardSet, guarded, load_guard
from eval.languages import language_pairs
from eval.systems import Lexical, Searched
from finetune.artifact import Curve, described, read_curve
from mining.artifact import read_triples

LEXICAL_DEPTH = 20
"""Of BM25's rankings, against which failures are held."""


def evaluate(
    corpus: Corpus,
    split: Artifact,
    mined: Sequence[Artifact],
    checkpoint: Artifact,
    base: TextEncoder,
    tuned: TextEncoder,
    store: VectorStore,
    config: EvalConfig,
    folder: Path,
    frozen: Frozen | None = None,
) -> Artifact:
    """The verdict in `folder`: the one on disk if its inputs and settings are the same, else given now.

    On a `frozen` set each new verdict is logged, and says how many there were. `mined` holds what each round of
    training read. All contenders rank the whole corpus for the same test queries, in
    float32, ties by document id.
    """
    inputs = {
        "corpus": corpus.sha256,
        "test": split.content("test/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "split": split.content(),
        "mined": " ".join(artifact.content() for artifact in mined),
        "checkpoint": checkpoint.content(),
        "base": base.fingerprint,
        "tuned": tuned.fingerprint,
    }
    inputs |= inputs_of(config.contenders)
    guard = load_guard(config.guard) if config.guard is not None else None
    if guard is not None:
        inputs["guard"] = guard.dataset.sha256
    if frozen is not None:
        inputs["version"] = frozen.lock.current.version
    archive, key = folder.with_name(ARCHIVE), artifact_key("eval", inputs, config.resolved())[:12]
    found = up_to_date(folder, "eval", inputs, config.resolved())
    if found is not None:
        say(f"eval: unchanged, {folder} is used again")
        keep_failures(found, archive, key)
        return found
    part, before = read_part(split, "test"), store.counted
    known = read_archive(archive)
    with writing(folder, "eval", inputs=inputs, config=config.resolved(), seed=config.seed) as draft:
        judging = _Judging(corpus, part, base, tuned, store, config, folder.with_name(TIMINGS))
        curve = read_curve(checkpoint)
        evaluation = judging.evaluate(guard, curve.spread)
        facts: dict[str, Any] = {
            "models": judging.models(),
            "training": _training(curve),
            "seeds": {str(one.seed): one.best[0] for one in curve.seeds},
            "leaks": _leaks(split, mined, part),
            "languages": judging.languages(),
            "search": judging.searches(),
        }
        if frozen is not None:
            facts |= {"version": frozen.lock.named(), "looks": frozen.verdicts(key)}
        write_evaluation(draft.folder, evaluation, facts, judging.lexical(), known, key)
        draft.counts |= {"queries": evaluation.chosen.deciding.n, "documents": len(corpus.documents)}
        draft.counts |= store.counted.since(before)
        draft.device = tuned.device
    made = Artifact.open(folder, "eval")
    if frozen is not None:
        frozen.note_verdict(key, made.read_json("verdict.json"))
    keep_failures(made, archive, key)
    return made


class _Judging:
    """All contenders over one corpus and the test queries."""

    def __init__(
        self,
        corpus: Corpus,
        part: Part,
        base: TextEncoder,
        tuned: TextEncoder,
        store: VectorStore,
        config: EvalConfig,
        timings: Path,
    ) -> None:
        self.timings, self.corpus_sha256 = timings, corpus.sha256
        self.part, self.base, self.tuned, self.store, self.config = part, base, tuned, store, config
        self.searched = Searched(corpus.documents, config.search, store.folder.with_name("indexes"))
        self.contenders = self._over(self.searched, [query.query_id for query in part.queries])
        self.depth = max(config.depth, *(measure.cutoff or 0 for measure in config.all_measures()))

    def _over(self, searched: Searched, query_ids: Sequence[str] = ()) -> dict[str, Contender]:
        known = {
            BASE: model(searched, self.store, BASE, self.base.config.name, self.base),
            TUNED: model(searched, self.store, TUNED, str(self.tuned.folder), self.tuned),
        }
        return Builder(searched, self.store, known, query_ids).all(self.config.contenders)

    def models(self) -> dict[str, dict[str, str]]:
        """What each contender is."""
        return {name: {"name": c.what, "weights_sha256": c.weights_sha256} for name, c in self.contenders.items()}

    def evaluate(self, guard: GuardSet | None, spread: float | None) -> Evaluation:
        """Every contender asked, compared and judged."""
        answers = {name: self._answers(contender) for name, contender in self.contenders.items()}
        beside = Beside(
            {} if guard is None else self._guards(guard),
            {TUNED: spread},
            {name: size_of(c.system, self.searched, c.folders) for name, c in self.contenders.items()},
            {name: self._times(c) for name, c in self.contenders.items()},
        )
        return evaluate_answers(answers, self._asked(), self.config, beside)

    def _answers(self, contender: Contender) -> Answers:
        query_ids = tuple(query.query_id for query in self.part.queries)
        hits = contender.system.search(self.part.queries, self.depth)
        return Answers(hits, query_ids, contender.system.doc_ids)

    def _times(self, contender: Contender) -> Times:
        key = times_key(contender.system, contender.what, self.depth, self.corpus_sha256)
        asked = (contender.system, self.searched, self.part.queries, self.depth, not contender.from_file)
        return remembered(self.timings, key, lambda: times_of(*asked))

    def _guards(self, guard: GuardSet) -> dict[str, GuardResult]:
        """What each contender that can answer other queries loses on the guard set."""
        asked = [guard.dataset.query(query_id) for query_id in guard.query_ids]
        over = {name: c for name, c in self._over(Searched(guard.dataset.documents)).items() if not c.from_file}
        if self.config.incumbent not in over:
            return {}
        runs = {
            name: Answers(c.system.search(asked, self.depth), guard.query_ids, c.system.doc_ids).run()
            for name, c in over.items()
        }
        before = runs[self.config.incumbent]
        others = {name: run for name, run in runs.items() if name != self.config.incumbent}
        return {name: guarded(guard, before, run, self.config) for name, run in others.items()}

    def _asked(self) -> Asked:
        documents = by_id(self.searched.documents)
        truncated = _truncated(documents, self.part, self.base)
        source = SliceSource(self.part.queries, self.part.qrels, documents, truncated)
        slices = find_slices(source, self.config.slice_by)
        groups = {query.query_id: str(query.metadata["_group"]) for query in self.part.queries}
        queries = {query.query_id: query for query in self.part.queries}
        return Asked(queries, self.part.qrels, documents, slices, groups, truncated)

    def searches(self) -> dict[str, dict[str, Any]]:
        """The measured recall of each contender whose search is approximate."""
        found = {name: [part.facts() for part in c.system.parts] for name, c in self.contenders.items()}
        return {name: facts[0] for name, facts in found.items() if facts and facts[0]}

    def languages(self) -> list[dict[str, Any]]:
        """Each pair of languages with the values of each contender; empty where there is one pair."""
        systems = {name: contender.system for name, contender in self.contenders.items()}
        measure = Measure.parse(self.config.measure)
        queries, qrels = self.part.queries, self.part.qrels
        pairs = language_pairs(systems, self.searched, queries, qrels, measure, self.config.gain, self.depth)
        return [asdict(pair) for pair in pairs]

    def lexical(self) -> Answers:
        """What BM25 finds, to tell why queries fail."""
        hits = Lexical(self.searched).search(self.part.queries, LEXICAL_DEPTH)
        return Answers(hits, tuple(query.query_id for query in self.part.queries), self.searched.doc_ids)


def _truncated(documents: Mapping[str, Document], part: Part, encoder: Encoder) -> frozenset[str]:
    """Positives of the test queries that are longer than the model reads."""
    wanted = {doc_id for query_id in part.qrels for doc_id in part.qrels.positives(query_id)}
    positives = sorted(doc_id for doc_id in wanted if doc_id in documents)
    counts = encoder.token_counts([documents[doc_id].full_text for doc_id in positives], "document")
    limit = encoder.max_length_tokens or float("inf")
    return frozenset(doc_id for doc_id, count in zip(positives, counts, strict=True) if count > limit)


def _training(curve: Curve) -> str:
    """How the checkpoint was chosen, in a sentence."""
    base, best = curve.confirmed.base, curve.confirmed.best
    if curve.chosen.share == 0:
        return f"No step of training beat the base on dev ({curve.measure} {base:.4f}): the checkpoint is the base."
    spread = "" if curve.spread is None else f" {len(curve.seeds)} seeds differ by {curve.spread:.4f} on dev."
    return (
        f"Chosen on dev: {described(curve)}, {curve.measure} {base:.4f} -> {best:.4f}; "
        f"dev chose it, so its gain is an optimistic one.{spread}"
    )


def _leaks(split: Artifact, mined: Sequence[Artifact], part: Part) -> dict[str, int]:
    """Leaks of test that the split found, and test queries whose text stands in the training rows."""
    triples = [triple for artifact in mined for triple in read_triples(artifact)]
    texts = (
        text for triple in triples for text in (triple.query, triple.positive, *(n.text for n in triple.negatives))
    )
    found = {kind: count for kind, count in split.manifest["counts"]["leaks"].items() if kind.startswith("test~")}
    return found | {"test query text in training rows": len(texts_in_training(part.text_of(), texts))}
