"""The pages are true: every command and example of the README runs as printed, every link leads somewhere, every
docstring example gives what it shows.

The README speaks of `uncased_L-12_H-768_A-12`; here that is a tiny random checkpoint in the same form.
"""

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / n for n in ("README.md", "BUILD.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
CHECKPOINT = "uncased_L-12_H-768_A-12"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines() if line.strip()]


README = commands(ROOT / "README.md")
RUNNABLE = [line for line in README if not line.startswith(("make ", "pip "))]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory as the README's reader has it: the examples and a checkpoint."""
    from keras_bert_lab import testing

    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder / "examples")
    config = testing.tiny_config(max_position_embeddings=128)
    testing.tiny_checkpoint(folder / CHECKPOINT, config=config)
    return folder


def run(command: list[str], place: Path) -> str:
    beside = Path(sys.executable).parent  # the environment of these tests: its python, its keras-bert-lab
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=place, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNNABLE)
def test_readme_command(place, line):
    """Each in turn; later ones use what earlier ones wrote, so run them all."""
    assert run(["bash", "-c", line], place).strip() or "predict" in line, "the command says nothing"


@pytest.mark.slow
def test_readme_python(place):
    """All Python of the README is one session."""
    code = "\n".join(blocks(ROOT / "README.md", "python"))
    (place / "session.py").write_text(code, "utf-8")
    said = run([sys.executable, "session.py"], place)
    assert "label" in said and "accuracy" in code


def test_five_commands_and_five_lines():
    tools = [line.split()[1] for line in README if line.startswith("keras-bert-lab ")]
    assert tools[:5] == ["convert", "train", "evaluate", "predict", "export"]
    first = [line for line in blocks(ROOT / "README.md", "python")[0].splitlines() if line.strip()]
    assert len(first) <= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    inline = re.findall(r"`make ([a-z -]+)", page.read_text("utf-8"))
    lines = [line.removeprefix("make ") for line in commands(page) if line.startswith("make ")]
    named = {word for said in inline + lines for word in said.split() if not word.startswith("-")}
    assert named <= targets


def test_extras_that_pages_name_exist():
    setup = (ROOT / "setup.py").read_text("utf-8")
    for page in PAGES:
        for extras in re.findall(r"pip install [^\n]*\[([a-z,]+)\]", page.read_text("utf-8")):
            assert all(f'"{extra}": [' in setup for extra in extras.split(",")), (page.name, extras)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_ci_runs_the_readme_command():
    assert "make test" in README
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)


MODULES = [f"keras_bert_lab.{p.stem}" for p in sorted((ROOT / "keras_bert_lab").glob("*.py")) if p.stem != "__init__"]
MODULES += [f"keras_bert_lab.heads.{p.stem}" for p in sorted((ROOT / "heads").glob("*.py")) if p.stem != "__init__"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(module, optionflags=options, verbose=False)
    assert not failed, "see the captured output"


def test_reviews_are_what_their_readme_says():
    seen: set[str] = set()
    said = dict(re.findall(r"`(\w+)\.tsv` \| (\d+)", (ROOT / "examples/reviews/README.md").read_text("utf-8")))
    assert set(said) == {"train", "dev", "test"}
    for name, rows in said.items():
        header, *lines = (ROOT / f"examples/reviews/{name}.tsv").read_text("utf-8").splitlines()
        assert header == "text\tlabel" and len(lines) == int(rows)
        texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
        assert labels.count("positive") == labels.count("negative") == len(lines) / 2
        assert not seen & {text.lower() for text in texts}, "a review is in two files"
        seen |= {text.lower() for text in texts}
    assert len(seen) == sum(map(int, said.values())), "a review is there twice"
