"""The classification head: labels, options, poolings, answers and scores against plain NumPy and hand-made numbers."""

import dataclasses
import itertools
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from keras_bert_lab import UserError, load, load_head
from keras_bert_lab.encoder import encode
from keras_bert_lab.head import Example
from keras_bert_lab.testing import tiny_config, tiny_task, tiny_tokenizer

Classification = load_head("classification")
TOKENIZER = tiny_tokenizer()
EXAMPLES = [
    Example(text, gold=gold, where=f"x:{i}")
    for i, (text, gold) in enumerate(
        [("good film", "pos"), ("a bad, bad day!", "neg"), ("so so", "mid"), ("fine", "pos")]
    )
]


def text(first, second=None):
    return TOKENIZER.windows(first, second, max_length=32)


def built(head, config=None, seed=0):
    keras.utils.set_random_seed(seed)
    encoded = encode(config or tiny_config())
    outputs = {**head.outputs(encoded), "sequence": encoded.sequence, "pooled": encoded.pooled}
    outputs |= {f"layer_{i}": layer for i, layer in enumerate(encoded.layers)}
    return keras.Model(encoded.inputs, outputs)


def weights(model, path):
    return next(v.numpy() for v in model.variables if v.path == path)


# ---- labels ------------------------------------------------------------------------------------------------------


def test_labels_are_sorted_and_do_not_depend_on_the_rows_order():
    for order in itertools.islice(itertools.permutations(EXAMPLES), 0, None, 5):
        assert Classification().fit(order).labels == ("mid", "neg", "pos")
    numbers = [Example("a", gold=g) for g in (10, "9", 9.0, " 10", "1.0")]
    assert Classification().fit(numbers).labels == ("1", "9", "10")
    assert Classification(labels=["pos", "neg", "mid"]).fit(EXAMPLES).labels == ("pos", "neg", "mid")


def test_the_stored_order_wins_in_a_later_run(tmp_path):
    rows = [f"text {i}\t{label}\n" for i, label in enumerate(["b", "a", "c"] * 4)]
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(rows))
    head = Classification(labels=("c", "a", "b"))
    head = head.fit(head.read(path))
    later = Classification.from_dict(json.loads(json.dumps(head.to_dict())))
    random.Random(0).shuffle(rows)
    path.write_text("text\tlabel\n" + "".join(rows))
    examples = list(later.read(path))
    assert later.fit(examples).labels == ("c", "a", "b")
    y = later.features(examples, text).y["logits"]
    assert [later.labels[i] for i in y] == [e.gold for e in examples]


def test_a_saved_task_scores_the_same_on_shuffled_rows(tmp_path):
    rows = [
        f"{a} {b}\t{label}\n"
        for a, label in (("good", "b"), ("bad", "a"), ("dull", "c"))
        for b in ("film", "food", "day")
    ]
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(rows))
    task = tiny_task(directory=tmp_path / "tiny", labels=["c", "a", "b"])
    task.fit(path, path, epochs=8, batch_size=4, learning_rate=3e-3, verbose=0)
    before = task.evaluate(path)
    task.save(tmp_path / "task")
    random.Random(1).shuffle(rows)
    path.write_text("\ufefftext\tlabel\r\n" + "".join(row.replace("\n", "\r\n") for row in rows) + "\r\n", newline="")
    again = load(tmp_path / "task")
    after = again.evaluate(path)
    assert again.head.labels == ("c", "a", "b") and after["confusion_matrix"] == before["confusion_matrix"]
    assert after["accuracy"] == before["accuracy"] > 0.6
    odd = tmp_path / "odd.tsv"
    odd.write_text("text\tlabel\ngood film\tzzz\n\tb\n  \t\n")
    assert len(again.predict(odd)) == 3
    with pytest.raises(UserError, match=r"unknown label 'zzz'.*odd\.tsv:2.*the text is empty.*odd\.tsv:3.*odd\.tsv:4"):
        again.evaluate(odd)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_a_saved_bilstm_comes_back_and_a_lost_tensor_is_noticed(tmp_path):
    task = tiny_task(directory=tmp_path / "tiny", labels=["a", "b"], bilstm=4, pooling="attention")
    texts = ["good film", "never again", ""]
    want = [answer["probability"] for answer in task.predict(texts)]
    task.save(tmp_path / "task")
    assert [answer["probability"] for answer in load(tmp_path / "task").predict(texts)] == pytest.approx(want, abs=1e-6)
    file = tmp_path / "task" / "weights.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if name.startswith("bilstm/"))
    save_file({name: value for name, value in tensors.items() if name != lost}, file)
    with pytest.raises(UserError, match=lost):
        load(tmp_path / "task")


def test_unseen_and_missing_labels(tmp_path):
    head = Classification(labels=("neg", "pos"))
    odd = [Example("a", gold="pos", where="f:2"), Example("b", gold="pso", where="f:3"), Example("c", where="f:4")]
    with pytest.raises(UserError, match=r"unknown label 'pso', the labels are neg, pos \(f:3\); no label \(f:4\)"):
        list(head.usable(odd))
    features = head.features(odd, text)  # they can still be predicted
    assert features.y["logits"].tolist() == [1, -100, -100] and features.w["logits"].tolist() == [1, 0, 0]
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": "pos"}\n')
    examples = list(head.read(path))
    assert len(head.features(examples, text).windows) == 2
    with pytest.raises(UserError, match="the label is a JSON list"):
        list(head.usable(examples))
    path = tmp_path / "b.tsv"
    path.write_text("text\tstars\na\t1\n")
    with pytest.raises(UserError, match=r"no column 'label' among \['text', 'stars'\]"):
        Classification().fit(Classification().read(path))


def test_fit_refuses_what_cannot_be_learned():
    with pytest.raises(UserError, match="there are none"):
        Classification().fit([])
    with pytest.raises(UserError, match="all have the label 'pos'"):
        Classification().fit(EXAMPLES[:1])
    with pytest.raises(UserError, match="labels are not known"):
        Classification().features(EXAMPLES, text)
    with pytest.raises(UserError, match="balanced weights are not known"):
        Classification(labels=("a", "b"), class_weights="balanced").losses()
    assert not Classification().fitted and not Classification(labels=("a", "b"), class_weights="balanced").fitted


def test_pairs(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("s1\ts2\tlabel\ngood film\tbad\tyes\nso\tfine day\tno\n")
    head = Classification(text_column="s1", pair_column="s2")
    examples = list(head.read(path))
    head = head.fit(examples)
    windows = head.features(examples, text).windows
    ids = TOKENIZER.ids
    assert windows.input_ids[: windows.lengths[0]].tolist() == [
        ids[p] for p in ["[CLS]", "good", "film", "[SEP]", "bad", "[SEP]"]
    ]
    assert head.text_inputs == ("text", "pair")
    made = [dataclasses.replace(e, pair="so") for e in EXAMPLES]
    assert Classification().fit(made).text_inputs == ("text", "pair")
    with pytest.raises(UserError, match="1 of 4 have a second text"):
        Classification().fit([made[0], *EXAMPLES[1:]])
    with pytest.raises(UserError, match="x:0: has a second text, but this head takes single texts"):
        Classification(labels=("neg", "pos")).features(made, text)
    with pytest.raises(UserError, match="has no second text, but this head takes two texts"):
        head.features(EXAMPLES, text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "pos"}, "is no list"),
        ({"labels": ["a", " a"]}, "'a' is listed more than once"),
        ({"labels": ["1", 1.0]}, "'1' is listed more than once"),
        ({"labels": ["a", " "]}, "has an empty label"),
        ({"labels": ["a"]}, "only one label"),
        ({"pooling": "first"}, "choose cls, mean"),
        ({"pooling": "last_cls:0"}, "choose cls, mean"),
        ({"pooling": "last_cls:2", "bilstm": 4}, "a BiLSTM at the last one only"),
        ({"bilstm": -1}, "units per direction"),
        ({"dropout": 1.0}, "dropout: is 1.0"),
        ({"label_smoothing": "0.1"}, "label_smoothing: is '0.1'"),
        ({"focal_gamma": -1}, "focal_gamma: is -1"),
        ({"focal_gamma": 2.0, "label_smoothing": 0.1}, "choose one"),
        ({"class_weights": "auto"}, 'choose "balanced"'),
        ({"class_weights": {"a": -1}}, "give a number >= 0"),
        ({"class_weights": {"z": 1}, "labels": ["a", "b"]}, "'z' is no label"),
    ],
)
def test_options_that_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Classification.from_dict(options)


# ---- loss --------------------------------------------------------------------------------------------------------


def test_class_weights():
    examples = [Example("a", gold=g) for g in ["x"] * 6 + ["y"] * 2]
    head = Classification(class_weights="balanced").fit(examples)
    assert head.class_weights == {"x": 8 / (2 * 6), "y": 8 / (2 * 2)}
    assert sum(head.class_weights[e.gold] for e in examples) == pytest.approx(len(examples))
    given = Classification(labels=(0, 1), class_weights={1.0: 3.0})
    assert given.losses()["logits"].class_weights == [1.0, 3.0]
    loss = dataclasses.replace(given, label_smoothing=0.1).losses()["logits"]
    assert loss.call([1, 0], [[0.0, 0.0]] * 2).numpy() == pytest.approx([3 * np.log(2), np.log(2)])


def test_focal_loss_takes_the_class_weights_along():
    loss = Classification(labels=("a", "b"), class_weights={"b": 3}, focal_gamma=2).losses()["logits"]
    assert loss.gamma == 2 and loss.class_weights == [1.0, 3.0]
    assert loss.call([1, 0], [[0.0, 0.0]] * 2).numpy() == pytest.approx([3 / 4 * np.log(2), np.log(2) / 4])


def test_example_weights_reach_the_features():
    head = Classification().fit(EXAMPLES)
    weighted = [dataclasses.replace(e, weight=w) for e, w in zip(EXAMPLES, (1, 0.5, 0, 2), strict=True)]
    assert head.features(weighted, text).w["logits"].tolist() == [1, 0.5, 0, 2]


# ---- network -----------------------------------------------------------------------------------------------------


def pooled_by_hand(head, model, out, mask):
    """The docs' formulas in float64."""
    sequence, real = out["sequence"].numpy().astype(float), mask.astype(bool)
    if head.pooling == "cls":
        return out["pooled"].numpy()
    if head.pooling.startswith("last_cls"):
        k = int(head.pooling.split(":")[1])
        return np.concatenate([out[f"layer_{2 - k + 1 + i}"].numpy()[:, 0] for i in range(k)], -1)
    rows = []
    for tokens, keep in zip(sequence, real, strict=True):
        tokens = tokens[keep]
        if head.pooling == "mean":
            rows.append(tokens.mean(0))
        elif head.pooling == "max":
            rows.append(tokens.max(0))
        else:
            score = tokens @ weights(model, "pooling_attention/kernel") + weights(model, "pooling_attention/bias")
            share = np.exp(score) / np.exp(score).sum()
            rows.append((share * tokens).sum(0))
    return np.array(rows)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention", "last_cls:1", "last_cls:2"])
def test_poolings_against_numpy(pooling):
    head = Classification(pooling=pooling).fit(EXAMPLES)
    model = built(head)
    for v in model.variables:  # attention over equal scores would hide an error
        if v.path.startswith("pooling"):
            v.assign(np.random.default_rng(0).normal(size=v.shape))
    inputs = head.features(EXAMPLES, text).windows.pad(length=20)
    out = model(inputs, training=False)
    want = pooled_by_hand(head, model, out, inputs["attention_mask"])
    want = want @ weights(model, "classifier/kernel") + weights(model, "classifier/bias")
    worst = np.abs(out["logits"] - want).max()
    print(f"{pooling}: largest difference {worst:.2g}")
    assert worst < 1e-5
    width = 64 if pooling == "last_cls:2" else 32
    assert weights(model, "classifier/kernel").shape == (width, 3)


def test_bilstm_equals_one_without_padding():
    for pooling in ("cls", "mean", "max", "attention"):
        head = Classification(pooling=pooling, bilstm=5).fit(EXAMPLES)
        model = built(head)
        windows = head.features(EXAMPLES, text).windows
        padded = model(windows.pad(length=24), training=False)["logits"].numpy()
        alone = np.concatenate([model(windows.pad([i]), training=False)["logits"] for i in range(len(windows))])
        assert np.abs(padded - alone).max() < 1e-6, pooling
        assert weights(model, "classifier/kernel").shape == (10, 3)
        assert {v.path.partition("/")[0] for v in model.variables} >= {"bilstm", "classifier"}


@pytest.mark.parametrize(
    "options",
    [{"pooling": p} for p in ("cls", "mean", "max", "attention", "last_cls:2")]
    + [{"bilstm": 3}, {"bilstm": 3, "pooling": "attention"}],
)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_rows_without_a_piece_stay_finite(options, policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = built(Classification(**options).fit(EXAMPLES))
    finally:
        keras.config.set_dtype_policy(before)
    nothing = {name: np.zeros((2, 6), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    with tf.GradientTape() as tape:
        logits = model(nothing, training=True)["logits"]
        loss = tf.reduce_sum(logits**2)
    assert logits.dtype == tf.float32 and np.isfinite(logits).all()
    grads = [g for g in tape.gradient(loss, model.trainable_variables) if g is not None]
    assert grads and all(np.isfinite(tf.convert_to_tensor(g)).all() for g in grads)


def test_last_layer_is_drawn_as_in_the_original():
    kernel = weights(built(Classification().fit(EXAMPLES), tiny_config(hidden_size=256)), "classifier/kernel")
    assert abs(kernel).max() <= 0.04 + 1e-6 and 0.015 < kernel.std() < 0.02  # normal 0.02, cut at two deviations
    assert not weights(built(Classification().fit(EXAMPLES)), "classifier/bias").any()


def test_more_layers_than_there_are():
    with pytest.raises(UserError, match="last_cls:3, but the encoder has 2 layers"):
        built(Classification(pooling="last_cls:3").fit(EXAMPLES))


def test_a_pre_norm_encoders_last_layer_is_the_normed_one():
    head = Classification(pooling="last_cls:1").fit(EXAMPLES)
    model = built(head, tiny_config(norm_position="pre"))
    out = model(head.features(EXAMPLES, text).windows.pad(), training=False)
    want = out["sequence"][:, 0] @ weights(model, "classifier/kernel")
    assert np.abs(out["logits"] - want).max() < 1e-5


# ---- answers -----------------------------------------------------------------------------------------------------


def test_answers_in_python_and_in_the_graph():
    head = Classification(labels=("b", "好", "é"))
    logits = np.array([[0, 1, 2], [5, 5, 1], [-1e4, 0, 1e4]], np.float32)
    examples = [Example("a"), Example("b"), Example("c")]
    answers = head.decode(examples, text(["a", "b", "c"]), {"logits": logits})
    assert [a["label"] for a in answers] == ["é", "b", "é"]
    soft = np.exp(logits - logits.max(-1, keepdims=True)).astype(float)
    soft /= soft.sum(-1, keepdims=True)
    for answer, row in zip(answers, soft, strict=True):
        assert list(answer["probabilities"]) == ["b", "好", "é"]
        assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert answer["probability"] == answer["probabilities"][answer["label"]]
    said = tf.function(head.answers)({"logits": tf.constant(logits)})
    assert [x.decode() for x in said["label"].numpy()] == ["é", "b", "é"]
    assert np.abs(said["probabilities"] - soft).max() < 1e-6
    empty = head.answers({"logits": tf.zeros([0, 3])})
    assert empty["label"].shape == (0,) and empty["probabilities"].shape == (0, 3)
    assert head.decode([], text([]), {"logits": np.zeros((0, 3), np.float32)}) == []


def test_answers_follow_the_examples_not_the_rows():
    head = Classification(labels=("a", "b"))
    windows = text(["x", "y", "z"]).take([2, 0, 1])
    logits = np.array([[0, 9], [9, 0], [0, 9]], np.float32)  # of z, x, y
    answers = head.decode([Example(t) for t in "xyz"], windows, {"logits": logits})
    assert [a["label"] for a in answers] == ["a", "b", "b"]


def test_target_is_the_logit_of_the_chosen_label():
    head = Classification(labels=("a", "b", "c"))
    logits = {"logits": tf.constant([[1.0, 4.0, 2.0], [3.0, 0.0, 1.0]])}
    assert head.target(logits).numpy().tolist() == [4, 3]
    chosen = {"logits": tf.constant([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])}
    assert head.target(logits, chosen).numpy().tolist() == [1, 1]


# ---- scores ------------------------------------------------------------------------------------------------------


def scored(pairs, labels):
    head = Classification(labels=labels)
    golds = (Example("t", gold=g) for g, _ in pairs)
    return head.score(golds, ({"label": said} for _, said in pairs))


def test_scores_by_hand():
    pairs = [("a", "a")] * 3 + [("a", "b")] + [("b", "b")] * 2 + [("b", "a"), ("b", "c")] + [("c", "c")] + [("c", "a")]
    s = scored(pairs, ("a", "b", "c"))
    # gold\said  a b c        precision: a 3/5, b 2/3, c 1/2     recall: a 3/4, b 2/4, c 1/2
    #         a  3 1 0        f1: a 6/9, b 4/7, c 2/4
    #         b  1 2 1
    #         c  1 0 1
    assert s["confusion_matrix"] == {
        "a": {"a": 3, "b": 1, "c": 0},
        "b": {"a": 1, "b": 2, "c": 1},
        "c": {"a": 1, "b": 0, "c": 1},
    }
    assert s["accuracy"] == s["micro_f1"] == pytest.approx(0.6)
    assert s["macro_f1"] == pytest.approx((6 / 9 + 4 / 7 + 2 / 4) / 3)
    assert s["per_class"]["a"] == pytest.approx({"precision": 3 / 5, "recall": 3 / 4, "f1": 2 / 3, "support": 4})
    # R_K: c = 6, s = 10, p = (5, 3, 2), t = (4, 4, 2)
    want = (6 * 10 - (5 * 4 + 3 * 4 + 2 * 2)) / np.sqrt((100 - (25 + 9 + 4)) * (100 - (16 + 16 + 4)))
    assert s["matthews"] == pytest.approx(want)
    assert s["examples"] == 10
    json.dumps(s, allow_nan=False)


def test_binary_matthews_is_the_correlation_of_two_columns():
    random_ = np.random.default_rng(0)
    gold, said = random_.integers(0, 2, 50), random_.integers(0, 2, 50)
    s = scored([("ny"[g], "ny"[p]) for g, p in zip(gold, said, strict=True)], ("n", "y"))
    assert s["matthews"] == pytest.approx(np.corrcoef(gold, said)[0, 1])


def test_empty_denominators_are_zero():
    s = scored([("a", "a"), ("a", "a")], ("a", "b", "c"))
    assert s["accuracy"] == s["macro_f1"] == 1.0  # b and c never occur: they do not count
    assert s["matthews"] == 0.0
    assert s["per_class"]["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    s = scored([("a", "b"), ("a", "b")], ("a", "b"))
    assert (s["accuracy"], s["macro_f1"], s["matthews"]) == (0, 0, 0)


def test_scores_of_unusable_examples():
    with pytest.raises(UserError, match="there is no labelled example"):
        scored([], ("a", "b"))
    with pytest.raises(UserError, match="unknown label 'z'"):
        scored([("a", "a"), ("z", "a")], ("a", "b"))
    head = Classification(labels=("a", "b"), bad_rows="skip")
    examples = [Example("t", gold="b"), Example("t"), Example("t", gold="a")]
    with pytest.warns(UserWarning, match="1 rows skipped"):
        s = head.score(examples, [{"label": "b"}, {"label": "b"}, {"label": "b"}])
    assert s["confusion_matrix"] == {"a": {"a": 0, "b": 1}, "b": {"a": 0, "b": 1}}


def test_scores_against_their_definitions():
    """Matthews as the correlation of one-hot matrices (Gorodkin 2004, eq. 1), F1 from precision and recall."""
    random_ = np.random.default_rng(1)
    for _ in range(20):
        gold, said = random_.integers(0, 3, 30), random_.choice([0, 1, 3], 30)
        s = scored([("abcd"[g], "abcd"[p]) for g, p in zip(gold, said, strict=True)], tuple("abcd"))
        x, y = np.eye(4)[gold], np.eye(4)[said]
        x, y = x - x.mean(0), y - y.mean(0)
        assert s["matthews"] == pytest.approx((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))
        f1s = []
        for k in sorted({*gold.tolist(), *said.tolist()}):
            tp = ((gold == k) & (said == k)).sum()
            precision = tp / max((said == k).sum(), 1)
            recall = tp / max((gold == k).sum(), 1)
            f1s.append(2 * precision * recall / (precision + recall) if tp else 0.0)
        assert s["macro_f1"] == pytest.approx(np.mean(f1s))


def test_real_files(shared):
    rows = {
        "sst2/train.tsv": ({"text_column": 0, "label_column": 1, "header": False}, ("0", "1")),
        "pairs/rte/train.tsv": (
            {"text_column": "sentence1", "pair_column": "sentence2"},
            ("entailment", "not_entailment"),
        ),
        "zh/fewclue/bustm/train_few_all.json": ({"text_column": "sentence1", "pair_column": "sentence2"}, ("0", "1")),
        "noisy/airline/Tweets.csv": ({"label_column": "airline_sentiment"}, ("negative", "neutral", "positive")),
    }
    for name, (options, labels) in rows.items():
        head = Classification(**options)
        assert head.fit(head.read(shared(f"data/{name}"))).labels == labels
