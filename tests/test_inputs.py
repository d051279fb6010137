"""Too long rows and ids outside the tables: the same clear error through every door, before anything runs."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab.config import BertConfig
from keras_bert_lab.encoder import encoder
from keras_bert_lab.errors import UserError
from keras_bert_lab.inputs import CheckedModel, check_inputs

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=64,
)
GOOD = {"input_ids": np.array([[2, 5, 3], [2, 39, 0]]), "token_type_ids": np.array([[0, 0, 0], [0, 1, 0]])}
BAD = {
    "too large": ({**GOOD, "input_ids": np.array([[2, 5, 3], [2, 40, 3]])}, r"input_ids\[1, 1\]: 40 .* 40 rows"),
    "negative": ({**GOOD, "input_ids": np.array([[2, 5, -1], [2, 4, 3]])}, r"input_ids\[0, 2\]: -1 .* 40 rows"),
    "type": ({**GOOD, "token_type_ids": np.array([[0, 0, 0], [2, 1, 0]])}, r"token_type_ids\[1, 0\]: 2 .* 2 rows"),
    "too long": ({"input_ids": np.ones((2, 65), int)}, "input_ids: rows of 65 pieces, but the model has 64 positions"),
}


class Batches(keras.utils.PyDataset):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


def targets(x):
    batch, length = x["input_ids"].shape
    return {"sequence": np.zeros((batch, length, 8)), "pooled": np.zeros((batch, 8))}


def tensors(x):
    return {name: tf.constant(value, "int32") for name, value in x.items()}


def pipeline(x, y=None):
    return tf.data.Dataset.from_tensors(x if y is None else (x, y))


DOORS = {
    "call": lambda model, x, y: model(x),
    "call with tensors": lambda model, x, y: model(tensors(x)),
    "call with lists": lambda model, x, y: model({name: value.tolist() for name, value in x.items()}),
    "predict": lambda model, x, y: model.predict(x, verbose=0),
    "predict tensors": lambda model, x, y: model.predict(tensors(x), verbose=0),
    "predict pipeline": lambda model, x, y: model.predict(pipeline(x), verbose=0),
    "predict_on_batch": lambda model, x, y: model.predict_on_batch(x),
    "evaluate": lambda model, x, y: model.evaluate(x, y, verbose=0),
    "evaluate pipeline": lambda model, x, y: model.evaluate(pipeline(x, y), verbose=0),
    "test_on_batch": lambda model, x, y: model.test_on_batch(x, y),
    "fit": lambda model, x, y: model.fit(x, y, verbose=0),
    "fit pipeline": lambda model, x, y: model.fit(pipeline(x, y), shuffle=False, verbose=0),
    "fit PyDataset": lambda model, x, y: model.fit(Batches((x, y)), verbose=0),
    "fit generator": lambda model, x, y: model.fit(
        iter([(x, y)]), steps_per_epoch=1, shuffle=False, verbose=0
    ),
    "train_on_batch": lambda model, x, y: model.train_on_batch(x, y),
    "validation": lambda model, x, y: model.fit(GOOD, targets(GOOD), validation_data=(x, y), verbose=0),
    "validation pipeline": lambda model, x, y: model.fit(
        GOOD, targets(GOOD), validation_data=pipeline(x, y), verbose=0
    ),
}


@pytest.fixture(scope="module")
def models():
    made = {}
    for jit in (False, True):
        made[jit] = encoder(CONFIG)
        made[jit].compile("sgd", "mse", jit_compile=jit)
    return made


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_alike(models, door, jit):
    if jit and door.startswith("validation"):
        pytest.skip("compiles a training step, and refuses where evaluate does")
    weights = models[jit].trainable_variables
    before = [weight.numpy() for weight in weights]
    for x, message in BAD.values():
        with pytest.raises(UserError) as error:
            DOORS[door](models[jit], x, targets(x))
        assert re.match(message, str(error.value)), error.value
    if not door.startswith("validation"):
        assert all(np.array_equal(old, new) for old, new in zip(before, weights, strict=True)), "something ran"


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_open_for_good_input(models, door):
    DOORS[door](models[False], GOOD, targets(GOOD))


def test_a_pipeline_passes_unchanged(models):
    stacked = tf.data.Dataset.from_tensor_slices((GOOD, targets(GOOD), np.ones(2))).batch(1)
    expected = models[False].evaluate(GOOD, targets(GOOD), verbose=0)
    assert np.allclose(models[False].evaluate(stacked, verbose=0), expected, rtol=1e-5)
    ids = tf.data.Dataset.from_tensor_slices(GOOD["input_ids"]).batch(2)
    whole = models[False].predict(GOOD["input_ids"], verbose=0)["pooled"]
    assert np.allclose(models[False].predict(ids, verbose=0)["pooled"], whole, atol=1e-6)


def test_a_graph_of_ones_own_still_knows_a_static_length(models):
    with pytest.raises(Exception, match="65 pieces"):  # autograph wraps errors whose constructor it does not know
        tf.function(lambda ids: models[False](ids)).get_concrete_function(tf.TensorSpec([None, 65], "int32"))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"input_ids": np.ones(3, int)}, "shape"),
        ({"input_ids": np.ones((1, 3)) * 0.5}, "fractions"),
        ({**GOOD, "attention_mask": np.ones((2, 4))}, "attention_mask"),
        ({**GOOD, "token_type_ids": np.ones((1, 3), int)}, "token_type_ids"),
    ],
    ids=["one axis", "fractions", "mask", "types"],
)
def test_shapes_and_kinds(arrays, words):
    with pytest.raises(UserError, match=words):
        check_inputs(CONFIG, arrays)


def test_what_is_fine():
    check_inputs(CONFIG, GOOD)
    check_inputs(CONFIG, {"input_ids": np.zeros((0, 5), int)})
    check_inputs(CONFIG, {"input_ids": np.full((1, 64), 39.0)})


def test_unknown_and_missing_names(models):
    with pytest.raises(UserError, match="give input_ids, attention_mask, token_type_ids"):
        models[False]({**GOOD, "segment_ids": GOOD["token_type_ids"]})
    with pytest.raises(UserError, match="got attention_mask"):
        models[False]({"attention_mask": GOOD["input_ids"]})


def with_dropout(rate, head_rate=0.1):
    inner = encoder(CONFIG.replace(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate))
    kept = keras.layers.Dropout(head_rate)(inner.output["pooled"])
    return CheckedModel(inner.input, keras.layers.Dense(2, bias_initializer="normal")(kept))


@pytest.mark.parametrize(("saved", "asked"), [(0.1, 0.1), (0.1, 0.0), (0.0, 0.1)])
def test_a_weights_file_is_about_weights_not_seeds(tmp_path, saved, asked):
    model, again = with_dropout(saved), with_dropout(asked)
    model.save_weights(tmp_path / "model.weights.h5")
    again.load_weights(tmp_path / "model.weights.h5")
    assert np.array_equal(again.predict(GOOD, verbose=0), model.predict(GOOD, verbose=0))


def test_a_weights_file_without_the_head_is_refused(tmp_path):
    encoder(CONFIG).save_weights(tmp_path / "encoder.weights.h5")
    with pytest.raises(UserError, match=r"holds 23 weights .*, the model 25"):
        with_dropout(0.1).load_weights(tmp_path / "encoder.weights.h5")
