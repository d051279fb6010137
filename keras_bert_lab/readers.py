"""Files of named tensors, one class a container: names, shapes and dtypes at once, numbers one tensor at a time.

Every reader has ``entries`` (name -> (shape, dtype)), ``read(name) -> np.ndarray``, ``files`` (what it reads from) and
``container`` (what it is, in words). bfloat16 comes as the float32 of the same value. Floor 3.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import bundles
from .errors import UserError
from .pickles import TorchFile, widen

Entries = dict[str, tuple[tuple[int, ...], str]]

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class TensorFlowFile:
    """A TensorFlow checkpoint (V2: ``.index`` and ``.data-*``), TF1's by name or TF2's by object.

    Read without TensorFlow (see ``bundles``), except for the rare kinds that only it understands.
    """

    container = "TensorFlow checkpoint"

    def __init__(self, prefix: str | Path):
        self.prefix = str(prefix)
        index = Path(f"{self.prefix}.index")
        self.files = [index, *data_files(Path(self.prefix))]
        try:
            bundle = bundles.Bundle(self.prefix)
            self._file: bundles.Bundle | _ByTensorFlow = bundle
            self.entries: Entries = {name: (e.shape, e.dtype) for name, e in bundle.entries.items()}
        except bundles.Unusual:
            self._file = unusual = _ByTensorFlow(self.prefix)
            self.entries = unusual.shapes
        except bundles.Unreadable as error:
            raise UserError(index, f"not a readable checkpoint index ({error})", "fetch or unpack it again") from None

    def read(self, name: str) -> np.ndarray:
        try:
            array = self._file.read(name)
        except bundles.Unreadable as error:
            place = f"{self.prefix}.data-*"
            raise UserError(
                place, f"cannot be read ({error})", "the file is cut off or damaged: fetch it again"
            ) from None
        return widen(array) if self.entries[name][1] == "bfloat16" else array


class _ByTensorFlow:
    """The same through TensorFlow's own reader, with errors of the same kind."""

    def __init__(self, prefix: str):
        import tensorflow as tf

        self._errors = (tf.errors.OpError, RuntimeError, ValueError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(prefix)
        except self._errors as error:
            raise bundles.Unreadable(_first_line(error)) from None
        shapes, dtypes = self._reader.get_variable_to_shape_map(), self._reader.get_variable_to_dtype_map()
        self.shapes: Entries = {name: (tuple(shapes[name]), dtypes[name].name) for name in sorted(shapes)}

    def read(self, name: str) -> np.ndarray:
        try:
            array = self._reader.get_tensor(name)
        except self._errors as error:
            raise bundles.Unreadable(f"{name}: {_first_line(error)}") from None
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def data_files(prefix: Path) -> list[Path]:
    """The ``.data-*`` files of a checkpoint, all of them there, or a ``UserError`` that names the one that is not."""
    found = sorted(prefix.parent.glob(f"{_glob(prefix.name)}.data-?????-of-?????"))
    if not found:
        raise UserError(
            f"{prefix}.data-00000-of-00001",
            "missing: the .index file alone holds no weights",
            "put the .data file beside it under the same name",
        )
    total = int(found[-1].name[-5:])
    wanted = [prefix.with_name(f"{prefix.name}.data-{k:05d}-of-{total:05d}") for k in range(total)]
    if gone := [path for path in wanted if path not in found]:
        raise UserError(
            gone[0],
            f"missing: {len(gone)} of {total} data files are not there",
            "put them beside the .index file",
        )
    return wanted


def _glob(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


class SafetensorsFile:
    """One or several ``.safetensors`` files: a length of 8 bytes, a JSON header, data.

    Format: https://huggingface.co/docs/safetensors
    """

    container = "safetensors"

    def __init__(self, files: Sequence[Path]):
        self.files, self.entries, self._places = list(files), {}, {}
        self.metadata: dict[str, str] = {}
        for path in self.files:
            size = path.stat().st_size
            with open(path, "rb") as file:
                lead = file.read(8)
                length = struct.unpack("<Q", lead)[0] if len(lead) == 8 else 0
                if not 2 <= length <= min(size - 8, 100_000_000):
                    raise UserError(
                        path,
                        f"not a safetensors file (header of {length} bytes in a file of {size})",
                        "fetch it again",
                    )
                try:
                    header = json.loads(file.read(length))
                    self.metadata |= header.pop("__metadata__", {})
                    for name, entry in header.items():
                        self._add(path, name, entry, 8 + length, size)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    if isinstance(error, UserError):
                        raise
                    raise UserError(
                        path, f"its header cannot be read ({type(error).__name__}: {error})", "fetch it again"
                    ) from None

    def _add(self, path: Path, name: str, entry: dict, base: int, size: int) -> None:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if dtype not in _DTYPES:
            raise UserError(
                f"{path}: {name}",
                f"dtype {dtype} is not one of {', '.join(_DTYPES)}",
                "convert it with the program that wrote it",
            )
        need = math.prod(shape) * (2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize)
        if start < 0 or stop - start != need or any(n < 0 for n in shape):
            raise UserError(
                f"{path}: {name}",
                f"{stop - start} bytes for shape {list(shape)} of {dtype}, which needs {need}",
                "fetch it again",
            )
        if base + stop > size:
            raise UserError(
                path, f"is cut off: {name} ends at byte {base + stop}, the file at {size}", "fetch it again"
            )
        if name in self.entries:
            raise UserError(path, f"{name} is also in {self._places[name][0]}", "keep one of them")
        self.entries[name] = shape, _DTYPES[dtype]
        self._places[name] = path, base + start

    def read(self, name: str) -> np.ndarray:
        (shape, dtype), (path, offset) = self.entries[name], self._places[name]
        raw = "uint16" if dtype == "bfloat16" else dtype
        array = np.fromfile(path, raw, math.prod(shape), offset=offset).reshape(shape)
        return widen(array) if dtype == "bfloat16" else array


class TorchFiles:
    """One or several ``pytorch_model*.bin``; see ``pickles``."""

    container = "torch pickle, read without running it"

    def __init__(self, files: Sequence[Path]):
        self.files, self.entries, self._file = list(files), {}, {}
        for path in self.files:
            file = TorchFile(path)
            for name, tensor in file.tensors.items():
                if name in self.entries:
                    raise UserError(path, f"{name} is also in {self._file[name].path}", "keep one of them")
                self.entries[name] = tensor.shape, tensor.storage.dtype
                self._file[name] = file

    def read(self, name: str) -> np.ndarray:
        return self._file[name].read(name)


class H5File:
    """Weights in HDF5: ``tf_model.h5`` of transformers' TensorFlow classes, ``model.weights.h5`` of Keras 3."""

    container = "HDF5"

    def __init__(self, path: Path):
        import h5py  # comes with keras

        self.files = [path]
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise UserError(path, f"not a readable HDF5 file ({_first_line(error)})", "fetch it again") from None
        self.entries: Entries = {}

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                if item.external or item.is_virtual:  # its numbers would come from any other file on this machine
                    raise UserError(f"{path}: {name}", "keeps its numbers in another file", "save it in one file")
                self.entries[name] = tuple(item.shape), item.dtype.name

        self._file.visititems(visit)

    def read(self, name: str) -> np.ndarray:
        return self._file[name][()]


class KerasObject:
    """The weights of a Keras model in memory."""

    container = "Keras model in memory"
    files: tuple[Path, ...] = ()

    def __init__(self, model):
        self._weights = {w.path: w for w in model.weights}
        self.entries: Entries = {path: (tuple(w.shape), str(w.dtype)) for path, w in self._weights.items()}

    def read(self, name: str) -> np.ndarray:
        return np.asarray(self._weights[name])


def shards(index: Path) -> list[Path]:
    """The files that a Hugging Face ``*.index.json`` names, all of them there."""
    try:
        files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(
            index, f"cannot be read as an index of shards ({type(error).__name__}: {error})", "fetch it again"
        ) from None
    paths = [index.parent / name for name in files]
    for path in paths:
        if path.parent != index.parent:
            raise UserError(index, f"names a shard outside its directory: {path}", "fetch it again")
        if not path.is_file():
            raise UserError(
                path,
                f"missing: {index.name} names {len(paths)} files and this one is not there",
                "fetch it too",
            )
    return paths


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
