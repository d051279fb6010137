"""TensorFlow's checkpoint files without TensorFlow: byte for byte what its Saver writes, and read as it reads."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import bundles
from keras_bert_lab.errors import UserError
from keras_bert_lab.readers import TensorFlowFile


def save(prefix, tensors):
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=list(tensors), shape_and_slices=[""] * len(tensors),
                      tensors=[tf.constant(v) for v in tensors.values()])  # fmt: skip


def as_given(tensors):
    return {name: (value.shape, lambda v=value: v) for name, value in tensors.items()}


def crc_by_the_book(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_checksum_of_the_standard():
    assert bundles.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283  # RFC 3720, B.4 and others
    assert bundles.crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA
    assert bundles.crc32c(np.full(32, 255, np.uint8)) == 0x62A8AB43


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1000, 4 * 2 * 5685, 4 * 2 * 5685 + 4, 4 * 2 * 5685 + 7, 99_999])
def test_folded_checksum_is_the_plain_one(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert bundles.crc32c(data) == crc_by_the_book(data.tobytes())


def test_folding_over_several_chunks(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8)
    want = bundles.crc32c(data)
    for chunk in (5686, 9999, 20_000):
        monkeypatch.setattr(bundles, "_CHUNK", chunk)
        assert bundles.crc32c(data) == want


def test_the_identity_behind_the_folding():
    """x^A + x^B + x^C + 1 is divisible by the polynomial (not reflected: 0x11EDC6F41)."""

    def power(k):
        value = 1
        for _ in range(k):
            value <<= 1
            if value >> 32:
                value ^= 0x11EDC6F41
        return value

    assert power(bundles._A) ^ power(bundles._B) ^ power(bundles._C) ^ 1 == 0


@pytest.mark.parametrize("count", [1, 17, 3000])
def test_the_files_are_those_of_the_saver(tmp_path, count):
    rng = np.random.default_rng(count)
    shapes = [(), (0,), (3,), (2, 5), (1, 1, 4)]
    tensors = {f"scope_{k % 7}/layer_{k}/kernel": rng.random(shapes[k % 5], np.float32) for k in range(count)}
    if count > 1:
        tensors["big"] = rng.random((300, 200), np.float32)
    save(tmp_path / "theirs", dict(sorted(tensors.items())))
    bundles.write(tmp_path / "ours", as_given(tensors))
    for end in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()


def test_names_whose_separators_are_short(tmp_path, monkeypatch):
    """Many blocks, with keys that end or differ in every way that the index abbreviates."""
    keys = ["a", "ab", "abc", "b\x7f", "c", "d/e/f", "d/e/g", "d/e/i", "dz", "\u00fc", "\u4e2d"]
    tensors = {k: np.full(2, i, np.float32) for i, k in enumerate(keys)}
    monkeypatch.setattr(bundles, "_BLOCK", 40)
    bundles.write(tmp_path / "ours", as_given(tensors))
    reader = tf.train.load_checkpoint(str(tmp_path / "ours"))
    again = bundles.Bundle(tmp_path / "ours")
    for key, value in tensors.items():
        np.testing.assert_array_equal(reader.get_tensor(key), value)
        np.testing.assert_array_equal(again.read(key), value)


def test_the_original_savers_own_files(shared, tmp_path):
    prefix = shared("oracle/tiny_zh") / "bert_model.ckpt"
    there = bundles.Bundle(prefix)
    bundles.write(tmp_path / "x", {n: (e.shape, lambda n=n: there.read(n)) for n, e in there.entries.items()})
    for end in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"x{end}").read_bytes() == prefix.with_name(prefix.name + end).read_bytes()


@pytest.mark.parametrize("where", ["tiny_en/bert_model.ckpt", "model_garden/bert_encoder.ckpt-1"])
def test_read_as_tensorflow_reads(shared, where):
    prefix = str(shared("oracle") / where)
    theirs, ours = tf.train.load_checkpoint(prefix), bundles.Bundle(prefix)
    assert theirs.get_variable_to_shape_map() == {k: list(e.shape) for k, e in ours.entries.items()}
    assert {k: d.name for k, d in theirs.get_variable_to_dtype_map().items()} == {
        k: e.dtype for k, e in ours.entries.items()
    }
    for key, entry in ours.entries.items():
        if entry.dtype != "string":
            np.testing.assert_array_equal(ours.read(key), theirs.get_tensor(key))


def test_other_types(tmp_path):
    tensors = {
        str(t): np.arange(6).reshape(2, 3).astype(t) for t in ("float16", "float64", "int8", "int32", "uint8", "bool")
    }
    tensors["brain"] = tf.cast([1.5, -2.0], tf.bfloat16).numpy()
    save(tmp_path / "x", tensors)
    reader = TensorFlowFile(tmp_path / "x")
    for name, value in tensors.items():
        np.testing.assert_array_equal(reader.read(name), value.astype("f") if name == "brain" else value)
    assert reader.read("brain").dtype == np.float32


def test_partitioned_variables_are_left_to_tensorflow(tmp_path):
    value = np.arange(12, dtype=np.float32).reshape(6, 2)
    tf.raw_ops.SaveV2(prefix=str(tmp_path / "x"), tensor_names=["w", "w"], shape_and_slices=["6 2 0,4:-", "6 2 4,2:-"],
                      tensors=[tf.constant(value[:4]), tf.constant(value[4:])])  # fmt: skip
    with pytest.raises(bundles.Unusual):
        bundles.Bundle(tmp_path / "x")
    reader = TensorFlowFile(tmp_path / "x")
    assert reader.entries == {"w": ((6, 2), "float32")}
    np.testing.assert_array_equal(reader.read("w"), value)


def test_damage_anywhere_in_the_index_is_seen(tmp_path):
    tensors = {f"t{k}": np.ones(k + 1, np.float32) for k in range(5)}
    save(tmp_path / "x", tensors)
    path = tmp_path / "x.index"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            reader = TensorFlowFile(tmp_path / "x")
        except UserError:
            continue
        assert reader.entries == {k: (v.shape, "float32") for k, v in tensors.items()}, at  # the footer's padding
    for size in (0, 10, 60, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="not a readable checkpoint index"):
            TensorFlowFile(tmp_path / "x")
