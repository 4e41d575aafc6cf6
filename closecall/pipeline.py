"""The experiment a config describes, and its stages in order. The one module besides the commands that knows them all.

Each stage reads artifacts and writes one: split -> mined -> checkpoint -> verdict, all under `output`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import Field

from closecall.assign import Assignment, SplitConfig
from closecall.check import describe, describe_split
from closecall.config import ConfigPath, Settings, override, read_yaml, validate
from closecall.corpus import by_id
from closecall.dataset import Corpus, DataConfig, Dataset, load_corpus, load_dataset
from closecall.effect import precision_effect
from closecall.encoder import ModelConfig, TextEncoder, load_encoder
from closecall.errors import ArtifactError, ConfigError, DataError
from closecall.freeze import Lock, check_name, content_of, read_lock, with_version
from closecall.looks import Frozen, looks_path
from closecall.manifest import Artifact, artifact_key, code_sha256, sha256_json
from closecall.measures import Measure
from closecall.power import smallest_resolvable_gain
from closecall.processes import by_main, rank, same_everywhere
from closecall.progress import say
from closecall.quality.material import Deciding, material_of
from closecall.quality.survey import survey
from closecall.slices import SliceSource, find_slices
from closecall.split import make_split, plan_split, read_part, summary
from closecall.storage import Mirror, fetched, is_address
from closecall.vectors import VectorStore
from eval.config import EvalConfig
from finetune.config import FinetuneConfig
from mining.config import MiningConfig

if TYPE_CHECKING:
    from closecall.formats.writers import ExportedSet
    from mining.export import Exported
    from mining.judge_import import Imported
    from mining.sheet import Sheet

LOCK = ".lock"
DEMO_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
ASSUMED_SPREAD = 0.3
"""Standard deviation of a single query's nDCG@10 gain, assumed by `check` before anything was measured."""


class ExperimentConfig(Settings):
    """One experiment: a model, a dataset, how it is split, and the three stages."""

    output: ConfigPath | None = Field(
        None, description="where artifacts go; default: <config name>-artifacts beside it"
    )
    vectors: ConfigPath | None = Field(
        None, description="where vectors are kept, shared by experiments that name the same; default: in the output"
    )
    frozen: ConfigPath | None = Field(
        None,
        description="the lock of the judged set, shared by experiments that name the same; default: "
        "<config name>-frozen.json beside it",
    )
    model: ModelConfig
    data: DataConfig
    split: SplitConfig = SplitConfig()
    mining: MiningConfig = MiningConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    eval: EvalConfig = EvalConfig()


class Experiment:
    """The stages of one config. What they share (corpus, encoder, vectors) is read once."""

    def __init__(self, config: ExperimentConfig, output: Path, file: Path, mirror: Mirror | None = None) -> None:
        self.config, self.output, self.mirror = config, output, mirror
        self.folder = file.parent
        self._lock_file = config.frozen or file.with_name(f"{file.stem}-frozen.json")
        self.store = VectorStore(config.vectors or output / "vectors")
        self._lock = FileLock(output / LOCK)
        self._corpus: Corpus | None = None
        self._base: TextEncoder | None = None

    @property
    def corpus(self) -> Corpus:
        """The documents, checked. No query and no judgment is opened for it."""
        if self._corpus is None:
            self._corpus = load_corpus(self.config.data)
        return self._corpus

    @property
    def base(self) -> TextEncoder:
        """The base model; its weights are verified at once and loaded when first needed."""
        if self._base is None:
            self._base = load_encoder(self.config.model)
        return self._base

    def check(self) -> dict[str, Any]:
        """Facts of the dataset and of the split it would get; nothing is written."""
        dataset = load_dataset(self.config.data)
        report = describe(dataset, self.base) | {"precision": precision_effect(dataset, self.base)}
        try:
            assignment, leaks = plan_split(dataset, self.config.split, self.output / "split")
        except DataError as error:
            return report | {"split_fault": str(error), "quality": self._quality(dataset, None)}
        found, deciding = self._power(dataset, assignment)
        return (
            report | describe_split(dataset, assignment, leaks) | found | {"quality": self._quality(dataset, deciding)}
        )

    def _power(self, dataset: Dataset, assignment: Assignment) -> tuple[dict[str, Any], Deciding]:
        """The slices of the test queries with their sizes, and the smallest gain that so many queries could show."""
        queries = [query for query in dataset.queries if assignment.part.get(query.query_id) == "test"]
        documents = by_id(dataset.documents)
        slices = find_slices(SliceSource(queries, dataset.qrels, documents), self.config.eval.slice_by)
        groups = len({assignment.group[query.query_id] for query in queries})
        gain = smallest_resolvable_gain(ASSUMED_SPREAD, groups, confidence=self.config.eval.confidence)
        sizes = {item.name: (item.column, len(item.query_ids)) for item in slices}
        smallest = self.config.eval.min_slice_queries
        found = {
            "test_slices": {name: size for name, (_, size) in sizes.items()},
            "min_slice_queries": smallest,
            "resolvable_gain": {"points": round(gain * 100, 2), "assumed_spread": ASSUMED_SPREAD},
        }
        return found, Deciding(len(queries), groups, gain, sizes, smallest)

    def _quality(self, dataset: Dataset, deciding: Deciding | None) -> list[dict[str, Any]]:
        """What is to be known of the judgments before a number is believed, without a model."""
        measure = Measure.parse(self.config.eval.measure)
        return [one.as_json() for one in survey(material_of(dataset, measure, self.config.eval.gain, deciding))]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of `output`; ArtifactError when another closecall is at work there.

        Of several processes of one job the first one holds it for all.
        """
        mine = {"config": sha256_json(self.config.resolved()), "closecall": code_sha256()}
        same_everywhere(mine | ({"corpus": self._corpus.sha256} if self._corpus else {}))
        by_main(self._acquire)
        try:
            yield
            if self.mirror is not None:
                by_main(self.mirror.push)
        finally:
            if rank() == 0:
                self._release()

    def _acquire(self) -> None:
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
        except Timeout:
            raise ArtifactError(
                f"{self.output}: another closecall is at work here; wait for it, or set `output`"
            ) from None
        except OSError as error:
            raise ArtifactError(
                f"{self.output}: cannot be written ({error.strerror}); choose another `output`"
            ) from error

    def _release(self) -> None:
        self._lock.release()
        if not self._lock.is_locked and [path.name for path in self.output.iterdir()] == [LOCK]:
            (self.output / LOCK).unlink()  # nothing was written: leave nothing
            self.output.rmdir()

    def split(self) -> Artifact:
        """Divide the judged queries; a split on disk is frozen, and kept or extended."""
        dataset = load_dataset(self.config.data)
        same_everywhere({"dataset": dataset.sha256})
        for note in dataset.notes:
            say(f"data: {note}")
        self._check_columns(dataset)
        lock = self.lock
        with self._alone():
            artifact = by_main(lambda: self._kept_split(dataset, lock))
        say(summary(artifact))
        return artifact

    def _kept_split(self, dataset: Dataset, lock: Lock | None) -> Artifact:
        """The split; of a frozen set only the one that the lock names is written."""
        folder = self.output / "split"
        if lock is not None and Artifact.find(folder, "split") is not None:
            lock.check(content_of(dataset, Artifact.open(folder, "split")))
        artifact = make_split(dataset, self.config.split, folder)
        if lock is not None:
            lock.check(content_of(dataset, artifact))
        return artifact

    @property
    def lock(self) -> Lock | None:
        """The lock of the judged set; None when it is not frozen."""
        return read_lock(self._lock_file)

    @property
    def looks(self) -> Path:
        """The log of verdicts on the frozen set."""
        return looks_path(self._lock_file)

    def freeze(self, version: str | None, note: str) -> Lock:
        """Make the split where there is none, and lock the set as a new version."""
        dataset, lock = load_dataset(self.config.data), self.lock
        name = check_name(lock, self._lock_file, version, note)
        with self._alone():
            renewed = lock is not None
            split = by_main(lambda: make_split(dataset, self.config.split, self.output / "split", renewed))
        return by_main(lambda: with_version(lock, self._lock_file, name, note, content_of(dataset, split)))

    def verify(self) -> Lock:
        """The lock, if the set is still the one that it names."""
        lock = self.lock
        if lock is None:
            raise ArtifactError(f"{self._lock_file}: no lock; `closecall freeze CONFIG` makes it")
        lock.check(content_of(load_dataset(self.config.data), Artifact.open(self.output / "split", "split")))
        return lock

    def _check_columns(self, dataset: Dataset) -> None:
        """ConfigError when `eval.slice_by` names a column that no query has: better now than after training."""
        find_slices(SliceSource(dataset.queries, dataset.qrels, {}), self.config.eval.slice_by)

    def mine(self) -> Artifact:
        """Mine hard negatives for the train part of the split."""
        from mining.stage import mine

        split, place = self._frozen_split(), self.output / "mined"
        with self._alone():
            return by_main(lambda: mine(self.corpus, split, self.base, self.store, self.config.mining, place))

    def calibrate(self, depth: int | None = None) -> Artifact:
        """What each margin and rank window would leave of one search, and the margin to mine with."""
        from mining.stage import calibrate

        split, folder = self._frozen_split(), self.output / "calibration"
        with self._alone():
            wanted = depth or self.config.mining.max_depth
            return by_main(
                lambda: calibrate(self.corpus, split, self.base, self.store, self.config.mining, wanted, folder)
            )

    def audit(self, rows: int, folder: Path | None) -> Sheet:
        """The most suspicious candidates of the mined artifact as a sheet to mark, by default in `audit/`."""
        from mining.sheet import audit

        split = self._frozen_split()
        documents, reviewed = self.corpus.documents, self.reviewed
        mined, place = self._mined(split), folder or self.output / "audit"
        with self._alone():
            return by_main(lambda: audit(mined, split, documents, self.config.mining, reviewed, rows, place))

    def judge_import(self, sheet: Path) -> Imported:
        """The marks of a sheet as judgments in the file of `data.reviewed`, or in `reviewed.tsv` beside the config."""
        from mining.judge_import import import_marks

        train, mined = read_part(self._frozen_split(), "train"), Artifact.find(self.output / "mined", "mine")
        with self._alone():
            return by_main(lambda: import_marks(sheet, self.corpus.documents, train, self.reviewed, mined))

    @property
    def reviewed(self) -> Path:
        """Where judgments of reviews are."""
        return self.config.data.reviewed or self.folder / "reviewed.tsv"

    def export(self, form: str, folder: Path | None, negatives: int | None) -> Exported:
        """The mined triples in the form that another trainer reads, by default in `export/FORM`."""
        from mining.artifact import read_triples
        from mining.export import export

        mined = self._mined(self._frozen_split())
        documents = by_id(self.corpus.documents)
        place = folder or self.output / "export" / form
        return by_main(lambda: export(read_triples(mined), form, place, negatives, documents, mined.key))

    def finetune(self) -> Artifact:
        """Train on the mined triples and keep the best on dev; in later rounds mine with it, and train on."""
        from mining.stage import mine

        split, encoder = self._frozen_split(), self.base
        mined = self._mined(split, encoder)
        with self._alone():
            checkpoint = self._train(split, mined, encoder, 1)
            for number in range(2, self.config.finetune.rounds + 1):
                encoder = self._tuned(checkpoint)
                place = self._place("mined", number)
                mined = by_main(partial(mine, self.corpus, split, encoder, self.store, self.config.mining, place))
                checkpoint = self._train(split, mined, encoder, number)
            return checkpoint

    def _train(self, split: Artifact, mined: Artifact, encoder: TextEncoder, number: int) -> Artifact:
        """One round of training."""
        from finetune.stage import finetune

        config, folder = self.config.finetune.one_round(), self._place("checkpoint", number)
        return finetune(self.corpus, split, mined, encoder, self.store, config, folder)

    def _place(self, name: str, number: int) -> Path:
        """The folder of an artifact of a round: `mined`, then `mined-2`, ..."""
        return self.output / (name if number == 1 else f"{name}-{number}")

    def _tuned(self, checkpoint: Artifact) -> TextEncoder:
        from finetune.artifact import model_folder

        return TextEncoder(model_folder(checkpoint), self.config.model.unpinned())

    def _rounds(self, split: Artifact) -> tuple[list[Artifact], Artifact]:
        """What was mined in each round, and the last checkpoint; all made of what there is now."""
        encoder, mined = self.base, []
        for number in range(1, self.config.finetune.rounds + 1):
            mined.append(self._mined(split, encoder, number))
            checkpoint = self._checkpoint(split, mined[-1], encoder, number)
            encoder = self._tuned(checkpoint)
        return mined, checkpoint

    def evaluate(self) -> Artifact:
        """Base against checkpoint on the test part of the split, and the verdict."""
        from eval.stage import evaluate

        split = self._frozen_split()
        mined, checkpoint = self._rounds(split)
        tuned, config, verdict = self._tuned(checkpoint), self.config.eval, self.output / "verdict"
        frozen = Frozen(self.lock, self.looks) if self.lock else None
        with self._alone():
            return by_main(
                lambda: evaluate(
                    self.corpus, split, mined, checkpoint, self.base, tuned, self.store, config, verdict, frozen
                )
            )

    def publish(self, folder: Path, repository: str | None) -> Path:
        """The checkpoint as a folder to hand on, with the verdict in its card; uploaded where `repository` is named."""
        from eval.publish import publish

        checkpoint = self._rounds(self._frozen_split())[1]
        return by_main(lambda: publish(checkpoint, Artifact.open(self.output / "verdict", "eval"), folder, repository))

    def run(self) -> Artifact:
        """All stages in order; what is unchanged is kept."""
        with self._alone():
            self.split()
            self.mine()
            self.finetune()
            return self.evaluate()

    def _frozen_split(self) -> Artifact:
        """The split on disk, if it was made with this corpus and these settings; its test part is not opened."""
        artifact = Artifact.open(self.output / "split", "split")
        if artifact.manifest["inputs"]["corpus"] != self.corpus.sha256:
            raise ArtifactError(
                f"{artifact.folder}: {self.corpus.file} has changed since the split was made; "
                "run `closecall split CONFIG`"
            )
        asked = self.config.split.resolved() | {"positive_from": self.config.data.positive_from}
        changed = [key for key, value in asked.items() if artifact.manifest["config"].get(key) != value]
        if changed:
            raise ArtifactError(
                f"{artifact.folder}: the split was made with other settings ({', '.join(changed)}); "
                "run `closecall split CONFIG` to see the way out"
            )
        if (lock := self.lock) is not None:
            lock.check_parts(self.corpus.sha256, artifact)
        return artifact

    def _mined(self, split: Artifact, encoder: TextEncoder | None = None, number: int = 1) -> Artifact:
        """The triples on disk, if they were mined from this split, model and corpus with these settings."""
        from mining.stage import mine_inputs

        inputs = mine_inputs(self.corpus, split, encoder or self.base, self.config.mining)
        return self._of(self._place("mined", number), "mine", inputs, self.config.mining)

    def _checkpoint(self, split: Artifact, mined: Artifact, encoder: TextEncoder, number: int) -> Artifact:
        """The checkpoint on disk, if it was trained on these triples with these settings."""
        from finetune.stage import finetune_inputs

        config = self.config.finetune.one_round()
        inputs = finetune_inputs(self.corpus, split, mined, encoder, config)
        return self._of(self._place("checkpoint", number), "finetune", inputs, config)

    def _of(self, folder: Path, stage: str, inputs: Mapping[str, str], settings: Settings) -> Artifact:
        """An artifact that must be the one of these inputs and settings, so that no stage builds on a stale one."""
        artifact = Artifact.open(folder, stage)
        if artifact.key == artifact_key(stage, inputs, settings.resolved()):
            return artifact
        made, asked = artifact.manifest["inputs"] | artifact.manifest["config"], {**inputs, **settings.resolved()}
        changed = [key for key, value in asked.items() if made.get(key) != value] or ["closecall itself"]
        raise ArtifactError(
            f"{artifact.folder}: made of something else than what there is now (changed: {', '.join(changed)}); "
            f"run `closecall {stage} CONFIG` again, or `closecall run CONFIG`"
        )


def load_experiment(
    path: Path, assignments: Sequence[str] = (), values: Mapping[str, Mapping[str, Any] | str] | None = None
) -> Experiment:
    """The experiment in a YAML file, with `section.key=value` overrides applied; ConfigError lists every fault.

    `values` replace what the file says, by section; a section's other keys stay.
    """
    content = read_yaml(path)
    for name, value in (values or {}).items():
        content[name] = value if isinstance(value, str) else {**content.get(name, {}), **value}
    content = override(content, assignments)
    mirror = None
    if is_address(content.get("output")):
        mirror = Mirror(content["output"])
        content["output"] = str(mirror.folder)
        by_main(mirror.pull)
    config = validate(ExperimentConfig, _with_local_files(content), path)
    file = path.resolve()
    return Experiment(config, config.output or file.with_name(f"{path.stem}-artifacts"), file, mirror)


def _with_local_files(content: Any) -> Any:
    """The content of a config with local copies in the place of addresses of files, wherever they stand."""
    if isinstance(content, dict):
        remote = ("folder", "corpus", "queries", "qrels", "judged", "reviewed", "run")
        return {
            key: str(fetched(value)) if key in remote and is_address(value) else _with_local_files(value)
            for key, value in content.items()
        }
    return [_with_local_files(value) for value in content] if isinstance(content, list) else content


def demo_experiment(output: Path, services: str, assignments: Sequence[str] = ()) -> Experiment:
    """The demo's experiment, after its dataset was built from installed packages into `output/data`."""
    from closecall.demo import DEMO_SERVICES, build_demo_dataset

    chosen = [name.strip() for name in services.split(",") if name.strip()] or list(DEMO_SERVICES)
    built = by_main(lambda: build_demo_dataset(output / "data", None if chosen == ["all"] else chosen))
    say(
        f"demo: {built.queries:,} task headings of AWS CLI examples as queries, {built.documents:,} documented "
        f"operations of {len(built.services)} services as documents,\n      read from the installed packages "
        f"{' and '.join(built.sources)}, by Amazon Web Services"
    )
    here: dict[str, Any] = {"output": str(output.resolve()), "data": {"folder": str((output / "data").resolve())}}
    return load_experiment(DEMO_CONFIG, assignments, here)


def export_judged(place: Path, form: str, folder: Path | None, assignments: Sequence[str] = ()) -> ExportedSet:
    """The judged set of an experiment, or of a folder in the native layout, in the form that another tool reads."""
    from closecall.formats.writers import export_set

    if place.is_dir():
        if folder is None:
            raise ConfigError("--to: name the folder to write")
        return export_set(load_dataset(DataConfig(folder=place)), form, folder)
    experiment = load_experiment(place, assignments)
    return export_set(load_dataset(experiment.config.data), form, folder or experiment.output / "export" / form)
