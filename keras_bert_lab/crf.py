"""A linear-chain conditional random field: likelihood, most likely tags, and how sure they are; with or without rules.

For emissions e [L, K], transitions T [K, K] (from row to column), start s [K] and end f [K], tags y have the score

    s[y_1] + sum_t e[t, y_t] + sum_t T[y_(t-1), y_t] + f[y_n],      log p(y) = score(y) - log sum_y' exp score(y')

(Lafferty, McCallum & Pereira 2001, section 3; the recursions are those of Rabiner 1989, section III). Only places of
the mask take part: two that follow each other once gaps are left out are neighbours, and a row without any has
likelihood 1. Everything is computed in float32. A score of -inf forbids; some sequence must stay allowed.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class Crf(keras.layers.Layer):
    """Holds ``transitions`` [K, K], ``start`` [K] and ``end`` [K], zeros at first: then a CRF is a softmax a place.

    Called on emissions [B, L, K] it gives them out as one table per row, float32 [B, K + 2, K], which :func:`unpack`
    takes apart: as an output of the model it reaches loss, decoding and export.

    Args:
        rate: the variables are the table's values divided by this, while gradients are the table's own. With Adam,
            whose steps do not depend on a gradient's size, the table then learns `rate` times as fast as others.

    Example:
        >>> table = Crf(name="crf")(np.zeros([2, 5, 3], "float32"))
        >>> [tuple(part.shape) for part in unpack(table)]
        [(2, 3, 3), (2, 3), (2, 3)]
    """

    def __init__(self, rate: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        self.rate = float(rate)

    def build(self, shape: Any) -> None:
        classes = int(shape[-1])
        self.transitions = self.add_weight(shape=(classes, classes), initializer="zeros", name="transitions")
        self.start = self.add_weight(shape=(classes,), initializer="zeros", name="start")
        self.end = self.add_weight(shape=(classes,), initializer="zeros", name="end")

    def call(self, emissions: Any) -> Any:
        table = keras.ops.concatenate([self.transitions, self.start[None], self.end[None]], axis=0)
        if self.rate != 1:
            table += keras.ops.stop_gradient((self.rate - 1) * table)
        # as many rows as the batch has, whatever is in it
        return keras.ops.zeros_like(emissions[:, :1, :1], dtype="float32") + table[None]

    def compute_output_shape(self, shape: Any) -> tuple:
        return (shape[0], int(shape[-1]) + 2, int(shape[-1]))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate}


def unpack(table: Any) -> tuple[Any, Any, Any]:
    """(transitions [..., K, K], start [..., K], end [..., K]) of a table [..., K + 2, K], array or tensor."""
    return table[..., :-2, :], table[..., -2, :], table[..., -1, :]


def rules(start: Any, transition: Any, end: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores to add to transitions, start and end: 0 where something is allowed, -inf where not.

    Args:
        start, transition, end: bool [K], [K, K] (from, to) and [K], as ``tags.legal`` gives them.

    Returns:
        (transitions, start, end), float32.
    """
    parts = [np.where(np.asarray(part, bool), 0, -np.inf).astype(np.float32) for part in (transition, start, end)]
    return parts[0], parts[1], parts[2]


# ---- likelihood --------------------------------------------------------------------------------------------------


def log_likelihood(emissions: Any, tags: Any, mask: Any, transitions: Any, start: Any, end: Any) -> tf.Tensor:
    """log p(tags), float32 [B], with its exact gradient (one pass forward, one back).

    Args:
        emissions: [B, L, K].
        tags: int [B, L]; what stands outside the mask is not looked at.
        mask: bool [B, L], gaps allowed.
        transitions, start, end: [K, K], [K], [K], or with a leading axis B, a set for each row.

    Example:
        >>> e, t, v = np.zeros([1, 3, 2]), np.zeros([2, 2]), np.zeros(2)
        >>> round(float(log_likelihood(e, [[0, 1, 1]], [[True, False, True]], t, v, v)[0]), 4)  # 1 of 4
        -1.3863
    """
    e, lengths, order, (transitions, start, end) = _aligned(emissions, mask, transitions, start, end)
    y = _chosen(tags, lengths, order)
    total = _score(e, y, lengths, transitions, start, end) - _log_partition(e, lengths, transitions, start, end)
    return tf.where(lengths > 0, total, 0.0)


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class CrfLoss(keras.Loss):
    """-log p(tags) of each row, spread evenly over its labelled places: their sum is the row's.

    So the weighted mean over labelled places, which a model's loss is, is the negative log-likelihood per labelled
    place: of the size of a cross entropy, and equal to it while the CRF's table is 0.

    ``call(y, emissions, **further)``: y int [B, L], -100 where nothing is labelled; ``further`` holds the output
    ``table``, [B, K + 2, K], of :class:`Crf`.

    Args:
        table: the name of that output.
    """

    unlabelled = -100  # what must stand where nothing is labelled: see docs/heads.md

    def __init__(self, table: str = "crf", name: str = "crf_loss") -> None:
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        self.table = table

    @property
    def reads(self) -> tuple[str, ...]:
        """Further outputs of the model that ``call`` must be given by name."""
        return (self.table,)

    def call(self, y_true: Any, y_pred: Any, **further: Any) -> tf.Tensor:
        y = tf.cast(y_true, tf.int32)
        if len(y.shape) == len(y_pred.shape):
            y = tf.squeeze(y, -1)
        mask = y != self.unlabelled
        loss = -log_likelihood(y_pred, y, mask, *unpack(further[self.table]))
        number = tf.reduce_sum(tf.cast(mask, tf.float32), 1)
        return tf.where(mask, tf.math.divide_no_nan(loss, number)[:, None], 0.0)

    def get_config(self) -> dict[str, Any]:
        return {"table": self.table, "name": self.name}


# ---- decoding, also inside an exported graph ---------------------------------------------------------------------


def viterbi(emissions: Any, mask: Any, transitions: Any, start: Any, end: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The most likely tags and their score; of equal ones, the tag of the lower number at the last place that differs.

    Args:
        emissions, mask, transitions, start, end: as for :func:`log_likelihood`; -inf forbids.

    Returns:
        int32 [B, L], 0 outside the mask, and float32 [B], 0 for a row without any place.
    """
    e, lengths, order, (transitions, start, end) = _aligned(emissions, mask, transitions, start, end)
    steps = tf.transpose(e, [1, 0, 2])
    classes = tf.range(tf.shape(e)[2])

    def forward(state: tuple, step: tuple) -> tuple:
        best, _ = state
        scores, t = step
        paths = best[:, :, None] + transitions
        there = (t < lengths)[:, None]
        new = tf.reduce_max(paths, 1) + scores
        new = tf.where(there, new - tf.reduce_max(new, -1, keepdims=True), best)  # long rows lose no digits
        return new, tf.where(there, tf.argmax(paths, 1, output_type=tf.int32), classes)

    first = start + steps[0]
    more = steps[1:], tf.range(1, tf.shape(steps)[0])
    nothing = tf.zeros_like(first, tf.int32)
    best, back = tf.scan(forward, more, (first, nothing))
    best = tf.concat([first[None], best], 0)[-1] + end
    last = tf.argmax(best, -1, output_type=tf.int32)
    path = tf.scan(lambda y, pointer: tf.gather(pointer, y, batch_dims=1), back, last, reverse=True)
    path = tf.transpose(tf.concat([path, last[None]], 0))
    score = tf.where(lengths > 0, _score(e, path, lengths, transitions, start, end), 0.0)
    return _spread(path, lengths, order, tf.shape(emissions)[1]), score


def log_probabilities(
    emissions: Any, tags: Any, mask: Any, transitions: Any, start: Any, end: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """How sure tags are: log p(y_t) and log p(y_t | y_(t-1)) given the emissions, float32 [B, L] each.

    The probability of a stretch of tags is p(y_i) p(y_(i+1) | y_i) ... p(y_j | y_(j-1)). Every factor comes from a
    softmax of its own, so nothing is lost to rounding in long rows. At the first place both are log p(y_1); outside
    the mask both are 0.
    """
    e, lengths, order, (transitions, start, end) = _aligned(emissions, mask, transitions, start, end)
    there = tf.sequence_mask(lengths, tf.shape(e)[1])
    y = _chosen(tags, lengths, order)
    alphas, _ = _alphas(e, lengths, transitions, start)
    betas = tf.transpose(_betas(e, lengths, transitions, end), [1, 0, 2])
    marginal = tf.nn.log_softmax(tf.transpose(alphas, [1, 0, 2]) + betas)
    rows = tf.gather(transitions, y[:, :-1], batch_dims=1)  # [B, T - 1, K]
    conditional = tf.concat([marginal[:, :1], tf.nn.log_softmax(rows + e[:, 1:] + betas[:, 1:])], 1)
    size = tf.shape(emissions)[1]
    found = (tf.gather(p, y, batch_dims=2) for p in (marginal, conditional))
    one, other = (_spread(tf.where(there, p, 0.0), lengths, order, size) for p in found)
    return one, other


# ---- the recursions ----------------------------------------------------------------------------------------------


def _aligned(emissions: Any, mask: Any, transitions: Any, start: Any, end: Any) -> tuple:
    """Places of the mask moved to the left: emissions [B, T, K], lengths [B], where each came from [B, T], scores.

    T is the longest row's, but at least 2: a scan that takes no step cannot tell the shape of its result.
    """
    emissions = tf.pad(tf.cast(emissions, tf.float32), [[0, 0], [0, 2], [0, 0]])
    mask = tf.pad(tf.cast(mask, tf.bool), [[0, 0], [0, 2]])
    lengths = tf.reduce_sum(tf.cast(mask, tf.int32), 1)
    longest = tf.reduce_max(tf.concat([lengths, [2]], 0))
    order = tf.argsort(tf.cast(~mask, tf.int32), axis=1, stable=True)[:, :longest]
    batch = tf.shape(emissions)[0]
    scores = []
    for part, rank in ((transitions, 2), (start, 1), (end, 1)):
        part = tf.cast(part, tf.float32)
        part = part if len(part.shape) > rank else part[None]
        scores.append(tf.broadcast_to(part, tf.concat([[batch], tf.shape(part)[1:]], 0)))
    return tf.gather(emissions, order, batch_dims=1), lengths, order, scores


def _chosen(tags: Any, lengths: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """The tags [B, L] moved to the left like the emissions: int32 [B, T], 0 behind a row's end."""
    tags = tf.gather(tf.pad(tf.cast(tags, tf.int32), [[0, 0], [0, 2]]), order, batch_dims=1)
    return tf.where(tf.sequence_mask(lengths, tf.shape(order)[1]), tags, 0)


def _score(
    e: tf.Tensor, y: tf.Tensor, lengths: tf.Tensor, transitions: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
    """score(y) of every row [B]; of a row without any place it means nothing."""
    there = tf.sequence_mask(lengths, tf.shape(e)[1])
    places = tf.where(there, tf.gather(e, y, batch_dims=2), 0.0)
    pairs = tf.gather_nd(transitions, tf.stack([y[:, :-1], y[:, 1:]], -1), batch_dims=1)
    last = tf.gather(y, tf.maximum(lengths - 1, 0), batch_dims=1)
    total = tf.reduce_sum(places, 1) + tf.reduce_sum(tf.where(there[:, 1:], pairs, 0.0), 1)
    return total + tf.gather(start, y[:, 0], batch_dims=1) + tf.gather(end, last, batch_dims=1)


def _spread(values: tf.Tensor, lengths: tf.Tensor, order: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Back from the left to where the places came from: [B, T] -> [B, size], 0 elsewhere."""
    place = tf.where(tf.sequence_mask(lengths, tf.shape(values)[1]))  # row, place on the left
    at = tf.stack([place[:, 0], tf.cast(tf.gather_nd(order, place), tf.int64)], 1)
    shape = tf.stack([tf.cast(tf.shape(values)[0], tf.int64), tf.cast(size, tf.int64)])
    return tf.scatter_nd(at, tf.gather_nd(values, place), shape)


def _alphas(e: tf.Tensor, lengths: tf.Tensor, transitions: tf.Tensor, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Log-probabilities of the tag at t given what came up to t, [T, B, K], and the sum of their normalisers [B]."""
    steps = tf.transpose(e, [1, 0, 2])

    def normal(scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        norm = tf.reduce_logsumexp(scores, -1)
        return scores - norm[:, None], norm

    def forward(state: tuple, step: tuple) -> tuple:
        alpha, total = state
        scores, t = step
        new, norm = normal(tf.reduce_logsumexp(alpha[:, :, None] + transitions, 1) + scores)
        there = t < lengths
        return tf.where(there[:, None], new, alpha), tf.where(there, total + norm, total)

    first, total = normal(start + steps[0])
    alphas, totals = tf.scan(forward, (steps[1:], tf.range(1, tf.shape(steps)[0])), (first, total))
    return tf.concat([first[None], alphas], 0), tf.concat([total[None], totals], 0)[-1]


def _betas(e: tf.Tensor, lengths: tf.Tensor, transitions: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Scores of what may come after the tag at t, [T, B, K], up to a number that is the same for all tags."""
    steps = tf.transpose(e, [1, 0, 2])

    def backward(beta: tf.Tensor, step: tuple) -> tf.Tensor:
        scores, t = step
        return _before(beta, scores, t, lengths, transitions)[0]

    betas = tf.scan(backward, (steps[1:], tf.range(1, tf.shape(steps)[0])), end, reverse=True)
    return tf.concat([betas, end[None]], 0)


def _before(
    beta: tf.Tensor, scores: tf.Tensor, t: tf.Tensor, lengths: tf.Tensor, transitions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """beta at t - 1 from beta and emissions at t, and the scores [B, K, K] of what comes from t - 1 on."""
    paths = transitions + (scores + beta)[:, None, :]
    new = tf.reduce_logsumexp(paths, -1)
    new -= tf.reduce_max(new, -1, keepdims=True)
    return tf.where((t < lengths)[:, None], new, beta), paths


@tf.custom_gradient
def _log_partition(
    e: tf.Tensor, lengths: tf.Tensor, transitions: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tuple[tf.Tensor, Any]:
    """log of the sum over all sequences, [B]; its gradient are the expected counts (forward-backward)."""
    alphas, total = _alphas(e, lengths, transitions, start)

    def grad(up: tf.Tensor) -> tuple:
        up = tf.where(lengths > 0, up, 0.0)
        steps = tf.transpose(e, [1, 0, 2])

        def backward(state: tuple, step: tuple) -> tuple:
            beta, pairs = state
            alpha, scores, t = step
            new, paths = _before(beta, scores, t, lengths, transitions)
            paths += alpha[:, :, None]
            share = tf.exp(paths - tf.reduce_logsumexp(paths, [1, 2], keepdims=True))
            return new, tf.where((t < lengths)[:, None, None], pairs + share, pairs)

        inputs = alphas[:-1], steps[1:], tf.range(1, tf.shape(steps)[0])
        betas, pairs = tf.scan(backward, inputs, (end, tf.zeros_like(transitions)), reverse=True)
        pairs = tf.concat([pairs, tf.zeros_like(transitions)[None]], 0)[0]
        betas = tf.concat([betas, end[None]], 0)
        there = tf.sequence_mask(lengths, tf.shape(e)[1])
        counts = tf.transpose(tf.nn.softmax(alphas + betas), [1, 0, 2]) * up[:, None, None]
        counts = tf.where(there[:, :, None], counts, 0.0)
        last = tf.gather(counts, tf.maximum(lengths - 1, 0), batch_dims=1)
        return counts, None, pairs * up[:, None, None], counts[:, 0], last

    return total + tf.reduce_logsumexp(alphas[-1] + end, -1), grad  # rows that ended earlier stood still
