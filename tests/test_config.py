"""One name must mean one network: what each kind of file means by its words, and nothing is lost on the way back."""

import json
import subprocess
import sys

import pytest

from keras_bert_lab.config import ACTIVATIONS, GATED, SOURCES, BertConfig
from keras_bert_lab.errors import UserError

ORIGINAL = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 72,
    "max_position_embeddings": 512,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 21128,
    "directionality": "bidi",
    "pooler_type": "first_token_transform",
}
HUGGING_FACE = {
    **ORIGINAL,
    "architectures": ["BertForSequenceClassification"],
    "classifier_dropout": None,
    "id2label": {"0": "bad", "1": "good"},
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.57.6",
}
GARDEN = {
    "vocab_size": 100,
    "hidden_size": 24,
    "num_layers": 2,
    "num_attention_heads": 3,
    "hidden_activation": "gelu",
    "intermediate_size": 72,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.2,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "embedding_size": None,
    "return_all_encoder_outputs": False,
    "norm_first": False,
}


def small(**fields):
    return BertConfig(
        **{"vocab_size": 50, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, **fields}
    )


@pytest.mark.parametrize(
    ("file", "source", "gelu"),
    [(ORIGINAL, "bert", "gelu_new"), (HUGGING_FACE, "huggingface", "gelu"), (GARDEN, "model_garden", "gelu_new")],
)
def test_a_file_is_recognised_and_comes_back_key_for_key(file, source, gelu):
    config = BertConfig.from_dict(file)
    assert config.hidden_act == gelu
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (24, 2, 72)
    assert config.to_dict(source) == file
    assert config == BertConfig.from_dict(file, source)


@pytest.mark.parametrize("file", [ORIGINAL, HUGGING_FACE, GARDEN], ids=["original", "hugging face", "garden"])
@pytest.mark.parametrize("target", SOURCES)
def test_every_target_reads_back_as_the_same_config(file, target):
    config = BertConfig.from_dict(file)
    written = json.loads(json.dumps(config.to_dict(target)))
    assert BertConfig.from_dict(written, target) == config
    assert BertConfig.from_dict(written) == config, "recognised as another kind"


@pytest.mark.parametrize("target", SOURCES)
@pytest.mark.parametrize(
    "fields",
    [{"hidden_act": name} for name in ACTIVATIONS]
    + [
        {"norm_position": "pre"},
        {"position_embedding": "rotary"},
        {"position_embedding": "sinusoidal"},
        {"layer_norm_eps": 1e-5},
        {"pad_token_id": 3},
        {"attention_heads": ((0, 2), (1,))},
        {"attention_probs_dropout_prob": 0.3},
        {"initializer_range": 0.5},
        {"type_vocab_size": 7},
        {"extra": {"note": [1, 2]}},
    ],
    ids=str,
)
def test_every_option_survives_every_target(fields, target):
    config = small(**fields)
    written = json.loads(json.dumps(config.to_dict(target)))
    assert BertConfig.from_dict(written, target) == config == BertConfig.from_dict(written)


def test_what_a_target_cannot_say_is_told():
    assert small().losses_for("bert") == []
    (told,) = small(hidden_act="gelu").losses_for("bert")
    assert "hidden_act" in told and "bert" in told
    assert small(hidden_act="gelu").losses_for("huggingface") == []
    assert small(attention_heads=((0,), (0, 1, 2))).losses_for("huggingface") == []
    assert len(small(layer_norm_eps=1e-5, norm_position="pre").losses_for("bert")) == 2
    assert small(initializer_range=0.5).losses_for("keras_nlp") == [], "it computes the same"
    assert all(small(hidden_act=name).losses_for("huggingface") for name in GATED)


def test_the_original_file_with_an_exact_gelu_still_says_gelu_to_the_original_code():
    written = small(hidden_act="gelu").to_dict("bert")
    assert written["hidden_act"] == "gelu" and written["keras_bert_lab"] == {"hidden_act": "gelu"}


def test_pruned_heads_of_hugging_face():
    config = BertConfig.from_dict({**HUGGING_FACE, "pruned_heads": {"1": [0, 2]}})
    assert config.attention_heads == ((0, 1, 2), (1,))
    assert (config.heads_of(0), config.heads_of(1)) == (3, 1)
    assert config.to_dict("huggingface")["pruned_heads"] == {"1": [0, 2]}
    assert small(attention_heads=((0, 1, 2), (2, 1, 0))).attention_heads is None, "nothing is pruned"


def test_keras_nlp_preset_file():
    inner = {
        "name": "bert_backbone",
        "trainable": True,
        "vocabulary_size": 100,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 24,
        "intermediate_dim": 72,
        "dropout": 0.2,
        "max_sequence_length": 128,
        "num_segments": 2,
    }
    config = BertConfig.from_dict({"module": "keras_hub", "class_name": "BertBackbone", "config": inner})
    assert config.hidden_act == "gelu_new" and config.max_position_embeddings == 128
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.2
    with pytest.raises(UserError, match="RobertaBackbone"):
        BertConfig.from_dict({"module": "keras_hub", "class_name": "RobertaBackbone", "config": inner})


@pytest.mark.parametrize(
    ("name", "ours"),
    [("gelu_pytorch_tanh", "gelu_new"), ("gelu_fast", "gelu_new"), ("swish", "silu"), ("RELU", "relu"),
     (None, "linear")],
)
def test_other_names_of_activations(name, ours):
    assert BertConfig.from_dict({**HUGGING_FACE, "hidden_act": name}).hidden_act == ours


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "gelou"}, ["gelou", *ACTIVATIONS]),
        ({"hidden_size": 512, "num_attention_heads": 6}, ["512", "6"]),
        ({"hidden_size": "big"}, ["hidden_size", "big"]),
        ({"num_hidden_layers": 2.5}, ["num_hidden_layers", "2.5"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "1.0"]),
        ({"layer_norm_eps": 0}, ["layer_norm_eps"]),
        ({"pad_token_id": 21128}, ["pad_token_id", "21128"]),
        ({"model_type": "roberta"}, ["model_type", "roberta"]),
        ({"is_decoder": True}, ["is_decoder"]),
        ({"position_embedding_type": "relative_key"}, ["relative_key"]),
        ({"embedding_size": 128}, ["embedding_size", "128", "24"]),
        ({"pruned_heads": {"5": [0]}}, ["pruned_heads", "5"]),
        ({"pruned_heads": {"0": [0, 1, 2]}}, ["layer 0", "no head"]),
        ({"keras_bert_lab": {"norm_posture": "pre"}}, ["norm_posture", "norm_position"]),
        ({"keras_bert_lab": 3}, ["keras_bert_lab"]),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(change, words):
    with pytest.raises(UserError) as error:
        BertConfig.from_dict({**HUGGING_FACE, **change}, "huggingface")
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("values", "source", "word"),
    [
        ({"hidden_size": 24}, None, "vocab_size"),
        ({"vocab_size": 50, "heads": 2}, "keras_bert_lab", "heads"),
        ({**GARDEN, "norm_first": True}, None, "norm_first"),
        ({**GARDEN, "inner_dim": 73}, None, "inner_dim"),
        ({**ORIGINAL, "layer_norm_eps": 1e-5}, "bert", "layer_norm_eps"),
        (ORIGINAL, "pytorch", "pytorch"),
        ([], None, "list"),
    ],
    ids=str,
)
def test_files_that_are_no_config(values, source, word):
    with pytest.raises(UserError, match=word):
        BertConfig.from_dict(values, source)


def test_replace_and_constructor_check_alike():
    assert small().replace(hidden_size=6).head_size == 2
    with pytest.raises(UserError, match="unknown fields heads"):
        small().replace(heads=2)
    with pytest.raises(UserError, match="odd"):
        small(hidden_size=9, position_embedding="rotary")
    with pytest.raises(UserError, match="vocab_size"):
        small(extra={"vocab_size": 3})


def test_files_and_directories(tmp_path):
    with pytest.raises(UserError, match=r"neither bert_config.json nor config.json"):
        BertConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(ORIGINAL))
    assert BertConfig.from_file(tmp_path).hidden_act == "gelu", "a bare config.json is Hugging Face's"
    (tmp_path / "bert_config.json").write_text(json.dumps(ORIGINAL))
    assert BertConfig.from_file(tmp_path).hidden_act == "gelu_new"
    assert BertConfig.from_file(tmp_path, "huggingface").hidden_act == "gelu"
    (tmp_path / "bert_config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        BertConfig.from_file(tmp_path)
    (tmp_path / "bert_config.json").write_text(json.dumps({**ORIGINAL, "hidden_act": "x"}))
    with pytest.raises(UserError, match=r"bert_config.json: hidden_act"):
        BertConfig.from_file(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        BertConfig.from_file(tmp_path / "missing.json")


def test_the_oracles_files(shared):
    for folder, source, gelu in (
        ("tiny_en", "bert", "gelu_new"),
        ("tiny_zh", "bert", "gelu_new"),
        ("model_garden", "bert", "gelu_new"),
        ("hf", "huggingface", "gelu_new"),
        ("hf_tf/sequence", "huggingface", "gelu_new"),
    ):
        path = shared(f"oracle/{folder}")
        config = BertConfig.from_file(path)
        assert config.hidden_act == gelu
        name = "bert_config.json" if (path / "bert_config.json").is_file() else "config.json"
        assert config.to_dict(source) == json.loads((path / name).read_text()), folder


def test_config_needs_no_tensorflow():
    code = "import sys, keras_bert_lab.config; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
