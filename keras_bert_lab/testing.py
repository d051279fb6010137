"""For tests of heads and tasks, ours and yours: the Head contract as a test, and tiny things to test with.

    from keras_bert_lab.testing import check_head
    from keras_bert_lab.head import Example

    def test_contract():
        check_head("my_head", [Example("a text", gold=...), ...])

Shipped with the package, so that the author of a head tests it as the built-in ones are tested.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from .batching import batch, fingerprints
from .config import BertConfig
from .encoder import encode
from .errors import UserError
from .head import Example, Features, Head, make_head
from .losses import UNLABELLED
from .serving import PythonRun
from .task import Text
from .windows import Windows
from .wordpiece import Tokenizer

if TYPE_CHECKING:
    from .task import Task

WORDS = (
    "the a and of to in is it was this that not very good bad fine dull film book food day we they he she"
    " with for on but so at best worst money room staff again never always"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
OTHERS = "!\"#$%&'()*+,-./:;<=>?@[]_，。！？的一是不了人我在有他这好坏中国天"


def tiny_vocabulary() -> list[str]:
    """About 190 entries that spell any lower-cased ASCII text: special tokens, words, letters, marks, some Chinese."""
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [word for word in WORDS.split() if len(word) > 1]
    return [*special, *OTHERS, *LETTERS, *("##" + c for c in LETTERS), *words, "##ing", "##ed"]


def tiny_tokenizer() -> Tokenizer:
    """An uncased tokenizer over :func:`tiny_vocabulary`."""
    return Tokenizer("".join(f"{token}\n" for token in tiny_vocabulary()).encode(), lower_case=True)


def tiny_config(**changes: Any) -> BertConfig:
    """A network of 2 layers, 2 heads, 32 wide, 64 positions, without dropout; ``changes`` are fields of BertConfig."""
    fields = {
        "vocab_size": len(tiny_vocabulary()),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertConfig(**(fields | changes))


def tiny_checkpoint(directory: str | Path, *, config: BertConfig | None = None, seed: int = 0) -> Path:
    """Writes a random checkpoint in Google's original form, as the downloads of 2018 lie on disk.

    Files: ``vocab.txt``, ``bert_config.json``, ``bert_model.ckpt.index`` and ``.data-00000-of-00001`` with the
    5 + 16 per layer + 2 tensors of the encoder, the 7 of the two pre-training heads, and ``global_step``.

    Args:
        directory: where the files go; made if absent.
        config: its network; default :func:`tiny_config`.
        seed: of the weights.

    Returns:
        The directory.

    Example:
        >>> path = tiny_checkpoint(tempfile.mkdtemp())
        >>> sorted(p.name for p in path.iterdir())[:2]
        ['bert_config.json', 'bert_model.ckpt.data-00000-of-00001']
    """
    config = config or tiny_config()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    words = tiny_vocabulary()
    if config.vocab_size < len(words):
        raise ValueError(f"vocab_size {config.vocab_size} is below the {len(words)} entries of tiny_vocabulary()")
    words += [f"[unused{i + 2}]" for i in range(config.vocab_size - len(words))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    (folder / "bert_config.json").write_text(json.dumps(config.to_dict("bert"), indent=2), encoding="utf-8")
    tensors = _original_tensors(config, np.random.default_rng(seed))
    tf.raw_ops.SaveV2(
        prefix=tf.constant(str(folder / "bert_model.ckpt")),
        tensor_names=tf.constant(list(tensors)),
        shape_and_slices=tf.constant([""] * len(tensors)),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return folder


def _original_tensors(config: BertConfig, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Every tensor of an original checkpoint by its name there, float32 (``global_step`` int64)."""
    wide, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(site: str) -> None:
        shapes[f"{site}/LayerNorm/beta"] = shapes[f"{site}/LayerNorm/gamma"] = (wide,)

    def dense(site: str, rows: int, columns: int) -> None:
        shapes[f"{site}/kernel"], shapes[f"{site}/bias"] = (rows, columns), (columns,)

    shapes["bert/embeddings/word_embeddings"] = (config.vocab_size, wide)
    shapes["bert/embeddings/position_embeddings"] = (config.max_position_embeddings, wide)
    shapes["bert/embeddings/token_type_embeddings"] = (config.type_vocab_size, wide)
    norm("bert/embeddings")
    for i in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{i}"
        for site in ("self/query", "self/key", "self/value", "output/dense"):
            dense(f"{layer}/attention/{site}", wide, wide)
        norm(f"{layer}/attention/output")
        dense(f"{layer}/intermediate/dense", wide, inner)
        dense(f"{layer}/output/dense", inner, wide)
        norm(f"{layer}/output")
    dense("bert/pooler/dense", wide, wide)
    dense("cls/predictions/transform/dense", wide, wide)
    norm("cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = (config.vocab_size,)
    shapes["cls/seq_relationship/output_weights"] = (2, wide)
    shapes["cls/seq_relationship/output_bias"] = (2,)
    # not the usual zeros and ones anywhere: a tensor that is forgotten or swapped must show
    tensors = {
        name: ((1.0 if name.endswith("gamma") else 0.0) + random.normal(0, 0.1, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return {**tensors, "global_step": np.int64(1000)}


def tiny_task(head: str = "classification", *, directory: str | Path | None = None, **options: Any) -> Task:
    """A ``Task`` on a :func:`tiny_checkpoint`, read as any other checkpoint is.

    Args:
        head: the entry-point name of a head.
        directory: where the checkpoint is written; default: a new temporary directory.
        options: further arguments of ``Task.from_checkpoint``: the task's and the head's options.
    """
    from .task import Task

    path = tiny_checkpoint(directory or tempfile.mkdtemp(prefix="tiny_checkpoint_"))
    return Task.from_checkpoint(path, head, **({"max_length": 32} | options))


# ---- the contract ------------------------------------------------------------------------------------------------


def check_head(
    head: str | Head,
    examples: Sequence[Example],
    *,
    options: Mapping[str, Any] | None = None,
    config: BertConfig | None = None,
    tokenizer: Tokenizer | None = None,
    max_length: int = 32,
    steps: int = 30,
    tolerance: float = 1e-5,
) -> dict[str, float]:
    """Runs every clause of the Head contract on a tiny random encoder.

    Args:
        head: an object, or a name (then it is found through its entry point, as the tools do).
        examples: at least three with gold answers, of different texts.
        options: of the head, if it is given by name.
        config: the encoder; default :func:`tiny_config`.
        tokenizer: default :func:`tiny_tokenizer`, with special tokens as the head wants them.
        max_length: pieces per row.
        steps: training steps within which the loss must fall.
        tolerance: largest difference allowed where numbers must be equal.

    Returns:
        What was measured, largest difference per clause, for a test to print.

    Raises:
        AssertionError: says which clause is broken and what was seen.

    Example:
        >>> films = [Example(f"{word} film", gold=word) for word in ("good", "bad", "dull")]
        >>> seen = check_head("classification", films)
        >>> sorted(seen)[:2]
        ['answers', 'bulk']
    """
    if isinstance(head, str):
        head = make_head(head, options)
    tokenizer = tokenizer or tiny_tokenizer().with_options(special_tokens=head.special_tokens)
    check = _Check(head, list(examples), config or tiny_config(), tokenizer, max_length, steps, tolerance)
    return check.all()


def _require(holds: Any, clause: str, seen: str = "") -> None:
    if not holds:
        raise AssertionError(f"Head contract, {clause}" + (f": {seen}" if seen else ""))


def _same(a: Any, b: Any, tolerance: float) -> bool:
    """Equal JSON values, but for rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= tolerance
    return a == b


@dataclasses.dataclass
class _Check:
    head: Head
    examples: list[Example]
    config: BertConfig
    tokenizer: Tokenizer
    max_length: int
    steps: int
    tolerance: float

    def all(self) -> dict[str, float]:
        _require(len(self.examples) >= 3, "check_head needs three examples or more", f"{len(self.examples)} given")
        self.seen: dict[str, float] = {}
        self.options()
        self.fitting()
        features = self.data()
        model = self.network(features)
        if self.head.draws:
            self.drawing(features)
        self.training(model, features)
        logits = self.padding(model, features.windows)
        answers = self.decoding(features.windows, logits)
        scored = self._run(model, features.windows, scored=features) if self.head.draws else logits
        self.scoring(self.head.decode(self.examples, features.windows, scored) if self.head.draws else answers)
        answers = self.tuning(features.windows, scored, answers)
        self.graph(model, answers)
        self.targets(model, features.windows)
        self.saving(model, features.windows)
        return self.seen

    @functools.cached_property
    def text(self) -> Text:
        return Text(self.tokenizer, self.max_length, "longest_first")

    def close(self, name: str, a: Any, b: Any, clause: str) -> None:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        _require(a.shape == b.shape, clause, f"{name}: shapes {a.shape} and {b.shape}")
        worst = float(np.abs(a - b).max(initial=0.0))
        self.seen[name] = max(self.seen.get(name, 0.0), worst)
        _require(worst <= self.tolerance, clause, f"{name}: largest difference {worst:.2g}")

    # -- options

    def options(self) -> None:
        cls = type(self.head)
        params = vars(cls).get("__dataclass_params__")
        _require(params is not None and params.frozen, "a head is a frozen dataclass", cls.__name__)
        try:
            cls()
        except TypeError as error:
            raise AssertionError(f"Head contract, every field has a default: {error}") from error
        self._round_trip(self.head)
        try:
            cls.from_dict({"no_such_option": 1})
        except UserError:
            pass
        else:
            raise AssertionError("Head contract, from_dict refuses an unknown option with UserError")

    def _round_trip(self, head: Head) -> None:
        said = json.loads(json.dumps(head.to_dict(), allow_nan=False))
        again = type(head).from_dict(said)
        _require(again == head, "from_dict(to_dict()) through JSON gives an equal head", f"{again} != {head}")

    def fitting(self) -> None:
        usable = list(self.head.usable(self.examples))
        _require(len(usable) == len(self.examples), "the given examples must be usable", "some were skipped")
        fitted, again = self.head.fit(iter(self.examples)), self.head.fit(self.examples)
        _require(type(fitted) is type(self.head), "fit returns a head of the same class", type(fitted).__name__)
        _require(fitted == again, "fit is deterministic")
        _require(fitted.fitted is True, "after fit the head is fitted")
        self.head = self._bound(fitted)
        self._round_trip(fitted)
        _require(isinstance(fitted.describe(), str), "describe returns a string")
        for example in self.examples:
            hash(fitted.stratum(example))
        names = fitted.text_inputs
        _require(
            len(names) in (1, 2) and len(set(names)) == len(names) and all(name.isidentifier() for name in names),
            "text_inputs are one name or two, different ones",
            str(names),
        )
        for path in ("embeddings/word_embeddings", "encoder/layer_0/output/dense/kernel"):
            _require(isinstance(fitted.trains(path), bool), "trains(path) returns a bool")

    # -- data

    def _bound(self, head: Head) -> Head:
        bound = head.with_vocabulary(self.tokenizer)
        _require(type(bound) is type(head) and bound == head, "with_vocabulary gives an equal head", f"{bound}")
        return bound

    def data(self) -> Features:
        head = self.head
        features = head.features(self.examples, self.text)
        self._shapes(features, len(self.examples))
        for name, w in features.w.items():
            _require(w.sum() > 0, "examples with gold have weight", name)
        bare = [dataclasses.replace(example, gold=None) for example in self.examples]
        unlabelled = head.features(bare, self.text)
        self._shapes(unlabelled, len(bare))
        for name, w in unlabelled.w.items():
            _require(not (head.needs_gold and w.any()), "without gold the weights are 0", name)
        same = unlabelled.windows.input_ids
        _require(np.array_equal(same, features.windows.input_ids), "gold does not change the windows")
        singles = [head.features([example], self.text) for example in self.examples]
        for kind in ("y", "w"):
            for name, whole in getattr(features, kind).items():
                parts = np.concatenate([getattr(single, kind)[name] for single in singles])
                self.close("bulk", whole, parts, f"many examples at once give the {kind} of each alone")
        self._shapes(head.features([], self.text), 0)
        return features

    def _shapes(self, features: Features, examples: int) -> None:
        _require(isinstance(features, Features), "features returns Features", type(features).__name__)
        windows = features.windows
        _require(
            set(features.y) == set(features.w) == set(self.head.losses()),
            "y, w and losses have the same keys",
            f"{sorted(features.y)}, {sorted(features.w)}, {sorted(self.head.losses())}",
        )
        counts = np.bincount(windows.example, minlength=examples) if len(windows) else np.zeros(examples)
        _require(len(counts) == examples and (counts > 0).all(), "every example has a row", f"rows: {counts}")
        for name in features.y:
            y, w = np.asarray(features.y[name]), np.asarray(features.w[name])
            _require(
                len(y) in (len(windows), len(windows.input_ids)),
                "y is per row or per piece",
                f"{name}: {len(y)} for {len(windows)} rows and {len(windows.input_ids)} pieces",
            )
            _require(len(w) == len(y), "w is as long as y", f"{name}: {len(w)} and {len(y)}")
            _require(w.dtype == np.float32, "weights are float32", f"{name}: {w.dtype}")
            _require(np.isfinite(w).all() and (w >= 0).all(), "weights are finite and not negative", name)
            _require(np.isfinite(y).all(), "targets are finite", name)
            if np.issubdtype(y.dtype, np.integer) and y.ndim == 1:
                _require((w[y == UNLABELLED] == 0).all(), "the target -100 has weight 0", name)

    # -- network

    def _model(self) -> keras.Model:
        keras.utils.set_random_seed(1)
        encoded = encode(self.config)
        outputs = self.head.outputs(encoded)
        _require(isinstance(outputs, dict) and outputs, "outputs returns a dict", type(outputs).__name__)
        return keras.Model(encoded.inputs, outputs)

    def network(self, features: Features) -> keras.Model:
        head = self.head
        model = self._model()
        names, losses = set(model.output), head.losses()
        _require(losses and set(losses) <= names, "losses are of outputs", f"{set(losses)}, {names}")
        further = {name: set(getattr(loss, "reads", ())) for name, loss in losses.items()}
        _require(all(read <= names for read in further.values()), "losses read outputs", f"{further}, {names}")
        _require(set(head.metrics()) <= names, "metrics are of outputs", f"{set(head.metrics())}")
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            half = self._model()
        finally:
            keras.config.set_dtype_policy(before)
        for which in (model, half):
            for name, tensor in which.output.items():
                _require(
                    tensor.dtype == "float32",
                    "logits are float32, also under mixed precision",
                    f"{name} is {tensor.dtype}",
                )
                _require(tensor.shape[0] is None, "the batch is free", f"{name} has the shape {tensor.shape}")
        inputs = self._padded(features.windows, 0)
        nothing = {name: np.zeros_like(value) for name, value in inputs.items()}  # as filler rows may be
        for which in (model, half):
            for given in (inputs, nothing):
                for name, value in which(head.prepare(given)[0], training=False).items():
                    _require(np.isfinite(value).all(), "logits are finite, even of a row without a piece", name)
        paths, later = ([v.path for v in m.variables if "float" in v.dtype] for m in (model, half))
        _require(
            paths == later,
            "variables have the same paths in every model (name your layers, inner ones too)",
            f"{[pair for pair in zip(paths, later, strict=False) if pair[0] != pair[1]][:3]}",
        )
        twice = {p for p in paths if paths.count(p) > 1}
        _require(not twice, "every variable has a path of its own", f"{twice}")
        self.per_piece = {name: len(t.shape) > 1 and t.shape[1] is None for name, t in model.output.items()}
        rows, pieces = len(features.windows), len(features.windows.input_ids)
        for name in losses:
            per_piece = self.per_piece[name]
            wanted = [pieces] if per_piece else [rows]
            if per_piece and len(model.output[name].shape) == 2:
                wanted.append(rows)  # one of the row's pieces is to be chosen
            _require(
                len(features.y[name]) in wanted,
                "an output [B, L, ...] has a target per piece, [B, L] also one per row, others per row",
                f"{name}: {len(features.y[name])} targets, {' or '.join(map(str, wanted))} expected",
            )
        self.learned_per_piece = {name: len(y) == pieces for name, y in features.y.items()}
        return model

    def _padded(self, windows: Windows, more: int) -> dict[str, np.ndarray]:
        return windows.pad(length=int(windows.lengths.max(initial=1)) + more)

    def _batch(self, features: Features, epoch: int = 0, more: int = 0) -> tuple[dict, dict, dict]:
        """All rows as training meets them, after ``prepare``."""
        rows = np.arange(len(features.windows))
        length = int(features.windows.lengths.max(initial=1)) + more
        x, y, w = tf.nest.map_structure(tf.constant, batch(features, rows, length))
        seeds = tf.constant(np.stack([np.full_like(rows, epoch), rows], 1), tf.int64)
        return self.head.prepare(x, y, w, seeds)

    def drawing(self, features: Features) -> None:
        """What ``prepare`` draws depends on a row's seed and pieces, and on nothing else."""

        def weighed(made: tuple[dict, dict, dict], row: int) -> list[np.ndarray]:
            """What of a row counts: pieces, targets and weights, without padding."""
            x, y, w = made
            there = np.asarray(x["attention_mask"])[row] != 0
            found = [np.asarray(x["input_ids"])[row][there]]
            for name in y:
                keep = np.asarray(w[name])[row] > 0
                found += [np.asarray(y[name])[row][keep], np.asarray(w[name])[row][keep]]
            return found

        def same(a: tuple, b: tuple) -> bool:
            return all(
                np.array_equal(one, other)
                for row in range(len(features.windows))
                for one, other in zip(weighed(a, row), weighed(b, row), strict=True)
            )

        first = self._batch(features)
        _require(any(np.any(w) for w in first[2].values()), "prepare leaves something to learn")
        _require(same(first, self._batch(features)), "prepare draws the same for the same seed")
        _require(same(first, self._batch(features, more=7)), "what prepare draws does not depend on padding")
        others = [self._batch(features, epoch) for epoch in range(1, 6)]
        _require(not all(same(first, other) for other in others), "prepare draws anew for another seed")
        zero = {name: np.zeros_like(w) for name, w in features.w.items()}
        nothing = self._batch(dataclasses.replace(features, w=zero))
        _require(not any(np.any(w) for w in nothing[2].values()), "rows of weight 0 keep it in prepare")

    def training(self, model: keras.Model, features: Features) -> None:
        losses = self.head.losses()
        inputs, y, w = self._batch(features)
        optimizer = keras.optimizers.Adam(3e-3)
        variables = model.trainable_variables
        optimizer.build(variables)

        def loss_of(weights: dict) -> tf.Tensor:
            logits = model(inputs, training=True)
            total = tf.constant(0.0)
            for name, loss in losses.items():
                further = {other: logits[other] for other in getattr(loss, "reads", ())}
                shown, blank = y[name], getattr(loss, "unlabelled", None)
                if blank is not None:
                    shown = tf.where(weights[name] > 0, shown, tf.cast(blank, shown.dtype))
                each = tf.convert_to_tensor(loss.call(shown, logits[name], **further))
                rank = 2 if self.learned_per_piece[name] else 1
                _require(
                    len(each.shape) == rank,
                    "loss.call gives a number per row or per piece",
                    f"{name}: shape {each.shape}",
                )
                sums = tf.reduce_sum(tf.math.multiply_no_nan(each, weights[name]))
                total += tf.math.divide_no_nan(sums, tf.reduce_sum(weights[name]))
            return total

        @tf.function
        def step(weights: dict) -> tuple[tf.Tensor, list]:
            with tf.GradientTape() as tape:
                loss = loss_of(weights)
            grads = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return loss, [tf.convert_to_tensor(g) for g in grads]

        loss, grads = step({k: tf.zeros_like(v) for k, v in w.items()})
        _require(float(loss) == 0 and not any(np.any(g) for g in grads), "with all weights 0 nothing is learned")
        first, grads = step(w)
        _require(np.isfinite(first), "the loss is finite", f"{float(first)}")
        _require(all(np.isfinite(g).all() for g in grads), "gradients are finite")
        learned = [v.path for v, g in zip(variables, grads, strict=True) if np.any(g)]
        _require(learned, "the loss has a gradient")
        for _ in range(self.steps):
            loss, grads = step(w)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
        last, _ = step(w)
        self.seen["loss before"], self.seen["loss after"] = float(first), float(last)
        _require(
            last < first, f"{self.steps} steps of training lower the loss", f"{float(first):.4g} to {float(last):.4g}"
        )
        logits = model(inputs, training=False)
        for name, metrics in self.head.metrics().items():
            for metric in metrics:
                metric.update_state(y[name], logits[name], sample_weight=w[name])
                _require(np.isfinite(metric.result()), "metrics are finite", metric.name)

    def _run(
        self, model: keras.Model, windows: Windows, more: int = 0, scored: Features | None = None
    ) -> dict[str, Any]:
        """Logits as ``decode`` gets them, on the host; those of a file that is scored with the features of it."""
        length = int(windows.lengths.max(initial=1)) + more
        given: tuple = (self._padded(windows, more),)
        if scored is not None:
            given = (*batch(scored, np.arange(len(windows)), length), fingerprints(windows))

        def infer(*given: Any) -> dict:
            return self.head.infer(model, *given)

        logits = tf.function(infer, autograph=False)(*tf.nest.map_structure(tf.constant, given))
        if type(self.head).digest is not Head.digest:  # its tensors a piece are as long as the rows
            self.numbers = {k: len(v.shape) > 1 and v.shape[1] == length for k, v in logits.items()}
        else:
            self.numbers = self.per_piece
        found = {k: np.asarray(v) for k, v in logits.items()}
        return {
            name: [row[:n] for row, n in zip(value, windows.lengths, strict=True)] if self.numbers[name] else value
            for name, value in found.items()
        }

    def padding(self, model: keras.Model, windows: Windows) -> dict[str, Any]:
        logits, padded = self._run(model, windows), self._run(model, windows, 9)
        order = np.arange(len(windows))[::-1]
        turned = self._run(model, windows.take(order))
        for name in logits:
            for row in range(len(windows)):
                self.close("padding", logits[name][row], padded[name][row], "padding changes no logits")
                self.close("order", logits[name][row], turned[name][order[row]], "rows do not see each other")
        return logits

    # -- answers

    def decoding(self, windows: Windows, logits: dict[str, Any]) -> list[Any]:
        head, examples = self.head, self.examples
        answers = head.decode(examples, windows, logits)
        _require(isinstance(answers, list) and len(answers) == len(examples), "decode gives one answer per example")
        try:
            json.dumps(answers, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"Head contract, answers are JSON: {error}") from error
        bare = [dataclasses.replace(example, gold=None) for example in examples]
        _require(head.decode(bare, windows, logits) == answers, "answers do not depend on gold")
        for i, example in enumerate(examples):
            rows = np.flatnonzero(windows.example == i)
            own = dataclasses.replace(windows.take(rows), example=np.zeros(len(rows), np.int32))
            alone = head.decode(
                [example], own, {k: [v[r] for r in rows] if self.numbers[k] else v[rows] for k, v in logits.items()}
            )
            _require(
                len(alone) == 1 and _same(alone[0], answers[i], self.tolerance),
                "an example is answered alone as among others",
                f"{alone} and {answers[i]}",
            )
        empty = self.text([], [] if len(head.text_inputs) > 1 else None)
        none = {k: [] if self.numbers[k] else v[:0] for k, v in logits.items()}
        _require(head.decode([], empty, none) == [], "no example, no answer")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answers.jsonl"
            head.write(path, zip(examples, answers, strict=True))
            lines = path.read_text("utf-8").splitlines()
        _require(len(lines) == len(answers), "write writes a line per answer to a .jsonl file", f"{len(lines)}")
        return answers

    def scoring(self, answers: list[Any]) -> None:
        head = self.head
        scores = head.score(iter(self.examples), iter(answers))
        _require(head.main_metric and head.main_metric in scores, "score has main_metric", f"{head.main_metric!r}")
        for name, value in scores.items():
            if isinstance(value, (int, float, np.number)):
                _require(np.isfinite(value), "scores are finite", f"{name} is {value}")
        json.dumps(scores, allow_nan=False)

    def tuning(self, windows: Windows, logits: dict[str, Any], answers: list[Any]) -> list[Any]:
        """From here on the head is the tuned one."""
        head = self.head
        _require(isinstance(head.tunes, str), "tunes is a str", f"{head.tunes!r}")
        tuned = head.tuned(self.examples, windows, logits)
        _require(type(tuned) is type(head), "tuned returns a head of the same class", type(tuned).__name__)
        _require(head.tunes or tuned == head, "a head that tunes says what (tunes)", f"{tuned}")
        _require(tuned.tuned(self.examples, windows, logits) == tuned, "tuned does not depend on what was tuned before")
        self._round_trip(tuned)
        if tuned == head:
            return answers
        self.head = self._bound(tuned)
        answers = self.decoding(windows, logits)
        self.scoring(answers)
        return answers

    def graph(self, model: keras.Model, answers: list[Any]) -> None:
        """What the exported model will say, from ids and from raw text, for any batch size; equal to decode's."""
        head = self.head
        one_row = len(self.text(*self._texts(self.examples)).lengths)

        run = PythonRun(self.tokenizer, lambda x: head.infer(model, x), self.max_length)

        @tf.function
        def served(texts: dict) -> dict:
            return head.serve(texts, run)

        @tf.function
        def from_ids(inputs: dict) -> dict:
            return head.answers(head.infer(model, inputs))

        def as_inputs(examples: list[Example]) -> dict[str, tf.Tensor]:
            columns = zip(head.text_inputs, self._texts(examples), strict=True)
            return {name: tf.constant(column, tf.string) for name, column in columns}

        whole = served(as_inputs(self.examples))
        _require(whole, "serve returns tensors")
        self._agree(whole, answers, "serve")
        none = served(as_inputs([]))
        _require(set(none) == set(whole), "serve answers an empty batch", f"{set(none)}")
        for name, value in none.items():
            _require(value.shape[0] == 0, "an empty batch has empty answers", f"{name}: {value.shape}")
        windows = self.head.features(self.examples, self.text).windows
        said = from_ids({k: tf.constant(v) for k, v in self._padded(windows, 0).items()})
        for name, value in said.items():
            _require(value.shape[0] == len(windows), "answers have a row per row", f"{name}: {value.shape}")
        if len(windows) == len(self.examples) == one_row:
            self._agree(said, answers, "answers")

    def _texts(self, examples: Sequence[Example]) -> list[list[str]]:
        columns = [[e.text for e in examples], [e.pair or "" for e in examples]]
        return columns[: len(self.head.text_inputs)]

    def _agree(self, tensors: Mapping[str, Any], answers: list[Any], what: str) -> None:
        """Tensors that have the name of a key of the answers say the same: strings equal, numbers close."""
        for name, tensor in tensors.items():
            values = np.asarray(tensor)
            _require(len(values) == len(answers), f"{what} gives a row per example", f"{name}: {values.shape}")
            for answer, value in zip(answers, values, strict=True):
                if not isinstance(answer, dict) or name not in answer:
                    continue
                wanted = answer[name]
                wanted = list(wanted.values()) if isinstance(wanted, dict) else wanted
                if isinstance(wanted, str):
                    _require(value.decode() == wanted, f"{what} equals decode", f"{name}: {value!r} and {wanted!r}")
                elif isinstance(wanted, (int, float)) or (
                    isinstance(wanted, list)
                    and all(isinstance(x, (int, float)) for x in wanted)
                    and np.shape(value) == np.shape(wanted)
                ):  # lists that the graph pads are for the head's own tests
                    self.close("answers", value, wanted, f"{what} equals decode")

    def targets(self, model: keras.Model, windows: Windows) -> None:
        logits = model(self.head.prepare(self._padded(windows, 0))[0], training=False)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            target = self.head.target(logits)
        _require(tuple(target.shape) == (len(windows),), "target is [B]", f"{target.shape}")
        grads = [g for g in tape.gradient(target, list(logits.values())) if g is not None]
        _require(grads and all(np.isfinite(g).all() for g in grads), "target has a finite gradient")
        _require(any(np.any(g) for g in grads), "the gradient of target is not 0 everywhere")
        again = self.head.target(logits, logits)
        self.close("target", again, target, "target(logits, chosen=logits) is target(logits)")

    def saving(self, model: keras.Model, windows: Windows) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            again = keras.saving.load_model(path)
        _require(len(again.variables) == len(model.variables), "a reloaded model has as many variables")
        inputs = self.head.prepare(self._padded(windows, 0))[0]
        old, new = model(inputs, training=False), again(inputs, training=False)
        for name in old:
            self.close("saving", new[name], old[name], "the model is the same after .keras saving")
