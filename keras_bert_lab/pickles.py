"""Reading ``pytorch_model.bin`` without torch and without running code. Floor 0: standard library and numpy only.

A pickle is a program: whoever loads one runs what its author wrote. The unpickler here knows five things (an ordered
dict, the storage types, and the functions that rebuild a tensor or a parameter) and refuses everything else by name.
Of a tensor it keeps the place in the file and its strides, checked against the storage; bytes are read when asked for.

Both of torch's formats are read: the zip file (torch >= 1.6), and the older one, pickles followed by raw storages.
Source: ``torch/serialization.py`` and ``torch/_utils.py`` (``_rebuild_tensor_v2``, ``_rebuild_parameter``).
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
_PROTOCOL = 1001
# Whatever a damaged file makes the unpickler raise; it has run nothing.
_DAMAGE = (
    pickle.UnpicklingError, EOFError, struct.error, zipfile.BadZipFile, LookupError, TypeError, AttributeError,
    ValueError, OverflowError, ImportError, RecursionError, MemoryError, NotImplementedError,
)  # fmt: skip
_LONGEST_PICKLE = 256 << 20  # bytes; BERT's are some 50 kB
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """A run of numbers in the file: ``key`` names it, ``count`` is in elements of ``dtype``."""

    key: str
    dtype: str
    count: int

    def __setstate__(self, state):  # a pickle must not change what was checked
        raise _Refused("it tries to change a storage")


@dataclass(frozen=True)
class Tensor:
    """A view of a storage. ``offset`` and ``strides`` are in elements, checked to lie within it."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __setstate__(self, state):
        raise _Refused("it tries to change a tensor")


class _Refused(pickle.UnpicklingError):
    pass


class _Known:
    """What stands for a global in the pickle. Immutable, so that no BUILD opcode can change what it does."""

    __slots__ = ("_call", "name")
    _call: Any
    name: str

    def __init__(self, name: str, call):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_call", call)

    def __call__(self, *args):
        return self._call(*args)

    def __setattr__(self, name, value):
        raise _Refused(f"it tries to change {self.name}")

    def __setstate__(self, state):
        raise _Refused(f"it tries to change {self.name}")


class _Dict(dict):
    """An OrderedDict; a state (torch hangs ``_metadata`` on it) is accepted and dropped."""

    __slots__ = ()

    def __setstate__(self, state):
        pass


def _ordered_dict(*args) -> _Dict:
    if args and not (len(args) == 1 and isinstance(args[0], (list, dict))):
        raise _Refused("it calls collections.OrderedDict with unusual arguments")
    return _Dict(*args)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _rebuild_tensor(storage, offset, size, strides, *_flags) -> Tensor:
    if not isinstance(storage, Storage) or not isinstance(size, tuple) or not isinstance(strides, tuple):
        raise _Refused("a tensor is not built from a storage, a size and strides")
    if not (
        _whole(offset) and all(map(_whole, size)) and all(map(_whole, strides)) and len(size) == len(strides) <= 16
    ):
        raise _Refused(f"a tensor has offset {offset!r}, size {size!r}, strides {strides!r}")
    count = 1
    for n in size:
        count *= n
    last = offset + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    if count and (last >= storage.count or count > storage.count):
        raise _Refused(
            f"a tensor of size {list(size)} with strides {list(strides)} from {offset} "
            f"leaves its storage of {storage.count} numbers"
        )
    return Tensor(storage, offset, size, strides)


def _rebuild_parameter(tensor, *_flags) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise _Refused("a parameter is not built from a tensor")
    return tensor


_GLOBALS = {
    ("collections", "OrderedDict"): _Known("OrderedDict", _ordered_dict),
    ("torch._utils", "_rebuild_tensor_v2"): _Known("_rebuild_tensor_v2", _rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Known("_rebuild_parameter", _rebuild_parameter),
}


@dataclass(frozen=True)
class _StorageType:
    dtype: str

    def __setstate__(self, state):
        raise _Refused("it tries to change a storage type")


class _Unpickler(pickle.Unpickler):
    """``storages`` collects every storage that the pickle speaks of."""

    def __init__(self, file, storages: dict[str, Storage] | None = None):
        super().__init__(file)
        self.storages = {} if storages is None else storages

    def find_class(self, module: str, name: str):
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise _Refused(f"it asks for {module}.{name}") from None

    def persistent_load(self, pid) -> Storage:
        known = isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage"
        if not (known and isinstance(pid[1], _StorageType) and isinstance(pid[2], str) and _whole(pid[4])):
            raise _Refused(f"it speaks of a storage in an unknown way: {str(pid)[:80]}")
        if len(pid) == 6 and pid[5] is not None:
            raise _Refused("it has views of storages, which torch stopped writing in 2018")
        storage = Storage(pid[2], pid[1].dtype, pid[4])
        if self.storages.setdefault(storage.key, storage) != storage:
            raise _Refused(f"it describes storage {storage.key} twice, differently")
        return storage


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


class TorchFile:
    """The tensors of one ``.bin``/``.pt`` file.

    Attributes:
        tensors: name -> ``Tensor``.

    Raises:
        UserError: not such a file, or a pickle that asks for anything but tensors (the message names what).

    Example:
        >>> file = TorchFile("pytorch_model.bin")                            # doctest: +SKIP
        >>> file.read("bert.pooler.dense.bias").shape                        # doctest: +SKIP
        (768,)
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._places: dict[str, int] = {}  # storage key -> byte offset in the file
        self.size = self.path.stat().st_size
        try:
            root = self._open_zip() if zipfile.is_zipfile(self.path) else self._open_legacy()
        except _Refused as error:
            raise UserError(
                self.path,
                f"refused: {error}, and reading weights needs no such thing",
                "get the weights as safetensors, or from somebody you trust",
            ) from None
        except UserError:
            raise
        except _DAMAGE as error:
            raise UserError(
                self.path,
                f"not a readable torch file ({type(error).__name__}: {error})",
                "fetch the file again",
            ) from None
        if isinstance(root, dict) and isinstance(root.get("state_dict"), dict):
            root = root["state_dict"]
        if not isinstance(root, dict) or not all(isinstance(k, str) for k in root):
            raise UserError(
                self.path,
                f"holds a {type(root).__name__}, not a dict of named tensors",
                "save model.state_dict()",
            )
        self.tensors = {name: value for name, value in root.items() if isinstance(value, Tensor)}
        if not self.tensors:
            raise UserError(self.path, "holds no tensors", "save model.state_dict()")

    def _open_zip(self):
        with zipfile.ZipFile(self.path) as file:
            infos = {info.filename: info for info in file.infolist()}
            pickles = [name for name in infos if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise UserError(
                    self.path,
                    f"a zip file with {len(pickles)} data.pkl, not a torch file",
                    "give pytorch_model.bin",
                )
            lead = pickles[0].removesuffix("data.pkl")
            if f"{lead}byteorder" in infos and file.read(f"{lead}byteorder").strip() != b"little":
                raise UserError(self.path, "was written on a big-endian machine", "save it again on another one")
            unpickler = _Unpickler(io.BytesIO(self._bounded(file, infos[pickles[0]])))
            root = unpickler.load()
            with open(self.path, "rb") as raw:
                for key, storage in unpickler.storages.items():
                    name = f"{lead}data/{key}"
                    if (info := infos.get(name)) is None:
                        raise UserError(self.path, f"storage {key} is missing", "fetch the file again")
                    if info.compress_type != zipfile.ZIP_STORED:
                        raise UserError(
                            self.path,
                            f"storage {key} is compressed, which torch never does",
                            "unpack and save it again",
                        )
                    raw.seek(info.header_offset)
                    header = raw.read(30)  # the local header may have another extra field than the directory
                    if header[:4] != b"PK\3\4":
                        raise UserError(self.path, f"storage {key} has no header", "fetch the file again")
                    start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
                    self._place(storage, start, info.file_size)
        return root

    def _bounded(self, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
        if info.file_size > _LONGEST_PICKLE:
            raise UserError(self.path, f"its pickle claims {info.file_size} bytes", "get the weights as safetensors")
        return file.read(info)

    def _open_legacy(self):
        with open(self.path, "rb") as file:
            magic = _Unpickler(file).load()
            if magic != _MAGIC:
                raise UserError(self.path, "does not begin like a torch file", "give pytorch_model.bin")
            protocol, system = _Unpickler(file).load(), _Unpickler(file).load()
            if protocol != _PROTOCOL or not isinstance(system, dict) or system.get("little_endian") is not True:
                raise UserError(
                    self.path,
                    f"protocol {protocol}, system {system}: unknown",
                    "save it again with a newer torch",
                )
            unpickler = _Unpickler(file)
            root = unpickler.load()
            keys = _Unpickler(file).load()
            if not isinstance(keys, list) or set(keys) != set(unpickler.storages) or len(set(keys)) != len(keys):
                raise UserError(self.path, "its list of storages is not that of its tensors", "fetch the file again")
            for key in keys:
                storage = unpickler.storages[key]
                (count,) = struct.unpack("<q", file.read(8))
                if count != storage.count:
                    raise UserError(
                        self.path,
                        f"storage {key} has {count} numbers, not {storage.count}",
                        "fetch the file again",
                    )
                self._place(storage, file.tell(), count * _itemsize(storage.dtype))
                file.seek(count * _itemsize(storage.dtype), io.SEEK_CUR)
        return root

    def _place(self, storage: Storage, start: int, size: int) -> None:
        need = storage.count * _itemsize(storage.dtype)
        if size < need or start + need > self.size:
            raise UserError(
                self.path,
                f"storage {storage.key} needs {need} bytes, the file has {min(size, max(0, self.size - start))}",
                "it is cut off: fetch it again",
            )
        self._places[storage.key] = start

    def read(self, name: str) -> np.ndarray:
        """One tensor, contiguous; bfloat16 comes as the float32 of the same value."""
        t = self.tensors[name]
        raw = np.dtype("uint16" if t.storage.dtype == "bfloat16" else t.storage.dtype)
        if 0 in t.shape:
            return np.zeros(t.shape, "float32" if t.storage.dtype == "bfloat16" else raw)
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
        flat = np.fromfile(self.path, raw, span, offset=self._places[t.storage.key] + t.offset * raw.itemsize)
        array = np.lib.stride_tricks.as_strided(flat, t.shape, [s * raw.itemsize for s in t.strides], writeable=False)
        array = array.copy(order="C")
        return widen(array) if t.storage.dtype == "bfloat16" else array


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 given as uint16 -> float32 of exactly the same value."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
