"""A precision is what the device has in hardware, by a rule that says the same every time."""

import sys

import pytest

from closecall import precision
from closecall.errors import ConfigError
from closecall.precision import encoding_precision, likely_device, resolved_precision


@pytest.fixture
def cpu(monkeypatch):
    """A CPU with or without bfloat16."""
    return lambda native: monkeypatch.setattr(precision, "_cpu_computes_bfloat16", lambda: native)


@pytest.fixture
def gpu(monkeypatch):
    """A CUDA GPU of this capability."""
    return lambda capability: monkeypatch.setattr(precision, "_cuda_capability", lambda device: capability)


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_on_a_cpu_is_bfloat16_only_where_it_is_in_hardware(cpu, native, expected):
    cpu(native)
    assert encoding_precision("auto", "cpu") == resolved_precision("auto", "cpu", "x") == expected


@pytest.mark.parametrize(
    ("capability", "encoding", "training"),
    [(9, "bfloat16", "bfloat16"), (8, "bfloat16", "bfloat16"), (7, "float16", "float32"), (6, "float32", "float32")],
)
def test_auto_on_a_gpu_follows_its_capability(gpu, capability, encoding, training):
    gpu(capability)
    assert encoding_precision("auto", "cuda:1") == encoding
    assert resolved_precision("auto", "cuda", "x") == training


def test_other_devices_stay_float32(cpu):
    cpu(True)
    assert encoding_precision("auto", "mps") == "float32"


def test_what_is_asked_for_is_used():
    assert encoding_precision("bfloat16", "cpu") == "bfloat16"
    assert encoding_precision("float32", "cuda") == "float32"


def test_float16_without_a_gpu_is_refused():
    with pytest.raises(
        ConfigError, match=r"model\.precision: float16 needs a CUDA GPU, this device is cpu; use float32"
    ):
        encoding_precision("float16", "cpu")


def test_a_machine_that_can_only_have_a_cpu_is_known_without_torch(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("pathlib.Path.glob", lambda *_: iter(()))
    monkeypatch.setattr("pathlib.Path.exists", lambda _: False)
    assert likely_device(None) == "cpu"
    assert likely_device("cuda:1") == "cuda:1"
