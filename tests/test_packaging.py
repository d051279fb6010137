"""What is installed: the wheel's contents, entry points, public names, and a command line that answers at once."""

import ast
import configparser
import importlib
import importlib.util
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import keras_bert_lab

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"keras_bert_lab": "keras_bert_lab", "keras_bert_lab/heads": "heads", "keras_bert_lab/tools": "tools"}
SECONDS = 0.3  # of CPU time: what a command line may take before it feels slow
TOOLS = sorted(p.stem for p in (ROOT / "tools").glob("*.py") if not p.stem.startswith("_") and p.stem != "main")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no stale build/ takes part and none is left behind."""
    if importlib.util.find_spec("setuptools") is None:  # not imported: it quarrels with a distutils that is there
        pytest.skip("setuptools is not here; the extra `test` installs it")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in PACKAGES.values():
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, tree]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    (found,) = [n for n in wheel.namelist() if n.endswith(f".dist-info/{name}")]
    return wheel.read(found).decode()


def test_wheel_is_the_tree(wheel):
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    tree = {
        f"{package}/{path.name}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).iterdir()
        if path.is_file() and path.suffix != ".pyc"
    }
    assert shipped == tree


def test_nothing_else_at_top_level(wheel):
    assert dist_info(wheel, "top_level.txt").split() == ["keras_bert_lab"]
    assert {n.split("/")[0] for n in wheel.namelist() if ".dist-info/" not in n} == {"keras_bert_lab"}


def test_licence_and_readme_travel(wheel):
    assert any(n.endswith("LICENSE") for n in wheel.namelist())
    metadata = dist_info(wheel, "METADATA")
    assert "Apache-2.0" in metadata
    assert (ROOT / "README.md").read_text("utf-8").splitlines()[0] in metadata


def entry_points(wheel: zipfile.ZipFile) -> configparser.ConfigParser:
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str
    points.read_string(dist_info(wheel, "entry_points.txt"))
    return points


def test_entry_points_are_the_files(wheel):
    points = entry_points(wheel)
    heads = dict(points["keras_bert_lab.heads"])
    files = {p.stem for p in (ROOT / "heads").glob("*.py") if not p.stem.startswith("_")}
    assert {value.split(":")[0] for value in heads.values()} == {f"keras_bert_lab.heads.{f}" for f in files}
    for value in (*heads.values(), *points["console_scripts"].values()):
        module, _, attribute = value.partition(":")
        tree = ast.parse((ROOT / (module.replace("keras_bert_lab.", "").replace(".", "/") + ".py")).read_text("utf-8"))
        assert attribute in {getattr(node, "name", None) for node in tree.body}, value


def test_installed_entry_points_are_those_of_setup(wheel):
    """An editable install whose egg-info is older than setup.py would hide a new head."""
    installed = importlib.metadata.entry_points(group="keras_bert_lab.heads")
    named = {"keras_bert_lab", "keras-bert-lab"}  # older setuptools write the second
    ours = {point.name: point.value for point in installed if point.dist and point.dist.name in named}
    assert ours == dict(entry_points(wheel)["keras_bert_lab.heads"]), "install again: pip install -e ."


def test_version_is_said_once(wheel):
    assert f"Version: {keras_bert_lab.__version__}\n" in dist_info(wheel, "METADATA")
    assert f"## {keras_bert_lab.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_public_names_are_there():
    assert keras_bert_lab.__all__ == sorted(set(keras_bert_lab.__all__))
    for name in keras_bert_lab.__all__:
        value = getattr(keras_bert_lab, name)
        assert value.__module__.startswith("keras_bert_lab."), name
        assert value.__doc__, f"{name} has no docstring"
    assert set(keras_bert_lab.__all__) <= set(dir(keras_bert_lab))
    importlib.import_module("keras_bert_lab.encoder")  # a module of the same name must not take the function's place
    assert callable(keras_bert_lab.encoder)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = keras_bert_lab.no_such_name


@pytest.mark.parametrize(
    "name", sorted(p.stem for p in (ROOT / "keras_bert_lab").glob("*.py") if p.stem != "__init__")
)
def test_modules_say_what_they_are_and_all_is_true(name):
    module = importlib.import_module(f"keras_bert_lab.{name}")
    assert module.__doc__ and module.__doc__.strip()
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


# -- without TensorFlow, and fast --------------------------------------------------------------------------------

FLOOR_0 = ("config", "errors", "files", "names", "tables", "windows", "wordpiece")
HEAVY = ("tensorflow", "keras", "keras_hub", "tensorflow_text", "tf2onnx")


def cpu_seconds(*arguments: str) -> float:
    """The least CPU time (user and system) of five runs: load on the machine adds to the wall clock, hardly to this."""
    least = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return least


def imported(*arguments: str) -> set[str]:
    """Top-level packages that a Python process imports."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    lines = [line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "sys" in lines or "site" in lines
    return {line.split(".")[0] for line in lines}


def test_import_is_light():
    assert not imported("-c", "import keras_bert_lab") & {*HEAVY, "numpy"}
    seconds = cpu_seconds("-c", "import keras_bert_lab")
    print(f"import keras_bert_lab: {seconds:.3f} s of CPU time, the interpreter's start included")
    assert seconds < SECONDS


def test_floor_0_needs_no_tensorflow():
    modules = "; ".join(f"import keras_bert_lab.{name}" for name in FLOOR_0)
    assert not imported("-c", modules) & set(HEAVY)


def test_help_is_fast():
    command = ("-m", "keras_bert_lab.tools.main", "--help")
    assert not imported(*command) & {*HEAVY, "numpy"}
    seconds = cpu_seconds(*command)
    print(f"keras-bert-lab --help: {seconds:.3f} s of CPU time")
    assert seconds < SECONDS


@pytest.mark.parametrize("tool", TOOLS)
def test_help_of_every_tool(tool):
    command = ("-m", "keras_bert_lab.tools.main", tool, "--help")
    assert not imported(*command) & set(HEAVY)
    said = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    text = said.stdout + said.stderr
    assert "flags:" in text and "--[no]debug" in text
    first = (ast.get_docstring(ast.parse((ROOT / "tools" / f"{tool}.py").read_text("utf-8"))) or "?").splitlines()[0]
    assert first in text
    assert f"keras-bert-lab {tool}" in text, "the docstring shows no example"
