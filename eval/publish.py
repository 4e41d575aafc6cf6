"""A checkpoint with its verdict as a folder to hand on, and on request as a repository of the Hugging Face hub."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from closecall.errors import ArtifactError, ModelError
from closecall.manifest import Artifact, artifact_around
from eval.artifact import VERDICT
from eval.report import results
from finetune.artifact import model_folder

CARD = "README.md"


def publish(checkpoint: Artifact, verdict: Artifact, folder: Path, repository: str | None) -> Path:
    """Copy the model to `folder`, its card with the verdict's numbers; with `repository`, upload it, private if new.

    The folder is a plain SentenceTransformer. ArtifactError when it is there already or the verdict is of another
    checkpoint; ModelError when the hub refuses.
    """
    content = verdict.read_json(VERDICT)
    if verdict.manifest["inputs"]["checkpoint"] != checkpoint.content():
        raise ArtifactError(
            f"{verdict.folder}: a verdict on another checkpoint than {checkpoint.folder}; run `closecall eval CONFIG`"
        )
    if (artifact := artifact_around(folder)) is not None:
        raise ArtifactError(f"{folder}: lies in the artifact {artifact}, which takes no more files; name another")
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ArtifactError(f"{folder}: is there already; name a folder that is not, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(model_folder(checkpoint), partial)
    card = partial / CARD
    card.write_text(f"{card.read_text(encoding='utf-8')}\n{_section(content)}", encoding="utf-8")
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    if repository is not None:
        _push(folder, repository, content)
    return folder


def _section(content: Mapping[str, Any]) -> str:
    """The verdict for a model card."""
    return "\n\n".join(["## Verdict", *results(content)]) + "\n"


def _push(folder: Path, repository: str, content: Mapping[str, Any]) -> None:
    from huggingface_hub import HfApi

    message = f"closecall: {content['sentence']}"[:200]
    try:
        api = HfApi()
        api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # refused, offline, no network, bad name: the hub client raises unrelated types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"--push-to-hub {repository}: {reason}; the folder {folder} is ready, log in with `hf auth login` "
            "and upload it again"
        ) from None
