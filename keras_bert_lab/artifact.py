"""The fine-tuned directory: ``save(task, path)`` and ``load(path)``.

    my-task/  artifact.json        what the task is and where it comes from
              vocab.txt            byte for byte the base checkpoint's
              weights.safetensors  encoder and head by our names
              README.md            a model card written from artifact.json
              train/, export/      logs and exports: not needed for prediction, kept when saving again
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from pathlib import Path
from typing import Any

from . import checkpoint
from .config import BertConfig
from .errors import UserError
from .files import check_destination, new_directory, sha256
from .head import head_info, make_head
from .task import Task, Text
from .wordpiece import Tokenizer

FORMAT_VERSION = 1
KEPT = ("train",)  # survives saving again; an old export would not equal the new weights


def save(task: Task, path, overwrite: bool = False) -> None:
    """Writes ``task`` at ``path``, whole or not at all (a killed run leaves what was there).

    Args:
        task: a task whose model exists.
        path: the directory; it may hold a ``train`` folder of logs, which stays.
        overwrite: replace an artifact that is there.

    Raises:
        UserError: the place is taken or cannot be written.
    """
    path = Path(path)
    check(path, overwrite)
    model = task.model  # before anything is written: it may have no labels yet
    with new_directory(path, overwrite=True) as fresh:
        weights = {v.path: v for v in checkpoint.variables(model)}
        checkpoint.write_safetensors(fresh / "weights.safetensors", weights | task.carried())
        (fresh / "vocab.txt").write_bytes(task.text.tokenizer.vocab_bytes)
        record = {
            "format_version": FORMAT_VERSION,
            "head": head_info(task.name) | {"options": task.head.to_dict()},
            "config": task.config.to_dict("keras_bert_lab"),
            "text": task.text.settings(),
            "precision": task.precision,
            "weights_sha256": sha256(fresh / "weights.safetensors"),
            "provenance": task.provenance | {"versions": versions()},
            "scores": task.scores,
        }
        (fresh / "artifact.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (fresh / "README.md").write_text(card(path.name, record), "utf-8")
        for name in KEPT:
            if (path / name).is_dir():
                shutil.copytree(path / name, fresh / name)


def check(path, overwrite: bool = False, option: str = "overwrite=True") -> None:
    """Raises ``UserError`` where :func:`save` would refuse ``path``; call it before training."""
    path = Path(path)
    known = {"artifact.json", "vocab.txt", "weights.safetensors", "README.md", "train", "export"}
    if path.is_dir():
        strangers = sorted(p.name for p in path.iterdir() if p.name not in known)
        if strangers:
            found = f"holds files that are not a task's: {', '.join(strangers[:5])}"
            raise UserError(path, found, "choose another place")
        overwrite = overwrite or not (path / "artifact.json").exists()
    check_destination(path, overwrite, option)


def load(path, *, precision: str | None = None) -> Task:
    """The task that was saved at ``path``; it gives the answers that it gave when it was saved.

    Args:
        path: a directory written by ``Task.save``.
        precision: another Keras dtype policy than the one it was trained with.

    Raises:
        UserError: not an artifact, of a later format, damaged, or its head is not installed.

    Example:
        >>> task = load("my-task")                           # doctest: +SKIP
        >>> task.predict(["Well worth the money."])          # doctest: +SKIP
    """
    path = Path(path)
    record = read(path)
    saved = record["head"]
    try:
        head = make_head(saved["name"], saved["options"])
    except UserError as error:
        made_by = f"{saved.get('distribution')} {saved.get('version')}"
        raise UserError(path, f"was saved with the head {saved['name']!r} of {made_by}: {error}",
                        f"install {saved.get('distribution')}") from error
    settings = dict(record["text"])
    tokenizer = Tokenizer((path / "vocab.txt").read_bytes(), **settings.pop("tokenizer"))
    config = BertConfig.from_dict(record["config"], "keras_bert_lab")
    task = Task(saved["name"], head, config, Text(tokenizer, **settings), precision=precision or record["precision"],
                source=checkpoint.open_checkpoint(path, "keras_bert_lab"))
    task.provenance, task.scores, task.whole = record["provenance"], record["scores"], True
    task.model  # noqa: B018  every tensor is read and audited now, not at the first question
    return task


def read(path) -> dict[str, Any]:
    """``artifact.json``, checked for its format version."""
    file = Path(path) / "artifact.json"
    if not file.exists():
        raise UserError(path, "is not a saved task (no artifact.json)", "give a directory that `save` or `train` wrote")
    try:
        record = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise UserError(file, f"is damaged ({error})", "save the task again") from None
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(file, f"has format version {version!r}, this package reads {FORMAT_VERSION}",
                        "use the release of keras_bert_lab that wrote it, or a newer one")
    if "head" not in record:
        raise UserError(path, "holds an encoder without a task", "use Task.from_checkpoint on it")
    return record


def versions() -> dict[str, str]:
    """The versions that a later reader may want to know."""
    names = ("keras_bert_lab", "tensorflow", "keras", "numpy")
    return {"python": platform.python_version(), **{n: importlib.metadata.version(n) for n in names}}


def card(name: str, record: dict[str, Any]) -> str:
    """The model card: ``artifact.json`` as a person would read it (Markdown)."""
    source, head = record["provenance"], record["head"]
    base, recipe = source.get("base_checkpoint", {}), source.get("recipe", {})
    config = record["config"]
    shape = (f"{config['num_hidden_layers']} layers, {config['hidden_size']} wide, "
             f"{config['num_attention_heads']} heads, {config['vocab_size']} word pieces")
    lines = [f"# {name}", "", f"A BERT for **{head['name']}** ({shape}), made with keras_bert_lab.", "", "## Use", "",
             "```python", "import keras_bert_lab as kbl", f'task = kbl.load("{name}")',
             'print(task.predict(["a text"]))', "```", "", "## What it comes from", ""]
    lines += [f"- Base checkpoint: {base.get('name', 'unknown')} ({base.get('format', '?')}, "
              f"SHA-256 `{base.get('sha256', '?')}`)"]
    for part, data in source.get("data", {}).items():
        count = source.get("examples", {}).get(part)
        lines += [f"- {part} data: {data.get('file') or 'given in Python'}, {count} examples"
                  + (f", SHA-256 `{data['sha256']}`" if "sha256" in data else "")]
    lines += [f"- Texts are cut to {record['text']['max_length']} pieces ({record['text']['truncation']}); "
              f"lower-cased: {'yes' if record['text']['tokenizer']['lower_case'] else 'no'}"]
    lines += ["", "## Head", "", *(f"- {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in head["options"].items())]
    if recipe:
        lines += ["", "## Recipe", "", *(f"- {k}: {json.dumps(v)}" for k, v in recipe.items()),
                  f"- optimizer steps: {source.get('steps')}"]
    numbers = {k: v for k, v in record["scores"].items() if isinstance(v, int | float)}
    if numbers:
        lines += ["", "## Scores on the dev set", "", "| metric | value |", "|---|---|"]
        lines += [f"| {k} | {v:.4f} |" for k, v in numbers.items()]
    lines += ["", "## Versions", "", *(f"- {k} {v}" for k, v in source["versions"].items()), ""]
    return "\n".join(lines)
