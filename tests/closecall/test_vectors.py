"""Nothing is encoded twice, nothing damaged is read, and a killed encode goes on where it was."""

from pathlib import Path

import numpy as np
import pytest

from closecall import vectors as vectors_module
from closecall.vectors import VectorStore
from closecall.vectors import _block_bytes as block_bytes

TEXTS = ["a", "bb", "ccc", "dddd", "eeeee"]


class FakeEncoder:
    """Two-dimensional unit vectors by the length of the text; remembers what it was asked to encode."""

    dimension = 2
    device = "cpu"
    max_length_tokens = 0
    weights_sha256 = ""

    def __init__(self, fingerprint="f1", fail_at=None):
        self.fingerprint, self.fail_at, self.calls = fingerprint, fail_at, []

    def encode(self, texts, role):
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        self.calls.append(list(texts))
        return unit(texts)

    def token_counts(self, texts, role):
        raise AssertionError("nothing is counted")


def unit(texts):
    angles = np.array([len(text) for text in texts]) / 10
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with blocks of two texts."""
    monkeypatch.setattr(vectors_module, "BLOCK_TEXTS", 2)
    return VectorStore(tmp_path / "vectors")


def get(store, encoder, texts=TEXTS, role="document"):
    return store.get(encoder, texts, role, "texts")


def blocks(store):
    return sorted(store.folder.rglob("*.npy"))


def test_the_second_get_encodes_nothing(store):
    encoder = FakeEncoder()
    first = get(store, encoder)
    assert (store.encoded, store.reused) == (5, 0)
    second = get(store, encoder)
    assert (store.encoded, store.reused) == (5, 5)
    assert len(encoder.calls) == 3
    np.testing.assert_array_equal(first, second)


def test_another_run_finds_what_the_first_encoded(store):
    get(store, FakeEncoder())
    later, encoder = VectorStore(store.folder), FakeEncoder(fail_at=0)
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert (later.encoded, later.reused) == (0, 5)


def test_rows_come_in_the_order_of_the_texts(store):
    texts = ["ccc", "a", "eeeee", "bb", "dddd"]
    np.testing.assert_array_equal(get(store, FakeEncoder(), texts), unit(texts))


def test_another_order_of_the_same_texts_encodes_nothing(store):
    get(store, FakeEncoder())
    np.testing.assert_array_equal(get(store, FakeEncoder(fail_at=0), TEXTS[::-1]), unit(TEXTS[::-1]))


def test_equal_texts_are_encoded_once(store):
    encoder = FakeEncoder()
    found = get(store, encoder, ["bb", "a", "bb", "bb"])
    assert encoder.calls == [["bb", "a"]]
    assert (store.encoded, store.reused) == (2, 0)
    np.testing.assert_array_equal(found, unit(["bb", "a", "bb", "bb"]))


def test_the_longest_texts_come_first(store):
    encoder = FakeEncoder()
    get(store, encoder)
    assert encoder.calls == [["eeeee", "dddd"], ["ccc", "bb"], ["a"]]


def test_no_texts_are_no_rows_and_no_file(store):
    assert get(store, FakeEncoder(fail_at=0), []).shape == (0, 2)
    assert not store.folder.exists()


SPOILED = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-3],
    "cut in its header": lambda data: data[:5],
    "of another kind": lambda data: b"PK\x03\x04" + data[4:],
    "of an absurd size": lambda data: data.replace(b"(2, 2), }         ", b"(2, 999999999999)}"),
    "with a broken header": lambda data: data.replace(b"'descr'", b"'descr("),
    "of another type": lambda data: data.replace(b"<f4", b"<i4"),
    "with a flipped bit": lambda data: data[:130] + bytes([data[130] ^ 1]) + data[131:],
    "all zeros": lambda data: bytes(len(data)),
    "longer": lambda data: data + b"x",
    "the next block's": lambda data: block_bytes(unit(["a"])),
    "not finite": lambda data: block_bytes(np.full((2, 2), np.nan, dtype=np.float32)),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_damaged_block_is_encoded_again(store, spoil):
    get(store, FakeEncoder())
    block = blocks(store)[1]
    sound = block.read_bytes()
    block.write_bytes(spoil(sound))
    assert block.read_bytes() != sound
    later, encoder = VectorStore(store.folder), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert encoder.calls == [["ccc", "bb"]]
    assert (later.encoded, later.reused) == (2, 3)
    assert block.read_bytes() == sound


def test_a_killed_encode_goes_on_at_the_block_it_was_in(store):
    with pytest.raises(KeyboardInterrupt):
        get(store, FakeEncoder(fail_at=1))
    assert [block.name for block in blocks(store)] == ["000000.npy"]
    later, encoder = VectorStore(store.folder), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert encoder.calls == [["ccc", "bb"], ["a"]]
    assert (later.encoded, later.reused) == (3, 2)


def test_a_kill_while_a_block_is_written_leaves_no_block(store, monkeypatch):
    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        get(store, FakeEncoder())
    assert blocks(store) == []


def test_another_fingerprint_never_shares(store):
    get(store, FakeEncoder("f1"))
    encoder = FakeEncoder("f2")
    get(store, encoder)
    assert sum(map(len, encoder.calls)) == 5


def test_another_role_never_shares(store):
    get(store, FakeEncoder(), role="document")
    encoder = FakeEncoder()
    get(store, encoder, role="query")
    assert sum(map(len, encoder.calls)) == 5


def test_other_texts_never_share(store):
    get(store, FakeEncoder())
    encoder = FakeEncoder()
    get(store, encoder, [*TEXTS[:4], "fffff"])
    assert sum(map(len, encoder.calls)) == 5


def test_adopted_vectors_are_found_under_the_new_fingerprint_alone(store, tmp_path):
    work = VectorStore(tmp_path / "work")
    get(work, FakeEncoder("step"))
    store.adopt(work, "step", "saved", TEXTS, "document")
    np.testing.assert_array_equal(get(store, FakeEncoder("saved", fail_at=0)), unit(TEXTS))
    assert not blocks(work)


def test_adopting_what_is_not_there_does_nothing(store, tmp_path):
    store.adopt(VectorStore(tmp_path / "work"), "step", "saved", TEXTS, "document")
    assert not store.folder.exists()


def test_adopting_keeps_vectors_that_are_already_there(store, tmp_path):
    work = VectorStore(tmp_path / "work")
    get(work, FakeEncoder("step"))
    get(store, FakeEncoder("saved"))
    store.adopt(work, "step", "saved", TEXTS, "document")
    get(store, FakeEncoder("saved", fail_at=0))
