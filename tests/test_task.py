"""A task from a tiny checkpoint: trained, asked, scored; the same answers by every route."""

import csv
import itertools
import random

import keras
import numpy as np
import pytest

from keras_bert_lab import Task, UserError
from keras_bert_lab.head import Example
from keras_bert_lab.testing import tiny_checkpoint

GOOD = ["a lovely warm film", "great food and kind people", "I love this phone", "works well, would buy again",
        "superb"]
BAD = ["a dull cold film", "awful food and rude people", "I hate this phone", "broke at once, never again", "dreadful"]
TAILS = ["", "really", "in my opinion", "!", "for what it is worth, honestly"]
ROWS = [(f"{text} {tail}".strip(), label) for texts, label in ((GOOD, "good"), (BAD, "bad"))
        for text, tail in itertools.product(texts, TAILS)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "train.tsv", ROWS)


def write(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE)
        table.writerows([("text", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def trained(checkpoint, file):
    task = Task.from_checkpoint(checkpoint, max_length=32)
    task.history = task.fit(file, dev=file, epochs=12, batch_size=16, learning_rate=3e-3, verbose=0)
    return task


def test_it_learns(trained):
    assert trained.history["loss"][-1] < 0.5 * trained.history["loss"][0]
    assert trained.scores["accuracy"] > 0.9
    assert trained.head.labels == ("bad", "good")


def test_the_kept_weights_are_those_of_the_best_epoch(trained, file):
    assert trained.evaluate(file)["accuracy"] == max(trained.history["dev_accuracy"]) == trained.scores["accuracy"]


def test_same_seed_same_weights(checkpoint, file):
    def weights(seed):
        task = Task.from_checkpoint(checkpoint, max_length=32)
        task.fit(file, epochs=1, batch_size=16, seed=seed, verbose=0)
        return [w.numpy() for w in task.model.trainable_variables]

    one, same, other = weights(1), weights(1), weights(2)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_answer_depends_on_its_own_text_only(trained):
    texts = [text for text, _ in ROWS] + ["", "word " * 300, "中国 naïve café", "\u200b", "[SEP]"]
    order = random.Random(0).sample(range(len(texts)), len(texts))
    together = trained.predict([texts[i] for i in order])
    assert len(together) == len(texts)
    alone = [trained.predict([texts[i]])[0] for i in order[:12]]
    for one, other in zip(together, alone, strict=False):
        assert one["label"] == other["label"]
        assert one["probabilities"]["good"] == pytest.approx(other["probabilities"]["good"], abs=1e-5)


def test_rows_in_are_rows_out_in_order_from_file_and_from_python(trained, tmp_path):
    rows = [(text, "") for text, _ in ROWS] + [("", ""), ("superb", "")]
    from_file = trained.predict(write(tmp_path / "plain.tsv", rows))
    assert from_file == trained.predict([text for text, _ in rows])
    assert len(from_file) == len(rows)


def test_a_stream_is_not_read_ahead(trained):
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield "superb"

    assert len(list(itertools.islice(trained.stream(endless()), 5000))) == 5000
    assert read <= 3 * 4096


def test_labels_keep_their_order_whatever_the_order_of_rows(checkpoint, trained, tmp_path):
    shuffled = random.Random(3).sample(ROWS, len(ROWS))
    files = write(tmp_path / "shuffled.tsv", shuffled), write(tmp_path / "same.tsv", ROWS)
    assert trained.evaluate(files[0]) == trained.evaluate(files[1])
    texts, labels = ([row[k] for row in ROWS] for k in (0, 1))
    assert trained.evaluate((texts, labels))["accuracy"] == trained.scores["accuracy"]


def test_what_is_cut_is_reported_once(checkpoint, capsys):
    """CASES O11: 100 pieces in a row of 64 keep 62 and lose 38."""
    task = Task.from_checkpoint(checkpoint, max_length=64, labels=["bad", "good"])
    task.predict(["a " * 100, "a " * 62, "a"])
    assert task.text.report() == "1 of 3 rows were cut to 64 pieces; 38 pieces were left out"
    assert task.text.report() == ""
    task.fit((["a " * 100, "a"], ["good", "bad"]), epochs=1, dev_fraction=0)
    said = "1 of 2 rows were cut to 64 pieces; 38 pieces were left out; a larger max_length keeps more"
    assert said in capsys.readouterr().out


def test_frozen_encoder_stays_bit_identical(checkpoint, file):
    task = Task.from_checkpoint(checkpoint, max_length=32, labels=["bad", "good"])
    before = {v.path: v.numpy() for v in task.model.variables}
    task.fit(file, epochs=1, batch_size=16, freeze="encoder", learning_rate=1e-2, verbose=0)
    old = [v for v in task.model.variables if v.path in before]
    changed = {v.path for v in old if not np.array_equal(before[v.path], v.numpy())}
    assert {p for p in changed if p.startswith(("embeddings/", "encoder/"))} == set()
    assert "classifier/kernel" in changed


def test_plain_keras_works(checkpoint, file):
    task = Task.from_checkpoint(checkpoint, max_length=32)
    data = task.dataset(file, batch_size=16, shuffle=True, seed=1)
    task.model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=task.head.losses())
    history = task.model.fit(data, epochs=10, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]


def test_without_dev_data_a_stratified_part_is_held_out(checkpoint, file):
    task = Task.from_checkpoint(checkpoint, max_length=32)
    history = task.fit(file, epochs=1, batch_size=16, dev_fraction=0.2, verbose=0)
    assert task.provenance["examples"] == {"train": 40, "dev": 10}
    assert "dev_accuracy" in history


@pytest.mark.parametrize(("call", "words"), [
    (lambda task: task.predict("superb"), "superb.*no such file.*list"),
    (lambda task: task.predict([3]), "item 1.*int"),
    (lambda task: task.evaluate((["a"], ["good", "bad"])), "1 texts but 2 labels"),
    (lambda task: task.evaluate([Example("a", gold="ugly", where="here:7")]), "ugly.*here:7"),
    (lambda task: task.fit([], verbose=0), "no examples"),
])
def test_bad_input_is_named(trained, call, words):
    with pytest.raises(UserError, match=words):
        call(trained)


def test_bad_requests_are_refused_before_work(checkpoint):
    with pytest.raises(UserError, match="max_length.*64 positions"):
        Task.from_checkpoint(checkpoint, max_length=65)
    with pytest.raises(UserError, match="poling.*pooling"):
        Task.from_checkpoint(checkpoint, poling="mean")
    with pytest.raises(UserError, match="labels are not known yet"):
        Task.from_checkpoint(checkpoint, max_length=32).predict(["a"])
    with pytest.raises(UserError, match="precision"):
        Task.from_checkpoint(checkpoint, max_length=32, labels=["a", "b"], precision="float33").model  # noqa: B018
