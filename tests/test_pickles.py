"""pytorch_model.bin without torch: both containers, odd strides, and files that mean harm. No torch is needed: the
pickles are put together here, opcode by opcode where need be."""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from keras_bert_lab.errors import UserError
from keras_bert_lab.pickles import TorchFile

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
SYSTEM = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


@pytest.fixture
def torch_names(monkeypatch):
    """Stand-ins under torch's names, so that `pickle` writes what torch writes."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "BFloat16Storage", "LongStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_qtensor"):
        function = types.FunctionType((lambda *a: None).__code__, {}, name)
        function.__module__, function.__qualname__ = "torch._utils", name
        setattr(utils, name, function)
    torch._utils = utils
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return torch


class Stored:
    """What pickles as a tensor over a storage."""

    def __init__(
        self, torch, data, shape, strides, offset=0, kind="FloatStorage", rebuild="_rebuild_tensor_v2", key=None
    ):
        self.data, self.kind, self.key = data, getattr(torch, kind), key
        arguments = (_Storage(self), offset, tuple(shape), tuple(strides), False, collections.OrderedDict())
        self.reduced = getattr(torch._utils, rebuild), arguments

    def __reduce__(self):
        return self.reduced


class _Storage:
    def __init__(self, owner):
        self.owner = owner


class _Pickler(pickle.Pickler):
    def __init__(self, file):
        super().__init__(file, 2)
        self.storages = {}

    def persistent_id(self, value):
        if not isinstance(value, _Storage):
            return None
        owner = value.owner
        key = owner.key or str(len(self.storages))
        self.storages.setdefault(key, owner.data)
        return "storage", owner.kind, key, "cpu", len(owner.data)


def write(path, root, legacy=False, compress=zipfile.ZIP_STORED, cut=0):
    body = io.BytesIO()
    pickler = _Pickler(body)
    pickler.dump(root)
    if legacy:
        with open(path, "wb") as file:
            for part in (MAGIC, PROTOCOL, SYSTEM):
                pickle.dump(part, file, 2)
            file.write(body.getvalue())
            pickle.dump(sorted(pickler.storages), file, 2)
            for key in sorted(pickler.storages):
                data = pickler.storages[key]
                file.write(struct.pack("<q", len(data)) + data.tobytes())
    else:
        with zipfile.ZipFile(path, "w", compress) as file:
            file.writestr("archive/data.pkl", body.getvalue())
            for key, data in pickler.storages.items():
                file.writestr(f"archive/data/{key}", data.tobytes()[: len(data.tobytes()) - cut])
    return path


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_of_every_shape_and_stride(tmp_path, torch_names, legacy):
    data = np.arange(24, dtype=np.float32)
    half, long = np.arange(4, dtype=np.float16), np.arange(3)
    brain = np.array([1.0, -2.5, 3.0e38, 1e-3], np.float32).view(np.uint32)
    root = collections.OrderedDict(
        plain=Stored(torch_names, data, (4, 6), (6, 1), key="9"),
        transposed=Stored(torch_names, data, (6, 4), (1, 6), key="9"),
        middle=Stored(torch_names, data, (2, 3), (12, 2), 7, key="9"),
        scalar=Stored(torch_names, data, (), (), 5, key="9"),
        empty=Stored(torch_names, data, (0, 3), (3, 1), key="9"),
        half=Stored(torch_names, half, (4,), (1,), kind="HalfStorage"),
        brain=Stored(torch_names, (brain >> 16).astype(np.uint16), (4,), (1,), kind="BFloat16Storage"),
        long=Stored(torch_names, long, (3,), (1,), kind="LongStorage"),
    )
    file = TorchFile(write(tmp_path / "a.bin", root, legacy))
    grid = data.reshape(4, 6)
    np.testing.assert_array_equal(file.read("plain"), grid)
    np.testing.assert_array_equal(file.read("transposed"), grid.T)
    assert file.read("transposed").flags.c_contiguous
    np.testing.assert_array_equal(file.read("middle"), [[7, 9, 11], [19, 21, 23]])
    assert file.read("scalar") == 5 and file.read("scalar").shape == ()
    assert file.read("empty").shape == (0, 3)
    np.testing.assert_array_equal(file.read("half"), half)
    np.testing.assert_array_equal(file.read("long"), long)
    expected = (brain >> 16 << 16).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(file.read("brain"), expected)
    assert file.read("brain").dtype == np.float32


def test_parameters_and_a_nested_state_dict(tmp_path, torch_names):
    tensor = Stored(torch_names, np.ones(2, np.float32), (2,), (1,))

    class Parameter:
        def __reduce__(self):
            return torch_names._utils._rebuild_parameter, (tensor, True, collections.OrderedDict())

    file = TorchFile(write(tmp_path / "a.bin", {"state_dict": {"w": Parameter()}, "epoch": 3}))
    assert list(file.tensors) == ["w"]
    np.testing.assert_array_equal(file.read("w"), [1, 1])


# ------------------------------------------------------------------------------------------- files that mean harm


class Harm:
    """Touches a file when unpickled by `pickle.load`."""

    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("call", "name"), [(os.system, "system"), (eval, "builtins.eval|__builtin__.eval"), (os.mkdir, "mkdir")]
)
def test_a_pickle_that_runs_code_is_refused_by_name(tmp_path, torch_names, call, name, legacy):
    mark = tmp_path / "ran"
    harm = {"eval": f"open({str(mark)!r}, 'w').close()", "mkdir": str(mark), "system": f"touch {mark}"}
    argument = harm[call.__name__]
    root = {"w": Stored(torch_names, np.ones(2, np.float32), (2,), (1,)), "harm": Harm(call, argument)}
    path = write(tmp_path / "pytorch_model.bin", root, legacy)
    with pytest.raises(UserError, match=f"refused: it asks for .*({name})"):
        TorchFile(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Harm(call, argument)))  # the same thing does harm where nobody looks
    assert mark.exists()


def raw(path, code):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", code)
    return path


STORAGE = b"ctorch\nFloatStorage\n"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (b"ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb.", "tries to change _rebuild_tensor_v2"),
        (STORAGE + b"}X\x05\x00\x00\x00dtypeX\x06\x00\x00\x00objectsb.", "tries to change a storage type"),
        (b"(itorch\nload\n.", "asks for torch.load"),
        (b"cbuiltins\ngetattr\n.", "asks for builtins.getattr"),
        (b"\x80\x04\x8c\x05torch\x8c\x10hub.load_state_d\x93.", "asks for torch.hub.load_state_d"),
        (b"ctorch\nBoolStorage.__class__\n.", "asks for torch.BoolStorage.__class__"),
        (b"ctorch.storage\n_load_from_bytes\n(C\x01xtR.", "asks for torch.storage._load_from_bytes"),
        (b"ccollections\nOrderedDict\n(K\x01K\x02tR.", "unusual arguments"),
        (STORAGE + b"Q.", "speaks of a storage in an unknown way"),
        (TENSOR + b"(K\x01K\x00))tR.", "not built from a storage"),
        (b"\x82\x01.", "unregistered extension"),
        (b"garbage", "not a readable torch file"),
        (b"", "not a readable torch file"),
        (b"K\x01.", "holds a int"),
        (b"}.", "holds no tensors"),
    ],
)
def test_odd_pickles(tmp_path, code, said):
    with pytest.raises(UserError, match=said):
        TorchFile(raw(tmp_path / "a.bin", code))


def test_a_tensor_cannot_be_changed_after_it_was_checked(tmp_path, torch_names):
    class Sneaky(Stored):
        def __reduce__(self):
            return (*self.reduced, {"offset": 10**9})  # BUILD on the finished tensor

    root = {"w": Sneaky(torch_names, np.ones(4, np.float32), (2,), (1,))}
    with pytest.raises(UserError, match="tries to change a tensor"):
        TorchFile(write(tmp_path / "a.bin", root))


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((5,), (1,), 0), ((4,), (1,), 1), ((2, 2), (4, 1), 0), ((2,), (-1,), 1), ((2,), (1,), -1), ((9,), (0,), 0),
     ((2, 2), (1,), 0), ((1 << 40,), (0,), 0), ((True,), (1,), 0), ((2.0,), (1,), 0)],
)  # fmt: skip
def test_views_must_stay_in_their_storage(tmp_path, torch_names, shape, strides, offset):
    root = {"w": Stored(torch_names, np.ones(4, np.float32), shape, strides, offset)}
    with pytest.raises(UserError, match=r"refused: a tensor (of size|has offset)"):
        TorchFile(write(tmp_path / "a.bin", root))


def test_storages_must_be_there_in_full(tmp_path, torch_names):
    root = {"w": Stored(torch_names, np.ones(4, np.float32), (4,), (1,))}
    with pytest.raises(UserError, match="needs 16 bytes, the file has 12"):
        TorchFile(write(tmp_path / "a.bin", root, cut=4))
    path = write(tmp_path / "b.bin", root, legacy=True)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="needs 16 bytes, the file has 12"):
        TorchFile(path)
    with pytest.raises(UserError, match="compressed"):
        TorchFile(write(tmp_path / "c.bin", root, compress=zipfile.ZIP_DEFLATED))


def test_other_zip_files_and_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as file:
        file.writestr("hello.txt", "hello")
    with pytest.raises(UserError, match="not a torch file"):
        TorchFile(tmp_path / "a.bin")
    (tmp_path / "pointer.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(UserError, match="not a readable torch file"):
        TorchFile(tmp_path / "pointer.bin")


def test_the_oracles_files(shared):
    new, old = TorchFile(shared("oracle/hf/pytorch_model.bin")), TorchFile(shared("oracle/hf/legacy/pytorch_model.bin"))
    assert (len(new.tensors), len(old.tensors)) == (64, 64)
    same = set(new.tensors) & set(old.tensors)
    assert len(same) >= 45
    for name in same:
        np.testing.assert_array_equal(new.read(name), old.read(name))
    assert old.read("bert.embeddings.position_ids").tolist() == [list(range(512))]
