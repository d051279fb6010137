"""The architecture, executable: imports only ever point down the floors, and heads and tools stay outside the core.

The files are parsed, not imported, so that an import inside a function counts like one at the top.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "keras_bert_lab"

# A new module gets its floor here, and with it what it may import.
FLOORS = {
    0: {
        "answers",
        "bundles",
        "config",
        "conll",
        "errors",
        "files",
        "memory",
        "names",
        "sentences",
        "squad",
        "squad_scores",
        "tables",
        "tags",
        "windows",
        "wordpiece",
        "words",
    },
    1: {"crf", "encoder", "graph_text", "graph_windows", "inputs", "optimizer", "serving"},
    2: {"head", "losses", "pooling"},
    3: {"checkpoint", "locate", "parity", "pickles", "readers", "source", "writers"},
    4: {"artifact", "batching", "callbacks", "recipe", "task", "training"},
    5: {"export"},  # studies of a task: they never import each other
    6: {"testing"},
}
FLOOR = {module: floor for floor, modules in FLOORS.items() for module in modules}
STUDIES = 5
# One-line doors for those who write Python: task.save, task.export. Inside the function, never on top.
DOORS = {("task", "artifact"), ("task", "export")}

# What a floor may import from outside, besides the standard library and what the floors below may.
OUTSIDE = {
    0: {"numpy"},
    1: {"tensorflow", "keras"},
    3: {"safetensors", "h5py", "keras_hub", "keras_nlp"},
    5: {"tf2onnx"},
}
ONLY_IN = {
    "tensorflow_text": {"graph_text"},  # no wheels on some platforms: one door, so that one message suffices
    "h5py": {"inputs"},  # besides floor 3 and above: comes with Keras
}
HEADS_MAY = {"numpy", "tensorflow", "keras"}
TOOLS_MAY = {"numpy", "absl"}


def walk(tree: ast.AST, typing: bool):
    """Every node; without ``typing``, not those below ``if TYPE_CHECKING:``, which never run."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if typing or not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield from walk(child, typing)


def imports(path: Path, package: str, typing: bool = True) -> set[str]:
    """The absolute dotted names that a file imports anywhere in it; ``package`` resolves its relative imports."""
    found = set()
    for node in walk(ast.parse(path.read_text("utf-8")), typing):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from . import errors` imports the module errors; `from .errors import UserError` imports .errors
            found |= {f"{base}.{a.name}" for a in node.names} if base == "keras_bert_lab" else {base}
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value))
    return found


def ours(names: set[str]) -> set[str]:
    """The core modules (or `heads`, `tools`) among absolute names."""
    return {n.split(".")[1] for n in names if n.startswith("keras_bert_lab.")}


def outside(names: set[str]) -> set[str]:
    """Third-party top-level packages among absolute names."""
    return {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - {"keras_bert_lab", "__future__"}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.stem != "__init__")


def names(folder: Path) -> list[str]:
    return [path.stem for path in modules(folder)]


def test_every_core_module_has_a_floor():
    assert set(names(CORE)) <= set(FLOOR), "give the new module its floor in FLOORS above"


@pytest.mark.parametrize("name", names(CORE))
def test_core_imports_point_down(name):
    found, floor = imports(CORE / f"{name}.py", "keras_bert_lab"), FLOOR[name]
    assert not ours(found) & {"heads", "tools"}, "the core finds heads through entry points and knows no tools"
    public = ours(found) - set(FLOOR)
    assert not public, f"import it from its module, not from the package: {public}"
    up = {module: FLOOR[module] for module in ours(found) if FLOOR[module] > floor and (name, module) not in DOORS}
    assert not up, f"{name} is on floor {floor} and imports from above: {up}"
    if floor == STUDIES:
        assert not ours(found) & FLOORS[STUDIES], "studies never import each other"


@pytest.mark.parametrize("name", names(CORE))
def test_core_imports_from_outside(name):
    may = set().union(*(packages for floor, packages in OUTSIDE.items() if floor <= FLOOR[name]))
    may |= {package for package, doors in ONLY_IN.items() if name in doors}
    assert outside(imports(CORE / f"{name}.py", "keras_bert_lab")) <= may


def test_core_has_no_import_cycle():
    graph = {name: ours(imports(CORE / f"{name}.py", "keras_bert_lab", typing=False)) for name in names(CORE)}
    graph = {name: {other for other in needs if (name, other) not in DOORS} for name, needs in graph.items()}
    while graph:
        leaves = {name for name, needs in graph.items() if not needs & set(graph)}
        assert leaves, f"a cycle among {sorted(graph)}"
        graph = {name: needs for name, needs in graph.items() if name not in leaves}


def test_doors_open_inside_functions():
    for name, module in DOORS:
        tree = ast.parse((CORE / f"{name}.py").read_text("utf-8"))
        top = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
        assert module not in top, f"{name} needs {module} only inside a method"


@pytest.mark.parametrize("name", names(ROOT / "heads"))
def test_heads_stand_on_floors_0_to_2_and_alone(name):
    found = imports(ROOT / "heads" / f"{name}.py", "keras_bert_lab.heads")
    high = {module for module in ours(found) if FLOOR.get(module, 9) > 2}
    assert not high, f"a head may import floors 0 to 2 and no head, not {high}"
    assert outside(found) <= HEADS_MAY


@pytest.mark.parametrize("name", names(ROOT / "tools"))
def test_tools_are_thin(name):
    found = imports(ROOT / "tools" / f"{name}.py", "keras_bert_lab.tools")
    siblings = {n for n in found if n.startswith("keras_bert_lab.tools.")} - {"keras_bert_lab.tools._flags"}
    assert not siblings, "tools share _flags and nothing else"
    assert "heads" not in ours(found), "tools find heads by name"
    assert outside(found) <= TOOLS_MAY, "what a tool needs, the core does"
    assert name not in sys.stdlib_module_names, "shadows a standard module when a tool is run as a file"


def test_inits_hold_nothing_heavy():
    for folder in ("heads", "tools"):
        tree = ast.parse((ROOT / folder / "__init__.py").read_text("utf-8"))
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    top = ast.parse((CORE / "__init__.py").read_text("utf-8"))
    first = {a.name.split(".")[0] for n in top.body if isinstance(n, ast.Import) for a in n.names}
    assert first <= set(sys.stdlib_module_names)


def test_the_checker_sees(tmp_path):
    """The tests above are only worth something if a breach is seen wherever it is written."""
    file = tmp_path / "bad.py"
    file.write_text(
        "from .task import Task\nfrom . import export\ndef f():\n    import keras_bert_lab.heads.ner\n"
        "    import tensorflow_text as text\n    import_module('keras_bert_lab.tools.train')\n"
    )
    found = imports(file, "keras_bert_lab")
    assert ours(found) == {"task", "export", "heads", "tools"}
    assert outside(found) == {"tensorflow_text"}
    file.write_text("from ..head import Head\nfrom .ner import Ner\n")
    assert imports(file, "keras_bert_lab.heads") == {"keras_bert_lab.head", "keras_bert_lab.heads.ner"}


def test_no_module_is_two():
    long = {p.name: n for p in modules(CORE) if (n := p.read_text("utf-8").count("\n")) > 800}
    assert not long, f"look for the second question in {long}"


# Nothing in the project may depend on one person's machine. (Each pattern is written so as not to find itself.)
PRIVATE = re.compile(
    r"(?<![\w.~>/:])[/](work|root|home|Users|mnt|opt|scratch)/(?!somebody)\w|(?<![\w.])[/]tmp/(?!bert)\w|[p]ypi\.(org|io)|[f]iles\.pythonhosted"
)


def test_files_name_no_private_place():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = {}
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".tsv", ".cfg", ".json", ""} and path.is_file():
            for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
                if match := PRIVATE.search(line):
                    found[f"{name}:{number}"] = match[0]
    assert not found
