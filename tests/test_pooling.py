"""What heads with one answer a text share: options, pairs, rows and examples, and one network for all of them.

The poolings' numbers are checked against NumPy in test_classification.py.
"""

import dataclasses

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bert_lab import UserError, load_head
from keras_bert_lab.encoder import encode
from keras_bert_lab.head import Example
from keras_bert_lab.pooling import (
    PooledHead,
    by_example,
    factors,
    label_list,
    last_layers,
    listed,
    number,
    per_class,
    pool,
    ratio,
)
from keras_bert_lab.testing import tiny_config, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SHARING = ("classification", "multi_label", "regression")
GOLD = {"classification": "ab", "multi_label": [["a"], ["a", "b"]], "regression": [1.0, 2.0]}


def text(first, second=None):
    return TOKENIZER.windows(first, second, max_length=32)


def fitted(name, **options):
    golds = zip(("good", "bad"), GOLD[name], strict=True)
    return load_head(name)(**options).fit([Example(word, gold=gold) for word, gold in golds])


@pytest.mark.parametrize(
    "options", [{"pooling": "cls"}, {"pooling": "last_cls:2"}, {"pooling": "attention", "bilstm": 3}]
)
def test_the_heads_have_one_network(options):
    """The same paths, shapes and, from one seed, numbers; only the last layer's width is the head's own."""
    seen = []
    for name in SHARING:
        keras.utils.set_random_seed(3)
        encoded = encode(tiny_config())
        model = keras.Model(encoded.inputs, fitted(name, **options).outputs(encoded))
        values = {v.path: np.asarray(v.numpy()) for v in model.variables if not v.path.startswith("seed")}
        seen.append({path: v if not path.startswith("classifier/") else v.shape[:-1] for path, v in values.items()})
        assert model.output["logits"].shape == (None, 1 if name == "regression" else 2)
    for other in seen[1:]:
        assert list(other) == list(seen[0])
        assert all(np.array_equal(other[path], value) for path, value in seen[0].items())


@pytest.mark.parametrize(
    ("pooling", "bilstm", "width"),
    [("cls", 0, 32), ("cls", 5, 10), ("mean", 0, 32), ("max", 5, 10), ("attention", 0, 32), ("last_cls:2", 0, 64)],
)
def test_the_width_of_a_pooling(pooling, bilstm, width):
    vector = pool(encode(tiny_config()), pooling, bilstm, "zeros")
    assert vector.shape == (None, width)


def test_last_layers():
    assert [last_layers(p) for p in ("cls", "mean", "last_cls:1", "last_cls:12")] == [0, 0, 1, 12]
    for wrong in ("last_cls", "last_cls:0", "last_cls:-1", "last_cls:٣", "CLS", "", None):
        with pytest.raises(UserError, match="choose cls, mean"):
            last_layers(wrong)


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pooling": "first"}, "choose cls, mean"),
        ({"pooling": "last_cls:2", "bilstm": 4}, "a BiLSTM at the last one only"),
        ({"bilstm": 1.5}, "units per direction"),
        ({"dropout": 1}, "a number from 0 up to, not including, 1"),
        ({"dropout": True}, "dropout: is True"),
        ({"bad_rows": "drop"}, "bad_rows"),
        ({"label_column": -1}, "counted from 0"),
    ],
)
def test_shared_options_are_refused_alike(name, options, words):
    with pytest.raises(UserError, match=words):
        load_head(name).from_dict(options)


@pytest.mark.parametrize("name", SHARING)
def test_pairs_for_all_or_for_none(name):
    head = fitted(name)
    single = [Example("good", where="x:1"), Example("bad", where="x:2")]
    pairs = [dataclasses.replace(e, pair="so") for e in single]
    assert len(head.features(single, text).windows) == 2
    with pytest.raises(UserError, match="x:1: has a second text, but this head takes single texts"):
        head.features(pairs, text)
    golden = [dataclasses.replace(e, gold=g) for e, g in zip(pairs, GOLD[name], strict=True)]
    paired = load_head(name)().fit(golden)
    assert paired.text_inputs == ("text", "pair") and len(paired.features(pairs, text).windows) == 2
    with pytest.raises(UserError, match="x:1: has no second text"):
        paired.features(single, text)
    with pytest.raises(UserError, match="1 of 2 have a second text"):
        load_head(name)().fit([golden[0], dataclasses.replace(golden[1], pair=None)])
    with pytest.raises(UserError, match="there are none"):
        load_head(name)().fit([])


@pytest.mark.parametrize("name", SHARING)
def test_a_missing_column_is_told_by_name(name, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tstars\ngood\t1\n")
    head = load_head(name)()
    assert [e.gold for e in head.read(path)] == [None]
    with pytest.raises(UserError, match=rf"no column '{head.label_column}' among \['text', 'stars'\].*a\.tsv:2"):
        head.fit(head.read(path))


def test_a_blank_label_in_a_numbered_column_is_no_missing_column(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tstars\ngood\t\n")
    head = load_head("classification")(label_column=1, header=True)
    assert [head.problem(e) for e in head.read(path)] == ["no label"]


class Two(PooledHead):
    """Gold in two columns."""

    @property
    def gold_columns(self):
        return ("joy", "fear")

    def gold(self, value):
        return tuple(map(int, value))


def test_gold_in_several_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("fear,text,joy\n1,good,2\n3,bad,\n")
    first, second = Two().read(path)
    assert (first.gold, second.gold) == ((2, 1), None)
    path.write_text("text,joy\ngood,2\n")
    (only,) = Two().read(path)
    assert only.gold is None and Two().problem(only).startswith("no label, since there is no column 'fear'")


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(6)))
def test_by_example_undoes_any_order_of_rows(order):
    examples = [Example("good") for _ in range(6)]
    windows = text(["good"] * 6).take(np.array(order))
    rows = np.array(order, np.float32)[:, None] * [1, 10]
    assert by_example(examples, windows, rows, 2)[:, 1].tolist() == [0, 10, 20, 30, 40, 50]


def test_by_example_wants_a_row_each():
    windows = text(["good", "bad"])
    with pytest.raises(ValueError, match="3 rows of logits for 2 examples"):
        by_example([Example("a")] * 2, text(["a"] * 3).take([0, 1, 1]), np.zeros((3, 1)), 1)
    with pytest.raises(ValueError, match="one row each is expected"):
        by_example([Example("a")] * 2, dataclasses.replace(windows, example=np.array([0, 0])), np.zeros((2, 1)), 1)
    assert by_example([], text([]), np.zeros((0, 3)), 3).shape == (0, 3)


def test_ratio_and_per_class():
    assert ratio([1, 1, 0], [2, 0, 0]).tolist() == [0.5, 0.0, 0.0]
    table = per_class([3, 0], [4, 0], [6, 0], ["a", "b"])
    assert table["a"] == {"precision": 0.75, "recall": 0.5, "f1": 0.6, "support": 6}
    assert table["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}


def test_option_checks():
    assert label_list(["b", 1.0, " a "]) == ("b", "1", "a") and label_list(()) == ()
    for wrong, words in (("ab", "is no list"), (["a", "a "], "more than once"), ([None], "empty label")):
        with pytest.raises(UserError, match=words):
            label_list(wrong)
    with pytest.raises(UserError, match="two or more"):
        label_list(["a"], least=2)
    assert factors("w", {1: 2, " b": 0.5}, ()) == {"1": 2, "b": 0.5}
    for wrong in ({"a": -1}, {"a": float("inf")}, {"a": float("nan")}, {"a": True}, {"a": "2"}):
        with pytest.raises(UserError, match="give a number >= 0"):
            factors("w", wrong, ("a",))
    number("x", 0, below=1)
    for wrong in (-0.1, 1, "0.5", None, float("nan")):
        with pytest.raises(UserError, match="x: is"):
            number("x", wrong, below=1)
    assert listed("abc") == "a, b, c" and listed("abc", 2) == "a, b and 1 more"


def test_scorable_keeps_example_and_answer_together():
    head = load_head("classification")(labels=("a", "b"), bad_rows="skip")
    examples = [Example("x", gold="a"), Example("y"), Example("z", gold="b")]
    with pytest.warns(UserWarning, match="1 rows skipped"):
        kept = list(head.scorable(iter(examples), iter([1, 2, 3])))
    assert [(e.text, a) for e, a in kept] == [("x", 1), ("z", 3)]
    with pytest.raises(ValueError, match="shorter"):
        list(head.scorable([examples[0], examples[2]], [1]))
