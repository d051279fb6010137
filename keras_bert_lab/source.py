"""An open checkpoint: its format, config, vocabulary, and its tensors by our names, read one at a time. Floor 3."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import names, readers
from .config import BertConfig
from .errors import UserError
from .locate import Place, locate
from .wordpiece import Tokenizer, read_vocab

FORMATS = names.FORMATS
ENCODER = ("embeddings/", "encoder/")  # tensors without which it is no BERT
TABLE = "embeddings/word_embeddings"
_SPOKEN = {
    "bert": "original TF1 BERT",
    "huggingface": "Hugging Face",
    "model_garden": "TensorFlow Model Garden",
    "keras_nlp": "keras-nlp BertBackbone",
    "keras_bert_lab": "keras_bert_lab",
}


@dataclass
class Audit:
    """What became of every tensor, on both sides.

    Attributes:
        source: what was read, in words.
        loaded: our names that were read from the file.
        fresh: our names that keep their initial values, as declared.
        unused: our names that the file has and the model has not (heads, the pooler).
        ignored: kind -> names in the file that are no weights: "optimizer", "integer buffer", ...
        missing: our names that the model wants and the file lacks.
        unexpected: names in the file that nobody understands.
        misshapen: (our name, shape in the file, shape in the model), both in our layout.
        notes: sentences about choices that were made.
        unused_because: why the unused ones are not used.
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unused_because: str = "not used by this model"

    @property
    def counts(self) -> str:
        """One line: "46 used, 93 skipped (optimizer)"."""
        out = [f"{len(self.loaded)} used"]
        if self.fresh:
            out.append(f"{len(self.fresh)} fresh")
        if self.unused:
            out.append(f"{len(self.unused)} not used")
        kinds = {kind: len(keys) for kind, keys in self.ignored.items() if keys}
        if kinds:
            said = ", ".join(kinds) if len(kinds) == 1 else ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            out.append(f"{sum(kinds.values())} skipped ({said})")
        return ", ".join(out)

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.counts}"]
        lines += [f"  note: {note}" for note in self.notes]
        if self.fresh:
            lines.append(f"  freshly initialized: {', '.join(self.fresh)}")
        if self.unused:
            lines.append(f"  {self.unused_because}: {', '.join(self.unused)}")
        return "\n".join(lines + [f"  {line}" for line in self._complaints()])

    def _complaints(self) -> list[str]:
        out = []
        if self.missing:
            out.append(f"missing in the file ({len(self.missing)}): {', '.join(self.missing)}")
        if self.unexpected:
            out.append(f"unexpected in the file ({len(self.unexpected)}): {some(self.unexpected)}")
        if self.misshapen:
            said = []
            for name, theirs, ours in self.misshapen:
                odd = [(a, b) for a, b in zip(theirs, ours, strict=False) if a != b]
                said.append(f"{name} is {list(theirs)} in the file, {list(ours)} in the model")
                if name.startswith("classifier/") and len(odd) == 1:
                    said[-1] += f" ({odd[0][0]} labels against {odd[0][1]})"
            out.append(f"misshapen ({len(self.misshapen)}): {'; '.join(said)}")
        return out

    def raise_if_bad(self, remedy: str = "") -> None:
        """Raises ``UserError`` with all three lists if any of missing, unexpected, misshapen is not empty."""
        if complaints := self._complaints():
            raise UserError(self.source, f"{self.counts}; " + "; ".join(complaints), remedy)


class Source:
    """An open checkpoint: what it is and what it holds. Numbers are read when asked for.

    Attributes:
        path: where it lies (or the type of the object it is).
        format: one of ``FORMATS``; ``column`` tells Hugging Face's two ways of naming apart.
        reader: names, shapes and numbers as in the file.
        names: our names of the tensors it holds, in the order of the network.
        vocab_path: its vocabulary file, or None.
        notes: sentences about choices that were made in finding it.
        record: ``artifact.json``, where it is ours.
    """

    def __init__(self, place: Place, format: str | None = None, scope: str | None = None):
        self.path, self.reader, self.vocab_path = place.path, place.reader, place.vocab_path
        self.record, self.notes = place.record, list(place.notes)
        self.column = _recognise(place) if format is None else _column(place, format)
        self.format = "huggingface" if self.column == "huggingface_h5" else self.column
        self.found = names.resolve(self.column, self.reader.entries, scope)
        order = {name: k for k, name in enumerate(names.our_names(self.found.layers))}
        self.names = sorted(self.found.names, key=lambda n: (order.get(n, len(order)), n))
        self._config = self._read_config(place)
        if self._config is not None and any(name.startswith(ENCODER) for name in self.names):
            self._check_config(self._config)

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """One line: format, container, place."""
        return f"{self.path} ({_SPOKEN[self.format]}, {self.reader.container})"

    @property
    def config(self) -> BertConfig:
        """The checkpoint's config; ``UserError`` where there is none beside it."""
        if self._config is None:
            raise UserError(
                self.path,
                "has no config beside it",
                "put bert_config.json (or config.json) in the same directory",
            )
        return self._config

    @property
    def has_config(self) -> bool:
        return self._config is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor in our layout."""
        return names.shape_of_ours(self.reader.entries[self.found.names[name]][0], names.layout(self.column, name))

    def read(self, name: str) -> np.ndarray:
        """One tensor by our name, in our layout; floats come as float32."""
        array = np.asarray(self.reader.read(self.found.names[name]))
        array = names.to_ours(array, names.layout(self.column, name))
        return array.astype(np.float32, copy=False) if array.dtype.kind in "fV" else array

    def check_copies(self, wanted: Iterable[str]) -> list[str]:
        """Raises ``UserError`` where the masked-LM decoder is not the token table, as BERT's is.

        Numbers count, not what the config says: one parameter that is stored twice must be the same twice; then
        ``tie_word_embeddings`` false is a sentence in what is returned. It is an error where the file holds only one
        of the two: the other one, which the config says is apart, would be taken from it.

        Args:
            wanted: our names of the tensors that are used. Without ``cls/predictions/output_bias`` nobody decodes.
        """
        wanted = set(wanted)
        for name, keys in self.found.copies.items():
            decoder = [k for k in keys if "decoder" in k]
            if name not in wanted or (decoder == keys and "cls/predictions/output_bias" not in wanted):
                continue
            first = self.reader.read(self.found.names[name])
            for key in keys:
                if not np.array_equal(first, self.reader.read(key)):
                    raise UserError(
                        f"{self.path}: {key}",
                        f"differs from {self.found.names[name]}, of which it should be a copy",
                        "this model is not tied; BERT's is",
                    )
        untied = self._config is not None and not self._config.extra.get("tie_word_embeddings", True)
        # (transformers' TensorFlow classes have no decoder of their own, whatever their config says)
        if not untied or self.column != "huggingface" or TABLE not in wanted:
            return []
        stored = [self.found.names[TABLE], *self.found.copies.get(TABLE, ())]
        if "cls/predictions/output_bias" in wanted and len(stored) > 1:
            return [f"tie_word_embeddings is false, but {stored[1]} equals {stored[0]}: read as tied"]
        if "cls/predictions/output_bias" in wanted or "decoder" in stored[0]:
            raise UserError(
                f"{self.path}: {stored[0]}",
                "is the only one of token table and decoder, and the config says that they are two "
                "(tie_word_embeddings is false)",
                "if they are one after all, remove that key from config.json",
            )
        return []

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that the files beside the weights describe; None without a vocabulary."""
        if self.vocab_path is None:
            return None
        if self.record is not None and isinstance(self.record.get("text"), Mapping):
            settings = self.record["text"].get("tokenizer", {})
            return Tokenizer(self.vocab_path.read_bytes(), name=str(self.vocab_path), **settings)
        settings = (
            self.vocab_path.parents[2] / "tokenizer.json"
            if self.format == "keras_nlp" and len(self.vocab_path.parents) > 2
            else None
        )
        if settings is not None and settings.is_file():
            lower = bool(json.loads(settings.read_text("utf-8")).get("config", {}).get("lowercase", False))
            return Tokenizer(self.vocab_path.read_bytes(), lower_case=lower, name=str(self.vocab_path))
        return Tokenizer.from_vocab(self.vocab_path)

    def fingerprint(self) -> dict[str, Any]:
        """What to write down about where weights come from: name, format, files, SHA-256 over the files' bytes."""
        digest = hashlib.sha256()
        for path in self.reader.files:
            with open(path, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        name = Path(self.path).name if self.reader.files else str(self.path)
        return {
            "name": name,
            "format": self.format,
            "files": [p.name for p in self.reader.files],
            "sha256": digest.hexdigest(),
        }

    def audit(self) -> Audit:
        """What the file holds, before any model is asked: all that is understood counts as unused."""
        out = Audit(self.describe(), notes=list(self.notes))
        out.ignored = {kind: list(keys) for kind, keys in self.found.ignored.items()}
        for keys in self.found.copies.values():
            out.ignored.setdefault("tied copy", []).extend(keys)
        out.unexpected = list(self.found.unexpected)
        return out

    def listing(self) -> str:
        """The checkpoint as a person would read it: every tensor with shapes, its parts, and what loading would say."""
        parts: dict[str, int] = {}
        lines = [self.describe(), *(f"note: {note}" for note in self.notes)]
        wide = max((len(name) for name in self.names), default=0)
        lines += ["", f"{'name':{wide}}  {'shape':16} {'dtype':9} in the file"]
        for name in self.names:
            key = self.found.names[name]
            said = "x".join(map(str, self.shape(name))) or "scalar"
            lines.append(f"{name:{wide}}  {said:16} {self.reader.entries[key][1]:9} {key}")
            family = name.split("/")[0] if not name.startswith("cls/") else "/".join(name.split("/")[:2])
            parts[family] = parts.get(family, 0) + 1
        numbers = sum(math.prod(self.shape(name)) for name in self.names)
        said = ", ".join(f"{part} {count}" for part, count in parts.items())
        lines += [
            "",
            f"{len(self.names)} tensors, {numbers} numbers, {self.found.layers} layers: {said or 'none of a BERT'}",
        ]
        audit = self.audit()
        lines += [f"skipped: {len(keys)} {kind} ({some(keys, 3)})" for kind, keys in audit.ignored.items()]
        if audit.unexpected:
            lines.append(f"unexpected, loading refuses: {some(audit.unexpected)}")
        lines.append(f"config: {json.dumps(self.config.to_dict()) if self.has_config else 'none beside it'}")
        if self.vocab_path is not None:
            lines.append(f"vocabulary: {self.vocab_path}, {len(_entries(self.vocab_path))} entries")
        return "\n".join(lines)

    def require_encoder(self) -> None:
        """Raises ``UserError`` ("0 of 46 ...") if not one tensor of an encoder was recognised."""
        if any(name.startswith(ENCODER) for name in self.names):
            return
        skipped = sum(map(len, self.found.ignored.values()))
        total = len(self.reader.entries) - skipped
        fits = names.scopes_that_fit(self.column, self.reader.entries)
        remedy = "is this a BERT, and of this format? (format= or --from says another one)"
        if fits:
            remedy = "if these are BERT's, say under which scope: " + " or ".join(
                f"scope={s!r} ({n} match)" for s, n in fits.items()
            )
        raise UserError(
            self.describe(),
            f"{len(self.names)} of {total} tensors have names that this format knows, none of an encoder; "
            f"there are {some(self.found.unexpected)}",
            remedy,
        )

    # -- the config against the tensors ------------------------------------------------------------------------

    def _read_config(self, place: Place) -> BertConfig | None:
        if place.config is not None:
            return place.config
        if place.config_path is None:
            return None
        if self.record is not None:
            return BertConfig.from_dict(self.record["config"], "keras_bert_lab")
        kind = None if self.format == "bert" and place.config_path.name != "bert_config.json" else self.format
        if self.format == "model_garden" and "num_hidden_layers" in place.config_path.read_text("utf-8"):
            kind = None  # its converters keep the original's file beside the checkpoint
        return BertConfig.from_file(place.config_path, kind)

    def _check_config(self, config: BertConfig) -> None:
        facts = [("num_hidden_layers", config.num_hidden_layers, self.found.layers, "layers")]
        for name, axis, key in (
            ("embeddings/word_embeddings", 1, "hidden_size"),
            ("embeddings/position_embeddings", 0, "max_position_embeddings"),
            ("embeddings/token_type_embeddings", 0, "type_vocab_size"),
            ("encoder/layer_0/intermediate/dense/bias", 0, "intermediate_size"),
        ):
            if name in self.found.names and len(shape := self.shape(name)) > axis:
                facts.append((key, getattr(config, key), shape[axis], name))
        for key, said, there, where in facts:
            if said != there:
                raise UserError(
                    self.describe(),
                    f"its config says {key} {said}, its tensors {there} ({where})",
                    "config and weights belong to different models",
                )
        self._check_head_size(config.num_attention_heads)
        if "embeddings/word_embeddings" not in self.found.names:
            return
        rows = self.shape("embeddings/word_embeddings")[0]
        if rows < config.vocab_size:
            raise UserError(
                self.describe(),
                f"its config says vocab_size {config.vocab_size}, its table has {rows} rows",
                "config and weights belong to different models",
            )
        if rows > config.vocab_size:
            # padded tables (to a multiple of 8) with the config of the unpadded one: the table counts
            self.notes.append(
                f"the table has {rows} rows, the config says {config.vocab_size}: read with vocab_size {rows}"
            )
            self._config = config.replace(vocab_size=rows)
        if self.vocab_path is not None:
            check_vocabulary(self, len(_entries(self.vocab_path)))

    def _check_head_size(self, heads: int) -> None:
        # only the formats that keep heads as an axis can contradict the number of heads
        bias = "encoder/layer_0/attention/self/query/bias"
        if names.layout(self.column, bias) != "heads_in" or bias not in self.found.names:
            return
        there = (*self.reader.entries[self.found.names[bias]][0], 0)[0]
        if there != heads:
            raise UserError(
                self.describe(),
                f"its config says num_attention_heads {heads}, its tensors {there}",
                "config and weights belong to different models",
            )


def open_checkpoint(path: Any, format: str | None = None, scope: str | None = None) -> Source:
    """Finds out what lies at ``path`` and opens it, without reading numbers.

    Args:
        path: a directory, or any file of a checkpoint: the TF1 prefix, its ``.index``, ``.data-*`` or ``.meta``, a
            ``.safetensors``, ``.bin`` or ``.h5`` file, an index of shards; or a keras-nlp ``BertBackbone`` or one of
            our models in memory.
        format: one of ``FORMATS`` where it should not be guessed.
        scope: what stands before BERT's names in the file ("query_tower/"), where it is not a well-known prefix.

    Raises:
        UserError: nothing there, a file of it missing or damaged, config and tensors contradict each other.

    Example:
        >>> open_checkpoint("uncased_L-12_H-768_A-12").config.num_hidden_layers     # doctest: +SKIP
        12
    """
    if isinstance(path, Source):
        return path
    if format is not None and format not in FORMATS:
        raise UserError("format", f"{format!r} is unknown", f"choose one of {', '.join(FORMATS)}")
    return Source(locate(path, format), format, scope)


def check_vocabulary(source: Source, entries: int) -> None:
    """A table larger than the vocabulary is fine (padding); a vocabulary larger than the table is a ``UserError``."""
    if "embeddings/word_embeddings" in source.found.names:
        rows = source.shape("embeddings/word_embeddings")[0]
        if entries > rows:
            raise UserError(
                source.vocab_path or source.path,
                f"has {entries} entries, but the checkpoint's table only {rows} rows",
                "this vocabulary belongs to another model",
            )


def _recognise(place: Place) -> str:
    if place.column is not None:
        return place.column
    if any(key.endswith("/.ATTRIBUTES/VARIABLE_VALUE") for key in place.reader.entries):
        return "model_garden"
    return "bert"


def _column(place: Place, format: str) -> str:
    if format == "huggingface" and isinstance(place.reader, readers.H5File):
        return "huggingface_h5"
    return format


def _entries(vocab: Path) -> list[str]:
    lines = list(read_vocab(vocab.read_bytes()))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def some(items: list[str], most: int = 12) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
