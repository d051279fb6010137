"""Reading every format against the oracle's numbers; what loading reports, refuses and never leaves to chance.

The checkpoints that the oracle has not are written here by a TF1 Saver in a graph, as the original code writes them.
"""

import json
import shutil
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import checkpoint, names
from keras_bert_lab.checkpoint import convert, load, open_checkpoint
from keras_bert_lab.encoder import encode, encoder, mlm_logits, nsp_logits
from keras_bert_lab.errors import UserError
from keras_bert_lab.testing import tiny_config, tiny_vocabulary

TOLERANCE = 1e-5
GOLDEN = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def save_tf1(prefix, tensors, global_step=None, **options):
    """What `tf.train.Saver` of the original's graph leaves on disk."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in tensors.items():
            v1.get_variable(name, initializer=value, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver(**options).save(session, str(prefix), global_step=global_step)


def fabricate(config, seed=0):
    """Random tensors by the original's names; nothing is symmetric, zero or one."""
    rng, theirs = np.random.default_rng(seed), names.foreign_names("bert", config.num_hidden_layers)
    return {
        theirs[name]: (rng.normal(0, 0.2, shape) + name.endswith("gamma")).astype(np.float32)
        for name, shape in names.shapes(config).items()
        if not name.startswith("cls/squad/")
    }


def slots(tensors):
    more = {f"{name}/{slot}": np.zeros_like(value) for name, value in tensors.items() for slot in ("adam_m", "adam_v")}
    return {**more, "global_step": np.int64(7)}


def beside(folder, config, entries=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps(config.to_dict("bert")))
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in (entries or tiny_vocabulary())), "utf-8")
    return folder


@pytest.fixture(scope="module")
def config():
    return tiny_config()


@pytest.fixture(scope="module")
def tensors(config):
    made = fabricate(config)
    assert len(made) == 46  # 14 + 16 x 2
    return made


@pytest.fixture(scope="module")
def tf1(tmp_path_factory, config, tensors):
    """The tiny fixture, plain and in mid-training."""
    folder = tmp_path_factory.mktemp("tf1")
    save_tf1(beside(folder / "plain", config) / "bert_model.ckpt", tensors)
    save_tf1(beside(folder / "slots", config) / "bert_model.ckpt", tensors | slots(tensors))
    return folder


def pretraining(config):
    """Encoder, pooler and both pre-training heads: 46 tensors of the tiny fixture."""
    encoded = encode(config)
    outputs = {"sequence": encoded.sequence, "pooled": encoded.pooled}
    return keras.Model(encoded.inputs, outputs | {"mlm": mlm_logits(encoded), "nsp": nsp_logits(encoded)})


def classifier(config, labels):
    encoded = encode(config)
    return keras.Model(encoded.inputs, keras.layers.Dense(labels, name="classifier")(encoded.pooled))


@pytest.fixture(scope="module")
def ids(config):
    rng = np.random.default_rng(1)
    return {
        "input_ids": rng.integers(1, config.vocab_size, (3, 11), np.int32),
        "attention_mask": (np.arange(11) < [[11], [5], [8]]).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (3, 11), np.int32),
    }


def run(model, batch):
    out = model(batch, training=False)
    return {name: np.asarray(value) for name, value in out.items()} if isinstance(out, dict) else np.asarray(out)


def golden(path, batch):
    with np.load(path) as file:
        inputs = {ours: file[f"{batch}.{theirs}"] for ours, theirs in GOLDEN.items() if f"{batch}.{theirs}" in file}
        outputs = {k.removeprefix(f"{batch}."): file[k] for k in file.files if k.startswith(f"{batch}.")}
    return inputs, outputs


def gap(one, other):
    return float(np.max(np.abs(np.asarray(one) - np.asarray(other))))


# ------------------------------------------------------------------------------------ every format, the oracle's


@pytest.mark.parametrize(
    ("where", "format", "reference"),
    [
        ("tiny_en", "bert", "tiny_en"),
        ("tiny_zh", "bert", "tiny_zh"),
        ("hf", "huggingface", "tiny_en"),
        ("hf/pytorch_model.bin", "huggingface", "tiny_en"),
        ("hf/legacy", "huggingface", "tiny_en"),
        ("hf_tf/pretraining", "huggingface", "tiny_en"),
        ("hf_tf/sequence", "huggingface", "tiny_en"),
        ("model_garden", "model_garden", "tiny_en"),
    ],
)
def test_outputs_equal_the_originals(shared, where, format, reference):
    source = open_checkpoint(shared(f"oracle/{where}"))
    assert source.format == format
    assert source.config.hidden_act == "gelu_new"  # each format says it in its own way
    model = encoder(source.config, hidden_states=True)
    audit = load(model, source)
    worst = 0.0
    for batch in ("b0", "b1", "full", "rand", "one"):
        inputs, want = golden(shared(f"oracle/{reference}/golden.npz"), batch)
        got = run(model, inputs)
        worst = max(worst, gap(got["sequence"], want["sequence_output"]), gap(got["pooled"], want["pooled_output"]))
        worst = max(
            worst, *(gap(got[f"layer_{i}"], want[f"encoder_layer_{i}"]) for i in range(source.config.num_hidden_layers))
        )
    print(f"{where}: {audit.counts}; largest difference {worst:.2e}")
    assert worst <= TOLERANCE


def test_model_garden_equals_its_own_encoder(shared):
    source = open_checkpoint(shared("oracle/model_garden/bert_encoder.ckpt-1.index"))
    model = encoder(source.config, hidden_states=True)
    audit = load(model, source)
    assert audit.counts == "55 used, 2 skipped (1 bookkeeping, 1 optimizer)"
    inputs, _ = golden(shared("oracle/tiny_en/golden.npz"), "b1")
    with np.load(shared("oracle/model_garden/outputs.npz")) as want:
        got = run(model, inputs)
        assert gap(got["layer_2"], want["b1.encoder_layer_2"]) <= TOLERANCE
        assert gap(got["pooled"], want["b1.pooled_output"]) <= TOLERANCE


def test_pretraining_heads_of_every_format(shared):
    inputs, want = golden(shared("oracle/tiny_en/golden.npz"), "b0")
    for where in ("tiny_en", "hf", "hf/legacy", "hf_tf/pretraining"):
        source = open_checkpoint(shared(f"oracle/{where}"))
        model = pretraining(source.config)
        assert len(load(model, source).loaded) == 62
        got = run(model, inputs)
        at = np.take_along_axis(got["mlm"], want["masked_lm_positions"][..., None], 1)
        mlm, nsp = tf.nn.log_softmax(at).numpy(), tf.nn.log_softmax(got["nsp"]).numpy()
        worst = max(gap(mlm, want["mlm_log_probs"]), gap(nsp, want["nsp_log_probs"]))
        print(f"{where}: largest difference of the heads {worst:.2e}")
        assert worst <= TOLERANCE


@pytest.mark.parametrize(("kind", "labels"), [("sequence", 3), ("token", 5), ("qa", 2)])
def test_heads_of_the_stranded_tensorflow_files(shared, kind, labels):
    source = open_checkpoint(shared(f"oracle/hf_tf/{kind}/tf_model.h5"))
    encoded = encode(source.config)
    if kind == "qa":
        rows = keras.layers.Dense(2, name="dummy")(encoded.sequence)
        model = keras.Model(encoded.inputs, {"sequence": encoded.sequence, "rows": rows})
        load(model, source, fresh=["dummy/*"])
    else:
        site = encoded.pooled if kind == "sequence" else encoded.sequence
        model = keras.Model(encoded.inputs, keras.layers.Dense(labels, name="classifier")(site))
        assert not load(model, source).unused
    inputs, _ = golden(shared("oracle/tiny_en/golden.npz"), "b0")
    got = run(model, inputs)
    with np.load(shared("oracle/hf_tf/outputs.npz")) as want:
        if kind == "qa":
            kernel, bias = source.read("cls/squad/output_weights"), source.read("cls/squad/output_bias")
            logits = got["sequence"] @ kernel.T + bias
            assert gap(logits[..., 0], want["qa.start_logits"]) <= TOLERANCE
            assert gap(logits[..., 1], want["qa.end_logits"]) <= TOLERANCE
        else:
            assert gap(got, want[f"{kind}.logits"]) <= TOLERANCE


def test_keras_nlp_preset_and_object(tmp_path, ids):
    keras_nlp = pytest.importorskip("keras_nlp")
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=200, num_layers=3, num_heads=2, hidden_dim=12, intermediate_dim=20, max_sequence_length=16
    )
    for k, weight in enumerate(backbone.weights):
        weight.assign(np.random.default_rng(k).normal(0, 0.3, weight.shape))
    backbone.save_to_preset(str(tmp_path / "preset"))
    batch = {**ids, "input_ids": ids["input_ids"] % 200}
    theirs = {"input_ids": "token_ids", "attention_mask": "padding_mask", "token_type_ids": "segment_ids"}
    want = run(backbone, {theirs[name]: value for name, value in batch.items()})
    for place in (tmp_path / "preset", tmp_path / "preset" / "model.weights.h5", backbone):
        source = open_checkpoint(place)
        assert source.format == "keras_nlp" and source.config.intermediate_size == 20
        model = encoder(source.config)
        assert load(model, source).counts == "55 used"
        got = run(model, batch)
        assert gap(got["sequence"], want["sequence_output"]) <= TOLERANCE
        assert gap(got["pooled"], want["pooled_output"]) <= TOLERANCE


# ------------------------------------------------------------------------------------- O06: TF1, every way named


def test_ten_ways_to_name_it_ten_equal_outputs(tf1, config, ids):
    outputs, reports = [], []
    for stage in ("plain", "slots"):
        prefix = f"{tf1}/{stage}/bert_model.ckpt"
        for path in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001", f"{prefix}.meta", tf1 / stage):
            model = pretraining(config)
            reports.append(load(model, path).counts)
            outputs.append(run(model, ids))
    assert reports == ["46 used"] * 5 + ["46 used, 93 skipped (optimizer)"] * 5
    for other in outputs[1:]:
        for name, value in other.items():
            np.testing.assert_array_equal(value, outputs[0][name])


def test_directory_with_several_checkpoints(tmp_path, config, tensors):
    folder = beside(tmp_path / "train", config)
    for step in (900, 1000, 20):
        scaled = {name: value * (step / 1000) for name, value in tensors.items()}
        save_tf1(folder / "model.ckpt", scaled, global_step=step, max_to_keep=9)
        (folder / "checkpoint").rename(tmp_path / f"checkpoint-{step}")
    source = open_checkpoint(folder)
    assert source.path.endswith("model.ckpt-1000")
    assert source.notes == ["read model.ckpt-1000, the highest step of 3 checkpoints"]

    shutil.copy(tmp_path / "checkpoint-900", folder / "checkpoint")
    for path in (folder, folder / "checkpoint"):
        source = open_checkpoint(path)
        assert source.path.endswith("model.ckpt-900")
        assert "read model.ckpt-900, which the file 'checkpoint' names" in str(source.audit())

    moved = folder.rename(tmp_path / "moved")  # the file 'checkpoint' may name a place that is no more
    (moved / "checkpoint").write_text('model_checkpoint_path: "/home/somebody/model.ckpt-20"\n')
    assert open_checkpoint(moved).path.endswith("moved/model.ckpt-20")
    (moved / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"\n')
    source = open_checkpoint(moved)
    assert source.path.endswith("model.ckpt-1000") and "names model.ckpt-5, which is not there" in source.notes[0]

    (moved / "checkpoint").unlink()
    for name in ("a.index", "b.index"):
        (moved / name).touch()
    for path in moved.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(UserError, match="several checkpoints and nothing says which: a, b"):
        open_checkpoint(moved)


def test_missing_files_are_named(tmp_path, config, tensors):
    folder = beside(tmp_path / "a", config)
    save_tf1(folder / "bert_model.ckpt", tensors)
    data, index = folder / "bert_model.ckpt.data-00000-of-00001", folder / "bert_model.ckpt.index"
    data.rename(tmp_path / "data")
    for path in (folder, folder / "bert_model.ckpt", index):
        with pytest.raises(UserError, match=r"bert_model.ckpt.data-00000-of-00001: missing"):
            open_checkpoint(path)
    (tmp_path / "data").rename(data)
    index.unlink()
    for path in (folder, data, folder / "bert_model.ckpt"):
        with pytest.raises(UserError, match=r"bert_model.ckpt.index: missing"):
            open_checkpoint(path)
    with pytest.raises(UserError, match=r"no such checkpoint; in .*a there are: bert_config.json"):
        open_checkpoint(folder / "bert.ckpt")
    with pytest.raises(UserError, match=r"holds no checkpoint \(there are: x.txt\)"):
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "x.txt").touch()
        open_checkpoint(tmp_path / "b")
    with pytest.raises(UserError, match="is packed"):
        (tmp_path / "uncased_L-12.zip").touch()
        open_checkpoint(tmp_path / "uncased_L-12.zip")


def test_damaged_files(tf1, tmp_path, config):
    folder = tmp_path / "cut"
    shutil.copytree(tf1 / "plain", folder)
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[:4000])
    with pytest.raises(UserError, match=r"cannot be read.*cut off"):
        load(pretraining(config), folder)
    data.write_bytes(whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:])  # one bit
    with pytest.raises(UserError, match="the checksum does not fit"):
        load(pretraining(config), folder)
    (folder / "bert_model.ckpt.index").write_bytes(b"<html>not found</html>" * 9)
    with pytest.raises(UserError, match="not a readable checkpoint index"):
        open_checkpoint(folder)


def test_shards(tmp_path, config, tensors, ids):
    folder = beside(tmp_path / "shards", config)
    parts = [dict(list(tensors.items())[k::3]) for k in range(3)]
    for k, part in enumerate(parts):
        tf.raw_ops.SaveV2(prefix=f"{folder}/p{k}", tensor_names=list(part), shape_and_slices=[""] * len(part),
                          tensors=[tf.constant(v) for v in part.values()])  # fmt: skip
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[f"{folder}/p{k}" for k in range(3)],
        destination_prefix=f"{folder}/bert_model.ckpt",
        delete_old_dirs=False,
    )
    model = pretraining(config)
    assert load(model, folder).counts == "46 used"
    (folder / "bert_model.ckpt.data-00001-of-00003").unlink()
    with pytest.raises(UserError, match="data-00001-of-00003: missing: 1 of 3"):
        open_checkpoint(folder)


# -------------------------------------------------------------------------------------- O07: missing, other heads


def write(folder, config, tensors):
    save_tf1(beside(folder, config) / "bert_model.ckpt", tensors)
    return folder


def test_without_the_pretraining_heads(tmp_path, config, tensors):
    path = write(tmp_path / "a", config, {k: v for k, v in tensors.items() if not k.startswith("cls/")})
    audit = load(encoder(config), path)
    assert audit.missing == [] and len(audit.loaded) == 39
    with pytest.raises(UserError) as error:
        load(pretraining(config), path)
    for name in ("output_bias", "transform/dense/kernel", "transform/dense/bias", "LayerNorm/gamma", "LayerNorm/beta"):
        assert f"cls/predictions/{name.replace('LayerNorm', 'transform/LayerNorm')}" in str(error.value)
    assert "missing in the file (7)" in str(error.value)  # 5 of the MLM, 2 of the NSP; the tied table is there
    with pytest.warns(UserWarning, match=r"freshly initialized.*cls/predictions/output_bias"):
        audit = load(pretraining(config), path, strict=False)
    assert len(audit.missing) == 7
    audit = load(pretraining(config), path, fresh=["cls/*"])
    assert len(audit.fresh) == 7 and "freshly initialized: cls/predictions" in str(audit)


def test_without_the_pooler(tmp_path, config, tensors, tf1, ids):
    path = write(tmp_path / "a", config, {k: v for k, v in tensors.items() if "pooler" not in k})
    bare, whole = encoder(config, pooler=False), pretraining(config)
    assert load(bare, path).missing == []
    load(whole, tf1 / "plain")
    assert gap(run(bare, ids)["sequence"], run(whole, ids)["sequence"]) <= TOLERANCE
    for model in (classifier(config, 2), pretraining(config)):
        with pytest.raises(UserError, match="pooler/dense/kernel"):
            load(model, path, fresh=["classifier/*"])


def test_another_number_of_labels(tmp_path, config, tensors):
    rng = np.random.default_rng(3)
    head = {"output_weights": rng.normal(size=(3, 32)).astype("f"), "output_bias": rng.normal(size=3).astype("f")}
    path = write(tmp_path / "a", config, {k: v for k, v in tensors.items() if k.startswith("bert/")} | head)
    fitting = classifier(config, 3)
    load(fitting, path)
    np.testing.assert_array_equal(fitting.get_layer("classifier").kernel, head["output_weights"].T)
    other = classifier(config, 2)
    before = [np.asarray(w) for w in other.weights]
    with pytest.raises(UserError, match=r"classifier/kernel is \[32, 3\] .* \[32, 2\] .*3 labels against 2"):
        load(other, path, fresh=["classifier/*"])
    assert all(np.array_equal(a, b) for a, b in zip(before, other.weights, strict=True))  # nothing was half loaded
    with pytest.raises(UserError, match="3 labels against 2"):
        load(other, path, strict=False)
    audit = load(other, path, fresh=["classifier/*"], fresh_head=True)
    assert audit.fresh == ["classifier/kernel", "classifier/bias"] and audit.unused == audit.fresh
    audit = load(encoder(config), path)
    assert audit.unused == ["classifier/kernel", "classifier/bias"] and "not used by this model" in str(audit)


def test_other_names_are_an_error_not_a_random_model(tmp_path, config, tensors):
    path = write(tmp_path / "a", config, {f"x/{name}": value for name, value in tensors.items()})
    for options in ({}, {"strict": False}, {"fresh": ["*"]}):
        with pytest.raises(UserError, match=r"0 of 46 .*say under which scope: scope='x/'"):
            load(pretraining(config), path, **options)
    assert load(pretraining(config), path, scope="x/").counts == "46 used"
    path = write(tmp_path / "b", config, {f"t{k}": value for k, value in enumerate(tensors.values())})
    with pytest.raises(UserError, match="0 of 46"):
        load(pretraining(config), path)


def test_unexpected_tensors(tmp_path, config, tensors):
    path = write(tmp_path / "a", config, tensors | {"my_head/kernel": np.ones((2, 2), "f")})
    with pytest.raises(UserError, match=r"unexpected in the file \(1\): my_head/kernel"):
        load(pretraining(config), path)
    audit = load(pretraining(config), path, ignore=["my_head/*"])
    assert audit.counts == "46 used, 1 skipped (on request)"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load(pretraining(config), path, strict=False)
    assert "my_head/kernel" in str(said[0].message)


def test_a_model_with_fewer_layers_does_not_cut_the_rest_off(tf1, config):
    small = encoder(config.replace(num_hidden_layers=1))
    with pytest.raises(UserError, match=r"unexpected in the file \(16\): encoder/layer_1/"):
        load(small, tf1 / "plain")


def test_all_three_lists_at_once(tmp_path, config, tensors):
    broken = dict(tensors) | {"stranger": np.ones(3, "f"), "bert/pooler/dense/bias": np.ones(31, "f")}
    del broken["bert/encoder/layer_1/output/dense/bias"]
    with pytest.raises(UserError) as error:
        load(pretraining(config), write(tmp_path / "a", config, broken))
    said = str(error.value)
    assert "missing in the file (1): encoder/layer_1/output/dense/bias" in said
    assert "unexpected in the file (1): stranger" in said
    assert "pooler/dense/bias is [31] in the file, [32] in the model" in said


# --------------------------------------------------------------------------------------------- O08: Hugging Face


def styles(tensors, config):
    """The four generations of names, each with position_ids."""
    table = {
        theirs: names.foreign_names("huggingface", 2)[ours] for ours, theirs in names.foreign_names("bert", 2).items()
    }
    for prefix in (True, False):
        for old in (True, False):
            out = {}
            for name, value in tensors.items():
                if not name.startswith("bert/"):
                    continue
                key = table[name] if prefix else table[name].removeprefix("bert.")
                if old and ".LayerNorm." in key:
                    key = key.replace(".weight", ".gamma").replace(".bias", ".beta")
                kernel = name.endswith("kernel")
                out[key] = value.T.copy() if kernel else value
            lead = "bert." if prefix else ""
            yield out | {f"{lead}embeddings.position_ids": np.arange(64)[None]}


def test_four_generations_of_names(tmp_path, config, tensors, tf1, ids):
    from safetensors.numpy import save_file  # the reference writer

    whole = pretraining(config)
    load(whole, tf1 / "plain")
    want = run(whole, ids)
    for k, style in enumerate(styles(tensors, config)):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config.to_dict("huggingface")))
        save_file(style, folder / "model.safetensors")
        for path in (folder, folder / "model.safetensors"):
            model = encoder(config)
            audit = load(model, path)
            assert audit.counts == "39 used, 1 skipped (integer buffer)"
            got = run(model, ids)
            np.testing.assert_array_equal(got["sequence"], want["sequence"])
            np.testing.assert_array_equal(got["pooled"], want["pooled"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sharded_and_half_precision(tmp_path, config, tensors, dtype):
    from ml_dtypes import bfloat16
    from safetensors.numpy import save_file

    kind = bfloat16 if dtype == "bfloat16" else np.float16
    style = {
        key: value.astype(kind) if value.dtype == np.float32 else value
        for key, value in next(styles(tensors, config)).items()
    }
    keys, files = sorted(style), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for k, file in enumerate(files):
        save_file({key: style[key] for key in keys[k::2]}, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict("huggingface")))
    weight_map = {key: files[k % 2] for k, key in enumerate(keys)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    model = encoder(config)
    load(model, tmp_path)
    kernel = tensors["bert/pooler/dense/kernel"]
    got = {v.path: np.asarray(v) for v in model.weights}
    np.testing.assert_array_equal(got["pooler/dense/kernel"], kernel.astype(kind).astype(np.float32))
    (tmp_path / files[1]).unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors: missing"):
        open_checkpoint(tmp_path)


def test_only_a_pickle_is_there_and_said(shared):
    source = open_checkpoint(shared("oracle/hf/legacy"))
    assert "only pytorch_model.bin is there, no safetensors" in str(source.audit())
    assert "pytorch_model.bin lies there too" in str(open_checkpoint(shared("oracle/hf")).audit())


def huggingface_style(tensors):
    """All tensors as transformers' BertForPreTraining stores them, without copies."""
    theirs, ours = names.foreign_names("huggingface", 2), names.foreign_names("bert", 2)
    return {theirs[n]: np.ascontiguousarray(names.from_ours(tensors[b], names.layout("huggingface", n), 2))
            for n, b in ours.items() if b in tensors}  # fmt: skip


def test_an_untied_decoder_is_no_bert(tmp_path, config, tensors):
    from safetensors.numpy import save_file

    style = huggingface_style(tensors)
    table = style["bert.embeddings.word_embeddings.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict("huggingface")))
    save_file(style | {"cls.predictions.decoder.weight": table.copy()}, tmp_path / "model.safetensors")
    assert load(pretraining(config), tmp_path).counts == "46 used, 1 skipped (tied copy)"
    save_file(style | {"cls.predictions.decoder.weight": table * 2}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"cls.predictions.decoder.weight: differs from"):
        load(pretraining(config), tmp_path)
    load(encoder(config), tmp_path)  # where nobody decodes, it does not matter


@pytest.mark.parametrize("said", [False, None])
def test_a_config_that_says_untied(tmp_path, config, tensors, said):
    """Numbers count: an equal copy is a tied network; without a copy the decoder is missing, not the table."""
    from safetensors.numpy import save_file

    style, folder = huggingface_style(tensors), tmp_path / "in"
    folder.mkdir()
    table, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    values = config.to_dict("huggingface") | {"tie_word_embeddings": said}
    (folder / "config.json").write_text(json.dumps(values))

    save_file(style | {decoder: style[table].copy()}, folder / "model.safetensors")
    audit = load(pretraining(config), folder)
    assert [note for note in audit.notes if f"tie_word_embeddings is false, but {decoder} equals {table}" in note]
    convert(folder, tmp_path / "again", "huggingface")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["tie_word_embeddings"] is True  # the table is stored once: transformers must not start another
    load(pretraining(config), tmp_path / "again")

    save_file(style, folder / "model.safetensors")
    for attempt in (lambda: load(pretraining(config), folder), lambda: convert(folder, tmp_path / "x", "bert")):
        with pytest.raises(UserError, match=r"word_embeddings.weight: is the only one of token table and decoder"):
            attempt()
    assert not load(encoder(config), folder).notes  # nobody decodes

    style[decoder] = style.pop(table)  # the decoder's name must not stand in for the table, not even here
    save_file(style, folder / "model.safetensors")
    with pytest.raises(UserError, match="decoder.weight: is the only one"):
        load(encoder(config), folder)
    (folder / "config.json").write_text(json.dumps(config.to_dict("huggingface")))
    assert load(pretraining(config), folder).counts == "46 used"


def test_hdf5_that_points_elsewhere(tmp_path):
    import h5py

    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        file.create_dataset(
            "bert/tf_bert_model/bert/pooler/dense/bias:0", (4,), "f4", external=[(str(tmp_path / "secret"), 0, 16)]
        )
    with pytest.raises(UserError, match="keeps its numbers in another file"):
        open_checkpoint(tmp_path / "tf_model.h5")


# ------------------------------------------------------------------------------ O10 and other contradictions


def test_a_table_larger_than_the_vocabulary_loads(tmp_path, config, tensors, ids):
    more = {
        name: np.concatenate([value, np.full((6, *value.shape[1:]), 1e3, "f")])
        for name, value in tensors.items()
        if name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
    }
    rows = config.vocab_size + 6
    path = write(tmp_path / "a", config.replace(vocab_size=rows), tensors | more)
    assert open_checkpoint(path).config.vocab_size == rows and not open_checkpoint(path).notes
    path = write(tmp_path / "b", config, tensors | more)  # the config of the unpadded table beside the padded one
    source = open_checkpoint(path)
    assert source.config.vocab_size == rows
    assert f"the table has {rows} rows, the config says {config.vocab_size}" in source.notes[0]
    model = pretraining(source.config)
    load(model, source)
    assert run(model, ids)["mlm"].shape[-1] == rows


def test_a_vocabulary_larger_than_the_table_is_an_error(tmp_path, config, tensors):
    entries = [*tiny_vocabulary(), "one", "too", "many"]
    folder = beside(tmp_path / "a", config, entries)
    save_tf1(folder / "bert_model.ckpt", tensors)
    n = config.vocab_size
    with pytest.raises(UserError, match=rf"vocab.txt: has {n + 3} entries, but the checkpoint's table only {n} rows"):
        open_checkpoint(folder)
    (folder / "vocab.txt").write_text(
        "\n".join(tiny_vocabulary()) + "\n\n\n", "utf-8"
    )  # blank lines at the end are none
    open_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 12}, "num_hidden_layers 12, its tensors 2"),
        ({"hidden_size": 64}, "hidden_size 64, its tensors 32"),
        ({"intermediate_size": 65}, "intermediate_size 65, its tensors 64"),
        ({"max_position_embeddings": 512}, "max_position_embeddings 512, its tensors 64"),
        ({"type_vocab_size": 3}, "type_vocab_size 3, its tensors 2"),
        ({"vocab_size": 5000}, "vocab_size 5000, its table has"),
    ],
)
def test_a_config_that_contradicts_the_tensors(tf1, tmp_path, config, change, said):
    folder = tmp_path / "a"
    shutil.copytree(tf1 / "plain", folder)
    (folder / "bert_config.json").write_text(json.dumps(config.to_dict("bert") | change))
    with pytest.raises(UserError, match=said):
        open_checkpoint(folder)


def test_heads_that_no_shape_shows(tf1, config, shared):
    with pytest.raises(UserError, match="has 2 attention heads, the model 4"):
        load(encoder(config.replace(num_attention_heads=4)), tf1 / "plain")
    audit = load(encoder(config.replace(hidden_act="gelu")), tf1 / "plain")
    assert audit.notes == ["the checkpoint's hidden_act is gelu_new, the model's gelu: outputs will differ"]


def test_heads_that_an_axis_shows(shared, tmp_path):
    folder = tmp_path / "garden"
    shutil.copytree(shared("oracle/model_garden"), folder)
    folder.chmod(0o755)
    said = json.loads((folder / "bert_config.json").read_text()) | {"num_attention_heads": 5}
    (folder / "bert_config.json").unlink()
    (folder / "bert_config.json").write_text(json.dumps(said))
    with pytest.raises(UserError, match="num_attention_heads 5, its tensors 4"):
        open_checkpoint(folder)


def test_without_a_config(tf1, tmp_path, config):
    folder = tmp_path / "a"
    shutil.copytree(tf1 / "plain", folder)
    (folder / "bert_config.json").unlink()
    source = open_checkpoint(folder)
    assert load(pretraining(config), source).counts == "46 used"
    with pytest.raises(UserError, match="has no config beside it"):
        _ = source.config


def test_format_is_recognised_and_can_be_said(tf1, shared, tmp_path):
    assert repr(open_checkpoint(tf1 / "plain")).endswith("(original TF1 BERT, TensorFlow checkpoint)>")
    with pytest.raises(UserError, match="choose one of bert, huggingface"):
        open_checkpoint(tf1 / "plain", "tensorflow")
    with pytest.raises(UserError, match="holds no huggingface checkpoint"):
        open_checkpoint(tf1 / "plain", "huggingface")
    both = tmp_path / "both"
    shutil.copytree(tf1 / "plain", both)
    shutil.copy(shared("oracle/hf/model.safetensors"), both)
    assert open_checkpoint(both, "bert").format == "bert"


# ------------------------------------------------------------------------------------------------------- memory


def test_one_tensor_at_a_time(tf1, config, one_at_a_time):
    source = open_checkpoint(tf1 / "slots")
    read = one_at_a_time(source)
    load(pretraining(config), source)
    assert len(read) == 46  # and the slots are never read


def test_fingerprint(tf1):
    one, other = (open_checkpoint(tf1 / stage).fingerprint() for stage in ("plain", "slots"))
    assert one["files"] == ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
    assert one["sha256"] != other["sha256"] and len(one["sha256"]) == 64


def test_public_names():
    import keras_bert_lab

    assert keras_bert_lab.load_checkpoint is checkpoint.load and keras_bert_lab.convert is checkpoint.convert


def test_the_page_in_docs_runs_as_printed(tmp_path, monkeypatch):
    import re
    from pathlib import Path

    from keras_bert_lab.testing import tiny_checkpoint

    page = Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint("uncased_L-12_H-768_A-12")
    session: dict = {}
    exec(compile(code, str(page), "exec"), session)
    assert session["audit"].counts in code
    assert (tmp_path / "bert-hf" / "parity.json").is_file()
