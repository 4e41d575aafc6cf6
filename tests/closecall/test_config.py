"""YAML in, one frozen config out: what is refused, and what the message says."""

from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from closecall.config import ConfigPath, Settings, override, read_yaml, validate
from closecall.errors import ConfigError
from closecall.pipeline import ExperimentConfig, load_experiment

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


class Engine(Settings):
    cylinders: int = Field(4, ge=1)
    rate: float = 0.5


class Car(Settings):
    name: str
    manual: ConfigPath | None = None
    engine: Engine = Engine()


@pytest.fixture
def load(tmp_path):
    """Reads and validates the text of a config file; messages name it `c.yaml`."""

    def load(text, settings=Car, assignments=()):
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return validate(settings, override(read_yaml(path), assignments), path)

    return load


@pytest.fixture
def refusal(load, tmp_path):
    """The message with which a config is refused."""

    def refusal(text, settings=Car, assignments=()):
        with pytest.raises(ConfigError) as error:
            load(text, settings, assignments)
        return str(error.value).replace(f"{tmp_path}/", "")

    return refusal


def test_an_unknown_key_names_the_nearest_known_key(refusal):
    assert refusal("nam: Twingo\nname: x\n") == "c.yaml: nam: unknown key; did you mean 'name'?"


def test_an_unknown_key_inside_a_section_names_the_nearest_of_that_section(refusal):
    text = "name: x\nengine: {cylindres: 3}\n"
    assert refusal(text) == "c.yaml: engine.cylindres: unknown key; did you mean 'cylinders'?"


def test_an_unknown_key_near_to_nothing_lists_the_known_keys(refusal):
    assert refusal("name: x\nengine: {zzz: 3}\n") == "c.yaml: engine.zzz: unknown key; known keys: cylinders, rate"


def test_an_unknown_key_of_a_real_section_names_its_neighbour(refusal):
    text = "model: {name: m}\ndata: {folder: d}\nmining: {negativs: 2}\nspilt: {}\n"
    message = refusal(text, ExperimentConfig)
    assert "c.yaml: mining.negativs: unknown key; did you mean 'negatives'?" in message
    assert "c.yaml: spilt: unknown key; did you mean 'split'?" in message


def test_all_faults_of_a_file_are_reported_together(refusal):
    assert refusal("engine: {cylinders: 0, rate: fast, colour: red}\n").splitlines() == [
        "c.yaml: 4 faults",
        "  - c.yaml: name: missing; it has no default",
        "  - c.yaml: engine.cylinders: found 0; input should be greater than or equal to 1",
        "  - c.yaml: engine.rate: found 'fast'; input should be a valid number, unable to parse string as a number",
        "  - c.yaml: engine.colour: unknown key; known keys: cylinders, rate",
    ]


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [("name: a\nengine: {}\nname: b\n", 3, "name"), ("name: a\nengine:\n  rate: 1\n  rate: 2\n", 4, "rate")],
)
def test_a_key_given_twice_is_refused_with_its_line(refusal, text, line, key):
    assert refusal(text) == f"c.yaml line {line}: the key {key!r} stands twice; correct the YAML"


def test_a_key_that_overrides_a_merged_one_does_not_stand_twice(tmp_path):
    (tmp_path / "c.yaml").write_text("base: &base {cylinders: 6, rate: 2}\nengine: {<<: *base, rate: 3}\n")
    assert read_yaml(tmp_path / "c.yaml")["engine"] == {"cylinders": 6, "rate": 3}


def test_a_template_that_was_not_filled_in_is_a_fault_of_the_yaml(refusal):
    assert refusal("name: {{car}}\n") == "c.yaml line 1: found unhashable key; correct the YAML"


def test_a_date_that_is_none_is_a_fault_of_the_yaml(refusal):
    assert refusal("name: 2024-13-45\n") == "c.yaml: month must be in 1..12; correct the YAML"


def test_a_syntax_fault_names_its_line(refusal):
    assert refusal("name: x\nengine: [1\n").startswith("c.yaml line 3: expected ',' or ']'")


def test_an_override_replaces_one_key_and_keeps_its_neighbours(load):
    car = load("name: x\nengine: {cylinders: 3, rate: 1}\n", assignments=["engine.rate=2.5", "name=y"])
    assert (car.name, car.engine.cylinders, car.engine.rate) == ("y", 3, 2.5)


def test_an_override_makes_the_section_it_needs(load):
    assert load("name: x\n", assignments=["engine.cylinders=8"]).engine.cylinders == 8


def test_an_override_leaves_the_content_it_was_given_as_it_was():
    content = {"engine": {"rate": 1}}
    assert override(content, ["engine.rate=2"]) == {"engine": {"rate": 2}}
    assert content == {"engine": {"rate": 1}}


def test_an_overrides_value_is_yaml():
    assert override({}, ["a.b=[x, y]", "c=null", "d=a=b"]) == {"a": {"b": ["x", "y"]}, "c": None, "d": "a=b"}


@pytest.mark.parametrize("assignment", ["engine.rate", "=2", "engine.=2", ".rate=2", "engine..rate=2"])
def test_an_override_of_another_form_is_refused(assignment):
    with pytest.raises(ConfigError, match=r"expected section\.key=value, such as mining.negatives=4"):
        override({}, [assignment])


def test_an_overrides_value_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match=r"--set a=\[1: the value is not YAML; quote it"):
        override({}, ["a=[1"])


def test_an_unknown_key_in_an_override_names_the_nearest(refusal):
    assert "engine.cylinder: unknown key; did you mean 'cylinders'?" in refusal(
        "name: x\n", assignments=["engine.cylinder=3"]
    )


def test_a_byte_order_mark_is_no_part_of_the_first_key(load):
    assert load(b"\xef\xbb\xbfname: x\n").name == "x"


def test_a_file_that_is_not_utf8_names_the_byte(refusal):
    assert refusal(b"name: caf\xe9\n") == "c.yaml: not UTF-8 at byte 9; save the file as UTF-8"


def test_a_missing_file_names_the_yaml_files_beside_it(tmp_path):
    (tmp_path / "demo.yaml").touch()
    with pytest.raises(ConfigError, match=r"dmo\.yaml: no such config file; in .* there is demo\.yaml"):
        read_yaml(tmp_path / "dmo.yaml")


def test_a_missing_folder_is_said_to_be_missing_too(tmp_path):
    with pytest.raises(ConfigError, match=r"no such config file; the folder .*/nowhere does not exist either"):
        read_yaml(tmp_path / "nowhere" / "demo.yaml")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(("text", "found"), [("", "nothing"), ("# only a remark\n", "nothing"), ("- a\n", "list")])
def test_a_file_without_sections_is_refused(refusal, text, found):
    assert refusal(text) == f"c.yaml: found {found}, expected sections such as `model:` and `data:`"


def test_a_relative_path_counts_from_the_configs_folder(load, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert load("name: x\nmanual: docs/m.pdf\n").manual == tmp_path / "docs/m.pdf"


def test_an_absolute_path_stays_and_a_tilde_is_the_home(load, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert load("name: x\nmanual: /m.pdf\n").manual == Path("/m.pdf")
    assert load("name: x\nmanual: ~/m.pdf\n").manual == Path("/home/me/m.pdf")


def test_a_number_in_scientific_form_is_a_number(load):
    """YAML 1.1 reads `2e-5`, without a dot, as text."""
    assert load("name: x\nengine: {rate: 2e-5}\n").engine.rate == 0.00002
    assert load("name: x\n", assignments=["engine.rate=3e-4"]).engine.rate == 0.0003


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("mining: {negatives: 9, depth: 5}", "mining: depth 5 is below negatives 9; retrieve at least as many"),
        ("mining: {depth: 50, max_depth: 20}", "mining: max_depth 20 is below depth 50; raise it or lower depth"),
        ("split: {held_out: 0.7, dev: 0.3}", "split: held_out 0.7 + dev 0.3 leave nothing to train on"),
        ("eval: {measure: ndgc@10}", "eval.measure: "),
    ],
)
def test_a_contradiction_is_refused(refusal, section, message):
    text = f"model: {{name: m}}\ndata: {{folder: d}}\n{section}\n"
    assert refusal(text, ExperimentConfig).startswith(f"c.yaml: {message}")


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Car(name="x").name = "y"


def test_every_yaml_under_configs_is_an_experiment():
    paths = sorted([*CONFIGS.rglob("*.yaml"), *CONFIGS.rglob("*.yml")])
    paths = [path for path in paths if path.parent.name != "cluster"]  # how to launch one there
    assert CONFIGS / "demo.yaml" in paths
    for path in paths:
        validate(ExperimentConfig, read_yaml(path), path)


def test_artifacts_go_beside_the_config_when_it_does_not_say_where(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {name: m}\ndata: {folder: d}\n")
    experiment = load_experiment(tmp_path / "mine.yaml")
    assert experiment.output == tmp_path / "mine-artifacts"
    assert experiment.config.data.folder == tmp_path / "d"
