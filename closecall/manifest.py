"""Artifacts: a folder written whole or not at all, `manifest.json` last, its files verified when they are read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from closecall import __version__
from closecall.errors import ArtifactError

MANIFEST = "manifest.json"
PACKAGES = ("closecall", "mining", "finetune", "eval")
FORMAT = 1
LIBRARIES = ("sentence-transformers", "transformers", "torch", "datasets", "faiss-cpu", "numpy", "scipy")


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hex sha256 of a JSON-serialisable value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass
class Draft:
    """An artifact being written: its temporary folder, and what the manifest will say of it."""

    folder: Path
    counts: dict[str, Any] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"

    def path(self, name: str) -> Path:
        """Where to write the file of this name; its parent folders exist."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON file, indented, keys in the order given, newline at the end."""
        text = json.dumps(value, indent=1, ensure_ascii=False)
        self.path(name).write_text(text + "\n", encoding="utf-8")


@contextmanager
def writing(
    folder: Path, stage: str, *, inputs: Mapping[str, str], config: Mapping[str, Any], seed: int | None = None
) -> Iterator[Draft]:
    """A draft whose files become the artifact `folder` when the block ends without an error.

    `inputs` name what the artifact was made from by content hash; with `config` they decide whether it is up to date.
    Files are written in a hidden sibling folder; the manifest comes last and the folder is renamed into place, so a
    killed run leaves the old artifact or none.
    """
    _refuse_foreign(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be written ({error.strerror}); choose another `output`") from error
    draft, started = Draft(partial), time.perf_counter()
    try:
        yield draft
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    draft.durations_s.setdefault("total", round(time.perf_counter() - started, 3))
    manifest = {
        "stage": stage,
        "format": FORMAT,
        "key": artifact_key(stage, inputs, config),
        "inputs": dict(inputs),
        "config": dict(config),
        "seed": seed,
        "counts": draft.counts,
        "files": {str(path.relative_to(partial).as_posix()): _entry(path) for path in _files(partial)},
        "code": _code_version(),
        "libraries": _library_versions(),
        "device": draft.device,
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()},
        "durations_s": draft.durations_s,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    draft.write_json(MANIFEST, manifest | {"seal": sha256_json(manifest)})
    _swap(partial, folder)


def artifact_key(stage: str, inputs: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """The hash of everything that decides an artifact's content: stage, format, code, inputs and config."""
    return sha256_json([stage, FORMAT, code_sha256(), dict(inputs), dict(config)])


@cache
def code_sha256() -> str:
    """A hash of closecall's own sources: what other code wrote is never taken for up to date."""
    root = Path(__file__).resolve().parent.parent
    patterns = ("*.py", "*.j2")
    files = sorted(path for name in PACKAGES for pattern in patterns for path in (root / name).rglob(pattern))
    return sha256_json([[path.relative_to(root).as_posix(), sha256_file(path)] for path in files])


@dataclass(frozen=True)
class Artifact:
    """A complete artifact on disk. Files are verified against the manifest before they are handed out."""

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, stage: str) -> Artifact:
        """The artifact of this stage in `folder`; ArtifactError when there is none or it is another stage's."""
        _restore(folder)
        path = folder / MANIFEST
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(
                f"{folder}: no {stage} artifact here (no {MANIFEST}); run `closecall {stage} CONFIG` first"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ArtifactError(
                f"{path}: cannot be read ({error}); delete {folder} and run `closecall {stage} CONFIG` again"
            ) from error
        found = manifest.get("stage") if isinstance(manifest, dict) else None
        if found != stage:
            raise ArtifactError(f"{path}: found the stage {found!r}, expected {stage!r}; check the `output` folder")
        if manifest.get("format") != FORMAT:
            raise ArtifactError(
                f"{path}: format {manifest.get('format')!r}, this version reads {FORMAT}; write it again"
            )
        if lacking := sorted({"key", "inputs", "config", "counts", "files"} - manifest.keys()):
            raise ArtifactError(
                f"{path}: lacks {', '.join(lacking)}; delete {folder} and run `closecall {stage} CONFIG` again"
            )
        if manifest.get("seal") != sha256_json({key: value for key, value in manifest.items() if key != "seal"}):
            raise ArtifactError(
                f"{path}: changed since it was written; delete {folder} and run `closecall {stage} CONFIG`"
            )
        return cls(folder, manifest)

    @classmethod
    def find(cls, folder: Path, stage: str) -> Artifact | None:
        """The artifact of this stage in `folder`, None when there is none; ArtifactError as with `open`."""
        _restore(folder)
        return cls.open(folder, stage) if (folder / MANIFEST).exists() else None

    @property
    def key(self) -> str:
        """The hash of what it was made from."""
        return str(self.manifest["key"])

    def content(self, prefix: str = "") -> str:
        """A hash of the names, sizes and hashes of its files, of those under `prefix` where one is given."""
        return sha256_json({name: entry for name, entry in self.manifest["files"].items() if name.startswith(prefix)})

    def file(self, name: str) -> Path:
        """The path of a file of the artifact, after its hash was compared with the manifest's."""
        path, entry = self.folder / name, self.manifest["files"].get(name)
        stage = self.manifest["stage"]
        if entry is None:
            raise ArtifactError(
                f"{self.folder}: no file {name!r} in its manifest; run `closecall {stage} CONFIG` again"
            )
        try:
            found = sha256_file(path)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read ({error.strerror}); {self._way_out()}") from error
        if found != entry["sha256"]:
            raise ArtifactError(
                f"{path}: changed since it was written (sha256 {found[:12]}, manifest {entry['sha256'][:12]}); "
                + self._way_out()
            )
        return path

    def verify(self) -> None:
        """Compare every file with the manifest; ArtifactError at the first that is missing, changed or not listed."""
        for name in self.manifest["files"]:
            self.file(name)
        found = {path.relative_to(self.folder).as_posix() for path in _files(self.folder)}
        if extra := sorted(found - {MANIFEST, *self.manifest["files"]}):
            raise ArtifactError(f"{self.folder}: holds {extra[0]!r}, which its manifest does not list; move it away")

    def read_json(self, name: str) -> Any:
        """The parsed content of a JSON file of the artifact."""
        return json.loads(self.file(name).read_text(encoding="utf-8"))

    def _way_out(self) -> str:
        stage = self.manifest["stage"]
        return f"restore the file, or delete {self.folder} and run `closecall {stage} CONFIG` again"


def artifact_around(folder: Path) -> Path | None:
    """The artifact that a folder is or lies in: its manifest lists all its files, so nothing may be added."""
    for place in (folder.resolve(), *folder.resolve().parents):
        try:
            manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(manifest, dict) and {"stage", "seal"} <= manifest.keys():
            return place
    return None


def up_to_date(folder: Path, stage: str, inputs: Mapping[str, str], config: Mapping[str, Any]) -> Artifact | None:
    """The artifact in `folder` if it was made from these inputs and settings, else None; verified in full."""
    artifact = Artifact.find(folder, stage)
    if artifact is None or artifact.key != artifact_key(stage, inputs, config):
        return None
    artifact.verify()
    return artifact


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _refuse_foreign(folder: Path) -> None:
    """ArtifactError when `folder` holds something that is no artifact: it would be replaced whole."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ArtifactError(f"{folder}: holds files but no {MANIFEST}, so it is not ours to replace; move it away")


def _swap(partial: Path, folder: Path) -> None:
    """Put `partial` in the place of `folder`: the old one is moved aside first, since a folder cannot be replaced."""
    old = _aside(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _restore(folder: Path) -> None:
    """Put back the artifact that a kill between the two renames of `_swap` left aside."""
    if not folder.exists() and _aside(folder).exists():
        _aside(folder).rename(folder)


def _library_versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _code_version() -> dict[str, Any]:
    """The version, and where the code is a git checkout of its own, the commit and whether it had changes."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {"version": __version__}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.strip()

    try:
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return {"version": __version__}
    return {"version": __version__, "commit": commit or None, "dirty": bool(changes)}
