"""Object storage: datasets and artifacts at `s3://`, `gs://` or any other address that fsspec knows.

The code works on local files. What is read is fetched once into a cache; what is written goes into a local mirror, and
up after each stage. Readers verify artifacts and blocks of vectors, and the manifest goes up last, so half of one is
never taken for one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from closecall.errors import ConfigError, DataError
from closecall.manifest import MANIFEST, sha256_json
from closecall.progress import say

LAYOUT = ("corpus.jsonl", "queries.jsonl", "qrels.tsv")
"""Files of a dataset's folder, compressed or not; beside them everything in qrels/."""
SYNCED = ".synced.json"
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extra of closecall that brings what fsspec needs for an address."""
IDENTITY = ("size", "ETag", "etag", "md5Hash", "generation", "LastModified", "mtime", "created", "updated")
"""What file systems say of a file that changes with its content."""

_addresses: dict[str, str] = {}
"""Local place -> address, for messages."""


def is_address(value: object) -> bool:
    """Whether a setting is an address like `s3://bucket/folder` and not a path."""
    return isinstance(value, str) and "://" in value and not value.startswith("file://")


def with_addresses(message: str) -> str:
    """A message in which local copies have the addresses they stand for."""
    for place in sorted(_addresses, key=len, reverse=True):
        message = message.replace(place, _addresses[place])
    return message


def fetched(address: str) -> Path:
    """A local copy of a file, or of a dataset's folder; one that has changed there is fetched again.

    ConfigError when the address cannot be used; DataError when there is nothing, or it cannot be read.
    """
    with _faults(address):
        files, root = _open(address)
        found = {name: info for name, info in _listed(files, root).items() if _wanted(name)}
        if not found:
            raise DataError(f"{address}: nothing there, or a folder without {', '.join(LAYOUT)}; check the address")
        key = sha256_json([address, sorted((name, _identity(info)) for name, info in found.items())])[:24]
        place = cache_folder() / "files" / key
        single = "" in found
        local = place / Path(root).name if single else place
        _addresses[str(local)] = address.rstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            for name, info in found.items():
                target = local if single else place / name
                if not target.exists():
                    _download(files, str(info["name"]), target)
    return local


def cache_folder() -> Path:
    """Where copies are kept: `CLOSECALL_CACHE`, by default `~/.cache/closecall`."""
    return Path(os.environ.get("CLOSECALL_CACHE", "~/.cache/closecall")).expanduser()


@dataclass
class Mirror:
    """A local folder that stands for an address."""

    address: str
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = cache_folder() / "mirror" / sha256_json([self.address])[:24]
        _addresses[str(self.folder)] = self.address.rstrip("/")

    def pull(self) -> None:
        """Fetch what is new or changed there since the last time."""
        with _faults(self.address):
            files, root = _open(self.address)
            known, there = self._known(), _listed(files, root)
            for name in sorted(there, key=_last):
                target, identity = self.folder / name, _identity(there[name])
                if name and not (target.exists() and known.get(name, [None])[0] == identity):
                    _download(files, str(there[name]["name"]), target)
                    known[name] = [identity, _local(target)]
            self._keep(known)

    def push(self) -> None:
        """Send what is new or changed here; an upload that was cut off goes on at the next file.

        Of an artifact that is replaced the old manifest goes first, and the new one comes last.
        """
        with _faults(self.address):
            files, root = _open(self.address)
            known = self._known()
            here = {path.relative_to(self.folder).as_posix(): path for path in _sent(self.folder)}
            changed = [name for name, path in here.items() if known.get(name, [None, None])[1] != _local(path)]
            gone = [name for name in known if name not in here]
            for manifest in {f"{Path(name).parent.as_posix()}/{MANIFEST}" for name in (*changed, *gone)} & known.keys():
                self._remove(files, root, manifest, known)
                changed += [manifest] if manifest in here and manifest not in changed else []
            for name in gone:
                self._remove(files, root, name, known)
            for name in sorted(changed, key=_last):
                target = f"{root}/{name}"
                files.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
                files.put_file(str(here[name]), target)
                known[name] = [_identity(files.info(target)), _local(here[name])]
                self._keep(known)
            if changed:
                say(f"storage: {len(changed)} files sent to {self.address}")

    def _remove(self, files: Any, root: str, name: str, known: dict[str, Any]) -> None:
        if known.pop(name, None) is not None and files.exists(f"{root}/{name}"):
            files.rm_file(f"{root}/{name}")
        self._keep(known)

    def _known(self) -> dict[str, Any]:
        """Name -> what it was there and here when they were last the same."""
        try:
            found: dict[str, Any] = json.loads((self.folder / SYNCED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def _keep(self, known: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{SYNCED}.partial"
        partial.write_text(json.dumps(known), encoding="utf-8")
        partial.replace(self.folder / SYNCED)


def _open(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    import fsspec

    files, root = fsspec.core.url_to_fs(address)
    files.invalidate_cache()
    return files, str(root).rstrip("/")


@contextmanager
def _faults(address: str) -> Iterator[None]:
    """One message for whatever a file system raises."""
    scheme = address.split("://", 1)[0]
    try:
        yield
    except (DataError, ConfigError):
        raise
    except ImportError as error:
        advice = f"pip install 'closecall[{EXTRAS[scheme]}]'" if scheme in EXTRAS else str(error)
        raise ConfigError(f"{address}: what reads {scheme}:// is not installed; {advice}") from None
    except Exception as error:  # clients raise unrelated types: no credentials, no bucket, no network
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"{address}: cannot be used ({type(error).__name__}: {reason}); check the address, the credentials that "
            "its client looks for, and your right to read and write there"
        ) from error


def _listed(files: Any, root: str) -> dict[str, Any]:
    """Files at and below a path, by the name relative to it; the empty name is the path itself."""
    if not files.exists(root):
        return {}
    found = files.find(root, detail=True)
    return {name.removeprefix("/")[len(root.lstrip("/")) :].lstrip("/"): info for name, info in found.items()}


def _wanted(name: str) -> bool:
    return name.removesuffix(".gz") in ("", *LAYOUT) or name.startswith("qrels/")


def _identity(info: Mapping[str, Any]) -> list[str]:
    return [f"{key} {info[key]}" for key in IDENTITY if info.get(key) is not None]


def _local(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _sent(folder: Path) -> Iterator[Path]:
    """Files that go up: no hidden ones, which are locks and work in progress."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _last(name: str) -> tuple[int, str]:
    """Manifests and plans of segments come after what they list."""
    return (2 if name.endswith(MANIFEST) else 1 if name.endswith(".json") else 0, name)


def _download(files: Any, remote: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    files.get_file(remote, str(partial))
    partial.replace(target)
