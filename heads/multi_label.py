"""Several labels, or none, for a text or a pair of texts: a yes or no for every label.

The network is ``pooling.PooledHead``'s; every logit goes through a sigmoid of its own. docs/multi_label.md lists
formats, options and formulas.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, Head
from keras_bert_lab.losses import BinaryCrossentropy
from keras_bert_lab.pooling import PooledHead, by_example, factors, label_list, listed, number, per_class, ratio
from keras_bert_lab.tables import blank, label_name, label_order

OUTPUT = "logits"
BLOCK = 4096  # answers scored at a time
SURE = 30.0  # a tuned threshold's largest logit: beyond, its probability could not be told from 1


@dataclass(frozen=True, kw_only=True)
class MultiLabel(PooledHead):
    """Any number of labels for a text or a pair of texts.

    Attributes:
        label_column: the labels: a JSON list, or with ``separator`` names between separators.
        separator: what stands between labels in a cell, for example ","; None: a cell is a JSON list.
        labels: the label names, in the order of the logits; empty: sorted from the training examples.
        positive_weights: factor of a label's loss where it is gold: None (1), "balanced" (examples without the label
            / examples with it, fixed by ``fit``), or {label: factor >= 0}; labels not named have 1.
        focal_gamma: above 0 the focal loss of Lin et al. 2017, see ``losses.BinaryCrossentropy``.
        threshold: from which probability on a label is answered. "per_label": tuned on the dev set for each label;
            "shared": one for all, tuned on the dev set; or a number between 0 and 1.
        thresholds: what was tuned, a probability a label; empty: not yet, then 0.5.
        rates: how often each label is gold among the training examples, fixed by ``fit``: a new last layer begins
            with answers that are that probable (Lin et al. 2017, section 4.1); empty: with 0.5.

    The columns and file options are those of ``head.TableHead``, the network's those of ``pooling.PooledHead``.

    Gold: label names, a list, tuple or set; an empty one is a text without a label.

    Answers: ``{"labels": [str], "probabilities": {label: float}}``, the labels in the order of ``labels``.

    Example:
        >>> head = MultiLabel(separator=",")
        >>> head = head.fit([Example("how odd and funny", gold=["odd", "funny"]), Example("the", gold=[])])
        >>> head.labels
        ('funny', 'odd')
    """

    main_metric: ClassVar[str] = "micro_f1"

    label_column: str | int = "labels"
    separator: str | None = None
    labels: tuple[str, ...] = ()
    positive_weights: str | Mapping[str, float] | None = None
    focal_gamma: float = 0.0
    threshold: str | float = "per_label"
    thresholds: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", label_list(self.labels))
        if self.separator is not None and (not isinstance(self.separator, str) or not self.separator):
            raise UserError("separator", f"is {self.separator!r}", 'give what stands between labels, for example ","')
        number("focal_gamma", self.focal_gamma, below=float("inf"))
        if isinstance(self.positive_weights, Mapping):
            weights = factors("positive_weights", self.positive_weights, self.labels)
            object.__setattr__(self, "positive_weights", weights)
        elif self.positive_weights not in (None, "balanced"):
            told = f"is {self.positive_weights!r}"
            raise UserError("positive_weights", told, 'choose "balanced" or {label: factor}')
        if self.threshold not in ("per_label", "shared"):
            _probability("threshold", self.threshold, 'choose "per_label", "shared", or a number between 0 and 1')
        for option in ("thresholds", "rates"):
            values = getattr(self, option)
            if values and len(values) != len(self.labels):
                raise UserError(option, f"{len(values)} for {len(self.labels)} labels", "give one a label")
            for value in values:
                _probability(option, value, "give numbers between 0 and 1")

    # ---- data ----------------------------------------------------------------------------------------------------

    @property
    def fitted(self) -> bool:
        return bool(self.labels) and self.positive_weights != "balanced"

    def missing(self, value: Any) -> bool:
        """Between separators a blank cell is a text without labels; a JSON list says so itself: ``[]``."""
        return value is None or (self.separator is None and blank(value))

    def gold(self, value: Any) -> Any:
        """A tuple of label names, or the cell as it is where it holds none."""
        if isinstance(value, str):
            if self.separator is not None:
                return tuple(part for part in value.split(self.separator)) if value.strip() else ()
            try:
                value = json.loads(cell := value)
            except ValueError:
                return value
            return tuple(value) if isinstance(value, list) else cell
        return tuple(value) if isinstance(value, list) else value

    def problem(self, example: Example) -> str | None:
        return super().problem(example) or self._fault(example.gold)

    def _fault(self, gold: Any) -> str | None:
        """What is wrong with gold labels, or None."""
        if isinstance(gold, str):
            return f"the labels {_short(gold)} are no JSON list (is a separator to be set?)"
        if not isinstance(gold, (list, tuple, Set)):
            return f"the labels are a {type(gold).__name__}, not a list"
        names = [label_name(label) if _is_name(label) else None for label in gold]
        if None in names:
            return f"one of the labels {_short(list(gold))} is empty or no name"
        unknown = [name for name in names if self.labels and name not in self.labels]
        return f"unknown label {unknown[0]!r}, the labels are {listed(self.labels)}" if unknown else None

    def stratum(self, example: Example) -> str | None:
        """A row counts for the first of its labels."""
        return min(_names(example), default=None)

    def describe(self) -> str:
        if not self.thresholds or self.threshold not in ("per_label", "shared"):
            return f"{len(self.labels)} labels: {listed(self.labels)}"
        told = (f"{label} from {t:.3g}" for label, t in zip(self.labels, self.thresholds, strict=True))
        return f"{len(self.labels)} labels: {listed(told)}"

    def fit(self, examples: Iterable[Example]) -> MultiLabel:
        """Learns labels (unless given), rates and balanced weights; takes pairs if all examples are pairs.

        Raises:
            UserError: rows that cannot be used (see ``usable``); no examples; no label on any of them.
        """
        counts: Counter[str] = Counter()
        pairs = total = 0
        for example in self.usable(examples):
            counts.update(_names(example))
            pairs += example.pair is not None
            total += 1
        pair_column = self.pair_column_for(pairs, total)
        labels = self.labels or label_order(counts)
        if not labels:
            raise UserError("training examples", f"none of the {total} has a label", "give some that have")
        weights = self.positive_weights
        if weights == "balanced":  # a label that no example has, or every one, is not weighed
            weights = {n: (total - counts[n]) / counts[n] if 0 < counts[n] < total else 1.0 for n in labels}
        rates = tuple((counts[n] + 0.5) / (total + 1) for n in labels)  # never 0 or 1
        return dataclasses.replace(self, labels=labels, positive_weights=weights, pair_column=pair_column, rates=rates)

    def _known(self) -> tuple[str, ...]:
        if not self.labels:
            raise UserError("multi_label", "the labels are not known yet", "call fit, or give the option labels")
        return self.labels

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """float32 [examples, labels]: 1 where a label is gold; labels that are not known are left out."""
        index = {label: i for i, label in enumerate(self._known())}
        y = np.zeros((len(examples), len(index)), np.float32)
        for row, example in enumerate(examples):
            y[row, [index[name] for name in _names(example) if name in index]] = 1
        return y

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y["logits"] float32 [rows, labels] of 0 and 1, w["logits"] float32 [rows].

        An example whose labels ``problem`` would refuse has weight 0: it can be predicted, it teaches nothing.

        Raises:
            UserError: a second text for a head of single texts, or none for a head of pairs.
        """
        y = self.targets(examples)
        windows = self.rows(examples, text)
        weights = (e.weight if self._fault(e.gold) is None else 0 for e in examples)
        w = np.fromiter(weights, np.float32, len(examples))
        return Features(windows, {OUTPUT: y[windows.example]}, {OUTPUT: w[windows.example]})

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, labels] float32}. Variables: ``classifier/kernel`` [width, labels], ``classifier/bias``.

        A new bias is where the loss would settle if texts said nothing: log(c r / (1 - r)), r a label's rate, c its
        positive weight.
        """
        bias = [math.log(max(c * r / (1 - r), 1e-6)) for c, r in zip(self._weights(), self.rates, strict=False)]
        return {OUTPUT: self.linear(encoded, len(self._known()), bias)}

    def _weights(self) -> list[float]:
        """The positive weight of every label."""
        given = self.positive_weights if isinstance(self.positive_weights, Mapping) else {}
        return [float(given.get(label, 1.0)) for label in self.labels]

    def losses(self) -> dict[str, keras.Loss]:
        if self.positive_weights == "balanced":
            raise UserError("positive_weights", "balanced weights are not known yet", "call fit first")
        return {OUTPUT: BinaryCrossentropy(self._weights() if self.positive_weights else None, self.focal_gamma)}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: the sum of the logits of the labels that are answered; where none is, the largest logit."""
        decides = (logits if chosen is None else chosen)[OUTPUT]
        answered = decides >= tf.constant(self.cuts)
        most = tf.one_hot(tf.argmax(decides, -1), len(self.labels), True, False, dtype=tf.bool)
        which = tf.where(tf.reduce_any(answered, -1, keepdims=True), answered, most)
        return tf.reduce_sum(tf.where(which, logits[OUTPUT], 0.0), -1)

    # ---- answers -------------------------------------------------------------------------------------------------

    @property
    def tunes(self) -> str:
        return {"per_label": "the labels' thresholds", "shared": "the threshold"}.get(str(self.threshold), "")

    def tuned(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> Head:
        """The head with the thresholds that give the largest F1 on these examples; see ``best_cut``.

        A label that none of the examples has keeps 0.5.
        """
        if not self.tunes:
            return self
        gold = self.targets(examples) > 0
        rows = by_example(examples, windows, logits[OUTPUT], len(self.labels))
        if self.threshold == "shared":
            cuts = np.full(len(self.labels), best_cut(rows.ravel(), gold.ravel()))
        else:
            cuts = np.array([best_cut(rows[:, k], gold[:, k]) for k in range(len(self.labels))])
        return dataclasses.replace(self, thresholds=tuple((1 / (1 + np.exp(-cuts))).tolist()))

    @property
    def cuts(self) -> np.ndarray:
        """float32 [labels]: the thresholds as logits; Python and graph compare with these."""
        fixed = 0.5 if self.tunes else float(self.threshold)
        p = np.array(self.thresholds if self.tunes and self.thresholds else [fixed] * len(self._known()))
        return (np.log(p) - np.log1p(-p)).astype(np.float32)

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = by_example(examples, windows, logits[OUTPUT], len(self.labels))
        answered = rows >= self.cuts
        with np.errstate(over="ignore"):
            probabilities = 1 / (1 + np.exp(-rows.astype(np.float64)))
        return [
            {
                "labels": [self.labels[k] for k in np.flatnonzero(yes)],
                "probabilities": dict(zip(self.labels, p, strict=True)),
            }
            for yes, p in zip(answered, probabilities.tolist(), strict=True)
        ]

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The answered labels of every row and all probabilities.

        "labels": string [B, most], the answered ones in the order of ``labels``, then "" up to the longest row's
        number; "count": int32 [B], how many they are; "probabilities": float32 [B, labels] in the order of
        ``labels``; "answered": bool [B, labels].
        """
        rows = tf.cast(logits[OUTPUT], tf.float32)
        answered = rows >= tf.constant(self.cuts)
        names = tf.broadcast_to(tf.constant(self.labels), tf.shape(rows))
        return {
            "labels": tf.ragged.boolean_mask(names, answered).to_tensor(""),
            "count": tf.reduce_sum(tf.cast(answered, tf.int32), -1),
            "probabilities": tf.sigmoid(rows),
            "answered": answered,
        }

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """F1s, ranking average precision, exact match, Hamming loss, and each label's scores; see ``Counts``.

        Raises:
            UserError: an example whose labels are not known (with ``bad_rows="skip"`` it is left out), or no example.
        """
        counts = Counts(self._known())
        block: list[tuple[Example, Mapping[str, Any]]] = []
        index = {label: i for i, label in enumerate(self.labels)}
        for example, answer in self.scorable(examples, answers):
            block.append((example, answer))
            if len(block) == BLOCK:
                self._count(counts, block, index)
        self._count(counts, block, index)
        if not counts.rows:
            raise UserError("scores", "there is no labelled example", "evaluate a file with a label column")
        return counts.result()

    def _count(self, counts: Counts, block: list, index: Mapping[str, int]) -> None:
        said = np.zeros((len(block), len(index)), bool)
        for row, (_, answer) in enumerate(block):
            said[row, [index[label] for label in answer["labels"]]] = True
        probabilities = np.array([list(answer["probabilities"].values()) for _, answer in block])
        counts.add(self.targets([example for example, _ in block]) > 0, said, probabilities.reshape(said.shape))
        block.clear()


def best_cut(scores: np.ndarray, gold: np.ndarray) -> float:
    """Where to cut logits so that F1 = 2 tp / (2 tp + fp + fn) of "at least the cut" is largest.

    Candidates lie half way between neighbouring different scores, and 1 below the lowest. Of equally good ones the
    nearest to 0 (probability 0.5) wins. Without any gold: 0. Never beyond +-30, whose probabilities are still told
    from 0 and 1.

    Args:
        scores: float [n], logits.
        gold: bool [n].

    Example:
        >>> best_cut(np.array([3.0, 2.0, 0.5, -1.0]), np.array([True, False, True, False]))
        -0.25
    """
    positives = int(gold.sum())
    if not positives:
        return 0.0
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order].astype(np.float64)
    right = np.cumsum(gold[order])
    ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True))  # the last of each run of equal scores
    f1 = 2 * right[ends] / (ends + 1 + positives)
    below = np.append(ranked[1:], ranked[-1] - 2)[ends]
    cuts = (ranked[ends] + below) / 2
    best = cuts[f1 >= f1.max() - 1e-12]
    return float(np.clip(best[np.abs(best).argmin()], -SURE, SURE))


def ranking_average_precision(gold: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """[rows] float64: the label ranking average precision of every row (Tsoumakas et al. 2010, section 7.2.2).

    The mean over a row's gold labels j of (gold labels scored at least as high as j) / (labels scored at least as
    high as j). A row without gold labels, or with all of them gold, cannot be ranked wrongly: 1, as in scikit-learn's
    ``label_ranking_average_precision_score``.

    Args:
        gold: bool [rows, labels].
        scores: float [rows, labels].

    Example:
        >>> ranking_average_precision(np.array([[True, False, True]]), np.array([[0.9, 0.8, 0.7]])).round(4).tolist()
        [0.8333]
    """
    rows, labels = gold.shape
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked, hits = np.take_along_axis(scores, order, 1), np.take_along_axis(gold, order, 1)
    # the place of the last label that is scored as high: ties count as scored at least as high
    last = np.ones((rows, labels), bool)
    last[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
    ends = np.where(last, np.arange(labels), labels - 1)
    ends = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    precision = np.take_along_axis(np.cumsum(hits, 1), ends, 1) / (ends + 1)
    count = hits.sum(1)
    found = (precision * hits).sum(1) / np.maximum(count, 1)
    return np.where((count == 0) | (count == labels), 1.0, found)


class Counts:
    """Sums over rows from which all scores come, so that files of any length are scored in little memory.

    With tp, fp, fn of a label over all rows: F1 2 tp / (2 tp + fp + fn), 0 where the denominator is 0. ``macro_f1``
    is the mean F1 of the labels that occur as gold or as answer, ``micro_f1`` pools the counts;
    ``ranking_average_precision`` does not depend on thresholds; ``exact_match`` is the share of rows whose labels
    are all right and none more; ``hamming_loss`` the share of wrong yeses and noes.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.right, self.said, self.gold = (np.zeros(len(labels), np.int64) for _ in range(3))
        self.rows = self.exact = 0
        self.ranking = 0.0

    def add(self, gold: np.ndarray, said: np.ndarray, scores: np.ndarray) -> None:
        """bool [rows, labels], bool [rows, labels], float [rows, labels]."""
        self.right += (gold & said).sum(0)
        self.said += said.sum(0)
        self.gold += gold.sum(0)
        self.rows += len(gold)
        self.exact += int((gold == said).all(1).sum())
        self.ranking += float(ranking_average_precision(gold, scores).sum())

    def result(self) -> dict[str, Any]:
        """Scores by name."""
        either = self.gold + self.said
        f1 = ratio(2 * self.right, either)
        wrong = int((either - 2 * self.right).sum())
        pooled = {
            "precision": ratio(self.right.sum(), self.said.sum()),
            "recall": ratio(self.right.sum(), self.gold.sum()),
            "f1": ratio(2 * self.right.sum(), either.sum()),
        }
        return {
            "micro_f1": float(pooled["f1"]),
            "macro_f1": float(f1[either > 0].mean()) if (either > 0).any() else 0.0,
            "ranking_average_precision": self.ranking / self.rows,
            "exact_match": self.exact / self.rows,
            "hamming_loss": wrong / (self.rows * len(self.labels)),
            "micro_precision": float(pooled["precision"]),
            "micro_recall": float(pooled["recall"]),
            "examples": self.rows,
            "per_label": per_class(self.right, self.said, self.gold, self.labels),
        }


def _is_name(value: Any) -> bool:
    return not isinstance(value, (list, tuple, dict, Set))


def _names(example: Example) -> set[str]:
    """The gold label names; of what is no list of names, none."""
    if not isinstance(example.gold, (list, tuple, Set)):
        return set()
    return {str(label_name(label)) for label in example.gold if _is_name(label) and label_name(label) is not None}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _probability(option: str, value: Any, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise UserError(option, f"is {value!r}", remedy)
