"""BERT on TensorFlow and Keras 3: original checkpoints, exact text, plug-in heads, exports that are proved.

    import keras_bert_lab as kbl
    task = kbl.Task.from_checkpoint("uncased_L-12_H-768_A-12", head="classification")
    task.fit("train.tsv", dev="dev.tsv")
    task.save("my-task")

The public names load when first used: importing the package imports neither TensorFlow nor Keras. It is enough,
though, for Keras to load any model saved by this package: see :class:`_RegisterAfterKeras`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys

_PUBLIC = {  # name: the module that holds it
    "BertConfig": "config",
    "Head": "head",
    "Task": "task",
    "Tokenizer": "wordpiece",
    "UserError": "errors",
    "available_heads": "head",
    "convert": "checkpoint",
    "encoder": "encoder",
    "load": "artifact",
    "load_checkpoint": "checkpoint",
    "load_head": "head",
}
__all__ = sorted(_PUBLIC)  # noqa: PLE0605
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def _register() -> None:
    """Imports the modules whose classes Keras must know to load our models (they register on import)."""
    import keras

    if keras.backend.backend() == "tensorflow":
        for module in ("encoder", "losses", "training", "task"):
            importlib.import_module(f".{module}", __name__)


class _RegisterAfterKeras(importlib.abc.MetaPathFinder):
    """Registers our classes right after somebody imports Keras, then is gone.

    Keras finds the classes of a saved model by their registered names only, so ``import keras_bert_lab`` must
    register them; doing it at once would import TensorFlow into every ``--help``.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                run(module)
                _register()

            spec.loader.exec_module = run_and_register
        return spec


if "keras" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _RegisterAfterKeras())
