"""Memory that was freed stays with the process, so that the next batch need not ask the system for it again."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# mallopt's parameters, from glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


@functools.cache
def keep() -> bool:
    """Tells glibc's malloc not to give large blocks back; True if it does as told. Asked once a process.

    TensorFlow frees every activation after its last use. By default glibc returns blocks of this size to the system,
    which hands them out again as pages that must be zeroed and mapped one by one: 6,000 page faults a step in a
    6-layer model's training, a tenth of the time of prediction (docs/training.md has figures). The process's memory
    then stays at its peak instead of falling in between. ``KERAS_BERT_LAB_KEEP_MEMORY=0`` in the environment leaves
    malloc as it is; elsewhere than on Linux with glibc nothing happens.

    Example:
        >>> keep() in (True, False)
        True
    """
    if os.environ.get("KERAS_BERT_LAB_KEEP_MEMORY") == "0" or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 256 << 20}
    return all([mallopt(parameter, value) == 1 for parameter, value in wanted.items()])
