"""The network against the original code's numbers and against a plain NumPy computation; nothing else may move them."""

import itertools
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab.config import ACTIVATIONS, BertConfig
from keras_bert_lab.encoder import Block, Encoder, encode, encoder, mlm_logits, nsp_logits
from keras_bert_lab.errors import UserError

TINY = BertConfig(
    vocab_size=40,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=512,
    initializer_range=0.3,
)
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BATCHES = ("b0", "b1", "full", "edge", "nomask", "rand", "one")


def rows(lengths=(9, 5, 1), length=9, seed=0):
    """Ids, mask and types of texts of these lengths, padded."""
    ids = np.random.default_rng(seed).integers(1, TINY.vocab_size, (len(lengths), length)).astype("int32")
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype("int32")
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": mask * (np.arange(length) > 3)}


def pretrained(config, positions=True):
    """A model with the heads of pretraining, [B, P] positions as its fourth input."""
    encoded = encode(config)
    inputs = dict(encoded.inputs)
    if positions:
        inputs["positions"] = keras.Input((None,), dtype="int32", name="positions")
    outputs = {"mlm": mlm_logits(encoded, inputs.get("positions")), "nsp": nsp_logits(encoded)}
    return keras.Model(inputs, {**outputs, "sequence": encoded.sequence, "embedding": encoded.layers[0]})


def scramble(model, seed=1):
    """Weights that make every term count: fresh biases are 0 and fresh gammas 1."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(variable.numpy() + random.normal(0, 0.2, variable.shape))
    return model


# ------------------------------------------------------------------------------------------------ the original


def load_original(model, folder):
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for variable in model.trainable_variables:
        name = variable.path if variable.path.startswith("cls/") else f"bert/{variable.path}"
        variable.assign(reader.get_tensor(name))
    return model


def batch_of(golden, batch):
    ids = golden[f"{batch}.input_ids"]
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    if batch != "nomask":
        given = {**given, "attention_mask": golden[f"{batch}.input_mask"]}
        given["token_type_ids"] = golden[f"{batch}.segment_ids"]
    return given


@pytest.mark.parametrize("folder", ["tiny_en", "tiny_zh"])
def test_every_layer_equals_the_originals(shared, folder):
    folder = shared(f"oracle/{folder}")
    config = BertConfig.from_file(folder)
    model = load_original(encoder(config, hidden_states=True, attention_probs=True), folder)
    golden = np.load(folder / "golden.npz")
    theirs = {"sequence": "sequence_output", "pooled": "pooled_output", "embedding": "embedding_output"}
    theirs.update({f"layer_{i}": f"encoder_layer_{i}" for i in range(config.num_hidden_layers)})
    worst = dict.fromkeys([*theirs, "attention_probs"], 0.0)
    for batch in BATCHES:
        for name, ours in model.predict(batch_of(golden, batch), verbose=0).items():
            original = golden[f"{batch}.{theirs.get(name, name)}"]
            if batch == "full" and name.startswith("attention"):
                ours = ours[:, :, golden["full.attention_query_rows"]]
            assert np.isfinite(ours).all()
            gap = np.abs(ours - original)
            if batch == "edge":  # row 1 has no token: the original gives noise of -10000's rounding
                assert gap[1].max() < 1e-3
                gap = np.delete(gap, 1, axis=0)
            name = "attention_probs" if name.startswith("attention") else name
            worst[name] = max(worst[name], float(gap.max()))
    print(folder.name, {name: f"{gap:.1e}" for name, gap in worst.items()})
    assert max(worst.values()) <= 1e-5


def test_pretraining_losses_and_gradients_equal_the_originals(shared):
    folder = shared("oracle/tiny_en")
    model = load_original(pretrained(BertConfig.from_file(folder).replace(**STILL)), folder)
    golden, gradients = np.load(folder / "golden.npz"), np.load(folder / "grads.npz")
    worst = {}

    def compare(name, ours, original):
        worst[name] = max(worst.get(name, 0.0), float(np.abs(np.asarray(ours) - original).max()))

    def losses(batch, training):
        inputs = {**batch_of(golden, batch), "positions": golden[f"{batch}.masked_lm_positions"]}
        output = model({name: tf.constant(value) for name, value in inputs.items()}, training=training)
        mlm, nsp = tf.nn.log_softmax(output["mlm"]), tf.nn.log_softmax(output["nsp"])
        weights = golden[f"{batch}.masked_lm_weights"]
        per_place = -tf.gather(mlm, golden[f"{batch}.masked_lm_ids"], batch_dims=2)
        mlm_loss = tf.reduce_sum(per_place * weights) / (weights.sum() + 1e-5)
        nsp_loss = -tf.reduce_mean(tf.gather(nsp, golden[f"{batch}.next_sentence_labels"], batch_dims=1))
        return mlm, per_place, mlm_loss, nsp, nsp_loss

    for batch in ("b0", "b1", "full"):
        mlm, per_place, mlm_loss, nsp, nsp_loss = losses(batch, training=False)
        if batch == "b0":
            compare("mlm_log_probs", mlm, golden["b0.mlm_log_probs"])
        top = golden[f"{batch}.mlm_top10_ids"]
        compare("mlm_top10", tf.gather(mlm, top, batch_dims=2), golden[f"{batch}.mlm_top10_log_probs"])
        compare("mlm_per_example", per_place, golden[f"{batch}.mlm_per_example_loss"])
        compare("mlm_loss", mlm_loss, golden[f"{batch}.mlm_loss"])
        compare("nsp_log_probs", nsp, golden[f"{batch}.nsp_log_probs"])
        compare("nsp_loss", nsp_loss, golden[f"{batch}.nsp_loss"])
        compare("total_loss", mlm_loss + nsp_loss, golden[f"{batch}.total_loss"])
    print({name: f"{gap:.1e}" for name, gap in worst.items()})
    assert max(worst.values()) <= 1e-5

    for training in (False, True):  # two ways to the same gradient: TensorFlow's and ours
        with tf.GradientTape() as tape:
            _, _, mlm_loss, _, nsp_loss = losses("b0", training)
            total = mlm_loss + nsp_loss
        found = tape.gradient(total, [variable.value for variable in model.trainable_variables])
        relative = {}
        for variable, gradient in zip(model.trainable_variables, found, strict=True):
            ours = tf.convert_to_tensor(gradient).numpy()
            name = variable.path if variable.path.startswith("cls/") else f"bert/{variable.path}"
            if variable.path == "embeddings/word_embeddings":
                original = gradients[f"grad:{name}:rows"]
                l2 = np.linalg.norm(ours, axis=1)
                assert np.abs(l2 - gradients["word_embeddings_row_l2"]).max() <= 1e-4 * l2.max()
                ours = ours[gradients["word_embeddings_rows"]]
            else:
                original = gradients[f"grad:{name}"]
            relative[variable.path] = float(np.abs(ours - original).max() / np.abs(original).max())
        # A key's bias moves every score of a query alike: its true gradient is 0, and both sides hold rounding.
        kept = {path: gap for path, gap in relative.items() if not path.endswith("key/bias")}
        print("training" if training else "inference", f"gradients: {max(kept.values()):.1e} of the largest entry")
        assert max(kept.values()) <= 1e-4, max(kept, key=kept.get)


# ------------------------------------------------------------------------------------------------------- NumPy


def reference(config, weights, ids, mask, types):
    """BERT and its variants in float64, one text at a time and without a mask: what is not there cannot matter."""

    def act(name, x):
        gate = {"swiglu": "silu", "geglu": "gelu"}.get(name, name)
        return {
            "gelu": lambda: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
            "gelu_new": lambda: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
            "relu": lambda: np.maximum(x, 0),
            "tanh": lambda: np.tanh(x),
            "linear": lambda: x,
            "silu": lambda: x / (1 + np.exp(-x)),
        }[gate]()

    def norm(x, path):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return centred / deviation * w[f"{path}/gamma"] + w[f"{path}/beta"]

    def dense(x, path):
        return x @ w[f"{path}/kernel"] + w[f"{path}/bias"]

    def turned(x):  # rotary: channels 2i, 2i+1 as a complex number, times e^(i m theta)
        m, i = np.arange(len(x))[:, None], np.arange(d // 2)
        z = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * m * 10000.0 ** (-2 * i / d))
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    w = {path: value.astype("float64") for path, value in weights.items()}
    d, pre = config.head_size, config.norm_position == "pre"
    sequences = []
    for row in range(len(ids)):
        at = np.flatnonzero(mask[row])
        x = w["embeddings/word_embeddings"][ids[row, at]] + w["embeddings/token_type_embeddings"][types[row, at]]
        if config.position_embedding == "learned":
            x = x + w["embeddings/position_embeddings"][at]
        elif config.position_embedding == "sinusoidal":
            angle = at[:, None] / 10000.0 ** (2 * (np.arange(x.shape[1]) // 2) / x.shape[1])
            x = x + np.where(np.arange(x.shape[1]) % 2, np.cos(angle), np.sin(angle))
        x = norm(x, "embeddings/LayerNorm")
        for layer in range(config.num_hidden_layers):
            p = f"encoder/layer_{layer}"
            y = norm(x, f"{p}/attention/output/LayerNorm") if pre else x
            contexts = []
            for head in range(config.heads_of(layer)):
                part = slice(head * d, head * d + d)
                q, k, v = (dense(y, f"{p}/attention/self/{name}")[:, part] for name in ("query", "key", "value"))
                if config.position_embedding == "rotary":
                    q, k = turned(q), turned(k)
                scores = np.exp(q @ k.T / math.sqrt(d))
                contexts.append(scores / scores.sum(-1, keepdims=True) @ v)
            x = x + dense(np.concatenate(contexts, -1), f"{p}/attention/output/dense")
            x = x if pre else norm(x, f"{p}/attention/output/LayerNorm")
            y = norm(x, f"{p}/output/LayerNorm") if pre else x
            inner = dense(y, f"{p}/intermediate/dense")
            if config.hidden_act in ("swiglu", "geglu"):
                inner = inner * act(config.hidden_act, dense(y, f"{p}/intermediate/gate"))
            else:
                inner = act(config.hidden_act, inner)
            x = x + dense(inner, f"{p}/output/dense")
            x = x if pre else norm(x, f"{p}/output/LayerNorm")
        x = norm(x, "encoder/LayerNorm") if pre else x
        sequences.append(x)
    pooled = np.stack([np.tanh(dense(x[0], "pooler/dense")) for x in sequences])
    hidden = [norm(act(config.hidden_act, dense(x, "cls/predictions/transform/dense")),
                   "cls/predictions/transform/LayerNorm") for x in sequences]  # fmt: skip
    logits = [h @ w["embeddings/word_embeddings"].T + w["cls/predictions/output_bias"] for h in hidden]
    nsp = pooled @ w["cls/seq_relationship/output_weights"].T + w["cls/seq_relationship/output_bias"]
    return sequences, logits, nsp


@pytest.mark.parametrize(
    "fields",
    [{"hidden_act": name} for name in ACTIVATIONS]
    + [
        {"norm_position": "pre"},
        {"position_embedding": "sinusoidal"},
        {"position_embedding": "rotary"},
        {"layer_norm_eps": 1e-3},
        {"type_vocab_size": 5},
        {"attention_heads": ((1,), (0, 2))},
        {"num_attention_heads": 1},
        {"num_hidden_layers": 1, "hidden_size": 6, "intermediate_size": 3},
        {"norm_position": "pre", "position_embedding": "rotary", "hidden_act": "swiglu",
         "attention_heads": ((0,), (1, 2))},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_against_numpy(fields):
    config = TINY.replace(**fields)
    model = scramble(pretrained(config, positions=False))
    given = rows((9, 5, 1))
    weights = {variable.path: variable.numpy() for variable in model.trainable_variables}
    sequences, logits, nsp = reference(config, weights, *given.values())
    output = model.predict(given, verbose=0)
    for row, expected in enumerate(sequences):
        assert np.abs(output["sequence"][row, : len(expected)] - expected).max() <= 1e-5
        assert np.abs(output["mlm"][row, : len(expected)] - logits[row]).max() <= 2e-5
    assert np.abs(output["nsp"] - nsp).max() <= 1e-5


def test_epsilon_counts_in_every_norm():
    """With inputs of variance 1e-6, 1e-12 and 1e-3 are far apart; NumPy says which one is in each norm."""
    for epsilon, fields in itertools.product((1e-12, 1e-3), ({}, {"norm_position": "pre"})):
        config = TINY.replace(layer_norm_eps=epsilon, **fields)
        model = scramble(pretrained(config, positions=False))
        for variable in model.trainable_variables:
            if not variable.path.endswith(("gamma", "beta")):
                variable.assign(variable.numpy() * 1e-3)
        given = rows((9,))
        weights = {variable.path: variable.numpy() for variable in model.trainable_variables}
        sequences, logits, _ = reference(config, weights, *given.values())
        output = model.predict(given, verbose=0)
        assert np.abs(output["sequence"][0] - sequences[0]).max() <= 1e-5
        assert np.abs(output["mlm"][0] - logits[0]).max() <= 1e-5


def test_the_two_gelus_are_told_apart():
    from keras_bert_lab.encoder import activation

    one = tf.constant([1.0])
    assert abs(float(activation("gelu", one)[0]) - 0.841345) < 1e-6
    assert abs(float(activation("gelu_new", one)[0]) - 0.841192) < 1e-6
    x = tf.linspace(-6.0, 6.0, 2001)
    gap = tf.abs(activation("gelu", x) - activation("gelu_new", x)).numpy()
    assert 4.6e-4 < gap.max() < 4.8e-4
    assert np.abs(activation("gelu_new", x) - activation("gelu_new", x, training=True)).max() < 1e-6


@pytest.mark.parametrize("position", ["post", "pre"])
@pytest.mark.parametrize("act", ["gelu", "gelu_new", "geglu"])
def test_gradients_in_training_equal_the_automatic_ones(position, act):
    model = scramble(pretrained(TINY.replace(norm_position=position, hidden_act=act, **STILL), positions=False))
    given = {name: tf.constant(value, "int32") for name, value in rows().items()}
    variables = [variable.value for variable in model.trainable_variables]
    both = []
    for training in (False, True):
        with tf.GradientTape() as tape:
            output = model(given, training=training)
            loss = tf.reduce_sum(tf.sin(output["mlm"])) + tf.reduce_sum(output["nsp"] ** 2)
        both.append([tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, variables)])
    for variable, automatic, ours in zip(model.trainable_variables, *both, strict=True):
        assert np.abs(automatic - ours).max() <= 1e-4 * max(np.abs(automatic).max(), 1e-1), variable.path


# ------------------------------------------------------------------------------- what must not change the answer


def test_padding_and_batch_do_not_matter():
    model = scramble(encoder(TINY, attention_probs=True))
    text = rows((7,), 7)
    alone = model.predict(text, verbose=0)
    worst = 0.0
    for length in (9, 16, 64, 512):
        padded = {name: np.pad(value, [(0, 0), (0, length - 7)]) for name, value in text.items()}
        others = rows([min(length, n) for n in (9, 3, 60, 1, 512, 8, 2)], length, seed=3)
        crowd = {name: np.concatenate([padded[name], others[name]]) for name in text}
        for given in (padded, crowd):
            output = model.predict(given, verbose=0)
            worst = max(worst, np.abs(output["sequence"][0, :7] - alone["sequence"][0]).max())
            worst = max(worst, np.abs(output["pooled"][0] - alone["pooled"][0]).max())
            probs = output["attention_probs_1"][0]
            worst = max(worst, np.abs(probs[:, :7, :7] - alone["attention_probs_1"][0]).max())
            assert probs[:, :7, 7:].max(initial=0.0) == 0.0
    print(f"padding and batch: {worst:.1e}")
    assert worst <= 1e-5


def test_mask_dtypes_and_no_mask():
    model = scramble(encoder(TINY))
    given = rows()
    expected = model.predict(given, verbose=0)["sequence"]
    for dtype in ("bool", "int32", "int64", "float32"):
        changed = {**given, "attention_mask": given["attention_mask"].astype(dtype)}
        assert np.array_equal(model.predict(changed, verbose=0)["sequence"], expected), dtype
        direct = model({name: tf.constant(value) for name, value in changed.items()})["sequence"]
        assert np.abs(direct - expected).max() <= 1e-5, dtype
    for missing in ({"attention_mask"}, {"token_type_ids"}, {"attention_mask", "token_type_ids"}):
        kept = {name: value for name, value in given.items() if name not in missing}
        full = {**given, "token_type_ids": given["token_type_ids"] * ("token_type_ids" not in missing)}
        assert np.abs(model(kept)["sequence"] - model(full)["sequence"]).max() <= 1e-5, missing
        pipeline = tf.data.Dataset.from_tensor_slices(kept).batch(2)
        assert np.abs(model.predict(pipeline, verbose=0)["sequence"] - model(full)["sequence"]).max() <= 1e-5
    other = scramble(encoder(TINY.replace(pad_token_id=7)))
    ids = np.where(given["attention_mask"], np.where(given["input_ids"] == 7, 8, given["input_ids"]), 7)
    masked = other({"input_ids": ids, "attention_mask": given["attention_mask"]})["sequence"]
    assert np.abs(other(ids)["sequence"] - masked).max() <= 1e-5


def test_call_styles():
    model = scramble(encoder(TINY))  # dropout 0.1 would show
    given = rows()
    direct = model(given)["pooled"].numpy()
    tensors = {name: tf.constant(value, "int32") for name, value in given.items()}
    targets = {"sequence": np.zeros((3, 9, 12)), "pooled": np.zeros((3, 12))}
    results = [model(tensors)["pooled"], model(given)["pooled"], model(given, training=False)["pooled"]]
    results += [model.predict(given, verbose=0)["pooled"], model.predict_on_batch(given)["pooled"]]
    results += [tf.function(model, jit_compile=jit)(tensors)["pooled"] for jit in (False, True)]
    losses = []
    for jit in (False, True):
        model.compile(loss="mse", jit_compile=jit)
        results.append(model.predict(given, verbose=0)["pooled"])
        losses.append(model.evaluate(given, targets, verbose=0, return_dict=True)["loss"])
    for result in results:
        assert np.abs(result - direct).max() <= 1e-5
    mean = np.mean(model(given)["sequence"].numpy() ** 2) + np.mean(direct**2)
    assert np.abs(np.array(losses) - mean).max() <= 1e-5


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("training", [False, True])
def test_rows_without_a_token_and_constant_rows_stay_finite(policy, training):
    config = TINY.replace(hidden_act="gelu_new")
    model = scramble(encoder(config, dtype=policy, attention_probs=True))
    given = rows((9, 0, 1))
    with tf.GradientTape() as tape:
        output = model(given, training=training)
        loss = tf.add_n([tf.reduce_sum(tf.cast(value, "float32") ** 2) for value in output.values()])
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    assert all(np.isfinite(tf.cast(value, "float32")).all() for value in output.values())
    assert all(np.isfinite(tf.convert_to_tensor(gradient)).all() for gradient in gradients if gradient is not None)
    assert output["attention_probs_0"].dtype == "float32"
    for variable in model.trainable_variables:  # every norm sees a constant row: variance 0, epsilon 1e-12
        if not variable.path.endswith(("gamma", "beta")):
            variable.assign(tf.ones_like(variable) * 0.1)
    assert all(np.isfinite(tf.cast(value, "float32")).all() for value in model(given, training=training).values())


def test_mixed_precision_is_near_and_keeps_float32_where_it_must():
    config = TINY
    full = scramble(encoder(config))
    for policy, near in (("mixed_float16", 2e-2), ("mixed_bfloat16", 2e-1)):
        mixed = encoder(config, dtype=policy)
        mixed.set_weights(full.get_weights())
        assert {variable.dtype for variable in mixed.trainable_variables} == {"float32"}
        output = mixed.predict(rows(), verbose=0)["sequence"]
        assert output.dtype == policy.removeprefix("mixed_")
        gap = np.abs(output.astype("float32") - full.predict(rows(), verbose=0)["sequence"]).max()
        print(policy, f"{gap:.1e}")
        assert 0 < gap <= near


# ---------------------------------------------------------------------------------------------- dropout, RematScope


def test_dropout_drops_as_often_as_it_says_and_keeps_the_mean():
    from keras_bert_lab.encoder import _dropout

    x = tf.ones([1001, 333])
    for rate in (0.1, 0.5, 0.003):
        y = _dropout(x, rate, tf.constant([7, 1], "int64"), site=2).numpy()
        count = x.shape.num_elements()
        assert abs((y == 0).mean() - rate) < 5 * math.sqrt(rate / count)
        assert abs(y.mean() - 1) < 5 * math.sqrt(rate / count) / (1 - rate)
        assert len(np.unique(y)) == 2
    a, b, c = (
        _dropout(x, 0.5, tf.constant([7, step], "int64"), site).numpy() for step, site in ((1, 2), (2, 2), (1, 3))
    )
    for other in (b, c):  # as independent as two coins
        assert abs((a == other).mean() - 0.5) < 5 / math.sqrt(x.shape.num_elements())


def test_dropout_is_reproduced_by_its_seed_and_changes_every_step():
    given = rows()
    runs = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        model = encoder(TINY)
        runs.append([model(given, training=True)["sequence"].numpy() for _ in range(3)])
    assert np.array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0][0], runs[0][1])
    keras.utils.set_random_seed(5)
    other = encoder(TINY, seed=3)
    assert not np.allclose(other(given, training=True)["sequence"], runs[0][0])
    still = encoder(TINY.replace(**STILL))
    assert np.allclose(still(given, training=True)["sequence"], still(given)["sequence"], atol=1e-6)
    assert not [variable for variable in still.variables if "seed" in variable.path]


def test_a_resumed_run_goes_on_with_its_dropouts(tmp_path):
    given = rows()
    model = encoder(TINY)
    model(given, training=True)
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    goes_on = model(given, training=True)["sequence"].numpy()
    other = encoder(TINY, seed=3)
    other.load_weights(tmp_path / "model.weights.h5")
    for resumed in (other, keras.models.load_model(tmp_path / "model.keras")):
        assert np.array_equal(resumed(given, training=True)["sequence"], goes_on)


def test_replicas_drop_differently():
    """In a process of its own, because logical devices are chosen before TensorFlow starts."""
    code = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras_bert_lab
from keras_bert_lab.encoder import encoder
from keras_bert_lab.config import BertConfig
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = encoder(BertConfig(vocab_size=40, hidden_size=64, num_attention_heads=2, num_hidden_layers=1,
                               intermediate_size=16, hidden_dropout_prob=0.5))
ids = tf.ones([2, 9], "int32")
draws = [strategy.experimental_local_results(strategy.run(lambda: model(ids, training=True)["sequence"]))
         for _ in range(2)]
gaps = [np.abs(a - b).mean() for a, b in ((draws[0][0], draws[0][1]), (draws[0][0], draws[1][0]))]
assert min(gaps) > 0.1, gaps
same = strategy.experimental_local_results(strategy.run(lambda: model(ids)["sequence"]))
assert np.abs(same[0] - same[1]).max() < 1e-6
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("jit", [False, True])
def test_remat_gives_the_same_gradients_with_dropout_on(jit):
    """A block that is computed again must drop the same entries; a seed drawn inside it would be another one."""
    given = {name: tf.constant(value, "int32") for name, value in rows().items()}

    def gradients(scope):
        keras.utils.set_random_seed(11)
        with scope:
            model = scramble(encoder(TINY.replace(hidden_dropout_prob=0.4, attention_probs_dropout_prob=0.4)))
        variables = [variable.value for variable in model.trainable_variables]

        @tf.function(jit_compile=jit)
        def step():
            with tf.GradientTape() as tape:
                output = model(given, training=True)
                loss = tf.reduce_sum(tf.sin(output["sequence"])) + tf.reduce_sum(output["pooled"])
            return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)], loss

        operations = step.get_concrete_function().graph.get_operations()
        return *step(), sum(op.type == "Softmax" for op in operations)

    plain, loss, softmaxes = gradients(keras.RematScope(mode=None))
    assert softmaxes == 2
    scopes = [(keras.RematScope(mode="full"), 4)]
    if not jit:
        scopes.append((keras.RematScope(mode="list_of_layers", layer_names=["layer_1"]), 3))
    for scope, expected in scopes:
        again, same_loss, softmaxes = gradients(scope)
        assert softmaxes == expected, "nothing was computed again"
        assert abs(float(loss - same_loss)) <= 1e-4
        for one, other in zip(plain, again, strict=True):
            assert np.abs(one - other).max() <= 1e-4 * max(float(tf.reduce_max(tf.abs(one))), 1.0)


# ------------------------------------------------------------------------------------------------- names, structure


def test_variables_have_the_originals_names(shared):
    names = {line.split(",")[0] for line in shared("oracle/tiny_en/variables.csv").read_text().splitlines()[1:]}
    theirs = {name.removeprefix("bert/") for name in names if "/adam_" not in name and name != "global_step"}
    model = pretrained(BertConfig.from_file(shared("oracle/tiny_en")))
    assert {variable.path for variable in model.trainable_variables} == theirs
    assert len(model.trainable_variables) == len(theirs)


def test_names_do_not_depend_on_where_the_encoder_is_built():
    with keras.name_scope("elsewhere"):
        paths = [variable.path for variable in encoder(TINY).trainable_variables]
    assert paths == [variable.path for variable in encoder(TINY).trainable_variables]
    assert paths[0] == "embeddings/word_embeddings" and paths[-1] == "pooler/dense/bias"


def test_nothing_is_built_that_nobody_reads():
    encoded = encode(TINY)
    model = keras.Model(encoded.inputs, encoded.sequence)
    assert not [variable.path for variable in model.variables if "pooler" in variable.path or "cls" in variable.path]
    assert set(encoder(TINY, pooler=False).output) == {"sequence"}
    outputs = encoder(TINY, hidden_states=True, attention_probs=True).output
    assert list(outputs) == ["sequence", "pooled", "embedding", "layer_0", "layer_1",
                             "attention_probs_0", "attention_probs_1"]  # fmt: skip
    assert encoded.pooled is encoded.pooled and encoded.attention_probs == ()
    wide = encode(TINY.replace(vocab_size=5000))
    at = keras.Input((None,), dtype="int32", name="positions")
    step = tf.function(keras.Model({**wide.inputs, "positions": at}, mlm_logits(wide, at)))
    given = {name: tf.TensorSpec([3, 9], "int32") for name in wide.inputs}
    graph = step.get_concrete_function({**given, "positions": tf.TensorSpec([3, 2], "int32")}).graph
    shapes = [tuple(tensor.shape) for op in graph.get_operations() for tensor in op.outputs
              if tensor.shape.rank and tensor.shape[-1] == 5000]  # fmt: skip
    assert shapes and all(np.prod([n or 1 for n in shape]) <= 3 * 2 * 5000 for shape in shapes), shapes


@pytest.mark.parametrize(
    "fields",
    [{}, {"norm_position": "pre"}, {"position_embedding": "rotary"}, {"attention_heads": ((0, 2), (1,))},
     {"hidden_act": "swiglu"}],
    ids=str,
)
def test_the_first_position_alone_is_that_of_the_sequence(fields):
    """The last layer computed for [CLS] only: the same numbers and gradients as cut from the whole."""
    config = TINY.replace(**STILL, **fields)
    encoded = encode(config)
    alone = keras.Model(encoded.inputs, encoded.first)  # read first: nothing else of the last layer is in its graph
    whole = scramble(keras.Model(encoded.inputs, encoded.sequence))
    for x in (rows(), rows((0, 4), 4), rows((1,), 1)):
        assert np.max(np.abs(alone(x) - whole(x)[:, 0])) <= 1e-5
    weights = [variable.value for variable in whole.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        one = tf.reduce_sum(alone(rows(), training=True) ** 3)
        other = tf.reduce_sum(whole(rows(), training=True)[:, 0] ** 3)
    for weight, a, b in zip(weights, tape.gradient(one, weights), tape.gradient(other, weights), strict=True):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        assert np.max(np.abs(a - b)) <= 1e-4 * max(1.0, np.max(np.abs(b))), weight.path


def test_attention_probabilities_are_of_the_same_graph():
    given = rows((9, 4))
    model = scramble(encoder(TINY.replace(attention_heads=((0, 2), (1,))), attention_probs=True))
    output = model.predict(given, verbose=0)
    assert output["attention_probs_0"].shape == (2, 2, 9, 9) and output["attention_probs_1"].shape == (2, 1, 9, 9)
    assert np.abs(output["attention_probs_0"].sum(-1) - 1).max() < 1e-6
    assert output["attention_probs_0"][1, :, :, 4:].max() == 0


def test_batch_zero_and_length_one():
    model = encoder(TINY)
    assert model(np.zeros((0, 5), "int32"))["pooled"].shape == (0, 12)
    assert model(np.ones((2, 1), "int32"))["sequence"].shape == (2, 1, 12)


def test_heads_and_other_models_can_build_on_it():
    inner = encoder(TINY)
    ids = keras.Input((None,), dtype="int32")
    outer = keras.Model(ids, keras.layers.Dense(2)(inner(ids)["pooled"]))  # mask and types are made in the graph
    assert outer(rows()["input_ids"]).shape == (3, 2)


# ----------------------------------------------------------------------------------------------------------- saving


def test_keras_file_is_one_config_and_the_same_model(tmp_path):
    config = TINY.replace(norm_position="pre")
    model = scramble(encoder(config, hidden_states=True, name="mine", dtype="mixed_bfloat16"))
    model.get_layer("layer_0").trainable = False
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert type(again) is Encoder and again.get_config() == model.get_config() and again.name == "mine"
    assert [v.path for v in again.variables] == [v.path for v in model.variables]
    assert len(again.trainable_variables) == len(model.trainable_variables)
    for name, value in model.predict(rows(), verbose=0).items():
        assert np.array_equal(again.predict(rows(), verbose=0)[name], value), name
    assert Encoder.from_config(model.get_config()).count_params() == model.count_params()


@pytest.mark.parametrize("way", ["keras", "weights"])
def test_the_table_is_stored_once_and_still_tied_after_loading(tmp_path, way):
    model = scramble(pretrained(TINY, positions=False))
    given = rows()
    before = model.predict(given, verbose=0)
    if way == "keras":
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
    else:
        model.save_weights(tmp_path / "model.weights.h5")
        again = pretrained(TINY, positions=False)
        again.load_weights(tmp_path / "model.weights.h5")
    assert [v.path for v in again.variables] == [v.path for v in model.variables]
    tables = [v for v in again.variables if tuple(v.shape) == (40, 12)]
    assert len(tables) == 1
    after = again.predict(given, verbose=0)
    assert np.abs(after["mlm"] - before["mlm"]).max() <= 1e-6

    token = 23
    given["input_ids"][0, 2] = token
    base = again.predict(given, verbose=0)
    table = tables[0].numpy()
    bumped = table.copy()
    bumped[token, 0] += 1  # the same in every channel would vanish in the norm
    tables[0].assign(bumped)
    moved = again.predict(given, verbose=0)
    assert np.abs(moved["embedding"][0, 2] - base["embedding"][0, 2]).max() > 1e-2
    untouched = again.predict(rows((5,), seed=9), verbose=0)["mlm"]
    tables[0].assign(table)
    gap = np.abs(untouched - again.predict(rows((5,), seed=9), verbose=0)["mlm"]).max((0, 1))
    if token not in rows((5,), seed=9)["input_ids"]:
        assert gap[token] > 1e-2 and np.delete(gap, token).max() <= 1e-6

    again.compile(keras.optimizers.SGD(0.1), loss="mse")
    again.train_on_batch(given, {name: np.zeros_like(value) for name, value in base.items()})
    tables = [v for v in again.variables if tuple(v.shape) == (40, 12)]
    assert len(tables) == 1 and not np.allclose(tables[0], table)


def test_importing_the_package_is_enough_to_load(tmp_path):
    model = scramble(encoder(TINY))
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "pooled.npy", model.predict(rows(), verbose=0)["pooled"])
    code = (
        "import sys, numpy as np, keras, keras_bert_lab\n"
        "model = keras.models.load_model(sys.argv[1] + '/model.keras')\n"
        f"ids = np.array({rows()['input_ids'].tolist()})\n"
        f"types = np.array({rows()['token_type_ids'].tolist()})\n"
        "pooled = model.predict({'input_ids': ids, 'token_type_ids': types}, verbose=0)['pooled']\n"
        "assert abs(pooled - np.load(sys.argv[1] + '/pooled.npy')).max() <= 1e-6\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_weights_of_another_architecture_are_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    model = encoder(TINY)
    model.save_weights(path)
    for fields in ({"num_hidden_layers": 3}, {"num_hidden_layers": 1}, {"hidden_size": 24},
                   {"position_embedding": "rotary"}, {"attention_heads": ((0,), (0, 1, 2))}):  # fmt: skip
        with pytest.raises(UserError, match=r"holds \d+ weights .* the model \d+"):
            encoder(TINY.replace(**fields)).load_weights(path)
    model.load_weights(path)


def test_layers_come_back_from_their_config():
    block = Block(TINY.replace(hidden_act="swiglu"), 1, attention_probs=True, name="layer_1")
    again = Block.from_config(block.get_config())
    assert (again.config, again.layer, again.attention_probs) == (block.config, 1, True)
