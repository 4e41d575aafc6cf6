"""The lock of a judged set: a version with the hashes of corpus, queries, judgments and split, and what changed when.

The lock is a JSON file beside the config, to be kept under version control. Its `seal` is the hash of all else in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closecall.dataset import Dataset
from closecall.errors import ArtifactError, ConfigError
from closecall.manifest import Artifact, sha256_json
from closecall.records import SPLITS

FORMAT = 1


@dataclass(frozen=True)
class Content:
    """Hashes of a judged set, and its sizes."""

    corpus: str
    queries: str
    judgments: str
    split: Mapping[str, str]
    """Part -> hash of its queries and judgments."""
    counts: Mapping[str, int]

    def changed(self, other: Content) -> list[str]:
        """What is not the same, in words."""
        found = [name for name in ("corpus", "queries", "judgments") if getattr(self, name) != getattr(other, name)]
        parts = [part for part in SPLITS if self.split.get(part) != other.split.get(part)]
        return found + ([f"split ({', '.join(parts)})"] if parts else [])


@dataclass(frozen=True)
class Version:
    """One version of the set in the changelog."""

    version: str
    frozen_at: str
    note: str
    changed: tuple[str, ...]
    """Against the version before; empty for the first."""
    content: Content


@dataclass(frozen=True)
class Lock:
    """All versions of a judged set, the last one in force."""

    path: Path
    versions: tuple[Version, ...]

    @property
    def current(self) -> Version:
        """The version in force."""
        return self.versions[-1]

    @property
    def seal(self) -> str:
        """The hash of the whole lock."""
        return sha256_json(_body(self.versions))

    def named(self) -> dict[str, str]:
        """What a verdict says of it."""
        return {"version": self.current.version, "lock": self.seal, "test": self.current.content.split["test"]}

    def check(self, content: Content) -> None:
        """ArtifactError when the set is another one than the version in force."""
        if changed := self.current.content.changed(content):
            raise self._refusal(changed)

    def check_parts(self, corpus_sha256: str, split: Artifact) -> None:
        """The same from the corpus and the split on disk alone; no query is opened."""
        kept = self.current.content
        changed = [] if kept.corpus == corpus_sha256 else ["corpus"]
        if parts := [part for part in SPLITS if kept.split[part] != split.content(f"{part}/")]:
            changed.append(f"split ({', '.join(parts)})")
        if changed:
            raise self._refusal(changed)

    def _refusal(self, changed: list[str]) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: version {self.current.version} of this set is frozen, and what it holds has changed since: "
            f"{', '.join(changed)}. Put it back, or freeze it as a new version: "
            f"`closecall freeze CONFIG --version {_next(self.versions)} --note WHY`; verdicts on the two are "
            "not compared"
        )


def content_of(dataset: Dataset, split: Artifact) -> Content:
    """What a lock says of a set and its split."""
    queries = sorted([query.query_id, query.text, dict(query.metadata)] for query in dataset.queries)
    judgments = sorted(dataset.qrels.judgments())
    counts = {
        "documents": len(dataset.documents),
        "queries": len(queries),
        "judgments": len(judgments),
        **{part: int(split.manifest["counts"][part]) for part in SPLITS},
    }
    hashes = {part: split.content(f"{part}/") for part in SPLITS}
    return Content(dataset.corpus_sha256, sha256_json(queries), sha256_json(judgments), hashes, counts)


def read_lock(path: Path) -> Lock | None:
    """The lock in a file, None where there is none; ArtifactError when it was changed by hand."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        versions = tuple(_version(one) for one in found["versions"])
        if not versions or found["format"] != FORMAT or found["seal"] != sha256_json(_body(versions)):
            raise ValueError(f"its seal or format ({found['format']!r}, expected {FORMAT}) is not the one it had")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: no lock as closecall writes it ({error}); restore it from version control, or move it away and "
            "freeze the set again"
        ) from error
    return Lock(path, versions)


def check_name(lock: Lock | None, path: Path, version: str | None, note: str) -> str:
    """The name of a new version; ConfigError for one that is taken, or a later version without a note."""
    known = lock.versions if lock else ()
    name = version or _next(known)
    if any(one.version == name for one in known):
        raise ConfigError(f"--version {name}: is in {path} already; a version never changes, name another")
    if known and not note.strip():
        raise ConfigError(f"--note: say in a sentence what changed since version {known[-1].version} and why")
    return name


def with_version(lock: Lock | None, path: Path, name: str, note: str, content: Content) -> Lock:
    """The lock with one version more, written. ArtifactError when nothing has changed since the last."""
    known = lock.versions if lock else ()
    changed = known[-1].content.changed(content) if known else []
    if known and not changed:
        raise ArtifactError(f"{path}: nothing has changed since version {known[-1].version}; it stays in force")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = Lock(path, (*known, Version(name, now, note.strip(), tuple(changed), content)))
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(
        json.dumps(_body(made.versions) | {"seal": made.seal}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    partial.replace(path)
    return made


def changelog(lock: Lock) -> list[str]:
    """A line for each version, the newest first."""
    return [
        f"version {one.version}  {one.frozen_at}  "
        + ", ".join(f"{count:,} {what}" for what, count in one.content.counts.items())
        + (f"; changed: {', '.join(one.changed)}" if one.changed else "")
        + (f"; {one.note}" if one.note else "")
        for one in reversed(lock.versions)
    ]


def _next(versions: tuple[Version, ...]) -> str:
    number = len(versions) + 1
    while any(one.version == str(number) for one in versions):
        number += 1
    return str(number)


def _body(versions: tuple[Version, ...]) -> dict[str, Any]:
    # Through JSON: what was read again has lists where the dataclass has tuples.
    plain: list[Any] = json.loads(json.dumps([asdict(one) for one in versions]))
    return {"format": FORMAT, "versions": plain}


def _version(found: Mapping[str, Any]) -> Version:
    content = Content(**found["content"])
    return Version(found["version"], found["frozen_at"], found["note"], tuple(found["changed"]), content)
