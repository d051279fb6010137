"""Checkpoints into models, and from one format into another; every tensor accounted for on both sides. Floor 3.

    source = open_checkpoint("uncased_L-12_H-768_A-12")   # format, config, vocabulary, names; no numbers yet
    model = encoder(source.config)
    load(model, source, say=print)                        # used, fresh, skipped; anything else is an error
    convert(source, "bert-base-hf", to="huggingface", verify=True)

Numbers are read one tensor at a time: neither loading nor converting holds a second copy of the model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import names, parity, writers
from .errors import UserError
from .files import check_destination, new_directory
from .locate import config_of
from .source import ENCODER, FORMATS, Audit, Source, check_vocabulary, open_checkpoint, some

__all__ = [
    "FORMATS",
    "TARGETS",
    "Audit",
    "Source",
    "check_vocabulary",
    "convert",
    "load",
    "load_checkpoint",
    "open_checkpoint",
    "variables",
    "write_safetensors",
]
TARGETS = tuple(writers.WRITERS)


def variables(model) -> list:
    """The variables of a model that a checkpoint holds: weights, not seeds, metrics or optimizer slots."""
    return [v for v in model.weights if "seed" not in v.path.rsplit("/", 1)[-1]]


def load(
    model,
    source: Any,
    *,
    fresh: Iterable[str] = (),
    fresh_head: bool = False,
    strict: bool = True,
    ignore: Iterable[str] = (),
    format: str | None = None,
    scope: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Audit:
    """Loads a checkpoint into a model whose variables have our names. Nothing stays random in silence.

    Args:
        model: a Keras model; its variable paths are our names (``encoder(config)``, a task's model).
        source: what ``open_checkpoint`` takes, or its result.
        fresh: names or shell-style patterns ("classifier/*") that may start fresh if the file lacks them.
        fresh_head: leave them fresh even if the file has them.
        strict: False turns missing and unexpected tensors into a warning that lists them; misshapen ones, and a
            file without any tensor of the encoder, stay errors.
        ignore: patterns of names in the file to pass over.
        format, scope: as in ``open_checkpoint``.
        say: called with the audit as text (``print``).

    Returns:
        The audit. Nothing is assigned before everything was found to fit.

    Raises:
        UserError: see ``strict``; the message has all three lists.

    Example:
        >>> audit = load(encoder(source.config), source)      # doctest: +SKIP
        >>> audit.counts                                      # doctest: +SKIP
        '41 used, 5 not used, 93 skipped (optimizer)'
    """
    source = open_checkpoint(source, format, scope)
    source.require_encoder()
    fresh, ignore, audit = tuple(fresh), tuple(ignore), source.audit()
    _check_model_config(model, source, audit)
    _set_aside(audit, ignore)
    wanted = {v.path: v for v in variables(model)}
    for path, variable in wanted.items():
        may = path in fresh or names.matches(path, fresh)
        if may and (fresh_head or path not in source.found.names):
            audit.fresh.append(path)
        elif path not in source.found.names:
            audit.missing.append(path)
        elif source.shape(path) != tuple(variable.shape):
            audit.misshapen.append((path, source.shape(path), tuple(variable.shape)))
        else:
            audit.loaded.append(path)
    layers = {n.split("/")[1] for n in wanted if n.startswith("encoder/layer_")}
    for name in source.names:
        if name not in wanted:
            # a head or a pooler may stay behind; a layer of the encoder may not
            extra = name.startswith("encoder/layer_") and layers and name.split("/")[1] not in layers
            (audit.unexpected if extra else audit.unused).append(name)
        elif name in audit.fresh:
            audit.unused.append(name)

    if not any(name.startswith(ENCODER) for name in audit.loaded) and any(n.startswith(ENCODER) for n in wanted):
        audit.raise_if_bad("model and file belong to different models")
        raise UserError(audit.source, f"0 of {len(wanted)} tensors of the model are in it", "is this a BERT?")
    remedy = "build the model from source.config"
    if any(not n.startswith(ENCODER) for n, *_ in audit.misshapen):
        remedy = "for a new head say fresh=[...] and fresh_head=True (--fresh_head)"
    elif audit.missing:
        remedy = "declare with fresh=[...] what shall start fresh"
    if strict or audit.misshapen:
        audit.raise_if_bad(remedy)
    elif audit.missing or audit.unexpected:
        said = (
            [f"freshly initialized, because the file lacks them: {', '.join(audit.missing)}"] if audit.missing else []
        )
        said += [f"not understood and left out: {some(audit.unexpected)}"] if audit.unexpected else []
        warnings.warn(f"{audit.source}: {'; '.join(said)}", stacklevel=2)
    audit.notes += source.check_copies(audit.loaded)
    for path in audit.loaded:
        wanted[path].assign(source.read(path))
    if say is not None:
        say(str(audit))
    return audit


load_checkpoint = load


def write_safetensors(path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes named arrays or variables as safetensors, one at a time. See ``writers.write_safetensors``."""
    entries = {name: (tuple(t.shape), lambda t=t: np.asarray(t)) for name, t in tensors.items()}
    writers.write_safetensors(path, entries, metadata)


def convert(
    src: Any,
    dst: str | Path,
    to: str,
    *,
    from_: str | None = None,
    scope: str | None = None,
    ignore: Iterable[str] = (),
    verify: bool = False,
    overwrite: bool = False,
    say: Callable[[str], None] | None = None,
    tick: Callable[[int, int, str], None] | None = None,
) -> Audit:
    """Writes a checkpoint in another format: a directory with weights, config and vocabulary, whole or not at all.

    Args:
        src: what ``open_checkpoint`` takes.
        dst: the directory to make.
        to: "bert" (original TF1), "huggingface", "keras_nlp" or "keras_bert_lab".
        from_, scope: the source's format and scope where they should not be guessed.
        ignore: patterns of names in the file to leave behind.
        verify: read the result back, compare every tensor bit for bit and the outputs of both networks, and write
            ``parity.json`` beside the weights; if they differ, nothing is left.
        overwrite: replace what is at ``dst``.
        say: called with the audit as text, and with the certificate's summary (``print``).
        tick: called with (bytes written, bytes in all, name) as the work goes on.

    Returns:
        The audit: ``loaded`` was written, ``unused`` is what the target's format has no name for.

    Raises:
        UserError: unknown or missing tensors, a config that contradicts them, a destination that is taken, a
            network that the target cannot hold, or a certificate that failed.

    Example:
        >>> convert("uncased_L-12_H-768_A-12", "bert-base-uncased", to="huggingface").counts    # doctest: +SKIP
        '206 used'
    """
    if to not in TARGETS:
        raise UserError("to", f"{to!r} cannot be written", f"choose one of {', '.join(TARGETS)}")
    check_destination(dst, overwrite, "overwrite=True (--overwrite)")
    source = open_checkpoint(src, from_, scope)
    source.require_encoder()
    if any(Path(dst).resolve() in file.resolve().parents for file in source.reader.files):
        raise UserError(str(dst), "holds the checkpoint that is read, which overwriting would delete", "choose another")
    config, audit = source.config, source.audit()
    _set_aside(audit, tuple(ignore))
    _check_complete(source, audit)
    left = writers.left_behind(source, to)
    audit.loaded = [name for name in source.names if name not in left]
    audit.unused, audit.unused_because = left, f"left behind, {to} has no name for"
    audit.raise_if_bad("if these tensors may stay behind, say ignore=[...] (--ignore)" if audit.unexpected else "")
    audit.notes += source.check_copies(source.names)
    audit.notes += config.losses_for(to)
    if source.vocab_path is None:
        audit.notes.append("no vocabulary beside the source: none was written")
    with new_directory(dst, overwrite, "overwrite=True (--overwrite)") as folder:
        audit.notes += writers.WRITERS[to](source, audit.loaded, folder, tick or (lambda done, total, name: None))
        certificate = None
        if verify:
            certificate = parity.certify(source, to, folder, audit.loaded)
            (folder / "parity.json").write_text(json.dumps(certificate, indent=1) + "\n", "utf-8")
            if not certificate["equal"]:
                raise UserError(
                    str(dst),
                    f"not written, because it is not the same network: {parity.summary(certificate)}",
                    "; ".join(config.losses_for(to)) or "please report this",
                )
    if say is not None:
        say(str(audit))
        if certificate is not None:
            say(f"parity: {parity.summary(certificate)}")
    return audit


def _check_complete(source: Source, audit: Audit) -> None:
    """Every tensor of the encoder, and of a head that is there at all, in the shape that the config says."""
    want, have = names.shapes(source.config), set(source.names)
    families = ("embeddings/", "encoder/", "pooler/", "cls/predictions/", "cls/seq_relationship/", "cls/squad/")
    for family in families:
        if family in ENCODER or any(name.startswith(family) for name in have):
            audit.missing += [n for n in want if n.startswith(family) and n not in have]
    if ("classifier/kernel" in have) != ("classifier/bias" in have):
        audit.missing.append("classifier/bias" if "classifier/kernel" in have else "classifier/kernel")
    for name in source.names:
        if name in want and source.shape(name) != want[name]:
            audit.misshapen.append((name, source.shape(name), want[name]))


def _check_model_config(model, source: Source, audit: Audit) -> None:
    """Two configs can agree in every shape and still mean different networks."""
    ours = config_of(model)
    if ours is None or not source.has_config:
        return
    theirs = source.config
    if ours.num_attention_heads != theirs.num_attention_heads:
        raise UserError(
            source.describe(),
            f"has {theirs.num_attention_heads} attention heads, the model {ours.num_attention_heads}",
            "build the model from source.config",
        )
    for key in ("hidden_act", "layer_norm_eps", "norm_position", "position_embedding"):
        if getattr(ours, key) != getattr(theirs, key):
            there, here = getattr(theirs, key), getattr(ours, key)
            audit.notes.append(f"the checkpoint's {key} is {there}, the model's {here}: outputs will differ")


def _set_aside(audit: Audit, ignore: tuple[str, ...]) -> None:
    if asked := [key for key in audit.unexpected if names.matches(key, ignore)]:
        audit.ignored["on request"] = asked
        audit.unexpected = [key for key in audit.unexpected if key not in asked]
