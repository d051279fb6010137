"""Classification of single texts and of pairs: one label out of several.

The network is ``pooling.PooledHead``'s. docs/classification.md lists formats, options and formulas.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features
from keras_bert_lab.losses import UNLABELLED, Accuracy, SparseCategoricalCrossentropy, SparseCategoricalFocal
from keras_bert_lab.pooling import PooledHead, by_example, factors, label_list, listed, number, per_class, ratio
from keras_bert_lab.tables import label_name, label_order

OUTPUT = "logits"


@dataclass(frozen=True, kw_only=True)
class Classification(PooledHead):
    """One of several labels for a text or a pair of texts.

    Attributes:
        labels: the label names, in the order of the logits; empty: sorted from the training examples.
        class_weights: None, "balanced" (examples / (classes * examples of the class), fixed by ``fit``), or
            {label: factor >= 0}; labels not named have 1.
        label_smoothing: see ``losses.SparseCategoricalCrossentropy``.
        focal_gamma: above 0 the focal loss of Lin et al. 2017, see ``losses.SparseCategoricalFocal``.

    The columns and file options are those of ``head.TableHead``, the network's those of ``pooling.PooledHead``.

    Answers: ``{"label": str, "probability": float, "probabilities": {label: float}}``.

    Example:
        >>> head = Classification(text_column="review", pooling="mean")
        >>> head = head.fit([Example("good", gold="pos"), Example("bad", gold="neg")])
        >>> head.labels
        ('neg', 'pos')
    """

    main_metric: ClassVar[str] = "accuracy"

    labels: tuple[str, ...] = ()
    class_weights: str | Mapping[str, float] | None = None
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", label_list(self.labels, least=2))
        number("label_smoothing", self.label_smoothing, below=1)
        number("focal_gamma", self.focal_gamma, below=float("inf"))
        if self.focal_gamma and self.label_smoothing:
            raise UserError("focal_gamma", f"is {self.focal_gamma} and label_smoothing {self.label_smoothing}",
                            "choose one: the focal loss is not defined for smoothed labels")  # fmt: skip
        if isinstance(self.class_weights, Mapping):
            object.__setattr__(self, "class_weights", factors("class_weights", self.class_weights, self.labels))
        elif self.class_weights not in (None, "balanced"):
            raise UserError("class_weights", f"is {self.class_weights!r}", 'choose "balanced" or {label: factor}')

    # ---- data ----------------------------------------------------------------------------------------------------

    @property
    def fitted(self) -> bool:
        return bool(self.labels) and self.class_weights != "balanced"

    def problem(self, example: Example) -> str | None:
        trouble = super().problem(example)
        if trouble is None and isinstance(example.gold, (list, dict)):
            return f"the label is a JSON {type(example.gold).__name__}, not one string or number"
        if trouble is None and self.labels and label_name(example.gold) not in self.labels:
            return f"unknown label {label_name(example.gold)!r}, the labels are {listed(self.labels)}"
        return trouble

    def stratum(self, example: Example) -> str | None:
        return label_name(example.gold)

    def describe(self) -> str:
        return f"{len(self.labels)} labels: {listed(self.labels)}"

    def fit(self, examples: Iterable[Example]) -> Classification:
        """Learns the labels (unless given) and balanced class weights; takes pairs if all examples are pairs.

        Raises:
            UserError: rows that cannot be used (see ``usable``); no examples; fewer than two labels.
        """
        counts: Counter[str] = Counter()
        pairs = 0
        for example in self.usable(examples):
            counts[str(label_name(example.gold))] += 1
            pairs += example.pair is not None
        pair_column = self.pair_column_for(pairs, sum(counts.values()))
        labels = self.labels or label_order(counts)
        if len(labels) < 2:
            raise UserError(
                "training examples", f"all have the label {labels[0]!r}", "classification needs two or more"
            )
        weights = self.class_weights
        if weights == "balanced":  # a label without examples is never weighted in training
            total = sum(counts.values())
            weights = {label: total / (len(labels) * counts[label]) if counts[label] else 1.0 for label in labels}
        return dataclasses.replace(self, labels=labels, class_weights=weights, pair_column=pair_column)

    def _index(self) -> dict[str, int]:
        if not self.labels:
            raise UserError("classification", "the labels are not known yet", "call fit, or give the option labels")
        return {label: i for i, label in enumerate(self.labels)}

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y["logits"] int32 [rows], w["logits"] float32 [rows].

        An example that ``problem`` would refuse has -100 and 0: it can be predicted, it teaches nothing.

        Raises:
            UserError: a second text for a head of single texts, or none for a head of pairs.
        """
        index = self._index()
        windows = self.rows(examples, text)
        y = np.fromiter((index.get(label_name(e.gold) or "", UNLABELLED) for e in examples), np.int32, len(examples))
        w = np.fromiter((e.weight for e in examples), np.float32, len(examples))
        y, w = y[windows.example], w[windows.example]
        return Features(windows, {OUTPUT: y}, {OUTPUT: np.where(y == UNLABELLED, np.float32(0), w)})

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, labels] float32}. Variables: ``classifier/kernel`` [width, labels], ``classifier/bias``."""
        return {OUTPUT: self.linear(encoded, len(self._index()))}

    def losses(self) -> dict[str, keras.Loss]:
        weights = None
        if self.class_weights == "balanced":
            raise UserError("class_weights", "balanced weights are not known yet", "call fit first")
        if isinstance(self.class_weights, Mapping):
            weights = [float(self.class_weights.get(label, 1.0)) for label in self.labels]
        if self.focal_gamma:
            return {OUTPUT: SparseCategoricalFocal(self.focal_gamma, weights)}
        return {OUTPUT: SparseCategoricalCrossentropy(self.label_smoothing, weights)}

    def metrics(self) -> dict[str, list[keras.Metric]]:
        return {OUTPUT: [Accuracy()]}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: the logit of the chosen label."""
        which = tf.argmax((logits if chosen is None else chosen)[OUTPUT], -1, output_type=tf.int32)
        return tf.gather(logits[OUTPUT], which, batch_dims=1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = by_example(examples, windows, logits[OUTPUT], len(self.labels))
        probabilities = np.exp(rows - rows.max(-1, keepdims=True, initial=-np.inf))
        probabilities /= probabilities.sum(-1, keepdims=True)
        best = rows.argmax(-1) if len(rows) else np.zeros(0, int)
        return [
            {
                "label": self.labels[b],
                "probability": p[b],
                "probabilities": dict(zip(self.labels, p, strict=True)),
            }
            for b, p in zip(best.tolist(), probabilities.tolist(), strict=True)
        ]

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """{"label": string [B], "probabilities": float32 [B, labels] in the order of ``labels``}."""
        rows = tf.cast(logits[OUTPUT], tf.float32)
        return {
            "label": tf.gather(tf.constant(self.labels), tf.argmax(rows, -1)),
            "probabilities": tf.nn.softmax(rows, -1),
        }

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy, F1s, Matthews, and per class precision, recall, F1 and support; see ``scores``.

        Raises:
            UserError: an example without a known label (with ``bad_rows="skip"`` it is left out), or no
                example.
        """
        index = self._index()
        counts = np.zeros((len(index), len(index)), np.int64)
        for example, answer in self.scorable(examples, answers):
            counts[index[str(label_name(example.gold))]][index[answer["label"]]] += 1
        if not counts.sum():
            raise UserError("scores", "there is no labelled example", "evaluate a file with a label column")
        return scores(counts, self.labels)


def scores(confusion: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """All scores of a confusion matrix, int [gold, predicted].

    With tp, fp, fn of a class: precision tp / (tp + fp), recall tp / (tp + fn), F1 2 tp / (2 tp + fp + fn);
    each is 0 where its denominator is. ``macro_f1`` is the mean F1 of the classes that occur as gold or as
    prediction; ``micro_f1`` pools the counts (with one label per text it equals accuracy). ``matthews`` is
    the correlation of gold and prediction for any number of classes (Gorodkin 2004, R_K; for two classes
    Matthews 1975), 0 if either is constant.

    Example:
        >>> round(scores(np.array([[3, 1], [0, 4]]), ["no", "yes"])["macro_f1"], 4)
        0.873
    """
    matrix = np.asarray(confusion, np.float64)
    total, right = matrix.sum(), np.diag(matrix)
    gold, said = matrix.sum(1), matrix.sum(0)
    f1 = ratio(2 * right, gold + said)
    seen = gold + said > 0
    covariance = right.sum() * total - gold @ said
    spread = np.sqrt((total**2 - said @ said) * (total**2 - gold @ gold))
    return {
        "accuracy": float(right.sum() / total),
        "macro_f1": float(f1[seen].mean()),
        "micro_f1": float(2 * right.sum() / (2 * total)),
        "matthews": float(ratio(covariance, spread)),
        "examples": int(total),
        "per_class": per_class(right, said, gold, labels),
        "confusion_matrix": {  # rows: gold, columns: predicted
            label: dict(zip(labels, (int(n) for n in row), strict=True))
            for label, row in zip(labels, matrix, strict=True)
        },
    }
