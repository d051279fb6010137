import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from keras_bert_lab import memory
print(memory.keep())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def batch():
    for megabytes in (40, 5, 40):
        block = libc.malloc(megabytes << 20)
        libc.memset(block, 1, megabytes << 20)
        libc.free(block)
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(monkeypatch, keep):
    monkeypatch.setenv("KERAS_BERT_LAB_KEEP_MEMORY", keep)
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is glibc's on Linux only")
def test_freed_blocks_are_used_again_without_asking_the_system(monkeypatch):
    as_it_is, many = faults(monkeypatch, "0")
    kept, few = faults(monkeypatch, "1")
    if not kept:
        pytest.skip("this libc has no mallopt")
    assert not as_it_is
    assert many > 40 * 2**20 / 65536  # at least a fault for every page of the largest usual size
    assert few < many / 20
