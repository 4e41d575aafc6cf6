"""A planned training with one seed: SentenceTransformerTrainer over judged batches, resumable, watched on dev."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, load_model, save_file, save_model
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.losses.gradcache import has_static_embedding_input
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from closecall.encoder import ModelConfig, TextEncoder
from closecall.errors import ConfigError, ModelError
from closecall.precision import Precision
from closecall.processes import from_main, rank
from closecall.vectors import VectorStore
from finetune.artifact import CurvePoint, Mixed, SeedCurve
from finetune.batch import BatchBuilder, Collator
from finetune.config import FinetuneConfig
from finetune.dev import DevSet, mean_pairwise_cosine, weights_fingerprint
from finetune.loss import JudgedMultipleNegativesRankingLoss
from finetune.plan import Plan, PlannedBatches
from finetune.weights import add_adapters, averaged, copy_of, remove_adapters

KEY_FILE = "key.txt"
WEIGHTS = "weights.safetensors"
TRACKED = "runs"
SAVE_EVERY_S = 300.0
"""A killed training loses at most this, and the step it was in."""
LOG_EVERY_STEPS = 10
ZERO_STEPS = 5
"""A loss of exactly 0 in so many steps on end is no training."""
COSINE, STOPPED = "mean_pairwise_cosine", "stopped"
"""Keys of the trainer's history."""
KEPT_SPREAD = 0.1
"""Vectors have collapsed when 1 less their mean pairwise cosine falls below this share of the base's."""


@dataclass(frozen=True)
class Measured:
    """Dev of a model as it is."""

    dev: float
    cosine: float
    """Mean pairwise cosine of the documents."""


class Probe:
    """Measures a model in memory on dev. The vectors of each state stay in `store`, named by the weights."""

    def __init__(self, dev: DevSet, config: ModelConfig, store: VectorStore) -> None:
        self.dev, self.config, self.store = dev, config, store
        self.name = f"dev_{dev.measure}"

    def __call__(self, model: SentenceTransformer) -> Measured:
        """Dev and mean pairwise cosine, the same in all processes; the first encodes."""
        return Measured(*from_main(self._measure(model) if rank() == 0 else None))

    def _measure(self, model: SentenceTransformer) -> tuple[float, float]:
        encoder = TextEncoder.of_step(model, self.config, weights_fingerprint(model))
        value = self.dev.value(encoder, self.store)
        documents = self.store.get(encoder, self.dev.document_texts(), "document", "documents")
        return value, mean_pairwise_cosine(documents)


@dataclass(frozen=True)
class Training:
    """What all seeds of a training share."""

    builder: BatchBuilder
    probe: Probe
    config: FinetuneConfig
    precision: Precision
    start: Measured
    """Dev before step 0."""
    work: Path
    """Steps that can be resumed, a folder per seed."""
    key: str
    """Names the inputs that the steps in `work` belong to."""


def train(
    model: SentenceTransformer, training: Training, seed: int, schedule: Plan, advance: Callable[[int], None]
) -> SeedCurve:
    """Train `model` in place and leave it as the best candidate on dev; the curve says which.

    Candidates are the steps at which dev was measured and, of the best of them, averages with the weights before
    training. Where none beats the start the model is what it was.
    """
    config, start = training.config, CurvePoint(0, 0.0, training.start.dev, None)
    if schedule.steps == 0:
        return SeedCurve(seed, (start,))
    if config.mini_batch_size is not None and has_static_embedding_input(model):
        raise ConfigError("finetune.mini_batch_size: a model of static embeddings cannot be cut; leave it out")
    width = int(model.get_embedding_dimension() or 0)
    if too_large := [size for size in config.matryoshka if size >= width]:
        raise ConfigError(
            f"finetune.matryoshka: found {too_large[0]}, the model has vectors of {width}; name smaller sizes"
        )
    before, work = copy_of(model), training.work / f"seed-{seed}"
    if config.lora is not None:
        add_adapters(model, config.lora)
    if rank() == 0:
        _open_work(work, training.key)
    last = from_main(_last_whole(work) if rank() == 0 else None)
    history = _history(last)
    if _ended(history, schedule):
        advance(schedule.steps)
    else:
        history = _run(model, training, seed, schedule, work, last, advance)
    changed = any(not torch.equal(tensor, before[name]) for name, tensor in copy_of(model).items())
    if config.lora is not None:
        remove_adapters(model)
    if last is None and not changed:
        raise ModelError(
            f"finetune: {schedule.steps} steps changed no weight; raise finetune.learning_rate, and see that the "
            "triples have negatives"
        )
    points = (start, *_points(history, schedule, training.probe.name))
    curve = SeedCurve(seed, points, _losses(history), (), _stopped(history))
    tuned = load_file(work / _best_name(curve.best_step))
    mixed = []
    for share in config.mix:
        model.load_state_dict(averaged(before, tuned, share))
        mixed.append(Mixed(share, training.probe(model).dev))
    curve = replace(curve, mixed=tuple(mixed))
    share = curve.best[1]
    model.load_state_dict(tuned if share == 1 else averaged(before, tuned, share) if share else before)
    return curve


def _run(
    model: SentenceTransformer,
    training: Training,
    seed: int,
    schedule: Plan,
    work: Path,
    last: str | None,
    advance: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Train from the last saved step on; the trainer's history."""
    watch = _Watch(model, training, schedule, work, advance)
    trainer = _Trainer(
        model=model,
        args=_arguments(training, seed, schedule, work, str(model.device)),
        train_dataset=Dataset.from_dict({"row": list(range(len(training.builder)))}),
        loss=JudgedMultipleNegativesRankingLoss(model, training.builder, training.config),
        data_collator=Collator(training.builder, model),
        callbacks=[watch, *_trackers(training, seed)],
    )
    trainer.schedule, trainer.builder = schedule, training.builder
    watch.log = trainer.log
    trainer.remove_callback(PrinterCallback)  # it prints every log to stdout, which is for results
    trainer.train(resume_from_checkpoint=last)
    history: list[dict[str, Any]] = trainer.state.log_history
    return history


def _arguments(
    training: Training, seed: int, schedule: Plan, work: Path, device: str
) -> SentenceTransformerTrainingArguments:
    config = training.config
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work),
        max_steps=schedule.steps,
        per_device_train_batch_size=max(1, config.batch_size // schedule.processes),
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup_steps=round(schedule.steps * config.warmup_fraction),
        seed=seed,
        bf16=training.precision == "bfloat16",
        fp16=training.precision == "float16",
        eval_strategy="no",  # the watch measures dev at the planned steps
        save_strategy="steps",
        save_steps=schedule.steps + 1,
        save_total_limit=2,
        logging_strategy="no",
        logging_nan_inf_filter=False,  # the filter puts the mean so far in place of a loss that is no number
        report_to="none",  # of the trackers, see _trackers
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_broadcast_buffers=False,  # processes may have different numbers of blocks, and buffers never change
        use_cpu=device == "cpu",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several visible GPUs would multiply the batch, and so the plan
    return arguments


def _trackers(training: Training, seed: int) -> list[TrainerCallback]:
    """What is named in `report_to`; TensorBoard's logs go to `runs/` in the output, a folder per training."""
    found = []
    for name in training.config.report_to:
        try:
            (kind,) = get_reporting_integration_callbacks([name])
            found.append(kind())
        except (RuntimeError, ImportError) as error:
            raise ConfigError(f"finetune.report_to: {name}: {str(error).splitlines()[0]}") from None
        if isinstance(found[-1], TensorBoardCallback) and found[-1].logging_dir is None:
            found[-1].logging_dir = str(training.work.parent / TRACKED / f"{training.key[:12]}-seed-{seed}")
    return found


class _Trainer(SentenceTransformerTrainer):
    """The trainer with planned batches, checkpoints of weights alone, and a watch on each step's loss."""

    schedule: Plan
    builder: BatchBuilder
    zeros = 0

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add none: a card must never block or fail a training (sentence-transformers #2739)."""

    def get_batch_sampler(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The planned batches, all epochs of them."""
        return PlannedBatches(self.schedule)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One step; ModelError at the first loss that is no number, or that is 0 again and again.

        Users' reports: sentence-transformers #1804, ms-swift #5369.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        value, step = float(loss), self.state.global_step + 1
        self.zeros = self.zeros + 1 if value == 0 else 0
        if not math.isfinite(value):
            raise ModelError(
                f"finetune: the loss is {value} at step {step} ({self._queries(step)}); lower finetune.learning_rate, "
                f"set finetune.precision to float32 if it is not, and look for odd texts in these rows"
            )
        if self.zeros >= ZERO_STEPS:
            raise ModelError(
                f"finetune: the loss is exactly 0 since step {step - ZERO_STEPS + 1} (now {self._queries(step)}): no "
                "row has a negative left; mine negatives, or raise finetune.batch_size"
            )
        return loss

    def _queries(self, step: int) -> str:
        ids = list(dict.fromkeys(self.builder.triples[row].query_id for row in self.schedule.rows(step).tolist()))
        return f"queries {', '.join(ids[:8])}" + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        load_model(self.model, Path(checkpoint_path) / WEIGHTS)


class _Watch(TrainerCallback):
    """Measures dev at the planned steps, keeps the best weights, ends training early, moves the progress bar."""

    log: Callable[[dict[str, Any]], None]

    def __init__(
        self,
        model: SentenceTransformer,
        training: Training,
        schedule: Plan,
        work: Path,
        advance: Callable[[int], None],
    ) -> None:
        self.model, self.training, self.schedule, self.work, self.advance = model, training, schedule, work, advance
        self.saved_at = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the steps that a resumed run has behind it."""
        self.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a planned step: measure dev, log the loss, save."""
        self.advance(1)
        planned = state.global_step in self.schedule.evaluations
        due = from_main(time.monotonic() - self.saved_at > SAVE_EVERY_S)
        if planned:
            self._measure(state, control)
        control.should_save = planned or due
        control.should_log = planned or due or state.global_step % LOG_EVERY_STEPS == 0

    def _measure(self, state: Any, control: Any) -> None:
        probe = self.training.probe
        earlier = [entry[probe.name] for entry in state.log_history if probe.name in entry]
        found = probe(self.model)
        self.log({probe.name: found.dev, COSINE: found.cosine})
        if found.dev > max(earlier, default=-math.inf) and rank() == 0:
            save_file(copy_of(self.model), self.work / _best_name(state.global_step))
        if reason := self._end([*earlier, found.dev], found.cosine):
            state.log_history.append({STOPPED: reason, "step": state.global_step})
            control.should_training_stop = True
            self.advance(self.schedule.steps - state.global_step)

    def _end(self, values: Sequence[float], cosine: float) -> str:
        """Why training ends here; empty when it goes on."""
        start, patience = self.training.start, self.training.config.patience
        if 1 - cosine < (1 - start.cosine) * KEPT_SPREAD:
            return f"the vectors have collapsed: mean pairwise cosine {cosine:.3f}, {start.cosine:.3f} before training"
        seen = [start.dev, *values]
        since = len(seen) - 1 - seen.index(max(seen))
        if patience is not None and since >= patience and len(values) < len(self.schedule.evaluations):
            return f"no better dev in {since} measurements"
        return ""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start counting anew, and delete best weights that a resumed run can no longer need."""
        self.saved_at = time.monotonic()
        name = self.training.probe.name
        measured = [(entry[name], -entry["step"]) for entry in state.log_history if name in entry]
        if rank() == 0 and measured:
            for file in set(self.work.glob("best-*.safetensors")) - {self.work / _best_name(-max(measured)[1])}:
                file.unlink()


def _best_name(step: int) -> str:
    return f"best-{step}.safetensors"


def _open_work(work: Path, key: str) -> None:
    """Keep the steps of a killed run with the same inputs; clear what other inputs left."""
    key_file = work / KEY_FILE
    if key_file.exists() and key_file.read_text(encoding="utf-8") == key:
        logging.getLogger(__name__).info("resuming from %s", work)
        return
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    key_file.write_text(key, encoding="utf-8")


def _last_whole(work: Path) -> str | None:
    """The newest step that was saved whole; one that a kill left half-written lacks its last file and is deleted."""
    for folder in work.glob("checkpoint-*"):
        if not (folder / TRAINER_STATE_NAME).exists():
            shutil.rmtree(folder)
    found: str | None = get_last_checkpoint(str(work))
    return found


def _history(last: str | None) -> list[dict[str, Any]]:
    """What the trainer noted up to a saved step."""
    if last is None:
        return []
    content = json.loads((Path(last) / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return list(content["log_history"])


def _ended(history: Sequence[dict[str, Any]], schedule: Plan) -> bool:
    """Whether the last step was reached, or training stopped before it."""
    return bool(_stopped(history)) or any(entry["step"] == schedule.steps for entry in history)


def _stopped(history: Sequence[dict[str, Any]]) -> str:
    return next((entry[STOPPED] for entry in history if STOPPED in entry), "")


def _losses(history: Sequence[dict[str, Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((entry["step"], entry["loss"]) for entry in history if "loss" in entry)


def _points(history: Sequence[dict[str, Any]], schedule: Plan, name: str) -> list[CurvePoint]:
    loss_at = dict(_losses(history))
    return [
        CurvePoint(entry["step"], entry["step"] / schedule.steps_per_epoch, entry[name], loss_at.get(entry["step"]))
        for entry in history
        if name in entry
    ]
