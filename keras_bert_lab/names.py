"""The table: what every tensor of BERT is called, and how it lies, in every checkpoint format.

One row a tensor, one column a format; reading and writing are the same rows with the columns swapped. Floor 0:
standard library and numpy only. Sources of the columns: `modeling.py` and `run_*.py` of google-research/bert
(`bert`), `modeling_bert.py` and `modeling_tf_bert.py` of transformers 4 (`huggingface`, `huggingface_h5`), the
`BertEncoder` of tf-models-official 2.20 (`model_garden`), the `BertBackbone` of keras-nlp 0.32 (`keras_nlp`).

Example:
    >>> ours = "embeddings/LayerNorm/gamma"
    >>> found = resolve("huggingface", {"bert.embeddings.LayerNorm.gamma": ((4,), "float32")})
    >>> found.names == {ours: "bert.embeddings.LayerNorm.gamma"} and foreign_names("bert", 2)[ours]
    'bert/embeddings/LayerNorm/gamma'
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .errors import UserError

FORMATS = ("bert", "huggingface", "model_garden", "keras_nlp", "keras_bert_lab")
COLUMNS = (
    "bert",
    "huggingface",
    "huggingface_h5",
    "model_garden",
    "keras_nlp",
)  # two of them are "huggingface"


class Row(NamedTuple):
    """One tensor. `{i}` is the layer; `{j}` = i + 4 and `{p}` = layers + 4 count Model Garden's layers with
    weights; `{s}` is "" for layer 0 and `_i` for the others, as Keras numbers its layers. None: the format has
    no such tensor. `kind` says how it lies (see `LAYOUTS`)."""

    ours: str
    kind: str
    bert: str | None
    huggingface: str | None
    huggingface_h5: str | None
    model_garden: str | None
    keras_nlp: str | None


# How a format's array becomes ours:
#   same       as it is
#   transpose  [out, in] -> [in, out]
#   heads_in   [..., heads, size] -> [..., heads * size]     (query, key, value: kernels and biases)
#   heads_out  [heads, size, hidden] -> [heads * size, hidden]   (the attention's output kernel)
LAYOUTS = {
    "plain": {},
    "kernel": {"huggingface": "transpose"},
    "heads_in": {"huggingface": "transpose", "model_garden": "heads_in", "keras_nlp": "heads_in"},
    "heads_bias": {"model_garden": "heads_in", "keras_nlp": "heads_in"},
    "heads_out": {"huggingface": "transpose", "model_garden": "heads_out", "keras_nlp": "heads_out"},
    "head": {"bert": "transpose", "huggingface": "transpose"},  # ours [hidden, labels], original [labels, hidden]
    "rows": {"huggingface_h5": "transpose"},  # ours and the original's [2, hidden]
}

_LWW, _NLP = "layer_with_weights-", "layers/transformer_encoder{s}/_"
_NA, _NF = _NLP + "self_attention_layer", _NLP + "feedforward_"
_LAYER, _G, _GA = "encoder/layer_{i}/", _LWW + "{j}/_", _LWW + "{j}/_attention_layer/_"

# fmt: off
# A site is a pair of tensors: kernel and bias, or gamma and beta. Hugging Face's names are the original's with dots,
# and "weight" for kernel and gamma; its TensorFlow classes keep the original's with another word for the layer.
_SITES = (
    # the original's, without bert/         lies         Model Garden's, keras-nlp's file's
    ("embeddings/LayerNorm",                "norm",      _LWW + "3", "layers/layer_normalization"),
    (_LAYER + "attention/self/query",       "heads_in",  _GA + "query_dense", _NA + "/query_dense"),
    (_LAYER + "attention/self/key",         "heads_in",  _GA + "key_dense", _NA + "/key_dense"),
    (_LAYER + "attention/self/value",       "heads_in",  _GA + "value_dense", _NA + "/value_dense"),
    (_LAYER + "attention/output/dense",     "heads_out", _GA + "output_dense", _NA + "/output_dense"),
    (_LAYER + "attention/output/LayerNorm", "norm",      _G + "attention_layer_norm", _NA + "_norm"),
    (_LAYER + "intermediate/dense",         "kernel",    _G + "intermediate_dense", _NF + "intermediate_dense"),
    (_LAYER + "output/dense",               "kernel",    _G + "output_dense", _NF + "output_dense"),
    (_LAYER + "output/LayerNorm",           "norm",      _G + "output_layer_norm", _NF + "layer_norm"),
    ("pooler/dense",                        "kernel",    _LWW + "{p}", "layers/dense"),
    ("cls/predictions/transform/dense",     "kernel",    "masked_lm/dense", None),
    ("cls/predictions/transform/LayerNorm", "norm",      "masked_lm/layer_norm", None),
)
_TABLES = (
    # table                   Hugging Face's TensorFlow classes',  Model Garden's, keras-nlp's file's
    ("word_embeddings",       "word_embeddings/weight",           _LWW + "0/embeddings", "layers/reversible_embedding"),
    ("position_embeddings",   "position_embeddings/embeddings",   _LWW + "1/embeddings", "layers/position_embedding"),
    ("token_type_embeddings", "token_type_embeddings/embeddings", _LWW + "2/embeddings", "layers/embedding"),
)
_HEADS = (
    # ours, lies, the original's, Hugging Face's, its TensorFlow classes', Model Garden's, keras-nlp's
    Row("cls/predictions/output_bias", "plain", "cls/predictions/output_bias",
        "cls.predictions.bias", "mlm___cls/predictions/bias", "masked_lm/bias", None),
    Row("cls/seq_relationship/output_weights", "rows", "cls/seq_relationship/output_weights",
        "cls.seq_relationship.weight", "nsp___cls/seq_relationship/kernel", None, None),
    Row("cls/seq_relationship/output_bias", "plain", "cls/seq_relationship/output_bias",
        "cls.seq_relationship.bias", "nsp___cls/seq_relationship/bias", None, None),
    Row("classifier/kernel", "head", "output_weights", "classifier.weight", "classifier/kernel", None, None),
    Row("classifier/bias", "plain", "output_bias", "classifier.bias", "classifier/bias", None, None),
    Row("cls/squad/output_weights", "rows", "cls/squad/output_weights",
        "qa_outputs.weight", "qa_outputs/kernel", None, None),
    Row("cls/squad/output_bias", "plain", "cls/squad/output_bias", "qa_outputs.bias", "qa_outputs/bias", None, None),
)
# fmt: on


def _table(name: str, h5: str, garden: str, nlp: str) -> Row:
    ours, dotted = f"embeddings/{name}", f"bert.embeddings.{name}.weight"
    return Row(ours, "plain", f"bert/{ours}", dotted, f"bert/embeddings/{h5}", garden, f"{nlp}/vars/0")


def _pair(site: str, lies: str, garden: str, nlp: str | None) -> tuple[Row, Row]:
    """The two rows of a site."""
    path = site if site.startswith("cls/") else f"bert/{site}"
    dotted = path.replace("layer_{i}", "layer.{i}").replace("/", ".")
    h5 = path.replace("layer_{i}", "layer_._{i}").replace("cls/predictions", "mlm___cls/predictions")

    def row(end: str, kind: str, word: str, number: int) -> Row:
        file = nlp and f"{nlp}/vars/{number}"
        return Row(f"{site}/{end}", kind, f"{path}/{end}", f"{dotted}.{word}", f"{h5}/{end}", f"{garden}/{end}", file)

    if lies == "norm":
        return row("gamma", "plain", "weight", 0), row("beta", "plain", "bias", 1)
    return row("kernel", lies, "weight", 0), row("bias", "heads_bias" if lies == "heads_in" else "plain", "bias", 1)


TABLE: tuple[Row, ...] = (
    *(_table(*table) for table in _TABLES),
    *(row for site in _SITES for row in _pair(*site)),
    *_HEADS,
)

_LAYER_MARKS = {  # pieces of names that tell that layer i is in the file
    "bert": ("encoder/layer_{i}/",),
    "huggingface": ("encoder.layer.{i}.",),
    "huggingface_h5": ("encoder/layer_._{i}/",),
    "model_garden": (_G + "attention_layer/",),
    "keras_nlp": (_NLP, "transformer_layer_{i}/"),
    "keras_bert_lab": ("encoder/layer_{i}/",),
}

# Other spellings of one of a row's names, accepted on reading: (column, ending in the table, ending in the file).
# gamma and beta are understood directly under a LayerNorm and nowhere else.
_SPELLINGS = (
    ("huggingface", ".LayerNorm.weight", ".LayerNorm.gamma"),
    ("huggingface", ".LayerNorm.bias", ".LayerNorm.beta"),
    # the checkpoints of 2020 ("v3") that the Model Garden published: an older block, the pooler under the NSP head
    ("model_garden", "/_attention_layer/_output_dense/kernel", "/_attention_output_dense/kernel"),
    ("model_garden", "/_attention_layer/_output_dense/bias", "/_attention_output_dense/bias"),
    ("model_garden", _LWW + "{p}/kernel", "next_sentence..pooler_dense/kernel"),
    ("model_garden", _LWW + "{p}/bias", "next_sentence..pooler_dense/bias"),
    ("model_garden", "masked_lm/bias", "masked_lm/output_bias.Sbias"),
    ("huggingface_h5", "/word_embeddings/weight", "/word_embeddings/embeddings"),
    ("huggingface_h5", "/word_embeddings/weight", "/word_embeddings"),
    ("huggingface_h5", "/position_embeddings/embeddings", "/position_embeddings/weight"),
    ("huggingface_h5", "/position_embeddings/embeddings", "/position_embeddings"),
    ("huggingface_h5", "/token_type_embeddings/embeddings", "/token_type_embeddings/weight"),
    ("huggingface_h5", "/token_type_embeddings/embeddings", "/token_type_embeddings"),
)

# A BertBackbone in memory calls by name what its file numbers: (beginning or piece in the file, in memory).
_IN_MEMORY = (
    ("layers/reversible_embedding/vars/0", "token_embedding/embeddings"),
    ("layers/position_embedding/vars/0", "position_embedding/embeddings"),
    ("layers/embedding/vars/0", "segment_embedding/embeddings"),
    ("layers/layer_normalization/", "embeddings_layer_norm/"),
    ("layers/dense/", "pooled_dense/"),
    ("layers/transformer_encoder{s}/_", "transformer_layer_{i}/"),
    ("output_dense/", "attention_output/"),
    ("query_dense/", "query/"),
    ("key_dense/", "key/"),
    ("value_dense/", "value/"),
    ("feedforward_attention_output/", "feedforward_output_dense/"),
)

# What may stand before every name of the encoder (the head's names may or may not carry it). Any other scope has to
# be said: a file whose names merely end like BERT's may be something else.
_SCOPES = {
    "bert": ("", "model/", "module/", "model/module/"),
    "huggingface": ("", "model.", "module.", "model.module.", "module.model."),
    "huggingface_h5": ("", "model/"),
    "model_garden": ("encoder/", "", "model/", "model/encoder/"),
    "keras_nlp": ("",),
}
_ROOT = {
    "bert": "bert/",
    "huggingface": "bert.",
    "huggingface_h5": "bert/",
    "model_garden": "",
    "keras_nlp": "",
}
_SUFFIX = {"model_garden": "/.ATTRIBUTES/VARIABLE_VALUE"}

# The last part of a name that marks what an optimizer or a training loop left in the file.
_SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v", "exp_avg", "exp_avg_sq", "accum")
_OPTIMIZERS = (
    *("Adam", "AdamOptimizer", "AdamWeightDecayOptimizer", "LAMB", "LAMBOptimizer", "RMSProp", "Adadelta", "Ftrl"),
    *("Momentum", "Adagrad", "GradientDescent"),
)
_COUNTERS = (
    *("global_step", "beta1_power", "beta2_power", "loss_scale", "current_loss_scale", "good_steps"),
    *("learning_rate", "iter", "decay", "save_counter", "training_step", "accum_step"),
)
_OPTIMIZER_ENDS = frozenset((*_SLOTS, *_OPTIMIZERS, *(f"{name}_1" for name in _OPTIMIZERS), *_COUNTERS))
_OPTIMIZER_PARTS = frozenset(("optimizer", ".OPTIMIZER_SLOT", "optimizer_state"))
_TIED = {  # copies of one logical parameter that other programs store twice: the reader compares them with the original
    "cls.predictions.decoder.weight": "embeddings/word_embeddings",
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
    "masked_lm/embedding_table": "embeddings/word_embeddings",
}


@dataclass(frozen=True)
class Found:
    """What ``resolve`` made of a file's names.

    Attributes:
        column: the column of the table that was read.
        scope: what stands before the names in this file.
        names: our name -> the file's name.
        copies: our name -> the file's names of further copies of it.
        ignored: kind -> the file's names that are no weights ("optimizer", "integer buffer", "scalar", ...).
        unexpected: names that nobody understands.
        layers: number of encoder layers in the file.
    """

    column: str
    scope: str = ""
    names: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[str]] = field(default_factory=dict)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    layers: int = 0


def rows(layers: int) -> list[tuple[Row, dict[str, object]]]:
    """Every row of the table for a model of so many layers, with the values that fill its templates.

    Example:
        >>> [row.ours.format(**at) for row, at in rows(2)][5]
        'encoder/layer_0/attention/self/query/kernel'
    """
    out = []
    for row in TABLE:
        for i in range(layers) if "{i}" in row.ours else (0,):
            out.append((row, _at(i, layers)))
    # Layer by layer, not kernel by kernel: that is the order of the files and of the progress that users see.
    place = {id(row): k for k, row in enumerate(TABLE)}
    first = next(k for k, row in enumerate(TABLE) if "{i}" in row.ours)
    return sorted(
        out,
        key=lambda p: (first, p[1]["i"], place[id(p[0])]) if "{i}" in p[0].ours else (place[id(p[0])], 0, 0),
    )


def _at(i: int, layers: int) -> dict[str, object]:
    return {"i": i, "j": i + 4, "p": layers + 4, "s": f"_{i}" if i else ""}


def our_names(layers: int) -> list[str]:
    """Our names of everything in the table, heads included, in the order of the encoder."""
    return [row.ours.format(**at) for row, at in rows(layers)]


def shapes(config) -> dict[str, tuple[int, ...]]:
    """Our name -> shape, for the tensors whose shape the config fixes (all but ``classifier/*``)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    fixed = {
        "embeddings/word_embeddings": (config.vocab_size, hidden),
        "embeddings/position_embeddings": (config.max_position_embeddings, hidden),
        "embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
        "cls/squad/output_weights": (2, hidden),
        "cls/squad/output_bias": (2,),
    }
    out, positions = {}, "embeddings/position_embeddings"
    for row, at in rows(config.num_hidden_layers):
        name = row.ours.format(**at)
        if name.startswith("classifier/") or (name == positions and config.position_embedding != "learned"):
            continue
        heads = config.heads_of(at["i"]) * config.head_size  # fewer than hidden where heads are pruned
        if name in fixed:
            out[name] = fixed[name]
        elif "/attention/self/" in name:
            out[name] = (hidden, heads) if name.endswith("kernel") else (heads,)
        elif row.ours == "encoder/layer_{i}/attention/output/dense/kernel":
            out[name] = (heads, hidden)
        elif "/intermediate/dense/" in name:
            out[name] = (hidden, inner) if name.endswith("kernel") else (inner,)
        elif row.ours == "encoder/layer_{i}/output/dense/kernel":
            out[name] = (inner, hidden)
        else:
            out[name] = (hidden, hidden) if name.endswith("kernel") else (hidden,)
    return out


def foreign_names(column: str, layers: int) -> dict[str, str]:
    """Our name -> the name in that column, for the tensors that the format has; suffixes included, scopes not."""
    suffix = _SUFFIX.get(column, "")
    scope = "encoder/" if column == "model_garden" else ""
    out = {}
    for row, at in rows(layers):
        if name := getattr(row, column):
            lead = scope if name.startswith(_LWW) else ""
            out[row.ours.format(**at)] = lead + name.format(**at) + suffix
    return out


_ROW_OF = {row.ours: row for row in TABLE}


def layout(column: str, ours: str) -> str:
    """How the tensor of that (our) name lies in that column: a key of the table at ``LAYOUTS``."""
    parts = ours.split("/")
    if parts[0] == "encoder" and len(parts) > 1 and parts[1].startswith("layer_"):
        ours = "/".join(("encoder", "layer_{i}", *parts[2:]))
    row = _ROW_OF.get(ours)
    return "same" if row is None else LAYOUTS[row.kind].get(column, "same")


def to_ours(array: np.ndarray, how: str) -> np.ndarray:
    """A tensor as it lies in a file -> as it lies in our model. A view where it can be one."""
    if how == "transpose":
        return array.T
    if how == "heads_in":
        return array.reshape(*array.shape[:-2], -1)
    if how == "heads_out":
        return array.reshape(-1, *array.shape[2:])
    return array


def from_ours(array: np.ndarray, how: str, heads: int) -> np.ndarray:
    """The way back of ``to_ours``; ``heads`` is the number of attention heads."""
    if how == "transpose":
        return array.T
    if how == "heads_in":
        return array.reshape(*array.shape[:-1], heads, -1)
    if how == "heads_out":
        return array.reshape(heads, -1, *array.shape[1:])
    return array


def shape_of_ours(shape: Iterable[int], how: str) -> tuple[int, ...]:
    """The shape that ``to_ours`` gives, without the array."""
    shape = tuple(shape)
    if how == "transpose":
        return shape[::-1]
    if how == "heads_in" and len(shape) >= 2:
        return (*shape[:-2], shape[-2] * shape[-1])
    if how == "heads_out" and len(shape) >= 2:
        return (shape[0] * shape[1], *shape[2:])
    return shape


def _in_memory(template: str, row: Row) -> str:
    for there, here in _IN_MEMORY:
        template = template.replace(there, here)
    ends = ("gamma", "beta") if row.ours.endswith(("gamma", "beta")) else ("kernel", "bias")
    return template.replace("vars/0", ends[0]).replace("vars/1", ends[1])


def ignorable(key: str, shape: tuple[int, ...], dtype: str) -> str | None:
    """Why a name that is in no row of the table may be passed over: the kind, or None where it may not.

    Example:
        >>> ignorable("bert/pooler/dense/kernel/adam_m", (4, 4), "float32")
        'optimizer'
    """
    parts = key.removesuffix(":0").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
    if parts[-1] in _OPTIMIZER_ENDS or not _OPTIMIZER_PARTS.isdisjoint(parts):
        return "optimizer"
    if parts[-1] == "ExponentialMovingAverage":
        return "moving average"
    if parts[-1] == "_CHECKPOINTABLE_OBJECT_GRAPH":
        return "bookkeeping"
    if "int" in dtype or dtype == "bool":
        return "integer buffer"
    if tuple(shape) == ():
        return "scalar"
    return None


def column_names(column: str, layers: int) -> dict[str, str]:
    """Every spelling that the column accepts -> our name; without scopes and suffixes."""
    out: dict[str, str] = {}
    endings = [(end, other) for of, end, other in _SPELLINGS if of == column]
    for row, at in rows(layers):
        if (template := getattr(row, column)) is None:
            continue
        spellings = [template] + ([_in_memory(template, row)] if column == "keras_nlp" else [])
        spellings += [template.removesuffix(end) + other for end, other in endings if template.endswith(end)]
        for spelling in spellings:
            name = spelling.format(**at)
            out[name] = row.ours.format(**at)
            if (root := _ROOT[column]) and name.startswith(root):
                out[name.removeprefix(root)] = out[name]  # the bare encoder, without its model's root
    return out


def resolve(column: str, keys: Mapping[str, tuple[tuple[int, ...], str]], scope: str | None = None) -> Found:
    """Says of every name in a file what it is.

    Args:
        column: one of ``COLUMNS``, or "keras_bert_lab" (our own names, which need no table).
        keys: the file's names with shape and dtype.
        scope: what stands before BERT's names in this file ("query_tower/"); None tries the well-known ones.

    Raises:
        UserError: two models in one file, with the scopes to choose from.
    """
    layers = _layers(column, keys)
    if column == "keras_bert_lab":
        return Found(column, names={key: key for key in keys}, layers=layers)

    suffix = _SUFFIX.get(column, "")
    known = column_names(column, layers)
    bare = {key: _bare(column, key).removesuffix(suffix) for key in keys}
    scopes = _SCOPES[column] if scope is None else (scope,)
    hits = {s: sum(1 for name in bare.values() if name.startswith(s) and name[len(s) :] in known) for s in scopes}
    best = max(scopes, key=lambda s: hits[s])  # the first of equals

    found = Found(column, scope=best, layers=layers)
    bound = ("embeddings/", "encoder/") if column == "model_garden" else ("embeddings/", "encoder/", "pooler/")
    for key, (shape, dtype) in keys.items():
        name = bare[key]
        inside = name.startswith(best)
        inner = name[len(best) :] if inside else name
        ours = known.get(inner)
        if not inside and ours is not None and ours.startswith(bound):
            ours = None  # a head may stand outside the encoder's scope; another encoder is another model
        if ours is not None and ours in found.names:
            found.copies.setdefault(ours, []).append(key)
        elif ours is not None:
            found.names[ours] = key
        elif inner in _TIED:
            found.copies.setdefault(_TIED[inner], []).append(key)
        elif kind := ignorable(key, shape, dtype):
            found.ignored.setdefault(kind, []).append(key)
        elif scope is not None and not inside:
            found.ignored.setdefault(f"outside {scope!r}", []).append(key)
        else:
            found.unexpected.append(key)
    for ours, copies in found.copies.items():
        if ours not in found.names:  # a file may keep the decoder's name of what both share
            found.names[ours] = copies.pop(0)
        second = [key for key in copies if key.removeprefix(best) not in _TIED]
        if second and column in ("bert", "huggingface"):
            raise UserError(
                found.names[ours],
                f"the file has a second tensor for {ours}: {second[0]}",
                "say which is meant by its scope (scope= or --scope)",
            )
    return found


def _layers(column: str, keys: Iterable[str]) -> int:
    """The number of encoder layers, counted from 0 without a gap."""
    layers = 0
    while any(mark.format(**_at(layers, 0)) in key for mark in _LAYER_MARKS[column] for key in keys):
        layers += 1
    return layers


def _bare(column: str, key: str) -> str:
    if column != "huggingface_h5":
        return key
    # "bert/tf_bert_for_token_classification_1/bert/encoder/...:0": what matters begins after the class's own scope
    parts = key.removesuffix(":0").split("/")
    last = max((k for k, part in enumerate(parts) if part.startswith("tf_")), default=-1)
    return "/".join(parts[last + 1 :])


def scopes_that_fit(column: str, keys: Iterable[str]) -> dict[str, int]:
    """Scope -> how many names it would explain: what an error proposes when nothing matched."""
    if column == "keras_bert_lab":
        return {}
    keys = list(keys)
    known, suffix, out = column_names(column, _layers(column, keys)), _SUFFIX.get(column, ""), {}
    anchors = [name for name, ours in known.items() if ours == "embeddings/word_embeddings"]
    names = [_bare(column, key).removesuffix(suffix) for key in keys]
    for name in names:
        for anchor in anchors:
            if name.endswith(anchor) and name != anchor and name[: -len(anchor)][-1] in "/.":
                scope = name[: -len(anchor)]
                out[scope] = sum(1 for n in names if n.startswith(scope) and n[len(scope) :] in known)
    best = max(out.values(), default=0)
    return {scope: n for scope, n in out.items() if n == best}


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a shell-style pattern ("classifier/*") fits the name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
