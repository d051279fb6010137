"""TensorFlow's checkpoint files (V2, "tensor bundle") without TensorFlow. Floor 0: standard library and numpy only.

``PREFIX.data-00000-of-00001`` is the tensors one after another; ``PREFIX.index`` a sorted table from names to places.
Loading TensorFlow takes seconds and more memory than most checkpoints; these two files need neither. Numbers are
checked against the checksums in the index, as TensorFlow does.

Format: ``tensor_bundle.cc``, ``tensor_bundle.proto`` and ``lib/io/format.cc``, ``table_builder.cc`` of TensorFlow (the
table is LevelDB's). Checksum: CRC-32C, masked (``lib/hash/crc32c.h``).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MAGIC = 0xDB4775248B80FB57
_TYPES = {  # DataType of types.proto
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 14: "bfloat16",
    19: "float16",
}  # fmt: skip
_STRING = 7
_RESTART = 16  # entries between two names that are written in full
_BLOCK = 262144  # bytes of one block of the index, as TensorFlow's default


class Unreadable(ValueError):
    """Damaged, or no such file."""


class Unusual(Exception):
    """In order, but of a kind that only TensorFlow itself reads: compressed index, partitioned variables."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: ``dtype`` is numpy's name, or "bfloat16" or "string"."""

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Bundle:
    """An open checkpoint.

    Attributes:
        entries: name -> ``Entry``.
        shards: number of data files.

    Raises:
        Unreadable, Unusual: see there.

    Example:
        >>> Bundle("bert_model.ckpt").read("bert/pooler/dense/bias").shape      # doctest: +SKIP
        (768,)
    """

    def __init__(self, prefix: str | Path):
        self.prefix = str(prefix)
        data = Path(f"{self.prefix}.index").read_bytes()
        try:
            rows = dict(_table(data))
            header = _fields(rows.pop(b""))
            self.shards = int(header.get(1, [1])[0])
            if header.get(2, [0])[0]:
                raise Unusual("big-endian")
            entries = [(name, _entry(value)) for name, value in sorted(rows.items())]
            self.entries = {name.decode("utf-8"): entry for name, entry in entries}
        except (KeyError, IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
            raise Unreadable(f"index: {type(error).__name__}") from None

    def read(self, name: str) -> np.ndarray:
        """One tensor, its checksum verified; bfloat16 comes as uint16 of the same bits."""
        entry = self.entries[name]
        dtype = np.dtype("<u2") if entry.dtype == "bfloat16" else np.dtype(entry.dtype).newbyteorder("<")
        count = math.prod(entry.shape)
        if count * dtype.itemsize != entry.size:
            raise Unreadable(f"{name}: {entry.size} bytes for shape {list(entry.shape)} of {entry.dtype}")
        path = f"{self.prefix}.data-{entry.shard:05d}-of-{self.shards:05d}"
        array = np.fromfile(path, dtype, count, offset=entry.offset)
        if array.size != count:
            raise Unreadable(f"{name}: the data file is cut off")
        if mask(crc32c(array)) != entry.checksum:
            raise Unreadable(f"{name}: the checksum does not fit")
        return array.reshape(entry.shape)


def write(
    prefix: str | Path,
    tensors: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]],
    wrote: Callable[[int, str], None] = lambda size, name: None,
) -> None:
    """Writes float32 tensors as one checkpoint, one at a time, as TensorFlow's own Saver would.

    Args:
        prefix: the path without ``.index``.
        tensors: name -> (shape, function that gives the array).
        wrote: called with (bytes, name) after each.

    Raises:
        ValueError: a function gives another shape than was announced.
    """
    rows = [(b"", _varint(1 << 3) + _varint(1) + _bytes(3, _varint(1 << 3) + _varint(1)))]  # 1 shard, version 1
    offset = 0
    with open(f"{prefix}.data-00000-of-00001", "wb") as file:
        for name in sorted(tensors, key=lambda n: n.encode()):
            shape, read = tensors[name]
            array = np.asarray(read(), "<f4", order="C")
            if array.shape != tuple(shape):
                raise ValueError(f"{name}: announced as {shape}, is {array.shape}")
            size, checksum = array.nbytes, mask(crc32c(array))
            file.write(array.reshape(-1).data if size else b"")
            del array  # before the next one is read
            dims = b"".join(_bytes(2, _number(1, n)) for n in shape)
            entry = _number(1, 1) + _bytes(2, dims) + _number(4, offset) + _number(5, size)
            rows.append((name.encode(), entry + _varint(6 << 3 | 5) + struct.pack("<I", checksum)))
            offset += size
            wrote(size, name)
    Path(f"{prefix}.index").write_bytes(_write_table(rows))


# ------------------------------------------------------------------------------------------------------ checksum


def mask(crc: int) -> int:
    """The form in which checksums are stored beside the data that they are of."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# x^(32 A) = x^(32 B) + x^(32 C) + 1 modulo the polynomial of CRC-32C: found by search for x^A + x^B + x^C + 1 (no
# shorter such sum has B < A / 2), which the polynomial divides, and so does its 32nd power (squaring over GF(2) only
# doubles exponents). So a 32-bit word A words or more before the end may be added (exclusive or) to the words A - B,
# A - C and A after it instead: a whole stretch of words at once, at the speed of memory.
_A, _B, _C = 5685, 1362, 426
_CHUNK = 1 << 18  # words that are folded at a time: they stay in the processor's cache


@functools.cache
def _tables() -> tuple[list[int], list[int], list[int]]:
    """What becomes of 8 bits of the register after 1 byte, of 16 bits after 2 bytes and after 4."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, one >> 1 ^ np.uint32(0x82F63B78), one >> 1)
    two = np.arange(65536, dtype=np.uint32)
    for _ in range(2):
        two = two >> 8 ^ one[two & 255]
    return one.tolist(), two.tolist(), (two >> 16 ^ two[two & 0xFFFF]).tolist()


def crc32c(array: np.ndarray) -> int:
    """CRC-32C (Castagnoli) of an array's bytes, without C code: folded by exclusive or, the rest by table.

    Example:
        >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
        '0xe3069283'
    """
    data, (one, two, four), state = array.reshape(-1).view(np.uint8), _tables(), 0xFFFFFFFF
    words = data[: data.size // 4 * 4].view("<u4")
    if words.size > 2 * _A:
        state, left = 0, np.zeros(0, np.uint32)
        for start in range(0, words.size, _CHUNK):
            buffer = np.concatenate([left, words[start : start + _CHUNK]])
            if start == 0:
                buffer[0] ^= 0xFFFFFFFF  # the register's first value, added to the first word
            at, end = 0, buffer.size - _A
            while at < end:
                stretch = buffer[at : min(at + _A - _B, end)]
                for after in (_A - _B, _A - _C, _A):
                    buffer[at + after : at + after + stretch.size] ^= stretch
                at += stretch.size
            left = buffer[at:]
        words = left
    for word in words.tolist():
        word ^= state
        state = four[word & 0xFFFF] ^ two[word >> 16]
    for byte in data[data.size // 4 * 4 :].tolist():
        state = state >> 8 ^ one[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


# --------------------------------------------------------------------------------- protocol buffers, as far as needed


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""  # proto3: zero is not written


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number without end")


def _fields(data: bytes) -> dict[int, list]:
    out: dict[int, list] = {}
    value: int | bytes
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
        elif kind == 2:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise Unreadable("index: unknown kind of field")
        if at > len(data):
            raise IndexError("a field leaves its message")
        out.setdefault(key >> 3, []).append(value)
    return out


def _entry(value: bytes) -> Entry:
    fields = _fields(value)
    if 7 in fields:
        raise Unusual("partitioned variables")
    shape = _fields(fields.get(2, [b""])[0])
    if shape.get(3, [0])[0]:
        raise Unusual("unknown rank")
    kind = fields.get(1, [0])[0]
    dtype = "string" if kind == _STRING else _TYPES.get(kind)
    if dtype is None:
        raise Unusual(f"data type {kind}")
    dims = tuple(_fields(dim).get(1, [0])[0] for dim in shape.get(2, []))
    return Entry(dtype, dims, *(fields.get(k, [0])[0] for k in (3, 4, 5, 6)))


# ------------------------------------------------------------------------------------------------- LevelDB's table


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < 48 or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise Unreadable("not a checkpoint index (no magic number at its end)")
    at = len(data) - 48
    for _ in range(2):  # the handle of the meta block, which is empty
        _, at = _read_varint(data, at)
    where, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    for _, handle in _block(data, where, size):
        start, after = _read_varint(handle, 0)
        yield from _block(data, start, _read_varint(handle, after)[0])


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if start + size + 5 > len(data):
        raise Unreadable("index: a block leaves the file")
    block, kind = data[start : start + size], data[start + size]
    (checksum,) = struct.unpack("<I", data[start + size + 1 : start + size + 5])
    if mask(crc32c(np.frombuffer(data[start : start + size + 1], np.uint8))) != checksum:
        raise Unreadable("index: the checksum of a block does not fit")
    if kind:
        raise Unusual("compressed index")
    (restarts,) = struct.unpack("<I", block[-4:])
    at, end, key = 0, size - 4 - 4 * restarts, b""
    while at < end:
        shared, at = _read_varint(block, at)
        more, at = _read_varint(block, at)
        length, at = _read_varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + length]
        at += length


def _write_block(rows: list[tuple[bytes, bytes]], restart: int) -> bytes:
    out, restarts, last = bytearray(), [], b""
    for k, (key, value) in enumerate(rows):
        shared = 0
        if k % restart == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    out += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    return bytes(out)


def _write_table(rows: list[tuple[bytes, bytes]]) -> bytes:
    out = bytearray()

    def put(block: bytes) -> bytes:
        handle = _varint(len(out)) + _varint(len(block))
        block += b"\0"  # not compressed
        out.extend(block + struct.pack("<I", mask(crc32c(np.frombuffer(block, np.uint8)))))
        return handle

    index, group, size = [], [], 0
    for k, (key, value) in enumerate(rows):
        group.append((key, value))
        size += len(key) + len(value) + 3
        if size >= _BLOCK or k + 1 == len(rows):
            following = rows[k + 1][0] if k + 1 < len(rows) else None
            index.append((_between(key, following), put(_write_block(group, _RESTART))))
            group, size = [], 0
    meta = put(_write_block([], 1))
    handles = meta + put(_write_block(index, 1))
    return bytes(out) + handles.ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _between(key: bytes, following: bytes | None) -> bytes:
    """A short name from ``key`` up to before ``following``, as LevelDB chooses it."""
    if following is None:
        for k, byte in enumerate(key):
            if byte != 255:
                return key[:k] + bytes([byte + 1])
        return key
    common = next((k for k, (a, b) in enumerate(zip(key, following, strict=False)) if a != b), None)
    if common is not None and key[common] + 1 < following[common]:
        return key[:common] + bytes([key[common] + 1])
    return key
