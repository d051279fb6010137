"""Task = encoder + head + text: everything between a user's data and a trained model's answers.

    checkpoint, head name  ->  Task  ->  fit  ->  evaluate, predict, save, export

The task never learns which head it has: it calls the methods of :class:`keras_bert_lab.head.Head` only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import batching, checkpoint, memory, training
from .config import BertConfig
from .encoder import encode
from .errors import UserError
from .head import Example, Features, Head, make_head
from .recipe import Recipe
from .windows import Cuts, Pieces, Windows, cut, pack
from .wordpiece import Tokenizer

CHUNK = 4096  # examples in flight while streaming: enough to sort by length, little enough to forget
PARALLEL = 3  # batches being computed at a time
BULK = 100_000  # from this many texts on, the tokenizer in the graph, on all cores, makes up for its start


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class TaskModel(training.Model):
    """Encoder and head as one functional Keras model: three int32 [batch, length] inputs, the head's logits out.

    Made by :func:`build`. It is saved as what it was built from (config, head, precision), so that a ``.keras``
    file needs nothing but ``import keras_bert_lab`` to load.
    """

    recipe: dict

    def get_config(self) -> dict:
        return self.recipe

    @classmethod
    def from_config(cls, config: dict, custom_objects: Any = None) -> TaskModel:
        name, bert = config["head"], BertConfig.from_dict(config["config"], "keras_bert_lab")
        return build(bert, name, make_head(name, config["options"]), config["precision"])


def build(config: BertConfig, name: str, head: Head, precision: str = "float32") -> TaskModel:
    """The functional model of ``head`` (entry-point name ``name``) on an encoder, with fresh weights.

    Args:
        config: the encoder's config.
        name: under which the head is registered.
        head: a fitted head (its labels are known).
        precision: a Keras dtype policy: "float32", "mixed_bfloat16" or "mixed_float16".
    """
    with _policy(precision):
        encoded = encode(config)
        model = TaskModel(inputs=encoded.inputs, outputs=head.outputs(encoded), name="task")
    model.config = config
    made_of = {"config": config.to_dict("keras_bert_lab"), "head": name, "options": head.to_dict()}
    model.recipe = made_of | {"precision": precision}
    return model


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(name)
    except ValueError as error:
        raise UserError("precision", str(error), "use float32, mixed_bfloat16 or mixed_float16") from None
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Text:
    """Texts to windows: the tokenizer with the task's limits; what a head's ``features`` is given as ``text``.

    Many texts go through the tokenizer in the graph, few through the Python one: their ids are the same.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, truncation: str) -> None:
        self.tokenizer, self.max_length, self.truncation = tokenizer, max_length, truncation
        self._seen = np.zeros(3, np.int64)  # rows, rows cut, pieces left out, since the last report

    def __call__(self, first: Sequence[str], second: Sequence[str] | None = None) -> Windows:
        """Windows (int32 ids, types, character offsets) of ``first``, or of the pairs ``first[i], second[i]``."""
        token = self.tokenizer
        both = None if second is None else self.pieces(second)
        windows = pack(self.pieces(first), both, cls_id=token.cls_id, sep_id=token.sep_id, pad_id=token.pad_id,
                       max_length=self.max_length, truncation=self.truncation)
        self._seen += np.array([len(windows), np.count_nonzero(windows.dropped), windows.dropped.sum()])
        return windows

    def cut(
        self, pieces: Pieces, cuts: Cuts, first: Pieces | None = None, dropped: np.ndarray | None = None
    ) -> Windows:
        """Windows of any stretches of ``pieces``, after ``first`` (one a text) if given; see ``windows.cut``.

        Args:
            dropped: int [rows], pieces of a row's text that no row shows, to be reported.

        Raises:
            UserError: a row longer than ``max_length``.
        """
        token = self.tokenizer
        windows = cut(pieces, cuts, first, cls_id=token.cls_id, sep_id=token.sep_id, pad_id=token.pad_id)
        longest = int(windows.lengths.max(initial=0))
        if longest > self.max_length:
            raise UserError(f"a window of {longest} pieces", f"max_length is {self.max_length}", "cut shorter ones")
        if dropped is not None:
            windows = dataclasses.replace(windows, dropped=np.asarray(dropped, np.int32))
        self._seen += np.array([len(windows), np.count_nonzero(windows.dropped), windows.dropped.sum()])
        return windows

    def report(self) -> str:
        """What was cut since the last report, in words; "" if nothing was."""
        (rows, cut, dropped), self._seen = self._seen, np.zeros(3, np.int64)
        if not cut:
            return ""
        return f"{cut} of {rows} rows were cut to {self.max_length} pieces; {dropped} pieces were left out"

    def pieces(self, texts: Sequence[str]) -> Pieces:
        if len(texts) >= BULK and self.graph is not None:
            return self.graph.pieces(texts)
        return self.tokenizer.pieces(texts)

    @functools.cached_property
    def graph(self):
        """The same tokenizer in the TensorFlow graph; None where tensorflow_text has no wheel."""
        if importlib.util.find_spec("tensorflow_text") is None:
            return None
        from .graph_text import GraphTokenizer

        return GraphTokenizer(self.tokenizer)

    def settings(self) -> dict:
        return {"max_length": self.max_length, "truncation": self.truncation, "tokenizer": self.tokenizer.settings()}


class Task:
    """A task on an encoder: made from a checkpoint, trained, asked, saved, exported.

    Attributes:
        name: the head's entry-point name.
        head: the head with its options; fitted once its labels are known.
        config: the encoder's config.
        text: tokenizer and limits.
        model: the Keras model (``TaskModel``), there as soon as the head is fitted.
        provenance: what the weights come from, as stored in the artifact.
        scores: of the last evaluation during training, as stored in the artifact.
    """

    def __init__(self, name: str, head: Head, config: BertConfig, text: Text, *, precision: str = "float32",
                 source: checkpoint.Source | None = None, fresh_head: bool = False) -> None:
        self.name, self.config, self.text, self.precision = name, config, text, precision
        self.head = head
        self.source, self.fresh_head = source, fresh_head
        self.whole = False  # set for a saved task: then the head's weights must be in the source as well
        self.audit: checkpoint.Audit | None = None
        self.provenance: dict[str, Any] = {} if source is None else {"base_checkpoint": source.fingerprint()}
        self.scores: dict[str, Any] = {}

    @property
    def head(self) -> Head:
        return self._head

    @head.setter
    def head(self, head: Head) -> None:
        self._head = head.with_vocabulary(self.text.tokenizer)

    @classmethod
    def from_checkpoint(cls, path, head: str = "classification", *, max_length: int = 128,
                        truncation: str = "longest_first", lower_case: bool | None = None,
                        strip_accents: bool | None = None, special_tokens: bool | None = None,
                        format: str | None = None,
                        precision: str = "float32", fresh_head: bool = False, **head_options) -> Task:
        """A task on the encoder of any checkpoint that this package reads.

        Args:
            path: the checkpoint: a directory or file of any known format, with config and vocabulary beside it.
            head: the entry-point name of a head; see ``available_heads()``.
            max_length: pieces in a row, [CLS] and [SEP] included; at most the encoder's positions.
            truncation: "longest_first" (as the original), "only_second", or "error".
            lower_case, strip_accents: None reads them beside the vocabulary.
            special_tokens: read "[MASK]" and its like in a text as that one token (off: as text); None: as the head
                says, which is off but for heads that fill masks.
            format: the checkpoint's format where it cannot be recognised.
            precision: a Keras dtype policy.
            fresh_head: start with a new head even where the checkpoint has one.
            **head_options: the head's own options, e.g. ``labels=["neg", "pos"]``, ``pooling="mean"``.

        Raises:
            UserError: unknown head or option, unreadable checkpoint, or a vocabulary that does not fit it.

        Example:
            >>> task = Task.from_checkpoint("uncased_L-12_H-768_A-12", pooling="mean")   # doctest: +SKIP
        """
        chosen = make_head(head, head_options)
        source = checkpoint.open_checkpoint(path, format)
        if source.vocab_path is None:
            raise UserError(path, "has no vocab.txt beside it", "put the checkpoint's vocabulary there")
        special = chosen.special_tokens if special_tokens is None else special_tokens
        tokenizer = Tokenizer.from_vocab(source.vocab_path, lower_case, strip_accents, special)
        checkpoint.check_vocabulary(source, len(tokenizer.tokens))
        text = Text(tokenizer, _checked_length(max_length, source.config), truncation)
        return cls(head, chosen, source.config, text, precision=precision, source=source, fresh_head=fresh_head)

    # -- the model ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def model(self) -> TaskModel:
        if not self.head.fitted:
            found = "does not know its labels yet"
            raise UserError(f"head {self.name!r}", found, "call fit, or give them as an option")
        model = build(self.config, self.name, self.head, self.precision)
        if self.source is not None:
            own = [v.path for v in model.variables if not v.path.startswith(("embeddings/", "encoder/", "pooler/"))]
            fresh = () if self.whole else own
            self.audit = checkpoint.load(model, self.source, fresh=fresh, fresh_head=self.fresh_head)
        return model

    @functools.cached_property
    def forward(self):
        """The model as one traced function: {input: int32 [batch, length]} -> {output: logits}, as ``digest`` says."""
        model = self.model  # made and filled before anything is traced
        spec = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in batching.INPUTS}

        def logits(x):
            return self.head.infer(model, x)

        return tf.function(logits, input_signature=[spec], autograph=False)

    def carried(self) -> dict[str, np.ndarray]:
        """Tensors of the checkpoint that the model does not use and the head wants to keep, by our names."""
        if self.source is None:
            return {}
        used = {v.path for v in self.model.variables}
        return {n: self.source.read(n) for n in self.source.names if n not in used and self.head.carries(n)}

    # -- data --------------------------------------------------------------------------------------------------

    def examples(self, data, gold: bool = True) -> Iterator[Example]:
        """``data`` as a stream of examples.

        Args:
            data: a file of the head's formats; or a sequence of ``Example``, of strings, or of (text, pair)
                tuples; or, with ``gold``, a tuple (texts, golds) of two equally long sequences.
            gold: whether labels are wanted.
        """
        if isinstance(data, str | Path):
            if not Path(data).exists():
                hint = "a single text goes in a list" if isinstance(data, str) else "check the path"
                raise UserError(data, "there is no such file", hint)
            yield from self.head.read(data)
            return
        golds: Iterable[Any] = itertools.repeat(None)
        if gold and isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], str | Example):
            data, labels = data
            if len(data) != len(labels):
                raise UserError("data", f"{len(data)} texts but {len(labels)} labels", "give one label for each text")
            golds = labels
        for row, (item, label) in enumerate(zip(data, golds, strict=False), 1):
            where = f"item {row}"
            if isinstance(item, Example):
                yield item
            elif isinstance(item, str):
                yield Example(item, gold=label, where=where)
            elif isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item):
                yield Example(item[0], item[1], gold=label, where=where)
            else:
                raise UserError(where, f"is a {type(item).__name__}", "give a string, a pair of strings or an Example")

    def features(self, examples: Sequence[Example]) -> Features:
        """The examples as windows of ids with targets and weights, tokenized in bulk."""
        return self.head.features(examples, self.text)

    def dataset(self, data, batch_size: int = 32, *, shuffle: bool = False, seed: int = 0) -> tf.data.Dataset:
        """Length-bucketed batches (inputs, targets, weights), each a dict, for a plain Keras ``fit``.

        Args:
            data: see :meth:`examples`; it is read and tokenized once, now. An unfitted head learns its labels.
            batch_size: rows of a batch; the last one is filled up with rows of weight 0.
            shuffle: a new order every epoch, the same for the same seed.
        """
        examples = list(self.head.usable(self.examples(data)))
        self._fit_head(examples)
        return self._batches(self.features(examples), batch_size, shuffle=shuffle, seed=seed)

    def _batches(self, features: Features, batch_size: int, **options) -> tf.data.Dataset:
        prepare = self.head.prepare if self.head.draws else None
        return batching.dataset(features, batch_size, prepare=prepare, **options)

    def _fit_head(self, examples: Sequence[Example]) -> None:
        # what was learned by an earlier training, or is in a saved task, belongs to its weights
        if not self.head.fitted or "model" not in self.__dict__:
            self.head = self.head.fit(examples)

    # -- training ----------------------------------------------------------------------------------------------

    def fit(self, train, dev=None, *, recipe: Recipe | None = None, log_dir=None, callbacks: Sequence = (),
            verbose: int = 1, **options) -> dict[str, list[float]]:
        """Fine-tunes the model; with a dev set it ends with the epoch that scored best there.

        Args:
            train, dev: see :meth:`examples`. Without ``dev``, the recipe's ``dev_fraction`` of ``train`` is held
                out, stratified by label.
            recipe: how to train; default ``Recipe()``, BERT's fine-tuning defaults.
            log_dir: where to write ``log.jsonl`` and, with the extra ``tensorboard``, TensorBoard files.
            callbacks: further Keras callbacks.
            verbose: 0 silent, 1 progress and one line an epoch.
            **options: fields of the recipe to change, e.g. ``epochs=4, learning_rate=2e-5``.

        Returns:
            {metric: value of each epoch}; dev scores are called ``dev_...``.
        """
        memory.keep()
        recipe = (recipe or Recipe()).replace(**options)
        keras.utils.set_random_seed(recipe.seed)
        say = print if verbose else (lambda *_: None)
        examples = list(self.head.usable(self.examples(train)))
        if not examples:
            raise UserError(train if isinstance(train, str | Path) else "train", "holds no examples", "")
        self._fit_head(examples)
        if dev is not None:
            held = list(self.head.usable(self.examples(dev)))
        else:
            examples, held = batching.split(examples, recipe.dev_fraction, recipe.seed, self.head.stratum)
        features = self.features(examples)
        judged = self.features(held) if held else None
        say(f"{len(examples)} training and {len(held)} dev examples; {self.name}, {self.head.describe()}")
        say(batching.describe(features, recipe.batch_size, self.text.max_length))
        if cut := self.text.report():
            say(f"{cut}; a larger max_length keeps more")
        model = self.model
        if self.audit is not None:
            say(str(self.audit))
        steps = batching.steps(features, recipe.batch_size) * recipe.epochs
        training.freeze(model, recipe.freeze)
        training.compile(model, self.head, recipe, steps)
        tuned: list[Head] = []  # the head after each epoch

        def judge() -> dict[str, Any]:
            assert judged is not None
            logits = self.logits(judged.windows, judged)
            tuned.append(self.head.tuned(held, judged.windows, logits))
            return tuned[-1].score(held, tuned[-1].decode(held, judged.windows, logits))

        began = time.perf_counter()
        history = training.run(
            model, self._batches(features, recipe.batch_size, shuffle=True, seed=recipe.seed), recipe,
            judge=None if judged is None else judge,
            main_metric=self.head.main_metric, log_dir=log_dir, callbacks=callbacks, verbose=verbose)
        if tuned:
            self._set_tuned(tuned[history.best_epoch - 1], say)
        elif self.head.tunes:
            say(f"there is no dev set to tune {self.head.tunes} on")
        self.scores = history.best
        self.provenance |= {
            "data": {name: _data_of(given) for name, given in (("train", train), ("dev", dev)) if given is not None},
            "examples": {"train": len(examples), "dev": len(held)},
            "recipe": recipe.to_dict(), "steps": steps, "seconds": round(time.perf_counter() - began, 1),
        }
        return history.epochs

    def tune(self, data) -> None:
        """Tunes what the head tunes on labelled data (thresholds); ``fit`` does so by itself where it has a dev set.

        Args:
            data: see :meth:`examples`; not what the model was trained on, whose logits are surer than others.
        """
        examples = list(self.head.usable(self.examples(data)))
        if not examples:
            raise UserError(data if isinstance(data, str | Path) else "data", "holds no examples", "")
        features = self.features(examples)
        logits = self.logits(features.windows, features)
        self._set_tuned(self.head.tuned(examples, features.windows, logits))

    def _set_tuned(self, head: Head, say=lambda _: None) -> None:
        if head != self.head:
            self.head = head
            self.model.recipe = {**self.model.recipe, "options": head.to_dict()}
            say(f"tuned on the dev set: {head.describe()}")

    # -- answers -----------------------------------------------------------------------------------------------

    def logits(self, windows: Windows, scored: Features | None = None) -> dict[str, Any]:
        """{output: logits} of every window, in order, computed in batches of like length; as ``Head.digest`` says.

        [rows, ...] for outputs a row; for outputs a token a list of [length, ...] arrays.

        Args:
            windows: the rows.
            scored: what the windows are from, if the answers are to be scored: a head that draws its questions
                draws them then, for equal rows always the same.
        """
        drawn = scored if self.head.draws else None
        outputs = self._shapes if drawn is None else self._scored_shapes(drawn)
        a_token = {name: len(shape) > 1 and shape[1] is None for name, (shape, _) in outputs.items()}
        found: dict[str, Any] = {
            name: [None] * len(windows) if a_token[name] else np.zeros((len(windows), *shape[1:]), dtype)
            for name, (shape, dtype) in outputs.items()}
        memory.keep()
        plan, seeds = batching.ordered(windows), batching.fingerprints(windows) if drawn else np.zeros((0, 2), np.int64)

        def run(rows: np.ndarray, length: int) -> None:
            if drawn is not None:
                given = (*batching.batch(drawn, rows, int(length)), seeds[rows])
                numbers = self._judge(*tf.nest.map_structure(tf.constant, given))
            else:
                numbers = self.forward({k: tf.constant(v) for k, v in windows.pad(rows, int(length)).items()})
            for name, values in numbers.items():
                if a_token[name]:
                    for row, value, real in zip(rows, values.numpy(), windows.lengths[rows], strict=True):
                        found[name][row] = value[:real]
                else:
                    found[name][rows] = values.numpy()

        # Several batches at once: while one adds and normalizes on one core, another multiplies on the rest.
        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in pool.map(run, plan, plan.padded):
                pass
        return found

    @functools.cached_property
    def _judge(self):
        """As ``forward``, of what the head draws: (x, y, weights, seeds) -> {output: numbers}."""

        model = self.model

        def numbers(x, y, w, seed):
            return self.head.infer(model, x, y, w, seed)

        return tf.function(numbers, autograph=False, reduce_retracing=True)

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple]:
        """Shape and NumPy type of every output; one for every token has a second axis as free as the length."""
        if type(self.head).digest is Head.digest:
            return _described(self.model.output)
        return _described(self.forward.get_concrete_function().structured_outputs)

    def _scored_shapes(self, features: Features) -> dict[str, tuple]:
        spec = (*batching.signature(features), batching.SEEDS)
        return _described(self._judge.get_concrete_function(*spec).structured_outputs)

    def stream(self, data, gold: bool = False) -> Iterator[tuple[Example, Any]]:
        """(example, answer) for every example of ``data``, in order, in bounded memory whatever the file's size.

        With ``gold`` only examples that can be scored pass; the head's ``bad_rows`` says what happens to others.
        """
        examples = self.head.usable(self.examples(data)) if gold else self.examples(data, gold=False)
        while chunk := list(itertools.islice(examples, CHUNK)):
            features = self.head.features(chunk, self.text)
            logits = self.logits(features.windows, features if gold else None)
            yield from zip(chunk, self.head.decode(chunk, features.windows, logits), strict=True)

    def predict(self, data) -> list[Any]:
        """One answer for every text, pair or example of ``data`` (or every row of a file), in order.

        Example:
            >>> task.predict(["Well worth the money.", "Broke after a day."])    # doctest: +SKIP
            [{'label': 'positive', 'probability': 0.99, ...}, ...]
        """
        return [answer for _, answer in self.stream(data)]

    def evaluate(self, data) -> dict[str, Any]:
        """The head's scores on labelled data; the file is streamed, text and all but gold and answer forgotten."""
        one, other = itertools.tee(self.stream(data, gold=True))
        return self.head.score((example for example, _ in one), (answer for _, answer in other))

    # -- leaving -----------------------------------------------------------------------------------------------

    def save(self, path, overwrite: bool = False) -> None:
        """Writes the task as a directory that :func:`keras_bert_lab.load` reads; whole or not at all."""
        from .artifact import save

        save(self, path, overwrite=overwrite)

    def export(self, path, format: str = "saved_model", **options) -> dict:
        """Writes the task for serving, proved equal to this one; returns the proof. See ``keras_bert_lab.export``."""
        from .export import export

        return export(self, path, format, **options)


def _described(outputs: dict[str, Any]) -> dict[str, tuple]:
    return {n: (tuple(t.shape), tf.as_dtype(t.dtype).as_numpy_dtype) for n, t in outputs.items()}


def _checked_length(max_length: int, config: BertConfig) -> int:
    most = config.max_position_embeddings
    if not 3 <= max_length <= most:
        raise UserError("max_length", f"{max_length}, but the encoder has {most} positions", f"choose from 3 to {most}")
    return max_length


def _data_of(given) -> dict:
    from .files import sha256

    if isinstance(given, str | Path):
        return {"file": Path(given).name, "sha256": sha256(given)}
    return {"file": None}
