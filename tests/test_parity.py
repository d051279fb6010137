"""The certificate's run, one layer in memory at a time, is the network's; it notices what differs and where."""

import gc
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_bert_lab import parity, writers
from keras_bert_lab.checkpoint import load, open_checkpoint
from keras_bert_lab.encoder import Block, encode, mlm_logits, nsp_logits
from keras_bert_lab.testing import tiny_checkpoint, tiny_config


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("parity") / "uncased_tiny")


def whole(source):
    encoded = encode(source.config, dtype="float32")
    outputs = {"embedding": encoded.layers[0], "sequence": encoded.sequence, "pooled": encoded.pooled}
    outputs |= {f"layer_{i}": hidden for i, hidden in enumerate(encoded.layers[1:])}
    outputs |= {"nsp_logits": nsp_logits(encoded), "mlm_logits": mlm_logits(encoded)}
    model = keras.Model(encoded.inputs, outputs)
    load(model, source)
    return model


VARIANTS = [{}, {"norm_position": "pre"}, {"hidden_act": "relu", "position_embedding": "rotary"}]


@pytest.mark.parametrize("changes", VARIANTS)
def test_layer_by_layer_is_the_whole_network(tmp_path, changes):
    config = tiny_config(**changes)
    encoded = encode(config)
    model = keras.Model(encoded.inputs, [encoded.sequence, nsp_logits(encoded), mlm_logits(encoded)])
    source = open_checkpoint(model)
    batches = parity.inputs(config, most=50)
    assert batches["longest"]["input_ids"].shape == (1, 50) and batches["random"]["input_ids"].shape == (3, 33)
    computed = dict(parity.outputs(source, source.names, batches))
    reference = whole(source)
    pieces = np.unique(np.concatenate([b["input_ids"].ravel() for b in batches.values()]))
    for k, batch in enumerate(batches.values()):
        want = reference(batch, training=False)
        assert set(want) == set(computed)
        for name, value in want.items():
            value = np.asarray(value)[..., pieces] if name == "mlm_logits" else np.asarray(value)
            np.testing.assert_allclose(computed[name][k], value, rtol=0, atol=2e-6, err_msg=name)


def test_one_layer_at_a_time(tiny):
    source = open_checkpoint(tiny)
    seen = []
    others = [thing for thing in gc.get_objects() if type(thing) is Block]  # of other tests
    for name, _ in parity.outputs(source, source.names, parity.inputs(source.config)):
        if name.startswith("layer_"):
            seen.append(name)
            blocks = [thing for thing in gc.get_objects() if type(thing) is Block and thing.built]
            assert all(any(block is other for other in others) for block in blocks)
    assert seen == ["layer_0", "layer_1"]


def test_only_what_there_are_weights_for(tiny):
    source = open_checkpoint(tiny)
    written = [name for name in source.names if not name.startswith(("pooler/", "cls/"))]
    names = [name for name, _ in parity.outputs(source, written, parity.inputs(source.config))]
    assert names == ["embedding", "layer_0", "layer_1", "sequence"]


def test_the_table_is_read_before_tensorflow_is_there(tiny):
    code = (
        "import sys; from keras_bert_lab import parity; from keras_bert_lab.checkpoint import open_checkpoint;"
        "s = open_checkpoint(sys.argv[1]); o = parity.outputs(s, s.names, parity.inputs(s.config));"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_differs_and_from_where(tiny, tmp_path, monkeypatch):
    source = open_checkpoint(tiny)
    writers.write_ours(source, source.names, tmp_path, lambda done, total, name: None)
    right = parity.certify(source, "keras_bert_lab", tmp_path, source.names)
    assert right["equal"] and not any(right["largest_difference"].values())

    read = source.read

    def other(name):
        value = read(name).copy()
        if name == "encoder/layer_1/output/dense/bias":
            value[3] += 1e-3  # (the same for all would vanish in the norm)
        return value

    monkeypatch.setattr(source, "read", other)
    wrong = parity.certify(source, "keras_bert_lab", tmp_path, source.names)
    differs = {name for name, gap in wrong["largest_difference"].items() if gap > wrong["tolerance"][name]}
    print(parity.summary(wrong))
    assert not wrong["equal"] and wrong["tensors"] == {"compared": 46, "bit_identical": 45}
    assert {"layer_1", "sequence"} <= differs and not {"embedding", "layer_0"} & differs

    def broken(name):
        return np.full_like(read(name), np.nan) if name == "pooler/dense/bias" else read(name)

    monkeypatch.setattr(source, "read", broken)
    wrong = parity.certify(source, "keras_bert_lab", tmp_path, source.names)
    assert not wrong["equal"] and wrong["largest_difference"]["pooled"] == float("inf")
