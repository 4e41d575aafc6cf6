import os
from types import SimpleNamespace

import numpy as np
import pytest

from closecall import cross_encoder as module
from closecall.cross_encoder import CrossEncoderScorer, ScoreCache, cross_encoder_fingerprint
from closecall.errors import ModelError
from mining.config import GuideConfig
from mining.guide import CrossEncoderGuide, EncoderGuide

QUERIES = ["make a bucket", "remove the user"]
DOCUMENTS = ["create the bucket", "delete the user", "list the key and the alarm and the image"]
PAIRS = np.asarray([0, 0, 1]), np.asarray([0, 1, 2])


@pytest.fixture
def make(cross_encoder, tmp_path):
    """A guide over QUERIES and DOCUMENTS whose scores are kept in `scores.sqlite`."""

    def make(folder=cross_encoder, **settings):
        config = GuideConfig(**{"cross_encoder": str(folder), "device": "cpu"} | settings)
        cache = ScoreCache(tmp_path / "guide" / "scores.sqlite")
        return CrossEncoderGuide(CrossEncoderScorer(folder, config.scorer(), cache, "guide"), QUERIES, DOCUMENTS)

    return make


def watched(guide, answer=None):
    """The pairs that the model of a guide is asked for from now on; `answer` gives their scores in its place."""
    asked, model = [], guide.scorer.__dict__.get("model")

    def predict(pairs, **settings):
        asked.extend(pairs)
        return np.asarray(answer(pairs)) if answer else model.predict(pairs, **settings)

    guide.scorer.__dict__["model"] = SimpleNamespace(predict=predict)
    return asked


def lengths(pairs):
    return [len(query) + len(document) / 100 for query, document in pairs]


def test_a_score_is_what_the_cross_encoder_gives_for_the_pair(make, cross_encoder):
    from sentence_transformers import CrossEncoder

    pairs = [(QUERIES[query], DOCUMENTS[row]) for query, row in zip(*PAIRS, strict=True)]
    expected = CrossEncoder(str(cross_encoder), device="cpu").predict(pairs)
    scores = make().scores(*PAIRS)
    np.testing.assert_allclose(scores, expected, atol=2e-6)
    assert len(set(scores.tolist())) == 3  # a model that tells nothing apart would prove nothing


def test_a_pair_that_was_scored_once_is_not_scored_again(make):
    first, second = make(), make()
    watched(first, lengths)
    scores = first.scores(*PAIRS)
    asked = watched(second, lengths)
    assert second.scores(*PAIRS).tolist() == scores.tolist()
    assert asked == []
    assert second.scores(np.asarray([1, 0]), np.asarray([0, 1])).tolist() == [15.17, scores[1]]
    assert asked == [(QUERIES[1], DOCUMENTS[0])]


def test_a_pair_that_is_asked_for_twice_is_scored_once(make):
    guide = make()
    asked = watched(guide, lengths)
    scores = guide.scores(np.asarray([0, 1, 0]), np.asarray([1, 1, 1]))
    assert (len(asked), scores[0]) == (2, scores[2])


def test_asking_for_nothing_asks_no_model(make):
    guide = make()
    asked = watched(guide, lengths)
    nothing = np.empty(0, dtype=np.int64)
    assert (guide.scores(nothing, nothing).shape, asked) == ((0,), [])


def test_a_killed_run_keeps_the_blocks_it_had_finished(make, monkeypatch):
    monkeypatch.setattr(module, "SAVED_AT_ONCE", 2)
    killed, again = make(), make()
    calls = []

    def answer(pairs):
        calls.append(pairs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return lengths(pairs)

    watched(killed, answer)
    with pytest.raises(KeyboardInterrupt):
        killed.scores(*PAIRS)
    asked = watched(again, lengths)
    assert again.scores(*PAIRS).tolist() == [13.17, 13.15, 15.4]
    assert asked == calls[1]


def test_a_score_that_is_no_number_stays_none_and_is_not_asked_for_again(make):
    first, second = make(), make()
    watched(first, lambda pairs: [np.nan for _ in pairs])
    assert np.isnan(first.scores(*PAIRS)).all()
    asked = watched(second, lengths)
    assert np.isnan(second.scores(*PAIRS)).all()
    assert asked == []


def test_a_model_with_two_labels_is_no_guide(make, save_cross_encoder, tmp_path):
    guide = make(save_cross_encoder(tmp_path / "two", labels=2))
    with pytest.raises(ModelError, match=r"two: gives \(2,\) values for a pair, expected one; use a cross-enc"):
        guide.scores(*PAIRS)


def test_a_folder_that_cannot_be_loaded_is_an_error(make, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"broken: cannot be loaded as a cross-encoder: "):
        make(tmp_path / "broken").scores(*PAIRS)


def test_other_weights_than_the_pinned_are_refused(cross_encoder):
    with pytest.raises(ModelError, match=r"weights have sha256 .* expects a{64}"):
        cross_encoder_fingerprint(cross_encoder, GuideConfig(cross_encoder="x", model_sha256="a" * 64).scorer())


@pytest.mark.parametrize("damage", [lambda whole: b"no database", lambda whole: whole[: len(whole) // 2]])
def test_a_damaged_file_of_scores_is_begun_anew(make, damage):
    first, second, third = make(), make(), make()
    watched(first, lengths)
    scores = first.scores(*PAIRS)
    file = first.scorer.cache.file
    file.write_bytes(damage(file.read_bytes()))
    asked = watched(second, lengths)
    assert second.scores(*PAIRS).tolist() == scores.tolist()
    assert len(asked) == 3
    asked = watched(third, lengths)
    third.scores(*PAIRS)
    assert asked == []


def test_other_weights_have_other_scores_under_other_keys(make, save_cross_encoder, tmp_path):
    first, other = make(), make(save_cross_encoder(tmp_path / "other", seed=1))
    assert first.scorer.fingerprint != other.scorer.fingerprint
    scores = first.scores(*PAIRS)
    assert (other.scores(*PAIRS) != scores).all()
    assert (make().scores(*PAIRS) == scores).all()


def test_what_changes_no_score_changes_no_key(make):
    assert make(batch_size=1, device="cpu", margin=0.5).scorer.fingerprint == make().scorer.fingerprint
    assert make(max_length_tokens=8).scorer.fingerprint != make().scorer.fingerprint


def test_the_maximum_length_cuts_what_the_model_reads(make):
    # [CLS] remove the user [SEP] leaves one token of the document
    whole, cut = make().scores(*PAIRS), make(max_length_tokens=7).scores(*PAIRS)
    assert (whole != cut).any()


def test_texts_that_run_into_each_other_have_different_keys():
    keys = {ScoreCache.key("m", *pair) for pair in (("a", "b\0c"), ("a\0b", "c"), ("ab", "c"), ("a", "bc"))}
    assert len(keys) == 4


def test_the_file_of_scores_holds_thousands_of_pairs(tmp_path):
    cache = ScoreCache(tmp_path / "scores.sqlite")
    scores = {os.urandom(16): number / 7 for number in range(1234)}
    cache.write(scores)
    cache.write({next(iter(scores)): 0.0})
    assert cache.read([*scores, b"unknown"]) == scores


def test_an_encoder_guides_with_its_cosine(monkeypatch):
    monkeypatch.setattr(module, "SAVED_AT_ONCE", 2)
    queries = np.asarray([[1, 0], [0, 1]], dtype=np.float32)
    documents = np.asarray([[0.6, 0.8], [-1, 0], [0.8, -0.6]], dtype=np.float32)
    scores = EncoderGuide(queries, documents).scores(np.asarray([0, 1, 0, 1, 1]), np.asarray([0, 0, 1, 1, 2]))
    assert scores.tolist() == [0.6, 0.8, -1.0, 0.0, -0.6]
    assert scores.dtype == np.float64
