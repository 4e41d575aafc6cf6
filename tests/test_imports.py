"""What may import what, what `--help` loads, and that nobody's own folder takes the place of ours."""

import ast
import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STAGES = {"mining", "finetune", "eval"}
PACKAGES = {"closecall", *STAGES}
CONSOLE_SCRIPT = Path(sys.executable).with_name("closecall")

MAY_IMPORT = {
    "closecall": set(),
    "mining": {"closecall"},
    "finetune": {"closecall", "mining.artifact"},
    "eval": {"closecall", "mining.artifact", "finetune.artifact"},
}
"""Modules of other packages, by package; a package stands for all its modules."""

KNOWS_ALL_STAGES = Path("closecall/pipeline.py")
IN_FUNCTIONS_ALONE = {Path(f"closecall/{name}.py") for name in ("cli", "mining_commands", "eval_commands", "forecast")}

FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(tree):
    """(module, inside a function body) of every import under a node."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.within = getattr(node, "within", False) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.within) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module in PACKAGES else [node.module]
            )
            yield from ((name, node.within) for name in names)


def forbidden(path, source):
    """The imports of a file that the rule does not allow."""
    owner = path.parts[0]
    allowed = MAY_IMPORT[owner] | {owner}
    found = []
    for module, within in imports(ast.parse(source)):
        if module.split(".")[0] not in PACKAGES or path == KNOWS_ALL_STAGES:
            continue
        if path in IN_FUNCTIONS_ALONE and within:
            continue
        if not any(module == name or module.startswith(f"{name}.") for name in allowed):
            found.append(module)
    return found


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_package_imports_what_the_rule_does_not_allow(path):
    assert forbidden(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("closecall/split.py", "from mining.artifact import Triple", ["mining.artifact"]),
        ("closecall/split.py", "def f():\n    import eval.stage", ["eval.stage"]),
        ("closecall/cli.py", "from eval.runs import measure_run", ["eval.runs"]),
        ("closecall/cli.py", "def f():\n    if True:\n        from eval.runs import measure_run", []),
        ("closecall/pipeline.py", "from eval.config import EvalConfig", []),
        ("mining/mine.py", "from finetune.artifact import Curve", ["finetune.artifact"]),
        ("finetune/train.py", "from mining.artifact import Triple\nfrom mining.mine import Miner", ["mining.mine"]),
        ("finetune/train.py", "def f():\n    from mining import mine", ["mining.mine"]),
        ("finetune/train.py", "from eval.artifact import VERDICT", ["eval.artifact"]),
        ("eval/stage.py", "from finetune.artifact import Curve\nfrom finetune.config import C", ["finetune.config"]),
        ("eval/stage.py", "import torch, closecall.split, eval.compare", []),
    ],
)
def test_the_rule_finds_what_crosses(path, source, found):
    assert forbidden(Path(path), source) == found


def test_nobody_hides_the_builtin_eval():
    for path in FILES:
        names = {module for module, _ in imports(ast.parse((ROOT / path).read_text(encoding="utf-8")))}
        assert "eval" not in names, path


def run(*arguments, cwd=None, **environment):
    """A command in a process of its own, without the PYTHONPATH of whoever runs the tests."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


HEAVY = ["torch", "numpy", "yaml", "sentence_transformers", "transformers", "datasets", "faiss", "scipy"]


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], [*HEAVY, "pydantic"]),
        (["run", "--help"], HEAVY),  # typer itself may load pydantic for the help of a command
        (["measure", "-h"], HEAVY),
    ],
)
def test_help_loads_nothing_heavy(arguments, heavy):
    code = f"""
import sys
from closecall.cli import main
sys.argv = ["closecall", *{arguments!r}]
try:
    main()
finally:
    sys.stderr.write(" ".join(name for name in {heavy!r} if name in sys.modules))
"""
    result = run(sys.executable, "-c", code)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: closecall" in result.stdout


@pytest.fixture
def shadows(tmp_path):
    """A folder that holds a user's own `eval/`, `mining/` and `configs/`, and a run with its qrels."""
    for name in ("eval", "mining", "finetune", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the folder of the user was imported')\n")
    (tmp_path / "qrels.tsv").write_text("q1\td2\t1\n")
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 0.9 x\nq1 Q0 d2 2 0.8 x\n")
    return tmp_path


@pytest.mark.parametrize("path", [{}, {"PYTHONPATH": "."}])
def test_a_users_own_eval_folder_does_not_take_the_place_of_ours(shadows, path):
    """The one positive is at rank 2: MRR is 1/2."""
    command = [CONSOLE_SCRIPT, "measure", "--qrels", "qrels.tsv", "--run", "run.trec", "-m", "MRR", "--json"]
    result = run(*command, cwd=shadows, **path)
    assert result.returncode == 0, result.stderr
    assert '"MRR": 0.5' in result.stdout


def test_a_users_error_is_one_message_and_exit_code_2(tmp_path):
    result = run(CONSOLE_SCRIPT, "check", "missing.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: missing.yaml: no such config file; no YAML file in .\n"


def package_lists():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return settings["packages"]["find"]["include"], settings["package-data"]


def test_the_wheel_has_every_package_folder():
    include, _ = package_lists()
    folders = {path.parent.as_posix().replace("/", ".") for path in FILES} | {"configs"}
    left_out = [name for name in folders if not any(fnmatchcase(name, pattern) for pattern in include)]
    assert left_out == []


def test_every_package_folder_says_what_it_is():
    for folder in {path.parent for path in FILES}:
        assert (ROOT / folder / "__init__.py").exists(), folder


def test_the_wheel_has_no_folder_that_only_starts_like_a_package():
    """`closecall demo` writes `closecall-demo/` into the checkout; a pattern `closecall*` would pack it."""
    include, _ = package_lists()
    for name in ("closecall-demo", "closecall-demo.vectors", "evaluation", "eval_old", "tests", "configs_old"):
        assert not any(fnmatchcase(name, pattern) for pattern in include), name


def test_the_wheel_has_every_config():
    _, data = package_lists()
    files = [path for path in (ROOT / "configs").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in files:
        assert any(path.relative_to(ROOT / "configs").match(pattern) for pattern in data["configs"]), path
        assert path.parent in (ROOT / "configs", ROOT / "configs" / "cluster"), "package-data covers no other folders"


def test_the_wheel_has_every_template():
    _, data = package_lists()
    templates = [path for package in PACKAGES for path in (ROOT / package).rglob("*.j2")]
    assert templates
    for path in templates:
        package, *folders = path.relative_to(ROOT).parent.parts
        patterns = [Path(pattern) for pattern in data[package]]
        assert any(path.match(pattern.name) and pattern.parent == Path(*folders) for pattern in patterns), path
