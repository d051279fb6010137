"""Losses and metrics that average over what is labelled, and over nothing else.

A position counts with its weight; a target of -100 is the same as a weight of 0. So padding changes no
number, a batch without any label gives 0 and no gradient, and a metric is computed from the counts of the
whole epoch. The cross entropy is that of run_classifier.py and run_pretraining.py of google-research/bert:
log-softmax in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

UNLABELLED = -100


def labelled(y: Any, weights: Any = None) -> tf.Tensor:
    """float32 weights of the shape of ``y`` (int [B] or [B, L]): 0 at -100, else the given ones ([B], [B, L]) or 1."""
    y = tf.convert_to_tensor(y)
    real = tf.cast(y != UNLABELLED, tf.float32)
    if weights is None:
        return real
    weights = tf.cast(weights, tf.float32)
    while len(weights.shape) < len(y.shape):  # weights of rows hold for every position of the row
        weights = weights[..., tf.newaxis]
    # not a product: an unlabelled position with weight inf or nan must stay out
    return tf.where(real > 0, tf.broadcast_to(weights, tf.shape(y)), 0.0)


def _classes(y: Any, logits: Any) -> tf.Tensor:
    """Targets as int [B] or [B, L], whatever number type and trailing 1 Keras made of them."""
    y = tf.convert_to_tensor(y)
    if len(y.shape) == len(logits.shape):
        y = tf.squeeze(y, -1)
    return tf.cast(y, tf.int32)


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class SparseCategoricalCrossentropy(keras.Loss):
    r"""Cross entropy of integer targets and logits, with label smoothing and class weights.

    Per labelled position, with K classes, log-softmax p, smoothing e and class weights c (1 if not given):

        c[y] * ( -(1 - e) * p[y]  -  e / K * sum_k p[k] )

    (smoothing as in Szegedy et al. 2016, section 7). ``call`` returns these, 0 where the target is -100;
    calling the loss returns their mean weighted by ``sample_weight``: sum(w * loss) / sum(w), 0 if nothing is
    labelled. Class weights scale the loss and do not enter the denominator, as in Keras (torch divides by
    their sum as well).

    Args:
        label_smoothing: e, in [0, 1).
        class_weights: one number >= 0 per class, or None.

    Shapes: y int [B] or [B, L]; logits [B, K] or [B, L, K] of any float type; computed in float32.

    Example:
        >>> loss = SparseCategoricalCrossentropy()
        >>> round(float(loss([[0, 1, -100, -100]], [[[0.0, 0.0]] * 4])), 4)
        0.6931
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        name: str = "sparse_categorical_crossentropy",
    ) -> None:
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}, it must lie in [0, 1)")
        self.label_smoothing = float(label_smoothing)
        self.class_weights = None if class_weights is None else [float(c) for c in class_weights]

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """float32 [B] or [B, L]: the loss of every position, 0 where y is -100."""
        logits = tf.cast(y_pred, tf.float32)
        y = _classes(y_true, logits)
        real = y != UNLABELLED
        safe = tf.where(real, y, 0)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=safe, logits=logits)
        if self.label_smoothing:
            # -mean_k log p[k] = logsumexp - mean(logits): no one-hot of the size of a vocabulary
            even = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * even
        if self.class_weights is not None:
            loss *= tf.gather(tf.constant(self.class_weights, tf.float32), safe)
        return tf.where(real, loss, 0.0)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """float32 scalar: the weighted mean over what is labelled."""
        y_pred = tf.convert_to_tensor(y_pred)
        weights = labelled(_classes(y_true, y_pred), sample_weight)
        # where weight is 0 the loss may be inf or nan (filler rows): 0 * nan would be nan
        losses = tf.where(weights > 0, self.call(y_true, y_pred), 0.0)
        return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights))

    def get_config(self) -> dict[str, Any]:
        return {
            "label_smoothing": self.label_smoothing,
            "class_weights": self.class_weights,
            "name": self.name,
        }


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class SparseCategoricalFocal(SparseCategoricalCrossentropy):
    r"""Focal loss of integer targets and logits: the cross entropy, less for what is already right.

    Per labelled position, with softmax p, focus g and class weights c (1 if not given):

        c[y] * (1 - p[y])^g * -log p[y]

    Lin et al. 2017, equations 4 and 5, whose p_t is a sigmoid's; here it is the target's softmax probability, and
    their alpha is c. With g = 0 it is the cross entropy. Means, -100 and class weights as in
    ``SparseCategoricalCrossentropy``. (1 - p[y])^g is exp(g * log(1 - p[y])), and log(1 - p[y]) comes from the
    other classes' logits, so that value and gradient stay finite where p[y] rounds to 1, for any g.

    Args:
        gamma: g >= 0; 2 in the paper.
        class_weights: one number >= 0 per class, or None.

    Example:
        >>> loss = SparseCategoricalFocal(gamma=2.0)
        >>> round(float(loss([0], [[0.0, 0.0]])), 4)      # 0.5**2 * log 2
        0.1733
    """

    def __init__(
        self, gamma: float = 2.0, class_weights: Sequence[float] | None = None, name: str = "sparse_categorical_focal"
    ) -> None:
        super().__init__(0.0, class_weights, name)
        self.gamma = _focus(gamma)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """float32 [B] or [B, L]: the loss of every position, 0 where y is -100."""
        logits = tf.cast(y_pred, tf.float32)
        y = _classes(y_true, logits)
        safe = tf.where(y != UNLABELLED, y, 0)
        its = tf.range(tf.shape(logits)[-1]) == safe[..., tf.newaxis]  # [B, K] or [B, L, K]: the target's place
        others = tf.reduce_logsumexp(tf.where(its, logits.dtype.min, logits), -1)
        wrong = others - tf.reduce_logsumexp(logits, -1)  # log(1 - p[y])
        return super().call(y_true, y_pred) * tf.exp(self.gamma * wrong)

    def get_config(self) -> dict[str, Any]:
        return {"gamma": self.gamma, "class_weights": self.class_weights, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class BinaryCrossentropy(keras.Loss):
    r"""Cross entropy of yes or no for each of K labels, from logits; with positive weights and a focus.

    Per row, with p = sigmoid(logits), positive weights c and focus g:

        mean over k of  -( y_k * c_k * (1 - p_k)^g * log p_k  +  (1 - y_k) * p_k^g * log(1 - p_k) )

    c as torch's ``pos_weight``; g as in Lin et al. 2017, equation 4 (their alpha balances by c instead: alpha and
    1 - alpha are c and 1 up to a factor). log p and log(1 - p) are softplus functions of the logit, never the log
    of a rounded probability. Calling the loss returns the rows' mean weighted by ``sample_weight``, 0 if all
    weights are 0.

    Args:
        positive_weights: c, a number >= 0 per label, or None.
        gamma: g >= 0; 0 is the plain cross entropy.

    Shapes: y [B, K] of 0 and 1 (or between); logits [B, K] of any float type; computed in float32.

    Example:
        >>> loss = BinaryCrossentropy(positive_weights=[3.0, 1.0])
        >>> round(float(loss([[1.0, 0.0]], [[0.0, 0.0]])), 4)      # (3 + 1) / 2 * log 2
        1.3863
    """

    def __init__(
        self, positive_weights: Sequence[float] | None = None, gamma: float = 0.0, name: str = "binary_crossentropy"
    ) -> None:
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        self.positive_weights = None if positive_weights is None else [float(c) for c in positive_weights]
        self.gamma = _focus(gamma)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """float32 [B]: the loss of every row."""
        logits, y = tf.cast(y_pred, tf.float32), tf.cast(y_true, tf.float32)
        yes, no = tf.math.softplus(-logits), tf.math.softplus(logits)  # -log p, -log(1 - p)
        right, wrong = yes, no
        if self.gamma:
            right, wrong = yes * tf.exp(-self.gamma * no), no * tf.exp(-self.gamma * yes)
        if self.positive_weights is not None:
            right *= tf.constant(self.positive_weights, tf.float32)
        return tf.reduce_mean(y * right + (1 - y) * wrong, -1)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """float32 scalar: the weighted mean over rows."""
        losses = self.call(y_true, y_pred)
        weights = tf.ones_like(losses) if sample_weight is None else tf.cast(sample_weight, tf.float32)
        return tf.math.divide_no_nan(
            tf.reduce_sum(tf.math.multiply_no_nan(losses, weights)), tf.reduce_sum(weights)
        )

    def get_config(self) -> dict[str, Any]:
        return {"positive_weights": self.positive_weights, "gamma": self.gamma, "name": self.name}


def _focus(gamma: float) -> float:
    if not 0 <= gamma < float("inf"):
        raise ValueError(f"gamma is {gamma}, it must be 0 or more")
    return float(gamma)


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class Accuracy(keras.Metric):
    """Weighted share of the labelled positions whose largest logit is the target's; 0 if there are none.

    State: two sums (weight of the right ones, weight of all), so that replicas are reduced by adding.

    Example:
        >>> metric = Accuracy()
        >>> metric.update_state([1, 0, -100], [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, name: str = "accuracy") -> None:
        super().__init__(name=name, dtype="float32")
        self.right = self.add_weight(shape=(), initializer="zeros", name="right")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """y int [B] or [B, L], logits [B, K] or [B, L, K], weights [B] or [B, L] or None."""
        logits = tf.convert_to_tensor(y_pred)
        y = _classes(y_true, logits)
        weights = labelled(y, sample_weight)
        hit = tf.cast(tf.argmax(logits, -1, output_type=tf.int32) == y, tf.float32)
        self.right.assign_add(tf.reduce_sum(hit * weights))
        self.total.assign_add(tf.reduce_sum(weights))

    def result(self) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.right), tf.convert_to_tensor(self.total))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class F1(keras.Metric):
    """F1 = 2 tp / (2 tp + fp + fn) over all positions seen since the last reset, weighted.

    Args:
        classes: number of classes K.
        average: "macro" (mean of the classes' F1 over those that occur as target or prediction) or "micro"
            (one F1 of the summed counts).
        over: the classes that count, for example without O in tagging, or only the positive one; None: all.

    State: tp, fp, fn, each [K], sums. 0 where the denominator is 0.

    Example:
        >>> metric = F1(2, over=[1])
        >>> metric.update_state([1, 1, 0], [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
        >>> round(float(metric.result()), 4)
        0.6667
    """

    def __init__(
        self, classes: int, average: str = "macro", over: Sequence[int] | None = None, name: str = "f1"
    ) -> None:
        super().__init__(name=name, dtype="float32")
        if average not in ("macro", "micro"):
            raise ValueError(f"average is {average!r}, choose macro or micro")
        self.classes, self.average = int(classes), average
        self.over = None if over is None else [int(c) for c in over]
        if self.over is not None and not all(0 <= c < self.classes for c in self.over):
            raise ValueError(f"over is {self.over}, the classes are 0 to {self.classes - 1}")
        self.tp = self.add_weight(shape=(classes,), initializer="zeros", name="tp")
        self.fp = self.add_weight(shape=(classes,), initializer="zeros", name="fp")
        self.fn = self.add_weight(shape=(classes,), initializer="zeros", name="fn")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """y int [B] or [B, L], logits [B, K] or [B, L, K], weights [B] or [B, L] or None."""
        logits = tf.convert_to_tensor(y_pred)
        y = _classes(y_true, logits)
        weights = tf.reshape(labelled(y, sample_weight), [-1])
        y = tf.reshape(tf.where(y == UNLABELLED, 0, y), [-1])
        guess = tf.reshape(tf.argmax(logits, -1, output_type=tf.int32), [-1])

        def count(which: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(tf.where(keep, weights, 0.0), which, self.classes)

        self.tp.assign_add(count(y, y == guess))
        self.fp.assign_add(count(guess, y != guess))
        self.fn.assign_add(count(y, y != guess))

    def result(self) -> tf.Tensor:
        counts = [tf.convert_to_tensor(v) for v in (self.tp, self.fp, self.fn)]
        if self.over is not None:
            counts = [tf.gather(v, self.over) for v in counts]
        if self.average == "micro":
            counts = [tf.reduce_sum(v) for v in counts]
        tp, fp, fn = counts
        f1 = tf.math.divide_no_nan(2 * tp, 2 * tp + fp + fn)
        if self.average == "micro":
            return f1
        seen = tf.cast(tp + fp + fn > 0, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(f1 * seen), tf.reduce_sum(seen))

    def get_config(self) -> dict[str, Any]:
        return {"classes": self.classes, "average": self.average, "over": self.over, "name": self.name}
