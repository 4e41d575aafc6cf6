"""Nothing is encoded twice, nothing damaged is read, and a killed encode goes on where it was."""

import errno
import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closecall import segments, vectors
from closecall.errors import ArtifactError, ModelError
from closecall.segments import Segment, block_ends, keys_of
from closecall.vectors import VectorStore

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
    monkeypatch.setattr(segments, "TEXTS_IN_BLOCK", 2)
    return VectorStore(tmp_path / "vectors")


def get(store, encoder, texts=TEXTS, role="document"):
    return store.get(encoder, texts, role, "texts")


def only(store, pattern):
    (found,) = store.folder.glob(f"*/{pattern}")
    return found


def killed_in_block(store, number):
    with pytest.raises(KeyboardInterrupt):
        get(store, FakeEncoder(fail_at=number))
    return VectorStore(store.folder)


def test_the_second_get_encodes_nothing(store):
    encoder = FakeEncoder()
    first = get(store, encoder)
    assert store.counted == (5, 0)
    second = get(store, encoder)
    assert store.counted == (5, 5)
    assert encoder.calls == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    np.testing.assert_array_equal(first, second)


def test_another_run_finds_what_the_first_encoded_and_loads_no_model(store):
    get(store, FakeEncoder())
    later, encoder = VectorStore(store.folder), FakeEncoder(fail_at=0)
    encoder.dimension = None  # to ask for it would load the model
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert later.counted == (0, 5)


def test_a_list_that_was_encoded_as_a_whole_is_mapped_from_its_file(store):
    for found in (get(store, FakeEncoder()), get(VectorStore(store.folder), FakeEncoder())):
        assert isinstance(found, np.memmap)
        assert not found.flags.writeable


def test_rows_come_in_the_order_of_the_texts(store):
    texts = ["ccc", "a", "eeeee", "bb", "dddd"]
    np.testing.assert_array_equal(get(store, FakeEncoder(), texts), unit(texts))


def test_another_order_or_a_part_of_the_same_texts_encodes_nothing(store):
    get(store, FakeEncoder())
    np.testing.assert_array_equal(get(store, FakeEncoder(fail_at=0), TEXTS[::-1]), unit(TEXTS[::-1]))
    np.testing.assert_array_equal(get(store, FakeEncoder(fail_at=0), TEXTS[1:3]), unit(TEXTS[1:3]))


def test_added_and_changed_texts_alone_are_encoded(store):
    get(store, FakeEncoder())
    encoder, texts = FakeEncoder(), ["a", "new text", "ccc", "dddd", "eeeee", "added, and long"]
    np.testing.assert_array_equal(get(store, encoder, texts), unit(texts))
    assert encoder.calls == [["new text", "added, and long"]]
    assert store.counted == (5 + 2, 4)


def test_equal_texts_are_encoded_once(store):
    encoder = FakeEncoder()
    found = get(store, encoder, ["bb", "a", "bb", "bb"])
    assert encoder.calls == [["bb", "a"]]
    assert store.counted == (2, 0)
    np.testing.assert_array_equal(found, unit(["bb", "a", "bb", "bb"]))


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.lists(st.sampled_from([*"abcdefghij", "", "é", "\0"]), min_size=1, max_size=12), max_size=4))
def test_whatever_was_asked_before_every_text_gets_its_vector_and_is_encoded_once(tmp_path_factory, asked):
    store, encoder = VectorStore(tmp_path_factory.mktemp("store")), CodeEncoder()
    for texts in asked:
        np.testing.assert_array_equal(get(store, encoder, texts), code(texts))
    seen = [text for call in encoder.calls for text in call]
    assert sorted(seen) == sorted({text for texts in asked for text in texts})
    assert store.encoded == len(seen)


class CodeEncoder(FakeEncoder):
    """A different vector for every text of one character."""

    def encode(self, texts, role):
        super().encode(texts, role)
        return code(texts)


def code(texts):
    return np.array([[float(ord(text or "?")), 1.0] for text in texts], dtype=np.float32)


def test_no_texts_are_no_rows_and_no_file(store):
    assert get(store, FakeEncoder(fail_at=0), []).shape == (0, 2)
    assert not store.folder.exists()


def test_vectors_of_several_files_that_do_not_fit_into_memory_are_brought_together_in_a_file(store, monkeypatch):
    monkeypatch.setattr(vectors, "GATHERED_IN_MEMORY", 0)
    get(store, FakeEncoder(), TEXTS[:3])
    found = get(store, FakeEncoder())
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, unit(TEXTS))


SPOILED = {
    "a flipped bit": lambda data: data[:17] + bytes([data[17] ^ 1]) + data[18:],
    "zeros": lambda data: data[:16] + bytes(16) + data[32:],
    "rows of another block": lambda data: data[:16] + data[:16] + data[32:],
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_damaged_block_alone_is_encoded_again_in_its_place(store, spoil):
    get(store, FakeEncoder())
    rows = only(store, "*.rows")
    sound = rows.read_bytes()
    rows.write_bytes(spoil(sound))
    later, encoder = VectorStore(store.folder), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert encoder.calls == [["ccc", "dddd"]]
    assert later.counted == (2, 3)
    assert rows.read_bytes() == sound


@pytest.mark.parametrize("name", ["*.rows", "*.keys", "000000.json"])
@pytest.mark.parametrize("spoil", [lambda data: data[:-3], lambda data: b"", lambda data: data + b"x", None])
def test_a_segment_of_which_a_file_is_broken_or_gone_is_encoded_again(store, name, spoil):
    get(store, FakeEncoder())
    path = only(store, name)
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    later = VectorStore(store.folder)
    np.testing.assert_array_equal(get(later, FakeEncoder()), unit(TEXTS))
    assert later.counted == (5, 0)
    assert len(list(store.folder.glob("*/*.rows"))) == 1
    np.testing.assert_array_equal(get(VectorStore(store.folder), FakeEncoder(fail_at=0)), unit(TEXTS))


@pytest.mark.parametrize("tail", ["", "1 00", "x y z\n", "7 0123\n", "\n\n"])
def test_a_journal_that_ends_in_nonsense_counts_as_far_as_it_is_sound(store, tail):
    get(store, FakeEncoder())
    journal = only(store, "*.done")
    journal.write_text(journal.read_text().splitlines(keepends=True)[0] + tail)
    later, encoder = VectorStore(store.folder), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert encoder.calls == [["ccc", "dddd"], ["eeeee"]]


def test_a_killed_encode_goes_on_at_the_block_it_was_in_and_ends_with_the_same_bytes(store, tmp_path):
    later, encoder = killed_in_block(store, 1), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder), unit(TEXTS))
    assert encoder.calls == [["ccc", "dddd"], ["eeeee"]]
    assert later.counted == (3, 2)
    other = VectorStore(tmp_path / "other")
    get(other, FakeEncoder())
    for pattern in ("*.rows", "*.keys", "*.done", "000000.json"):
        assert only(other, pattern).read_bytes() == only(store, pattern).read_bytes()


def test_an_unfinished_block_is_finished_as_it_was_planned_although_other_texts_are_asked_for_too(store):
    later, encoder = killed_in_block(store, 1), FakeEncoder()
    texts = ["first", *TEXTS]
    np.testing.assert_array_equal(get(later, encoder, texts), unit(texts))
    assert encoder.calls == [["ccc", "dddd"], ["eeeee"], ["first"]]


def test_of_an_unfinished_block_whose_texts_are_not_all_wanted_any_more_the_others_are_encoded(store):
    later, encoder = killed_in_block(store, 1), FakeEncoder()
    np.testing.assert_array_equal(get(later, encoder, ["a", "ccc"]), unit(["a", "ccc"]))
    assert encoder.calls == [["ccc"]]


def test_what_a_kill_left_before_the_plan_was_written_is_removed(store):
    get(store, FakeEncoder(), ["x"])
    folder = only(store, "*.rows").parent
    for name in ("000001.keys", "000001.rows", "000001.partial"):
        (folder / name).write_bytes(b"left")
    get(store, FakeEncoder())
    assert sorted(path.name for path in folder.glob("000001*")) == [
        f"000001.{kind}" for kind in ("done", "json", "keys", "rows")
    ]


@pytest.mark.parametrize("settings", [{"encoder": FakeEncoder("f2")}, {"encoder": FakeEncoder(), "role": "query"}])
def test_another_fingerprint_or_role_never_shares(store, settings):
    get(store, FakeEncoder("f1"))
    get(store, **settings)
    assert store.counted == (10, 0)


def test_a_newer_store_is_refused_and_left_as_it_is(store):
    get(store, FakeEncoder())
    (store.folder / "store.json").write_text('{"format": 3}')
    before = sorted((path, path.stat().st_mtime_ns) for path in store.folder.rglob("*"))
    with pytest.raises(ArtifactError, match=r"has format 3, this closecall reads 2: a newer one made it; upgrade"):
        get(VectorStore(store.folder), FakeEncoder())
    assert before == sorted((path, path.stat().st_mtime_ns) for path in store.folder.rglob("*"))


def test_files_of_two_stores_that_were_mixed_are_refused(store):
    get(store, FakeEncoder())
    folder = only(store, "*.rows").parent
    Segment.make(folder / "000001.json", keys_of(["z"]), [1], 3).write(0, np.ones((1, 3), np.float32))
    with pytest.raises(ArtifactError, match=r"vectors of 2 and 3 dimensions, .*; remove this folder, it is made again"):
        get(VectorStore(store.folder), FakeEncoder())


def test_a_model_that_gives_vectors_of_another_width_than_it_says_is_refused(store):
    encoder = FakeEncoder()
    encoder.dimension = 3
    with pytest.raises(ModelError, match="gives vectors of 2 dimensions, and gave 3 before"):
        get(store, encoder)


def test_a_full_disk_is_one_message_before_anything_is_encoded(store, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    encoder = FakeEncoder()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        ArtifactError, match=r"vectors: the disk is full \([\d,]+ MB are free\); finished blocks are kept"
    ):
        get(store, encoder)
    assert encoder.calls == []
    monkeypatch.undo()
    np.testing.assert_array_equal(get(VectorStore(store.folder), FakeEncoder()), unit(TEXTS))


def test_a_disk_that_fills_up_while_blocks_are_written_keeps_the_finished_ones(store, monkeypatch):
    write, written = Segment.write, []

    def until_full(self, number, found):
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(number)
        write(self, number, found)

    monkeypatch.setattr(Segment, "write", until_full)
    with pytest.raises(ArtifactError, match="the disk is full"):
        get(store, FakeEncoder())
    monkeypatch.setattr(Segment, "write", write)
    later = VectorStore(store.folder)
    get(later, FakeEncoder())
    assert later.counted == (3, 2)


def test_a_store_that_cannot_be_written_is_read_and_refused_where_something_is_missing(store, monkeypatch):
    get(store, FakeEncoder())

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    later = VectorStore(store.folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("closecall.vectors.FileLock.acquire", refuse)
    np.testing.assert_array_equal(get(later, FakeEncoder(fail_at=0)), unit(TEXTS))
    with pytest.raises(ArtifactError, match=r"cannot be written \(Permission denied\); make it writable, or choose"):
        get(later, FakeEncoder(), ["new"])


def test_two_that_encode_the_same_at_once_encode_it_once(store):
    began, second = threading.Event(), VectorStore(store.folder)

    class Slow(FakeEncoder):
        def encode(self, texts, role):
            began.set()
            return super().encode(texts, role)

    slow, other, found = Slow(), FakeEncoder(fail_at=0), []
    first = threading.Thread(target=lambda: found.append(get(store, slow)))
    first.start()
    began.wait(10)
    found.append(get(second, other))
    first.join(10)
    np.testing.assert_array_equal(found[0], unit(TEXTS))
    np.testing.assert_array_equal(found[1], unit(TEXTS))
    assert sum(map(len, slow.calls)) == 5


def test_what_another_process_adds_is_seen(store):
    get(store, FakeEncoder(), TEXTS[:2])
    get(VectorStore(store.folder), FakeEncoder(), TEXTS[2:])
    np.testing.assert_array_equal(get(store, FakeEncoder(fail_at=0)), unit(TEXTS))


def test_adopted_vectors_are_found_under_the_new_fingerprint_alone(store, tmp_path):
    work = VectorStore(tmp_path / "work")
    get(work, FakeEncoder("step"))
    store.adopt(work, "step", "saved", "document")
    np.testing.assert_array_equal(get(store, FakeEncoder("saved", fail_at=0)), unit(TEXTS))
    assert not list(work.folder.glob("*/*.rows"))


def test_adopting_what_is_not_there_does_nothing(store, tmp_path):
    store.adopt(VectorStore(tmp_path / "work"), "step", "saved", "document")
    assert not store.folder.exists()


def test_adopting_keeps_vectors_that_are_already_there(store, tmp_path):
    work = VectorStore(tmp_path / "work")
    get(work, FakeEncoder("step"))
    get(store, FakeEncoder("saved"))
    store.adopt(work, "step", "saved", "document")
    get(store, FakeEncoder("saved", fail_at=0))


def test_blocks_end_after_so_many_texts_or_characters(monkeypatch):
    monkeypatch.setattr(segments, "TEXTS_IN_BLOCK", 3)
    monkeypatch.setattr(segments, "LENGTH_IN_BLOCK", 10)
    monkeypatch.setattr(segments, "LONGEST_COUNTED", 8)
    assert block_ends(np.array([1, 1, 1, 1, 9, 2, 9, 9])) == [3, 5, 7, 8]  # 9 counts 8: 1 + 8, 2 + 8, 8
    assert block_ends(np.array([99])) == [1]


def test_a_shelf_says_what_it_was_made_with(store):
    get(store, FakeEncoder("f1"))
    content = json.loads(only(store, "model.json").read_text())
    assert (content["fingerprint"], content["model"]) == ("f1", "f1")
