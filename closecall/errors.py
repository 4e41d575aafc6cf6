"""The errors a user can mend. Only the command line turns them into one line and exit code 2.

Every message says where, what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

FAULTS_SHOWN = 20


class CloseCallError(Exception):
    """A fault that the user can mend; its text is the whole message."""


class ConfigError(CloseCallError):
    """The configuration or an option is wrong."""


class DataError(CloseCallError):
    """A corpus, queries, qrels or run file is wrong."""


class ArtifactError(CloseCallError):
    """A folder written by a stage is missing, incomplete, changed or of other inputs."""


class ModelError(CloseCallError):
    """A model cannot be found, is no model, or is not the one that was pinned."""


def fault_list(title: str, faults: Sequence[str]) -> str:
    """One message that lists all faults, the first 20 in full and the number of the others."""
    if len(faults) == 1:
        return faults[0]
    lines = [f"{title}: {len(faults)} faults", *(f"  - {fault}" for fault in faults[:FAULTS_SHOWN])]
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"  ... and {len(faults) - FAULTS_SHOWN} more")
    return "\n".join(lines)
