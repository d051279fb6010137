"""What transformers, torch and safetensors make of our directories, and we of theirs. Run by `make interop`."""

import json

import numpy as np
import pytest

from keras_bert_lab.checkpoint import convert, load, open_checkpoint
from keras_bert_lab.encoder import encoder
from keras_bert_lab.testing import tiny_checkpoint, tiny_config, tiny_task

pytestmark = pytest.mark.interop
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def ids():
    rng, config = np.random.default_rng(1), tiny_config()
    return {
        "input_ids": rng.integers(1, config.vocab_size, (4, 19)),
        "attention_mask": (np.arange(19) < [[19], [5], [8], [1]]).astype(np.int64),
        "token_type_ids": rng.integers(0, 2, (4, 19)),
    }


def theirs(kind, folder, ids):
    model, said = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not said["missing_keys"] and not said["mismatched_keys"], said
    with torch.no_grad():
        return model.eval()(**{name: torch.tensor(value) for name, value in ids.items()}), said


def ours(path, ids, **options):
    source = open_checkpoint(path)
    model = encoder(source.config, **options)
    load(model, source)
    return {name: np.asarray(value) for name, value in model(ids).items()}


def gap(one, other):
    return float(np.max(np.abs(np.asarray(one) - np.asarray(other))))


@pytest.mark.parametrize("act", ["gelu_new", "gelu"])
def test_transformers_reads_our_directory(tmp_path, ids, act):
    tiny = tiny_checkpoint(tmp_path / "tiny_uncased", config=tiny_config(hidden_act=act))
    convert(tiny, tmp_path / "hf", "huggingface", verify=True)
    out, said = theirs("BertForPreTraining", tmp_path / "hf", ids)
    assert not said["unexpected_keys"]
    mine = ours(tiny, ids)
    bare, _ = theirs("BertModel", tmp_path / "hf", ids)
    worst = max(gap(bare.last_hidden_state, mine["sequence"]), gap(bare.pooler_output, mine["pooled"]))
    print(f"{act}: largest difference to transformers {worst:.2e}")
    assert worst <= TOLERANCE
    assert out.prediction_logits.shape == (4, 19, tiny_config().vocab_size)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    said = open_checkpoint(tiny).tokenizer()
    text = "The FILM was not good, Café 的电影!"
    assert tokenizer(text)["input_ids"] == [said.cls_id, *said.encode(text)[0], said.sep_id]


@pytest.mark.parametrize("name", ["tiny_en", "tiny_zh"])
def test_the_oracles_checkpoints_in_transformers(shared, tmp_path, name):
    convert(shared(f"oracle/{name}"), tmp_path / "hf", "huggingface")
    with np.load(shared(f"oracle/{name}/golden.npz")) as golden:
        given = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
        batch = {k: golden[f"b1.{v}"].astype(np.int64) for k, v in given.items()}
        out, _ = theirs("BertModel", tmp_path / "hf", batch)
        assert gap(out.last_hidden_state, golden["b1.sequence_output"]) <= TOLERANCE
        assert gap(out.pooler_output, golden["b1.pooled_output"]) <= TOLERANCE


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("sequence", "BertForSequenceClassification"),
        ("token", "BertForTokenClassification"),
        ("qa", "BertForQuestionAnswering"),
    ],
)
def test_stranded_tensorflow_files_run_in_todays_transformers(shared, tmp_path, kind, name):
    convert(shared(f"oracle/hf_tf/{kind}"), tmp_path / "hf", "huggingface")
    with np.load(shared("oracle/tiny_en/golden.npz")) as golden, np.load(shared("oracle/hf_tf/outputs.npz")) as want:
        given = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
        out, _ = theirs(name, tmp_path / "hf", {k: golden[f"b0.{v}"].astype(np.int64) for k, v in given.items()})
        for key in ("logits", "start_logits", "end_logits"):
            if key in out:
                assert gap(out[key], want[f"{kind}.{key}"]) <= TOLERANCE


def test_a_saved_task_gives_the_same_logits_in_transformers(tmp_path, ids):
    task = tiny_task(labels=["bad", "good", "so so"])
    task.save(tmp_path / "task")
    convert(tmp_path / "task", tmp_path / "hf", "huggingface")
    out, _ = theirs("BertForSequenceClassification", tmp_path / "hf", ids)
    mine = task.model(ids, training=False)
    assert gap(out.logits, mine["logits"]) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("how", ["safetensors", "shards", "zip", "legacy"])
def test_we_read_what_transformers_and_torch_write(tmp_path, ids, dtype, how):
    config = transformers.BertConfig(
        vocab_size=90, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM._from_config(config, attn_implementation="eager").to(getattr(torch, dtype))
    folder = tmp_path / "hf"
    if how == "safetensors":
        model.save_pretrained(folder)
    elif how == "shards":
        model.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
    else:
        folder.mkdir()
        config.save_pretrained(folder)
        new = how == "zip"
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    batch = {**ids, "input_ids": ids["input_ids"] % 90}
    mine = ours(folder, batch, pooler=False)
    with torch.no_grad():
        given = {name: torch.tensor(value) for name, value in batch.items()}
        want = model.float().eval().bert(**given).last_hidden_state
    assert gap(mine["sequence"], want) <= TOLERANCE
    assert open_checkpoint(folder).config.hidden_act == "gelu"
    convert(folder, tmp_path / "back", "huggingface", verify=True)
    again, _ = theirs("BertForMaskedLM", tmp_path / "back", batch)
    with torch.no_grad():
        assert gap(again.logits, model(**given).logits) <= TOLERANCE
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def test_torch_views_and_parameters(tmp_path):
    from keras_bert_lab.pickles import TorchFile

    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "view": base[1:, ::2],
        "turned": base.T,
        "parameter": torch.nn.Parameter(base[0]),
        "number": torch.tensor(3),
    }
    for new in (True, False):
        torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=new)
        file = TorchFile(tmp_path / "x.bin")
        for name, value in state.items():
            np.testing.assert_array_equal(file.read(name), value.detach().numpy())
