"""Converting: bit for bit there and back, readable by the programs whose formats these are, whole or not at all."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import bundles, checkpoint, names, writers
from keras_bert_lab.checkpoint import convert, open_checkpoint
from keras_bert_lab.config import BertConfig
from keras_bert_lab.encoder import encoder
from keras_bert_lab.errors import UserError
from keras_bert_lab.testing import tiny_checkpoint, tiny_config, tiny_task

TARGETS = ("bert", "huggingface", "keras_nlp", "keras_bert_lab")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """46 weights and global_step, in a directory whose name says uncased, as the original's do."""
    return tiny_checkpoint(tmp_path_factory.mktemp("convert") / "uncased_tiny")


def everything(path):
    source = open_checkpoint(path)
    return {name: source.read(name) for name in source.names}


def assert_same(one, other):
    assert list(one) == list(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype and value.shape == other[name].shape
        assert value.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("name", ["tiny_en", "tiny_zh"])
def test_all_the_way_round_is_bit_identical(shared, tmp_path, name):
    """TF1 -> ours -> Hugging Face -> ours -> TF1, config and vocabulary included."""
    at = start = shared(f"oracle/{name}")
    for step, to in enumerate(("keras_bert_lab", "huggingface", "keras_bert_lab", "bert")):
        audit = convert(at, tmp_path / f"{step}", to)
        at = tmp_path / f"{step}"
    assert audit.counts == {"tiny_en": "62 used", "tiny_zh": "39 used"}[name]
    assert_same(everything(start), everything(at))
    assert open_checkpoint(at).config == open_checkpoint(start).config
    before, after = (json.loads((p / "bert_config.json").read_text()) for p in (start, at))
    assert after == before
    assert (at / "vocab.txt").read_bytes() == (start / "vocab.txt").read_bytes()

    theirs, ours = (tf.train.load_checkpoint(str(p / "bert_model.ckpt")) for p in (start, at))
    weights = {k: v for k, v in theirs.get_variable_to_shape_map().items() if "adam_" not in k and k != "global_step"}
    assert ours.get_variable_to_shape_map() == weights
    assert ours.get_variable_to_dtype_map() == {k: theirs.get_variable_to_dtype_map()[k] for k in weights}
    for key in weights:
        assert ours.get_tensor(key).tobytes() == theirs.get_tensor(key).tobytes()


def test_straight_to_hugging_face_and_back(tiny, tmp_path):
    convert(tiny, tmp_path / "hf", "huggingface")
    convert(tmp_path / "hf" / "model.safetensors", tmp_path / "tf1", "bert")
    assert_same(everything(tiny), everything(tmp_path / "tf1"))


@pytest.mark.parametrize("to", TARGETS)
def test_certificate(tiny, tmp_path, to):
    said = []
    audit = convert(tiny, tmp_path / "x", to, verify=True, say=said.append)
    used = 39 if to == "keras_nlp" else 46
    assert len(audit.loaded) == used and audit.ignored == {"optimizer": ["global_step"]}
    assert len(audit.unused) == 46 - used
    parity = json.loads((tmp_path / "x" / "parity.json").read_text())
    assert parity["equal"] is True and parity["format"] == to
    assert parity["tensors"] == {"compared": used, "bit_identical": used}
    layers = {"embedding", "layer_0", "layer_1", "sequence", "pooled"}
    assert set(parity["largest_difference"]) == (layers if to == "keras_nlp" else layers | {"mlm_logits", "nsp_logits"})
    assert max(parity["largest_difference"].values()) <= (1e-5 if to == "keras_nlp" else 0)
    assert f"{used} of {used} tensors bit-identical" in said[1]
    print(f"{to}: {said[1]}")


def test_a_certificate_that_fails_leaves_nothing(tiny, tmp_path, monkeypatch):
    def spoiled(source, written, folder, tick):
        notes = writers.write_huggingface(source, written, folder, tick)
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-2] ^= 0x40
        (folder / "model.safetensors").write_bytes(data)
        return notes

    monkeypatch.setitem(writers.WRITERS, "huggingface", spoiled)
    with pytest.raises(UserError, match="not written, because it is not the same network: 45 of 46"):
        convert(tiny, tmp_path / "x", "huggingface", verify=True)
    assert list(tmp_path.iterdir()) == []


def test_exact_gelu_is_not_what_keras_nlp_computes(tiny, tmp_path):
    copy = tmp_path / "exact"
    shutil.copytree(tiny, copy)
    (copy / "bert_config.json").unlink()
    (copy / "config.json").write_text(json.dumps(tiny_config(hidden_act="gelu").to_dict("huggingface")))
    assert open_checkpoint(copy).config.hidden_act == "gelu"
    with pytest.raises(UserError, match=r"not the same network.*keras_nlp cannot say hidden_act"):
        convert(copy, tmp_path / "nlp", "keras_nlp", verify=True)
    audit = convert(copy, tmp_path / "bert", "bert", verify=True)  # ours reads the key that the original ignores
    assert any("hidden_act" in note for note in audit.notes)
    assert open_checkpoint(tmp_path / "bert").config.hidden_act == "gelu"


# ---------------------------------------------------------------------------------- read by those who own the format


def test_tf1_code_loads_what_we_write(tiny, tmp_path):
    convert(tiny, tmp_path / "out", "bert")
    prefix, v1 = str(tmp_path / "out" / "bert_model.ckpt"), tf.compat.v1
    want = tf.train.load_checkpoint(str(tiny / "bert_model.ckpt"))
    keys = [
        "bert/embeddings/word_embeddings",
        "bert/encoder/layer_1/output/dense/kernel",
        "cls/predictions/output_bias",
    ]
    for restore in ("saver", "init_from_checkpoint"):
        with tf.Graph().as_default(), v1.Session() as session:
            made = {k: v1.get_variable(k, want.get_tensor(k).shape, use_resource=False) for k in keys}
            if restore == "saver":
                v1.train.Saver(made).restore(session, prefix)
            else:
                v1.train.init_from_checkpoint(prefix, {k: k for k in keys})
                session.run(v1.global_variables_initializer())
            for key, variable in made.items():
                np.testing.assert_array_equal(session.run(variable), want.get_tensor(key))


def test_the_reference_reader_takes_our_safetensors(tiny, tmp_path):
    from safetensors import safe_open

    convert(tiny, tmp_path / "hf", "huggingface")
    source = open_checkpoint(tiny)
    with safe_open(tmp_path / "hf" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert len(file.keys()) == 46
        kernel = file.get_tensor("bert.encoder.layer.1.intermediate.dense.weight")
        np.testing.assert_array_equal(kernel, source.read("encoder/layer_1/intermediate/dense/kernel").T)
        assert kernel.shape == (64, 32)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"] and config["hidden_act"] == "gelu_new"
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["do_lower_case"] is True
    assert (tmp_path / "hf" / "vocab.txt").read_bytes() == (tiny / "vocab.txt").read_bytes()


def test_keras_nlp_preset(tiny, tmp_path):
    keras_nlp = pytest.importorskip("keras_nlp")
    convert(tiny, tmp_path / "nlp", "keras_nlp")
    backbone = keras_nlp.models.BertBackbone.from_preset(str(tmp_path / "nlp"))
    weights = {w.path: np.asarray(w) for w in backbone.weights}
    kernel = open_checkpoint(tiny).read("encoder/layer_0/attention/self/key/kernel")
    np.testing.assert_array_equal(
        weights["transformer_layer_0/self_attention_layer/key/kernel"].reshape(32, 32), kernel
    )
    tokenizer = keras_nlp.models.BertTokenizer.from_preset(str(tmp_path / "nlp"))
    assert tokenizer.lowercase is True and tokenizer.vocabulary_size() == tiny_config().vocab_size
    assert (tmp_path / "nlp/assets/tokenizer/vocabulary.txt").read_bytes() == (tiny / "vocab.txt").read_bytes()
    convert(tmp_path / "nlp", tmp_path / "back", "bert")
    kept = {name: value for name, value in everything(tiny).items() if not name.startswith("cls/")}
    assert_same(kept, everything(tmp_path / "back"))


def test_a_saved_task_leaves_as_its_class_of_transformers(tmp_path):
    task = tiny_task(labels=["bad", "good", "so so"])
    task.save(tmp_path / "task")
    audit = convert(tmp_path / "task", tmp_path / "hf", "huggingface", verify=True)
    assert {"classifier/kernel", "classifier/bias"} <= set(audit.loaded)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "so so"} and config["label2id"]["so so"] == 2
    source = open_checkpoint(tmp_path / "hf")
    np.testing.assert_array_equal(
        source.read("classifier/kernel"), open_checkpoint(tmp_path / "task").read("classifier/kernel")
    )
    with pytest.raises(UserError, match="is a saved task of this package already"):
        convert(tmp_path / "task", tmp_path / "x", "keras_bert_lab")
    mean = tiny_task(labels=["bad", "good"], pooling="mean")
    mean.save(tmp_path / "mean")
    audit = convert(tmp_path / "mean", tmp_path / "mean-hf", "huggingface")
    assert set(audit.unused) == {"classifier/kernel", "classifier/bias"}  # theirs sees the pooler, this one the mean


CLASSES = {
    "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
}


@pytest.mark.parametrize(("kind", "name"), CLASSES.items())
def test_stranded_tensorflow_files_come_home(shared, tmp_path, kind, name):
    """tf_model.h5 -> a directory that today's transformers reads, with its labels."""
    convert(shared(f"oracle/hf_tf/{kind}"), tmp_path / "hf", "huggingface", verify=True)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    before = json.loads(shared(f"oracle/hf_tf/{kind}/config.json").read_text())
    assert config["architectures"] == [name] and config.get("id2label") == before.get("id2label")
    assert_same(everything(shared(f"oracle/hf_tf/{kind}")), everything(tmp_path / "hf"))


# ------------------------------------------------------------------------------------------------------ refusals


def test_nothing_is_written_over(tiny, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"exists and is not empty.*--overwrite"):
        convert(tiny, out, "huggingface")
    assert (out / "thesis.txt").read_text() == "mine"
    convert(tiny, out, "huggingface", overwrite=True)
    for there in (out, tmp_path):
        with pytest.raises(UserError, match="holds the checkpoint that is read"):
            convert(out, there, "bert", overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]


@pytest.mark.parametrize("to", TARGETS)
def test_a_failure_half_way_leaves_nothing(tiny, tmp_path, to):
    source = open_checkpoint(tiny)
    read, count = source.read, 0

    def breaking(name):
        nonlocal count
        count += 1
        if count > 20:
            raise UserError(name, "cannot be read")
        return read(name)

    source.read = breaking
    with pytest.raises(UserError, match="cannot be read"):
        convert(source, tmp_path / "x", to)
    assert list(tmp_path.iterdir()) == []


def test_incomplete_and_strange_checkpoints(tiny, tmp_path):
    reader = tf.train.load_checkpoint(str(tiny / "bert_model.ckpt"))
    tensors = {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}

    def changed(name, changes):
        folder = tmp_path / name
        shutil.copytree(tiny, folder)
        left = {k: v for k, v in (tensors | changes).items() if v is not None}
        arrays = {k: (np.shape(v), lambda v=v: v) for k, v in left.items() if k != "global_step"}
        bundles.write(folder / "bert_model.ckpt", arrays)
        return folder

    for name, changes, said in (
        ("a", {"bert/encoder/layer_0/output/dense/bias": None}, r"missing .*: encoder/layer_0/output/dense/bias"),
        ("b", {"cls/predictions/output_bias": None}, r"missing .*: cls/predictions/output_bias"),
        ("c", {"my/head": np.ones((2, 2), "f")}, r"unexpected .*: my/head.*--ignore"),
        ("d", {"bert/pooler/dense/bias": np.ones(3, "f")}, r"pooler/dense/bias is \[3\] in the file, \[32\]"),
        ("e", {"output_bias": np.ones(3, "f")}, r"missing .*: classifier/kernel"),
    ):
        folder = changed(name, changes)
        with pytest.raises(UserError, match=said):
            convert(folder, tmp_path / "x", "huggingface")
        assert not (tmp_path / "x").exists()
    audit = convert(tmp_path / "c", tmp_path / "x", "huggingface", ignore=["my/*"])
    assert audit.ignored["on request"] == ["my/head"]
    no_pooler = changed("f", {f"bert/pooler/dense/{w}": None for w in ("kernel", "bias")})
    with pytest.raises(UserError, match="has no pooler, and a BertBackbone always has one"):
        convert(no_pooler, tmp_path / "y", "keras_nlp")
    assert convert(no_pooler, tmp_path / "y", "bert", verify=True).notes


def test_what_cannot_be_written(tiny, tmp_path):
    with pytest.raises(UserError, match="'model_garden' cannot be written; choose one of bert"):
        convert(tiny, tmp_path / "x", "model_garden")
    for changes in ({"norm_position": "pre"}, {"hidden_act": "swiglu"}, {"position_embedding": "rotary"}):
        model = encoder(tiny_config(**changes))
        audit = convert(model, tmp_path / "ours", "keras_bert_lab", verify=True, overwrite=True)
        assert len(audit.loaded) == len(model.weights)
        with pytest.raises(UserError, match=r"huggingface has no place for (encoder/|position_embedding)"):
            convert(model, tmp_path / "x", "huggingface")
    assert not (tmp_path / "x").exists()


def test_pruned_heads_travel(tmp_path):
    model = encoder(tiny_config(attention_heads=((1,), (0, 1))))
    for to in ("keras_bert_lab", "huggingface", "bert"):
        convert(model, tmp_path / to, to, verify=True)
        assert open_checkpoint(tmp_path / to).config.attention_heads == ((1,), (0, 1))
    assert json.loads((tmp_path / "huggingface" / "config.json").read_text())["pruned_heads"] == {"0": [0]}
    with pytest.raises(UserError, match="pruned heads, which a BertBackbone cannot have"):
        convert(model, tmp_path / "nlp", "keras_nlp")


# -------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("to", TARGETS)
def test_one_tensor_at_a_time(tiny, tmp_path, to, one_at_a_time):
    source = open_checkpoint(tiny)
    read = one_at_a_time(source)
    convert(source, tmp_path / "x", to)
    assert len(read) == len(source.names) - (7 if to == "keras_nlp" else 0)


def test_progress(tiny, tmp_path):
    for to in TARGETS:
        steps: list[tuple[int, int]] = []
        audit = convert(tiny, tmp_path / to, to, tick=lambda done, total, name, s=steps: s.append((done, total)))
        assert len(steps) == len(audit.loaded) and steps == sorted(steps)
        source = open_checkpoint(tiny)
        assert steps[-1] == (sum(4 * source.read(name).size for name in audit.loaded),) * 2


@pytest.mark.slow
def test_names_and_shapes_of_the_real_bert_base(tmp_path):
    """uncased_L-12_H-768_A-12: 206 tensors, 110 M parameters, fabricated; all the way round."""
    config = BertConfig(vocab_size=30522)
    theirs, rng = names.foreign_names("bert", 12), np.random.default_rng(0)
    shapes = {theirs[n]: s for n, s in names.shapes(config).items() if not n.startswith("cls/squad/")}
    assert len(shapes) == 206 and sum(int(np.prod(s)) for s in shapes.values()) == 110_106_428
    folder = tmp_path / "uncased_L-12_H-768_A-12"
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps(config.to_dict("bert")))
    tensors = {k: ((s), (lambda s=s: rng.random(s, np.float32) - 0.5)) for k, s in shapes.items()}
    bundles.write(folder / "bert_model.ckpt", tensors)

    def digest(path):
        reader, total = tf.train.load_checkpoint(str(path / "bert_model.ckpt")), hashlib.sha256()
        for key in sorted(reader.get_variable_to_shape_map()):
            total.update(key.encode() + reader.get_tensor(key).tobytes())
        return total.hexdigest()

    at, want = folder, digest(folder)
    size = (folder / "bert_model.ckpt.data-00000-of-00001").stat().st_size
    # VmHWM is the peak of this program alone; ru_maxrss would count the parent that it was forked from
    code = "import sys; from keras_bert_lab import convert; print(convert(*sys.argv[1:]).counts); "
    code += "print(next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    for step, to in enumerate(("keras_bert_lab", "huggingface", "keras_bert_lab", "bert")):
        command = [sys.executable, "-c", code, str(at), str(tmp_path / str(step)), to]
        counts, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        print(f"{at.name} -> {to}: peak memory {int(peak) / size:.2f} x the file, Python included")
        assert counts == "206 used" and int(peak) <= 1.5 * size
        shutil.rmtree(at)
        at = tmp_path / str(step)
    assert digest(at) == want


# ------------------------------------------------------------------------------------------------------ the tool


def call(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "keras_bert_lab.tools.main", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip


def test_tool(tiny, tmp_path):
    done = call("convert", tiny, tmp_path / "out", "--to=huggingface", "--verify")
    assert done.returncode == 0, done.stderr
    assert "46 used, 1 skipped (optimizer)" in done.stdout and "46 of 46 tensors bit-identical" in done.stdout
    assert f"written: {tmp_path / 'out'} (huggingface)" in done.stdout
    again = call("convert", tiny, tmp_path / "out", "--to=huggingface")
    assert again.returncode == 1 and "Traceback" not in again.stderr
    assert (
        again.stderr.strip().splitlines()[-1].startswith("keras-bert-lab convert: ") and "--overwrite" in again.stderr
    )
    wrong = call("convert", tiny)
    assert wrong.returncode == 2 and "takes SRC DST" in wrong.stderr


def test_describe(tiny, tmp_path):
    done = call("describe", tiny)
    assert done.returncode == 0, done.stderr
    assert (
        "46 tensors" in done.stdout and "encoder 32, pooler 2, cls/predictions 5, cls/seq_relationship 2" in done.stdout
    )
    assert "skipped: 1 optimizer (global_step)" in done.stdout and '"num_hidden_layers": 2' in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("encoder/layer_1/output/dense/kernel"))
    assert row.split()[1:] == ["64x32", "float32", "bert/encoder/layer_1/output/dense/kernel"]
    (tmp_path / "x").mkdir()
    bundles.write(tmp_path / "x" / "m.ckpt", {"q/bert/pooler/dense/bias": ((2,), lambda: np.ones(2, "f"))})
    done = call("describe", tmp_path / "x" / "m.ckpt")
    assert done.returncode == 0 and "unexpected, loading refuses: q/bert/pooler/dense/bias" in done.stdout
    assert "pooler/dense/bias" in call("describe", tmp_path / "x", "--scope=q/").stdout.split("tensors")[0]


def test_the_tool_offers_the_formats_that_there_are():
    from keras_bert_lab.tools import _flags, convert

    assert tuple(convert.WRITTEN) == checkpoint.TARGETS
    assert tuple(_flags.FLAGS["from"].parser.enum_values) == names.FORMATS


def test_convert_is_what_the_package_offers():
    import keras_bert_lab

    assert keras_bert_lab.convert is checkpoint.convert
