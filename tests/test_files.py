"""Directories appear whole or not at all."""

import os
import subprocess
import sys

import pytest

from keras_bert_lab import files
from keras_bert_lab.errors import UserError


@pytest.mark.parametrize("exchange", [True, False])
def test_replaces_the_old_directory_whole(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    goal = tmp_path / "a" / "goal"
    with files.new_directory(goal) as fresh:
        (fresh / "one").write_text("1")
    with pytest.raises(UserError, match="not empty.*--again"), files.new_directory(goal, option="--again"):
        pass
    with files.new_directory(goal, overwrite=True) as fresh:
        (fresh / "two").write_text("2")
    assert [p.name for p in goal.iterdir()] == ["two"]
    assert [p.name for p in goal.parent.iterdir()] == ["goal"]  # no debris


def test_failure_leaves_the_old_directory_and_no_debris(tmp_path):
    goal = tmp_path / "goal"
    with files.new_directory(goal) as fresh:
        (fresh / "one").write_text("1")
    with pytest.raises(RuntimeError), files.new_directory(goal, overwrite=True) as fresh:
        (fresh / "two").write_text("2")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["goal"]
    assert [p.name for p in goal.iterdir()] == ["one"]


def test_a_killed_run_leaves_the_old_directory(tmp_path):
    goal = tmp_path / "goal"
    with files.new_directory(goal) as fresh:
        (fresh / "one").write_text("1")
    code = (
        "import os, signal, sys\nfrom keras_bert_lab import files\n"
        "with files.new_directory(sys.argv[1], overwrite=True) as fresh:\n"
        "    (fresh / 'two').write_text('2'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, goal], check=False).returncode == -9
    assert [p.name for p in goal.iterdir()] == ["one"]


def test_bad_destinations_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file, not a directory"):
        files.check_destination(tmp_path / "file")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(UserError, match="no permission"):
            files.check_destination(tmp_path / "closed" / "new")


def test_sha256_of_known_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_file_appears_when_its_last_line_is_written(tmp_path):
    goal = tmp_path / "goal.txt"
    with files.new_file(goal) as file:
        file.write("a\r\nß\n")
        assert not goal.exists()
    assert goal.read_bytes() == "a\r\nß\n".encode()
    with pytest.raises(RuntimeError), files.new_file(goal) as file:
        file.write("half")
        raise RuntimeError
    assert goal.read_bytes() == "a\r\nß\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["goal.txt"]  # no debris
    with pytest.raises(UserError, match="cannot be written"), files.new_file(tmp_path / "no" / "goal"):
        pass
