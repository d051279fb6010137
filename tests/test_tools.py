"""The five commands on real files, and what a user's mistakes look like."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_lab.testing import tiny_checkpoint

REVIEWS = Path(__file__).resolve().parent.parent / "examples" / "reviews"


def call(*arguments, cwd=None):
    command = [sys.executable, "-m", "keras_bert_lab.tools.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True,
                          text=True, cwd=cwd, check=False, env=os.environ | {"COLUMNS": "200"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    tiny_checkpoint(folder / "tiny_uncased")
    done = call("train", "--checkpoint=tiny_uncased", f"--train={REVIEWS}/train.tsv", f"--dev={REVIEWS}/dev.tsv",
                "--output=my-task", "--epochs=2", "--max_length=48", "--learning_rate=1e-3", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    folder.joinpath("train.out").write_text(done.stdout)
    return folder


def test_train_says_what_it_did(place):
    said = (place / "train.out").read_text()
    assert "accuracy" in said and "saved my-task" in said and "negative, positive" in said
    logged = [json.loads(line) for line in (place / "my-task" / "train" / "log.jsonl").read_text().splitlines()]
    assert any("learning_rate" in line for line in logged)


@pytest.mark.slow
def test_evaluate_predict_export_agree(place):
    done = call("evaluate", "--task=my-task", f"--data={REVIEWS}/test.tsv", "--json=scores.json", cwd=place)
    assert done.returncode == 0, done.stderr
    scores = json.loads((place / "scores.json").read_text())
    assert f"{scores['accuracy']:.4f}" in done.stdout

    done = call("predict", "--task=my-task", f"--data={REVIEWS}/test.tsv", "--output=answers.tsv", cwd=place)
    assert done.returncode == 0, done.stderr
    with open(place / "answers.tsv", encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file, delimiter="\t"))
    with open(REVIEWS / "test.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(answers) == len(rows)
    right = sum(a["label"] == r["label"] for a, r in zip(answers, rows, strict=True)) / len(rows)
    assert right == pytest.approx(scores["accuracy"])

    done = call("export", "--task=my-task", f"--data={REVIEWS}/test.tsv", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "largest difference" in done.stdout and (place / "my-task" / "export" / "proof.json").exists()


def test_predict_writes_json_lines_to_standard_output(place):
    (place / "two.tsv").write_text("text\ngood\nbad\n", "utf-8")
    done = call("predict", "--task=my-task", "--data=two.tsv", cwd=place)
    answers = [sorted(json.loads(line)) for line in done.stdout.splitlines()]
    assert answers == [["label", "probabilities", "probability"]] * 2


@pytest.mark.parametrize(("arguments", "status", "words"), [
    (["train", "--train=x.tsv"], 2, "--checkpoint is missing.*--output is missing"),
    (["train", "--colour=red"], 2, "colour"),
    (["predict", "--task=my-task", "--data=none.tsv"], 1, r"none\.tsv.*no such file"),
    (["predict", "--task=nowhere", "--data=two.tsv"], 1, r"nowhere.*artifact\.json"),
    (["train", "--checkpoint=tiny_uncased", "--train=x.tsv", "--output=my-task"], 1, "my-task.*--overwrite"),
    (["train", "--checkpoint=tiny_uncased", "--train=x.tsv", "--output=new", "--head=moods"], 1,
     "moods.*classification"),
    (["train", "--checkpoint=tiny_uncased", "--train=x.tsv", "--output=new", "--head_options={'a'}"], 1,
     "head_options.*not JSON"),
    (["export", "--task=my-task", "extra"], 2, "extra"),
])
def test_mistakes_are_one_line_and_no_traceback(place, arguments, status, words):
    import re

    done = call(*arguments, cwd=place)
    assert done.returncode == status, done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    if status == 1:
        assert len([line for line in done.stderr.splitlines() if line.startswith("keras-bert-lab")]) == 1
    assert not (place / "new").exists()


def test_predict_and_evaluate_say_what_was_cut(place):
    (place / "long.tsv").write_text("text\tlabel\n" + "a " * 100 + "\tpositive\nb\tnegative\n", "utf-8")
    for tool in ("predict", "evaluate"):
        done = call(tool, "--task=my-task", "--data=long.tsv", cwd=place)
        assert done.returncode == 0 and "1 of 2 rows were cut to 48 pieces; 54 pieces were left out" in done.stderr


def test_debug_shows_the_traceback(place):
    done = call("predict", "--task=nowhere", "--data=two.tsv", "--debug", cwd=place)
    assert done.returncode == 1 and "Traceback" in done.stderr
