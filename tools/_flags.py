"""Flags that several tools share, each defined once (absl refuses a second definition), and what tools do alike."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from absl import flags

from keras_bert_lab.errors import UserError

FLAGS = flags.FLAGS
flags.DEFINE_bool("debug", False, "Show the traceback of an error instead of one line.")
flags.DEFINE_string("task", None, "The directory of a saved task.")
flags.DEFINE_string("data", None, "A file of the formats that the task's head reads.")
flags.DEFINE_string("output", None, "Where the result goes; the tool's description says in which form.")
flags.DEFINE_bool("overwrite", False, "Replace what is at the destination.")
flags.DEFINE_enum(
    "from",
    None,
    ["bert", "huggingface", "model_garden", "keras_nlp", "keras_bert_lab"],
    "The checkpoint's format; recognised from its files when not given.",
)
flags.DEFINE_string("scope", None, "What stands before BERT's names in the checkpoint, such as query_tower/.")
flags.disclaim_key_flags()  # from here on, a flag belongs to the tool that asks for it


def adopt(*names: str) -> None:
    """Called by a tool at import: these shared flags (and --debug) are its own, its --help shows them."""
    for name in (*names, "debug"):
        flags.declare_key_flag(name)


def arguments(argv: list[str], *names: str, required: tuple[str, ...] = ()) -> list[str]:
    """Exactly the positional arguments ``names``, and every flag of ``required``; else exit status 2."""
    given, tool = argv[1:], argv[0].rsplit(".", 1)[-1]
    wrong = [f"--{name} is missing" for name in required if getattr(FLAGS, name) is None]
    if len(given) != len(names):
        wrong.append(f"takes {' '.join(names) or 'no arguments but flags'}, got {' '.join(given) or 'none'}")
    if wrong:
        print(f"keras-bert-lab {tool}: {'; '.join(wrong)}; see keras-bert-lab {tool} --help", file=sys.stderr)
        sys.exit(2)
    return given


def json_object(text: str, flag: str) -> dict:
    """The value of a flag that holds a JSON object."""
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"--{flag}", f"is not JSON ({error})", f"""write it like --{flag}='{{"key": 1}}'""") from None
    if not isinstance(value, dict):
        raise UserError(f"--{flag}", f"is a JSON {type(value).__name__}, not an object", "write {...}")
    return value


def define_recipe() -> None:
    """--recipe and one flag for each field of ``Recipe``; a flag that is given wins over the file."""
    from keras_bert_lab.recipe import Recipe

    flags.DEFINE_string("recipe", None, "A JSON file with the options of training; flags given beside it win.")
    kinds = {"int": flags.DEFINE_integer, "float": flags.DEFINE_float, "bool": flags.DEFINE_bool}
    for field in dataclasses.fields(Recipe):
        define = kinds.get(str(field.type).split(" ")[0], flags.DEFINE_string)
        define(field.name, None, f"{field.metadata['help']} Default: {field.default}.")


def recipe():
    """The recipe that the flags of :func:`define_recipe` describe."""
    from keras_bert_lab.recipe import Recipe

    options = {}
    if FLAGS.recipe:
        try:
            options = json_object(Path(FLAGS.recipe).read_text("utf-8"), "recipe")
        except OSError as error:
            found = f"cannot be read ({error.strerror})"
            raise UserError(f"--recipe={FLAGS.recipe}", found, "check the path") from None
    given = {f.name: FLAGS[f.name].value for f in dataclasses.fields(Recipe)}
    return Recipe.from_dict(options | {name: value for name, value in given.items() if value is not None})


def print_scores(scores: dict) -> None:
    """Numbers one a line; tables (per class, confusion) as the head made them, indented."""
    for name, value in scores.items():
        if isinstance(value, float):
            print(f"  {name:24} {value:.4f}")
        elif isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            print(f"  {name}")
            for row, cells in value.items():
                shown = (f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in cells.items())
                print(f"    {row:22} " + "  ".join(shown))
        else:
            print(f"  {name:24} {value}")


def say_cut(task) -> None:
    """Says on standard error how many rows did not fit into the model and were cut."""
    if cut := task.text.report():
        print(cut, file=sys.stderr)
