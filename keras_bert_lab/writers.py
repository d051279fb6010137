"""Writing checkpoints: one function a format. Each streams the tensors of a source, one at a time, into a directory.

A writer takes (source, our names to write, directory, tick) and returns sentences about what its format's readers
should know. Floor 3.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import bundles, names
from .config import OUR_KEY, BertConfig
from .errors import UserError
from .source import ENCODER, Source

Tick = Callable[[int, int, str], None]
Stream = dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]
# Keys that speak of Hugging Face's files, not of the network; they do not go back into an original config.
_HUGGING_ONLY = ("architectures", "dtype", "torch_dtype", "transformers_version")
_SAFE = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


def left_behind(source: Source, to: str) -> list[str]:
    """Our names that the target has no name for; ``UserError`` if the encoder is among them."""
    if to == "keras_bert_lab":
        if source.record is not None and "head" in source.record:
            raise UserError(source.path, "is a saved task of this package already", "copy the directory")
        return []
    theirs = names.foreign_names(to, source.config.num_hidden_layers)
    left = [name for name in source.names if name not in theirs or _means_something_else(source, name)]
    if lost := [name for name in left if name.startswith(ENCODER)]:
        raise UserError(source.describe(), f"{to} has no place for {', '.join(lost[:6])}", "choose --to=keras_bert_lab")
    if source.config.position_embedding != "learned":
        kind = f"position_embedding {source.config.position_embedding!r}"
        raise UserError(source.describe(), f"{to} has no place for {kind}", "choose --to=keras_bert_lab")
    if to == "keras_nlp":
        if "pooler/dense/kernel" not in source.names:
            raise UserError(
                source.describe(), "has no pooler, and a BertBackbone always has one", "choose another format"
            )
        if source.config.attention_heads is not None:
            raise UserError(
                source.describe(), "has pruned heads, which a BertBackbone cannot have", "choose another format"
            )
    return left


def _means_something_else(source: Source, name: str) -> bool:
    """A saved task's last layer is the other formats' classifier only if it sees what theirs sees."""
    if source.record is None or not name.startswith("classifier/"):
        return False
    options = source.record.get("head", {}).get("options", {})
    return options.get("pooling", "cls") != "cls" or bool(options.get("bilstm"))


def _stream(source: Source, written: list[str], column: str) -> Stream:
    """The target's name -> (shape, a function that reads the tensor in the target's layout)."""
    heads = source.config.num_attention_heads
    theirs = names.foreign_names(column, source.config.num_hidden_layers) if column != "keras_bert_lab" else {}
    out: Stream = {}
    for name in written:
        how = names.layout(column, name)
        shape = names.from_ours(np.broadcast_to(np.float32(0), source.shape(name)), how, heads).shape
        out[theirs.get(name, name)] = shape, functools.partial(_read_as, source, name, how, heads)
    return out


def _read_as(source: Source, name: str, how: str, heads: int) -> np.ndarray:
    return names.from_ours(source.read(name), how, heads)


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]],
    metadata: Mapping[str, str] | None = None,
    tick: Tick | None = None,
) -> None:
    """Writes a ``.safetensors`` file without holding more than one tensor.

    Args:
        path: the file.
        tensors: name -> (shape, function that gives a float32 array of that shape).
        metadata: strings for the header's ``__metadata__``.
        tick: called with (bytes written, bytes in all, name).

    Raises:
        ValueError: a function gives another shape or dtype than was announced.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (shape, _) in tensors.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8, as the reference writer has it
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        done = 0
        for name, (shape, read) in tensors.items():
            array = np.asarray(read(), np.float32, order="C")
            if array.shape != tuple(shape):
                raise ValueError(f"{name}: announced as {shape}, is {array.shape}")
            file.write(array.reshape(-1).data if array.size else b"")
            done += array.nbytes
            del array  # before the next one is read
            if tick is not None:
                tick(done, at, name)


def _text_files(source: Source, folder: Path, vocab: str, settings: str | None) -> None:
    """The vocabulary byte for byte, and how to use it in ``tokenizer_config.json``."""
    tokenizer = source.tokenizer()
    if tokenizer is None:
        return
    place = folder / vocab
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(tokenizer.vocab_bytes)
    if settings is None:
        return
    config: dict[str, Any] = {
        "do_lower_case": tokenizer.lower_case,
        "strip_accents": None if tokenizer.strip_accents == tokenizer.lower_case else tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "model_max_length": source.config.max_position_embeddings,
        "tokenizer_class": "BertTokenizer",
    }
    config |= {f"{kind}_token": f"[{kind.upper()}]" for kind in ("cls", "mask", "pad", "sep", "unk")}
    _write_json(folder / settings, config)


def _without(config: BertConfig, keys: Iterable[str]) -> BertConfig:
    return config.replace(extra={key: value for key, value in config.extra.items() if key not in keys})


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")


# ---------------------------------------------------------------------------------------------- original TF1


def write_bert(source: Source, written: list[str], folder: Path, tick: Tick) -> list[str]:
    """``bert_model.ckpt``, ``bert_config.json``, ``vocab.txt`` as google-research/bert reads them; weights only."""
    tensors = _stream(source, written, "bert")
    total, done = sum(4 * math.prod(shape) for shape, _ in tensors.values()), 0

    def wrote(size: int, name: str) -> None:
        nonlocal done
        done += size
        tick(done, total, name)

    bundles.write(folder / "bert_model.ckpt", tensors, wrote)
    _write_json(folder / "bert_config.json", _without(source.config, _HUGGING_ONLY).to_dict("bert"))
    _text_files(source, folder, "vocab.txt", "tokenizer_config.json")
    notes = []
    if "pooler/dense/kernel" not in written:
        notes.append("there is no pooler: the original code builds one and would start it at random")
    return notes


# ---------------------------------------------------------------------------------------------- Hugging Face


def write_huggingface(source: Source, written: list[str], folder: Path, tick: Tick) -> list[str]:
    """``config.json``, ``model.safetensors``, ``vocab.txt``, ``tokenizer_config.json`` as transformers reads them."""
    write_safetensors(folder / "model.safetensors", _stream(source, written, "huggingface"), {"format": "pt"}, tick)
    config = source.config.to_dict("huggingface")
    fits = _architectures(written)
    named = config.get("architectures")
    if not (isinstance(named, list) and len(named) == 1 and named[0] in fits):
        config["architectures"] = [fits[0]]
    if "classifier/bias" in written:
        count = source.shape("classifier/bias")[0]
        labels = (source.record or {}).get("head", {}).get("options", {}).get("labels") or []
        if len(labels) == count:
            config["id2label"] = {str(i): str(label) for i, label in enumerate(labels)}
        elif len(config.get("id2label") or {}) != count:
            config["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}
        config["label2id"] = {label: int(i) for i, label in config["id2label"].items()}
    if "cls/predictions/output_bias" in written and not config.get("tie_word_embeddings", True):
        config["tie_word_embeddings"] = True  # else transformers would start a decoder at random: it is stored once
    config["dtype"] = "float32"
    config.pop("torch_dtype", None)
    _write_json(folder / "config.json", config)
    _text_files(source, folder, "vocab.txt", "tokenizer_config.json")
    if config["architectures"] == ["BertModel"] and "pooler/dense/kernel" not in written:
        return ["there is no pooler: load it with BertModel(..., add_pooling_layer=False)"]
    return []


def _architectures(written: list[str]) -> list[str]:
    """The classes of transformers whose weights these are, the likeliest first."""
    have = set(written)
    if "classifier/kernel" in have:
        classes = ["BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice"]
        return classes if "pooler/dense/kernel" in have else classes[1:2]
    if "cls/squad/output_weights" in have:
        return ["BertForQuestionAnswering"]
    mlm, nsp = "cls/predictions/output_bias" in have, "cls/seq_relationship/output_bias" in have
    if mlm and nsp:
        return ["BertForPreTraining"]
    return ["BertForMaskedLM"] if mlm else ["BertForNextSentencePrediction"] if nsp else ["BertModel"]


# ------------------------------------------------------------------------------------------------- keras-nlp


def write_keras_nlp(source: Source, written: list[str], folder: Path, tick: Tick) -> list[str]:
    """A preset directory that ``keras_nlp.models.BertBackbone.from_preset`` reads.

    The library writes a preset of a tiny backbone with as many layers; then the numbers in it are exchanged. So the
    file's structure is always the installed library's own, and no second copy of the model is built.
    """
    import h5py
    import keras_nlp

    config = source.config
    tiny = keras_nlp.models.BertBackbone(
        vocabulary_size=8, num_layers=config.num_hidden_layers, num_heads=1, hidden_dim=2, intermediate_dim=2,
        max_sequence_length=4,
    )  # fmt: skip
    tiny.save_to_preset(str(folder))
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    values = _without(config, config.extra).to_dict("keras_nlp")
    if OUR_KEY in values:  # beside the arguments: among them it would be one that BertBackbone does not know
        settings[OUR_KEY] = values.pop(OUR_KEY)
    settings["config"] |= values
    _write_json(folder / "config.json", settings)

    tensors = _stream(source, written, "keras_nlp")
    total, done = sum(4 * math.prod(shape) for shape, _ in tensors.values()), 0
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        for name, (_, read) in tensors.items():
            if name not in file:
                raise UserError("keras-nlp", f"its file has no {name}", "install a version between 0.25 and 0.32")
            attributes = dict(file[name].attrs)
            del file[name]
            array = np.asarray(read(), np.float32, order="C")
            file.create_dataset(name, data=array).attrs.update(attributes)
            done += array.nbytes
            del array
            tick(done, total, name)
    if (meta := folder / "metadata.json").is_file():
        values = json.loads(meta.read_text("utf-8"))
        values["parameter_count"] = total // 4
        _write_json(meta, values)
    if (tokenizer := source.tokenizer()) is not None:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        keras_nlp.models.BertTokenizer(vocabulary=special, lowercase=tokenizer.lower_case).save_to_preset(str(folder))
        _text_files(source, folder, "assets/tokenizer/vocabulary.txt", None)
        return ["keras-nlp's tokenizer differs from Google's on some texts; the vocabulary is the same, byte for byte"]
    return []


# ------------------------------------------------------------------------------------------------------ ours


def write_ours(source: Source, written: list[str], folder: Path, tick: Tick) -> list[str]:
    """``artifact.json`` without a head, ``weights.safetensors`` by our names, ``vocab.txt``."""
    write_safetensors(folder / "weights.safetensors", _stream(source, written, "keras_bert_lab"), tick=tick)
    _text_files(source, folder, "vocab.txt", None)
    record: dict[str, Any] = {
        "format_version": 1,
        "config": source.config.to_dict("keras_bert_lab"),
        "provenance": {"base_checkpoint": source.fingerprint()},
    }
    if (tokenizer := source.tokenizer()) is not None:
        record["text"] = {"tokenizer": tokenizer.settings()}
    _write_json(folder / "artifact.json", record)
    return []


WRITERS = {
    "bert": write_bert,
    "huggingface": write_huggingface,
    "keras_nlp": write_keras_nlp,
    "keras_bert_lab": write_ours,
}
