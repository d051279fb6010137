"""The regression head: numbers read and refused, units, several targets, and scores against their definitions."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert_lab import UserError, load, load_head
from keras_bert_lab.head import Example
from keras_bert_lab.testing import tiny_task, tiny_tokenizer

Regression = load_head("regression")
TOKENIZER = tiny_tokenizer()
HERE = __import__("sys").modules[Regression.__module__]
EXAMPLES = [Example(t, gold=g, where=f"x:{i}") for i, (t, g) in enumerate([("good", 5), ("bad", 1.0), ("so so", "3")])]


def text(first, second=None):
    return TOKENIZER.windows(first, second, max_length=32)


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


# ---- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.tsv", "text\tlabel\na\t1.5\nb\t -2 \nc\t1e2\n", {}),
        ("a.csv", 'a,1.5\nb,"-2.0"\nc,+100\n', {"text_column": 0, "label_column": 1, "header": False}),
        ("a.jsonl", '{"text": "a", "y": 1.5}\n{"text": "b", "y": "-2"}\n{"text":"c", "y": 1e2}', {"label_column": "y"}),
    ],
)
def test_numbers_of_every_form_of_file(tmp_path, name, content, options):
    head = Regression(**options)
    examples = list(head.read(write(tmp_path / name, content)))
    assert [e.gold for e in examples] == [1.5, -2.0, 100.0]
    assert head.fit(examples).targets == ("value",)


def test_what_is_no_finite_number_is_told_with_its_line(tmp_path):
    cells = ["nan", "inf", "-Infinity", "1,5", "1_000", "", "high", "1e400", "٣", "2"]
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"a\t{cell}\n" for cell in cells))
    head = Regression()
    examples = list(head.read(path))
    with pytest.raises(UserError) as caught:
        head.fit(examples)
    told = str(caught.value)
    for words, lines in (
        ("the target is nan, no finite number within +-1e+30", [2]),
        ("the target is inf, no finite number within +-1e+30", [3, 9]),
        ("the target is -inf, no finite number", [4]),
        ("the target is '1,5', no number", [5]),
        ("the target is '1_000', no number", [6]),
        ("no label", [7]),
        ("the target is 'high', no number", [8]),
        ("the target is '٣', no number", [10]),
    ):
        part = next(p for p in told.split("; ") if words in p)
        assert all(f"{path}:{line}" in part for line in lines), (words, part)
    with pytest.warns(UserWarning, match="9 rows skipped"):
        fitted = dataclasses.replace(head, bad_rows="skip").fit(examples)
    features = fitted.features(examples, text)
    assert features.w["logits"].tolist() == [0] * 9 + [1] and np.isfinite(features.y["logits"]).all()
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": NaN}\n{"text": "a", "label": true}\n{"text": "a"}\n')
    with pytest.raises(UserError, match=r"is nan.*jsonl:1.*is True, no number.*jsonl:2.*no label.*jsonl:3"):
        head.fit(head.read(path))
    for gold in (10**400, math.nan, np.float32("inf"), np.array([1.0, math.nan])):
        with pytest.raises(UserError, match="no finite number"):
            head.fit([Example("a", gold=gold)])


def test_several_targets(tmp_path):
    path = write(tmp_path / "a.csv", "fear,text,joy\n1,a,10\n3,b,30\n")
    head = Regression(label_columns=["joy", "fear"])
    head = head.fit(head.read(path))
    assert (head.targets, head.mean, head.deviation) == (("joy", "fear"), (20, 2), (10, 1))
    features = head.features(list(head.read(path)), text)
    assert features.y["logits"].tolist() == [[-1, -1], [1, 1]]
    path = write(tmp_path / "b.jsonl", '{"text": "a", "label": [1, 2]}\n{"text": "b", "label": [3, 6]}\n')
    listing = Regression()
    listing = listing.fit(listing.read(path))
    assert listing.targets == ("0", "1") and listing.mean == (2, 4)
    arrays = Regression().fit([Example("a", gold=np.array([1.0, 2.0])), Example("b", gold=(3, 4))])
    assert arrays.targets == ("0", "1")
    with pytest.raises(UserError, match="x: has 1 targets, the first has 2"):
        Regression().fit([Example("a", gold=[1, 2]), Example("b", gold=3, where="x")])
    bad = write(tmp_path / "c.csv", "fear,text,joy\n1,a,\n3,b,x\n1,c,1\n")
    with pytest.raises(UserError, match=r"target 'joy' is missing \(.*c.csv:2\); the target 'joy' is 'x', no number"):
        Regression(label_columns=["joy", "fear"]).fit(head.read(bad))
    blank = write(tmp_path / "d.csv", "fear,text,joy\n,a, \n")
    assert [e.gold for e in head.read(blank)] == [None]
    numbered = Regression(text_column=0, label_columns=[2, 1])
    with pytest.raises(UserError, match="label_column is a number"):
        list(Regression(label_columns=[2, 1]).read(write(tmp_path / "e.csv", "a,1,2\n")))
    (only,) = dataclasses.replace(numbered, header=False).read(tmp_path / "e.csv")
    assert only.gold == (2.0, 1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_columns": "joy"}, "list names or numbers"),
        ({"label_columns": ["a", "a"]}, "every column once"),
        ({"label_columns": [-1]}, "counted from 0"),
        ({"label_columns": [True]}, "list names or numbers"),
        ({"standardize": 1}, "true or false"),
        ({"targets": ["value"]}, "leave it to fit"),
        ({"targets": ["value"], "mean": [0.0], "deviation": [0.0]}, "numbers above 0"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Regression.from_dict(options)


# ---- units -------------------------------------------------------------------------------------------------------


def test_answers_are_in_the_users_unit():
    head = Regression().fit(EXAMPLES)
    assert head.mean == (3.0,) and head.deviation == (pytest.approx(math.sqrt(8 / 3)),)
    y = head.features(EXAMPLES, text).y["logits"]
    assert y.dtype == np.float32 and y.mean() == pytest.approx(0, abs=1e-6) and y.std() == pytest.approx(1)
    answers = head.decode(EXAMPLES, text([e.text for e in EXAMPLES]), {"logits": y})
    assert [a["value"] for a in answers] == pytest.approx([5, 1, 3])
    said = tf.function(head.answers)({"logits": tf.constant(y)})["value"]
    assert said.dtype == tf.float32 and said.numpy() == pytest.approx([5, 1, 3])
    assert head.answers({"logits": tf.zeros([0, 1])})["value"].shape == (0,)
    raw = Regression(standardize=False).fit(EXAMPLES)
    assert raw.features(EXAMPLES, text).y["logits"].tolist() == [[5], [1], [3]] and raw.describe() == "1 target: value"
    assert Regression().fit([Example("a", gold=0.1)] * 3).deviation == (1.0,)
    two = Regression().fit([Example("a", gold=[1e9, 1]), Example("b", gold=[1e9 + 1, 3])])
    (answer,) = two.decode([Example("a")], text(["a"]), {"logits": np.array([[1, -1]], np.float32)})
    assert answer == {"values": {"0": 1e9 + 1, "1": 1}}
    assert two.answers({"logits": tf.constant([[1.0, -1.0]])})["values"].numpy().tolist() == [[np.float32(1e9 + 1), 1]]
    back = Regression.from_dict(json.loads(json.dumps(two.to_dict())))
    assert back == two


def test_target_is_the_standardised_answer():
    head = Regression().fit(EXAMPLES)
    assert head.target({"logits": tf.constant([[2.0], [-1.0]])}).numpy().tolist() == [2, -1]


@pytest.mark.slow
def test_a_trained_task_answers_in_dollars(tmp_path):
    prices = {"good": 900_000, "fine": 700_000, "so": 500_000, "bad": 100_000}
    rows = [f"{w} {noun}\t{price}\n" for w, price in prices.items() for noun in ("film", "food", "day", "book")]
    path = write(tmp_path / "train.tsv", "text\tlabel\n" + "".join(rows))
    task = tiny_task("regression", directory=tmp_path / "tiny")
    task.fit(path, path, epochs=25, batch_size=4, learning_rate=3e-3, verbose=0)
    scores = task.evaluate(path)
    assert scores["r2"] == task.scores["r2"] > 0.8
    task.save(tmp_path / "task")
    again = load(tmp_path / "task")
    best, worst = (a["value"] for a in again.predict(["good day", "bad day"]))
    assert 700_000 < best < 1_100_000 and -100_000 < worst < 300_000
    assert again.evaluate(path) == pytest.approx(scores, rel=1e-6)
    # a tenth of a dollar is as close as float32 gets here: the proof knows the unit
    assert again.export(tmp_path / "export", texts=["good day"])["differences"]["text:value"] < 10


# ---- scores ------------------------------------------------------------------------------------------------------


def ranks_by_counting(values):
    """1 + how many are smaller + half of how many others are equal."""
    return [1 + sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]


numbers = st.integers(-4, 4).map(lambda n: n / 2)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=15))
def test_scores_against_their_definitions(rows):
    gold, said = np.array(rows).T
    s = HERE.scores(gold, said)
    assert HERE.ranks(gold).tolist() == ranks_by_counting(gold)
    if len(set(gold)) > 1 and len(set(said)) > 1:
        assert s["pearson"] == pytest.approx(np.corrcoef(gold, said)[0, 1], abs=1e-9)
        spearman = np.corrcoef(ranks_by_counting(gold), ranks_by_counting(said))[0, 1]
        assert s["spearman"] == pytest.approx(spearman, abs=1e-9)
    else:
        assert s["pearson"] == s["spearman"] == 0
    assert s["mae"] == pytest.approx(np.mean(np.abs(gold - said)))
    assert s["rmse"] == pytest.approx(math.sqrt(np.mean((gold - said) ** 2)))
    constant = len(set(gold)) == 1
    assert s["r2"] == (0 if constant else pytest.approx(1 - np.mean((gold - said) ** 2) / gold.var()))
    json.dumps(s, allow_nan=False)


def test_spearman_by_hand():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    s = HERE.scores([1.0, 2.0, 2.0, 9.0], [1.0, 2.0, 3.0, 4.0])
    assert s["spearman"] == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_correlation_of_large_and_small_numbers():
    x = np.array([1.0, 2.0, 4.0])
    for unit in (1e200, 1e-200, 1e-300):
        assert HERE.correlation(x * unit, x * unit) == pytest.approx(1.0)


def test_scores_of_answers():
    head = Regression().fit(EXAMPLES)
    s = head.score(iter(EXAMPLES), iter([{"value": 5.0}, {"value": 1.0}, {"value": 4.0}]))
    assert s["mae"] == pytest.approx(1 / 3) and s["examples"] == 3 and s["r2"] == pytest.approx(1 - 1 / 8)
    two = Regression(label_columns=["joy", "fear"]).fit([Example("a", gold=[1, 2]), Example("b", gold=[3, 5])])
    golds = [Example("a", gold=(1.0, 2.0)), Example("b", gold=[3, 5])]
    s = two.score(golds, [{"values": {"joy": 1, "fear": 5}}, {"values": {"joy": 3, "fear": 2}}])
    assert s["per_target"]["joy"]["pearson"] == 1 and s["per_target"]["fear"]["pearson"] == -1
    assert s["pearson"] == 0 and s["mae"] == 1.5
    with pytest.raises(UserError, match="there is no example with a target"):
        head.score([], [])
    with pytest.raises(UserError, match="no label"):
        head.score([Example("a")], [{"value": 1.0}])
