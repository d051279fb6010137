"""What a model may be fed: ids inside the tables, rows no longer than the positions; refused before anything runs."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from .config import BertConfig
from .errors import UserError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def check_inputs(config: BertConfig, arrays: Mapping[str, Any]) -> None:
    """Refuses arrays that the tables of ``config`` do not cover, on the host and before anything runs.

    A CPU raises from deep inside for these, a GPU returns zeros and XLA takes the last row.

    Raises:
        UserError: names the first bad position and both numbers.
    """
    ids = np.asarray(arrays["input_ids"])
    if ids.ndim != 2:
        raise UserError("input_ids", f"has the shape {ids.shape}", "give whole numbers of shape [batch, length]")
    if ids.shape[1] > config.max_position_embeddings:
        raise _too_long(ids.shape[1], config.max_position_embeddings)
    limits = {"input_ids": config.vocab_size, "token_type_ids": config.type_vocab_size}
    for name in INPUTS:
        if arrays.get(name) is None:
            continue
        values = np.asarray(arrays[name])
        if values.shape != ids.shape:
            raise UserError(name, f"has the shape {values.shape}, input_ids {ids.shape}", "give one number a piece")
        if name not in limits or not values.size:
            continue
        if not np.issubdtype(values.dtype, np.integer) and not np.array_equal(values, np.floor(values)):
            raise UserError(name, f"holds fractions ({values.dtype})", "give whole numbers")
        if values.min() < 0 or values.max() >= limits[name]:
            row, column = np.argwhere((values < 0) | (values >= limits[name]))[0]
            raise _outside(name, row, column, values[row, column], limits[name])


def _too_long(length: Any, most: Any) -> UserError:
    return UserError(
        "input_ids",
        f"rows of {length} pieces, but the model has {most} positions",
        "truncate the texts or cut them into windows",
    )


def _outside(name: str, row: Any, column: Any, value: Any, rows: Any) -> UserError:
    return UserError(
        f"{name}[{row}, {column}]",
        f"{value} is outside the table of {rows} rows",
        "was it made with another vocabulary?",
    )


class CheckedModel(keras.Model):
    """A functional model over ``INPUTS`` that refuses what its tables do not cover, before anything runs.

    Inputs are a dict by the names of ``INPUTS``, or ``input_ids`` alone. ``attention_mask`` (any dtype, 0 or 1) may be
    left out: then every piece but ``pad_token_id`` is attended to; ``token_type_ids`` left out are zeros. Checked
    are direct calls, ``fit``, ``evaluate``, ``predict`` and the ``*_on_batch`` methods, on arrays, tensors, ``tf.data``
    pipelines, ``PyDataset`` and generators. Not checked: tensors inside a ``tf.function`` of yours, and distributed
    datasets.

    Raises:
        UserError: see :func:`check_inputs`.
    """

    @property
    def bert_config(self) -> BertConfig:
        """The config of the encoder inside."""
        for layer in self.layers:
            found = layer.bert_config if isinstance(layer, CheckedModel) else getattr(layer, "config", None)
            if isinstance(found, BertConfig):
                return found
        raise UserError(f"model {self.name}", "there is no encoder in it", "build it on encode(config)")

    def __call__(self, inputs, *args, **kwargs):
        config = self.bert_config
        inputs = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        unknown = sorted(set(inputs) - set(self.input))
        if unknown or inputs.get("input_ids") is None:
            raise UserError(
                f"inputs of {self.name}", f"got {', '.join(inputs) or 'none'}", f"give {', '.join(self.input)}"
            )
        _check_concrete(config, inputs)
        inputs = {name: _tensor(value) for name, value in inputs.items() if value is not None}
        ids = inputs["input_ids"]
        if len(ids.shape) == 2 and ids.shape[1] is not None and ids.shape[1] > config.max_position_embeddings:
            check_inputs(config, {"input_ids": np.zeros(ids.shape[1:])[None]})
        if "attention_mask" not in inputs:
            inputs["attention_mask"] = keras.ops.cast(keras.ops.not_equal(ids, config.pad_token_id), "int32")
        if "token_type_ids" not in inputs:
            inputs["token_type_ids"] = keras.ops.zeros_like(ids, dtype="int32")
        if absent := [name for name in self.input if name not in inputs]:
            raise UserError(
                f"inputs of {self.name}", f"{', '.join(absent)} not given", "Head.prepare makes them of the others"
            )
        return super().__call__(inputs, *args, **kwargs)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Under ``keras.RematScope`` layers are computed again; all of the model at once would save nothing."""
        return layer_call

    def load_weights(self, filepath, *args, **kwargs):
        """As ``keras.Model.load_weights``, but for a file of another architecture.

        Keras leaves layers that the file lacks at random with a warning, and says nothing of layers too many.

        Raises:
            UserError: the file has not exactly this model's weights. Seeds of dropouts may be there or not.
        """
        if not str(filepath).endswith(".weights.h5") or kwargs.get("skip_mismatch"):
            return super().load_weights(filepath, *args, **kwargs)
        _check_weights_file(self, filepath)
        with warnings.catch_warnings():  # now only seeds can be absent, which Keras would take for lost weights
            warnings.filterwarnings("ignore", "Skipping nested container")
            return super().load_weights(filepath, *args, **kwargs)

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        *args,
        **kwargs,
    ):
        config = self.bert_config
        with _told_as_user_errors():
            if isinstance(validation_data, (tuple, list)):
                _check_concrete(config, validation_data[0])
            else:
                validation_data = _guarded(config, validation_data)
            return super().fit(
                _guarded(config, x),
                y,
                batch_size,
                epochs,
                verbose,
                callbacks,
                validation_split,
                validation_data,
                *args,
                **kwargs,
            )

    def evaluate(self, x=None, y=None, *args, **kwargs):
        with _told_as_user_errors():
            return super().evaluate(_guarded(self.bert_config, x), y, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        with _told_as_user_errors():
            return super().predict(_guarded(self.bert_config, x), *args, **kwargs)

    def train_on_batch(self, x, *args, **kwargs):
        _check_concrete(self.bert_config, x)
        return super().train_on_batch(x, *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        _check_concrete(self.bert_config, x)
        return super().test_on_batch(x, *args, **kwargs)

    def predict_on_batch(self, x):
        _check_concrete(self.bert_config, x)
        return super().predict_on_batch(x)


def _check_weights_file(model: keras.Model, path: Any) -> None:
    """Weights only, no whole numbers: those are seeds, there or not as the dropout rates are above 0 or not."""

    def shapes(group, found):
        for name, item in group.items():
            if isinstance(item, h5py.Dataset):
                if item.dtype.kind not in "iu":
                    found.append(item.shape)
            elif name != "optimizer":
                shapes(item, found)
        return sorted(found)

    with h5py.File(path) as file:
        stored = shapes(file, [])
    # `variables` would add the state of Keras' own seed generators, which it saves nowhere
    ours = sorted(tuple(v.shape) for v in model.weights if "int" not in keras.backend.standardize_dtype(v.dtype))
    if stored != ours:
        raise UserError(
            path,
            f"holds {len(stored)} weights of {sum(map(math.prod, stored)):,} numbers, the model {len(ours)} of "
            f"{sum(map(math.prod, ours)):,}, or of other shapes",
            "build the model from the config that the weights were saved with",
        )


def _tensor(value: Any) -> Any:
    return value if isinstance(value, keras.KerasTensor) else keras.ops.convert_to_tensor(value)


def _check_concrete(config: BertConfig, inputs: Any) -> None:
    """``check_inputs`` of what has values now: arrays, lists and, outside of graphs, tensors."""
    inputs = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    found = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, (np.ndarray, list, tuple)) or (tf.is_tensor(value) and tf.executing_eagerly())
    }
    if "input_ids" in found:
        check_inputs(config, found)


def _guarded(config: BertConfig, data: Any) -> Any:
    """The data of a ``fit``, checked at once or, where it is a stream, batch by batch."""
    if isinstance(data, tf.data.Dataset):
        return data.map(lambda *batch: _assert_batch(config, batch))
    if isinstance(data, keras.utils.PyDataset):
        return _GuardedDataset(config, data)
    if hasattr(data, "__next__"):
        return _guarded_batches(config, data)
    if data is not None:
        _check_concrete(config, data)
    return data


def _guarded_batches(config, batches):
    for batch in batches:
        _check_concrete(config, batch[0] if isinstance(batch, tuple) else batch)
        yield batch


class _GuardedDataset(keras.utils.PyDataset):
    def __init__(self, config, data):
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self.bert_config, self.data = config, data

    def __getitem__(self, index):
        batch = self.data[index]
        _check_concrete(self.bert_config, batch[0] if isinstance(batch, tuple) else batch)
        return batch

    @property
    def num_batches(self):
        return self.data.num_batches

    def on_epoch_begin(self):
        self.data.on_epoch_begin()

    def on_epoch_end(self):
        self.data.on_epoch_end()


_GUARD = "keras_bert_lab refuses"


def _assert_batch(config, batch):
    """``check_inputs`` as TensorFlow ops, for the host's part of a ``tf.data`` pipeline."""
    x = batch[0]
    named = x if isinstance(x, Mapping) else {"input_ids": x}
    length = tf.shape(named["input_ids"])[-1]
    most = config.max_position_embeddings
    checks = [tf.debugging.Assert(length <= most, [_GUARD, "length", 0, 0, length, most])]
    for name, rows in (("input_ids", config.vocab_size), ("token_type_ids", config.type_vocab_size)):
        if named.get(name) is None:
            continue
        values = tf.cast(named[name], "int64")
        bad = tf.reshape((values < 0) | (values >= rows), [-1])
        first = tf.argmax(tf.cast(bad, "int32"))  # 0 where none is bad, or nothing is there
        value = tf.concat([tf.reshape(values, [-1]), [0]], 0)[first]
        wide = tf.maximum(tf.cast(length, "int64"), 1)
        evidence = [_GUARD, name, first // wide, first % wide, value, rows]
        checks.append(tf.debugging.Assert(~tf.reduce_any(bad), evidence))
    with tf.control_dependencies(checks):
        batch = tf.nest.map_structure(tf.identity, batch)
    return batch if len(batch) > 1 else batch[0]


@contextlib.contextmanager
def _told_as_user_errors():
    """Turns the assertion of a guarded pipeline into the error that an array would have met."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(rf"\[{_GUARD}\] \[(\w+)\] \[(\d+)\] \[(\d+)\] \[(-?\d+)\] \[(\d+)\]", error.message)
        if not found:
            raise
        name, row, column, value, limit = found.groups()
        if name == "length":
            raise _too_long(value, limit) from error
        raise _outside(name, row, column, value, limit) from error
