"""Loss and metrics: what is averaged, on numbers computed by hand."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab.losses import (
    F1,
    Accuracy,
    BinaryCrossentropy,
    SparseCategoricalCrossentropy,
    SparseCategoricalFocal,
    labelled,
)


def reference(y, logits, smoothing=0.0, classes=None):
    """The docstring's formula in float64, position by position."""
    y, logits = np.asarray(y), np.asarray(logits, np.float64)
    out = np.zeros(y.shape)
    for at in np.ndindex(y.shape):
        if y[at] == -100:
            continue
        top = logits[at].max()
        p = logits[at] - top - math.log(np.exp(logits[at] - top).sum())
        out[at] = -(1 - smoothing) * p[y[at]] - smoothing * p.mean()
        if classes is not None:
            out[at] *= classes[y[at]]
    return out


def test_equal_logits_and_half_labelled_give_log_2():
    logits = np.zeros((1, 4, 2), np.float32)
    loss = SparseCategoricalCrossentropy()
    by_label = loss(np.array([[0, 1, -100, -100]]), logits)
    by_weight = loss(np.array([[0, 1, 0, 0]]), logits, sample_weight=np.array([[1.0, 1, 0, 0]]))
    assert float(by_label) == float(by_weight) == pytest.approx(0.693147, abs=1e-6)


def test_sixty_padded_positions_change_nothing():
    random = np.random.default_rng(0)
    y, logits = random.integers(0, 5, (3, 7)), random.normal(size=(3, 7, 5)).astype("float32")
    loss = SparseCategoricalCrossentropy(label_smoothing=0.1, class_weights=[1, 2, 3, 0.5, 0])
    longer = np.concatenate([logits, 50 * random.normal(size=(3, 60, 5)).astype("float32")], 1)
    want = float(loss(y, logits))
    assert float(loss(np.pad(y, [(0, 0), (0, 60)], constant_values=-100), longer)) == pytest.approx(want, abs=1e-6)
    weights = np.pad(np.ones((3, 7)), [(0, 0), (0, 60)])
    assert float(loss(np.pad(y, [(0, 0), (0, 60)]), longer, weights)) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(("smoothing", "want"), [(0.0, 0.407606), (0.1, 0.507606)])
def test_one_two_three(smoothing, want):
    loss = SparseCategoricalCrossentropy(label_smoothing=smoothing)
    assert float(loss([2], [[1.0, 2.0, 3.0]])) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("shape", [(6,), (4, 5)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("classes", [None, [0.5, 2.0, 0.0]])
def test_every_position_against_the_formula(shape, smoothing, classes):
    random = np.random.default_rng(1)
    y = np.where(random.random(shape) < 0.3, -100, random.integers(0, 3, shape))
    logits, w = 4 * random.normal(size=(*shape, 3)).astype("float32"), random.random(shape).astype("float32")
    loss = SparseCategoricalCrossentropy(smoothing, classes)
    want = reference(y, logits, smoothing, classes)
    worst = np.abs(loss.call(y, logits) - want).max()
    print(f"largest difference {worst:.2g}")
    assert worst < 2e-6
    real = y != -100
    mean = (want * w)[real].sum() / w[real].sum()
    assert float(loss(y, logits, w)) == pytest.approx(mean, abs=2e-6)


@pytest.mark.parametrize("logits", [np.zeros((2, 3, 2)), np.full((2, 3, 2), np.inf), np.full((2, 3, 2), np.nan)])
def test_nothing_labelled_is_zero_without_gradient(logits):
    logits = tf.Variable(logits.astype("float32"))
    loss = SparseCategoricalCrossentropy(0.1)
    for y, w in ((np.full((2, 3), -100), None), (np.zeros((2, 3), int), np.zeros((2, 3)))):
        with tf.GradientTape() as tape:
            value = loss(y, logits, w)
        assert float(value) == 0.0
        if np.isfinite(logits.numpy()).all():
            assert not np.any(tape.gradient(value, logits))


def test_gradient_is_softmax_minus_target_over_the_labelled():
    logits = tf.Variable([[1.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 1.0, 1.0]])
    with tf.GradientTape() as tape:
        value = SparseCategoricalCrossentropy()([2, -100, 0], logits)
    soft = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(-1, keepdims=True)
    want = (soft - [[0, 0, 1], [0, 0, 0], [1, 0, 0]]) / 2
    want[1] = 0
    assert np.abs(tape.gradient(value, logits) - want).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = tf.cast([[60000.0, 1.0], [3.0, 4.0]], dtype)
    value = SparseCategoricalCrossentropy().call([1, 0], logits)
    assert value.dtype == tf.float32
    assert np.abs(value - reference([1, 0], tf.cast(logits, tf.float32))).max() < 1e-2


def test_row_weights_hold_for_all_positions():
    assert labelled([[1, -100], [2, 3]], [2.0, 0.5]).numpy().tolist() == [[2, 0], [0.5, 0.5]]
    loss = SparseCategoricalCrossentropy()
    y, logits = np.array([[0, 1], [1, 1]]), np.random.default_rng(2).normal(size=(2, 2, 2)).astype("float32")
    assert float(loss(y, logits, [1.0, 0.0])) == pytest.approx(float(loss(y[:1], logits[:1])), abs=1e-6)


def test_in_compile_and_fit_of_plain_keras():
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(3)])
    model.compile("sgd", SparseCategoricalCrossentropy(), weighted_metrics=[Accuracy(), F1(3, over=[1, 2])])
    random = np.random.default_rng(3)
    x, y = random.normal(size=(8, 5, 2)).astype("float32"), random.integers(0, 3, (8, 5)).astype("int32")
    y[:, 3:] = -100
    seen = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    logits = model.predict(x, verbose=0)
    real = y != -100
    assert seen["accuracy"] == pytest.approx((logits.argmax(-1) == y)[real].mean(), abs=1e-6)
    model.fit(x, y, sample_weight=np.ones((8, 5), "float32"), verbose=0)


def test_configs_come_back():
    losses = (
        SparseCategoricalCrossentropy(0.1, [1, 2]),
        SparseCategoricalFocal(1.5, [1, 2]),
        BinaryCrossentropy([1, 2], 0.5),
    )
    for loss in losses:
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert type(again) is type(loss) and again.get_config() == loss.get_config()
    for metric in (Accuracy(), F1(3, "micro", [1])):
        assert keras.metrics.deserialize(keras.metrics.serialize(metric)).get_config() == metric.get_config()


def test_smoothing_out_of_range_is_refused():
    with pytest.raises(ValueError, match="label_smoothing is 1"):
        SparseCategoricalCrossentropy(1.0)


def focal_by_hand(y, logits, gamma, classes):
    """Lin et al. 2017, equation 5, with p a softmax: values and their derivatives by the logits, float64."""
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    true = np.eye(z.shape[-1])[y]
    pt = (p * true).sum(-1)
    c = np.asarray(classes)[y]
    value = -c * (1 - pt) ** gamma * np.log(pt)
    # d value / d pt, times d pt / d z_k = pt * (true_k - p_k)
    slope = c * (gamma * (1 - pt) ** (gamma - 1) * np.log(pt) - (1 - pt) ** gamma / pt)
    return value, (slope * pt)[..., None] * (true - p)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_focal_loss_and_gradient_against_the_formula(gamma, shape):
    random = np.random.default_rng(4)
    y, z = random.integers(0, 3, shape), 3 * random.normal(size=(*shape, 3)).astype("float32")
    loss = SparseCategoricalFocal(gamma, [0.5, 2.0, 1.0])
    logits = tf.Variable(z)
    with tf.GradientTape() as tape:
        value = loss.call(y, logits)
    want, slope = focal_by_hand(y, z, gamma, [0.5, 2.0, 1.0])
    # relative: float32 rounds values about 14 at the sixth decimal
    close = [(value, want), (tape.gradient(value, logits), slope)]
    worst = [(np.abs(a - b) / (1 + np.abs(b))).max() for a, b in close]
    print(f"gamma {gamma}: largest differences {worst[0]:.2g}, {worst[1]:.2g}")
    assert max(worst) < 5e-6
    if gamma == 0:
        assert np.abs(value - SparseCategoricalCrossentropy(0, [0.5, 2.0, 1.0]).call(y, z)).max() < 1e-6
    partly = np.where(np.arange(y.size).reshape(shape) % 2, y, -100)
    labelled_only = want[partly != -100].mean()
    assert float(loss(partly, z)) == pytest.approx(labelled_only, rel=2e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_losses_of_sure_answers_are_finite_with_finite_gradients(gamma):
    z = np.array([[200.0, 0, 0], [-200, 0, 0], [1e4, -1e4, 0], [-1e4, 1e4, 0], [0, 0, 0]], np.float32)
    for loss, y, scores in (
        (SparseCategoricalFocal(gamma), np.zeros(5, int), z),
        (BinaryCrossentropy(gamma=gamma), np.ones((5, 1)), z[:, :1]),
    ):
        logits = tf.Variable(scores)
        with tf.GradientTape() as tape:
            value = loss.call(y, logits)
        assert np.isfinite(value).all() and np.isfinite(tape.gradient(value, logits)).all()
        assert value[0] < 1e-6 and value[1] > 50  # surely right, surely wrong


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("positive", [None, [3.0, 1.0, 0.0, 0.5]])
def test_binary_cross_entropy_and_gradient_against_the_formula(gamma, positive):
    random = np.random.default_rng(5)
    y, z = random.integers(0, 2, (6, 4)).astype("float32"), 3 * random.normal(size=(6, 4)).astype("float32")
    loss, logits = BinaryCrossentropy(positive, gamma), tf.Variable(z)
    with tf.GradientTape() as tape:
        value = loss.call(y, logits)
    c, p = np.ones(4) if positive is None else np.asarray(positive), 1 / (1 + np.exp(-z.astype(float)))
    want = -(y * c * (1 - p) ** gamma * np.log(p) + (1 - y) * p**gamma * np.log(1 - p))
    with_p = c * (gamma * (1 - p) ** (gamma - 1) * np.log(p) - (1 - p) ** gamma / p)
    without = -(gamma * p ** (gamma - 1) * np.log(1 - p) - p**gamma / (1 - p))
    slope = np.where(y == 1, with_p, without) * p * (1 - p) / 4
    assert np.abs(value - want.mean(-1)).max() < 5e-6
    assert np.abs(tape.gradient(value, logits) - slope).max() < 5e-6
    w = random.random(6).astype("float32")
    assert float(loss(y, z, w)) == pytest.approx((want.mean(-1) * w).sum() / w.sum(), abs=5e-6)
    assert float(loss(y, np.full_like(z, np.nan), np.zeros(6))) == 0.0
    if gamma == 0 and positive is None:
        stock = keras.losses.BinaryCrossentropy(from_logits=True)
        assert np.abs(value - stock.call(y, z)).max() < 1e-6


def test_a_negative_focus_is_refused():
    for make in (SparseCategoricalFocal, BinaryCrossentropy):
        with pytest.raises(ValueError, match="gamma is -1"):
            make(gamma=-1)


# ---- metrics -----------------------------------------------------------------------------------------------------


def logits_of(guesses, classes=2):
    return np.eye(classes, dtype="float32")[np.asarray(guesses)]


def test_f1_is_that_of_the_epochs_counts():
    metric = F1(2, over=[1])
    metric.update_state([1, 1, 1], logits_of([1, 1, 1]))  # tp 3
    assert float(metric.result()) == 1.0
    metric.update_state([0, 1], logits_of([1, 0]))  # fp 1, fn 1: alone it would be 0
    assert float(metric.result()) == pytest.approx(0.75)
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_f1_averages():
    y, guess = [0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 0, 1]
    # class 0: tp 1 fp 1 fn 1 -> 1/2; class 1: tp 2 fp 2 fn 1 -> 4/7; class 2: fn 1 -> 0; class 3 never occurs
    macro, micro = F1(4), F1(4, "micro", over=[0, 1, 2])
    for metric in (macro, micro):
        metric.update_state(y, logits_of(guess, 4))
    assert float(macro.result()) == pytest.approx((1 / 2 + 4 / 7 + 0) / 3)
    assert float(micro.result()) == pytest.approx(2 * 3 / (2 * 3 + 3 + 3))


def test_metrics_count_labelled_positions_only():
    y = np.array([[1, 0, -100, 1]])
    logits = logits_of([[1, 1, 1, 1]])
    weights = np.array([[1.0, 1.0, 1.0, 0.0]])
    accuracy, f1 = Accuracy(), F1(2, over=[1])
    for metric in (accuracy, f1):
        metric.update_state(y, logits, weights)
    assert float(accuracy.result()) == 0.5
    assert float(f1.result()) == pytest.approx(2 / 3)
    assert float(Accuracy().result()) == 0.0


def test_accuracy_is_weighted_and_adds_over_batches():
    metric = Accuracy()
    metric.update_state([0], logits_of([0]), [3.0])
    metric.update_state([0, 1], logits_of([1, 0]), [0.5, 0.5])
    assert float(metric.result()) == pytest.approx(0.75)
    assert float(metric.right) == 3.0 and float(metric.total) == 4.0


def test_f1_refuses_unknown_averages_and_classes():
    with pytest.raises(ValueError, match="choose macro or micro"):
        F1(2, "weighted")
    with pytest.raises(ValueError, match="the classes are 0 to 1"):
        F1(2, over=[2])
