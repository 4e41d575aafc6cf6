"""Model folders: where a name leads, and the hashes that say which model it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from closecall.errors import ModelError
from closecall.manifest import sha256_file, sha256_json

WEIGHT_SUFFIXES = (".safetensors", ".bin")
NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
HUB_SKIPPED = ["onnx/*", "openvino/*", "*.h5", "*.ot", "*.msgpack", "*.tflite", "*.gguf"]


def resolve_model(name: str) -> Path:
    """The folder of a model: inside an installed package (`package:...`), local, or downloaded from the hub."""
    if name.startswith("package:"):
        return _package_folder(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"model.name: no folder {name!r}; a path counts from the config's folder, or from the working directory"
        )
    return _hub_folder(name)


def _package_folder(name: str) -> Path:
    package, _, inside = name.removeprefix("package:").partition("/")
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        pip_name = package.replace("_", "-")
        raise ModelError(f"model.name: no installed package {package!r}; try `pip install {pip_name}`")
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not folder.is_dir():
        raise ModelError(f"model.name: the package {package!r} has no folder {inside!r} (looked in {folder.parent})")
    return folder


def _hub_folder(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, ignore_patterns=HUB_SKIPPED))
    except Exception as error:  # the hub client raises a dozen unrelated types: offline, not found, gated, bad name
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model.name: {name!r} is no local folder, and cannot be had from the hub: {reason}; "
            "check the name, or give a folder or `package:name/folder`"
        ) from error


def check_model_folder(folder: Path, expected: str | None) -> str:
    """The weights digest of a model folder; ModelError when it is no model or not the pinned one."""
    found = sorted(item.name for item in folder.iterdir())
    if not {"modules.json", "config.json"} & set(found):
        raise ModelError(
            f"{folder}: not a model folder: neither modules.json nor config.json; "
            f"found {', '.join(found[:8]) or 'nothing'}"
        )
    digest = weights_sha256(folder)
    if expected and digest != expected.lower():
        raise ModelError(
            f"{folder}: weights have sha256 {digest}, model.model_sha256 expects {expected}; "
            "this is another model: correct the name, or the digest if you trust these weights"
        )
    return digest


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights, sorted; ModelError when there are none."""
    found = [path for suffix in WEIGHT_SUFFIXES for path in folder.rglob(f"*{suffix}")]
    safe = {path.parent for path in found if path.suffix == ".safetensors"}
    # A module's folder that has both forms is loaded from the safetensors; another module may have a .bin alone.
    files = [path for path in found if path.suffix == ".safetensors" or path.parent not in safe]
    files = [path for path in files if path.name not in NO_WEIGHTS]
    if files:
        return sorted(files)
    raise ModelError(f"{folder}: no weights (*.safetensors or *.bin) in this model folder; download it whole")


def weights_sha256(folder: Path) -> str:
    """The sha256 of the weights file; of the list of names and digests when there are several."""
    files = weight_files(folder)
    if len(files) == 1:
        return sha256_file(files[0])
    return sha256_json([[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files])


def folder_state(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of every file, to see that a folder is still the one that was hashed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), (s := path.stat()).st_size, s.st_mtime_ns) for path in files]


def folder_sha256(folder: Path, weights: str) -> str:
    """A hash of weights, module configs and tokenizer: everything in the folder that decides a vector."""
    kept = {".json", ".txt", ".model", ".py"}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in kept)
    return sha256_json([weights, [[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files]])
