"""The number format in which a model computes, by what the device has in hardware."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Literal

from closecall.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16", "float16"]

CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Flags of CPUs that multiply bfloat16 in hardware; elsewhere it is emulated, and slower than float32."""
AMPERE, VOLTA = 8, 7
"""CUDA capabilities from which on GPUs compute bfloat16 and float16 in hardware."""


def likely_device(device: str | None) -> str:
    """The device that a config names, else the best there is. Where it can only be the CPU, torch is not loaded."""
    if device is not None:
        return device
    if sys.platform == "linux" and not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return "cpu"
    from sentence_transformers.util import get_device_name

    return str(get_device_name())


def computes_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 in hardware: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if device.startswith("cuda"):
        return _cuda_capability(device) >= AMPERE
    return device == "cpu" and _cpu_computes_bfloat16()


def encoding_precision(precision: Precision, device: str) -> Precision:
    """What `model.precision: auto` means on this device; ConfigError where it cannot do what is asked for.

    bfloat16 where it is computed in hardware, float16 on older GPUs, else float32. A rule and no measurement, so that
    the same machine always makes the same vectors; `closecall check` measures what the choice gains and costs.
    """
    if precision == "auto" and not computes_bfloat16(device):
        return "float16" if device.startswith("cuda") and _cuda_capability(device) >= VOLTA else "float32"
    return resolved_precision(precision, device, "model.precision")


def resolved_precision(precision: Precision, device: str, where: str) -> Precision:
    """What `auto` means on this device; ConfigError, which names the setting, when the device cannot do it.

    auto is bfloat16 where it is computed in hardware. Elsewhere it is emulated, and slower than float32.
    """
    if precision == "auto":
        return "bfloat16" if computes_bfloat16(device) else "float32"
    if precision == "float16" and not device.startswith("cuda"):
        raise ConfigError(f"{where}: float16 needs a CUDA GPU, this device is {device}; use float32 or auto")
    return precision


@cache
def _cpu_computes_bfloat16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return any(name in flags for name in CPU_BFLOAT16)


def _cuda_capability(device: str) -> int:
    import torch

    return torch.cuda.get_device_capability(device)[0]
