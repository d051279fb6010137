"""The multi-label head: reading, targets, thresholds, answers and scores against brute force and hand-made numbers."""

import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert_lab import UserError, load, load_head
from keras_bert_lab.encoder import encode
from keras_bert_lab.head import Example
from keras_bert_lab.testing import tiny_config, tiny_task, tiny_tokenizer

MultiLabel = load_head("multi_label")
TOKENIZER = tiny_tokenizer()
HERE = __import__("sys").modules[MultiLabel.__module__]
EXAMPLES = [
    Example(text, gold=gold, where=f"x:{i}")
    for i, (text, gold) in enumerate(
        [("good film", ["joy"]), ("a bad, bad day!", ["anger", "fear"]), ("so so", []), ("fine", ["joy", "fear"])]
    )
]


def text(first, second=None):
    return TOKENIZER.windows(first, second, max_length=32)


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


# ---- files -------------------------------------------------------------------------------------------------------

NUMBERED = {"text_column": 0, "label_column": 1, "header": False}
LAST = '{"text": "c", "labels": [1]}'


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", 'text\tlabels\na\t["x", "y"]\nb\t[]\nc\t[1.0]\n', {}),
        ("a.csv", 'text,labels\na,"[""x"", ""y""]"\nb,[]\nc,[1]\n', {}),
        ("a.jsonl", '{"text": "a", "labels": ["x", "y"]}\n{"text": "b", "labels": []}\n' + LAST, {}),
        ("b.tsv", "a\tx,y\t7\nb\t\t8\nc\t1\t9\n", {**NUMBERED, "separator": ","}),
        ("b.csv", "text,tags\na, y | x |x\nb,  \nc,1.0\n", {"label_column": "tags", "separator": "|"}),
        ("b.jsonl", '{"text": "a", "labels": "y;x"}\n{"text": "b", "labels": ""}\n' + LAST, {"separator": ";"}),
    ],
)
def test_every_form_of_file_says_the_same(tmp_path, name, content, options):
    head = MultiLabel(**options)
    examples = list(head.read(write(tmp_path / name, content)))
    assert [e.text for e in examples] == ["a", "b", "c"]
    head = head.fit(examples)
    assert head.labels == ("1", "x", "y")
    assert head.targets(examples).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert head.features(examples, text).w["logits"].tolist() == [1, 1, 1]  # no label is legal gold


def test_what_is_no_list_of_labels_is_told_with_its_line(tmp_path):
    rows = ["x,y", '"x"', '{"a": 1}', "[1", '["x", ""]', '["x", ["y"]]', '["x", null]', "", '["z"]', '["x"]']
    path = write(tmp_path / "a.tsv", "text\tlabels\n" + "".join(f"a\t{row}\n" for row in rows))
    head = MultiLabel(labels=("x", "y"))
    examples = list(head.read(path))
    with pytest.raises(UserError) as caught:
        list(head.usable(examples))
    told = str(caught.value)
    for words, line in (
        ("'x,y' are no JSON list (is a separator to be set?)", 2),
        ("'{\"a\": 1}' are no JSON list (is a separator to be set?)", 4),
        ("'[1' are no JSON list (is a separator to be set?)", 5),
        ("['x', ''] is empty or no name", 6),
        ("['x', ['y']] is empty or no name", 7),
        ("['x', None] is empty or no name", 8),
        ("no label", 9),
        ("unknown label 'z', the labels are x, y", 10),
    ):
        assert f"{words} ({path}:{line})" in told, words
    features = head.features(examples, text)  # they can be predicted all the same
    assert features.w["logits"].tolist() == [0] * 9 + [1]
    skip = dataclasses.replace(head, bad_rows="skip")
    with pytest.warns(UserWarning, match="9 rows skipped"):
        assert len(list(skip.usable(examples))) == 1
    bad = Example("a", gold=5, where="item 1")
    with pytest.raises(UserError, match="the labels are a int, not a list"):
        list(head.usable([bad]))
    between = MultiLabel(separator=",", labels=("x", "y"))
    for cell in ("x,,y", "x,", ",", "nan"):
        assert "is empty or no name" in between.problem(Example("a", gold=between.gold(cell)))


def test_gold_may_be_any_collection():
    head = MultiLabel(labels=("a", "1"))
    golds = (["a", "a"], ("a",), {"a"}, frozenset(["a"]), ["a", 1.0], [])
    assert head.targets([Example("x", gold=g) for g in golds]).tolist() == [[1, 0]] * 4 + [[1, 1], [0, 0]]
    assert all(head.problem(Example("x", gold=g)) is None for g in golds)
    assert head.problem(Example("x")) == "no label" and head.problem(Example(" ", gold=[])) == "the text is empty"


def test_labels_and_weights_from_training_examples():
    head = MultiLabel(positive_weights="balanced")
    assert not head.fitted
    with pytest.raises(UserError, match="balanced weights are not known"):
        MultiLabel(labels=("a",), positive_weights="balanced").losses()
    head = head.fit(EXAMPLES)
    assert head.labels == ("anger", "fear", "joy") and head.fitted
    assert head.positive_weights == {"anger": 3.0, "fear": 1.0, "joy": 1.0}
    assert head.losses()["logits"].positive_weights == [3.0, 1.0, 1.0]
    everywhere = MultiLabel(positive_weights="balanced", labels=("x", "never")).fit([Example("a", gold=["x"])])
    assert everywhere.positive_weights == {"x": 1.0, "never": 1.0}
    some = MultiLabel(positive_weights={"joy": 2}, focal_gamma=1.5).fit(EXAMPLES).losses()["logits"]
    assert some.positive_weights == [1.0, 1.0, 2.0] and some.gamma == 1.5
    with pytest.raises(UserError, match="none of the 1 has a label"):
        MultiLabel().fit([Example("a", gold=[])])
    with pytest.raises(UserError, match="labels are not known yet"):
        MultiLabel().features(EXAMPLES, text)
    assert [head.stratum(e) for e in EXAMPLES] == ["joy", "anger", None, "fear"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"separator": ""}, "what stands between"),
        ({"positive_weights": "auto"}, 'choose "balanced"'),
        ({"positive_weights": {"z": 1}, "labels": ["a"]}, "'z' is no label"),
        ({"threshold": 0}, "between 0 and 1"),
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"threshold": "tuned"}, 'choose "per_label"'),
        ({"threshold": True}, "between 0 and 1"),
        ({"labels": ["a", "b"], "thresholds": [0.5]}, "1 for 2 labels"),
        ({"labels": ["a"], "thresholds": [float("nan")]}, "between 0 and 1"),
        ({"focal_gamma": -1}, "focal_gamma"),
        ({"labels": ["a", "a"]}, "more than once"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        MultiLabel.from_dict(options)


# ---- thresholds --------------------------------------------------------------------------------------------------


def f1_of(gold, said):
    tp, wrong = (gold & said).sum(), (gold ^ said).sum()
    return 2 * tp / (2 * tp + wrong) if tp else 0.0


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(-6, 6), st.booleans()), min_size=1, max_size=12))
def test_best_cut_is_as_good_as_any(rows):
    """Ties included: the scores are small integers."""
    scores, gold = np.array([s / 2 for s, _ in rows], np.float32), np.array([g for _, g in rows])
    cut = HERE.best_cut(scores, gold)
    if not gold.any():
        assert cut == 0
        return
    tries = [-10.0, 10.0, *scores, *(scores + 0.25), *(scores - 0.25)]
    best = max(f1_of(gold, scores >= t) for t in tries)
    assert f1_of(gold, scores >= cut) == pytest.approx(best, abs=1e-12)
    assert cut not in scores.tolist()  # half way: rounding does not decide


def test_cuts_by_hand():
    assert HERE.best_cut(np.array([2.0, -2, -4]), np.array([True, False, False])) == 0.0
    assert HERE.best_cut(np.array([-4.0, -5.0]), np.array([True, True])) == -6.0  # 1 below the lowest
    assert HERE.best_cut(np.array([100.0, 90.0]), np.array([True, False])) == 30.0


def tuned_on(head, rows, golds):
    examples = [Example("x", gold=g) for g in golds]
    return head.tuned(examples, text(["x"] * len(golds)), {"logits": np.array(rows, np.float32)})


def test_given_labels_are_fitted_too(tmp_path):
    task = tiny_task("multi_label", directory=tmp_path / "tiny", labels=["fear", "joy", "anger"])
    task.fit(EXAMPLES, dev_fraction=0.0, epochs=1, verbose=0)
    assert task.head.labels == ("fear", "joy", "anger") and task.head.rates == (0.5, 0.5, 0.3)
    task.fit(EXAMPLES[:2], dev_fraction=0.0, epochs=1, verbose=0)
    assert task.head.rates == (0.5, 0.5, 0.3)  # those of the training that the weights began with


def test_thresholds_per_label_and_shared():
    rows = [[3, -1, 0], [1, -3, 0], [2, -2, 0], [0, -4, 0]]
    golds = [["a", "b"], ["a"], ["b"], []]
    head = MultiLabel(labels=("a", "b", "never"))
    assert head.tunes and head.cuts.tolist() == [0, 0, 0]
    each = tuned_on(head, rows, golds)
    assert each.cuts == pytest.approx([0.5, -2.5, 0], abs=1e-6)
    assert each.thresholds[2] == 0.5 and each.threshold == "per_label"
    assert "a from 0.622" in each.describe()
    assert tuned_on(each, rows, golds) == each  # not from what was tuned before
    one = tuned_on(dataclasses.replace(head, threshold="shared"), rows, golds)
    logits, gold = np.array(rows, np.float32), head.targets([Example("x", gold=g) for g in golds]) > 0
    assert len(set(one.thresholds)) == 1
    assert f1_of(gold, logits >= one.cuts) == max(f1_of(gold, logits >= t) for t in np.arange(-5, 5, 0.25))
    fixed = MultiLabel(labels=("a", "b"), threshold=0.9)
    assert fixed.tunes == "" and fixed.tuned([], None, {}) is fixed
    assert fixed.cuts == pytest.approx([np.log(9)] * 2)
    back = MultiLabel.from_dict(json.loads(json.dumps(each.to_dict())))
    assert back == each and np.array_equal(back.cuts, each.cuts)


@pytest.mark.slow
def test_a_trained_task_keeps_its_thresholds(tmp_path, capsys):
    words = {"good": ["joy"], "bad": ["anger"], "dull": ["anger", "fear"], "the": []}
    rows = [f"{w} {noun}\t{','.join(labels)}\n" for w, labels in words.items() for noun in ("film", "food", "day")]
    path = write(tmp_path / "train.tsv", "text\tlabels\n" + "".join(rows))
    task = tiny_task("multi_label", directory=tmp_path / "tiny", separator=",")
    task.fit(path, dev_fraction=0.0, epochs=1, verbose=1)
    assert "there is no dev set to tune the labels' thresholds on" in capsys.readouterr().out
    assert task.head.thresholds == ()
    history = task.fit(path, path, epochs=10, batch_size=4, learning_rate=3e-3, verbose=1)
    assert "tuned on the dev set: 3 labels: anger from 0." in capsys.readouterr().out
    assert len(task.head.thresholds) == 3 and task.model.recipe["options"]["thresholds"] == list(task.head.thresholds)
    scores = task.evaluate(path)
    assert scores["micro_f1"] == task.scores["micro_f1"] == max(history["dev_micro_f1"]) > 0.9
    task.save(tmp_path / "task")
    again = load(tmp_path / "task")
    assert again.head == task.head and again.evaluate(path) == scores
    once = again.head
    again.head = dataclasses.replace(once, thresholds=())
    again.tune(path)
    assert again.head == once
    proof = again.export(tmp_path / "export", texts=["good film", "dull day", "the food"])
    assert proof["differences"]["text:labels"] == proof["differences"]["ids:answered"] == 0
    with pytest.raises(UserError, match="holds no examples"):
        again.tune(write(tmp_path / "none.tsv", "text\tlabels\n"))


# ---- answers -----------------------------------------------------------------------------------------------------


def test_answers_in_python_and_in_the_graph():
    head = MultiLabel(labels=("b", "好", "é"), thresholds=(0.5, 0.1, 0.99))
    logits = np.array([[0, -1, 1e4], [-1, -5, 4], [5, 5, 5], [-1e4, 0, -1e4]], np.float32)
    answers = head.decode([Example("x")] * 4, text(["x"] * 4), {"logits": logits})
    assert [a["labels"] for a in answers] == [["b", "好", "é"], [], ["b", "好", "é"], ["好"]]
    want = 0.5 * (1 + np.tanh(logits.astype(float) / 2))
    assert np.abs(np.array([list(a["probabilities"].values()) for a in answers]) - want).max() < 1e-12
    said = tf.function(head.answers)({"logits": tf.constant(logits)})
    labels = [[x.decode() for x in row] for row in said["labels"].numpy()]
    assert labels == [["b", "好", "é"], ["", "", ""], ["b", "好", "é"], ["好", "", ""]]
    assert said["count"].numpy().tolist() == [3, 0, 3, 1]
    assert said["answered"].numpy().sum(1).tolist() == [3, 0, 3, 1]
    assert np.abs(said["probabilities"] - want).max() < 1e-6
    none = head.answers({"logits": tf.fill([2, 3], -9.0)})
    assert none["labels"].shape == (2, 0)
    empty = head.answers({"logits": tf.zeros([0, 3])})
    assert all(value.shape[0] == 0 for value in empty.values())
    assert head.decode([], text([]), {"logits": np.zeros((0, 3), np.float32)}) == []


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_python_and_graph_decide_alike_on_the_very_edge(seed):
    random = np.random.default_rng(seed)
    head = MultiLabel(labels=("a", "b"), thresholds=tuple(random.uniform(0.001, 0.999, 2)))
    logits = np.stack([np.nextafter(head.cuts, np.float32(s)) for s in (-99, 99)] + [head.cuts])
    answers = head.decode([Example("x")] * 3, text(["x"] * 3), {"logits": logits})
    assert [len(a["labels"]) for a in answers] == [0, 2, 2]
    assert head.answers({"logits": tf.constant(logits)})["count"].numpy().tolist() == [0, 2, 2]


def first_bias(head):
    encoded = encode(tiny_config())
    model = keras.Model(encoded.inputs, head.outputs(encoded))
    return [v.numpy() for v in model.variables if v.path == "classifier/bias"]


def test_first_answers_are_as_probable_as_the_labels_are_frequent():
    golds = [["often"] if i % 2 else ["often", "rare"] if i == 0 else [] for i in range(40)]
    examples = [Example(f"good {i}", gold=gold) for i, gold in enumerate(golds)]
    for options in ({}, {"positive_weights": "balanced"}):
        head = MultiLabel(**options, labels=("often", "rare", "never")).fit(examples)
        assert head.rates == (21.5 / 41, 1.5 / 41, 0.5 / 41)
        (bias,) = first_bias(head)
        c = np.array([head.positive_weights[n] for n in head.labels]) if options else 1
        rates = np.array(head.rates)
        assert np.abs(bias - np.log(c * rates / (1 - rates))).max() < 1e-6
    assert first_bias(MultiLabel(labels=("a", "b")))[0].tolist() == [0, 0]


def test_target_is_what_was_answered():
    head = MultiLabel(labels=("a", "b", "c"))
    logits = {"logits": tf.constant([[1.0, 4.0, -2.0], [-3.0, -1.0, -2.0]])}
    assert head.target(logits).numpy().tolist() == [5, -1]
    chosen = {"logits": tf.constant([[-1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])}
    assert head.target(logits, chosen).numpy().tolist() == [-2, -6]


# ---- scores ------------------------------------------------------------------------------------------------------


def ranking_by_definition(gold, scores):
    """Row by row, label by label."""
    rows = []
    for g, s in zip(gold, scores, strict=True):
        true = [j for j in range(len(g)) if g[j]]
        if not true or len(true) == len(g):
            rows.append(1.0)
            continue
        shares = []
        for j in true:
            higher = [k for k in range(len(g)) if s[k] >= s[j]]
            shares.append(sum(bool(g[k]) for k in higher) / len(higher))
        rows.append(sum(shares) / len(shares))
    return rows


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))
def test_ranking_average_precision_with_ties(seed, labels, levels):
    random = np.random.default_rng(seed)
    gold, scores = random.random((7, labels)) < 0.4, random.integers(0, levels, (7, labels)) / 4
    found = HERE.ranking_average_precision(gold, scores)
    assert found.tolist() == pytest.approx(ranking_by_definition(gold, scores), abs=1e-12)


def test_ranking_by_hand():
    # ranks of the gold labels: 1 of 1; 2 of 3, both of the first three being gold
    found = HERE.ranking_average_precision(np.array([[1, 0, 1, 0]]) > 0, np.array([[0.9, 0.5, 0.4, 0.1]]))
    assert found.tolist() == [pytest.approx((1 / 1 + 2 / 3) / 2)]


def scored(head, golds, said):
    answers = [
        {"labels": [n for n, p in zip(head.labels, row, strict=True) if p >= 0.5],
         "probabilities": dict(zip(head.labels, row, strict=True))}
        for row in said
    ]  # fmt: skip
    return head.score((Example("x", gold=g) for g in golds), iter(answers))


def test_scores_by_hand():
    head = MultiLabel(labels=("a", "b", "c"))
    s = scored(head, [["a", "b"], ["a"], [], ["b"]], [[0.9, 0.8, 0], [0.2, 0.7, 0], [0.6, 0, 0], [0, 0.9, 0.4]])
    # a: tp 1 fp 1 fn 1; b: tp 2 fp 1 fn 0; c: nothing
    assert s["per_label"]["a"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}
    assert s["per_label"]["b"] == pytest.approx({"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2})
    assert s["macro_f1"] == pytest.approx((0.5 + 0.8) / 2)  # c occurs nowhere
    assert s["micro_f1"] == pytest.approx(6 / (6 + 2 + 1)) and s["micro_precision"] == 0.6 and s["micro_recall"] == 0.75
    assert s["exact_match"] == 0.5 and s["hamming_loss"] == 3 / 12 and s["examples"] == 4
    assert s["ranking_average_precision"] == pytest.approx((1 + 1 / 2 + 1 + 1) / 4)
    json.dumps(s, allow_nan=False)
    nothing = scored(head, [[], []], [[0, 0, 0]] * 2)
    assert (nothing["micro_f1"], nothing["macro_f1"], nothing["exact_match"]) == (0, 0, 1)


def test_scores_of_a_stream_longer_than_a_block(monkeypatch):
    monkeypatch.setattr(HERE, "BLOCK", 3)
    random = np.random.default_rng(0)
    head = MultiLabel(labels=tuple("abcd"))
    gold, said = random.random((11, 4)) < 0.4, random.random((11, 4))
    s = scored(head, [["abcd"[k] for k in np.flatnonzero(row)] for row in gold], said)
    yes = said >= 0.5
    assert s["micro_f1"] == pytest.approx(f1_of(gold, yes))
    assert s["macro_f1"] == pytest.approx(np.mean([f1_of(gold[:, k], yes[:, k]) for k in range(4)]))
    assert s["hamming_loss"] == pytest.approx((gold != yes).mean())
    assert s["exact_match"] == pytest.approx((gold == yes).all(1).mean())
    assert s["ranking_average_precision"] == pytest.approx(np.mean(ranking_by_definition(gold, said)))


def test_scores_of_unusable_examples():
    head = MultiLabel(labels=("a", "b"))
    with pytest.raises(UserError, match="there is no labelled example"):
        scored(head, [], [])
    with pytest.raises(UserError, match="unknown label 'z'"):
        scored(head, [["z"]], [[0.1, 0.2]])
    with pytest.warns(UserWarning, match="1 rows skipped"):
        s = scored(dataclasses.replace(head, bad_rows="skip"), [None, ["a"]], [[0.9, 0.9], [0.9, 0.1]])
    assert s["examples"] == 1 and s["exact_match"] == 1


def test_real_file(shared):
    head = MultiLabel(text_column=0, label_column=1, header=False, separator=",")
    path = shared("data/multilabel_goemotions/dev.tsv")
    examples = list(itertools.islice(head.read(path), 2000))
    head = head.fit(examples)
    y = head.targets(examples)
    assert set(head.labels) <= {str(i) for i in range(28)} and y.sum(1).min() >= 1
    for example, row in zip(examples, y, strict=True):
        assert {head.labels[k] for k in np.flatnonzero(row)} == set(example.fields[1].split(","))
