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
import types

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
__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    _register()  # what a hook inside one of our own imports had to put off
    return value


class _Package(types.ModuleType):
    """``encoder`` is a public function and a module: importing the module must not put it in the function's place."""

    def __setattr__(self, name: str, value) -> None:
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def _register() -> None:
    """Imports the modules whose classes Keras must know to load our models (they register on import)."""
    keras = sys.modules.get("keras")
    if keras is None or _half_imported(keras):
        return
    if any(_half_imported(m) for name, m in list(sys.modules.items()) if name.startswith(f"{__name__}.")):
        return  # one of ours is what imports Keras, and cannot be imported from here: at the next chance
    if _hook in sys.meta_path:
        sys.meta_path.remove(_hook)
    if keras.backend.backend() == "tensorflow":
        for module in ("encoder", "losses", "training", "task"):
            importlib.import_module(f".{module}", __name__)


def _half_imported(module) -> bool:
    return getattr(module.__spec__, "_initializing", False)


class _RegisterAfterKeras(importlib.abc.MetaPathFinder):
    """Registers our classes right after somebody imports Keras, then is gone.

    Keras finds the classes of a saved model by their registered names only, so ``import keras_bert_lab`` must
    register them; doing it at once would import TensorFlow into every ``--help``.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            _register()  # what was put off
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                run(module)
                module.__spec__._initializing = False  # it is whole now, all but for our registering
                _register()

            spec.loader.exec_module = run_and_register
        return spec


_hook = _RegisterAfterKeras()
sys.meta_path.insert(0, _hook)
_register()
