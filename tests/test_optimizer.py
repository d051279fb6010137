"""The step against the original AdamWeightDecayOptimizer's and Keras' own; the schedule against create_optimizer's."""

import contextlib
import csv
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import UserError
from keras_bert_lab import optimizer as optimizer_module
from keras_bert_lab.optimizer import AdamW, Schedule


def variable(path, value):
    """A Keras variable whose path is ``path``."""
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        made = keras.Variable(value, name=name)
    assert made.path == path
    return made


def original(value, gradient, m, v, rate, decayed, scale=1.0):
    """AdamWeightDecayOptimizer (optimization.py) in float64: new value, m, v."""
    value, gradient, m, v = (np.asarray(a, np.float64) for a in (value, gradient, m, v))
    gradient = gradient * scale
    m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    update = m / (np.sqrt(v) + 1e-6) + (0.01 * value if decayed else 0)
    return value - rate * update, m, v


def decayed(name):
    return not any(part in name for part in ("LayerNorm", "layer_norm", "bias"))


def close(name, ours, theirs, worst, tolerance=1e-6):
    error = np.abs(np.asarray(ours, np.float64) - theirs) / np.maximum(1, np.abs(theirs))
    worst.append((float(error.max()), name))
    assert error.max() <= tolerance, (name, error.max())


@pytest.fixture(params=["kernels", "compiled"])
def route(request, monkeypatch):
    """Both ways of updating: one kernel a variable, and, as for large variables, one compiled program for all."""
    if request.param == "compiled":
        monkeypatch.setattr("keras_bert_lab.optimizer.COMPILED", 1)
    return request.param


@pytest.fixture
def oracle(shared):
    folder = shared("oracle/tiny_en/bert_model.ckpt.index").parent
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    return folder, reader


def test_original_step(oracle, route):
    """One step from the checkpoint's weights and zero slots with the oracle's own gradients (optimizer_step.npz, A)."""
    folder, reader = oracle
    gradients, step = np.load(folder / "grads.npz"), np.load(folder / "optimizer_step.npz")
    rows = gradients["word_embeddings_rows"]
    assert (rows == step["word_embeddings_rows"]).all()
    names = [n for n in sorted(reader.get_variable_to_shape_map()) if "adam_" not in n and n != "global_step"]
    variables, given = [], []
    for name in names:
        variables.append(variable(name.removeprefix("bert/"), reader.get_tensor(name)))
        if name == "bert/embeddings/word_embeddings":
            # only some rows are kept: the others get one entry of the right length, for the global norm
            gradient = np.zeros(variables[-1].shape, np.float32)
            gradient[:, 0] = gradients["word_embeddings_row_l2"]
            gradient[rows] = gradients[f"grad:{name}:rows"]
        else:
            gradient = gradients[f"grad:{name}"]
        given.append(tf.constant(gradient))
    assert len(variables) == 62
    optimizer = AdamW(1e-3, bias_correction=False, global_clipnorm=1.0)
    optimizer.apply(given, variables)
    worst = []
    for i, name in enumerate(names):
        trio = ("", variables[i]), ("/adam_m", optimizer._momentums[i]), ("/adam_v", optimizer._velocities[i])
        for slot, ours in trio:
            key, ours = f"A.after1:{name}{slot}", ours.numpy()
            if name == "bert/embeddings/word_embeddings":
                key, ours = key + ":rows", ours[rows]
            close(key, ours, step[key], worst)
    assert len(worst) == 3 * 62
    print(f"largest difference to the original's step A: {max(worst)}")


@pytest.mark.parametrize("folder", ["tiny_en", "tiny_zh"])
def test_original_finetuning_step(shared, folder, route):
    """One fine-tuning step from zero slots, clipped by the dense norm.

    The original measured the norm over slices of the word embeddings that were not summed (as_clipped); we measure the
    dense gradient. So what we must reach is the original's formula with the other scale; and the original's own
    numbers must come out of that formula with theirs.
    """
    folder = shared(f"oracle/{folder}/finetune_step.npz").parent
    step = np.load(folder / "finetune_step.npz")
    golden = np.load(folder / "golden.npz")
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    rows, rate = step["word_embeddings_rows"], float(step["learning_rate"])
    names = [k.removeprefix("grad:").removesuffix(":rows") for k in step.files if k.startswith("grad:")]
    variables, given, start = [], [], {}
    for name in names:
        head = {"output_weights": "classifier.output_weights", "output_bias": "classifier.output_bias"}.get(name)
        start[name] = golden[head] if head else reader.get_tensor(name)
        variables.append(variable(name.removeprefix("bert/"), start[name]))
        if name == "bert/embeddings/word_embeddings":  # as a gather gives it, one row in two parts
            values = step[f"grad:{name}:rows"]
            values = np.concatenate([values[:1] * 0.25, values[1:], values[:1] * 0.75])
            given.append(tf.IndexedSlices(values, np.append(rows, rows[:1]), tf.constant(start[name].shape)))
        else:
            given.append(tf.constant(step[f"grad:{name}"]))
    optimizer = AdamW(rate, bias_correction=False, global_clipnorm=1.0)
    optimizer.apply(given, variables)
    worst = []
    for i, name in enumerate(names):
        part = (lambda a: a[rows]) if name == "bert/embeddings/word_embeddings" else (lambda a: a)
        tail = ":rows" if name == "bert/embeddings/word_embeddings" else ""
        before, gradient = part(start[name]), step[f"grad:{name}{tail}"]
        theirs = original(before, gradient, 0, 0, rate, decayed(name), 1 / float(step["global_norm_as_clipped"]))
        wanted = original(before, gradient, 0, 0, rate, decayed(name), 1 / float(step["global_norm_dense"]))
        ours = variables[i], optimizer._momentums[i], optimizer._velocities[i]
        for slot, a, b, c in zip(("", "/adam_m", "/adam_v"), theirs, wanted, ours, strict=True):
            close(f"formula {name}{slot}", step[f"after1:{name}{slot}{tail}"], a, worst)
            close(f"ours {name}{slot}", part(c.numpy()), b, worst)
    print(f"largest difference to the fine-tuning step: {max(worst)}")


def test_original_schedule(shared):
    """lr_schedule.csv to 1e-6 relative, and what ours does instead."""
    worst, count = 0.0, 0
    with open(shared("oracle/tiny_en/lr_schedule.csv")) as file:
        for row in csv.DictReader(file):
            peak, steps, warmup = float(row["init_lr"]), int(row["num_train_steps"]), row["num_warmup_steps"]
            ours = Schedule(peak, steps, int(warmup or 0), kind="bert")(int(row["global_step"]))
            theirs = float(row["learning_rate_f32"])
            worst, count = max(worst, abs(float(ours) - theirs) / max(theirs, 1e-30)), count + 1
    print(f"largest relative difference over {count} rates: {worst:.2g}")
    assert count >= 40 and worst <= 1e-6


def test_schedule_kinds():
    linear = Schedule(1e-3, steps=100, warmup=0.1)
    rates = linear(np.arange(101)).numpy()
    assert rates[0] > 0 and rates.argmax() == 10 and rates[10] == np.float32(1e-3)
    assert rates[100] == 0 and (rates[:100] > 0).all()
    assert (np.diff(rates[:11]) > 0).all() and (np.diff(rates[10:]) < 0).all()
    np.testing.assert_allclose(rates[55], 0.5e-3, rtol=1e-6)
    assert float(linear(1000)) == 0
    cosine = Schedule(1.0, steps=10, warmup=0, kind="cosine")(np.arange(11)).numpy()
    np.testing.assert_allclose(cosine, 0.5 + 0.5 * np.cos(np.arange(11) / 10 * np.pi), atol=1e-6)
    assert cosine[10] == 0
    constant = Schedule(1.0, steps=10, warmup=3, kind="constant")(np.arange(10)).numpy()
    np.testing.assert_allclose(constant, [0.25, 0.5, 0.75] + [1] * 7)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(linear))
    assert again.get_config() == linear.get_config() and (again(np.arange(101)).numpy() == rates).all()


@pytest.mark.parametrize("options", [{"kind": "sine"}, {"steps": 0}, {"warmup": 11}, {"warmup": -1}, {"peak": -1.0}])
def test_schedule_refuses(options):
    with pytest.raises(UserError, match="Schedule"):
        Schedule(**({"peak": 1e-3, "steps": 10} | options))


def some(seed=0):
    chance = np.random.default_rng(seed)
    shapes = {"layer/kernel": (4, 3), "layer/bias": (3,), "norm/LayerNorm/gamma": (3,), "table/word_embeddings": (7, 2)}
    return {name: chance.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def trained(optimizer, steps=5, made=None):
    variables = made or [variable(name, value) for name, value in some().items()]
    for i in range(steps):
        optimizer.apply([tf.constant(g) for g in some(i + 1).values()], variables)
    return variables


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"global_clipnorm": 0.5},
        {"clipnorm": 0.5},
        {"clipvalue": 0.1},
        {"use_ema": True, "ema_momentum": 0.9},
        {"use_ema": True, "ema_overwrite_frequency": 2},
        {"loss_scale_factor": 8.0},
        {"amsgrad": True},
        {"gradient_accumulation_steps": 2},
    ],
)
def test_same_as_keras(options, route):
    """With bias correction, Keras' epsilon and decay everywhere we are keras.optimizers.AdamW, whatever the options."""
    theirs = keras.optimizers.AdamW(1e-2, weight_decay=0.1, **options)
    ours = AdamW(1e-2, weight_decay=0.1, epsilon=1e-7, no_decay=(), **options)
    for a, b in zip(trained(theirs), trained(ours), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-7)
    assert [v.shape for v in theirs.variables] == [v.shape for v in ours.variables]
    for a, b in zip(theirs.variables, ours.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-7, err_msg=a.path)


def test_decay_goes_by_path(route):
    optimizer = AdamW(0.1, weight_decay=0.5)
    variables = [
        variable(n, np.ones(2, "float32"))
        for n in (
            "encoder/layer_0/attention/self/query/kernel",
            "embeddings/word_embeddings",
            "embeddings/LayerNorm/gamma",
            "embeddings/LayerNorm/beta",
            "pooler/dense/bias",
            "cls/predictions/output_bias",
            "layer_normalization_3/gamma",
            "classifier/kernel",
        )
    ]
    optimizer.apply([tf.zeros(2)] * len(variables), variables)
    changed = [v.path for v in variables if (v.numpy() != 1).any()]
    assert changed == [variables[0].path, variables[1].path, variables[7].path]
    assert [optimizer.decays(v) for v in variables] == [True, True] + [False] * 5 + [True]
    np.testing.assert_allclose(variables[0].numpy(), 1 - 0.1 * 0.5, rtol=1e-6)

    fewer = AdamW(0.1, weight_decay=0.5)
    fewer.exclude_from_weight_decay(var_names=["kernel"])
    fewer.build(variables)
    assert [fewer.decays(v) for v in variables] == [False, True] + [False] * 6


def test_clipping_measures_slices_dense(route):
    """A row that occurs twice is one row of the gradient: its norm is that of the sum."""
    table = variable("table/word_embeddings", np.zeros((3, 2), "float32"))
    optimizer = AdamW(1.0, weight_decay=0.0, bias_correction=False, global_clipnorm=1.0)
    slices = tf.IndexedSlices(
        tf.constant([[3.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), tf.constant([0, 2, 2]), tf.constant([3, 2])
    )
    optimizer.apply([slices], [table])
    np.testing.assert_allclose(optimizer._momentums[0].numpy(), 0.1 * np.array([[0.6, 0], [0, 0], [0, 0.8]]), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_gradients_do_not_pass_as_zero(bad, route):
    weight = variable("layer/kernel", np.ones(2, "float32"))
    AdamW(0.1, global_clipnorm=1.0).apply([tf.constant([bad, 1.0])], [weight])
    assert np.isnan(weight.numpy()).any()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(dtype):
    weight = keras.Variable(np.ones(4), dtype=dtype, name="kernel")
    optimizer = AdamW(0.125, weight_decay=0.0, epsilon=1e-4)
    optimizer.apply([tf.ones(4, dtype)], [weight])
    np.testing.assert_allclose(keras.ops.cast(weight, "float32"), 0.875, atol=4e-3)


def test_refuses_what_stands_still():
    with pytest.raises(UserError, match="bfloat16"):
        AdamW().build([keras.Variable(np.ones(4), dtype="bfloat16", name="kernel")])
    with pytest.raises(UserError, match="amsgrad"):
        AdamW(amsgrad=True, bias_correction=False)


def test_traced_and_compiled(route):
    """In a tf.function, and under XLA, as in eager mode."""
    plain = trained(AdamW(1e-2, global_clipnorm=0.5), steps=1)
    for jit in (False, True):
        variables, optimizer = [variable(n, v) for n, v in some().items()], AdamW(1e-2, global_clipnorm=0.5)
        optimizer.build(variables)
        tf.function(partial(trained, optimizer, 1, variables), jit_compile=jit)()
        for a, b in zip(plain, variables, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_saved_and_resumed(tmp_path, route):
    """A ``.keras`` file restores step count and slots: the next step is the uninterrupted run's."""

    def model():
        keras.utils.set_random_seed(1)
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        made.compile(AdamW(Schedule(1e-2, steps=9), global_clipnorm=1.0, bias_correction=False), "mse")
        return made

    x, y = np.arange(12.0).reshape(4, 3), np.ones((4, 2))
    whole, half = model(), model()
    whole.fit(x, y, epochs=4, shuffle=False, verbose=0)
    half.fit(x, y, epochs=2, shuffle=False, verbose=0)
    half.save(tmp_path / "half.keras")
    resumed = keras.models.load_model(tmp_path / "half.keras")
    assert resumed.optimizer.get_config() == half.optimizer.get_config()
    assert int(resumed.optimizer.iterations) == 2
    resumed.fit(x, y, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_large_variable_is_compiled_and_equal(monkeypatch):
    shape = (optimizer_module.COMPILED // 64, 64)
    chance = np.random.default_rng(0)
    start = chance.normal(size=shape).astype("float32")
    given = [chance.normal(size=shape).astype("float32") for _ in range(4)]
    found = {}
    for limit in (optimizer_module.COMPILED, 1 << 40):
        monkeypatch.setattr(optimizer_module, "COMPILED", limit)
        optimizer = AdamW(Schedule(1e-2, steps=4), global_clipnorm=1.0)
        variables = [variable("layer/kernel", start), variable("layer/bias", start[0])]
        optimizer.build(variables)
        apply = partial(optimizer.apply, trainable_variables=variables)
        step = partial(tf.function(lambda apply, g: apply([g, g[0]])), apply)
        for gradient in given:
            step(tf.constant(gradient))
        assert len(optimizer._programs) == (limit < 1 << 40)
        found[limit] = [v.numpy() for v in (*variables, *optimizer._momentums, *optimizer._velocities)]
    for one, other in zip(*found.values(), strict=True):
        assert np.abs(one - other).max() <= 1e-6 and np.abs(one - start.flat[0]).max() > 0
