"""From a path as people write it to an open file of tensors with its config and vocabulary. Floor 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import readers
from .config import BertConfig
from .errors import UserError

_HUGGING = (  # in the order of preference, with the column of names.TABLE
    ("model.safetensors", "huggingface"),
    ("model.safetensors.index.json", "huggingface"),
    ("pytorch_model.bin", "huggingface"),
    ("pytorch_model.bin.index.json", "huggingface"),
    ("tf_model.h5", "huggingface_h5"),
)
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z")


@dataclass
class Place:
    """What was found: an open reader, what stands beside it, and the choices made (``notes``)."""

    path: str
    reader: Any
    column: str | None = None  # None: the names inside decide
    config: BertConfig | None = None
    config_path: Path | None = None
    vocab_path: Path | None = None
    record: dict[str, Any] | None = None
    notes: Sequence[str] = ()


def locate(path: Any, format: str | None = None) -> Place:
    """Opens what ``path`` names; see ``checkpoint.open_checkpoint``."""
    if hasattr(path, "weights") and not isinstance(path, str | Path):
        return _in_memory(path)
    path = Path(path).expanduser()
    if path.is_dir():
        return _directory(path, format)
    if path.is_file() and path.name == "checkpoint":
        return _tensorflow(*_from_checkpoint_file(path.parent))
    if (prefix := _prefix(path)) is not None:
        return _tensorflow(prefix, ())
    if path.is_file():
        return _file(path)
    raise UserError(path, "there is no such checkpoint", _nearby(path))


def _in_memory(model: Any) -> Place:
    if (config := config_of(model)) is not None:
        return Place(f"{type(model).__name__} in memory", readers.KerasObject(model), "keras_bert_lab", config=config)
    if type(model).__name__ == "BertBackbone":
        config = BertConfig.from_dict(model.get_config(), "keras_nlp")
        return Place("BertBackbone in memory", readers.KerasObject(model), "keras_nlp", config=config)
    raise UserError(
        type(model).__name__,
        "is neither a BertBackbone nor one of our models",
        "give model.backbone, or a path",
    )


def config_of(model: Any) -> BertConfig | None:
    """The config of a Keras model that is built of our layers; None for others."""
    for part in (model, *getattr(model, "layers", ())):
        if isinstance(config := getattr(part, "config", None), BertConfig):
            return config
    return None


def _directory(path: Path, format: str | None) -> Place:
    files = {p.name for p in path.iterdir()}
    indices = sorted(name for name in files if name.endswith(".index"))
    hugging = [(name, column) for name, column in _HUGGING if name in files]
    kinds = {
        "keras_bert_lab": "artifact.json" in files,
        "keras_nlp": "model.weights.h5" in files or "model.weights.json" in files,
        "huggingface": bool(hugging),
        "bert": bool(indices) or any(".data-" in name for name in files),
    }
    kinds["model_garden"] = kinds["bert"]
    if format is not None and not kinds[format]:
        raise UserError(path, f"holds no {format} checkpoint", f"there are: {', '.join(sorted(files)) or 'no files'}")
    kind = format or next((k for k, there in kinds.items() if there), None)
    if kind is None:
        if archives := [name for name in sorted(files) if name.endswith(_ARCHIVES)]:
            raise UserError(path, f"holds {archives[0]}, which is packed", "unpack it first")
        said = ", ".join(sorted(files)) or "no files"
        raise UserError(
            path,
            f"holds no checkpoint (there are: {said[:300]})",
            "wanted: bert_model.ckpt.index, model.safetensors, pytorch_model.bin, tf_model.h5, model.weights.h5 "
            "or artifact.json",
        )
    others = [
        k
        for k, there in kinds.items()
        if there and k not in (kind, "model_garden") and (kind, k) != ("model_garden", "bert")
    ]
    notes = [f"there is a {k} checkpoint too; {kind} was read (say the format for the other)" for k in others]
    if kind == "keras_bert_lab":
        return _ours(path, notes)
    if kind == "keras_nlp":
        return _preset(path, notes)
    if kind == "huggingface":
        name, column = hugging[0]
        if len(hugging) > 1:
            notes.append(f"read {name}; {', '.join(n for n, _ in hugging[1:])} lies there too")
        elif name.startswith("pytorch_model"):
            notes.append(f"only {name} is there, no safetensors")
        place = _file(path / name)
        return Place(**{**vars(place), "path": str(path), "column": column, "notes": (*notes, *place.notes)})
    prefix, more = _from_checkpoint_file(path)
    return _tensorflow(prefix, (*notes, *more))


def _from_checkpoint_file(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The prefix that a directory means, and what to say about the choice."""
    prefixes = {p.with_suffix("") for p in path.glob("*.index")}
    notes: tuple[str, ...] = ()
    if (state := path / "checkpoint").is_file():
        named = _named(state)
        if named is not None:
            here = path / named.name  # the file may still speak of the directory where it was written
            for prefix in (here, path / named):
                if Path(f"{prefix}.index").is_file():
                    return prefix, (f"read {prefix.name}, which the file 'checkpoint' names",) if len(
                        prefixes
                    ) > 1 else ()
            notes = (f"the file 'checkpoint' names {named}, which is not there",)
    if not prefixes:
        data = sorted(path.glob("*.data-?????-of-?????"))
        culprit = f"{str(data[0])[: -len('.data-00000-of-00001')]}.index" if data else path
        raise UserError(culprit, "missing: the .data file alone cannot be read", "put the .index file beside it")
    if len(prefixes) == 1:
        return prefixes.pop(), notes
    steps = {p: _step(p.name) for p in prefixes}
    best = max(steps.values())
    top = sorted(str(p.name) for p, step in steps.items() if step == best)
    if len(top) > 1:
        raise UserError(
            path,
            f"holds several checkpoints and nothing says which: {', '.join(top)}",
            "give the one to read by its name",
        )
    return path / top[0], (*notes, f"read {top[0]}, the highest step of {len(prefixes)} checkpoints")


def _named(state: Path) -> Path | None:
    for line in state.read_text("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model_checkpoint_path":
            return Path(value.strip().strip('"').replace('\\"', '"').replace("\\\\", "\\"))
    return None


def _step(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _prefix(path: Path) -> Path | None:
    """The prefix that a path into a TensorFlow checkpoint means, or None if it is none."""
    name = path.name
    if name.endswith((".index", ".meta")):
        prefix = path.with_name(name.rpartition(".")[0])
    elif ".data-" in name:
        prefix = path.with_name(name.rpartition(".data-")[0])
    else:
        prefix = path
    if Path(f"{prefix}.index").is_file():
        return prefix
    there = (
        [p.name for p in (Path(f"{prefix}.meta"), *prefix.parent.glob(f"{prefix.name}.data-*")) if p.is_file()]
        if prefix.parent.is_dir()
        else []
    )
    if there and (prefix != path or not path.is_file()):
        raise UserError(
            f"{prefix}.index",
            f"missing: {', '.join(there)} alone cannot be read",
            "put the .index file beside it",
        )
    return None


def _tensorflow(prefix: Path, notes: Sequence[str]) -> Place:
    folder = prefix.parent
    return Place(
        str(prefix),
        readers.TensorFlowFile(prefix),
        config_path=_config_beside(folder),
        vocab_path=_vocab(folder),
        notes=notes,
    )


def _config_beside(folder: Path) -> Path | None:
    for name in ("bert_config.json", "config.json"):
        if (folder / name).is_file():
            return folder / name
    others = sorted(folder.glob("*bert_config*.json"))
    return others[0] if len(others) == 1 else None


def _vocab(folder: Path) -> Path | None:
    return path if (path := folder / "vocab.txt").is_file() else None


def _file(path: Path) -> Place:
    folder, name = path.parent, path.name

    def place(reader: Any, column: str) -> Place:
        config = folder / "config.json"
        there = config if config.is_file() else None
        return Place(str(path), reader, column, config_path=there, vocab_path=_vocab(folder))

    if name.endswith(".safetensors"):
        if name == "weights.safetensors" and (folder / "artifact.json").is_file():
            return _ours(folder, ())
        return place(readers.SafetensorsFile([path]), "huggingface")
    if name.endswith(".index.json"):
        files = readers.shards(path)
        kind = readers.SafetensorsFile if all(f.suffix == ".safetensors" for f in files) else readers.TorchFiles
        return place(kind(files), "huggingface")
    if name.endswith((".bin", ".pt", ".pth")):
        return place(readers.TorchFiles([path]), "huggingface")
    if name.endswith((".h5", ".hdf5")):
        if name == "model.weights.h5" and (folder / "config.json").is_file():
            return _preset(folder, ())
        reader = readers.H5File(path)
        column = "keras_nlp" if any(key.startswith("layers/") for key in reader.entries) else "huggingface_h5"
        return place(reader, column)
    if name.endswith(_ARCHIVES):
        raise UserError(path, "is packed", "unpack it and give the directory")
    raise UserError(
        path,
        "is no checkpoint that this package reads",
        "give a .safetensors, .bin, .h5 or .index file, or its directory",
    )


def _preset(path: Path, notes: Sequence[str]) -> Place:
    config = path / "config.json"
    if not config.is_file():
        raise UserError(
            config,
            "missing: a keras-nlp preset has it beside model.weights.h5",
            "save it with backbone.save_to_preset",
        )
    if not (path / "model.weights.h5").is_file():
        raise UserError(
            path,
            "holds a sharded keras-nlp preset",
            "load it with keras-nlp and save it in one file, or give the BertBackbone itself",
        )
    vocabs = [p for p in (path / "assets/tokenizer/vocabulary.txt", path / "vocab.txt") if p.is_file()]
    reader = readers.H5File(path / "model.weights.h5")
    return Place(
        str(path),
        reader,
        "keras_nlp",
        config_path=config,
        vocab_path=vocabs[0] if vocabs else None,
        notes=notes,
    )


def _ours(path: Path, notes: Sequence[str]) -> Place:
    file, weights = path / "artifact.json", path / "weights.safetensors"
    try:
        record = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise UserError(file, f"is damaged ({error})", "write it again") from None
    if not isinstance(record, dict) or record.get("format_version") != 1:
        version = record.get("format_version") if isinstance(record, dict) else None
        raise UserError(
            file,
            f"has format version {version!r}, this package reads 1",
            "use a newer release of keras_bert_lab",
        )
    if "config" not in record or not weights.is_file():
        raise UserError(path, f"holds no {'config' if 'config' not in record else weights.name}", "write it again")
    return Place(
        str(path),
        readers.SafetensorsFile([weights]),
        "keras_bert_lab",
        config_path=file,
        vocab_path=_vocab(path),
        record=record,
        notes=notes,
    )


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no directory {path.parent} either"
    there = sorted(p.name for p in path.parent.iterdir())
    return f"in {path.parent} there are: {', '.join(there)[:300] or 'no files'}"
