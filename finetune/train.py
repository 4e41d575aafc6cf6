"""Triples in, the best step on dev out: SentenceTransformerTrainer with labelled batches, resumable."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from closecall.errors import ModelError
from finetune.artifact import Curve, CurvePoint
from finetune.batch import BatchBuilder, Collator
from finetune.config import FinetuneConfig
from finetune.dev import DevEvaluator
from finetune.loss import JudgedMultipleNegativesRankingLoss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KEY_FILE = "key.txt"
SAVE_EVERY_S = 300.0
"""A killed training loses at most this, and the step it was in."""
LOG_EVERY_STEPS = 10
"""A loss that is no number is noticed within this many steps."""


@dataclass(frozen=True)
class Plan:
    """How long training is and when dev is measured; known before it starts."""

    steps: int
    steps_per_epoch: int
    evaluations: frozenset[int]
    """Steps after which dev is measured; the last step is always one."""


def plan(rows: int, config: FinetuneConfig) -> Plan:
    """The plan for this many rows: the promised length is the real length."""
    per_epoch = math.ceil(rows / config.batch_size)
    steps = math.ceil(per_epoch * config.epochs)
    count = max(1, math.ceil(config.evaluations_per_epoch * config.epochs))
    evaluations = {math.ceil(steps * number / count) for number in range(1, count + 1)} if steps else set()
    return Plan(steps, per_epoch, frozenset(evaluations))


def train(
    model: SentenceTransformer,
    builder: BatchBuilder,
    dev: DevEvaluator,
    base_value: float,
    config: FinetuneConfig,
    work: Path,
    key: str,
    advance: Callable[[int], None],
) -> Curve:
    """Train `model` in place and leave it at its best step on dev; the curve says which.

    `work` holds the steps that can be resumed, for the inputs that `key` names. Where no step beats `base_value` the
    curve's best step is 0, and the caller keeps the base.
    """
    schedule = plan(len(builder), config)
    start = CurvePoint(0, 0.0, base_value, None)
    if schedule.steps == 0:
        return Curve(dev.primary_metric, (start,), 0)
    _open_work(work, key)
    recorder = _Recorder(schedule, advance)
    trainer = _Trainer(
        model=model,
        args=_arguments(config, schedule, work, dev.primary_metric, str(model.device)),
        train_dataset=Dataset.from_dict({"row": list(range(len(builder)))}),
        loss=JudgedMultipleNegativesRankingLoss(model, scale=config.scale),
        evaluator=dev,
        data_collator=Collator(builder, model),
        callbacks=[recorder],
    )
    trainer.remove_callback(PrinterCallback)  # it prints every log to stdout, which is for results
    trainer.train(resume_from_checkpoint=_last_whole(work))
    points = (start, *_points(trainer.state.log_history, dev.primary_metric))
    best = max(points, key=lambda point: (point.dev, -point.step))
    return Curve(dev.primary_metric, points, best.step)


def _arguments(
    config: FinetuneConfig, schedule: Plan, work: Path, measure: str, device: str
) -> SentenceTransformerTrainingArguments:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work),
        max_steps=schedule.steps,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup_steps=round(schedule.steps * config.warmup_fraction),
        seed=config.seed,
        eval_strategy="steps",
        eval_steps=schedule.steps + 1,  # the recorder says when; the trainer's own rhythm never does
        save_strategy="steps",
        save_steps=schedule.steps + 1,
        save_total_limit=2,
        logging_strategy="no",
        logging_nan_inf_filter=False,  # the filter puts the mean so far in place of a loss that is no number
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{measure}",
        greater_is_better=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=device == "cpu",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several visible GPUs would multiply the batch, and so the plan
    return arguments


class _Trainer(SentenceTransformerTrainer):
    """The trainer without its model card, which must never block or fail a training (sentence-transformers #2739)."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Add none."""


class _Recorder(TrainerCallback):
    """Asks for a dev measurement at the planned steps, watches the loss, moves the progress bar."""

    def __init__(self, schedule: Plan, advance: Callable[[int], None]) -> None:
        self.schedule, self.advance, self.saved_at = schedule, advance, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the steps that a resumed run has behind it."""
        self.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a planned step: log the loss, measure dev, save."""
        self.advance(1)
        planned = state.global_step in self.schedule.evaluations
        due = time.monotonic() - self.saved_at > SAVE_EVERY_S
        control.should_evaluate, control.should_save = planned, planned or due
        control.should_log = planned or due or state.global_step % LOG_EVERY_STEPS == 0

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start counting anew."""
        self.saved_at = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Stop at a loss that is no number: what follows would be noise (sentence-transformers #1804)."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            raise ModelError(
                f"finetune: the loss is {loss} at step {state.global_step}; lower finetune.learning_rate, "
                "and look for odd texts in the triples"
            )


def _open_work(work: Path, key: str) -> None:
    """Keep the steps of a killed run with the same inputs; clear what other inputs, or another place, left.

    The trainer's state names its best step by absolute path, so a folder that was moved cannot be resumed.
    """
    key_file, key = work / KEY_FILE, f"{key} {work.resolve()}"
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


def _points(history: list[dict[str, Any]], measure: str) -> list[CurvePoint]:
    points, loss = [], None
    for entry in history:
        loss = entry.get("loss", loss)
        if f"eval_{measure}" in entry:
            points.append(CurvePoint(entry["step"], entry["epoch"], entry[f"eval_{measure}"], loss))
    return points
