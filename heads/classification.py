"""Classification of single texts and of pairs: one label out of several.

The network is that of run_classifier.py in google-research/bert (pooled output, dropout 0.1, one linear
layer, truncated normal 0.02), with other poolings and a BiLSTM as options. docs/classification.md lists
formats, options and formulas.
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
from keras import ops

from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, TableHead
from keras_bert_lab.losses import UNLABELLED, Accuracy, SparseCategoricalCrossentropy
from keras_bert_lab.tables import label_name, label_order

OUTPUT = "logits"


@dataclass(frozen=True, kw_only=True)
class Classification(TableHead):
    """One of several labels for a text or a pair of texts.

    Attributes:
        labels: the label names, in the order of the logits; empty: sorted from the training examples.
        pooling: what the last layer sees of the sequence: "cls" (the original pooler's tanh layer over
            [CLS]), "mean", "max", "attention" (learned) over all real pieces, or "last_cls:K", the [CLS]
            vectors of the last K layers.
        bilstm: units per direction of a BiLSTM between the encoder and the pooling; 0: none. With pooling
            "cls" the BiLSTM's output at [CLS] is taken.
        dropout: rate before the last layer.
        class_weights: None, "balanced" (examples / (classes * examples of the class), fixed by ``fit``), or
            {label: factor >= 0}; labels not named have 1.
        label_smoothing: see ``losses.SparseCategoricalCrossentropy``.

    The columns and file options are those of ``head.TableHead``.

    Answers: ``{"label": str, "probability": float, "probabilities": {label: float}}``.

    Example:
        >>> head = Classification(text_column="review", pooling="mean")
        >>> head = head.fit([Example("good", gold="pos"), Example("bad", gold="neg")])
        >>> head.labels
        ('neg', 'pos')
    """

    main_metric: ClassVar[str] = "accuracy"

    labels: tuple[str, ...] = ()
    pooling: str = "cls"
    bilstm: int = 0
    dropout: float = 0.1
    class_weights: str | Mapping[str, float] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.labels, list | tuple):
            raise UserError("labels", f"{self.labels!r} is no list", 'for example ["neg", "pos"]')
        names = [label_name(label) for label in self.labels]
        if None in names:
            raise UserError("labels", f"{list(self.labels)} has an empty label", "name every label")
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise UserError("labels", f"{twice[0]!r} is listed more than once", "list every label once")
        if len(names) == 1:
            raise UserError("labels", f"there is only one label, {names[0]!r}", "classification needs two or more")
        object.__setattr__(self, "labels", tuple(names))
        self._last_layers()
        if isinstance(self.bilstm, bool) or not isinstance(self.bilstm, int) or self.bilstm < 0:
            raise UserError("bilstm", f"is {self.bilstm!r}", "give the number of units per direction, 0 for none")
        for option in ("dropout", "label_smoothing"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
                raise UserError(option, f"is {value!r}", "give a number from 0 up to, not including, 1")
        if isinstance(self.class_weights, Mapping):
            weights = {label_name(k): w for k, w in self.class_weights.items()}
            for label, weight in weights.items():
                if self.labels and label not in self.labels:
                    raise UserError("class_weights", f"{label!r} is no label", f"labels: {', '.join(self.labels)}")
                if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
                    raise UserError("class_weights", f"{label!r} has {weight!r}", "give a number >= 0")
            object.__setattr__(self, "class_weights", weights)
        elif self.class_weights not in (None, "balanced"):
            raise UserError("class_weights", f"is {self.class_weights!r}", 'choose "balanced" or {label: factor}')

    def _last_layers(self) -> int:
        """K of "last_cls:K", 0 for the other poolings."""
        kind, _, count = str(self.pooling).partition(":")
        if kind == "last_cls" and count.isascii() and count.isdigit() and int(count) >= 1:
            if self.bilstm:
                raise UserError("pooling", f"{self.pooling} looks at several layers, a BiLSTM at the last one only",
                                "choose mean, max, attention or cls with bilstm")  # fmt: skip
            return int(count)
        if self.pooling not in ("cls", "mean", "max", "attention"):
            raise UserError("pooling", f"is {self.pooling!r}", "choose cls, mean, max, attention or last_cls:K, K >= 1")
        return 0

    # ---- data ----------------------------------------------------------------------------------------------------

    @property
    def fitted(self) -> bool:
        return bool(self.labels) and self.class_weights != "balanced"

    def problem(self, example: Example) -> str | None:
        trouble = super().problem(example)
        if trouble == "no label" and example.fields and self.label_column not in example.fields:
            return f"no label, since there is no column {self.label_column!r} among {list(example.fields)}"
        if trouble is None and isinstance(example.gold, (list, dict)):
            return f"the label is a JSON {type(example.gold).__name__}, not one string or number"
        if trouble is None and self.labels and label_name(example.gold) not in self.labels:
            return f"unknown label {label_name(example.gold)!r}, the labels are {_listed(self.labels)}"
        return trouble

    def stratum(self, example: Example) -> str | None:
        return label_name(example.gold)

    def describe(self) -> str:
        return f"{len(self.labels)} labels: {_listed(self.labels)}"

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
        if not counts:
            raise UserError("training examples", "there are none", "give a file with at least one row per label")
        labels = self.labels or label_order(counts)
        if len(labels) < 2:
            raise UserError(
                "training examples", f"all have the label {labels[0]!r}", "classification needs two or more"
            )
        weights = self.class_weights
        if weights == "balanced":  # a label without examples is never weighted in training
            total = sum(counts.values())
            weights = {label: total / (len(labels) * counts[label]) if counts[label] else 1.0 for label in labels}
        pair_column = self.pair_column
        if pairs and pair_column is None:
            if pairs < sum(counts.values()):
                raise UserError("training examples", f"{pairs} of {sum(counts.values())} have a second text",
                                "give all of them one, or none")  # fmt: skip
            pair_column = "pair"
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
        wants = self.pair_column is not None
        for e in examples:
            if (e.pair is not None) != wants:
                seen, should = ("no", "two texts") if wants else ("a", "single texts")
                told = f"has {seen} second text, but this head takes {should}"
                raise UserError(e.where or "example", told,
                                "set pair_column (in Python: to any name) for pairs, and for pairs only")  # fmt: skip
        pair = [e.pair for e in examples] if wants else None
        windows = text([e.text for e in examples], pair)
        y = np.fromiter((index.get(label_name(e.gold) or "", UNLABELLED) for e in examples), np.int32, len(examples))
        w = np.fromiter((e.weight for e in examples), np.float32, len(examples))
        y, w = y[windows.example], w[windows.example]
        return Features(windows, {OUTPUT: y}, {OUTPUT: np.where(y == UNLABELLED, np.float32(0), w)})

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, labels] float32}. Variables: ``classifier/kernel`` [width, labels], ``classifier/bias``."""
        classes = len(self._index())
        init = keras.initializers.TruncatedNormal(stddev=encoded.config.initializer_range)
        vector = self._pooled(encoded, init)
        vector = keras.layers.Dropout(self.dropout, name="classifier_dropout")(vector)
        # float32 also under mixed precision: a softmax over half-precision logits rounds probabilities
        return {
            OUTPUT: keras.layers.Dense(classes, kernel_initializer=init, dtype="float32", name="classifier")(vector)
        }

    def _pooled(self, encoded: Any, init: Any) -> Any:
        if count := self._last_layers():
            depth = encoded.config.num_hidden_layers
            if count > depth:
                raise UserError("pooling", f"{self.pooling}, but the encoder has {depth} layers", f"at most {depth}")
            # the last layer has the norm that a pre-norm encoder puts behind it
            firsts = [encoded.first_of(layer) for layer in encoded.layers[depth + 1 - count : depth]]
            return ops.concatenate([*firsts, encoded.first], axis=-1)
        if self.pooling == "cls" and not self.bilstm:
            return encoded.pooled
        sequence, mask = encoded.sequence, encoded.mask
        if self.bilstm:
            # [CLS] always counts: a filler row without any piece must not stop the kernels that need one
            mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)
            lstm = keras.layers.LSTM(self.bilstm, return_sequences=True, name="lstm")
            sequence = keras.layers.Bidirectional(lstm, name="bilstm")(sequence, mask=mask)
            if self.pooling == "cls":
                return sequence[:, 0]
        sequence = ops.cast(sequence, "float32")
        real = ops.expand_dims(ops.cast(mask, "float32"), -1)  # [B, L, 1]
        if self.pooling == "mean":
            return ops.sum(sequence * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
        if self.pooling == "max":
            # the lowest value stands in at padding, so that it never wins; a row without pieces gives it, finite
            floor = ops.min(sequence, axis=1, keepdims=True)
            return ops.max(ops.where(real > 0, sequence, floor), axis=1)
        attention = keras.layers.Dense(1, kernel_initializer=init, dtype="float32", name="pooling_attention")
        score = attention(sequence)
        # subtracting the largest keeps exp in range whatever stands at padding
        weight = ops.exp(score - ops.max(ops.where(real > 0, score, ops.min(score, axis=1, keepdims=True)),
                                         axis=1, keepdims=True)) * real  # fmt: skip
        return ops.sum(weight * sequence, axis=1) / ops.maximum(ops.sum(weight, axis=1), 1e-9)

    def losses(self) -> dict[str, keras.Loss]:
        weights = None
        if self.class_weights == "balanced":
            raise UserError("class_weights", "balanced weights are not known yet", "call fit first")
        if isinstance(self.class_weights, Mapping):
            weights = [float(self.class_weights.get(label, 1.0)) for label in self.labels]
        return {OUTPUT: SparseCategoricalCrossentropy(self.label_smoothing, weights)}

    def metrics(self) -> dict[str, list[keras.Metric]]:
        return {OUTPUT: [Accuracy()]}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: the logit of the chosen label."""
        which = tf.argmax((logits if chosen is None else chosen)[OUTPUT], -1, output_type=tf.int32)
        return tf.gather(logits[OUTPUT], which, batch_dims=1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = np.asarray(logits[OUTPUT], np.float32).reshape(-1, len(self.labels))
        mine = np.full(len(examples), -1)
        mine[windows.example] = np.arange(len(rows))
        if len(rows) != len(examples) or (mine < 0).any():
            raise ValueError(f"{len(rows)} rows of logits for {len(examples)} examples: one row each is expected")
        rows = rows[mine]
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
        guesses: list[str] = []

        def golds() -> Iterable[Example]:
            for example, answer in zip(examples, answers, strict=True):
                guesses[:] = [answer["label"]]  # ``usable`` hands an example on before it asks for the next
                yield example

        for example in self.usable(golds()):
            counts[index[str(label_name(example.gold))]][index[guesses[0]]] += 1
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
    precision, recall, f1 = _ratio(right, said), _ratio(right, gold), _ratio(2 * right, gold + said)
    seen = gold + said > 0
    covariance = right.sum() * total - gold @ said
    spread = np.sqrt((total**2 - said @ said) * (total**2 - gold @ gold))
    return {
        "accuracy": float(right.sum() / total),
        "macro_f1": float(f1[seen].mean()),
        "micro_f1": float(2 * right.sum() / (2 * total)),
        "matthews": float(_ratio(covariance, spread)),
        "examples": int(total),
        "per_class": {
            label: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(s)}
            for label, p, r, f, s in zip(labels, precision, recall, f1, gold, strict=True)
        },
        "confusion_matrix": {  # rows: gold, columns: predicted
            label: dict(zip(labels, (int(n) for n in row), strict=True))
            for label, row in zip(labels, matrix, strict=True)
        },
    }


def _ratio(a: Any, b: Any) -> Any:
    return np.divide(a, b, out=np.zeros_like(np.asarray(a, np.float64)), where=np.asarray(b) > 0)


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
