from pathlib import Path

import pytest

from closecall.config import override, read_yaml, validate
from closecall.errors import ConfigError
from closecall.pipeline import ExperimentConfig
from mining.config import GuideConfig, MiningConfig, SourceConfig


@pytest.fixture
def load(tmp_path):
    """The mining section of a config file that holds this YAML there, indented as it must be."""

    def load(section, assignments=()):
        (tmp_path / "c.yaml").write_text(f"model: {{name: m}}\ndata: {{folder: d}}\nmining:\n  {section}\n")
        content = override(read_yaml(tmp_path / "c.yaml"), assignments)
        return validate(ExperimentConfig, content, tmp_path / "c.yaml").mining

    return load


@pytest.fixture
def refusal(load, tmp_path):
    """The message with which a mining section is refused."""

    def refusal(section, assignments=()):
        with pytest.raises(ConfigError) as error:
            load(section, assignments)
        return str(error.value).replace(f"{tmp_path}/", "")

    return refusal


def test_by_default_the_base_model_and_the_judgments_are_mined():
    assert [(source.source, source.label) for source in MiningConfig().sources] == [
        ("dense", "dense"),
        ("judged", "judged"),
    ]


def test_a_source_is_given_by_a_word(load):
    assert load("sources: [dense, bm25, random]").sources == (
        SourceConfig(source="dense"),
        SourceConfig(source="bm25"),
        SourceConfig(source="random"),
    )


def test_a_run_source_names_its_file_which_counts_from_the_configs_folder(load, tmp_path):
    source = load("sources: [{source: {run: runs/bm25.trec}, quota: 1}]").sources[0]
    assert (source.source, source.run, source.quota) == ("run", tmp_path / "runs" / "bm25.trec", 1)
    assert source.label == "bm25"


def test_a_dense_source_names_its_model(load):
    by_name, by_section = load(
        "sources: [{source: {dense: a/b}}, {source: {dense: {name: c, batch_tokens: 64}}}]"
    ).sources
    assert (by_name.source, by_name.model.name, by_name.label) == ("dense", "a/b", "dense-b")
    assert (by_section.model.name, by_section.model.batch_tokens, by_section.label) == ("c", 64, "dense-c")


def test_a_name_of_its_own_goes_before_all_others(load):
    assert [
        source.label
        for source in load("sources: [{source: dense, name: base}, {source: {run: r}, name: v1.2}]").sources
    ] == [
        "base",
        "v1.2",
    ]


def test_a_model_in_the_configs_folder_is_meant_by_its_name(load, tmp_path):
    (tmp_path / "strong").mkdir()
    mining = load("{sources: [{source: {dense: strong}}], guide: {encoder: strong}}")
    assert mining.sources[0].model.name == mining.guide.encoder.name == str(tmp_path / "strong")
    assert load("guide: {cross_encoder: strong}").guide.cross_encoder == str(tmp_path / "strong")


def test_sources_can_be_set_from_the_command_line(load):
    mining = load("negatives: 2", ["mining.sources=[{source: {run: r.trec}}, judged]"])
    assert [source.label for source in mining.sources] == ["r", "judged"]


def test_what_the_manifest_keeps_reads_back_as_the_same_settings(load):
    mining = load("{sources: [{source: {run: a}}, {source: {dense: m}}, bm25], guide: {encoder: x}, select: random}")
    assert MiningConfig.model_validate(mining.resolved()) == mining
    mining = load("guide: {cross_encoder: x, batch_size: 8, margin: 0.1}")
    assert MiningConfig.model_validate(mining.resolved()) == mining


def test_a_guide_has_a_margin_of_a_twentieth_of_its_own_scores():
    guide = GuideConfig(cross_encoder="x")
    assert (guide.margin_fraction, guide.margin) == (0.05, None)


RANKS = "fewer than negatives 4; widen them"
CONTRADICTIONS = [
    ("depth: 3", "mining: depth 3 is below negatives 4; retrieve at least as many"),
    ("max_depth: 20", "mining: max_depth 20 is below depth 50; raise it or lower depth"),
    ("{select: random, sample_from: 2}", "mining: sample_from 2 is below negatives 4; raise it"),
    ("{min_rank: 10, max_rank: 12}", f"mining: the ranks 10 to 12 are 3, {RANKS}"),
    ("{min_rank: 10, max_rank: 5}", f"mining: the ranks 10 to 5 are 0, {RANKS}"),
    ("min_rank: 998", f"mining: the ranks 998 to 1000 are 3, {RANKS}"),
    ("{min_score: 0.5, max_score: 0.4}", "mining: min_score 0.5 is above max_score 0.4: nothing lies between"),
    ("sources: [bm25, bm25]", "mining: two sources are called 'bm25'; give one a `name`"),
    (
        "sources: [{source: bm25, quota: 3}, {source: dense, quota: 2}]",
        "mining: the quotas of the sources add up to 5, more than negatives 4",
    ),
    ("sources: []", "mining: sources is empty; name one, such as dense, or leave it out"),
    (
        "sources: [{source: {run: guide.trec}}]",
        "mining: a source is called 'guide', as the columns of the guide's scores are; give it a `name`",
    ),
    ("sources: [run]", "mining.sources.0: a run source needs its file: write `source: {run: FILE}`"),
    ("sources: [{source: {run: null}}]", "mining.sources.0: a run source needs its file: write `source: {run: FILE}`"),
    ("sources: [{source: bm25, run: r}]", "mining.sources.0: `run` is for run sources, this one is bm25"),
    ("sources: [{source: bm25, model: m}]", "mining.sources.0: `model` is for dense sources, this one is bm25"),
    (
        "sources: [dense, {source: {run: a}, run: b}]",
        "mining.sources.1: `run` is given twice, inside `source` and beside it; keep one",
    ),
    (
        "sources: [{source: {run: a, dense: b}}]",
        "mining.sources.0: source: found {'run': 'a', 'dense': 'b'}; write {run: FILE}, {dense: MODEL}, or one word",
    ),
    (
        "sources: [{source: {bm25: x}}]",
        "mining.sources.0: source: found {'bm25': 'x'}; write {run: FILE}, {dense: MODEL}, or one word",
    ),
    ("sources: [{name: x}]", "mining.sources.0.source: missing; it has no default"),
    (
        "sources: [bm26]",
        "mining.sources.0.source: found 'bm26'; input should be 'dense', 'bm25', 'run', 'judged' or 'random'",
    ),
    ("negatives: 0", "mining.negatives: found 0; input should be greater than or equal to 1"),
    ("near_copy: 0", "mining.near_copy: found 0; input should be greater than 0"),
    ("margin: -0.1", "mining.margin: found -0.1; input should be greater than or equal to 0"),
    (
        "guide: {encoder: a, cross_encoder: b}",
        "mining.guide: give either cross_encoder or encoder: the one model that scores again",
    ),
    ("guide: {margin: 0.1}", "mining.guide: give either cross_encoder or encoder: the one model that scores again"),
    (
        "guide: {cross_encoder: b, margin_fraction: null}",
        "mining.guide: give margin_fraction or margin: without either the guide drops nothing",
    ),
    (
        "guide: {encoder: a, device: cpu, batch_size: 8}",
        "mining.guide: batch_size, device: of cross_encoder alone; write it inside `encoder: {name: MODEL}`",
    ),
]


@pytest.mark.parametrize(("section", "message"), CONTRADICTIONS, ids=[section for section, _ in CONTRADICTIONS])
def test_a_contradiction_is_refused_and_nothing_else_is_said(refusal, section, message):
    assert refusal(section) == f"c.yaml: {message}"


def test_all_contradictions_are_told_together(refusal):
    message = refusal("{depth: 2, min_rank: 999, sources: [bm25, bm25]}")
    assert message.startswith("c.yaml: mining: depth 2 is below negatives 4; retrieve at least as many; the ranks 999")
    assert message.endswith("; two sources are called 'bm25'; give one a `name`")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("sources: [dense, {source: bm25, qouta: 1}]", "mining.sources.1.qouta: unknown key; did you mean 'quota'?"),
        ("guide: {cross_encodr: x}", "mining.guide.cross_encodr: unknown key; did you mean 'cross_encoder'?"),
        (
            "guide: {encoder: {name: x, devise: cpu}}",
            "mining.guide.encoder.devise: unknown key; did you mean 'device'?",
        ),
        (
            "sources: [{source: {dense: {name: x, batchtokens: 3}}}]",
            "mining.sources.0.model.batchtokens: unknown key; did you mean 'batch_tokens'?",
        ),
    ],
)
def test_an_unknown_key_in_a_list_or_an_inner_section_names_the_nearest(refusal, section, message):
    assert f"c.yaml: {message}" in refusal(section)


def test_the_path_of_a_run_is_a_path():
    assert SourceConfig.model_validate({"source": {"run": "a.trec"}}).run == Path("a.trec")
