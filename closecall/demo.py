"""The demo dataset, built on the spot from two installed packages, so that no text of theirs is copied into ours.

Documents are the operations in botocore's service models; queries are the headings of the examples in awscli,
and the operation that an example shows is the positive of its headings.
"""

from __future__ import annotations

import difflib
import gzip
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from closecall.errors import ConfigError, fault_list
from closecall.records import Document, Query

# Without ec2, whose 830 operations and 799 queries would be half of the set.
DEMO_SERVICES: tuple[str, ...] = (
    *("apigateway", "autoscaling", "cloudformation", "cognito-idp", "dynamodb", "ecs", "eks"),
    *("elbv2", "iam", "kms", "lambda", "rds", "s3", "ssm"),
)
"""The default of the demo: well-known services, each with 50 to 210 queries; 1,474 documents, 1,473 queries."""

SERVICE_OF_EXAMPLES = {"configservice": "config", "deploy": "codedeploy", "s3api": "s3"}
"""Folders of awscli's examples whose service has another name in botocore; the others share theirs."""

INSTALL = 'install it with: pip install "closecall[demo]"'

INLINE_TAGS = frozenset(("a", "b", "code", "em", "filename", "i", "link", "replaceable", "span", "strong", "u"))

# The forms in awscli 1.46.3, with their numbers: `**...**` alone on its line, also with `::` (6,745), the same with a
# star lost in front (2) or one too many behind (2), a bold label before a plain task (1), an underlined title (55).
BOLD_LINE = re.compile(r"\*{1,2}(?=\S)((?:(?!\*\*).)+)\*{2,3}[\s:.]*")
BOLD_LABEL = re.compile(r"\*\*Example\s*\d+\s*:?\*\*\s*(\S.*)")
UNDERLINE = re.compile(r"([-=~^+])\1{3,}\s*")

LINK = re.compile(r"`([^`<]+?)\s*<[^>]*>`_{0,2}")
EMPHASIS = re.compile(r"(?<!\w)\*(\w(?:[^*]*\w)?)\*")
PREFIX = re.compile(r"(?:Example\s*(?:\d+\s*[:.]?|:)|\d+\.\s|\[[^\]]*\])?[\s*]*(?:To\s+)?")
NO_TASK = re.compile(
    r"|Command|Output|See Also|title|(?:NOTE|Note|Important)(?::.*)?"
    r"|(?:\w+ ){1,2}Syntax|(?:Windows|Linux/Mac) version|Security considerations"
)

WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """What `build_demo_dataset` wrote."""

    folder: Path
    """Holds corpus.jsonl, queries.jsonl and qrels.tsv."""
    documents: int
    """Number of documents; each is one operation."""
    queries: int
    """Number of queries; each has one positive."""
    services: tuple[str, ...]
    """Services whose operations are the corpus, by their names in botocore."""
    sources: tuple[str, ...]
    """Package, version and licence of each source."""
    skipped: Mapping[str, int]
    """What gave no query, by reason: headings for `no_task` and `repeated`, example files for the others."""
    undocumented: int
    """Documents kept although the model says nothing about them; their text is the words of the operation's name."""


def build_demo_dataset(folder: Path, services: Sequence[str] | None) -> DemoDataset:
    """The dataset of these services (None: of all that have examples), written to `folder`."""
    models, examples = demo_sources()
    sources = (source("awscli"), source("botocore"))
    return build_from(models, examples, folder, services, sources)


def available_services() -> list[str]:
    """The services that have at least one example, by their names in botocore, sorted."""
    return services_with_examples(*demo_sources())


def build_from(
    models: Path, examples: Path, folder: Path, services: Sequence[str] | None, sources: tuple[str, ...] = ()
) -> DemoDataset:
    """The dataset out of a folder of service models and a folder of examples, written to `folder`."""
    chosen = choose_services(services, services_with_examples(models, examples))
    documents = sorted(
        (document for service in chosen for document in service_documents(models / service)),
        key=lambda document: document.doc_id,
    )
    queries, skipped = example_queries(examples, chosen, {document.doc_id for document in documents})
    write_dataset(folder, documents, queries)
    undocumented = sum(not document.metadata["documented"] for document in documents)
    counts = dict(sorted(skipped.items()))
    return DemoDataset(folder, len(documents), len(queries), chosen, sources, counts, undocumented)


def choose_services(services: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The wanted services, sorted, each once; all known ones for None."""
    if services is None:
        return tuple(known)
    if not services:
        raise ConfigError("services: the list is empty; name at least one service, or give None for all of them")
    faults = [unknown_service(name, known) for name in sorted(set(services) - set(known))]
    if faults:
        raise ConfigError(fault_list("services", faults))
    return tuple(sorted(set(services)))


def unknown_service(name: str, known: Sequence[str]) -> str:
    """The message for a service that is not known, with the nearest one that is."""
    nearest = difflib.get_close_matches(SERVICE_OF_EXAMPLES.get(name, name), known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return (
        f"services: {name!r} is not one of the {len(known)} services that have examples; "
        f"{hint}closecall.demo.available_services() lists them"
    )


def demo_sources() -> tuple[Path, Path]:
    """The folder of botocore's service models and the folder of awscli's examples."""
    return package_folder("botocore", "data"), package_folder("awscli", "examples")


def package_folder(package: str, name: str) -> Path:
    """A folder inside an installed package, which is found without being imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the demo dataset is built from the package {package}, which is not installed; {INSTALL}")
    folder = Path(spec.submodule_search_locations[0]) / name
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder, so this {package} cannot be used; {INSTALL}")
    return folder


def source(package: str) -> str:
    """Name, version and licence of an installed package: "botocore 1.44.8 (Apache-2.0)"."""
    metadata = importlib.metadata.metadata(package)
    stated = next((metadata[key] for key in ("License-Expression", "License") if key in metadata), "licence not stated")
    licence = {"Apache License 2.0": "Apache-2.0"}.get(stated, stated)
    return f"{package} {metadata['Version']} ({licence})"


def services_with_examples(models: Path, examples: Path) -> list[str]:
    """The services with a model and at least one example file, sorted."""
    names = {service_of(path.parent) for path in examples.glob("*/[!_]*.rst")}
    return sorted(name for name in names if model_file(models / name))


def service_of(folder: Path) -> str:
    """The botocore name of the service whose examples a folder of awscli holds."""
    return SERVICE_OF_EXAMPLES.get(folder.name, folder.name)


def model_file(folder: Path) -> Path | None:
    """The model of a service's latest api version, packed or not; None without one."""
    paths = [path for name in ("service-2.json", "service-2.json.gz") for path in folder.glob(f"*/{name}")]
    return max(paths, default=None)


def service_documents(folder: Path) -> Iterator[Document]:
    """A document for each operation in the model of a service."""
    xform_name = importlib.import_module("botocore").xform_name
    path = model_file(folder)
    assert path is not None, "the service was chosen for having a model"
    data = path.read_bytes()
    operations = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["operations"]
    for name, operation in operations.items():
        text = plain_text(operation.get("documentation", ""))
        yield Document(
            doc_id=f"{folder.name}/{xform_name(name, '-')}",
            text=text or WORD_START.sub(" ", name),
            title=name,
            metadata={"service": folder.name, "documented": bool(text)},
        )


class _TextOfHtml(HTMLParser):
    """Collects the text; the borders of blocks become spaces."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in INLINE_TAGS:
            self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def plain_text(html: str) -> str:
    """The text without markup, entities decoded, in one line with single spaces."""
    parser = _TextOfHtml()
    parser.feed(html)
    parser.close()
    return " ".join("".join(parser.parts).split())


def example_queries(
    examples: Path, services: Collection[str], doc_ids: Collection[str]
) -> tuple[list[Query], Counter[str]]:
    """The queries of these services by operation, and what gave none, by reason."""
    queries: list[Query] = []
    skipped: Counter[str] = Counter()
    for path in sorted(examples.rglob("*.rst")):
        inside = path.relative_to(examples)
        service = service_of(examples / inside.parts[0])
        doc_id = f"{service}/{path.stem}"
        if service not in services:
            skipped["other_service"] += 1
        elif len(inside.parts) > 2:
            skipped["subfolder"] += 1
        elif doc_id not in doc_ids:
            skipped["no_operation"] += 1
        else:
            texts, reasons = tasks(path.read_text(encoding="utf-8"))
            skipped += reasons
            queries += operation_queries(service, doc_id, texts)
    return sorted(queries, key=lambda query: str(query.metadata["operation"])), +skipped


def operation_queries(service: str, doc_id: str, texts: Sequence[str]) -> list[Query]:
    """A query for each task of an operation, numbered from 1."""
    metadata = {"service": service, "operation": doc_id}
    return [Query(f"{doc_id}#{number}", text, metadata) for number, text in enumerate(texts, start=1)]


def tasks(rst: str) -> tuple[list[str], Counter[str]]:
    """The tasks that an example file's headings name, each once and in order, and what was no new task, by reason."""
    cleaned = [clean_heading(heading) for heading in headings(rst)]
    kept = [text for text in cleaned if is_task(text)]
    unique = list(dict.fromkeys(kept))
    skipped = Counter(no_heading=not cleaned, no_task=len(cleaned) - len(kept), repeated=len(kept) - len(unique))
    return unique, skipped


def headings(rst: str) -> list[str]:
    """The headings of an example file as they are written, without the stars around them."""
    lines = rst.splitlines()
    found = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        bold = BOLD_LINE.fullmatch(line) or BOLD_LABEL.fullmatch(line)
        if bold:
            found.append(bold[1])
        elif UNDERLINE.fullmatch(below) and line[:1].strip() and not UNDERLINE.fullmatch(line):
            found.append(line)
    return found


def clean_heading(heading: str) -> str:
    """The task in a heading: no markup, no "Example 1:", no leading "To", no colon or full stop at the end."""
    text = EMPHASIS.sub(r"\1", LINK.sub(r"\1", heading).replace("`", ""))
    text = " ".join(text.split())
    return PREFIX.sub("", text, count=1).rstrip(" .:")


def is_task(text: str) -> bool:
    """Whether a cleaned heading says what someone wants to do."""
    return not NO_TASK.fullmatch(text)


def write_dataset(folder: Path, documents: Iterable[Document], queries: Sequence[Query]) -> None:
    """Writes corpus.jsonl, queries.jsonl and qrels.tsv beside their places; all are renamed once all are written."""
    corpus = (
        {"_id": one.doc_id, "title": one.title, "text": one.text, "service": one.metadata["service"]}
        for one in documents
    )
    rows = ({"_id": query.query_id, "text": query.text, **query.metadata} for query in queries)
    judgments = (f"{query.query_id}\t{query.metadata['operation']}\t1" for query in queries)
    files = {
        "corpus.jsonl": (json.dumps(row, ensure_ascii=False) for row in corpus),
        "queries.jsonl": (json.dumps(row, ensure_ascii=False) for row in rows),
        "qrels.tsv": ("query-id\tcorpus-id\tscore", *judgments),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.tmp").write_text(text, encoding="utf-8", newline="\n")
    for name in files:
        os.replace(folder / f"{name}.tmp", folder / name)
