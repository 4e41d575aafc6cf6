"""The README's commands exist, and its worked example is what the code reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from closecall.cli import app
from closecall.pipeline import load_experiment

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
NAMES = "|".join(typer.main.get_command(app).commands)
COMMANDS = sorted(set(re.findall(rf"closecall (?:{NAMES})\b[^`#\n|]*", README)))


def block(language, number=0):
    """The code block of this language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)[number]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_readme_exists_with_its_options(line):
    name, *words = shlex.split(line)[1:]
    command = typer.main.get_command(app).commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_every_command_is_in_the_readme():
    named = {line.split()[1] for line in COMMANDS}
    assert named == set(typer.main.get_command(app).commands)


def test_the_worked_example_is_read_and_told_that_two_queries_are_too_few(tmp_path, tiny_model):
    (tmp_path / "corpus.jsonl").write_text(block("json"), encoding="utf-8")
    (tmp_path / "judged.yaml").write_text(block("yaml"), encoding="utf-8")
    config = block("yaml", 1)
    assert "sentence-transformers/all-MiniLM-L6-v2" in config
    (tmp_path / "experiment.yaml").write_text(
        config.replace("sentence-transformers/all-MiniLM-L6-v2", str(tiny_model)), encoding="utf-8"
    )
    assert load_experiment(tmp_path / "experiment.yaml").output == tmp_path / "experiment-artifacts"
    result = CliRunner().invoke(app, ["check", str(tmp_path / "experiment.yaml")])
    assert result.exit_code == 2
    assert "corpus     4 documents" in result.stdout
    assert "4: 1 of grade 0, 2 of grade 1, 1 of grade 2" in result.stdout
    assert "split      cannot be made: the split leaves" in result.stdout


@pytest.mark.parametrize("number", range(2, len(re.findall(r"```yaml\n", README))))
def test_every_setting_in_the_readme_is_one(tmp_path, toy_data, tiny_model, number):
    path = tmp_path / "experiment.yaml"
    head = f"model: {{name: {tiny_model}}}\ndata: {{folder: {toy_data}}}\n"
    path.write_text(head + block("yaml", number), encoding="utf-8")
    assert load_experiment(path).config.finetune is not None


def test_every_file_the_readme_sends_to_exists():
    root = Path(__file__).parent.parent
    for name in re.findall(r"`((?:closecall|mining|finetune|eval|configs)/[\w./]+\.\w+)`", README):
        assert (root / name).exists(), name
