"""Saved and loaded: the same answers in another process; whole or not at all."""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

from keras_bert_lab import Task, UserError, load, load_checkpoint
from keras_bert_lab.testing import tiny_checkpoint

TEXTS = ["Great food, kind people.", "", "Café Größe 中国", "word " * 200]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    tiny = tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    made = Task.from_checkpoint(tiny, max_length=32, labels=["no", "yes"], lower_case=False)
    made.fit((["good", "bad", "fine", "poor"] * 4, ["yes", "no"] * 8), epochs=1, batch_size=8, verbose=0)
    return made


@pytest.fixture(scope="module")
def saved(task, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "my-task"
    task.save(path)
    return path


def elsewhere(code, *arguments):
    """What another process prints as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_another_process_gives_the_same_answers(task, saved, tmp_path):
    moved = shutil.copytree(saved, tmp_path / "moved")
    code = ("import json, sys, keras_bert_lab as kbl\n"
            "task = kbl.load(sys.argv[1])\n"
            "print(json.dumps([task.predict(json.loads(sys.argv[2])), task.text.tokenizer.lower_case]))")
    answers, lower_case = elsewhere(code, moved, json.dumps(TEXTS))
    assert lower_case is False
    for one, other in zip(answers, task.predict(TEXTS), strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)


def test_what_is_stored(task, saved):
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", "artifact.json", "vocab.txt", "weights.safetensors"]
    assert (saved / "vocab.txt").read_bytes() == task.text.tokenizer.vocab_bytes
    record = json.loads((saved / "artifact.json").read_text())
    assert record["format_version"] == 1
    assert record["head"]["distribution"] == "keras_bert_lab" and record["head"]["options"]["labels"] == ["no", "yes"]
    provenance = record["provenance"]
    assert provenance["base_checkpoint"]["sha256"] and provenance["recipe"]["epochs"] == 1 and provenance["steps"] == 2
    assert "keras" in provenance["versions"]
    card = (saved / "README.md").read_text()
    assert "classification" in card and provenance["base_checkpoint"]["sha256"] in card


def test_saving_again_needs_leave_and_keeps_logs(task, saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / "again")
    with pytest.raises(UserError, match="overwrite"):
        task.save(path)
    (path / "train").mkdir()
    (path / "train" / "log.jsonl").write_text("{}")
    (path / "export").mkdir()
    task.save(path, overwrite=True)
    assert (path / "train" / "log.jsonl").exists() and not (path / "export").exists()
    (path / "thesis.doc").write_text("")
    with pytest.raises(UserError, match=r"thesis\.doc"):
        task.save(path, overwrite=True)


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda p: (p / "artifact.json").unlink(), r"no artifact\.json"),
    (lambda p: (p / "artifact.json").write_text("{"), "damaged"),
    (lambda p: edit(p, format_version=99), "version 99.*reads 1"),
    (lambda p: edit(p, head={"name": "mood", "options": {}, "distribution": "moods", "version": "2"}),
     "moods 2.*install moods"),
    (lambda p: (p / "weights.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}"), "weights"),
])
def test_a_damaged_artifact_is_named(saved, tmp_path, spoil, words):
    path = shutil.copytree(saved, tmp_path / "damaged")
    spoil(path)
    with pytest.raises(UserError, match=words):
        load(path)


def edit(path, **changes):
    record = json.loads((path / "artifact.json").read_text())
    (path / "artifact.json").write_text(json.dumps(record | changes))


def test_a_keras_file_needs_only_the_import(task, tmp_path):
    """CASES O19: both ways of saving, in another process."""
    task.model.save(tmp_path / "model.keras")
    task.model.save_weights(tmp_path / "model.weights.h5")
    x = {k: v.tolist() for k, v in task.text(["good food", "bad"]).pad(np.arange(2)).items()}
    right = task.model.predict({k: np.array(v, "int32") for k, v in x.items()}, verbose=0)["logits"]
    code = """
import json, sys
import keras_bert_lab
import keras, numpy as np
place, x = sys.argv[1], {k: np.array(v, "int32") for k, v in json.loads(sys.argv[2]).items()}
one = keras.saving.load_model(place + "/model.keras")
two = one.__class__.from_config(one.get_config())
two.load_weights(place + "/model.weights.h5")
print(json.dumps([[m.predict(x, verbose=0)["logits"].tolist() for m in (one, two)], len(one.variables)]))
"""
    (one, two), count = elsewhere(code, tmp_path, json.dumps(x))
    assert np.max(np.abs(np.array(one) - right)) <= 1e-6
    assert np.max(np.abs(np.array(two) - right)) <= 1e-6
    assert count == len(task.model.variables)


def test_weights_of_another_architecture_are_refused(task, tmp_path):
    task.model.save_weights(tmp_path / "two.weights.h5")
    wider = Task.from_checkpoint(tiny_checkpoint(tmp_path / "other"), max_length=32, labels=["a", "b", "c"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of every container that it gave up on, then raises
        with pytest.raises(ValueError, match=r"shape|could not be loaded"):
            wider.model.load_weights(tmp_path / "two.weights.h5")
    task.save(tmp_path / "two")
    with pytest.raises(UserError, match="2 labels against 3"):
        load_checkpoint(wider.model, tmp_path / "two")

