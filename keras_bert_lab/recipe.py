"""How to train: every option of fine-tuning, with BERT's defaults. JSON in, JSON out; no TensorFlow needed."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UserError


def _option(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of training. The defaults are those of Devlin et al. 2019, appendix A.3, within their ranges.

    Raises:
        UserError: a value out of its range.

    Example:
        >>> Recipe(epochs=2).replace(learning_rate=2e-5).to_dict()["learning_rate"]
        2e-05
        >>> Recipe.from_dict({"epochs": 4}).epochs
        4
    """

    epochs: int = _option(3, "Times that the training data are gone through.")
    batch_size: int = _option(32, "Rows of one update, over all replicas and micro-batches.")
    learning_rate: float = _option(5e-5, "Highest learning rate; for BERT 2e-5 to 5e-5.")
    schedule: str = _option("linear", "After warm-up: linear or cosine (to 0 after the last step), or constant.")
    warmup: float = _option(0.1, "Warm-up: below 1 a share of all steps, else a number of steps.")
    optimizer: str = _option("adamw", "adamw, or bert: the original's (no bias correction, its own schedule).")
    weight_decay: float = _option(0.01, "Decoupled decay of kernels and embeddings.")
    clip_norm: float = _option(1.0, "Gradients longer than this, all together, are shortened to it; 0: never.")
    accumulate: int = _option(1, "Micro-batches that a batch is cut into to save memory; changes no number.")
    freeze: str = _option(
        "none", "What is not trained: none, embeddings, encoder, or N: embeddings and N lower layers."
    )
    dev_fraction: float = _option(0.1, "Share of the training examples held out if no dev file is given; 0: none.")
    patience: int = _option(0, "Stop after this many epochs without a better dev score; 0: never stop early.")
    seed: int = _option(0, "Decides order, dropout, fresh weights and the held-out examples.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _typed(field, getattr(self, field.name)))
        self._check("epochs", self.epochs >= 1, "1 or more")
        self._check("batch_size", self.batch_size >= 1, "1 or more")
        self._check("learning_rate", 0 <= self.learning_rate < float("inf"), "0 or more")
        self._check("schedule", self.schedule in ("linear", "cosine", "constant"), "linear, cosine or constant")
        self._check("warmup", self.warmup >= 0, "a share below 1, or a number of steps")
        self._check("optimizer", self.optimizer in ("adamw", "bert"), "adamw or bert")
        self._check("weight_decay", self.weight_decay >= 0, "0 or more")
        self._check("clip_norm", self.clip_norm >= 0, "0 (never) or more")
        self._check("accumulate", 1 <= self.accumulate <= self.batch_size, "1 up to batch_size")
        self._check(
            "freeze",
            self.freeze in ("none", "embeddings", "encoder") or self.freeze.isdecimal(),
            "none, embeddings, encoder, or a number of lower layers",
        )
        self._check("dev_fraction", 0 <= self.dev_fraction < 1, "0 up to below 1")
        self._check("patience", self.patience >= 0, "0 (never) or more")
        self._check("seed", 0 <= self.seed < 2**31, "0 up to 2147483647")
        if self.optimizer == "bert":
            self._check("schedule", self.schedule == "linear", 'linear with optimizer "bert", which has its own')

    def _check(self, name: str, fine: bool, remedy: str) -> None:
        if not fine:
            raise UserError(f"recipe: {name}", f"is {getattr(self, name)!r}", f"give {remedy}")

    def replace(self, **options: Any) -> Recipe:
        """The recipe with some options changed; an unknown one is an error."""
        return self.from_dict(self.to_dict() | options)

    def to_dict(self) -> dict[str, Any]:
        """All options, JSON-able."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Recipe:
        """A recipe from JSON; what is not said has its default.

        Raises:
            UserError: an unknown option (the nearest and all known ones are listed), a value of the wrong kind.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for option in options:
            if option not in known:
                near = difflib.get_close_matches(str(option), known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UserError(f"recipe: {option!r}", "there is no such option", f"{hint}known: {', '.join(known)}")
        return cls(**options)


def _typed(field: dataclasses.Field, value: Any) -> Any:
    """``value`` as the field's type, where nothing is lost by it."""
    kind = {"int": int, "float": float, "str": str}[str(field.type)]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str and isinstance(value, int) and number:  # freeze=3
        return str(value)
    if kind is not str and number and (kind is float or value == int(value)):
        return kind(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"recipe: {field.name}", f"is {value!r}", f"give a {field.type}")
    return value
