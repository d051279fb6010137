"""What every test file shares: where the judges' data lie, and guards against a run that would prove nothing."""

import importlib.util
import json
import os
import unicodedata
import weakref
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("KERAS_BERT_LAB_SHARED", ROOT.parent / "shared"))
INTEROP = os.environ.get("KERAS_BERT_LAB_INTEROP") == "1"  # set by `make interop`

if importlib.util.find_spec("keras_bert_lab") is None or importlib.util.find_spec("keras_bert_lab.heads") is None:
    raise pytest.UsageError("keras_bert_lab is not installed here: run `pip install -e .` first (see CONTRIBUTING.md)")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared():
    """A function from a path below the shared data folder to that Path; skips where the folder is not laid."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"no {name} in the shared data folder (set KERAS_BERT_LAB_SHARED)")
        return path

    return find


@pytest.fixture(scope="session")
def vocabulary(shared):
    """A function from "uncased", "chinese", "cased" or "multi_cased" to the path of that real vocabulary."""
    places = {
        "uncased": "tiny_en/vocab.txt",
        "chinese": "tiny_zh/vocab.txt",
        "cased": "vocabs/bert_base_cased_vocab.txt",
        "multi_cased": "vocabs/bert_base_multilingual_cased_vocab.txt",
    }
    return lambda name: shared(f"oracle/{places[name]}")


@pytest.fixture(scope="session")
def tokenization(shared):
    """What Google's tokenization.py made of many texts: a function (vocabulary, lower case) -> rows of the recording.

    Only a row with characters that this Python's Unicode data do not know may differ; those are left out.
    """
    rows = [json.loads(line) for line in shared("oracle/tokenization.jsonl").read_text("utf-8").splitlines()]

    def version(said: str) -> tuple[int, ...]:
        return tuple(map(int, said.split(".")))[:2]

    known = version(unicodedata.unidata_version)
    rows = [row for row in rows if row["unicode_age"] == "unassigned" or version(row["unicode_age"]) <= known]
    return lambda name, lower: [row for row in rows if (row["vocab"], row["do_lower_case"]) == (name, lower)]


@pytest.fixture(scope="session")
def one_at_a_time():
    """A function that makes an open checkpoint fail where a tensor is read while one before is still held.

    It returns a list that has an item for every tensor that was read.
    """

    def watch(source) -> list[weakref.ref]:
        read, alive = source.reader.read, []

        def watched(key):
            assert not [ref for ref in alive if ref() is not None], "the tensor before is still held"
            array = read(key).copy()
            alive.append(weakref.ref(array))
            return array

        source.reader.read = watched
        return alive

    return watch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In `make interop` everything was installed on purpose, so a comparison that skips is a failure.

    Only missing shared data may skip: that is the reader's choice.
    """
    report = yield
    if INTEROP and report.skipped and "shared data folder" not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped under `make interop`, where nothing may be missing: {report.longrepr}"
    return report
