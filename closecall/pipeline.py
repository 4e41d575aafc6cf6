"""The experiment a config describes, and its stages in order. The one module besides the commands that knows them all.

Each stage reads artifacts and writes one: split -> mined -> checkpoint -> verdict, all under `output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from closecall.assign import SplitConfig
from closecall.check import describe
from closecall.config import ConfigPath, Settings, override, read_yaml, validate
from closecall.dataset import Corpus, DataConfig, load_corpus, load_dataset
from closecall.encoder import ModelConfig, TextEncoder, load_encoder
from closecall.errors import ArtifactError
from closecall.manifest import Artifact
from closecall.progress import say
from closecall.split import make_split, plan_split
from closecall.vectors import VectorStore
from eval.config import EvalConfig
from finetune.config import FinetuneConfig
from mining.config import MiningConfig

DEMO_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
ASSUMED_SPREAD = 0.3
"""Standard deviation of a single query's nDCG@10 gain, assumed by `check` before anything was measured."""


class ExperimentConfig(Settings):
    """One experiment: a model, a dataset, how it is split, and the three stages."""

    output: ConfigPath | None = Field(
        None, description="where artifacts go; default: <config name>-artifacts beside it"
    )
    model: ModelConfig
    data: DataConfig
    split: SplitConfig = SplitConfig()
    mining: MiningConfig = MiningConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    eval: EvalConfig = EvalConfig()


class Experiment:
    """The stages of one config. What they share (corpus, encoder, vectors) is read once."""

    def __init__(self, config: ExperimentConfig, output: Path) -> None:
        self.config, self.output = config, output
        self.store = VectorStore(output / "vectors")
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
        from eval.statistics import smallest_resolvable_gain

        dataset = load_dataset(self.config.data)
        assignment, leaks = plan_split(dataset, self.config.split, self.output / "split")
        report = describe(dataset, assignment, leaks, self.base)
        groups = len({group for query_id, group in assignment.group.items() if assignment.part.get(query_id) == "test"})
        gain = smallest_resolvable_gain(ASSUMED_SPREAD, groups, confidence=self.config.eval.confidence)
        return report | {"resolvable_gain": {"points": round(gain * 100, 2), "assumed_spread": ASSUMED_SPREAD}}

    def split(self) -> Artifact:
        """Divide the judged queries; a split on disk is frozen, and kept or extended."""
        dataset = load_dataset(self.config.data)
        for note in dataset.notes:
            say(f"data: {note}")
        artifact = make_split(dataset, self.config.split, self.output / "split")
        say(_split_line(artifact))
        return artifact

    def mine(self) -> Artifact:
        """Mine hard negatives for the train part of the split."""
        from mining.stage import mine

        split = self._frozen_split()
        return mine(self.corpus, split, self.base, self.store, self.config.mining, self.output / "mined")

    def finetune(self) -> Artifact:
        """Train on the mined triples and keep the best step on dev."""
        from finetune.stage import finetune

        mined = self._artifact("mined", "mine")
        split = self._frozen_split()
        return finetune(
            self.corpus, split, mined, self.base, self.store, self.config.finetune, self.output / "checkpoint"
        )

    def evaluate(self) -> Artifact:
        """Base against checkpoint on the test part of the split, and the verdict."""
        from eval.stage import Contender, evaluate
        from finetune.artifact import model_folder

        split, mined = self._frozen_split(), self._artifact("mined", "mine")
        checkpoint = self._artifact("checkpoint", "finetune")
        folder = model_folder(checkpoint)
        tuned = TextEncoder(folder, self.config.model.unpinned())
        return evaluate(
            self.corpus,
            split,
            mined,
            checkpoint,
            Contender("base", self.config.model.name, self.base),
            Contender("tuned", str(folder), tuned),
            self.store,
            self.config.eval,
            self.output / "verdict",
        )

    def run(self) -> Artifact:
        """All stages in order; what is unchanged is kept."""
        self.split()
        self.mine()
        self.finetune()
        return self.evaluate()

    def _frozen_split(self) -> Artifact:
        """The split on disk, if it was made of this corpus's dataset with these settings."""
        artifact = self._artifact("split", "split")
        if artifact.manifest["inputs"]["corpus"] != self.corpus.sha256:
            raise ArtifactError(
                f"{artifact.folder}: {self.corpus.file} has changed since the split was made; "
                "run `closecall split CONFIG`"
            )
        asked = self.config.split.resolved()
        changed = [key for key, value in asked.items() if artifact.manifest["config"].get(key) != value]
        if changed:
            raise ArtifactError(
                f"{artifact.folder}: the split was made with other settings ({', '.join(changed)}); "
                "run `closecall split CONFIG` to see the way out"
            )
        return artifact

    def _artifact(self, name: str, stage: str) -> Artifact:
        return Artifact.open(self.output / name, stage)


def load_experiment(path: Path, assignments: Sequence[str] = ()) -> Experiment:
    """The experiment in a YAML file, with `section.key=value` overrides applied; ConfigError lists every fault."""
    config = validate(ExperimentConfig, override(read_yaml(path), assignments), path)
    return Experiment(config, config.output or path.resolve().parent / f"{path.stem}-artifacts")


def demo_experiment(output: Path, services: str, assignments: Sequence[str] = ()) -> Experiment:
    """The demo's experiment, after its dataset was built from installed packages into `output/data`."""
    from closecall.demo import DEMO_SERVICES, build_demo_dataset

    chosen = [name.strip() for name in services.split(",") if name.strip()] or list(DEMO_SERVICES)
    built = build_demo_dataset(output / "data", None if chosen == ["all"] else chosen)
    say(
        f"demo: {built.queries:,} task headings of AWS CLI examples as queries, {built.documents:,} documented "
        f"operations of {len(built.services)} services as documents,\n      read from the installed packages "
        f"{' and '.join(built.sources)}, by Amazon Web Services"
    )
    here = [f"output={output.resolve()}", f"data.folder={(output / 'data').resolve()}"]
    return load_experiment(DEMO_CONFIG, [*here, *assignments])


def _split_line(artifact: Artifact) -> str:
    counts = artifact.manifest["counts"]
    aside = "".join(f"; {count:,} set aside: {reason}" for reason, count in counts["set_aside"].items() if count)
    leaks = "".join(f"; LEAK {kind}: {count:,} queries" for kind, count in counts["leaks"].items())
    own = ", the dataset's own" if counts["own_splits"] else ""
    sizes = ", ".join(f"{name} {counts[name]:,}" for name in ("train", "dev", "test"))
    return f"split: {sizes} queries in {counts['groups']:,} groups{own}{aside}{leaks}"
