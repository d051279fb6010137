"""The exact step: what counts in the loss, N replicas = 1, the oracle's steps through the model; the recipe at work.

Run as a program (`python test_training.py REPLICAS OUT.json`) it computes the scenarios on that many logical CPUs.
"""

import io
import json
import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import UserError, batching, training
from keras_bert_lab.callbacks import JsonLog, Progress, tensorboard
from keras_bert_lab.config import BertConfig
from keras_bert_lab.encoder import encode, mlm_logits, nsp_logits
from keras_bert_lab.head import Features
from keras_bert_lab.optimizer import AdamW, Schedule
from keras_bert_lab.recipe import Recipe
from keras_bert_lab.training import ExactModel, Model
from keras_bert_lab.windows import Windows

Sparse = keras.losses.SparseCategoricalCrossentropy
X = np.array([[0, 0.1, 0.2], [0.3, 0.4, 0.5], [0.6, 0.7, 0.8], [0.9, 1, 1.1], [1.2, 1.3, 1.4]], "float32")
Y = np.arange(5, dtype="float32")
W = np.array([1, 0.5, 0, 3, 2], "float32")
TINY = BertConfig(
    vocab_size=60,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def linear(optimizer, **options):
    """CASES O18: one linear unit without bias, weights 1."""
    x = keras.Input([3])
    model = ExactModel(inputs=x, outputs=keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(x))
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def batches(x, y, w=None, size=4):
    return tf.data.Dataset.from_tensor_slices((x, y) if w is None else (x, y, w)).batch(size)


def rows(count, seed=0):
    """Random windows with a class a row and a class of uneven weight a piece."""
    chance = np.random.default_rng(seed)
    lengths = chance.integers(3, 20, count)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = chance.integers(5, 60, splits[-1]).astype("int32")
    windows = Windows(
        ids,
        np.zeros_like(ids),
        ids,
        ids,
        splits,
        example=np.arange(count, dtype="int32"),
        dropped=np.zeros(count, "int32"),
        begin=np.zeros(count, "int64"),
    )
    tags = chance.integers(0, 3, len(ids)).astype("int32")
    tags[chance.random(len(ids)) < 0.3] = -100
    return Features(
        windows,
        {"label": chance.integers(0, 3, count).astype("int32"), "tag": tags},
        {"label": chance.random(count).astype("float32"), "tag": chance.random(len(ids)).astype("float32")},
    )


def tiny(optimizer, accumulate=1, config=TINY):
    """The tiny BERT with a class a row and a class a piece."""
    keras.utils.set_random_seed(0)
    encoded = encode(config)
    outputs = {
        "label": keras.layers.Dense(3, name="classifier")(encoded.pooled),
        "tag": keras.layers.Dense(3, name="tagger")(encoded.sequence),
    }
    model = Model(inputs=encoded.inputs, outputs=outputs)
    model.compile(
        optimizer,
        {"label": Sparse(from_logits=True), "tag": Sparse(from_logits=True)},
        loss_weights={"label": 0.5, "tag": 2.0},
        metrics={"label": ["accuracy"], "tag": ["accuracy"]},
        accumulate=accumulate,
    )
    return model


def flat(model):
    return np.concatenate([w.ravel() for w in model.get_weights()]).tolist()


def scenarios(scope, replicas=1):
    """{name: numbers} of trainings that must not depend on the number of replicas."""
    found = {}

    def note(name, make, x, epochs=1):
        with scope():
            model = make()
        history = model.fit(x, epochs=epochs, verbose=0).history
        found[name] = flat(model) + [v for k in sorted(history) for v in history[k]] + [model.last_loss]
        return model

    sgd = keras.optimizers.SGD
    model = note("O18", lambda: linear(sgd(0.01)), batches(X, Y))
    found["evaluate"] = [
        *model.evaluate(batches(X, Y, W, 3), verbose=0),
        *model.evaluate(batches(X[:1], Y[:1]), verbose=0),
    ]
    found["predict"] = model.predict(X, batch_size=4, verbose=0).ravel().tolist()
    note("weights", lambda: linear(sgd(0.01)), batches(X, Y, W))
    note("clip", lambda: linear(sgd(1.0, global_clipnorm=0.1)), batches(X[:4], -Y[:4]))
    note("one row", lambda: linear(AdamW(0.01, global_clipnorm=0.1)), batches(X[:1], Y[:1]), 2)
    note("accumulated", lambda: linear(sgd(0.01), accumulate=2), batches(X, Y, W))
    data = rows(5)
    adam = lambda: AdamW(1e-3, epsilon=1e-3, global_clipnorm=1.0, use_ema=True, ema_momentum=0.5)  # noqa: E731
    # alone as one batch, on several replicas in two micro-batches each
    note("tiny BERT", lambda: tiny(adam(), 1 if replicas == 1 else 2), batching.dataset(data, 4, shuffle=True), 2)
    return found


def main(replicas, out):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    found = scenarios(strategy.scope, replicas)
    with strategy.scope():
        found["refused"] = []
        for options in ({"jit_compile": True}, {"steps_per_execution": 2}):
            with pytest.raises(UserError) as error:
                linear("sgd", **options)
            found["refused"].append(str(error.value))
        with pytest.raises(UserError) as error:
            linear(keras.optimizers.SGD(gradient_accumulation_steps=2))
        found["refused"].append(str(error.value))
    with open(out, "w") as file:
        json.dump(found, file)


@pytest.fixture(scope="module")
def alone():
    return scenarios(tf.distribute.get_strategy().scope)


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory):
    out = tmp_path_factory.mktemp("replicas") / "out.json"
    done = subprocess.run(
        [sys.executable, __file__, "2", str(out)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


# -- N replicas = 1 replica --------------------------------------------------------------------------------------


def test_two_replicas_are_one(alone, two_replicas):
    refused = two_replicas.pop("refused")
    assert two_replicas.keys() == alone.keys() and len(alone) == 8
    worst = {}
    for name, numbers in alone.items():
        a, b = np.array(numbers), np.array(two_replicas[name])
        worst[name] = float((np.abs(a - b) / np.maximum(1, np.abs(a))).max())
    print(f"largest relative difference between 1 and 2 replicas: {worst}")
    assert max(worst.values()) <= 1e-6
    assert [r.split(":")[0] for r in refused] == [
        "compile(jit_compile=True)",
        "compile(steps_per_execution=2)",
        "optimizer(gradient_accumulation_steps=...)",
    ]


def test_o18_numbers(alone, two_replicas):
    for found in (alone, two_replicas):
        np.testing.assert_allclose(found["O18"][:3], [1.0018857, 1.0017929, 1.0016999], atol=5e-8)
        step = np.array(found["clip"][:3]) - 1
        assert np.linalg.norm(step) == pytest.approx(0.1, rel=1e-5)


def test_accumulation_is_the_large_batch(alone):
    """On one device; for the tiny BERT the replicas' test compares 2 x 2 parts with the whole."""
    a, b = np.array(alone["accumulated"]), np.array(alone["weights"])
    worst = float((np.abs(a - b) / np.maximum(1, np.abs(b))).max())
    print(f"largest difference between 2 micro-batches and the whole: {worst:.2g}")
    assert worst <= 1e-6


def test_reported_numbers_are_over_sums(alone):
    """Epoch loss and metric of the weighted linear unit, by hand."""
    model = linear(keras.optimizers.SGD(0.0))
    loss, mae = model.evaluate(batches(X, Y, W, 2), verbose=0)
    error = X.sum(1) - Y
    assert loss == pytest.approx((W * error**2).sum() / W.sum(), rel=1e-6)
    assert mae == pytest.approx((W * abs(error)).sum() / W.sum(), rel=1e-6)
    history = model.fit(batches(X, Y, W, 2), verbose=0).history
    assert history["loss"][0] == pytest.approx(loss, rel=1e-6) and history["mae"][0] == pytest.approx(mae, rel=1e-6)
    assert model.last_loss == pytest.approx(error[4] ** 2, rel=1e-6)


# -- what counts in the loss (CASES O13) --------------------------------------------------------------------------


def tagger(places=4, classes=2, loss=None, **options):
    """Logits are the input: [batch, places, classes], with one weight that scales them (1)."""
    x = keras.Input([None, classes])
    scale = keras.layers.EinsumDense("blc,cd->bld", [None, classes], kernel_initializer="identity")
    model = ExactModel(inputs=x, outputs={"tag": scale(x)})
    model.compile(
        keras.optimizers.SGD(0.1), loss or {"tag": Sparse(from_logits=True)}, metrics={"tag": ["accuracy"]}, **options
    )
    return model


def test_o13_numbers():
    logits, y, two = np.zeros((1, 4, 2), "float32"), np.array([[0, 1, 0, 1]]), np.array([[1, 1, 0, 0]], "float32")
    model = tagger()
    by_weight = model.evaluate(logits, {"tag": y}, sample_weight={"tag": two}, verbose=0)
    by_label = model.evaluate(logits, {"tag": np.array([[0, 1, -100, -100]])}, verbose=0)
    padded = model.evaluate(
        np.zeros((1, 64, 2), "float32"),
        {"tag": np.pad(y, [(0, 0), (0, 60)])},
        sample_weight={"tag": np.pad(two, [(0, 0), (0, 60)])},
        verbose=0,
    )
    assert by_weight == by_label == padded
    assert by_weight[0] == pytest.approx(0.6931, abs=5e-5) and by_weight[1] == 0.5
    sure = np.array([[[1.0, 2.0, 3.0]]], "float32")
    assert tagger(classes=3).evaluate(sure, {"tag": np.array([[2]])}, verbose=0)[0] == pytest.approx(0.407606, abs=5e-7)
    from keras_bert_lab.losses import SparseCategoricalCrossentropy

    smooth = tagger(classes=3, loss={"tag": SparseCategoricalCrossentropy(label_smoothing=0.1)})
    assert smooth.evaluate(sure, {"tag": np.array([[2]])}, verbose=0)[0] == pytest.approx(0.507606, abs=5e-7)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_nothing_labelled_is_loss_0_and_gradient_0(accumulate):
    logits = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")
    for y, w in ((np.full((4, 3), -100), None), (np.zeros((4, 3), int), {"tag": np.zeros((4, 3), "float32")})):
        model = tagger(accumulate=accumulate)
        before = model.get_weights()[0].copy()
        history = model.fit(logits, {"tag": y}, sample_weight=w, batch_size=2, verbose=0).history
        assert history["loss"] == [0.0] and (model.get_weights()[0] == before).all()


def test_weight_0_hides_infinity():
    """A place of weight 0 may hold any nonsense in the target: neither loss nor gradient see it."""
    x, y, w = X.copy(), Y.copy(), np.array([1, 1, 1, 1, 0], "float32")
    y[4] = np.inf
    model = linear(keras.optimizers.SGD(0.01))
    model.fit(batches(x, y, w, 5), verbose=0)
    plain = linear(keras.optimizers.SGD(0.01))
    plain.fit(batches(x[:4], y[:4], None, 4), verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)


def test_several_outputs_and_regularisation():
    """total = sum of loss_weights * weighted means + added losses; outputs without loss are let be."""
    x = keras.Input([3])
    outputs = {
        "a": keras.layers.Dense(1, name="a")(x),
        "b": keras.layers.Dense(1, name="b", kernel_regularizer="l2")(x),
        "free": keras.layers.Dense(2, name="free")(x),
    }
    model = ExactModel(inputs=x, outputs=outputs)
    model.compile(
        keras.optimizers.SGD(0.0),
        {"a": "mse", "b": keras.losses.MeanAbsoluteError()},
        loss_weights={"a": 3.0, "b": 0.5},
    )
    w = {"a": W, "b": np.ones(5, "float32")}
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):  # the free output
        history = model.fit(X, {"a": Y, "b": -Y}, sample_weight=w, batch_size=2, shuffle=False, verbose=0).history
    a, b = (model.predict(X, verbose=0)[k][:, 0] for k in "ab")
    a, b = (W * (a - Y) ** 2).sum() / W.sum(), abs(b + Y).mean()
    extra = 0.01 * (model.get_layer("b").get_weights()[0] ** 2).sum()
    assert history["a_loss"][0] == pytest.approx(a, rel=1e-5) and history["b_loss"][0] == pytest.approx(b, rel=1e-5)
    assert history["loss"][0] == pytest.approx(3 * a + 0.5 * b + extra, rel=1e-5)
    assert float(model.compute_loss(y={"a": Y, "b": -Y}, y_pred=model(X), sample_weight=w)) == pytest.approx(
        3 * a + 0.5 * b + extra, rel=1e-5
    )


def test_reduction_sum_stays_a_sum():
    model = linear(keras.optimizers.SGD(0.0))
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum"))
    model.fit(batches(X, Y, None, 5), verbose=0)
    gradient = 2 * (X.sum(1) - Y) @ X
    np.testing.assert_allclose(model.get_weights()[0][:, 0], 1 - 0.01 * gradient, rtol=1e-5)
    assert model.last_loss == pytest.approx(((X.sum(1) - Y) ** 2).sum(), rel=1e-6)


def test_same_as_keras_where_keras_is_right():
    """Unweighted even batches on one device: weights and losses of keras.Model, for losses given in several ways."""
    for loss in ("mse", keras.losses.Huber()):
        found = []
        for kind in (keras.Model, ExactModel):
            keras.utils.set_random_seed(1)
            x = keras.Input([3])
            model = kind(inputs=x, outputs=keras.layers.Dense(1)(x))
            model.compile(keras.optimizers.Adam(0.1), loss)
            history = model.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0).history
            found.append([*np.concatenate([w.ravel() for w in model.get_weights()]), *history["loss"]])
        np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda m: m.fit(X, {"tog": Y}, verbose=0), "targets 'tog'"),
        (lambda m: m.compile("sgd", {"tog": "mse"}) or m.fit(X, {"tag": Y}, verbose=0), "'tog'"),
        (lambda m: m.compile("sgd", "mse", accumulate=0), "accumulate"),
    ],
)
def test_refuses(call, culprit):
    x = keras.Input([3])
    model = ExactModel(inputs=x, outputs={"tag": keras.layers.Dense(1, name="tag")(x)})
    model.compile("sgd", "mse")
    with pytest.raises((UserError, ValueError), match=culprit):
        call(model)


def test_loss_scaling():
    """mixed_float16: Keras' LossScaleOptimizer skips a step with infinite gradients and halves its scale."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = linear(AdamW(0.01, global_clipnorm=1.0))
    finally:
        keras.config.set_dtype_policy(policy)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    before = model.get_weights()[0].copy()
    model.fit(batches(X * 6e4, Y * 0, None, 5), verbose=0)
    assert (model.get_weights()[0] == before).all() and float(model.optimizer.dynamic_scale) == 2.0**14
    model.fit(batches(X, Y, None, 5), verbose=0)
    step = model.get_weights()[0] - before
    assert (step != 0).all() and np.isfinite(step).all() and np.isfinite(model.last_loss)


def test_saved_model_comes_back_compiled(tmp_path):
    model = linear(AdamW(Schedule(0.01, steps=10)), accumulate=2)
    model.fit(batches(X, Y), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is ExactModel and again._accumulate == 2 and int(again.optimizer.iterations) == 2
    for m in (model, again):
        m.fit(batches(X, Y), verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], again.get_weights()[0], rtol=1e-6)


def test_a_model_that_was_never_compiled_is_saved_too(tmp_path):
    inputs = keras.Input((3,))
    model = ExactModel(inputs, keras.layers.Dense(1)(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert not again.compiled
    np.testing.assert_array_equal(model.get_weights()[0], again.get_weights()[0])


# -- the oracle's steps through the whole model -------------------------------------------------------------------


def pretraining_model(config):
    """Three inputs and the masked places in, MLM and NSP logits out."""
    encoded = encode(config)
    places = keras.Input((None,), dtype="int32", name="masked_lm_positions")
    outputs = {"mlm": mlm_logits(encoded, places), "nsp": nsp_logits(encoded)}
    return Model(inputs={**encoded.inputs, "masked_lm_positions": places}, outputs=outputs)


def pretraining_batch(golden, name):
    get = lambda key: golden[f"{name}.{key}"]  # noqa: E731
    x = {
        "input_ids": get("input_ids"),
        "attention_mask": get("input_mask"),
        "token_type_ids": get("segment_ids"),
        "masked_lm_positions": get("masked_lm_positions"),
    }
    y = {"mlm": get("masked_lm_ids"), "nsp": get("next_sentence_labels")[:, 0]}
    w = {"mlm": get("masked_lm_weights"), "nsp": np.ones(len(y["nsp"]), "float32")}
    return x, y, w


def undropped(folder):
    config = BertConfig.from_file(folder)
    return config.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def load(model, reader, slot=""):
    """Values of the checkpoint for each of the model's trainable variables, by the rule TF1 name = ``bert/`` + path."""
    there = reader.get_variable_to_shape_map()
    names = [v.path if v.path in there else f"bert/{v.path}" for v in model.trainable_variables]
    return names, [reader.get_tensor(name + slot) for name in names]


def test_three_original_pretraining_steps(shared):
    """b0, b1, b0 from the checkpoint's weights, slots and step count (optimizer_step.npz, B)."""
    folder = shared("oracle/tiny_en/bert_model.ckpt.index").parent
    reader, step, golden = (
        tf.train.load_checkpoint(str(folder / "bert_model.ckpt")),
        np.load(folder / "optimizer_step.npz"),
        np.load(folder / "golden.npz"),
    )
    model = pretraining_model(undropped(folder))
    names, values = load(model, reader)
    assert len(names) == 62
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)
    optimizer = AdamW(Schedule(1e-3, 1000, 100, kind="bert"), bias_correction=False, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    for slot, slots in (("/adam_m", optimizer._momentums), ("/adam_v", optimizer._velocities)):
        for variable, value in zip(slots, load(model, reader, slot)[1], strict=True):
            variable.assign(value)
    optimizer.iterations.assign(5)
    model.compile(optimizer, Sparse(from_logits=True))
    losses = []
    for i, name in enumerate(("b0", "b1", "b0")):
        x, y, w = pretraining_batch(golden, name)
        rate = float(optimizer.learning_rate)
        assert rate == pytest.approx(float(step["B.learning_rate"][i]), rel=1e-6)
        model.train_on_batch(x, y, sample_weight=w)
        losses.append(model.last_loss)
    # the original adds 1e-5 to the sum of weights (about 20): 5e-7 of the MLM loss
    np.testing.assert_allclose(losses, step["B.total_loss_before"], rtol=2e-6)
    part, worst = step["word_embeddings_rows"], []
    for i, name in enumerate(names):
        trio = (
            ("", model.trainable_variables[i]),
            ("/adam_m", optimizer._momentums[i]),
            ("/adam_v", optimizer._velocities[i]),
        )
        for slot, ours in trio:
            table = name == "bert/embeddings/word_embeddings"
            theirs = step[f"B.after3:{name}{slot}" + (":rows" if table else "")]
            ours = ours.numpy()[part] if table else ours.numpy()
            worst.append((float((abs(ours - theirs) / np.maximum(1, abs(theirs))).max()), name + slot))
    print(f"largest difference to the original's three steps: {max(worst)}")
    assert len(worst) == 3 * 62 and max(worst)[0] <= 1e-6


@pytest.mark.parametrize("folder", ["tiny_en", "tiny_zh"])
def test_original_finetuning_step_through_the_model(shared, folder):
    """One step of the classifier from zero slots, with the dense norm; see test_optimizer for the original's own."""
    folder = shared(f"oracle/{folder}/finetune_step.npz").parent
    reader, step, golden = (
        tf.train.load_checkpoint(str(folder / "bert_model.ckpt")),
        np.load(folder / "finetune_step.npz"),
        np.load(folder / "golden.npz"),
    )
    encoded = encode(undropped(folder))
    labels = golden["classifier.output_bias"].shape[0]
    model = Model(
        inputs=encoded.inputs, outputs={"label": keras.layers.Dense(labels, name="classifier")(encoded.pooled)}
    )
    own = {
        "classifier/kernel": golden["classifier.output_weights"].T,
        "classifier/bias": golden["classifier.output_bias"],
    }
    for variable in model.trainable_variables:
        variable.assign(own[variable.path] if variable.path in own else reader.get_tensor(f"bert/{variable.path}"))
    before = [v.numpy() for v in model.trainable_variables]
    model.compile(
        training.optimizer(Recipe(optimizer="bert", learning_rate=1e-3, warmup=0), 10**9), Sparse(from_logits=True)
    )
    x = dict(zip(batching.INPUTS, (golden[f"b0.{k}"] for k in ("input_ids", "input_mask", "segment_ids")), strict=True))
    model.train_on_batch(x, {"label": golden["b0.classifier_labels"].ravel()})
    assert model.last_loss == pytest.approx(float(step["loss"]), rel=1e-6)
    scale = float(step["global_norm_as_clipped"]) / float(step["global_norm_dense"])
    worst = []
    for i, variable in enumerate(model.trainable_variables):
        name = {"classifier/kernel": "output_weights", "classifier/bias": "output_bias"}.get(
            variable.path, f"bert/{variable.path}"
        )
        table = name == "bert/embeddings/word_embeddings"
        tail, turn = (":rows" if table else ""), (np.transpose if name == "output_weights" else np.asarray)
        part = (lambda a: a[step["word_embeddings_rows"]]) if table else (lambda a: a)
        m, v = (turn(step[f"after1:{name}/adam_{s}{tail}"]).astype(float) * scale**p for s, p in (("m", 1), ("v", 2)))
        decay = 0 if any(s in name for s in ("LayerNorm", "bias")) else 0.01
        start = part(before[i]).astype(float)
        after = start - 1e-3 * (m / (np.sqrt(v) + 1e-6) + decay * start)
        for what, ours, wanted in (
            ("weight", variable, after),
            ("m", model.optimizer._momentums[i], m),
            ("v", model.optimizer._velocities[i], v),
        ):
            worst.append((float(abs(part(ours.numpy()) - wanted).max()), f"{what} of {name}"))
    print(f"largest difference to the original's fine-tuning step: {max(worst)}")
    assert max(worst)[0] <= 1e-6


# -- the recipe at work -------------------------------------------------------------------------------------------


class StubHead:
    def losses(self):
        return {"label": Sparse(from_logits=True), "tag": Sparse(from_logits=True)}

    def metrics(self):
        return {"label": [keras.metrics.SparseCategoricalAccuracy("accuracy")], "tag": []}


def compiled(recipe, steps):
    """A small network with the tiny BERT's inputs and outputs, quick to trace."""
    keras.utils.set_random_seed(recipe.seed)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in batching.INPUTS}
    hidden = keras.layers.Embedding(60, 4, name="embeddings")(inputs["input_ids"])
    hidden *= keras.ops.cast(inputs["attention_mask"] - inputs["token_type_ids"], "float32")[..., None]
    outputs = {
        "label": keras.layers.Dense(3, name="classifier")(keras.layers.GlobalMaxPool1D()(hidden)),
        "tag": keras.layers.Dense(3, name="tagger")(hidden),
    }
    model = ExactModel(inputs=inputs, outputs=outputs)
    training.compile(model, StubHead(), recipe, steps)
    return model


def test_run_stops_early_with_the_best_weights(tmp_path, capsys):
    recipe = Recipe(epochs=9, batch_size=4, learning_rate=1e-3, patience=2)
    data = batching.dataset(rows(10), 4, shuffle=True)
    model = compiled(recipe, 27)
    scores, weights = iter([0.1, 0.7, 0.7, 0.6, 0.9]), []

    def judge():
        weights.append(model.get_weights())
        return {"accuracy": next(scores), "table": {"a": {"f1": 1.0}}}

    history = training.run(model, data, recipe, judge=judge, main_metric="accuracy", log_dir=tmp_path)
    assert history.epochs["dev_accuracy"] == [0.1, 0.7, 0.7, 0.6]
    assert history.best == {"accuracy": 0.7, "table": {"a": {"f1": 1.0}}} and history.best_epoch == 2
    assert history.stopped == "no better dev accuracy than 0.7000 (epoch 2) in 2 epochs"
    for a, b in zip(model.get_weights(), weights[1], strict=True):
        assert (a == b).all()
    assert any((a != b).any() for a, b in zip(model.get_weights(), weights[3], strict=True))
    # a further line may say that there is no TensorBoard here
    out = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("TensorBoard")]
    assert len(out) == 4 and out[1].startswith("epoch 2/9: ") and "dev_accuracy 0.7000" in out[1] and "left)" in out[1]

    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if "step" in line]
    assert [line["step"] for line in steps] == list(range(1, 13)) and len(log) == 16
    rate = Schedule(1e-3, 27)
    assert [line["learning_rate"] for line in steps] == pytest.approx([float(rate(i)) for i in range(12)], rel=1e-5)
    assert all(line["tokens_per_s"] > line["examples_per_s"] > 0 and math.isfinite(line["loss"]) for line in steps)
    assert (
        log[3]["epoch"] == 1
        and log[3]["dev_accuracy"] == 0.1
        and log[3]["loss"] == pytest.approx(history.epochs["loss"][0], rel=1e-5)
    )


def test_last_rate_is_0_and_seed_reproduces():
    recipe = Recipe(epochs=2, batch_size=4, learning_rate=1e-2, seed=3)
    found = []
    for seed in (3, 3, 4):
        model = compiled(recipe.replace(seed=seed), 6)
        training.run(model, batching.dataset(rows(10), 4, shuffle=True, seed=seed), recipe, verbose=0)
        assert float(model.optimizer.learning_rate) == 0.0 and int(model.optimizer.iterations) == 6
        found.append(flat(model))
    assert found[0] == found[1] != found[2]


def test_nan_stops_with_step_and_remedy(tmp_path):
    data = rows(10)
    data.w["label"][:] = 1
    data.w["label"][7] = np.nan
    recipe = Recipe(epochs=2, batch_size=4)
    model = compiled(recipe, 6)
    with pytest.raises(
        UserError, match=r"training step \d \(batch \d of its epoch\): the loss is nan; lower the learning rate"
    ):
        training.run(model, batching.dataset(data, 4), recipe, log_dir=tmp_path, verbose=0)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["loss"] is None


def test_run_refuses():
    recipe = Recipe(epochs=1)
    model = compiled(recipe, 3)
    with pytest.raises(UserError, match="how many batches"):
        training.run(model, batching.dataset(rows(4), 4).repeat(), recipe)
    with pytest.raises(UserError, match="dev scores: 'f1'"):
        training.run(
            model, batching.dataset(rows(4), 4), recipe, judge=lambda: {"accuracy": 1.0}, main_metric="f1", verbose=0
        )


def test_freeze():
    model = tiny("sgd", config=TINY.replace(num_hidden_layers=2))
    everything = {v.path for v in model.trainable_variables}
    frozen = training.freeze(model, "embeddings")
    assert frozen and all(p.startswith("embeddings/") for p in frozen)
    assert set(training.freeze(model, 1)) - set(frozen) == {p for p in everything if p.startswith("encoder/layer_0/")}
    assert {v.path.split("/")[0] for v in model.trainable_variables} == {"encoder", "pooler", "classifier", "tagger"}
    training.freeze(model, "encoder")
    assert {v.path.split("/")[0] for v in model.trainable_variables} == {"pooler", "classifier", "tagger"}
    before = model.get_weights()
    model.compile("sgd", Sparse(from_logits=True))
    model.fit(batching.dataset(rows(4), 4), verbose=0)
    changed = {w.path for w, b in zip(model.weights, before, strict=True) if (w.numpy() != b).any()}
    assert changed == {v.path for v in model.trainable_variables}
    assert training.freeze(model, "none") == [] and {v.path for v in model.trainable_variables} == everything
    for spec, said in ((3, "has 2 layers"), ("head", "unknown")):
        with pytest.raises(UserError, match=said):
            training.freeze(model, spec)


def test_recipe():
    recipe = Recipe.from_dict(json.loads(json.dumps(Recipe(epochs=2, freeze=3, warmup=10).to_dict())))
    assert recipe == Recipe(epochs=2, freeze="3", warmup=10.0) and recipe.replace(epochs=3).epochs == 3
    with pytest.raises(
        UserError, match=r"recipe: 'learning_rat': there is no such option; did you mean 'learning_rate'\?"
    ):
        Recipe.from_dict({"learning_rat": 1})
    for bad in (
        {"epochs": 0},
        {"epochs": 1.5},
        {"epochs": True},
        {"learning_rate": "fast"},
        {"learning_rate": float("nan")},
        {"freeze": "half"},
        {"accumulate": 64},
        {"optimizer": "sgd"},
        {"optimizer": "bert", "schedule": "cosine"},
    ):
        with pytest.raises(UserError, match=f"recipe: {list(bad)[-1]}"):
            Recipe(**bad)
    bert = training.optimizer(Recipe(optimizer="bert", clip_norm=0), 10)
    assert not bert.bias_correction and bert.global_clipnorm is None and bert._learning_rate.kind == "bert"
    assert training.optimizer(Recipe(warmup=100), 10)._learning_rate.warmup_steps == 10


def test_progress_on_a_terminal():
    out = io.StringIO()
    out.isatty = lambda: True
    progress = Progress(2, 3, out)
    progress.set_model(linear("sgd"))
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    progress.began -= 65
    progress.on_train_batch_end(0, {"loss": 0.5})
    assert out.getvalue().startswith("epoch 1/2, step 1/3, 5:25 left, loss 0.5000") and out.getvalue().endswith("\r")
    progress.on_epoch_end(0, {"loss": 0.25})
    assert out.getvalue().endswith("\n")


def test_json_log_without_a_plan(tmp_path):
    model = linear(keras.optimizers.SGD(0.25))
    model.fit(batches(X, Y), verbose=0, callbacks=[JsonLog(tmp_path / "new" / "log.jsonl")])
    first = json.loads((tmp_path / "new" / "log.jsonl").read_text().splitlines()[0])
    assert first["learning_rate"] == 0.25 and first.keys() == {"step", "epoch", "loss", "learning_rate", "seconds"}


def test_without_tensorboard_a_line_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("keras_bert_lab.callbacks.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'keras_bert_lab\[tensorboard\]'"):
        tensorboard(tmp_path)
    training.run(linear(keras.optimizers.SGD(0.1)), batches(X, Y), Recipe(epochs=1), log_dir=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]
    assert "TensorBoard files: are not written" in capsys.readouterr().out


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
