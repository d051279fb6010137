"""A Keras model whose training is exact: the same global batches give the same weights on one device or on many.

`ExactModel` overrides the few methods of ``keras.Model`` in which a *mean per replica* stands where a *global weighted
mean* is meant; users still call ``compile``, ``fit``, ``evaluate`` and ``predict``. docs/training.md says what and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from .errors import UserError
from .inputs import CheckedModel
from .optimizer import AdamW, Schedule, dense
from .recipe import Recipe

__all__ = ["AdamW", "ExactModel", "History", "Model", "Recipe", "Schedule", "compile", "freeze", "optimizer", "run"]

IGNORED = -100  # the label of places without a label, where labels are integers


@keras.saving.register_keras_serializable("keras_bert_lab")
class ExactModel(keras.Model):
    """``keras.Model(inputs=..., outputs=...)`` with an exact training and test step.

    - The loss of an output is sum(weight * loss) / sum(weight) over the whole global batch: all replicas, all
      micro-batches. Rows and places of weight 0, and integer labels -100, count nowhere; where nothing counts, the
      loss is 0 with zero gradient. (Stock Keras divides by the number of places, weighted or not.) A loss with
      ``reduction="sum"`` is not divided.
    - Gradients are summed over replicas, then clipped, then applied; so ``global_clipnorm`` of any Keras optimizer
      means the norm of the whole gradient.
    - ``accumulate=k``: the step cuts its batch into k micro-batches and makes one update, equal to the large batch's.
    - Reported losses and metrics are over the epoch's sums and weights. ``metrics=`` heed the weights (in Keras only
      ``weighted_metrics`` do).

    Example:
        >>> x = keras.Input([3])
        >>> model = ExactModel(inputs=x, outputs=keras.layers.Dense(2)(x))
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), accumulate=2)
    """

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool = False,
        auto_scale_loss: bool = True,
        accumulate: int = 1,
    ) -> None:
        """As ``keras.Model.compile``, but for what the class says, and:

        Args:
            metrics: weighted metrics, unless ``weighted_metrics`` are given too.
            jit_compile: False by default: XLA compiles anew for every length of a batch.
            accumulate: number of micro-batches a batch is cut into, one after the other (gradient accumulation).

        Raises:
            UserError: what cannot work, before anything runs.
        """
        if isinstance(self.output, dict):
            self.output_names = list(self.output)  # Keras takes the layers' names, which may be others than the keys
        replicas = self.distribute_strategy.num_replicas_in_sync
        if accumulate < 1:
            raise UserError("compile(accumulate=...)", f"{accumulate}", "give 1 or more micro-batches")
        if replicas > 1 and jit_compile is True:
            raise UserError(
                "compile(jit_compile=True)",
                f"XLA does not run on the strategy's {replicas} replicas",
                "leave it False, or train on one device",
            )
        if replicas > 1 and steps_per_execution != 1:
            raise UserError(
                f"compile(steps_per_execution={steps_per_execution})",
                f"Keras cannot do this on {replicas} replicas",
                "leave it 1",
            )
        if metrics is not None and weighted_metrics is None:
            metrics, weighted_metrics = None, metrics
        super().compile(
            optimizer,
            loss,
            loss_weights,
            metrics,
            weighted_metrics,
            run_eagerly,
            steps_per_execution,
            jit_compile,
            auto_scale_loss,
        )
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if replicas > 1 and getattr(inner, "gradient_accumulation_steps", None):
            raise UserError(
                "optimizer(gradient_accumulation_steps=...)",
                f"Keras cannot do this on {replicas} replicas",
                "use compile(accumulate=...), which also works on one device",
            )
        if replicas > 1 and inner is not None:
            # Our step hands the optimizer gradients that are already summed over replicas (they must be, before
            # they are clipped). Keras would sum them once more, after clipping.
            inner._all_reduce_sum_gradients = _as_they_are
        self._accumulate, self._loss_weights = int(accumulate), loss_weights
        # past Keras' tracking of attributes, as in its own compile: else it would be listed, and reported, twice
        object.__setattr__(self, "_loss_tracker", _Loss(self.output_names, name="loss"))

    def get_compile_config(self) -> dict:
        """What ``compile_from_config`` needs; written into ``.keras`` files. {} of a model that is not compiled."""
        config = super().get_compile_config()
        return {**config, "accumulate": self._accumulate} if config else {}

    def compile_from_config(self, config: dict) -> None:
        """Compiles as the saved model was, with an optimizer ready for its saved state."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def last_loss(self) -> float:
        """The loss of the last batch alone (what ``fit`` reports is the mean of the epoch so far)."""
        return float(tf.convert_to_tensor(self._loss_tracker.last))

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """As ``keras.Model.fit``; a tf.data pipeline is never shuffled, as Keras says in a warning unless told so."""
        if isinstance(x, tf.data.Dataset):
            kwargs.setdefault("shuffle", False)
        return super().fit(x, y, *args, **kwargs)

    # -- the steps ---------------------------------------------------------------------------------------------

    def make_train_function(self, force: bool = False) -> Any:
        """As in Keras, but the optimizer's slots are made first: made in the step, they would cost a second trace."""
        if self.built and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One update from one replica's share of a batch: (x, y, weights)."""
        x, y, w = keras.utils.unpack_x_y_sample_weight(data)
        parts, replicas = self._accumulate, self.distribute_strategy.num_replicas_in_sync
        variables = self.trainable_variables
        if not variables:
            raise UserError("fit", "every weight of the model is frozen", "leave the head trainable")
        gradients: list[tf.Tensor | None] = []
        sums, weights, divisors, extra = 0.0, 0.0, None, 0.0
        for part in range(parts):
            after = [g for g in gradients if g is not None]
            part_x, part_y, part_w = _part((x, y, w), part, parts, after)
            with tf.GradientTape() as tape:
                predicted = self(part_x, training=True)
                terms = self._terms(part_y, predicted, part_w)
                part_sums, part_weights = _stack([t.sum for t in terms]), _stack([t.weight for t in terms])
                with tape.stop_recording():
                    if divisors is None:  # the whole global batch's weights, before any gradient is taken
                        whole = part_weights if parts == 1 else self._weights(terms, y, w)
                        divisors = self._divisors(terms, _over_replicas(whole))
                loss = tf.reduce_sum(_factors(terms) * tf.math.divide_no_nan(part_sums, divisors))
                added = [tf.reduce_sum(tf.cast(value, loss.dtype)) for value in self.losses]
                if added:
                    part_extra = tf.add_n(added) / (replicas * parts)
                    loss, extra = loss + part_extra, extra + part_extra
                loss = self.optimizer.scale_loss(loss)
            found = [None if g is None else dense(g) for g in tape.gradient(loss, variables)]
            gradients = found if part == 0 else [_add(a, b) for a, b in zip(gradients, found, strict=True)]
            sums, weights = sums + part_sums, weights + part_weights
            self._update_metrics(part_x, terms, part_y, predicted, part_w)
        present = [g for g in gradients if g is not None]
        if present:
            summed = iter(_over_replicas(present))
            gradients = [None if g is None else next(summed) for g in gradients]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self._results(terms, sums, weights, extra)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Losses and metrics of one replica's share of a batch: (x, y, weights)."""
        x, y, w = keras.utils.unpack_x_y_sample_weight(data)
        predicted = self(x, training=False)
        terms = self._terms(y, predicted, w)
        self._update_metrics(x, terms, y, predicted, w)
        extra = tf.add_n([tf.reduce_sum(tf.cast(v, tf.float32)) for v in self.losses]) if self.losses else 0.0
        extra /= self.distribute_strategy.num_replicas_in_sync
        return self._results(terms, _stack([t.sum for t in terms]), _stack([t.weight for t in terms]), extra)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """The loss of these rows alone (a scalar): what ``train_step`` minimises on one device without accumulation."""
        terms = self._terms(y, y_pred, sample_weight)
        divisors = self._divisors(terms, _stack([t.weight for t in terms]))
        loss = tf.reduce_sum(_factors(terms) * tf.math.divide_no_nan(_stack([t.sum for t in terms]), divisors))
        return tf.add_n([loss, *(tf.reduce_sum(tf.cast(v, loss.dtype)) for v in self.losses)])

    # -- sums and weights --------------------------------------------------------------------------------------

    def _terms(self, y: Any, predicted: Any, w: Any) -> list[_Term]:
        """The compiled losses, one for each output that has one, with this part's sums."""
        outputs = self._by_name(predicted, "outputs")
        losses = self._by_name(self.loss, "loss", every=outputs)
        targets = self._by_name(y, "targets") if y is not None else {}
        given = self._by_name(w, "weights", every=outputs)
        factors = self._by_name(self._loss_weights, "loss_weights", every=outputs)
        terms = []
        for name, p in outputs.items():
            if losses.get(name) is None:
                continue
            if targets.get(name) is None:
                raise UserError(
                    f"targets of output {name!r}",
                    f"absent (there are {sorted(targets)})",
                    "give them, or no loss for this output",
                )
            factor = 1.0 if factors.get(name) is None else factors[name]
            further = {other: outputs[other] for other in getattr(losses[name], "reads", ())}
            terms.append(_term(name, losses[name], factor, targets[name], p, given.get(name), further))
        return terms

    def _weights(self, terms: list[_Term], y: Any, w: Any) -> tf.Tensor:
        """Sum of weights of each term over the whole of this replica's batch, known before the forward pass."""
        targets, found = self._by_name(y, "targets"), []
        given = self._by_name(w, "weights", every=self.output_names)
        for term in terms:
            if term.masked:
                raise UserError(
                    "compile(accumulate=...)",
                    f"output {term.name!r} carries a Keras mask, whose weights are known only after the forward pass",
                    "give the weights with the data",
                )
            label, keep = _labels(targets[term.name], term.classes)
            shape = tf.shape(label)[: term.rank]
            found.append(tf.reduce_sum(_broadcast(given.get(term.name), keep, shape, term.rank)))
        return _stack(found)

    def _divisors(self, terms: list[_Term], weights: tf.Tensor) -> tf.Tensor:
        summed = tf.constant([t.summed for t in terms], tf.bool)
        return tf.where(summed, tf.ones_like(weights), weights)

    def _by_name(self, value: Any, what: str, every: Any = None) -> dict[str, Any]:
        """``value`` as {output name: ...}; a single one stands for all outputs where ``every`` says so."""
        names = self.output_names
        if isinstance(value, dict):
            unknown = [k for k in value if k not in names]
            if unknown:
                raise UserError(f"{what} {unknown[0]!r}", "the model has no such output", f"it has {', '.join(names)}")
            return dict(value)
        if isinstance(value, list | tuple):
            if len(value) != len(names):
                raise UserError(what, f"{len(value)} for {len(names)} outputs", f"give one each for {', '.join(names)}")
            return dict(zip(names, value, strict=True))
        if every is not None:
            return dict.fromkeys(every, value)
        if len(names) > 1:
            raise UserError(what, f"one for {len(names)} outputs", f"give a dict with {', '.join(names)}")
        return {names[0]: value}

    def _update_metrics(self, x: Any, terms: list[_Term], y: Any, predicted: Any, w: Any) -> None:
        # Labels -100 become class 0 of weight 0: some metrics compute NaN for a label they don't know.
        clean, kept = {t.name: t.label for t in terms}, {t.name: t.weights for t in terms}
        if not isinstance(predicted, dict | list | tuple):
            y, w = clean.get(self.output_names[0], y), kept.get(self.output_names[0], w)
        elif isinstance(predicted, dict) and isinstance(y, dict):
            y = {**y, **clean}
            w = {
                name: kept.get(name, None if w is None else self._by_name(w, "weights", every=y).get(name))
                for name in y
            }
            # of outputs without targets Keras would lose count
            predicted = {name: value for name, value in predicted.items() if name in y}
        self.compute_metrics(x, y, predicted, sample_weight=w)

    def _results(self, terms: list[_Term], sums: Any, weights: Any, extra: Any) -> dict[str, tf.Tensor]:
        replicas = self.distribute_strategy.num_replicas_in_sync
        # Every replica adds an equal share of the global sums: then even one replica's own ratio is the global one.
        sums, weights, extra = _over_replicas([sums, weights, tf.convert_to_tensor(extra)])
        sums, weights, extra = sums / replicas, self._divisors(terms, weights) / replicas, extra / replicas
        self._loss_tracker.add(terms, sums, weights, extra, 1.0 / replicas)
        results = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras reduces these over axis 0 there, which scalars do not have
            results = {name: tf.reshape(value, [1]) for name, value in results.items()}
        return results

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras averages a first batch over replicas to learn its shapes: that fails for uneven shares, and takes a
        # batch (with a generator: an epoch's order) from the data. The data's own description says as much.
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            spec = iterator.data_adapter.get_tf_dataset().element_spec
            leaves = tf.nest.flatten(spec)
            if not all(isinstance(s, tf.TensorSpec) for s in leaves):
                return super()._maybe_symbolic_build(iterator, data_batch)
            data_batch = tf.nest.map_structure(lambda s: keras.KerasTensor(tuple(s.shape), s.dtype.name), spec)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)


@keras.saving.register_keras_serializable("keras_bert_lab")
class Model(ExactModel, CheckedModel):
    """An ``ExactModel`` around the encoder: it also refuses ids and lengths that the encoder's tables do not cover.

    See ``inputs.CheckedModel`` for what is checked and when.
    """


@dataclass
class _Term:
    """One output's share of the loss, over one part of one replica's batch."""

    name: str
    factor: float  # from loss_weights
    summed: bool  # reduction="sum": not divided
    masked: bool  # a Keras mask took part
    classes: tuple  # static shape of the logits: tells class labels from other integers
    rank: int  # of the per-place losses: [batch] or [batch, length, ...]
    label: tf.Tensor  # targets with -100 replaced by 0
    weights: tf.Tensor  # of every place, float32, the per-place losses' shape
    sum: tf.Tensor  # sum of weight * loss, scalar
    weight: tf.Tensor  # sum of weights, scalar


def _term(name: str, loss: Any, factor: float, y: tf.Tensor, p: tf.Tensor, w: Any, further: dict) -> _Term:
    loss = keras.losses.get(loss)
    if not isinstance(loss, keras.losses.Loss):
        loss = _Function(loss)
    mask = getattr(p, "_keras_mask", None)
    label, keep = _labels(tf.convert_to_tensor(y), tuple(p.shape))
    w = None if w is None else tf.convert_to_tensor(w)
    if w is not None and w.shape.rank <= label.shape.rank:  # NaN, -1, anything may stand where the weight is 0
        counts = _to_rank(tf.not_equal(w, 0), label.shape.rank)
        label = tf.where(counts, label, tf.zeros_like(label))
        counts = counts if keep is None else counts & keep
    else:
        counts = keep
    shown, blank = label, getattr(loss, "unlabelled", None)
    if blank is not None and counts is not None:  # a loss over whole rows must know which places count
        shown = tf.where(counts, label, tf.cast(blank, label.dtype))
    values = loss.call(tf.cast(shown, loss.dtype), tf.cast(p, loss.dtype), **further)
    values = tf.cast(values, tf.float32)
    if values.shape.rank == 0:  # a loss that averages by itself: one value for all rows
        values = tf.fill([tf.shape(p)[0]], values)
    rank = values.shape.rank
    weights = _broadcast(w, keep, tf.shape(values), rank)
    if mask is not None:
        weights *= _to_rank(tf.cast(mask, tf.float32), rank)
    # values * weights, but 0 where the weight is 0 whatever the value
    total = tf.reduce_sum(tf.math.multiply_no_nan(values, weights))
    return _Term(
        name,
        factor,
        loss.reduction == "sum",
        mask is not None,
        tuple(p.shape),
        rank,
        label,
        weights,
        total,
        tf.reduce_sum(weights),
    )


def _labels(y: tf.Tensor, logits: tuple) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Class labels with -100 replaced by 0, and where they were not -100 (None: these are no class labels)."""
    classes = len(logits) > 1 and logits[-1] != 1
    sparse = len(y.shape) == len(logits) - 1 or (len(y.shape) == len(logits) and y.shape[-1] == 1)
    if not (y.dtype.is_integer and classes and sparse):
        return y, None
    keep = tf.not_equal(y, tf.cast(IGNORED, y.dtype)) if y.dtype.min < 0 else tf.ones_like(y, tf.bool)
    return tf.where(keep, y, tf.zeros_like(y)), keep


def _broadcast(w: Any, keep: tf.Tensor | None, shape: tf.Tensor, rank: int) -> tf.Tensor:
    """Weights of every place, float32, of the given shape: the user's (a row's or a place's), 0 where not kept."""
    weights = tf.ones(shape, tf.float32)
    if w is not None:
        weights *= _to_rank(tf.cast(w, tf.float32), rank)
    if keep is not None:
        weights *= _to_rank(tf.cast(keep, tf.float32), rank)
    return weights


def _to_rank(t: tf.Tensor, rank: int) -> tf.Tensor:
    while t.shape.rank < rank:
        t = t[..., tf.newaxis]
    while t.shape.rank > rank and t.shape[-1] == 1:
        t = tf.squeeze(t, -1)
    if t.shape.rank > rank:
        raise UserError("weights", f"have {t.shape.rank} axes, the loss has {rank}", "give a weight a row or a place")
    return t


class _Function(keras.losses.Loss):
    """A loss given as a function or by a name: ranks are matched as Keras does it."""

    def __init__(self, function: Callable) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        if y_pred.shape.rank == y_true.shape.rank + 1 and y_pred.shape[-1] == 1:
            y_true = y_true[..., tf.newaxis]
        return self.function(y_true, y_pred)


class _Loss(keras.metrics.Metric):
    """The loss over an epoch, from sums and weights; with several outputs, each one's (unweighted) loss as well."""

    def __init__(self, names: Sequence[str], name: str = "loss") -> None:
        super().__init__(name=name)
        self.names, self.factors = list(names), {}
        self.sums = self.add_weight(shape=(len(names),), initializer="zeros", name="sums")
        self.weights_ = self.add_weight(shape=(len(names),), initializer="zeros", name="weights")
        self.extra = self.add_weight(shape=(), initializer="zeros", name="extra")
        self.steps = self.add_weight(shape=(), initializer="zeros", name="steps")
        self.last = self.add_weight(shape=(), initializer="zeros", name="last")

    def add(self, terms: list[_Term], sums: tf.Tensor, weights: tf.Tensor, extra: tf.Tensor, share: float) -> None:
        self.factors = {t.name: t.factor for t in terms}
        places = tf.constant([[self.names.index(t.name)] for t in terms], tf.int32, [len(terms), 1])
        shape = tf.constant([len(self.names)])
        self.sums.assign_add(tf.scatter_nd(places, sums, shape))
        self.weights_.assign_add(tf.scatter_nd(places, weights, shape))
        self.extra.assign_add(tf.cast(extra, self.extra.dtype))
        self.steps.assign_add(share)
        means = tf.math.divide_no_nan(sums, weights)
        self.last.assign(share * tf.reduce_sum(means * _factors(terms)) + extra)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("sums and weights come in through add()")

    def result(self) -> dict[str, tf.Tensor]:
        means = tf.math.divide_no_nan(tf.convert_to_tensor(self.sums), tf.convert_to_tensor(self.weights_))
        factors = tf.constant([self.factors.get(n, 0.0) for n in self.names], tf.float32)
        extra = tf.math.divide_no_nan(tf.convert_to_tensor(self.extra), tf.convert_to_tensor(self.steps))
        results = {"loss": tf.reduce_sum(means * factors) + extra}
        if len(self.names) > 1:
            results |= {f"{n}_loss": means[i] for i, n in enumerate(self.names) if n in self.factors}
        return results


def _as_they_are(grads_and_vars: Any) -> Any:
    return grads_and_vars


def _over_replicas(tensors: Any) -> Any:
    """The sum over all replicas, on every replica (in the order given)."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def _part(data: Any, part: int, parts: int, after: list) -> Any:
    """Rows of micro-batch ``part``; they wait for ``after``, so that one micro-batch's memory is in use at a time."""
    if parts == 1:
        return data
    rows = tf.shape(next(t for t in tf.nest.flatten(data) if t is not None))[0]
    begin, end = rows * part // parts, rows * (part + 1) // parts
    with tf.control_dependencies(after):
        return tf.nest.map_structure(lambda t: None if t is None else tf.identity(t[begin:end]), data)


def _stack(scalars: list) -> tf.Tensor:
    return tf.stack(scalars) if scalars else tf.zeros([0])


def _factors(terms: list[_Term]) -> tf.Tensor:
    return tf.constant([t.factor for t in terms], tf.float32)


def _add(a: tf.Tensor | None, b: tf.Tensor | None) -> tf.Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


# -- a recipe at work ------------------------------------------------------------------------------------------


def optimizer(recipe: Recipe, steps: int) -> AdamW:
    """The recipe's optimizer for a training of ``steps`` updates."""
    original = recipe.optimizer == "bert"
    rate = Schedule(recipe.learning_rate, steps, min(recipe.warmup, steps), "bert" if original else recipe.schedule)
    clip: dict[str, Any] = {"global_clipnorm": recipe.clip_norm} if recipe.clip_norm else {}
    return AdamW(rate, recipe.weight_decay, bias_correction=not original, **clip)


def compile(model: Model, head: Any, recipe: Recipe, steps: int) -> None:
    """Compiles ``model`` with the head's losses and metrics and the recipe's optimizer.

    Args:
        model: outputs named as the head's.
        head: gives ``losses()`` and ``metrics()``, both by output name.
        recipe: see ``Recipe``.
        steps: number of updates in the whole training (the learning rate is 0 after the last).
    """
    metrics = {name: list(found) for name, found in head.metrics().items() if found}
    losses = head.losses()
    # Keras wants an entry for every output with targets, in the model's order
    names = list(model.output) if isinstance(model.output, dict) else model.output_names
    watched = {name: metrics.get(name, []) for name in names if name in losses} if metrics else None
    model.compile(optimizer(recipe, steps), losses, metrics=watched, accumulate=recipe.accumulate)


def freeze(model: keras.Model, spec: str | int = "none") -> list[str]:
    """Decides which weights are trained; call it before ``compile``.

    Args:
        model: an encoder or a task's model, whose variable paths begin with ``embeddings/``, ``encoder/layer_N/``, ...
        spec: ``"none"`` (all is trained); ``"embeddings"``; a number N: embeddings and the N lower layers;
            ``"encoder"``: embeddings and all layers, so that only pooler and head learn (feature extraction).

    Returns:
        The paths of the frozen variables.

    Raises:
        UserError: an unknown spec, or more layers than there are.
    """
    spec = str(spec)
    if spec not in ("none", "embeddings", "encoder") and not spec.isdecimal():
        raise UserError(f"freeze={spec!r}", "unknown", "use none, embeddings, encoder, or a number of lower layers")
    prefixes: tuple[str, ...] = () if spec == "none" else ("embeddings/",)
    if spec == "encoder":
        prefixes += ("encoder/",)
    elif spec.isdecimal():
        there = {v.path.split("/")[1] for v in model.variables if v.path.startswith("encoder/layer_")}
        if int(spec) > len(there):
            raise UserError(f"freeze={spec}", f"the encoder has {len(there)} layers", "freeze that many at most")
        prefixes += tuple(f"encoder/layer_{i}/" for i in range(int(spec)))
    frozen = []
    for variable in model.variables:
        if variable.path.startswith(prefixes) if prefixes else False:
            variable.trainable = False
            frozen.append(variable.path)
        elif variable.path.startswith(("embeddings/", "encoder/")):
            variable.trainable = True  # undo an earlier freeze
    return frozen


@dataclass
class History:
    """What a training left behind.

    Attributes:
        epochs: {name: value of each epoch}; dev scores are called ``dev_...``. Only numbers.
        best: the dev scores (all of them, tables too) of the weights that the model now has; {} without a dev set.
        best_epoch: the epoch they come from, the first is 1; 0 without a dev set.
        stopped: why training ended early, or "".
    """

    epochs: dict[str, list[float]] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    best_epoch: int = 0
    stopped: str = ""


def run(
    model: Model,
    data: tf.data.Dataset,
    recipe: Recipe,
    *,
    judge: Callable[[], dict[str, Any]] | None = None,
    main_metric: str = "",
    log_dir: str | Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int = 1,
) -> History:
    """Trains a compiled model as the recipe says; with a judge it ends with the best epoch's weights.

    Args:
        model: compiled.
        data: batches (x, y, weights) of one epoch with a known cardinality (``batching.dataset``).
        recipe: its epochs and patience are used here.
        judge: scores the model as it is now, on the dev set: {metric: number or table}. Called after every epoch.
        main_metric: the score that decides; larger is better.
        log_dir: ``log.jsonl`` (see ``JsonLog``) and TensorBoard's files go here; where the package tensorboard is
            not installed, a line says that the latter are not written.
        callbacks: further Keras callbacks.
        verbose: 0 silent, 1 progress with time left and a line an epoch.

    Raises:
        UserError: the loss became NaN or infinite, or the data do not say how many batches they have.
    """
    from . import callbacks as ours

    steps = int(data.cardinality())
    if steps < 1:
        raise UserError(
            "training data",
            "do not say how many batches an epoch has, or have none",
            "use batching.dataset, or tf.data's assert_cardinality",
        )
    history = History()
    # first the one whose dev scores the others show, last the one that may end it all
    used: list[keras.callbacks.Callback] = [ours.Record(history, judge, main_metric, recipe.patience)]
    if verbose:
        used.append(ours.Progress(recipe.epochs, steps))
    if log_dir is not None:
        used.append(ours.JsonLog(Path(log_dir) / "log.jsonl", plan=getattr(data, "plan", None)))
        try:
            used.append(ours.tensorboard(log_dir))
        except UserError as error:  # log.jsonl has the same numbers: no reason not to train
            if verbose:
                print(error)
    model.fit(data, epochs=recipe.epochs, verbose=0, callbacks=[*used, *callbacks, ours.StopOnNaN()])
    return history
