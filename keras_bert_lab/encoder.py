"""BERT's network: ``encoder(config)`` is a functional ``keras.Model`` that computes what google-research/bert does.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3; ``modeling.py`` of
google-research/bert is the reference for every number. Variable paths are its names without ``bert/``.

Shapes are written B (batch), L (length), H (hidden), N (B*L), h (heads), d (width of a head), F (intermediate),
V (vocabulary).
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .config import GATED, BertConfig
from .inputs import INPUTS, CheckedModel, check_inputs

__all__ = ["CheckedModel", "Encoded", "Encoder", "check_inputs", "encode", "encoder", "mlm_logits", "nsp_logits"]

# Added to the scores of positions that are not attended to, in float32 and as the original does. It is far below
# every score of a sane model, inside the range of float16, and a row of nothing else keeps a finite softmax.
MASKED = -10000.0
_register = keras.saving.register_keras_serializable(package="keras_bert_lab")


# ------------------------------------------------------------------------------------------------ elementwise


def activation(name: str, x: tf.Tensor, training: bool = False) -> tf.Tensor:
    """The activation called ``name`` in ``BertConfig.hidden_act``; of gated ones, the function inside the gate."""
    return (_TRAINED if training else _ACTIVATIONS).get(name, _ACTIVATIONS[name])(x)


def _gelu(x):
    # keras' exact gelu lowers to Erfc, which tf2onnx does not know; this form, after a product, is fused into it
    return 0.5 * x * (1.0 + tf.math.erf(x * tf.cast(np.sqrt(0.5), x.dtype)))


def _gelu_new(x):
    return tf.nn.gelu(x, approximate=True)  # fused into the product before it


@tf.custom_gradient
def _gelu_trained(x):
    """The same function, x Phi(x); its gradient Phi(x) + x phi(x) reuses Phi and takes few passes."""
    below = 0.5 + 0.5 * tf.math.erf(x * tf.cast(np.sqrt(0.5), x.dtype))

    def gradient(upstream):
        return upstream * (below + x * tf.exp(x * x * -0.5) * tf.cast(1 / np.sqrt(2 * np.pi), x.dtype))

    return x * below, gradient


@tf.custom_gradient
def _gelu_new_trained(x):
    """The same function as x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), with a gradient of few passes."""
    slope, bend = 2 * np.sqrt(2 / np.pi), 2 * np.sqrt(2 / np.pi) * 0.044715
    square = x * x
    gate = tf.sigmoid(x * (slope + bend * square))

    def gradient(upstream):
        return upstream * gate * (1.0 + x * (1.0 - gate) * (slope + 3 * bend * square))

    return x * gate, gradient


def _silu(x):
    return x * tf.sigmoid(x)


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_new": _gelu_new,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
    "silu": _silu,
    "swiglu": _silu,
    "geglu": _gelu,
}
_TRAINED = {"gelu": _gelu_trained, "gelu_new": _gelu_new_trained, "geglu": _gelu_trained}


def _normalized(x, epsilon):
    """(x - mean) / sqrt(variance + epsilon) over the last axis, and the reciprocal of that root."""
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(centred * centred, -1, keepdims=True) + epsilon)
    return centred * scale, scale


def _layer_norm(x, gamma, beta, epsilon: float, training: bool = False) -> tf.Tensor:
    """Ba et al. 2016, eq. 4, over the last axis of x [..., H], in float32: 1e-12 is 0 in float16."""
    wide = tf.cast(x, "float32")
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    if not training:
        return tf.cast(_normalized(wide, epsilon)[0] * gamma + beta, x.dtype)

    @tf.custom_gradient  # a quarter fewer passes over x than the automatic one
    def trained(wide, gamma, beta):
        normal, scale = _normalized(wide, epsilon)

        def gradient(upstream):
            rows = list(range(wide.shape.rank - 1))
            inner = upstream * gamma
            along = tf.reduce_mean(inner * normal, -1, keepdims=True)
            to_x = scale * (inner - tf.reduce_mean(inner, -1, keepdims=True) - normal * along)
            return to_x, tf.reduce_sum(upstream * normal, rows), tf.reduce_sum(upstream, rows)

        return normal * gamma + beta, gradient

    return tf.cast(trained(wide, gamma, beta), x.dtype)


def _dropout(x: tf.Tensor, rate: float, noise: tf.Tensor | None, site: int) -> tf.Tensor:
    """Zeroes entries with probability ``rate`` and scales the others so that the mean stays.

    ``noise`` [2] and ``site`` decide which, so that a layer that is computed again (RematScope) drops the same ones.
    Each entry is decided by 16 random bits: drawing bits is what dropout costs on a CPU. The rate is therefore
    rounded to 1/65536, and the scale is that of the rounded rate.
    """
    dropped = round(rate * 65536)
    if noise is None or dropped == 0:
        return x
    seed = noise + tf.constant([site, 0], noise.dtype)
    size = tf.size(x)
    words = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
    bits = tf.reshape(tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size], tf.shape(x))
    keep = tf.cast(bits >= tf.constant(dropped - 32768, tf.int16), x.dtype)
    return x * (keep * tf.constant(65536 / (65536 - dropped), x.dtype))


def _sinusoids(positions: int, width: int) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5: sin at even, cos at odd channels; float32 [positions, width]."""
    channel = np.arange(width)
    angle = np.arange(positions)[:, None] / 10000.0 ** ((channel - channel % 2) / width)
    return np.where(channel % 2, np.cos(angle), np.sin(angle)).astype("float32")


def _rotate(x: tf.Tensor, cosine: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
    """Su et al. 2021, eq. 34: turns channels (2i, 2i+1) of x [B, h, L, d] by their position times theta_i."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = tf.stack([even * cosine - odd * sine, odd * cosine + even * sine], axis=-1)
    return tf.reshape(turned, tf.shape(x))


# ----------------------------------------------------------------------------------------------------- layers


class _BertLayer(keras.layers.Layer):
    """A layer whose variables carry the original's names.

    ``scope`` is the part of the path above the layer's own name, which Keras allows no slash in.
    """

    scope: tuple[str, ...] = ()

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config if isinstance(config, BertConfig) else BertConfig.from_dict(config, "keras_bert_lab")
        self._by_path: dict[str, Any] = {}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": self.config.to_dict()}

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Under ``keras.RematScope`` only blocks are computed again: the rest is small, and a seed must not be."""
        return layer_call

    def _new(self, path: str, shape: tuple[int, ...], start: str = "normal") -> None:
        """Makes the variable ``path`` (below the layer's own) and files it in ``_by_path``."""
        parts: list[str] = [*self.scope, self.name, *path.split("/")]
        *above, scope, name = parts
        initializer: Any = start
        if start == "normal":
            initializer = keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)
        with keras.name_scope(scope, override_parent="/".join(above)):
            self._by_path[path] = keras.Variable(
                keras.initializers.get(initializer),
                shape=shape,
                dtype=self.variable_dtype,
                # Tables and norms stay float32 under mixed precision: casting a table costs more than its rows.
                autocast=name in ("kernel", "bias"),
                name=name,
            )

    def _new_dense(self, site: str, inputs: int, units: int) -> None:
        self._new(f"{site}/kernel", (inputs, units))
        self._new(f"{site}/bias", (units,), "zeros")

    def _new_norm(self, site: str) -> None:
        self._new(f"{site}/gamma", (self.config.hidden_size,), "ones")
        self._new(f"{site}/beta", (self.config.hidden_size,), "zeros")

    def _product(self, site: str, x: tf.Tensor) -> tf.Tensor:
        """x [N, in] @ kernel + bias of ``site``: the one door that every dense product goes through."""
        return tf.nn.bias_add(tf.matmul(x, self._by_path[f"{site}/kernel"]), self._by_path[f"{site}/bias"])

    def _norm(self, site: str, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        gamma, beta = self._by_path[f"{site}/gamma"], self._by_path[f"{site}/beta"]
        return _layer_norm(x, gamma, beta, self.config.layer_norm_eps, training)


@_register
class Mask(_BertLayer):
    """attention_mask int32 [B, L] -> bool [B, L], true where there is a real token."""

    def call(self, attention_mask):
        return tf.not_equal(attention_mask, 0)


@_register
class Noise(_BertLayer):
    """One fresh seed a step, int64 [2], for all dropouts of the encoder; zeros when not training.

    Seeds are drawn here, outside the blocks, so that a block computed twice drops the same entries. The state is a
    variable of the layer (that of ``keras.random.SeedGenerator`` is saved nowhere): a resumed run goes on with it.
    """

    def __init__(self, config, seed: int | None = None, **kwargs):
        super().__init__(config, **kwargs)
        self.seed = seed
        start = random.randint(1, 10**9) if seed is None else seed  # Python's, as keras.utils.set_random_seed sets
        with keras.name_scope(self.name, override_parent=""):
            self.state = keras.Variable(
                lambda shape, dtype: tf.constant([start, 0], dtype),
                shape=(2,),
                dtype="int64",
                trainable=False,
                aggregation="none",
                name="seed",
            )

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}

    def load_own_variables(self, store):
        if len(store):  # a file that was saved without dropout has no seed: then ours stays
            super().load_own_variables(store)

    def compute_output_spec(self, input_ids, training=False):
        return keras.KerasTensor((2,), dtype="int64")

    def call(self, input_ids, training=False):
        if not training:
            return tf.zeros([2], "int64")
        seed = tf.identity(self.state.value)
        self.state.assign(seed + tf.constant([0, 1], "int64"))
        replica = tf.distribute.get_replica_context()  # replicas draw apart
        number = 0 if replica is None else replica.replica_id_in_sync_group
        return seed + tf.stack([tf.cast(number, "int64") * 1_000_003, 0])


@_register
class Embeddings(_BertLayer):
    """Token + segment + position, norm, dropout; and, called with ``unembed=True``, the way back.

    input_ids int [B, L], token_type_ids int [B, L] -> [B, L, H]; or hidden [..., H] -> hidden @ table^T [..., V].
    One layer for both, because the table is one variable.
    """

    def build(self, input_shape=None):
        config = self.config
        self._new("word_embeddings", (config.vocab_size, config.hidden_size))
        self._new("token_type_embeddings", (config.type_vocab_size, config.hidden_size))
        if config.position_embedding == "learned":
            self._new("position_embeddings", (config.max_position_embeddings, config.hidden_size))
        self._new_norm("LayerNorm")

    def compute_output_spec(self, inputs, token_type_ids=None, noise=None, training=False, unembed=False):
        width = self.config.vocab_size if unembed else self.config.hidden_size
        shape = (*inputs.shape[:-1], width) if unembed else (*inputs.shape, width)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def call(self, inputs, token_type_ids=None, noise=None, training=False, unembed=False):
        return self._unembed(inputs) if unembed else self._embed(inputs, token_type_ids, noise, training)

    def _embed(self, ids, types, noise, training):
        config = self.config
        length = tf.shape(ids)[1]
        table = self._by_path["token_type_embeddings"]
        x = tf.gather(self._by_path["word_embeddings"].value, ids)  # float32 [B, L, H]
        # As in the original: a product with one-hot rows is quicker than a gather's gradient for so small a table.
        x += tf.reshape(
            tf.matmul(tf.one_hot(tf.reshape(types, [-1]), config.type_vocab_size, dtype=x.dtype), table), tf.shape(x)
        )
        if config.position_embedding == "learned":
            x += self._by_path["position_embeddings"].value[:length]
        elif config.position_embedding == "sinusoidal":
            x += tf.constant(_sinusoids(config.max_position_embeddings, config.hidden_size))[:length]
        x = tf.cast(self._norm("LayerNorm", x, training), self.compute_dtype)
        return _dropout(x, config.hidden_dropout_prob, noise if training else None, 0)

    def _unembed(self, hidden):
        flat = tf.reshape(hidden, [-1, self.config.hidden_size])
        table = tf.cast(self._by_path["word_embeddings"].value, hidden.dtype)
        logits = tf.matmul(flat, table, transpose_b=True)
        return tf.reshape(logits, tf.concat([tf.shape(hidden)[:-1], [self.config.vocab_size]], 0))


@_register
class Block(_BertLayer):
    """One transformer layer (Vaswani et al. 2017, section 3; BERT: norms after the residual sums).

    hidden [B, L, H], mask bool [B, L], noise int [2] -> hidden [B, L, H], or (hidden, probabilities float32
    [B, h, L, L]) with ``attention_probs``. With ``first=True`` only the first position is computed, [B, H],
    from the keys and values of all: five sixths of the last layer are saved where nothing but [CLS] is read.

    Sites, the places that an adapter may hang from: each dense product (``attention/self/query|key|value``,
    ``attention/output/dense``, ``intermediate/dense``, ``output/dense``) goes through ``_product(site, x)``.
    """

    scope = ("encoder",)

    def __init__(self, config, layer: int, attention_probs: bool = False, **kwargs):
        super().__init__(config, **kwargs)
        self.layer, self.attention_probs = layer, attention_probs

    def get_config(self):
        return {**super().get_config(), "layer": self.layer, "attention_probs": self.attention_probs}

    def build(self, input_shape=None):
        config = self.config
        inner = config.heads_of(self.layer) * config.head_size
        for name in ("query", "key", "value"):
            self._new_dense(f"attention/self/{name}", config.hidden_size, inner)
        self._new_dense("attention/output/dense", inner, config.hidden_size)
        self._new_norm("attention/output/LayerNorm")
        if config.hidden_act in GATED:
            self._new_dense("intermediate/gate", config.hidden_size, config.intermediate_size)
        self._new_dense("intermediate/dense", config.hidden_size, config.intermediate_size)
        self._new_dense("output/dense", config.intermediate_size, config.hidden_size)
        self._new_norm("output/LayerNorm")

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """As in Keras, whose own fails in a graph: there tf.recompute_grad takes neither keywords nor bool tensors."""

        def of_hidden(hidden):
            return layer_call(hidden, *args[1:], **kwargs)

        again = keras.layers.Layer.rematerialized_call(self, of_hidden, args[0])
        return lambda hidden, *_, **__: again(hidden)

    def compute_output_spec(self, hidden, mask, noise=None, training=False, first=False):
        shape = (hidden.shape[0], hidden.shape[-1]) if first else hidden.shape
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not self.attention_probs:
            return output
        batch, length, _ = hidden.shape
        shape = (batch, self.config.heads_of(self.layer), length, length)
        return output, keras.KerasTensor(shape, dtype="float32")

    def call(self, hidden, mask, noise=None, training=False, first=False):
        config = self.config
        pre = config.norm_position == "pre"
        noise = noise if training else None
        site = 1 + 3 * self.layer
        shape = tf.shape(hidden)
        x = tf.reshape(hidden, [-1, config.hidden_size])  # [N, H]: two axes keep the matrix products fusable

        def norm(name, x):
            return self._norm(name, x, training)

        inner = norm("attention/output/LayerNorm", x) if pre else x
        asking = inner
        if first:
            x, asking = hidden[:, 0], tf.reshape(inner, shape)[:, 0]  # [B, H]
        context, probs = self._attend(asking, inner, shape[0], shape[1], mask, noise, site)
        x += _dropout(self._product("attention/output/dense", context), config.hidden_dropout_prob, noise, site + 1)
        x = x if pre else norm("attention/output/LayerNorm", x)

        inner = norm("output/LayerNorm", x) if pre else x
        x += _dropout(self._feed_forward(inner, training), config.hidden_dropout_prob, noise, site + 2)
        x = x if pre else norm("output/LayerNorm", x)
        x = x if first else tf.reshape(x, shape)
        return (x, probs) if self.attention_probs else x

    def _attend(self, asking, x, batch, length, mask, noise, site):
        """x [B*L, H], asking [B*Q, H] (x or its first position) -> context [B*Q, h*d], probabilities [B, h, Q, L].

        Probabilities are float32. Vaswani et al. 2017, eq. 1.
        """
        config = self.config
        heads, width = config.heads_of(self.layer), config.head_size

        def split(name, x, places):  # [B*L, H] -> [B, h, L, d]
            y = tf.reshape(self._product(f"attention/self/{name}", x), [batch, places, heads, width])
            return tf.transpose(y, [0, 2, 1, 3])

        query = split("query", asking, length if asking is x else 1)
        key, value = split("key", x, length), split("value", x, length)
        if config.position_embedding == "rotary":
            angle = np.arange(config.max_position_embeddings)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
            cosine = tf.constant(np.cos(angle), x.dtype)[:length]  # [L, d/2]
            sine = tf.constant(np.sin(angle), x.dtype)[:length]
            asked = tf.shape(query)[2]
            query, key = _rotate(query, cosine[:asked], sine[:asked]), _rotate(key, cosine, sine)
        # The scale goes to the query: fewer numbers than the scores, and float16 scores stay small.
        scores = tf.matmul(query * (width**-0.5), key, transpose_b=True)  # [B, h, L, L]
        bias = (1.0 - tf.cast(mask, "float32"))[:, None, None, :] * MASKED
        probs = tf.nn.softmax(tf.cast(scores, "float32") + bias)
        kept = _dropout(tf.cast(probs, x.dtype), config.attention_probs_dropout_prob, noise, site)
        context = tf.transpose(tf.matmul(kept, value), [0, 2, 1, 3])
        return tf.reshape(context, [-1, heads * width]), probs

    def _feed_forward(self, x, training):
        """x [N, H] -> [N, H]. Gated forms: Shazeer 2020, "GLU Variants", eq. 6, with biases."""
        config = self.config
        inner = self._product("intermediate/dense", x)
        if config.hidden_act in GATED:
            inner *= activation(config.hidden_act, self._product("intermediate/gate", x), training)
        else:
            inner = activation(config.hidden_act, inner, training)
        return self._product("output/dense", inner)


@_register
class Norm(_BertLayer):
    """The norm after the last layer that ``norm_position="pre"`` needs; [..., H] -> [..., H]."""

    scope = ("encoder",)

    def build(self, input_shape=None):
        self._new("gamma", (self.config.hidden_size,), "ones")
        self._new("beta", (self.config.hidden_size,), "zeros")

    def call(self, hidden, training=False):
        gamma, beta = self._by_path["gamma"], self._by_path["beta"]
        return _layer_norm(hidden, gamma, beta, self.config.layer_norm_eps, training)


@_register
class First(_BertLayer):
    """The first position; [B, L, H] -> [B, H]. (A layer, because Keras' own slicing fails in a RematScope.)"""

    def call(self, hidden):
        return hidden[:, 0]


@_register
class Pooler(_BertLayer):
    """tanh(W x + b) of the first position; [B, H] -> [B, H]. ``modeling.py``: "pooler"."""

    def build(self, input_shape=None):
        self._new_dense("dense", self.config.hidden_size, self.config.hidden_size)

    def call(self, first):
        return tf.tanh(self._product("dense", first))


@_register
class Positions(_BertLayer):
    """sequence [B, L, H] at positions int [B, P] -> [B, P, H]; zeros at a position below 0, which is none."""

    def call(self, sequence, positions):
        found = tf.gather(sequence, tf.maximum(positions, 0), batch_dims=1)
        return tf.where((positions >= 0)[..., tf.newaxis], found, tf.zeros_like(found))


@_register
class Transform(_BertLayer):
    """Dense, activation, norm before the vocabulary (``run_pretraining.py``, get_masked_lm_output); [..., H]."""

    scope = ("cls", "predictions")

    def build(self, input_shape=None):
        self._new_dense("dense", self.config.hidden_size, self.config.hidden_size)
        self._new_norm("LayerNorm")

    def call(self, hidden, training=False):
        x = self._product("dense", tf.reshape(hidden, [-1, self.config.hidden_size]))
        name = {"swiglu": "silu", "geglu": "gelu"}.get(self.config.hidden_act, self.config.hidden_act)
        return tf.reshape(self._norm("LayerNorm", activation(name, x, training), training), tf.shape(hidden))


@_register
class Predictions(_BertLayer):
    """Adds the vocabulary's bias; [..., V] -> float32 logits [..., V]."""

    scope = ("cls",)

    def build(self, input_shape=None):
        self._new("output_bias", (self.config.vocab_size,), "zeros")

    def call(self, logits):
        return tf.cast(logits, "float32") + self._by_path["output_bias"]


@_register
class NextSentence(_BertLayer):
    """pooled [B, H] -> float32 logits [B, 2]: 0 "is next", 1 "is random"."""

    scope = ("cls",)

    def build(self, input_shape=None):
        self._new("output_weights", (2, self.config.hidden_size))
        self._new("output_bias", (2,), "zeros")

    def call(self, pooled):
        weights, bias = self._by_path["output_weights"], self._by_path["output_bias"]
        return tf.matmul(tf.cast(pooled, "float32"), weights, transpose_b=True) + bias


# ------------------------------------------------------------------------------------------------------ graph


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What a head builds on: symbolic tensors of one encoder.

    ``inputs`` maps the three names of ``INPUTS`` to int32 [B, L]; ``mask`` bool [B, L]. What follows enters the graph
    when it is read: ``sequence`` [B, L, H]; ``first`` [B, H], its first position ([CLS]), for which the last layer
    computes nothing else; ``pooled`` [B, H]; ``layers``: the embedding output and every layer's, [B, L, H]; the heads
    of pretraining.
    ``attention_probs``: of every layer, float32 [B, h, L, L], empty unless asked for.
    """

    config: BertConfig
    inputs: dict[str, Any]
    mask: Any
    attention_probs: tuple[Any, ...]
    _below: tuple[Any, ...]  # all of ``layers`` but the last
    _top: Any  # last layer: call(first=False) -> its output
    _embeddings: Embeddings

    @functools.cached_property
    def layers(self) -> tuple[Any, ...]:
        """The embedding output and every layer's output, [B, L, H] each."""
        return (*self._below, self._top(first=False))

    @functools.cached_property
    def sequence(self) -> Any:
        """What the encoder makes of every position, [B, L, H]."""
        return self._normed(self.layers[-1])

    @functools.cached_property
    def first(self) -> Any:
        """``sequence`` at the first position, [B, H]; cheaper where ``sequence`` itself is not read before."""
        if "sequence" in vars(self) or self.attention_probs:
            return self.first_of(self.sequence)
        return self._normed(self._top(first=True))

    def first_of(self, hidden: Any) -> Any:
        """[B, L, H] -> [B, H], its first position."""
        return self._first(hidden)

    @functools.cached_property
    def _first(self) -> Any:
        return self._layer(First, "first")

    @functools.cached_property
    def _norm(self) -> Any:
        return self._layer(Norm, "LayerNorm")

    def _normed(self, hidden: Any) -> Any:
        return self._norm(hidden) if self.config.norm_position == "pre" else hidden

    def _layer(self, kind: type, name: str) -> Any:
        return kind(self.config, name=name, dtype=self._embeddings.dtype_policy)

    @functools.cached_property
    def pooled(self) -> Any:
        """tanh(W [CLS] + b), [B, H]."""
        return self._layer(Pooler, "pooler")(self.first)

    @functools.cached_property
    def _predictions(self) -> Any:
        return self._layer(Predictions, "predictions")

    @functools.cached_property
    def _transform(self) -> Any:
        return self._layer(Transform, "transform")

    @functools.cached_property
    def _positions(self) -> Any:
        return self._layer(Positions, "masked_positions")

    def input(self, name: str) -> Any:
        """A further input of the model, int32 [B, any number]: ``Head.prepare`` makes it. One of a name."""
        if name not in self.inputs:
            self.inputs[name] = keras.Input((None,), dtype="int32", name=name)
        return self.inputs[name]

    def unembed(self, hidden: Any) -> Any:
        """hidden [..., H] -> float32 vocabulary logits [..., V]: the token table transposed, plus ``output_bias``."""
        return self._predictions(self._embeddings(hidden, unembed=True))


def mlm_logits(encoded: Encoded, positions: Any = None) -> Any:
    """float32 logits over the vocabulary, [B, P, V] at ``positions`` int [B, P], or [B, L, V] everywhere.

    ``run_pretraining.py``, get_masked_lm_output. With positions, nothing is computed at the others; a position
    below 0 is none, what stands there does not depend on the row.
    """
    hidden = encoded.sequence if positions is None else encoded._positions(encoded.sequence, positions)
    return encoded.unembed(encoded._transform(hidden))


def nsp_logits(encoded: Encoded) -> Any:
    """float32 logits [B, 2]: class 0 "B follows A", 1 "B is random" (``run_pretraining.py``)."""
    return encoded._layer(NextSentence, "seq_relationship")(encoded.pooled)


def encode(
    config: BertConfig,
    inputs: dict[str, Any] | None = None,
    *,
    attention_probs: bool = False,
    seed: int | None = None,
    dtype: Any = None,
) -> Encoded:
    """Builds the graph and returns its symbolic tensors; see :class:`Encoded`.

    Args:
        config: the network.
        inputs: keras.Input of int32 [B, L] by the names of ``INPUTS``; made here when None.
        attention_probs: also give every layer's attention probabilities.
        seed: of the dropouts; drawn from Keras' global generator when None.
        dtype: a Keras dtype policy; the global one when None.
    """
    dtype = keras.config.dtype_policy() if dtype is None else dtype
    if inputs is None:
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    mask = Mask(config, name="mask", dtype=dtype)(inputs["attention_mask"])
    noise = None
    if config.hidden_dropout_prob or config.attention_probs_dropout_prob:
        noise = Noise(config, seed, name="noise", dtype=dtype)(inputs["input_ids"])
    embeddings = Embeddings(config, name="embeddings", dtype=dtype)
    hidden = embeddings(inputs["input_ids"], inputs["token_type_ids"], noise)
    blocks = [
        Block(config, number, attention_probs, name=f"layer_{number}", dtype=dtype)
        for number in range(config.num_hidden_layers)
    ]
    below, probs = [hidden], []
    for block in blocks[: None if attention_probs else -1]:
        hidden = block(hidden, mask, noise)
        if attention_probs:
            hidden, of_layer = hidden
            probs.append(of_layer)
        below.append(hidden)
    if attention_probs:  # the last layer is whole already
        last = below.pop()

        def top(first: bool) -> Any:
            return last
    else:

        def top(first: bool) -> Any:
            return blocks[-1](hidden, mask, noise, first=first)

    return Encoded(config, inputs, mask, tuple(probs), tuple(below), top, embeddings)


# ------------------------------------------------------------------------------------------------------ model


@_register
class Encoder(CheckedModel):
    """The model that :func:`encoder` builds; saved as its ``BertConfig`` and rebuilt from it."""

    def __init__(self, inputs, outputs, *, options: dict[str, Any], **kwargs):
        super().__init__(inputs, outputs, **kwargs)
        self._options = options

    def get_config(self) -> dict[str, Any]:
        frozen = [layer.name for layer in self.layers if not layer.trainable]
        return {"name": self.name, "trainable": self.trainable, "frozen": frozen, **self._options}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Encoder:
        config = dict(config)
        trainable, frozen = config.pop("trainable"), config.pop("frozen")
        bert = BertConfig.from_dict(config.pop("config"), "keras_bert_lab")
        model = encoder(bert, **config)
        model.trainable = trainable
        if trainable:  # setting it goes down to every layer
            for name in frozen:
                model.get_layer(name).trainable = False
        return model


def encoder(
    config: BertConfig,
    *,
    pooler: bool = True,
    hidden_states: bool = False,
    attention_probs: bool = False,
    name: str = "bert",
    dtype: Any = None,
    seed: int | None = None,
) -> Encoder:
    """The network of ``config`` as a functional ``keras.Model``, with fresh weights.

    Args:
        config: the network.
        pooler: give ``"pooled"`` [B, H].
        hidden_states: give ``"embedding"`` and ``"layer_0"``.. [B, L, H].
        attention_probs: give ``"attention_probs_0"``.. float32 [B, h, L, L], of queries (third axis) over keys.
        name: of the model.
        dtype: Keras dtype policy or its name, e.g. ``"mixed_bfloat16"``; the global one when None. Softmax and layer
            norms are float32 under every policy.
        seed: of the dropouts; drawn from Keras' global generator when None.

    Returns:
        A model from int32 [B, L] ``input_ids``, ``attention_mask``, ``token_type_ids`` (see :class:`CheckedModel`) to a
        dict: ``"sequence"`` [B, L, H] and what was asked for.

    Example:
        >>> model = encoder(BertConfig(vocab_size=100, hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
        >>> model({"input_ids": [[2, 40, 3, 0]]})["sequence"].shape
        TensorShape([1, 4, 8])
    """
    policy = keras.dtype_policies.get(keras.config.dtype_policy() if dtype is None else dtype)
    encoded = encode(config, attention_probs=attention_probs, seed=seed, dtype=policy)
    outputs = {"sequence": encoded.sequence}
    if pooler:
        outputs["pooled"] = encoded.pooled
    if hidden_states:
        outputs["embedding"] = encoded.layers[0]
        outputs.update({f"layer_{number}": layer for number, layer in enumerate(encoded.layers[1:])})
    if attention_probs:
        outputs.update({f"attention_probs_{number}": probs for number, probs in enumerate(encoded.attention_probs)})
    options = {
        "config": config.to_dict(),
        "pooler": pooler,
        "hidden_states": hidden_states,
        "attention_probs": attention_probs,
        "dtype": policy.name,
        "seed": seed,
    }
    return Encoder(encoded.inputs, outputs, options=options, name=name)
