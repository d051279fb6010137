"""What every test file shares: where the judges' data lie, and guards against a run that would prove nothing."""

import importlib.util
import os
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
