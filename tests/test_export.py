"""A SavedModel that takes strings: equal to the task, complete, and free of this package (CASES O20)."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from keras_bert_lab import Task, UserError, export
from keras_bert_lab.testing import tiny_checkpoint

TEXTS = ["good food", "", "naïve café \U0001f600"]


def make(folder, **options):
    task = Task.from_checkpoint(tiny_checkpoint(folder), max_length=32, labels=["no", "yes"], **options)
    for weight in task.model.trainable_variables:  # far from the small numbers that hide differences
        if weight.path.startswith("classifier/kernel"):
            weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    return task


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def exported(task, tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "export"
    task.export(path, texts=TEXTS)
    return shutil.move(path, path.with_name("moved"))


def serve(folder, name, signature, feed, text):
    """The answers of a process that knows TensorFlow only (and tensorflow_text where ``text``)."""
    code = f"""
import json, sys
import numpy as np, tensorflow as tf
{"import tensorflow_text" if text else ""}
model = tf.saved_model.load(sys.argv[1])
feed = {{k: tf.constant(v, {"tf.string" if text else "tf.int32"}) for k, v in json.loads(sys.argv[2]).items()}}
out = model.signatures["{signature}"](**feed)
assert "keras_bert_lab" not in sys.modules and ({text} or "tensorflow_text" not in sys.modules)
plain = lambda v: [x.decode() for x in v] if v.dtype == object else v.tolist()
print(json.dumps({{k: plain(v.numpy()) for k, v in out.items()}}))
"""
    command = [sys.executable, "-c", code, str(folder / name), json.dumps(feed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_strings_in_answers_out(task, exported, rows):
    got = serve(exported, "saved_model", "serving_default", {"text": TEXTS[:rows]}, text=True)
    right = task.predict(TEXTS[:rows])
    assert got["label"] == [answer["label"] for answer in right]
    found = np.array(got["probabilities"]).reshape(rows, 2)
    expected = np.array([list(a["probabilities"].values()) for a in right]).reshape(rows, 2)
    assert np.max(np.abs(found - expected), initial=0) <= 1e-5


def test_ids_in_answers_out_without_tensorflow_text(task, exported):
    x = {k: v.tolist() for k, v in task.text(TEXTS).pad(np.arange(3)).items()}
    got = serve(exported, "saved_model_ids", "ids", x, text=False)
    right = [list(answer["probabilities"].values()) for answer in task.predict(TEXTS)]
    assert np.max(np.abs(np.array(got["probabilities"]) - right)) <= 1e-5


def test_ids_outside_the_table_are_refused(task, exported):
    bad = {"input_ids": [[2, 10**6]], "attention_mask": [[1, 1]], "token_type_ids": [[0, 0]]}
    with pytest.raises(AssertionError, match="input_ids must be less than"):
        serve(exported, "saved_model_ids", "ids", bad, text=False)


def test_the_proof_and_the_recipe_lie_beside(task, exported):
    proof = json.loads((exported / "proof.json").read_text())
    assert proof["rows"] == len(TEXTS) + len(export.NASTY) and proof["batches"][:3] == [0, 1, 3]
    assert all(gap <= 1e-5 for gap in proof["differences"].values())
    assert {"text:label", "text:probabilities", "ids:label", "ids:probabilities"} == set(proof["differences"])
    assert len(proof["text_ops"]) == 1 and "Wordpiece" in proof["text_ops"][0]
    readme = (exported / "README.md").read_text()
    assert 'tf.saved_model.load("saved_model")' in readme and proof["text_ops"][0] in readme


def test_the_weights_are_on_disk_once(exported):
    one, other = (next((exported / name / "variables").glob("*.data*")) for name in ("saved_model", "saved_model_ids"))
    assert one.samefile(other)


def test_a_failed_proof_leaves_nothing(task, tmp_path, monkeypatch):
    honest = export.expected

    def other(task, columns):
        return {k: v + 1e-3 if v.dtype.kind == "f" else v for k, v in honest(task, columns).items()}

    monkeypatch.setattr(export, "expected", other)
    with pytest.raises(UserError, match="text:probabilities.*differs"):
        task.export(tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_what_may_differ():
    labels = np.array([b"no", b"yes"] * 50, object)
    right = [{"p": np.linspace(0, 1, 60, dtype="f"), "label": labels[:60]}]
    right.append({"p": np.zeros(40, "f"), "label": labels[60:]})

    def said(gap=0.0, flips=0):
        other = labels.copy()
        other[58 : 58 + flips] = b"maybe"  # in both batches
        return [{"p": right[0]["p"] + gap, "label": other[:60]}, {"p": right[1]["p"], "label": other[60:]}]

    def compare(given, *options):
        return export.compare({"ids": given}, {"ids": right}, *options)

    assert compare(said(), 1e-5) == {"ids:p": 0, "ids:label": 0}
    assert 0.009 < compare(said(0.01), 2e-2)["ids:p"] < 0.011
    with pytest.raises(UserError, match="ids:p: differs from the task by 0.01"):
        compare(said(0.01), 5e-3)
    with pytest.raises(UserError, match="ids:label: 1 of 100 values differ"):  # in float32 there are no ties
        compare(said(flips=1), 1e-5)
    assert compare(said(flips=2), 1e-5, 0.02)["ids:label"] == 2
    with pytest.raises(UserError, match=r"3 of 100 values differ from the task's \(allowed 2\)"):
        compare(said(flips=3), 1e-5, 0.02)
    for wrong in (np.nan, np.inf):
        with pytest.raises(UserError, match="differs from the task"):
            compare(said(wrong), 1.0, 1.0)
    given = said()
    del given[1]["p"]
    with pytest.raises(UserError, match="batch 1 has shape None"):
        compare(given, 1.0)


@pytest.mark.slow
def test_half_precision_is_proved_too(tmp_path):
    task = make(tmp_path / "tiny", precision="mixed_bfloat16")
    proof = task.export(tmp_path / "export", texts=TEXTS)
    assert proof["tolerance"] == export.TOLERANCE["mixed_bfloat16"]
    assert 0 < proof["differences"]["ids:probabilities"] <= proof["tolerance"]


def test_pairs(tmp_path):
    task = make(tmp_path / "tiny", pair_column="pair")
    proof = task.export(tmp_path / "export", texts=[("is it good?", "yes, very"), ("a", "")])
    assert max(proof["differences"].values()) <= 1e-5
    got = serve(tmp_path / "export", "saved_model", "serving_default", {"text": ["a b"], "pair": ["c d"]}, text=True)
    assert got["label"] == [task.predict([("a b", "c d")])[0]["label"]]


def test_bad_requests(task, tmp_path):
    with pytest.raises(UserError, match="format.*tensorrt.*saved_model"):
        task.export(tmp_path / "export", "tensorrt")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(UserError, match="not empty"):
        task.export(tmp_path / "full")
