"""The fine-tuning stage: triples and the train and dev parts of the split in, the artifact `checkpoint/` out."""

from __future__ import annotations

import shutil
from pathlib import Path

from closecall.dataset import Corpus
from closecall.encoder import Encoder, TextEncoder
from closecall.manifest import Artifact, Draft, artifact_key, up_to_date, writing
from closecall.measures import Measure
from closecall.models import weight_files
from closecall.progress import progress, say
from closecall.split import read_part
from closecall.vectors import VectorStore
from finetune.artifact import CURVE, MODEL, Curve
from finetune.batch import BatchBuilder
from finetune.config import FinetuneConfig
from finetune.dev import DevEvaluator, DevSet
from mining.artifact import read_triples


def finetune_inputs(corpus: Corpus, split: Artifact, mined: Artifact, encoder: Encoder) -> dict[str, str]:
    """What a checkpoint is made of, by content hash."""
    return {
        "corpus": corpus.sha256,
        "train": split.content("train/"),
        "dev": split.content("dev/"),
        "positive_from": str(split.manifest["config"]["positive_from"]),
        "mined": mined.content(),
        "model": encoder.fingerprint,
    }


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

    Of the split only train and dev are opened. A killed training resumes at its last saved step.
    """
    inputs = finetune_inputs(corpus, split, mined, encoder)
    found = up_to_date(folder, "finetune", inputs, config.resolved())
    if found is not None:
        say(f"finetune: unchanged, {folder} is used again")
        return found
    work = folder.with_name(f".{folder.name}.work")
    with writing(folder, "finetune", inputs=inputs, config=config.resolved(), seed=config.seed) as draft:
        key = artifact_key("finetune", inputs, config.resolved())
        curve = _train(corpus, split, mined, encoder, store, config, work, key, draft)
        draft.write_json(CURVE, curve.as_json())
        draft.device = encoder.device
    shutil.rmtree(work, ignore_errors=True)
    say(summary(curve))
    return Artifact.open(folder, "finetune")


def summary(curve: Curve) -> str:
    """One line: what dev said before and after, and which step was kept."""
    base, best = curve.points[0], curve.point(curve.best_step)
    if curve.best_step == 0:
        tried = f"no step of {curve.points[-1].step} beat the base" if len(curve.points) > 1 else "no step was trained"
        return f"finetune: {tried} (dev {curve.measure} {base.dev:.4f}): the checkpoint is the base"
    return (
        f"finetune: dev {curve.measure} {base.dev:.4f} -> {best.dev:.4f} at step {best.step} of {curve.points[-1].step}"
    )


def _train(
    corpus: Corpus,
    split: Artifact,
    mined: Artifact,
    encoder: TextEncoder,
    store: VectorStore,
    config: FinetuneConfig,
    work: Path,
    key: str,
    draft: Draft,
) -> Curve:
    """Measure the base on dev, train, and save the best step's model into the draft."""
    from finetune.train import plan, train

    documents = {document.doc_id: document for document in corpus.documents}
    train_part, dev_part = read_part(split, "train"), read_part(split, "dev")
    builder = BatchBuilder(read_triples(mined), train_part, documents, config.negatives)
    dev = DevSet(dev_part, corpus.documents, Measure.parse(config.dev_measure))
    base_value = dev.value(encoder, store)
    schedule = plan(len(builder), config)
    evaluator = DevEvaluator(dev, encoder.config, VectorStore(work / "vectors"))
    tuned = TextEncoder(encoder.folder, encoder.config)  # one of its own: the base stays what it is
    with progress(f"train {len(builder):,} triples", schedule.steps) as advance:
        curve = train(tuned.model, builder, evaluator, base_value, config, work, key, advance)
    draft.counts |= {"triples": len(builder), "steps": schedule.steps, "best_step": curve.best_step}
    kept = tuned if curve.best_step > 0 else encoder
    kept.model.save_pretrained(str(draft.folder / MODEL), create_model_card=False)
    if curve.best_step == 0:
        _copy_weights(encoder.folder, draft.folder / MODEL)
    if curve.best_step in evaluator.fingerprints:
        saved = TextEncoder(draft.folder / MODEL, encoder.config.unpinned())
        name = evaluator.fingerprints[curve.best_step]
        store.adopt(evaluator.store, name, saved.fingerprint, dev.document_texts(), "document")
    return curve


def _copy_weights(base: Path, saved: Path) -> None:
    """Put the base's own weights files in the place of those saved anew, so that their digests are equal too."""
    for file in weight_files(base):
        if (saved / file.relative_to(base)).exists():
            shutil.copyfile(file, saved / file.relative_to(base))
