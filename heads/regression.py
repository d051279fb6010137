"""A number, or several, for a text or a pair of texts: ratings, similarity, age, price.

The network is ``pooling.PooledHead``'s; its outputs are the numbers in units of their spread. docs/regression.md
lists formats, options and formulas.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features
from keras_bert_lab.pooling import PooledHead, by_example, listed

OUTPUT = "logits"
ONE = "value"  # the name of the target where there is one
LARGEST = 1e30  # float32 ends at 3e38, and answers may lie beyond what was trained on
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Regression(PooledHead):
    """One or several numbers for a text or a pair of texts.

    Attributes:
        label_column: the number; in JSONL also a list of numbers, for several targets.
        label_columns: the columns of several targets; empty: ``label_column`` alone.
        standardize: train on (target - mean) / deviation, so that a unit of any size is learned as fast; answers
            are in the file's unit. False: train on the targets as they are.
        targets: names of the targets, fixed by ``fit``: ("value",), the columns' names, or ("0", "1", ...).
        mean, deviation: of every target over the training examples, fixed by ``fit`` (0 and 1 without
            ``standardize``; a target that is the same everywhere has the deviation 1).

    The columns and file options are those of ``head.TableHead``, the network's those of ``pooling.PooledHead``.

    Gold: a finite number, or as many of them as there are targets.

    Answers: ``{"value": float}``; with several targets ``{"values": {name: float}}``.

    Example:
        >>> head = Regression(label_column="stars").fit([Example("good", gold=5), Example("bad", gold=1.0)])
        >>> head.mean, head.deviation
        ((3.0,), (2.0,))
    """

    main_metric: ClassVar[str] = "r2"

    label_columns: tuple[str | int, ...] = ()
    standardize: bool = True
    targets: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = self.label_columns
        if not isinstance(columns, list | tuple) or any(type(c) not in (str, int) for c in columns):
            raise UserError("label_columns", f"is {columns!r}", 'list names or numbers (from 0): ["joy", "fear"]')
        if len(set(columns)) < len(columns) or any(isinstance(c, int) and c < 0 for c in columns):
            raise UserError("label_columns", f"is {list(columns)}", "list every column once, counted from 0")
        if not isinstance(self.standardize, bool):
            raise UserError("standardize", f"is {self.standardize!r}", "choose true or false")
        for option in ("mean", "deviation"):
            values = getattr(self, option)
            if len(values) != len(self.targets) or any(_number(v) is None or not math.isfinite(v) for v in values):
                raise UserError(option, f"is {values!r}", "leave it to fit: a finite number for every target")
        if any(d <= 0 for d in self.deviation):
            raise UserError("deviation", f"is {self.deviation}", "leave it to fit: numbers above 0")

    # ---- data ----------------------------------------------------------------------------------------------------

    @property
    def gold_columns(self) -> tuple[str | int, ...]:
        return self.label_columns or (self.label_column,)

    def missing(self, value: Any) -> bool:
        """A blank cell holds no number; "nan" is one that ``problem`` refuses."""
        cells = value if isinstance(value, tuple) else (value,)
        return all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells)

    def gold(self, value: Any) -> Any:
        """A number, a tuple of numbers, or the cell as it is where it holds none."""
        return tuple(map(_number_or_cell, value)) if isinstance(value, list | tuple) else _number_or_cell(value)

    @property
    def fitted(self) -> bool:
        return bool(self.targets)

    def problem(self, example: Example) -> str | None:
        trouble = super().problem(dataclasses.replace(example, gold=0 if _given(example.gold) else None))
        return trouble or self._fault(example.gold)

    def _fault(self, gold: Any) -> str | None:
        """What is wrong with a gold answer, or None."""
        values = _several(gold)
        names = self.targets or tuple(map(str, self.label_columns))
        if names and len(values) != len(names):
            return f"{len(values)} targets, but there are {len(names)}: {listed(names)}"
        for place, value in enumerate(values):
            what = f"the target {names[place]!r}" if len(names) > 1 else "the target"
            if not _given(value):
                return f"{what} is missing"
            number = _number(value)
            if number is None:
                return f"{what} is {_short(value)}, no number"
            if not abs(number) <= LARGEST:  # nor is NaN
                return f"{what} is {_short(value)}, no finite number within +-{LARGEST:g}"
        return None if values else "no targets"

    def describe(self) -> str:
        each = zip(self.targets, self.mean, self.deviation, strict=True)
        told = [f"{name} (mean {m:.4g}, deviation {d:.4g})" if self.standardize else name for name, m, d in each]
        return f"{len(self.targets)} target{'s' * (len(self.targets) > 1)}: {listed(told)}"

    def fit(self, examples: Iterable[Example]) -> Regression:
        """Learns names, means and deviations of the targets; takes pairs if all examples are pairs.

        Raises:
            UserError: rows that cannot be used (see ``usable``), no examples, rows with different numbers of targets.
        """
        rows: list[tuple[float, ...]] = []
        pairs = 0
        listing = False
        for example in self.usable(examples):
            listing |= np.ndim(example.gold) > 0
            rows.append(tuple(float(_number(v)) for v in _several(example.gold)))  # type: ignore[arg-type]
            pairs += example.pair is not None
            if len(rows[-1]) != len(rows[0]):
                told = f"has {len(rows[-1])} targets, the first has {len(rows[0])}"
                raise UserError(example.where or "an example", told, "give every row as many")
        pair_column = self.pair_column_for(pairs, len(rows))
        values = np.array(rows, np.float64)
        mean, deviation = np.zeros(values.shape[1]), np.ones(values.shape[1])
        if self.standardize:
            mean = values.mean(0)
            spread = np.sqrt(np.mean((values - mean) ** 2, axis=0))
            # rounding of a mean leaves a little spread even where all are the same
            deviation = np.where((values == values[0]).all(0) | (spread == 0), 1.0, spread)
        numbered = tuple(map(str, range(values.shape[1])))
        names = tuple(map(str, self.label_columns)) or (numbered if listing else (ONE,))
        return dataclasses.replace(self, targets=names, mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()),
                                   pair_column=pair_column)  # fmt: skip

    def _known(self) -> tuple[str, ...]:
        if not self.targets:
            raise UserError("regression", "the targets are not known yet", "call fit")
        return self.targets

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y["logits"] float32 [rows, targets], standardised; w["logits"] float32 [rows].

        An example whose target ``problem`` would refuse has weight 0: it can be predicted, it teaches nothing.

        Raises:
            UserError: a second text for a head of single texts, or none for a head of pairs.
        """
        width = len(self._known())
        y, w = np.zeros((len(examples), width)), np.zeros(len(examples), np.float32)
        for row, example in enumerate(examples):
            if _given(example.gold) and self._fault(example.gold) is None:
                y[row], w[row] = [_number(v) for v in _several(example.gold)], example.weight
            else:
                y[row] = self.mean
        windows = self.rows(examples, text)
        y = ((y - self.mean) / self.deviation).astype(np.float32)
        return Features(windows, {OUTPUT: y[windows.example]}, {OUTPUT: w[windows.example]})

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, targets] float32}, standardised. Variables: ``classifier/kernel``, ``classifier/bias``."""
        return {OUTPUT: self.linear(encoded, len(self._known()))}

    def losses(self) -> dict[str, keras.Loss]:
        return {OUTPUT: keras.losses.MeanSquaredError()}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: the sum of the standardised targets."""
        return tf.reduce_sum(logits[OUTPUT], -1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = by_example(examples, windows, logits[OUTPUT], len(self._known()))
        values = (rows.astype(np.float64) * self.deviation + self.mean).tolist()
        if self.targets == (ONE,):
            return [{"value": value} for (value,) in values]
        return [{"values": dict(zip(self.targets, row, strict=True))} for row in values]

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """{"value": float32 [B]}, or of several targets {"values": float32 [B, targets]}; in the file's unit."""
        unit, middle = (tf.constant(numbers, tf.float64) for numbers in (self.deviation, self.mean))
        values = tf.cast(tf.cast(logits[OUTPUT], tf.float64) * unit + middle, tf.float32)
        return {"value": values[:, 0]} if self.targets == (ONE,) else {"values": values}

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """R2, Pearson, Spearman, MAE and RMSE (see ``scores``); of several targets their means, and ``per_target``.

        Raises:
            UserError: an example without a target (with ``bad_rows="skip"`` it is left out), or no example.
        """
        gold: list[tuple[float, ...]] = []
        said: list[tuple[float, ...]] = []
        for example, answer in self.scorable(examples, answers):
            gold.append(tuple(float(_number(v)) for v in _several(example.gold)))  # type: ignore[arg-type]
            said.append((answer["value"],) if "value" in answer else tuple(answer["values"].values()))
        if not gold:
            raise UserError("scores", "there is no example with a target", "evaluate a file with a label column")
        each = [scores(g, s) for g, s in zip(np.array(gold).T, np.array(said).T, strict=True)]
        mean = {name: float(np.mean([one[name] for one in each])) for name in each[0]} | {"examples": len(gold)}
        return mean if len(each) == 1 else mean | {"per_target": dict(zip(self.targets, each, strict=True))}


def scores(gold: np.ndarray, said: np.ndarray) -> dict[str, float]:
    """Scores of numbers said for gold numbers, float [n] both.

    ``r2`` 1 - sum((g - s)^2) / sum((g - mean g)^2), 0 where gold is constant; ``pearson`` the correlation,
    ``spearman`` that of the ranks, equal numbers sharing the mean of their ranks; both 0 where either side is
    constant; ``mae`` mean |g - s|; ``rmse`` sqrt(mean (g - s)^2).

    Example:
        >>> found = scores(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
        >>> found["spearman"], round(found["pearson"], 4)
        (1.0, 0.9897)
    """
    gold, said = np.asarray(gold, np.float64), np.asarray(said, np.float64)
    off = gold - said
    spread = np.sum((gold - gold.mean()) ** 2)
    constant = (gold == gold[0]).all()
    return {
        "r2": 0.0 if constant else float(1 - np.sum(off**2) / spread),
        "pearson": correlation(gold, said),
        "spearman": correlation(ranks(gold), ranks(said)),
        "mae": float(np.abs(off).mean()),
        "rmse": float(np.sqrt(np.mean(off**2))),
    }


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's, of two float [n]; 0 where either is constant."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # their squares must neither vanish nor overflow
    return float(np.clip(a @ b / math.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n]: ranks from 1; equal values share the mean of theirs.

    Example:
        >>> ranks(np.array([10.0, 30.0, 10.0])).tolist()
        [1.5, 3.0, 1.5]
    """
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group]


def _number(value: Any) -> float | None:
    """A number as float, from a cell or from JSON or NumPy; None for what is none ("1_000", "1,5", true)."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value := value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _number_or_cell(value: Any) -> Any:
    number = _number(value)
    return value if number is None else number


def _several(gold: Any) -> tuple[Any, ...]:
    gold = gold.tolist() if isinstance(gold, np.ndarray) else gold
    return tuple(gold) if isinstance(gold, list | tuple) else (gold,)


def _given(gold: Any) -> bool:
    return gold is not None and not (isinstance(gold, str) and not gold.strip())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
