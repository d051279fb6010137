"""The certificate of a conversion: both checkpoints run on the same input, one layer in memory at a time. Floor 3.

Every tensor is compared bit for bit. Then both networks compute the same rows, layer by layer: what stays is the
hidden states. Of the vocabulary only the pieces that the rows hold take part in the run (every row of the table was
compared before), so that the table, a fifth of BERT-base, is never in TensorFlow's memory.
"""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .config import BertConfig
from .source import TABLE, Source, open_checkpoint

TOLERANCE = 1e-5  # times the largest output, where that is over 1
VOCABULARY_BIAS = "cls/predictions/output_bias"

Batch = dict[str, np.ndarray]
Outputs = Iterator[tuple[str, list[np.ndarray]]]  # an output's name, and its value for every batch


def certify(source: Source, to: str, folder: Path, written: list[str]) -> dict[str, Any]:
    """Reads the copy in ``folder`` back and compares tensors and outputs.

    Args:
        source: what was converted.
        to: the copy's format.
        folder: where the copy lies.
        written: our names of the tensors that it should hold.

    Returns:
        The certificate, JSON-able: ``equal``, the largest difference and the tolerance of every output (embedding,
        every layer, sequence, and what else both have weights for), what was compared.
    """
    copy = open_checkpoint(folder, to)
    # Before TensorFlow is loaded: together they would need a good deal more memory than either.
    identical = sum(np.array_equal(source.read(name), copy.read(name)) for name in written)
    # Where both sides are our encoder, the longest rows would prove no more and cost attention's [L, L] a head.
    batches = inputs(source.config, None if to == "keras_nlp" else 128)
    here = outputs(source, written, batches)
    there = _backbone_outputs(folder, batches) if to == "keras_nlp" else outputs(copy, written, batches)
    gaps, scale = {}, {}
    for (name, ours), (same, theirs) in zip(here, there, strict=True):
        if name != same:
            raise RuntimeError(f"{name} on one side, {same} on the other")
        gaps[name] = max(_gap(one, other) for one, other in zip(ours, theirs, strict=True))
        scale[name] = max(1.0, *(float(np.max(np.abs(one))) for one in ours))
    close = all(gap <= TOLERANCE * scale[name] for name, gap in gaps.items())
    return {
        "equal": bool(close and identical == len(written)),
        "source": source.describe(),
        "source_format": source.format,
        "format": to,
        "network": "keras-nlp's own BertBackbone" if to == "keras_nlp" else "keras_bert_lab's encoder on both sides",
        "tensors": {"compared": len(written), "bit_identical": int(identical)},
        "largest_difference": gaps,
        "tolerance": {name: TOLERANCE * scale[name] for name in gaps},
        "inputs": {name: list(batch["input_ids"].shape) for name, batch in batches.items()},
        "versions": {n: importlib.metadata.version(n) for n in ("keras_bert_lab", "tensorflow", "keras", "numpy")},
    }


def summary(certificate: Mapping[str, Any]) -> str:
    """One line: tensors that are bit-identical, and the output that differs most of what it may."""
    tensors, gaps = certificate["tensors"], certificate["largest_difference"]
    worst = max(gaps, key=lambda output: gaps[output] / certificate["tolerance"][output])
    return (
        f"{tensors['bit_identical']} of {tensors['compared']} tensors bit-identical; "
        f"largest difference {gaps[worst]:.2g} ({worst}) over {len(gaps)} outputs"
    )


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    """Largest absolute difference; infinity where one of them is not finite."""
    difference = one - other
    return float(np.max(np.abs(difference))) if np.isfinite(difference).all() else float("inf")


def inputs(config: BertConfig, most: int | None = None) -> dict[str, Batch]:
    """Random rows, and nasty ones: one piece, holes in the mask, the table's last ids, the longest row.

    That has as many pieces as there are positions, or ``most``.
    """
    rng, longest = np.random.default_rng(0), min(config.max_position_embeddings, most or 2**31)
    length = min(16, longest)

    def rows(count: int, length: int) -> Batch:
        return {
            "input_ids": rng.integers(0, config.vocab_size, (count, length), np.int32),
            "attention_mask": (np.arange(length) < rng.integers(1, length + 1, (count, 1))).astype(np.int32),
            "token_type_ids": rng.integers(0, config.type_vocab_size, (count, length), np.int32),
        }

    nasty = rows(5, length)
    nasty["attention_mask"][0] = np.arange(length) == 0
    nasty["attention_mask"][1] = np.arange(length) % 2 == 0
    nasty["input_ids"][2] = config.vocab_size - 1
    nasty["input_ids"][3] = 0
    nasty["token_type_ids"][4] = config.type_vocab_size - 1
    nasty["attention_mask"][2:] = 1
    longest_row = rows(1, longest)
    longest_row["attention_mask"][:] = 1
    return {"random": rows(3, min(33, longest)), "nasty": nasty, "longest": longest_row}


def outputs(source: Source, written: list[str], batches: Mapping[str, Batch]) -> Outputs:
    """The checkpoint as our encoder, layer by layer, with every output that ``written`` has weights for.

    What is returned computes as it is read, with the weights of one layer in memory. ``mlm_logits`` are those of the
    pieces that stand in ``batches``, ascending.
    """
    pieces = np.unique(np.concatenate([batch["input_ids"].ravel() for batch in batches.values()]))
    # Now, before TensorFlow is loaded: the whole table and it together would be the peak.
    rows = {name: source.read(name)[pieces] for name in (TABLE, VOCABULARY_BIAS) if name in written}
    return _layer_by_layer(source, written, batches, pieces, rows)


def _layer_by_layer(
    source: Source, written: list[str], batches: Mapping[str, Batch], pieces: np.ndarray, rows: Batch
) -> Outputs:
    import tensorflow as tf

    from .encoder import Block, Embeddings, NextSentence, Norm, Pooler, Predictions, Transform

    config = source.config.replace(vocab_size=len(pieces))

    def layer(kind: type, name: str, *arguments: Any) -> Any:
        made = kind(config, *arguments, name=name, dtype="float32")
        made.build()
        for variable in made.variables:
            variable.assign(rows[variable.path] if variable.path in rows else source.read(variable.path))
        return made

    def arrays(tensors: list[Any]) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in tensors]

    masks = [tf.constant(batch["attention_mask"] != 0) for batch in batches.values()]
    embeddings = layer(Embeddings, "embeddings")
    hidden = [
        embeddings(np.searchsorted(pieces, batch["input_ids"]).astype(np.int32), batch["token_type_ids"])
        for batch in batches.values()
    ]
    yield "embedding", arrays(hidden)
    for i in range(config.num_hidden_layers):
        block = layer(Block, f"layer_{i}", i)
        hidden = [block(x, mask) for x, mask in zip(hidden, masks, strict=True)]
        del block
        gc.collect()  # a Keras layer refers to itself in circles; the next one is made after it is gone
        yield f"layer_{i}", arrays(hidden)
    if config.norm_position == "pre":
        norm = layer(Norm, "LayerNorm")
        hidden = [norm(x) for x in hidden]
    yield "sequence", arrays(hidden)
    if "pooler/dense/kernel" in written:
        pooler = layer(Pooler, "pooler")
        pooled = [pooler(x[:, 0]) for x in hidden]
        yield "pooled", arrays(pooled)
        if "cls/seq_relationship/output_weights" in written:
            next_sentence = layer(NextSentence, "seq_relationship")
            yield "nsp_logits", arrays([next_sentence(x) for x in pooled])
    if VOCABULARY_BIAS in written:
        transform, predictions = layer(Transform, "transform"), layer(Predictions, "predictions")
        yield "mlm_logits", arrays([predictions(embeddings(transform(x), unembed=True)) for x in hidden])


def _backbone_outputs(folder: Path, batches: Mapping[str, Batch]) -> Outputs:
    """The preset as keras-nlp itself builds and runs it, whole."""
    import keras
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone.from_preset(str(folder), dtype="float32")
    wanted = {"embedding": backbone.get_layer("embeddings_dropout").output}
    for i in range(backbone.num_layers):
        wanted[f"layer_{i}"] = backbone.get_layer(f"transformer_layer_{i}").output
    wanted |= {"sequence": backbone.output["sequence_output"], "pooled": backbone.output["pooled_output"]}
    model = keras.Model(backbone.inputs, wanted)
    theirs = {"input_ids": "token_ids", "attention_mask": "padding_mask", "token_type_ids": "segment_ids"}
    computed = [
        model({theirs[name]: value for name, value in batch.items()}, training=False) for batch in batches.values()
    ]
    for name in wanted:
        yield name, [np.asarray(of_batch[name]) for of_batch in computed]
