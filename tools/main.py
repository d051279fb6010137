"""keras-bert-lab: fine-tune and ship BERT on TensorFlow and Keras.

Usage: keras-bert-lab TOOL [arguments and --flags]
       keras-bert-lab TOOL --help
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.abc
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from absl import app, flags, logging

from keras_bert_lab.errors import UserError

FOLDER = Path(__file__).parent


def tools() -> dict[str, str]:
    """Every tool's name and the first line of its docstring, read without importing it."""
    files = sorted(f for f in FOLDER.glob("*.py") if not f.stem.startswith("_") and f.stem != "main")
    return {f.stem: (ast.get_docstring(ast.parse(f.read_text("utf-8"))) or "").split("\n")[0] for f in files}


def usage() -> str:
    width = max(map(len, tools()))
    return f"{__doc__}\nTools:\n" + "\n".join(f"  {name:{width}}  {line}" for name, line in tools().items())


def run(argv: list[str] | None = None) -> None:
    """The console script: exit status 0 done, 1 the request cannot be met, 2 wrong usage."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("help", "--help", "-h", "--version"):
        from keras_bert_lab import __version__

        print(f"keras-bert-lab {__version__}" if argv[:1] == ["--version"] else usage())
        sys.exit(0 if argv else 2)
    tool, known = argv[0], tools()
    if tool not in known:
        near = difflib.get_close_matches(tool, known, n=1)
        sys.exit(_wrong(f"there is no tool {tool!r}" + (f"; did you mean {near[0]!r}?" if near else "")))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's chatter drowns our answers
    if "--debug" not in argv:
        sys.meta_path.insert(0, _WithoutGreeting())
    module = importlib.import_module(f"keras_bert_lab.tools.{tool}")
    # absl prints the help of the program that it believes to be running.
    sys.argv[0] = module.__name__
    sys.modules["__main__"].__doc__ = module.__doc__
    app.run(lambda rest: _guard(module, rest), argv=[module.__name__, *argv[1:]], flags_parser=_parse)


class _WithoutGreeting(importlib.abc.MetaPathFinder):
    """Lets TensorFlow load without the lines that it writes to file descriptor 2 before any log level is heeded.

    Where loading fails they are shown.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._quietly(load, module)
        return spec

    @staticmethod
    def _quietly(load, module) -> None:
        sys.stderr.flush()
        before = os.dup(2)
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)
            try:
                load(module)
                module.config.list_physical_devices()  # looking for a GPU is loud as well
            except BaseException:
                said.seek(0)
                os.write(before, said.read())
                raise
            finally:
                os.dup2(before, 2)
                os.close(before)


def _parse(argv: list[str]) -> list[str]:
    try:
        if not _asks_for_help(argv):
            return flags.FLAGS(argv)
        with contextlib.suppress(SystemExit):  # absl calls answered help a failure
            app.parse_flags_with_usage(argv)
        sys.exit(0)
    except flags.Error as error:
        sys.exit(_wrong(str(error)))


def _asks_for_help(argv: list[str]) -> bool:
    return any(a.lstrip("-") in ("help", "helpfull", "helpshort", "helpxml", "?") for a in argv if a[:1] == "-")


def _wrong(message: str) -> int:
    print(f"keras-bert-lab: {message}", file=sys.stderr)
    print("Say `keras-bert-lab --help` or `keras-bert-lab TOOL --help`.", file=sys.stderr)
    return 2


def _guard(module, argv: list[str]) -> int | None:
    """A user's mistake is one line, not a traceback."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.ERROR)  # TensorFlow's own news; --verbosity=0 has all of it
    try:
        return module.main(argv)
    except UserError as error:
        if flags.FLAGS.debug:
            raise
        print(f"keras-bert-lab {module.__name__.rsplit('.', 1)[-1]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing was left half written", file=sys.stderr)
        return 130


if __name__ == "__main__":
    run()
