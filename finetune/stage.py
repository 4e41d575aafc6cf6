"""The fine-tuning stage: triples and the train and dev parts of the split in, the artifact `checkpoint/` out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sentence_transformers import SentenceTransformer
from torch import Tensor

from closecall.corpus import by_id
from closecall.dataset import Corpus
from closecall.encoder import Encoder, TextEncoder, load_encoder
from closecall.encoding import Role
from closecall.errors import ConfigError
from closecall.manifest import Artifact, Draft, artifact_key, up_to_date, writing
from closecall.measures import Measure
from closecall.models import weight_files
from closecall.precision import resolved_precision
from closecall.processes import join, main_first, processes, rank, wait_for_all
from closecall.progress import progress, say
from closecall.split import read_part
from closecall.vectors import VectorStore
from finetune import prompts
from finetune.artifact import CURVE, MODEL, PICTURE, Confirmed, Curve, SeedCurve, choose, described
from finetune.batch import BatchBuilder, GuideMask
from finetune.card import training_card
from finetune.config import FinetuneConfig
from finetune.dev import DevSet, mean_pairwise_cosine, weights_fingerprint
from finetune.estimate import check_disk, estimate
from finetune.picture import curve_picture
from finetune.plan import Plan, Rows, nearest_rows, plan
from finetune.weights import copy_of, set_dropout
from mining.artifact import read_triples


def finetune_inputs(
    corpus: Corpus, split: Artifact, mined: Artifact, encoder: Encoder, config: FinetuneConfig
) -> dict[str, str]:
    """What a checkpoint is made of, by content hash."""
    inputs = {
        "corpus": corpus.sha256,
        "train": split.content("train/"),
        "dev": split.content("dev/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "mined": mined.content(),
        "model": encoder.fingerprint,
    }
    if config.guide is not None and config.guide.model is not None:
        inputs["guide"] = load_encoder(config.guide.model).fingerprint
    return inputs


def finetune(
    corpus: Corpus,
    split: Artifact,
    mined: Artifact,
    encoder: TextEncoder,
    store: VectorStore,
    config: FinetuneConfig,
    folder: Path,
) -> Artifact:
    """The checkpoint in `folder`: the one on disk if its inputs and settings are the same, else trained now.

    Of the split only train and dev are opened. A killed training resumes at its last saved step. Under `torchrun` or
    `accelerate launch` all processes call this; the first one writes.
    """
    join()
    inputs = finetune_inputs(corpus, split, mined, encoder, config)
    found = up_to_date(folder, "finetune", inputs, config.resolved())
    if found is not None:
        say(f"finetune: unchanged, {folder} is used again")
        return found
    work = folder.with_name(f".{folder.name}.work")
    key = artifact_key("finetune", inputs, config.resolved())
    main = rank() == 0
    tuned = TextEncoder(encoder.folder, encoder.config)  # one of its own: the base stays what it is
    stage, before = _Stage(corpus, split, mined, encoder, tuned, store, config), store.counted
    with ExitStack() as stack:
        draft = None
        if main:
            draft = stack.enter_context(
                writing(folder, "finetune", inputs=inputs, config=config.resolved(), seed=config.seeds[0])
            )
        curves = stage.train(work, key)
        if draft is not None:
            curve = stage.save(curves, draft)
            draft.counts |= {"triples": len(stage.builder), "steps": stage.steps, "best_step": curve.chosen.step}
            draft.counts |= store.counted.since(before)
            draft.write_json(CURVE, curve.as_json())
            draft.path(PICTURE).write_text(curve_picture(curve) + "\n", encoding="utf-8")
            draft.path(f"{MODEL}/README.md").write_text(training_card(curve, config, encoder), encoding="utf-8")
            draft.device = encoder.device
            stack.close()
            say(summary(curve))
    wait_for_all()
    if main:
        shutil.rmtree(work, ignore_errors=True)
    return Artifact.open(folder, "finetune")


class _Stage:
    """What one training shares over its seeds, and the best weights so far."""

    def __init__(
        self,
        corpus: Corpus,
        split: Artifact,
        mined: Artifact,
        encoder: TextEncoder,
        tuned: TextEncoder,
        store: VectorStore,
        config: FinetuneConfig,
    ) -> None:
        self.corpus, self.encoder, self.tuned, self.store, self.config = corpus, encoder, tuned, store, config
        self.dev = DevSet(read_part(split, "dev"), corpus.documents, Measure.parse(config.dev_measure))
        documents = by_id(corpus.documents)
        self.builder = BatchBuilder(read_triples(mined), read_part(split, "train"), documents, config.negatives)
        self.precision = resolved_precision(config.precision, str(tuned.model.device), "finetune.precision")
        self.base_dev, self.steps = 0.0, 0

    def train(self, work: Path, key: str) -> list[SeedCurve]:
        """One training per seed; `tuned` is left with the weights of the best candidate of all."""
        from finetune.train import Measured, Probe, Training, train

        with main_first():
            documents, queries = (
                self.store.get(self.encoder, texts, role, f"{len(texts):,} {role} texts of dev")
                for texts, role in self._dev_texts()
            )
            neighbours = self._prepare_batches()
        self.base_dev = self.dev.score(documents, queries)
        rows = self.dev.pool(documents, queries, self.config.dev_documents)
        self.pool = self.dev.over(rows)
        probe = Probe(self.pool, self.encoder.config, VectorStore(work / "vectors"))
        start = Measured(self.pool.score(documents[rows], queries), mean_pairwise_cosine(documents[rows]))
        self._check_prompts(start.dev)
        training = Training(self.builder, probe, self.config, self.precision, start, work, key)
        if self.config.dropout is not None:
            set_dropout(self.tuned.model, self.config.dropout)
        before = copy_of(self.tuned.model)
        best: tuple[float, dict[str, Tensor]] = (start.dev, {})
        curves: list[SeedCurve] = []
        for seed in self.config.seeds:
            schedule = plan(len(self.builder), self.config, seed, neighbours, processes())
            if not all(map(len, schedule.batches)):
                raise ConfigError(
                    f"finetune.batch_size: a step has {len(schedule.rows(1))} rows, too few for {processes()} "
                    "processes; raise it, or start fewer of them"
                )
            if not curves:
                self._say_cost(schedule, work)
            self.steps = schedule.steps
            self.tuned.model.load_state_dict(before)
            label = f"train {len(self.builder):,} triples" + (f", seed {seed}" if len(self.config.seeds) > 1 else "")
            with progress(label, schedule.steps) as advance:
                curves.append(train(self.tuned.model, training, seed, schedule, advance))
            if curves[-1].best[0] > best[0]:
                best = (curves[-1].best[0], copy_of(self.tuned.model))
        self.tuned.model.load_state_dict(best[1] or before)
        self.probe = probe
        return curves

    def _dev_texts(self) -> list[tuple[Sequence[str], Role]]:
        return [(self.dev.document_texts(), "document"), (self.dev.query_texts(), "query")]

    def _prepare_batches(self) -> Rows | None:
        """The guide's vectors into the builder, and the nearest rows of each row where batches are of related ones."""
        config, builder = self.config, self.builder
        if config.guide is not None:
            guide = self.encoder if config.guide.model is None else load_encoder(config.guide.model)
            builder.guide = GuideMask(
                self.store.get(guide, builder.query_texts, "query", "training queries (guide)"),
                self.store.get(guide, builder.document_texts, "document", "training documents (guide)"),
                config.guide.margin,
            )
        if config.related == 1:
            return None
        vectors = self.store.get(self.encoder, builder.query_texts, "query", "training queries")
        return nearest_rows(vectors, builder.row_query)

    def _check_prompts(self, value: float) -> None:
        """Say that prompts may be missing; ModelError when those that are set do harm."""
        if found := prompts.advice(self.encoder):
            say(f"finetune: warning: {found}")
        if rank() == 0 and prompts.has_prompts(self.encoder):
            bare = TextEncoder(
                self.encoder.folder, self.encoder.config.model_copy(update={"query_prompt": "", "document_prompt": ""})
            )
            prompts.check(self.encoder, value, self.pool.value(bare, self.store), self.config.dev_measure)

    def _say_cost(self, schedule: Plan, work: Path) -> None:
        if not schedule.steps or rank() > 0:
            return
        cost = estimate(self.builder, schedule, self.encoder, self.config, self.precision)
        seeds = f" for each of {len(self.config.seeds)} seeds" if len(self.config.seeds) > 1 else ""
        say(f"finetune: {schedule.steps:,} steps in {self.precision}{seeds}: {cost.line()}")
        check_disk(cost, work.parent)

    def save(self, curves: Sequence[SeedCurve], draft: Draft) -> Curve:
        """The best candidate's model in the draft, or the base where search over the whole corpus does not confirm."""
        chosen, folder = choose(curves), draft.folder / MODEL
        confirmed = Confirmed(len(self.dev.documents), self.base_dev, self.base_dev)
        if chosen.share:
            _save(self.tuned.model, folder)
            saved = TextEncoder(folder, self.encoder.config.unpinned())
            name = weights_fingerprint(self.tuned.model)
            for _, role in self._dev_texts():
                self.store.adopt(self.probe.store, name, saved.fingerprint, role)
            confirmed = replace(confirmed, best=self.dev.value(saved, self.store))
            if confirmed.best <= confirmed.base:
                chosen = replace(chosen, step=0, share=0.0)
                shutil.rmtree(folder)
        if not chosen.share:
            _save(self.encoder.model, folder)
            _copy_weights(self.encoder.folder, folder)
        measure, count = str(self.dev.measure), len(self.pool.documents)
        return Curve(measure, count, tuple(curves), chosen, confirmed)


def summary(curve: Curve) -> str:
    """What dev said before and after, which candidate was kept, and why training ended early."""
    lines = [f"finetune: seed {one.seed}: {one.stopped}" for one in curve.seeds if one.stopped]
    last, chosen = curve.seeds[0].points[-1].step, curve.chosen
    confirmed = curve.confirmed
    if last == 0:
        kept = f"no step was trained (dev {curve.measure} {confirmed.base:.4f}): the checkpoint is the base"
    elif chosen.share == 0:
        kept = f"no step of {last} beat the base (dev {curve.measure} {confirmed.base:.4f}): the checkpoint is the base"
    else:
        kept = f"dev {curve.measure} {confirmed.base:.4f} -> {confirmed.best:.4f}: {described(curve)}"
    if curve.spread is not None:
        kept += f"; {len(curve.seeds)} seeds differ by {curve.spread:.4f}"
    return "\n".join([*lines, f"finetune: {kept}"])


def _save(model: SentenceTransformer, folder: Path) -> None:
    """The model as a folder, with the same bytes whatever it tokenised before (tokenizers save how they cut)."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    model.save_pretrained(str(folder), create_model_card=False)


def _copy_weights(base: Path, saved: Path) -> None:
    """Put the base's own weights files in the place of those saved anew, so that their digests are equal too."""
    for file in weight_files(base):
        if (saved / file.relative_to(base)).exists():
            shutil.copyfile(file, saved / file.relative_to(base))
