"""Contenders in a config that cannot be: one message, and nothing is compared."""

import pytest

from closecall.errors import ConfigError, DataError, ModelError
from closecall.pipeline import load_experiment


@pytest.fixture(scope="module")
def config(tmp_path_factory, toy_config, tiny_model):
    """Of a run that has ended."""
    path = toy_config(tmp_path_factory.mktemp("contenders"), tiny_model)
    load_experiment(path).run()
    return path


def evaluate(config, contender):
    load_experiment(config, [f"eval.contenders=[{contender}]"]).evaluate()


def test_a_run_that_answers_no_test_query_is_refused(config):
    lines = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()[:5]
    alien = config.parent / "alien.run"
    alien.write_text("".join(f"z{line}\n" for line in lines))
    with pytest.raises(DataError, match=r"alien\.run: none of its queries \('z.*is a test query"):
        evaluate(config, f"{{name: x, run: {alien}}}")


def test_a_run_over_another_corpus_is_refused(config):
    line = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()[0].split()
    other = config.parent / "other.run"
    other.write_text(f"{line[0]} Q0 elsewhere 1 1.0 x\n")
    with pytest.raises(DataError, match=r"other\.run: none of its documents is in the corpus"):
        evaluate(config, f"{{name: x, run: {other}}}")


def test_queries_that_a_run_lacks_count_as_0_and_are_counted(config):
    lines = (config.parent / "out" / "verdict" / "base.run").read_text().splitlines()
    first = lines[0].split()[0]
    some = config.parent / "some.run"
    some.write_text("".join(f"{line}\n" for line in lines if line.split()[0] == first))
    made = load_experiment(config, [f"eval.contenders=[{{name: x, run: {some}}}]"])
    content = made.evaluate().read_json("verdict.json")
    assert content["counted"]["queries_missing_from_x_run"] == content["queries"] - 1
    assert content["others"]["x"]["overall"]["nDCG@10"]["n"] == content["queries"]


def test_more_dimensions_than_the_vectors_have_are_refused(config):
    with pytest.raises(ConfigError, match=r"x: dimensions is 400, and the vectors have 32; lower it"):
        evaluate(config, "{name: x, of: base, dimensions: 400}")


def test_a_model_that_scores_no_pairs_is_no_reranker(config, tiny_model):
    with pytest.raises(ModelError, match=r"no cross-encoder but a BertModel, .*name a reranker"):
        evaluate(config, f"{{name: x, of: base, rerank: {tiny_model}}}")


def test_a_system_is_not_fused_with_itself(config):
    with pytest.raises(ConfigError, match="fuse needs two contenders or more, each once"):
        evaluate(config, "{name: x, fuse: [base, base]}")
