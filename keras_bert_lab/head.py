"""The plug-in contract: what a task (classification, tagging, question answering, ...) must say about itself.

A head is a frozen dataclass. Its fields are its options and whatever else must be saved besides weights
(label names, thresholds): JSON in, JSON out. Everything around it (training, evaluation, prediction, export)
works through the methods below and never asks which head it has. Heads are found through the entry-point
group ``keras_bert_lab.heads``; the built-in ones use the same door. ``keras_bert_lab.testing.check_head`` is
this contract as a test, docs/heads.md its guide.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from .errors import UserError
from .tables import LISTED, Table, blank, label_name, writer

if TYPE_CHECKING:  # the contract speaks of tensors but needs none: reading files must not wait for TensorFlow
    import keras
    import numpy as np
    import tensorflow as tf

    from .encoder import Encoded
    from .serving import Run
    from .windows import Windows
    from .wordpiece import Tokenizer

GROUP = "keras_bert_lab.heads"


@dataclass(frozen=True)
class Example:
    """One row of a user's file.

    Attributes:
        text: the first (or only) text.
        pair: the second text, None for single texts.
        gold: what the head should answer, in the head's own form; None if the file does not say.
        where: "file:line", for messages.
        weight: how much the example counts in training and in the running metrics; 0: not at all.
        fields: the raw row by column name, for writing it out again beside the answer.
    """

    text: str
    pair: str | None = None
    gold: Any = None
    where: str = ""
    weight: float = 1.0
    fields: Mapping[Any, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Features:
    """Examples as numbers: rows for the model and what is to be learned about them.

    Attributes:
        windows: the rows (``windows.Windows``); an example may have several, ``windows.example`` says whose
            each is.
        y: targets per output. An array of [rows, ...] for outputs per row, or a flat array [pieces, ...]
            aligned with ``windows.input_ids`` for outputs per piece. Integer targets use -100 for "not
            labelled".
        w: float32 weights, the same keys and leading length as ``y``; 0 where nothing is labelled.
    """

    windows: Windows
    y: dict[str, np.ndarray]
    w: dict[str, np.ndarray]


@dataclass(frozen=True)
class Head:
    """Base of all heads: ``@dataclass(frozen=True, kw_only=True)`` classes, every field with a default.

    Must be written: ``read``, ``features``, ``outputs``, ``losses``, ``decode``, ``score``, ``answers``,
    ``target`` and ``main_metric``. The rest has defaults. Shapes: B rows, L pieces in the longest row, H
    hidden size.
    """

    main_metric: ClassVar[str] = ""
    """The key of ``score`` that early stopping and model selection watch; larger is better."""

    text_inputs: ClassVar[tuple[str, ...]] = ("text",)
    """Names of the raw-text inputs of the exported model, in the order (first, second). May be a property."""

    bad_rows: ClassVar[str] = "error"
    """What ``usable`` does with rows that cannot be learned from: "error" or "skip". A head may make it a field."""

    needs_gold: ClassVar[bool] = True
    """False for a head that learns from texts alone (masked LM): its examples need no gold."""

    special_tokens: ClassVar[bool] = False
    """Whether "[MASK]" and its like in a text are read as that token, where the user does not say."""

    draws: ClassVar[bool] = False
    """Whether ``prepare`` draws targets at random: then it gets targets and seeds when a file is scored, too."""

    # ---- options -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values; ``from_dict`` gives an equal head back."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Head:
        """A head from JSON-able options.

        Raises:
            UserError: an option that the head does not have (all options and the nearest are listed), or a
                value that its ``__post_init__`` refuses.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for option in options:
            if option not in known:
                near = difflib.get_close_matches(str(option), known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UserError(f"option {option!r}", f"{cls.__name__} has no such option",
                                f"{hint}known: {', '.join(known)}")  # fmt: skip
        return cls(**{key: _frozen(value) for key, value in options.items()})

    # ---- data ----------------------------------------------------------------------------------------------------

    def read(self, path: str | Path) -> Iterator[Example]:
        """Examples of a file of the task's usual formats, streamed. Without gold labels they can still be predicted."""
        raise NotImplementedError

    def problem(self, example: Example) -> str | None:
        """Why this example can be neither learned from nor scored, or None. Default: an empty text, no gold."""
        if blank(example.text):
            return "the text is empty"
        if len(self.text_inputs) > 1 and blank(example.pair):
            return "the second text is empty"
        if self.needs_gold and blank(example.gold):
            return "no label"
        return None

    def stratum(self, example: Example) -> Hashable:
        """What a random split of the examples should keep in proportion (a class). Default: nothing."""
        return None

    def describe(self) -> str:
        """One line for people about what was learned by ``fit``, for example the labels. Default: the class's name."""
        return type(self).__name__

    def usable(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The examples to train and to score on, streamed: those without a ``problem``.

        Prediction does not pass through here: there every row is answered.

        Raises:
            UserError: with ``bad_rows == "error"``, at the end of the stream or after ten bad rows: each is
                listed.
        """
        bad: dict[str, list[str]] = {}  # trouble: where
        count = 0
        for example in examples:
            trouble = self.problem(example)
            if trouble is None:
                yield example
                continue
            count += 1
            if count <= LISTED:
                bad.setdefault(trouble, []).append(example.where or "an example")
            elif self.bad_rows != "skip":
                break
        if not bad:
            return
        told = "; ".join(f"{trouble} ({', '.join(where)})" for trouble, where in bad.items())
        if self.bad_rows != "skip":
            more = f" (the first {LISTED})" if count > LISTED else ""
            raise UserError(f"rows that cannot be used{more}", told, 'mend them, or set bad_rows to "skip"')
        more = f" (the first {LISTED} of them)" if count > LISTED else ""
        warnings.warn(f"{count} rows skipped{more}: {told}", stacklevel=2)

    def scorable(self, examples: Iterable[Example], answers: Iterable[Any]) -> Iterator[tuple[Example, Any]]:
        """The ``usable`` examples with their answers, streamed: for ``score``."""
        answer: list[Any] = []

        def golds() -> Iterator[Example]:
            for example, answer[:] in zip(examples, ([a] for a in answers), strict=True):
                yield example  # ``usable`` hands an example on before it asks for the next

        for example in self.usable(golds()):
            yield example, answer[0]

    def fit(self, examples: Iterable[Example]) -> Head:
        """The head with all that it learns from training examples (label names ...). Default: itself."""
        return self

    @property
    def fitted(self) -> bool:
        """True once ``outputs`` can be called: labels are known. Default: always."""
        return True

    def with_vocabulary(self, tokenizer: Tokenizer) -> Head:
        """An equal head that knows the model's tokenizer (``tokens``, ``mask_id`` ...). Default: itself.

        Called before anything but the reading of files and ``fit``, ``outputs``, ``losses`` and ``metrics``, which
        must do without. What is kept is no field, since the vocabulary is saved by itself.
        """
        return self

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """Rows and targets, vectorised over many examples. Examples without gold get weight 0.

        Args:
            examples: any number of them.
            text: ``text(first, second=None) -> Windows`` cuts lists of str with the model's tokenizer and
                length, one row each. For rows of another make: ``text.pieces(texts) -> Pieces`` (whole texts),
                ``text.cut(pieces, cuts, first=None) -> Windows`` (see ``windows.sliding`` and ``windows.cut``),
                ``text.max_length``, ``text.tokenizer``.
        """
        raise NotImplementedError

    def prepare(
        self, x: dict[str, tf.Tensor], y: Any = None, w: Any = None, seed: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], Any, Any]:
        """What the model is really given for a padded batch: TensorFlow ops on (x, y, w). Default: what came in.

        Training calls it for every batch of every epoch with fresh seeds, inside tf.data: the place for whatever
        is drawn anew each time. Scoring calls it with seeds that depend on a row's pieces only, prediction and the
        exported model without targets and seeds. Further inputs of the model (``Encoded.input``) are made here.

        Args:
            x: the three inputs, int32 [B, L].
            y, w: targets and weights by output name, [B, ...] or [B, L, ...]; filler rows have weight 0. None
                in prediction.
            seed: int64 [B, 2], two numbers from 0 to 2**32 - 1 a row; None in prediction. What is drawn for a row
                may depend on its seed and pieces only: then it is the same in any batch, on any number of devices.

        Returns:
            (x, y, w) as the model, the losses and the metrics take them.
        """
        return x, y, w

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Encoded) -> dict[str, Any]:
        """Logits by output name, [B, ..., classes] float32 symbolic Keras tensors.

        The keys name the outputs everywhere: in ``losses``, ``metrics``, Features, Keras, ONNX and LiteRT.
        Layers made here are named so that variable paths read like the checkpoint's (``classifier/kernel``).
        """
        raise NotImplementedError

    def losses(self) -> dict[str, keras.Loss]:
        """A Keras loss per output. ``loss.call(y, logits)`` gives one number per row [B] or per piece [B, L].

        The model's loss is the sum over outputs of each one's weighted mean over what is labelled.
        """
        raise NotImplementedError

    def metrics(self) -> dict[str, list[keras.Metric]]:
        """Running metrics per output, updated with weights, whose variables are sums. Default: none."""
        return {}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B] float32, differentiable: the score of the chosen answer, which is what explanations explain.

        Args:
            logits: by output name, to differentiate through.
            chosen: the logits that decide which answer is chosen (default: ``logits``). Methods that walk
                from a baseline to the input give the input's here, so that the answer stays the same along
                the way.
        """
        raise NotImplementedError

    def adapter(self, site: str) -> Any:
        """A layer to put in at a named site of the encoder, or None. Default: None."""
        return None

    def trains(self, path: str) -> bool:
        """Whether the variable of that path is trained. Default: all are."""
        return True

    def carries(self, path: str) -> bool:
        """Whether a tensor of the checkpoint that the model does not use goes along into a saved task. Default: no."""
        return False

    def digest(self, logits: dict[str, tf.Tensor], x: dict[str, tf.Tensor], y: Any = None) -> dict[str, tf.Tensor]:
        """What of the logits leaves the device: what ``decode`` and ``answers`` are given. Default: all of them.

        For outputs that are too large to be kept for many rows, such as scores of a whole vocabulary.

        Args:
            logits: by output name.
            x, y: the batch as ``prepare`` gave it.

        Returns:
            Tensors by name, each [B, ...] or, with a second axis as long as the rows, [B, L, ...]; the axes behind
            have static sizes.
        """
        return logits

    def infer(
        self, model: Callable[..., Any], x: dict[str, tf.Tensor], y: Any = None, w: Any = None, seed: Any = None
    ) -> dict[str, tf.Tensor]:
        """``prepare``, the model and ``digest``, one after the other: how everybody but training calls a model."""
        x, y, _ = self.prepare(x, y, w, seed)
        return self.digest(model(x, training=False), x, y)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decode(
        self, examples: Sequence[Example], windows: Windows, logits: Mapping[str, Sequence[np.ndarray]]
    ) -> list[Any]:
        """JSON-able answers, one per example, in the order of the examples.

        Args:
            examples: those that the windows were made from.
            windows: the rows.
            logits: by output name: an array [rows, ...], or for outputs per piece a list of [length of row,
                ...] arrays; of a head with a ``digest``, what that gives.
        """
        raise NotImplementedError

    @property
    def tunes(self) -> str:
        """What ``tuned`` would set, in words ("the labels' thresholds"); "" where there is nothing. Default: ""."""
        return ""

    def tuned(
        self, examples: Sequence[Example], windows: Windows, logits: Mapping[str, Sequence[np.ndarray]]
    ) -> Head:
        """The head with what it learns from a trained model's logits on a dev set (thresholds). Default: itself.

        Called after every epoch, so that epochs are compared by the answers that would be given; the best epoch's
        head stays. It changes nothing about ``outputs``, ``losses`` or ``features``, and does not depend on what
        was tuned before. Without a dev set it is not called.

        Args:
            examples, windows, logits: as for ``decode``; all examples have gold.
        """
        return self

    def score(self, examples: Iterable[Example], answers: Iterable[Any]) -> dict[str, Any]:
        """Metrics by name; both iterables are read once, in step. Numbers, and JSON-able details (tables) if any."""
        raise NotImplementedError

    def write(self, to: str | Path | TextIO, answered: Iterable[tuple[Example, Any]]) -> None:
        """Writes answers in order; what the tool predict does. Default: ``tables.writer``, a row an answer.

        Args:
            to: a file whose name says the form, or a stream, which gets JSON lines.
            answered: examples and answers, streamed.
        """
        with writer(to) as write:
            for _, answer in answered:
                write(answer)

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What the exported model returns for ids: tensors by name, first axis B, plain TensorFlow ops only.

        Args:
            logits: as ``digest`` gives them.
        """
        raise NotImplementedError

    def serve(self, texts: Mapping[str, tf.Tensor], run: Run) -> dict[str, tf.Tensor]:
        """What the exported model returns for raw text. Default: the ``answers`` of the texts, one row each.

        Args:
            texts: string tensors [B], one per name in ``text_inputs``.
            run: ``run(first, second=None) -> (logits, packed)`` tokenizes, packs and calls the model in the
                graph; ``packed`` holds the three model inputs. It is a ``serving.Run``: for rows of another make
                there are ``run.tokenize(texts)`` and ``run.model(input_ids, attention_mask, token_type_ids)``.
        """
        logits, _ = run(*(texts[name] for name in self.text_inputs))
        return self.answers(logits)


@dataclass(frozen=True, kw_only=True)
class TableHead(Head):
    """A head whose files are tables with a text, perhaps a second text, and a gold column: TSV, CSV, JSONL.

    Columns are given by name, or by number counted from 0. A name needs a header row (JSONL: a key). With
    numbers, ``header`` must say whether the first row is one: it is never guessed. ``tables`` says how files
    are read.

    Attributes:
        text_column: the text; None: the column named ``text`` or else ``sentence``.
        pair_column: the second text; None: single texts.
        label_column: the gold answer; a file without that column can be predicted but not trained on.
        header: whether the first row of TSV and CSV names the columns; may be None (yes) if no column is a
            number.
        file_format, delimiter, quoted, encoding: ``tables.Table``'s format and so on.
        bad_rows: "error" or "skip": rows that cannot be learned from (empty text, no label) in training and
            scoring.
    """

    text_column: str | int | None = None
    pair_column: str | int | None = None
    label_column: str | int = "label"
    header: bool | None = None
    file_format: str | None = None
    delimiter: str | None = None
    quoted: bool | None = None
    encoding: str = "utf-8"
    bad_rows: str = "error"  # type: ignore[misc]  # the base's constant becomes an option here

    def __post_init__(self) -> None:
        for option in ("text_column", "pair_column", "label_column"):
            value = getattr(self, option)
            if isinstance(value, bool) or not (isinstance(value, (str, int)) or (value is None and option[0] != "l")):
                raise UserError(option, f"{value!r} is no column", "give a name, or a number counted from 0")
            if isinstance(value, int) and value < 0:
                raise UserError(option, f"{value} is negative", "columns are counted from 0")
        if self.bad_rows not in ("error", "skip"):
            raise UserError("bad_rows", f"is {self.bad_rows!r}", 'choose "error" or "skip"')

    @property
    def text_inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("text",) if self.pair_column is None else ("text", "pair")

    @property
    def gold_columns(self) -> tuple[str | int, ...]:
        """The columns that hold the gold answer. Default: ``label_column`` alone."""
        return (self.label_column,)

    def gold(self, value: Any) -> Any:
        """The gold answer from a cell that is not blank (of several columns: from a tuple). Default: a label's name.

        What cannot be a gold answer is given back as it is, for ``problem`` to tell of: it may be a file to
        predict.
        """
        return value if isinstance(value, (list, dict)) else label_name(value)

    def missing(self, value: Any) -> bool:
        """Whether a gold cell (of several columns: a tuple) holds no gold answer. Default: a blank one does not."""
        return any(map(blank, value)) if isinstance(value, tuple) else blank(value)

    def read(self, path: str | Path) -> Iterator[Example]:
        numbers = [option for option in ("text_column", "pair_column") if isinstance(getattr(self, option), int)]
        numbers += ["label_column" for column in self.gold_columns if isinstance(column, int)]
        header = True if self.header is None else self.header
        table = Table(path, header=header, format=self.file_format, delimiter=self.delimiter, quoted=self.quoted,
                      encoding=self.encoding)  # fmt: skip
        if numbers and self.header is None and table.format != "jsonl":
            raise UserError(path, f"{numbers[0]} is a number; it is not said whether the first row is a header",
                            "set header to true or false")  # fmt: skip
        if table.first is None and not table.header:
            return  # no row in, no row out
        text_key = self._text_key(table)
        pair_key = None if self.pair_column is None else table.find(self.pair_column, "pair_column")
        gold_keys = [table.find(column, "label_column", required=False) for column in self.gold_columns]
        name = str(path)
        for line, row in table:
            where = f"{name}:{line}"
            cell: Callable[[Any], Any] = row.get if isinstance(row, dict) else row.__getitem__
            cells = tuple(None if key is None else cell(key) for key in gold_keys)
            value = cells if len(cells) > 1 else cells[0]
            yield Example(
                text=_text(cell(text_key), where, "text"),
                pair=None if pair_key is None else _text(cell(pair_key), where, "second text"),
                gold=None if self.missing(value) else self.gold(value),
                where=where,
                fields=table.fields(row),
            )

    def _text_key(self, table: Table) -> Any:
        if self.text_column is not None:
            return table.find(self.text_column, "text_column")
        if table.names is not None and "text" not in table.names and "sentence" in table.names:
            return table.find("sentence", "text_column")
        return table.find("text", "text_column")


def _text(value: Any, where: str, what: str) -> str:
    if isinstance(value, str):
        return value
    if blank(value):
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise UserError(where, f"the {what} is a JSON {type(value).__name__}", "give a string")


def _plain(value: Any) -> Any:
    """A field's value as JSON would give it back (tuples become lists, numpy numbers numbers)."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} cannot be said in JSON")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"a head's field holds a {type(value).__name__}, which cannot be said in JSON")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


# ---- discovery ---------------------------------------------------------------------------------------------------


def available_heads() -> dict[str, metadata.EntryPoint]:
    """The installed heads by name, none of them imported.

    Raises:
        UserError: two distributions claim one name; both are named.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other is not point and (other.value, _owner(other)) != (point.value, _owner(point)):
            raise UserError(f"head {point.name!r}", f"is claimed by {_said(other)} and by {_said(point)}",
                            "uninstall one of them")  # fmt: skip
    return dict(sorted(found.items()))


def load_head(name: str) -> type[Head]:
    """The class of an installed head.

    Raises:
        UserError: no head has that name (those that there are, and the nearest, are listed); two
            distributions claim it; it cannot be imported or is no head: distribution, version and cause are
            named.

    Example:
        >>> load_head("classification").__name__
        'Classification'
    """
    heads = available_heads()
    if name not in heads:
        near = difflib.get_close_matches(str(name), heads, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(heads) or "none: is keras_bert_lab installed?"
        raise UserError(f"head {name!r}", "is not installed", f"{hint}installed heads: {known}")
    point = heads[name]
    try:
        head = point.load()
    except Exception as error:
        raise UserError(f"head {name!r} of {_said(point)}", f"cannot be imported: {type(error).__name__}: {error}",
                        "mend or update that distribution") from error  # fmt: skip
    if not (isinstance(head, type) and issubclass(head, Head)):
        raise UserError(f"head {name!r} of {_said(point)}", "is no subclass of keras_bert_lab.head.Head",
                        "mend that distribution's entry point")  # fmt: skip
    params = vars(head).get("__dataclass_params__")  # its own: a base's would hide a forgotten decorator
    if params is None or not params.frozen:
        raise UserError(f"head {name!r} of {_said(point)}", "is no frozen dataclass",
                        "decorate the class with @dataclass(frozen=True, kw_only=True)")  # fmt: skip
    return head


def make_head(name: str, options: Mapping[str, Any] | None = None) -> Head:
    """An installed head with options (as ``--head_options`` gives them).

    Example:
        >>> make_head("classification", {"pooling": "mean"}).pooling
        'mean'
    """
    return load_head(name).from_dict(options or {})


def head_info(head: str | Head | type[Head]) -> dict[str, str]:
    """``{"name", "distribution", "version"}`` of an installed head, given by name, class or object.

    Raises:
        UserError: no entry point leads to it, so that an artifact could not be loaded again.
    """
    heads = available_heads()
    if isinstance(head, str):
        load_head(head)
        point = heads[head]
    else:
        cls = head if isinstance(head, type) else type(head)
        value = f"{cls.__module__}:{cls.__qualname__}"
        match = [p for p in heads.values() if p.value.replace(" ", "").partition("[")[0] == value]
        match = match or [p for p in heads.values() if _leads_to(p, cls)]
        if not match:
            raise UserError(f"head {value}", "no installed distribution has an entry point for it",
                            f"declare it in the group {GROUP} and install the distribution")  # fmt: skip
        point = match[0]
    distribution, version = _owner(point)
    return {"name": point.name, "distribution": distribution, "version": version}


def _leads_to(point: metadata.EntryPoint, cls: type) -> bool:
    """Whether an entry point of the same package re-exports the class from elsewhere."""
    if point.module.partition(".")[0] != cls.__module__.partition(".")[0]:
        return False
    try:
        return point.load() is cls
    except Exception as error:
        raise UserError(f"head {point.name!r} of {_said(point)}",
                        f"cannot be imported: {type(error).__name__}: {error}") from error  # fmt: skip


def _owner(point: metadata.EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("an unknown distribution", "?")


def _said(point: metadata.EntryPoint) -> str:
    return f"{' '.join(_owner(point))} ({point.value})"
