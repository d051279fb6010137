"""What heads with one answer a text share: from files of texts and pairs to one vector a row, and a linear layer on it.

    PooledHead   texts or pairs in, options pooling, bilstm, dropout; [B, units] out  (classification, multi_label,
                 regression are such heads)
    pool         the vector of every row

The network is that of run_classifier.py in google-research/bert (pooled output, dropout 0.1, one linear layer,
truncated normal 0.02), with other poolings and a BiLSTM as options. docs/classification.md has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from .errors import UserError
from .head import Example, TableHead
from .tables import label_name

if TYPE_CHECKING:
    from .encoder import Encoded
    from .windows import Windows

POOLINGS = ("cls", "mean", "max", "attention")


@dataclass(frozen=True, kw_only=True)
class PooledHead(TableHead):
    """A ``TableHead`` of single texts or of pairs whose logits are a linear layer on one vector a row.

    Attributes:
        pooling: what the last layer sees of the sequence: "cls" (the original pooler's tanh layer over [CLS]),
            "mean", "max", "attention" (learned) over all real pieces, or "last_cls:K", the [CLS] vectors of the
            last K layers.
        bilstm: units per direction of a BiLSTM between the encoder and the pooling; 0: none. With pooling "cls"
            the BiLSTM's output at [CLS] is taken.
        dropout: rate before the last layer.
    """

    pooling: str = "cls"
    bilstm: int = 0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        last_layers(self.pooling, self.bilstm)
        if isinstance(self.bilstm, bool) or not isinstance(self.bilstm, int) or self.bilstm < 0:
            raise UserError("bilstm", f"is {self.bilstm!r}", "give the number of units per direction, 0 for none")
        number("dropout", self.dropout, below=1)

    # ---- data ----------------------------------------------------------------------------------------------------

    def problem(self, example: Example) -> str | None:
        trouble = super().problem(example)
        if trouble == "no label" and example.fields:
            named = [column for column in self.gold_columns if isinstance(column, str)]
            absent = [column for column in named if column not in example.fields]
            if absent:
                return f"no label, since there is no column {absent[0]!r} among {list(example.fields)}"
        return trouble

    def pair_column_for(self, pairs: int, examples: int) -> str | int | None:
        """The ``pair_column`` of a head that is fitted on so many examples, of which so many are pairs.

        Raises:
            UserError: some are pairs and some are not, or there are no examples.
        """
        if not examples:
            raise UserError("training examples", "there are none", "give a file with rows to learn from")
        if not pairs or self.pair_column is not None:
            return self.pair_column
        if pairs < examples:
            raise UserError("training examples", f"{pairs} of {examples} have a second text",
                            "give all of them one, or none")  # fmt: skip
        return "pair"

    def rows(self, examples: Sequence[Example], text: Any) -> Windows:
        """The examples as windows.

        Raises:
            UserError: a second text for a head of single texts, or none for a head of pairs.
        """
        wants = self.pair_column is not None
        for e in examples:
            if (e.pair is not None) != wants:
                seen, should = ("no", "two texts") if wants else ("a", "single texts")
                told = f"has {seen} second text, but this head takes {should}"
                raise UserError(e.where or "example", told,
                                "set pair_column (in Python: to any name) for pairs, and for pairs only")  # fmt: skip
        return text([e.text for e in examples], [e.pair for e in examples] if wants else None)

    # ---- network -------------------------------------------------------------------------------------------------

    def linear(self, encoded: Encoded, units: int, bias: Sequence[float] = ()) -> Any:
        """[B, units] float32. Variables: ``classifier/kernel`` [width, units], ``classifier/bias``, the pooling's.

        Args:
            encoded: the encoder's outputs.
            units: of the last layer.
            bias: its first bias; empty: 0.
        """
        init = keras.initializers.TruncatedNormal(stddev=encoded.config.initializer_range)
        vector = pool(encoded, self.pooling, self.bilstm, init)
        vector = keras.layers.Dropout(self.dropout, name="classifier_dropout")(vector)
        # float32 also under mixed precision: a softmax over half-precision logits rounds probabilities
        first = keras.initializers.Constant(list(bias)) if bias else "zeros"
        return keras.layers.Dense(
            units, kernel_initializer=init, bias_initializer=first, dtype="float32", name="classifier"
        )(vector)


# ---- network -----------------------------------------------------------------------------------------------------


def last_layers(pooling: str, bilstm: int = 0) -> int:
    """K of "last_cls:K", 0 for the other poolings; a ``UserError`` for what is none of them."""
    kind, _, count = str(pooling).partition(":")
    if kind == "last_cls" and count.isascii() and count.isdigit() and int(count) >= 1:
        if bilstm:
            raise UserError("pooling", f"{pooling} looks at several layers, a BiLSTM at the last one only",
                            "choose mean, max, attention or cls with bilstm")  # fmt: skip
        return int(count)
    if pooling not in POOLINGS:
        raise UserError("pooling", f"is {pooling!r}", "choose cls, mean, max, attention or last_cls:K, K >= 1")
    return 0


def pool(encoded: Encoded, pooling: str, bilstm: int, init: Any) -> Any:
    """One vector a row: [B, width], symbolic; what a padded piece holds never shows in it.

    Args:
        encoded: the encoder's outputs.
        pooling: "cls", "mean", "max", "attention" or "last_cls:K".
        bilstm: units per direction of a BiLSTM before the pooling; 0: none.
        init: draws the attention's kernel.

    Variables: ``bilstm/forward_lstm/...``, ``bilstm/backward_lstm/...``; ``pooling_attention/kernel``, ``.../bias``.
    """
    if count := last_layers(pooling, bilstm):
        depth = encoded.config.num_hidden_layers
        if count > depth:
            raise UserError("pooling", f"{pooling}, but the encoder has {depth} layers", f"at most {depth}")
        # the last layer has the norm that a pre-norm encoder puts behind it
        firsts = [encoded.first_of(layer) for layer in encoded.layers[depth + 1 - count : depth]]
        return ops.concatenate([*firsts, encoded.first], axis=-1)
    if pooling == "cls" and not bilstm:
        return encoded.pooled
    sequence, mask = encoded.sequence, encoded.mask
    if bilstm:
        # [CLS] always counts: a filler row without any piece must not stop the kernels that need one
        mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)
        lstm = keras.layers.LSTM(bilstm, return_sequences=True, name="lstm")
        sequence = keras.layers.Bidirectional(lstm, name="bilstm")(sequence, mask=mask)
        if pooling == "cls":
            return sequence[:, 0]
    sequence = ops.cast(sequence, "float32")
    real = ops.expand_dims(ops.cast(mask, "float32"), -1)  # [B, L, 1]
    if pooling == "mean":
        return ops.sum(sequence * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
    if pooling == "max":
        # the lowest value stands in at padding, so that it never wins; a row without pieces gives it, finite
        floor = ops.min(sequence, axis=1, keepdims=True)
        return ops.max(ops.where(real > 0, sequence, floor), axis=1)
    attention = keras.layers.Dense(1, kernel_initializer=init, dtype="float32", name="pooling_attention")
    score = attention(sequence)
    # subtracting the largest keeps exp in range whatever stands at padding
    weight = ops.exp(score - ops.max(ops.where(real > 0, score, ops.min(score, axis=1, keepdims=True)),
                                     axis=1, keepdims=True)) * real  # fmt: skip
    return ops.sum(weight * sequence, axis=1) / ops.maximum(ops.sum(weight, axis=1), 1e-9)


# ---- answers and scores ------------------------------------------------------------------------------------------


def by_example(examples: Sequence[Example], windows: Windows, rows: Any, width: int) -> np.ndarray:
    """Logits [examples, width] float32 in the order of the examples, from [rows, width] in that of the windows."""
    rows = np.asarray(rows, np.float32).reshape(-1, width)
    mine = np.full(len(examples), -1)
    mine[windows.example] = np.arange(len(rows))
    if len(rows) != len(examples) or (mine < 0).any():
        raise ValueError(f"{len(rows)} rows of logits for {len(examples)} examples: one row each is expected")
    return rows[mine]


def ratio(a: Any, b: Any) -> Any:
    """a / b in float64, 0 where b is not above 0."""
    return np.divide(a, b, out=np.zeros_like(np.asarray(a, np.float64)), where=np.asarray(b) > 0)


def per_class(right: Any, said: Any, gold: Any, labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support by label; 0 where the denominator is.

    Args:
        right: [labels] how often a label was rightly answered.
        said: [labels] how often it was answered.
        gold: [labels] how often it is gold.
    """
    columns = (ratio(right, said), ratio(right, gold), ratio(2 * np.asarray(right), np.add(gold, said)), gold)
    return {
        label: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(s)}
        for label, p, r, f, s in zip(labels, *columns, strict=True)
    }


# ---- options -----------------------------------------------------------------------------------------------------


def label_list(labels: Any, least: int = 1) -> tuple[str, ...]:
    """The option ``labels`` as label names, each once; () stays ().

    Raises:
        UserError: no list, an empty or doubled label, fewer than ``least``.
    """
    if not isinstance(labels, list | tuple):
        raise UserError("labels", f"{labels!r} is no list", 'for example ["neg", "pos"]')
    names = [label_name(label) for label in labels]
    if None in names:
        raise UserError("labels", f"{list(labels)} has an empty label", "name every label")
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise UserError("labels", f"{twice[0]!r} is listed more than once", "list every label once")
    if 0 < len(names) < least:
        raise UserError("labels", f"there is only one label, {names[0]!r}", "classification needs two or more")
    return tuple(str(name) for name in names)


def factors(option: str, given: Mapping[Any, Any], labels: Sequence[str]) -> dict[str, float]:
    """The option {label: number >= 0} with label names as keys.

    Args:
        option: its name, for messages.
        labels: those that there are; empty: not known yet.
    """
    found: dict[str, float] = {}
    for key, value in given.items():
        label = str(label_name(key))
        if labels and label not in labels:
            raise UserError(option, f"{label!r} is no label", f"labels: {', '.join(labels)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise UserError(option, f"{label!r} has {value!r}", "give a number >= 0")
        found[label] = value
    return found


def number(option: str, value: Any, below: float) -> None:
    """Refuses an option that is no number from 0 up to, not including, ``below``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < below:
        raise UserError(option, f"is {value!r}", f"give a number from 0 up to, not including, {below:g}")


def listed(names: Iterable[str], most: int = 20) -> str:
    """The names for one line of a message."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
