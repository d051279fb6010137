"""The table of names: every row in every column, layouts there and back, and what each format's files may carry."""

import numpy as np
import pytest

from keras_bert_lab import names
from keras_bert_lab.errors import UserError

F32 = "float32"


def resolve(column, keys, **options):
    return names.resolve(column, {key: ((2,), F32) for key in keys}, **options)


@pytest.mark.parametrize("column", names.COLUMNS)
def test_every_name_comes_back_as_itself(column):
    theirs = names.foreign_names(column, 3)
    assert len(set(theirs.values())) == len(theirs)
    found = resolve(column, theirs.values())
    assert found.names == theirs and found.layers == 3
    assert not found.unexpected and not found.ignored and not found.copies
    expected = {"bert": 66, "huggingface": 66, "huggingface_h5": 66, "model_garden": 60, "keras_nlp": 55}
    assert len(theirs) == expected[column]  # 14 + 16 x 3 + classifier 2 + squad 2; no NSP, no heads; no cls


def test_columns_are_the_names_on_the_oracles_disks():
    """Exact names that other programs wrote, one of each kind."""
    at = {column: names.foreign_names(column, 12) for column in names.COLUMNS}
    query = "encoder/layer_11/attention/self/query/kernel"
    assert at["bert"][query] == "bert/encoder/layer_11/attention/self/query/kernel"
    assert at["huggingface"][query] == "bert.encoder.layer.11.attention.self.query.weight"
    assert at["huggingface_h5"][query] == "bert/encoder/layer_._11/attention/self/query/kernel"
    values = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert at["model_garden"][query] == f"encoder/layer_with_weights-15/_attention_layer/_query_dense/kernel{values}"
    assert at["keras_nlp"][query] == "layers/transformer_encoder_11/_self_attention_layer/query_dense/vars/0"
    assert at["model_garden"]["pooler/dense/bias"] == f"encoder/layer_with_weights-16/bias{values}"
    assert at["bert"]["classifier/kernel"] == "output_weights"


@pytest.mark.parametrize("how", ["same", "transpose", "heads_in", "heads_out"])
def test_layouts_go_there_and_back(how):
    ours = np.arange(6 * 6, dtype=np.float32).reshape(6, 6)  # square: a wrong transpose keeps the shape
    theirs = names.from_ours(ours, how, heads=3)
    assert names.shape_of_ours(theirs.shape, how) == ours.shape
    np.testing.assert_array_equal(names.to_ours(theirs, how), ours)
    if how == "transpose":
        np.testing.assert_array_equal(theirs, ours.T)
    if how == "heads_in":
        assert theirs.shape == (6, 3, 2)
        np.testing.assert_array_equal(theirs[:, 1], ours[:, 2:4])
    if how == "heads_out":
        assert theirs.shape == (3, 2, 6)
        np.testing.assert_array_equal(theirs[1], ours[2:4])


def test_layout_of_each_kind():
    kernel, output = "encoder/layer_7/attention/self/value/kernel", "encoder/layer_7/attention/output/dense/kernel"
    assert [names.layout(c, kernel) for c in names.COLUMNS] == ["same", "transpose", "same", "heads_in", "heads_in"]
    assert [names.layout(c, output) for c in names.COLUMNS] == ["same", "transpose", "same", "heads_out", "heads_out"]
    assert names.layout("model_garden", "encoder/layer_7/attention/self/value/bias") == "heads_in"
    assert names.layout("bert", "classifier/kernel") == "transpose"
    assert names.layout("huggingface", "cls/squad/output_weights") == "same"
    assert names.layout("keras_bert_lab", kernel) == "same"


# ------------------------------------------------------------------------------------------ O08: other spellings


def test_gamma_and_beta_only_directly_under_a_layer_norm():
    found = resolve("huggingface", ["bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.beta"])
    assert set(found.names) == {"embeddings/LayerNorm/gamma", "embeddings/LayerNorm/beta"}
    stranger = ["bert.pooler.dense.gamma", "bert.gamma_layer.weight", "bert.embeddings.LayerNorm.gamma.beta"]
    found = resolve("huggingface", stranger)
    assert sorted(found.unexpected) == sorted(stranger) and not found.names


def test_prefixes_that_are_known_and_those_that_must_be_said():
    for prefix in ("", "bert.", "module.bert.", "model.bert."):
        assert resolve("huggingface", [f"{prefix}pooler.dense.bias"]).names == {
            "pooler/dense/bias": f"{prefix}pooler.dense.bias"
        }
    key = "question_encoder.bert_model.pooler.dense.bias"
    assert not resolve("huggingface", [key]).names
    assert resolve("huggingface", [key], scope="question_encoder.bert_model.").names == {"pooler/dense/bias": key}
    for prefix in ("bert/", "model/bert/", "module/bert/", ""):
        assert resolve("bert", [f"{prefix}embeddings/LayerNorm/beta"]).names


def test_two_towers_need_a_scope():
    keys = [f"{tower}/bert/pooler/dense/{w}" for tower in ("query", "doc") for w in ("kernel", "bias")]
    found = resolve("bert", keys, scope="query/")
    assert found.names["pooler/dense/kernel"] == "query/bert/pooler/dense/kernel"
    assert found.ignored == {"outside 'query/'": [k for k in keys if k.startswith("doc")]}
    with pytest.raises(UserError, match="second tensor for pooler/dense/bias"):
        resolve("huggingface", ["bert.pooler.dense.bias", "pooler.dense.bias"])


def test_scopes_that_fit_are_proposed():
    keys = [f"x/{name}" for name in names.foreign_names("bert", 2).values()]
    assert names.scopes_that_fit("bert", keys) == {"x/": len(keys)}


def test_a_copy_stands_in_where_only_the_decoders_name_was_kept():
    found = resolve("huggingface", ["cls.predictions.decoder.bias"])
    assert found.names == {"cls/predictions/output_bias": "cls.predictions.decoder.bias"}
    both = resolve("huggingface", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
    assert both.names["cls/predictions/output_bias"] == "cls.predictions.bias"
    assert both.copies == {"cls/predictions/output_bias": ["cls.predictions.decoder.bias"]}


def test_the_model_gardens_published_checkpoints():
    """The names of 2020, as the Model Garden's uncased checkpoints have them."""
    end, block = "/.ATTRIBUTES/VARIABLE_VALUE", "encoder/layer_with_weights-5"
    keys = {
        "encoder/layer_1/attention/output/dense/kernel": f"{block}/_attention_output_dense/kernel{end}",
        "encoder/layer_1/attention/self/key/bias": f"{block}/_attention_layer/_key_dense/bias{end}",
        "encoder/layer_0/attention/self/key/bias": f"{block[:-1]}4/_attention_layer/_key_dense/bias{end}",
        "pooler/dense/kernel": f"next_sentence..pooler_dense/kernel{end}",
        "cls/predictions/output_bias": f"masked_lm/output_bias.Sbias{end}",
    }
    found = resolve("model_garden", [*keys.values(), f"save_counter{end}"])
    assert found.names == keys and found.ignored == {"optimizer": [f"save_counter{end}"]}


# --------------------------------------------------------------------------------------------- what is no weight


@pytest.mark.parametrize(
    ("key", "shape", "dtype", "kind"),
    [
        ("bert/pooler/dense/kernel/adam_m", (2, 2), F32, "optimizer"),
        ("bert/pooler/dense/kernel/Adam_1", (2, 2), F32, "optimizer"),
        ("bert/pooler/dense/kernel/AdamWeightDecayOptimizer_1", (2, 2), F32, "optimizer"),
        ("global_step", (), "int64", "optimizer"),
        ("beta1_power", (), F32, "optimizer"),
        ("optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE", (), "int64", "optimizer"),
        ("encoder/x/kernel/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE", (2,), F32, "optimizer"),
        ("bert/pooler/dense/kernel/ExponentialMovingAverage", (2, 2), F32, "moving average"),
        ("bert.embeddings.position_ids", (1, 512), "int64", "integer buffer"),
        ("some/other/scalar", (), F32, "scalar"),
        ("_CHECKPOINTABLE_OBJECT_GRAPH", (), "string", "bookkeeping"),
        ("bert/pooler/dense/kernel_adam_m", (2, 2), F32, None),
        ("bert/adam_m/kernel", (2, 2), F32, None),
        ("my_head/kernel", (2, 2), F32, None),
    ],
)
def test_ignorable(key, shape, dtype, kind):
    assert names.ignorable(key, shape, dtype) == kind


def test_layers_are_counted_without_a_gap():
    keys = [k for k in names.foreign_names("bert", 4).values() if "layer_2/" not in k]
    found = resolve("bert", keys)
    assert found.layers == 2
    assert len(found.unexpected) == 16 and all("layer_3/" in key for key in found.unexpected)


def test_ten_layers_do_not_shadow_one():
    theirs = names.foreign_names("huggingface", 11)
    found = resolve("huggingface", theirs.values())
    assert found.layers == 11 and found.names == theirs
