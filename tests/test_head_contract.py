"""Every head passes the same contract: ours, a stranger's; and the contract notices a head that breaks it."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab.head import Example, available_heads, load_head
from keras_bert_lab.testing import check_head, tiny_checkpoint, tiny_task

STRANGER = Path(__file__).resolve().parent / "stranger"
# keras reads variables through an __array__ without the `copy` that NumPy 2 asks for
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

LABELLED = [
    Example(text, gold=gold)
    for text, gold in [
        ("good film", "pos"),
        ("a bad, bad day!", "neg"),
        ("the staff was fine", "pos"),
        ("不好 book x", "zh"),
        ("never", "neg"),
    ]
]
PAIRS = [dataclasses.replace(e, pair=f"is it {e.gold}") for e in LABELLED]


@pytest.mark.parametrize(
    ("options", "examples"),
    [
        ({}, LABELLED),
        ({"pooling": "attention", "class_weights": "balanced", "label_smoothing": 0.1}, PAIRS),
        ({"pooling": "max", "bilstm": 4, "dropout": 0.3}, LABELLED),
        ({"pooling": "last_cls:2", "focal_gamma": 2.0}, PAIRS),
    ],
)
def test_classification(options, examples):
    print(check_head("classification", examples, options=options))


@pytest.mark.parametrize(
    ("options", "examples"),
    [
        ({}, LABELLED),
        ({"pooling": "mean", "positive_weights": "balanced", "focal_gamma": 2.0, "threshold": "shared"}, PAIRS),
    ],
)
def test_multi_label(options, examples):
    golds = (["pos"], ["neg", "sad"], [], ["zh", "pos"], ["neg"])
    print(check_head("multi_label", [dataclasses.replace(e, gold=g) for e, g in zip(examples, golds, strict=True)],
                     options=options))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "examples", "golds"),
    [
        ({}, LABELLED, (5, 1.5, 4, "3", 1)),
        ({"pooling": "attention", "label_columns": ["joy", "fear"]}, PAIRS, [(1, 2), (0, 5), (3, 1), (2, 2), (0, 4)]),
    ],
)
def test_regression(options, examples, golds):
    print(check_head("regression", [dataclasses.replace(e, gold=g) for e, g in zip(examples, golds, strict=True)],
                     options=options))  # fmt: skip


def test_the_head_in_the_docs_passes(monkeypatch):
    page = Path(__file__).resolve().parent.parent / "docs" / "heads.md"
    source = re.search(r"```python\n(# bert_length.*?)```", page.read_text(encoding="utf-8"), re.S)[1]
    module = types.ModuleType("bert_length")
    monkeypatch.setitem(sys.modules, "bert_length", module)
    exec(source, module.__dict__)
    examples = [Example(text, gold=gold) for text, gold in (("a b", 2.0), ("a", 1.0), ("a b c", 3.0))]
    print(check_head(module.Length(), examples))


def test_every_built_in_head_is_checked():
    ours = {name for name, point in available_heads().items() if point.value.startswith("keras_bert_lab.")}
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {name for name in ours if f'check_head("{name}"' not in tests} == set()


# ---- heads that break a clause -----------------------------------------------------------------------------------

Classification = load_head("classification")


def broken(**methods):
    cls = type("Broken", (Classification,), methods)
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)()


def reversed_answers(self, examples, windows, logits):
    return Classification.decode(self, examples, windows, logits)[::-1]


def sees_padding(self, encoded):
    outputs = Classification.outputs(self, encoded)
    return {"logits": outputs["logits"] + keras.ops.mean(encoded.sequence, axis=1)[:, :1]}


def unnamed(self, encoded):
    return {"logits": keras.layers.Dense(3, dtype="float32")(encoded.pooled)}


def sees_gold(self, examples, windows, logits):
    answers = Classification.decode(self, examples, windows, logits)
    return [
        {**answer, "label": example.gold or answer["label"]} for answer, example in zip(answers, examples, strict=True)
    ]


def wrong_weights(self, examples, text):
    features = Classification.features(self, examples, text)
    return dataclasses.replace(features, w={"logits": np.ones_like(features.w["logits"])})


def flat_target(self, logits, chosen=None):
    return tf.zeros_like(logits["logits"][:, 0]) * logits["logits"][:, 0]


def other_graph(self, logits):
    return {**Classification.answers(self, logits), "probabilities": tf.nn.softmax(2 * logits["logits"])}


def of_numpy(self, examples, windows, logits):
    return [{"label": np.int64(1)} for _ in examples]


@pytest.mark.parametrize(
    ("methods", "clause"),
    [
        ({"decode": reversed_answers}, "answered alone as among others"),
        ({"decode": sees_gold}, "answers do not depend on gold"),
        ({"decode": of_numpy}, "answers are JSON"),
        ({"outputs": sees_padding}, "padding changes no logits"),
        ({"outputs": unnamed}, "same paths in every model"),
    ({"features": wrong_weights}, "the target -100 has weight 0"),
        ({"target": flat_target}, "gradient of target is not 0"),
        ({"answers": other_graph}, "equals decode"),
        ({"score": lambda self, examples, answers: {"accuracy": float("nan")}}, "scores are finite"),
        ({"score": lambda self, examples, answers: {"other": 1.0}}, "score has main_metric"),
        ({"losses": lambda self: {"label": Classification.losses(self)["logits"]}}, "the same keys"),
        ({"fit": lambda self, examples: self}, "after fit the head is fitted"),
    ],
)
def test_a_broken_head_is_noticed(methods, clause):
    with pytest.raises(AssertionError, match=clause):
        check_head(broken(**methods), LABELLED, steps=3)


def test_too_few_examples_are_refused():
    with pytest.raises(AssertionError, match="three examples"):
        check_head("classification", LABELLED[:2])


# ---- tiny things -------------------------------------------------------------------------------------------------


def test_tiny_checkpoint_has_the_originals_names_and_shapes(tmp_path):
    path = tiny_checkpoint(tmp_path / "tiny")
    shapes = dict(tf.train.list_variables(str(path / "bert_model.ckpt")))
    assert len(shapes) == 14 + 16 * 2 + 1  # 46 tensors and the step
    assert shapes["bert/encoder/layer_1/output/dense/kernel"] == [64, 32]
    assert shapes["cls/seq_relationship/output_weights"] == [2, 32]
    again = tiny_checkpoint(tmp_path / "again")
    reader, other = (tf.train.load_checkpoint(str(p / "bert_model.ckpt")) for p in (path, again))
    assert all(np.array_equal(reader.get_tensor(n), other.get_tensor(n)) for n in shapes)
    assert json.loads((path / "bert_config.json").read_text())["hidden_size"] == 32


def test_tiny_task_answers(tmp_path):
    task = tiny_task(labels=["no", "yes"], pooling="mean", directory=tmp_path / "tiny")
    assert [answer["label"] in ("no", "yes") for answer in task.predict(["good", ""])] == [True, True]


# ---- a stranger --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A virtual environment of its own in which the stranger's distribution is installed; its folder and its Python.

    The running environment is seen through a .pth file, so that nothing is fetched. (--system-site-packages would show
    the Python below the running environment, not the environment.)
    """
    folder = tmp_path_factory.mktemp("stranger")
    source, place = folder / "source", folder / "venv"
    shutil.copytree(STRANGER, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    installer = ["--without-pip"] if importlib.util.find_spec("pip") else []  # the running environment's serves
    subprocess.run([sys.executable, "-m", "venv", *installer, str(place)], check=True)
    its_python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    its_site = subprocess.run([its_python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} | set(site.getsitepackages())
    # addsitedir, not a bare path: it follows the .pth files there, and with them an editable install
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(ours)]
    Path(its_site, "running_environment.pth").write_text("".join(lines))
    # without setuptools here pip fetches it for the build
    local = ["--no-build-isolation", "--no-index"] if importlib.util.find_spec("setuptools") else []
    command = [its_python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", *local, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(its_site, "bert_keywords.py").is_file() and importlib.util.find_spec("bert_keywords") is None
    return folder, its_python


def python(stranger, *arguments):
    folder, its_python = stranger
    return subprocess.run(
        [its_python, *map(str, arguments)],
        env=os.environ | {"COLUMNS": "200"}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


CHECK = """
from keras_bert_lab.head import Example, head_info
from keras_bert_lab.testing import check_head
texts = [("good film", ["film"]), ("a bad, bad day!", ["bad", "day"]), ("the staff was fine", ["staff"]), ("never", [])]
print(check_head("keywords", [Example(text, gold=gold) for text, gold in texts]))
print(head_info("keywords"))
"""


def test_a_strangers_head_passes_the_contract(stranger):
    done = python(stranger, "-c", CHECK)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "{'name': 'keywords', 'distribution': 'bert-keywords', 'version': '1.2.3'}" in done.stdout


@pytest.mark.slow
def test_a_strangers_head_through_the_same_tools(stranger):
    folder, _ = stranger
    words = ["film", "book", "food", "day", "staff", "room"]
    rows = [
        {"text": f"the {a} was {q} and the {b} too", "keywords": sorted({a, b})}
        for a in words
        for b in words
        for q in ("good", "bad")
    ]
    data, plain = folder / "keywords.jsonl", folder / "texts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain.write_text(
        "".join(
            json.dumps({"text": t}) + "\n"
            for t in ("the book was bad and the room too", "", "the day was good and the day too")
        )
    )
    tiny_checkpoint(folder / "tiny")
    tool = ("-m", "keras_bert_lab.tools.main")
    done = python(
        stranger,
        *tool,
        "train",
        "--checkpoint=tiny",
        f"--train={data}",
        f"--dev={data}",
        "--output=task",
        "--head=keywords",
        '--head_options={"min_probability": 0.4}',
        "--epochs=6",
        "--batch_size=8",
        "--learning_rate=3e-3",
        "--max_length=32",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    done = python(stranger, *tool, "evaluate", "--task=task", f"--data={data}", "--json=scores.json")
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads((folder / "scores.json").read_text())
    print(scores)
    assert scores["f1"] > 0.9 and scores["count_error"] < 0.7
    done = python(stranger, *tool, "predict", "--task=task", f"--data={plain}", "--output=answers.jsonl")
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 3 and answers[0]["keywords"] == ["book", "room"]
    assert answers[1]["keywords"] == [] and answers[2]["keywords"] == ["day"]
    done = python(stranger, *tool, "export", "--task=task")
    assert done.returncode == 0, done.stderr[-3000:]
    proofs = list((folder / "task" / "export").rglob("proof.json"))
    assert proofs, done.stdout
    said = json.loads((folder / "task" / "artifact.json").read_text())["head"]
    assert (said["name"], said["distribution"], said["version"]) == ("keywords", "bert-keywords", "1.2.3")
    assert said["options"]["min_probability"] == 0.4 and said["options"]["mean_count"] > 1
    # without the stranger's distribution the artifact says what it lacks
    done = subprocess.run(
        [sys.executable, *tool, "predict", "--task=task", f"--data={plain}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "'keywords': is not installed" in done.stderr.splitlines()[-1]
    assert "bert-keywords" in done.stderr.splitlines()[-1]
