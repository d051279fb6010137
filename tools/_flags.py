"""Flags that several tools share, each defined once (absl refuses a second definition)."""

from __future__ import annotations

import json
import sys

from absl import flags

from keras_bert_lab.errors import UserError

flags.DEFINE_bool("debug", False, "Show the traceback of an error instead of one line.")


def adopt() -> None:
    """Called by a tool at import: its --help shows the shared flags too."""
    flags.adopt_module_key_flags(sys.modules[__name__])


def arguments(argv: list[str], *names: str) -> list[str]:
    """Exactly the positional arguments ``names``; anything else is wrong usage (exit status 2)."""
    given = argv[1:]
    if len(given) != len(names):
        what = "takes no arguments" if not names else f"takes {' '.join(names)}"
        tool = argv[0].rsplit(".", 1)[-1]
        print(f"keras-bert-lab {tool}: {what}, got {' '.join(given) or 'none'}; see --help", file=sys.stderr)
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
