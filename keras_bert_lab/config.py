"""The numbers that make a BERT, read from the JSON of five kinds of checkpoints and written back.

The fields are those of ``bert_config.json``. What another format cannot say travels in one extra key,
``"keras_bert_lab"``, that only our reader honours; :meth:`BertConfig.losses_for` names it in sentences.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UserError

SOURCES = ("bert", "huggingface", "model_garden", "keras_nlp", "keras_bert_lab")
OUR_KEY = "keras_bert_lab"

# Ours: "gelu" is the exact form x/2 (1 + erf(x / sqrt 2)) (Hendrycks & Gimpel 2016, eq. 1), "gelu_new" its tanh
# approximation (the same paper, section 2; `gelu` of google-research/bert modeling.py).
ACTIVATIONS = ("gelu", "gelu_new", "relu", "tanh", "linear", "silu", "swiglu", "geglu")
GATED = ("swiglu", "geglu")
_ALIASES = {
    "gelu_exact": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_approximate": "gelu_new",
    "swish": "silu",
    "identity": "linear",
}
NORM_POSITIONS = ("post", "pre")
POSITION_EMBEDDINGS = ("learned", "sinusoidal", "rotary")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Shape and options of an encoder; immutable and checked when made.

    Args:
        vocab_size: rows of the token table.
        hidden_size: width H of the residual stream; divisible by ``num_attention_heads``.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads of an unpruned layer; a head is ``hidden_size // num_attention_heads`` wide.
        intermediate_size: width of the feed-forward layer (for gated activations: of each of its two halves).
        hidden_act: one of ``ACTIVATIONS``. ``"gelu"`` is exact (erf), ``"gelu_new"`` the tanh form: the original
            ``bert_config.json`` writes the latter as "gelu", and is read so.
        hidden_dropout_prob: dropout after the embeddings and after both products that end in the residual stream.
        attention_probs_dropout_prob: dropout on the attention probabilities.
        max_position_embeddings: longest input, in pieces.
        type_vocab_size: number of segments.
        initializer_range: standard deviation of the truncated normal that fresh kernels and tables are drawn from.
        layer_norm_eps: added to the variance in every layer norm.
        pad_token_id: id that fills rows; where no mask is given, it is what the mask leaves out.
        norm_position: ``"post"`` (original: norm after the residual sum) or ``"pre"`` (Xiong et al. 2020, "On Layer
            Normalization in the Transformer Architecture", fig. 1b: norm of each sublayer's input, and one after the
            last layer).
        position_embedding: ``"learned"`` (original), ``"sinusoidal"`` (Vaswani et al. 2017, section 3.5) or
            ``"rotary"`` (Su et al. 2021, "RoFormer", section 3.2.2).
        attention_heads: for every layer the numbers of the heads that are kept, or None where none is pruned.
        extra: keys of the file that are not ours, kept for the way back.

    Raises:
        UserError: a value is not of its kind, or two contradict each other.

    Example:
        >>> BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, intermediate_size=1536).head_size
        32
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    norm_position: str = "post"
    position_embedding: str = "learned"
    attention_heads: tuple[tuple[int, ...], ...] | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        for name in _COUNTS:
            value = getattr(self, name)
            least = 0 if name == "pad_token_id" else 1
            if not _is_number(value) or value != int(value) or value < least:
                raise UserError(name, f"{value!r} is not a whole number of at least {least}", "correct the config")
            put(name, int(value))
        for name in _RATES:
            value = getattr(self, name)
            # The original's own reader takes a missing dropout as 0, and JSON says missing as null.
            value = 0.0 if value is None and name.endswith("_prob") else value
            below = 1.0 if name.endswith("_prob") else float("inf")
            if not _is_number(value) or not 0 <= value < below:
                raise UserError(name, f"{value!r} is not a number from 0 to below {below:g}", "correct the config")
            put(name, float(value))
        if self.layer_norm_eps == 0:
            raise UserError("layer_norm_eps", "0 divides by zero on a constant row", "BERT's is 1e-12")
        put("hidden_act", _activation(self.hidden_act))
        _one_of("norm_position", self.norm_position, NORM_POSITIONS)
        _one_of("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                "hidden_size",
                f"{self.hidden_size} cannot be divided among {self.num_attention_heads} attention heads",
                "choose num_attention_heads so that it divides hidden_size",
            )
        if self.position_embedding == "rotary" and self.head_size % 2:
            raise UserError(
                "position_embedding", f"rotary turns pairs of channels, but a head is {self.head_size} wide (odd)"
            )
        if self.pad_token_id >= self.vocab_size:
            raise UserError("pad_token_id", f"{self.pad_token_id} is outside the table of {self.vocab_size} rows")
        put("attention_heads", self._checked_heads())
        if not isinstance(self.extra, Mapping):
            raise UserError("extra", f"{self.extra!r} is not a mapping")
        clash = sorted(set(self.extra) & ({f.name for f in dataclasses.fields(self)} | {OUR_KEY}))
        if clash:
            raise UserError("extra", f"holds keys of the config itself: {', '.join(clash)}", "give them as fields")
        put("extra", dict(self.extra))

    def _checked_heads(self) -> tuple[tuple[int, ...], ...] | None:
        if self.attention_heads is None:
            return None
        everything = tuple(range(self.num_attention_heads))
        if len(self.attention_heads) != self.num_hidden_layers:
            raise UserError(
                "attention_heads",
                f"lists the heads of {len(self.attention_heads)} layers of {self.num_hidden_layers}",
            )
        layers = []
        for layer, heads in enumerate(self.attention_heads):
            kept = tuple(sorted({int(head) for head in heads}))
            if len(kept) != len(heads) or not set(kept) <= set(everything):
                raise UserError(
                    f"attention_heads of layer {layer}",
                    f"{list(heads)} are not different heads from 0 to {self.num_attention_heads - 1}",
                )
            if not kept:
                raise UserError(f"attention_heads of layer {layer}", "no head is left", "keep at least one")
            layers.append(kept)
        return None if all(kept == everything for kept in layers) else tuple(layers)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def heads_of(self, layer: int) -> int:
        """Number of heads that layer ``layer`` (from 0) still has."""
        return self.num_attention_heads if self.attention_heads is None else len(self.attention_heads[layer])

    def replace(self, **changes: Any) -> BertConfig:
        """A copy with some fields changed, checked like a new one."""
        _known_fields(changes)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str | None = None) -> BertConfig:
        """Reads a config that was parsed from JSON.

        Args:
            values: the parsed file.
            source: ``"bert"`` (original), ``"huggingface"``, ``"model_garden"``, ``"keras_nlp"`` or
                ``"keras_bert_lab"``; recognised from the keys when None (original where nothing tells otherwise).

        Raises:
            UserError: a key is missing, has a value that we do not know, or asks for what is no BERT.

        Example:
            >>> BertConfig.from_dict({"vocab_size": 100, "hidden_act": "gelu"}).hidden_act  # the original's gelu
            'gelu_new'
        """
        if not isinstance(values, Mapping):
            raise UserError("config", f"is {type(values).__name__}, not a JSON object")
        if not isinstance(values.get(OUR_KEY, {}), Mapping):
            raise UserError(OUR_KEY, f"{values[OUR_KEY]!r} is not a JSON object", "remove the key")
        source = _recognise(values) if source is None else source
        _one_of("config source", source, SOURCES)
        rest = dict(values)
        ours = dict(rest.pop(OUR_KEY, {}))
        fields = _READERS[source](rest)
        ours.pop("source", None)
        _known_fields(ours)
        fields.update(ours)
        if "vocab_size" not in fields:
            raise UserError("config", f"has no vocab_size (read as {source})", "is this the config of a BERT?")
        if fields.get("attention_heads") is not None:
            fields["attention_heads"] = tuple(tuple(heads) for heads in fields["attention_heads"])
        return cls(**{"extra": rest, **fields})

    @classmethod
    def from_file(cls, path: str | Path, source: str | None = None) -> BertConfig:
        """Reads a JSON file, or the one in a directory (``bert_config.json`` before ``config.json``).

        A ``config.json`` without any key that tells its origin is taken as Hugging Face's, any other name as the
        original's: that decides what "gelu" means.

        Raises:
            UserError: no such file, no JSON, or what :meth:`from_dict` refuses.
        """
        path = Path(path)
        if path.is_dir():
            found = [path / name for name in ("bert_config.json", "config.json") if (path / name).is_file()]
            if not found:
                raise UserError(path, "holds neither bert_config.json nor config.json", "name the file itself")
            path = found[0]
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(path, "there is no such file", "check the path") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(path, f"is not JSON ({error})", "is it the config file?") from None
        if source is None and isinstance(values, Mapping) and path.name == "config.json":
            source = _recognise(values, otherwise="huggingface")
        try:
            return cls.from_dict(values, source)
        except UserError as error:
            raise UserError(f"{path}: {error.culprit}", error.evidence, error.remedy) from None

    def to_dict(self, target: str = "keras_bert_lab") -> dict[str, Any]:
        """The config as ``target`` writes it, JSON-able; keys that were not ours are there again.

        What the target has no word for is under the key ``"keras_bert_lab"`` (see :meth:`losses_for`), so that
        ``BertConfig.from_dict(c.to_dict(t), t) == c`` for every target.
        """
        _one_of("config target", target, SOURCES)
        written = self._written(target)
        beyond = self._beyond(target)
        if _recognise(written) != target:  # a key kept from elsewhere would mislead us on reading this again
            beyond = {"source": target, **beyond}
        if beyond:
            written[OUR_KEY] = beyond
        return written

    def losses_for(self, target: str) -> list[str]:
        """Sentences that name what ``target``'s own reader will not honour; empty where it reads the same model."""
        return [
            f"{target} cannot say {name} = {json.dumps(value)}: its own reader builds another model"
            for name, value in self._beyond(target).items()
            if name != "initializer_range"  # of fresh weights only: the model computes the same
        ]

    def _written(self, target: str) -> dict[str, Any]:
        kept = {} if target == "keras_bert_lab" else self.extra  # ours nests them: an unknown key there is an error
        return {**kept, **_WRITERS[target](self)}

    def _beyond(self, target: str) -> dict[str, Any]:
        said = BertConfig.from_dict(self._written(target), target)
        names = [field.name for field in dataclasses.fields(self) if field.name != "extra"]
        return {name: _plain(getattr(self, name)) for name in names if getattr(self, name) != getattr(said, name)}


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
)
_HUGGINGFACE_ONLY = (
    "model_type", "architectures", "transformers_version", "layer_norm_eps", "pad_token_id", "position_embedding_type"
)  # fmt: skip
_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps")
# What `BertConfig.to_json_file` of google-research/bert writes.
_ORIGINAL = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)


def _plain(value: Any) -> Any:
    return [list(kept) for kept in value] if isinstance(value, tuple) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_of(culprit: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(culprit, f"{value!r} is not known", f"choose one of {', '.join(known)}")


def _known_fields(names: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(BertConfig)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError("config", f"unknown fields {', '.join(unknown)}", f"the fields are {', '.join(known)}")


def _activation(name: Any, gelu: str = "gelu") -> str:
    """Our name of an activation; ``gelu`` says what the bare "gelu" means where the name was read."""
    if name is None or name == "":
        return "linear"  # as `get_activation` of the original
    if not isinstance(name, str):
        raise UserError("hidden_act", f"{name!r} is not the name of an activation", f"one of {', '.join(ACTIVATIONS)}")
    name = name.lower()
    name = gelu if name == "gelu" else _ALIASES.get(name, name)
    _one_of("hidden_act", name, ACTIVATIONS)
    return name


def _recognise(values: Mapping[str, Any], otherwise: str = "bert") -> str:
    if isinstance(values.get(OUR_KEY), Mapping) and values[OUR_KEY].get("source") in SOURCES:
        return values[OUR_KEY]["source"]
    if "position_embedding" in values or "norm_position" in values:
        return "keras_bert_lab"
    if ("class_name" in values and isinstance(values.get("config"), Mapping)) or "vocabulary_size" in values:
        return "keras_nlp"
    if "num_layers" in values and "num_hidden_layers" not in values:
        return "model_garden"
    if any(key in values for key in _HUGGINGFACE_ONLY):
        return "huggingface"
    return otherwise


def _refuse(rest: dict[str, Any], key: str, allowed: tuple[Any, ...], remedy: str = "") -> None:
    """Keeps ``key`` among the extra keys, but refuses a value that makes another network of it."""
    if key in rest and rest[key] not in allowed:
        raise UserError(key, f"{rest[key]!r} makes a network that this package does not build", remedy)


def _read_original(rest: dict[str, Any]) -> dict[str, Any]:
    fields = {name: rest.pop(name) for name in _ORIGINAL if name in rest}
    if "hidden_act" in fields:
        fields["hidden_act"] = _activation(fields["hidden_act"], gelu="gelu_new")
    # The original code never looks at an epsilon; a file that names another one was not written for it.
    _refuse(rest, "layer_norm_eps", (1e-12,), "read it with source 'huggingface'")
    _refuse(rest, "model_type", ("bert",))
    rest.pop("layer_norm_eps", None)
    return fields


def _read_huggingface(rest: dict[str, Any]) -> dict[str, Any]:
    _refuse(rest, "model_type", ("bert",), "only model_type 'bert' is this network")
    rest.pop("model_type", None)
    _refuse(rest, "position_embedding_type", ("absolute", None))
    _refuse(rest, "is_decoder", (False, None))
    _refuse(rest, "add_cross_attention", (False, None))
    _refuse(rest, "chunk_size_feed_forward", (0, None))
    if rest.get("embedding_size") not in (None, rest.get("hidden_size")):
        raise UserError("embedding_size", f"{rest['embedding_size']} is not hidden_size {rest.get('hidden_size')}")
    names = (*_ORIGINAL, "layer_norm_eps", "pad_token_id")
    fields = {name: rest.pop(name) for name in names if name in rest}
    if fields.get("pad_token_id", 0) is None:
        del fields["pad_token_id"]
    fields["hidden_act"] = _activation(fields.get("hidden_act", "gelu"))
    pruned = rest.pop("pruned_heads", None)
    if pruned:
        layers, heads = fields.get("num_hidden_layers", 12), fields.get("num_attention_heads", 12)
        gone = {int(layer): {int(head) for head in numbers} for layer, numbers in pruned.items()}
        if not all(0 <= layer < layers for layer in gone):
            raise UserError("pruned_heads", f"names layers {sorted(gone)} of {layers}")
        fields["attention_heads"] = [
            [head for head in range(heads) if head not in gone.get(layer, ())] for layer in range(layers)
        ]
    return fields


def _move(rest: dict[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for ours, theirs in names.items():
        for name in theirs:
            if name in rest:
                value = rest.pop(name)
                if fields.setdefault(ours, value) != value:
                    raise UserError(name, f"{value!r} contradicts {ours} = {fields[ours]!r} under its other name")
    return fields


# The field names of `BertEncoderConfig` and the arguments of `BertEncoder` (tensorflow/models, official/nlp).
_GARDEN = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_attention_heads",),
    "intermediate_size": ("intermediate_size", "inner_dim"),
    "hidden_act": ("hidden_activation", "inner_activation"),
    "hidden_dropout_prob": ("dropout_rate", "output_dropout"),
    "attention_probs_dropout_prob": ("attention_dropout_rate", "attention_dropout"),
    "max_position_embeddings": ("max_position_embeddings", "max_sequence_length"),
    "type_vocab_size": ("type_vocab_size",),
    "initializer_range": ("initializer_range",),
}


def _read_garden(rest: dict[str, Any]) -> dict[str, Any]:
    fields = _move(rest, _GARDEN)
    # Its pre-norm block has no norm after the last layer, so it is not our norm_position="pre".
    _refuse(rest, "norm_first", (False, None))
    _refuse(rest, "output_range", (None,))
    for name in ("embedding_size", "embedding_width"):
        _refuse(rest, name, (None, fields.get("hidden_size", 768)))
    if isinstance(fields.get("hidden_act"), str):
        fields["hidden_act"] = _activation(fields["hidden_act"], gelu="gelu_new")  # its gelu is the tanh form
    elif fields.get("hidden_act") is not None:
        raise UserError("hidden_activation", f"{fields['hidden_act']!r} is not a name", "write its name")
    return fields


# The arguments of `BertBackbone` (keras-nlp / keras-hub); eps 1e-12 and the tanh gelu are fixed there.
_KERAS_NLP = {
    "vocab_size": ("vocabulary_size",),
    "hidden_size": ("hidden_dim",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
    "intermediate_size": ("intermediate_dim",),
    "hidden_dropout_prob": ("dropout",),
    "max_position_embeddings": ("max_sequence_length",),
    "type_vocab_size": ("num_segments",),
}


def _read_keras_nlp(rest: dict[str, Any]) -> dict[str, Any]:
    _refuse(rest, "class_name", ("BertBackbone",))
    if isinstance(rest.get("config"), Mapping):  # a preset's file wraps the arguments with names of classes
        inner = dict(rest["config"])
        rest.clear()
        rest.update({key: value for key, value in inner.items() if key not in ("name", "trainable", "dtype")})
    fields = _move(rest, _KERAS_NLP)
    if "hidden_dropout_prob" in fields:  # one rate for both
        fields["attention_probs_dropout_prob"] = fields["hidden_dropout_prob"]
    return fields


def _read_ours(rest: dict[str, Any]) -> dict[str, Any]:
    extra = rest.pop("extra", {})
    _known_fields(rest)
    fields = dict(rest)
    rest.clear()
    rest.update(extra)
    return fields


def _write_original(config: BertConfig) -> dict[str, Any]:
    written = {name: getattr(config, name) for name in _ORIGINAL}
    written["hidden_act"] = {"gelu_new": "gelu", **dict.fromkeys(GATED, "gelu")}.get(
        config.hidden_act, config.hidden_act
    )
    return written


def _write_huggingface(config: BertConfig) -> dict[str, Any]:
    written = {name: getattr(config, name) for name in (*_ORIGINAL, "layer_norm_eps", "pad_token_id")}
    if config.hidden_act in GATED:
        written["hidden_act"] = "gelu"
    if config.attention_heads is not None:
        everything = range(config.num_attention_heads)
        written["pruned_heads"] = {
            str(layer): [head for head in everything if head not in kept]
            for layer, kept in enumerate(config.attention_heads)
            if len(kept) < config.num_attention_heads
        }
    return {"model_type": "bert", **written}


def _write_garden(config: BertConfig) -> dict[str, Any]:
    written = {theirs[0]: getattr(config, ours) for ours, theirs in _GARDEN.items()}
    return {**written, "hidden_activation": _write_original(config)["hidden_act"]}


def _write_keras_nlp(config: BertConfig) -> dict[str, Any]:
    return {theirs[0]: getattr(config, ours) for ours, theirs in _KERAS_NLP.items()}


def _write_ours(config: BertConfig) -> dict[str, Any]:
    written = {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
    return {**written, "extra": dict(config.extra)}


_READERS = {
    "bert": _read_original,
    "huggingface": _read_huggingface,
    "model_garden": _read_garden,
    "keras_nlp": _read_keras_nlp,
    "keras_bert_lab": _read_ours,
}
_WRITERS = {
    "bert": _write_original,
    "huggingface": _write_huggingface,
    "model_garden": _write_garden,
    "keras_nlp": _write_keras_nlp,
    "keras_bert_lab": _write_ours,
}
