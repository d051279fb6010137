"""Files and directories that appear whole or not at all, and fingerprints of what lies on disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from .errors import UserError


@contextlib.contextmanager
def new_file(path: str | os.PathLike) -> Iterator[TextIO]:
    """Yields a UTF-8 text file to fill; it appears under ``path``, or replaces it, only when the block ends well.

    Line ends are written as given.

    Raises:
        UserError: it cannot be written there.

    Example:
        >>> with new_file("answers.txt") as file:          # doctest: +SKIP
        ...     file.write("one")
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        file = open(partial, "w", encoding="utf-8", newline="")  # noqa: SIM115  closed below, before the renaming
    except OSError as error:
        raise UserError(path, f"cannot be written ({error.strerror})", "choose another place") from None
    try:
        with file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(path: str | os.PathLike, overwrite: bool = False, option: str = "overwrite=True") -> Iterator[Path]:
    """Yields an empty directory to fill; it takes the place of ``path`` only when the block ends well.

    The work is done in a sibling ``.NAME.XXXX.partial``, flushed to disk and renamed. A run that is killed or
    fails leaves ``path`` as it was: an old directory stays whole, a new one does not exist.

    Args:
        path: the directory to make; its parents are created.
        overwrite: replace an existing non-empty directory; without it that is a ``UserError``.
        option: how the caller spells the remedy, for the message.

    Example:
        >>> with new_directory("my-task") as fresh:          # doctest: +SKIP
        ...     (fresh / "artifact.json").write_text("{}")
    """
    path = Path(path)
    check_destination(path, overwrite, option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    except OSError as error:
        raise UserError(path, f"cannot be written ({error.strerror})", "choose a place that you may write to") from None
    try:
        fresh.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        yield fresh
        for file in fresh.rglob("*"):
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
        _take_place(fresh, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(path, "the disk is full; nothing was written", "free some space and run again") from None
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # after the rename this is the old directory, or nothing


def check_destination(path: str | os.PathLike, overwrite: bool = False, option: str = "overwrite=True") -> None:
    """Raises ``UserError`` where :func:`new_directory` would refuse: call it before anything expensive."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise UserError(path, "is a file, not a directory", "choose another destination")
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise UserError(path, "exists and is not empty", f"choose another destination or say {option}")
    parent = next(p for p in path.absolute().parents if p.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(path, f"cannot be written: no permission in {parent}", "choose a place that you may write to")


def _take_place(fresh: Path, path: Path) -> None:
    """Puts ``fresh`` at ``path``; what was there ends up at ``fresh``."""
    if not path.exists():
        os.rename(fresh, path)
    elif not _exchange(fresh, path):
        # No atomic exchange on this system: two renames, the old directory is kept until the new one is in place.
        old = fresh.with_suffix(".old")
        os.rename(path, old)
        os.rename(fresh, path)
        os.rename(old, fresh)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two directories in one step where the C library offers Linux's renameat2; says whether it did."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # another libc or another system
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of <fcntl.h> and <linux/fs.h>
    return renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sha256(path: str | os.PathLike) -> str:
    """The hexadecimal SHA-256 of one file's bytes, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
