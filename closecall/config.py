"""YAML in, one validated and frozen config out; all faults of a file are reported together."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from closecall.errors import ConfigError, fault_list


class Settings(BaseModel):
    """Base of every config section: frozen, unknown keys refused, defaults here and nowhere else."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def resolved(self) -> dict[str, Any]:
        """All settings with their values as JSON types, for the manifest."""
        return self.model_dump(mode="json")


def _against_config_folder(path: Path, info: ValidationInfo) -> Path:
    return usable_path(path, (info.context or {}).get("folder"))


def usable_path(path: Path, folder: Path | str | None) -> Path:
    """The path with `~` resolved, from `folder` on when it is relative; ValueError when no file can have this name."""
    try:
        path = path.expanduser()
        os.fsencode(path)
    except (RuntimeError, UnicodeEncodeError) as error:
        raise ValueError(f"{str(path)!r} is no path: {error}; mend it") from None
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r} holds a NUL character; mend it")
    return Path(folder) / path if folder is not None else path


ConfigPath = Annotated[Path, AfterValidator(_against_config_folder)]
"""A path in a config file: relative ones count from the folder of that file."""

SettingsT = TypeVar("SettingsT", bound=Settings)


class _UniqueKeyLoader(yaml.SafeLoader):
    """A SafeLoader that refuses a key given twice, where YAML would silently keep the last."""


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue  # `{{name}}` is refused below; a key beside `<<` overrides the merged one, as YAML has it
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


UNREADABLE = (yaml.YAMLError, ValueError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises, the latter four for `2024-13-45`, `!!timestamp x`, odd tags and ten thousand brackets."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError names the line of a syntax fault or of a key that stands twice."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; {_nearby(path)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        content = yaml.load(text, Loader=_UniqueKeyLoader)
    except UNREADABLE as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: {problem}; correct the YAML") from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise ConfigError(f"{path}: found {found}, expected sections such as `model:` and `data:`")
    return content


def override(content: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of `content` with `section.key=value` assignments applied; values are read as YAML."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {assignment}: expected section.key=value, such as mining.negatives=4")
        target = result
        for key in keys[:-1]:
            inner = target.get(key)
            target[key] = dict(inner) if isinstance(inner, dict) else {}
            target = target[key]
        try:
            target[keys[-1]] = yaml.safe_load(text)
        except UNREADABLE as error:
            raise ConfigError(f"--set {assignment}: the value is not YAML; quote it") from error
    return result


def validate(settings: type[SettingsT], content: Mapping[str, Any], where: Path) -> SettingsT:
    """The settings in `content`; ConfigError lists every fault with its key, what was found and what was expected."""
    try:
        return settings.model_validate(content, context={"folder": where.resolve().parent})
    except ValidationError as error:
        faults = [_fault(settings, fault) for fault in error.errors(include_url=False)]
        raise ConfigError(fault_list(str(where), [f"{where}: {fault}" for fault in faults])) from None


def _fault(settings: type[BaseModel], fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return _unknown_key(settings, fault["loc"])
    if fault["type"] == "missing":
        return f"{key}: missing; it has no default"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: found {fault['input']!r}; {message[0].lower()}{message[1:]}"


def _unknown_key(settings: type[BaseModel], keys: Sequence[str | int]) -> str:
    owner: type[BaseModel] | None = settings
    for key in keys[:-1]:
        if isinstance(key, str):  # a number is a place in a list, whose section its key has led to
            owner = _section(owner, key) if owner else None
    known = sorted(owner.model_fields) if owner else []
    nearest = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"
    return f"{'.'.join(map(str, keys))}: unknown key; {advice}"


def _section(owner: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = owner.model_fields.get(key)
    return None if field is None else _section_in(field.annotation)


def _section_in(annotation: object) -> type[BaseModel] | None:
    """The section in `X`, `X | None`, `tuple[X, ...]` or `Annotated[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part)) is not None), None)


def _nearby(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either"
    found = sorted(item.name for item in folder.iterdir() if item.suffix in {".yaml", ".yml"})
    return f"in {folder} there is {', '.join(found)}" if found else f"no YAML file in {folder}"
