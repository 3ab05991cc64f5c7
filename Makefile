# Two commands matter: `make demo` runs the main job, `make test` runs the tests.  Each does its own set-up on a
# fresh machine with Python 3.11 to 3.14, a C++ compiler and Rust.

VENV ?= .venv
# The first Python that starts (a pyenv shim may exist for a version that is not selected).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 \
	$(wildcard $(HOME)/.pyenv/versions/3.1[1234].*/bin/python); do \
	$$p -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$p && break; done)
NEWER_PYTHON ?= $(shell for p in python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python); do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null && echo $$p && break; done)
OLDEST_VENV ?= .venv-oldest
OLDEST_TORCH ?= 2.11.0
OLDEST_PYTHON ?= $(shell for p in python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python); do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo $$p && break; done)
JOBS ?= 2
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
RUST := $(wildcard Cargo.toml guards-rs/Cargo.toml guards-rs/src/*.rs guards-rs/src/*/*.rs guards-rs/src/*/*/*.rs)
export PYO3_PYTHON := $(abspath $(BIN)/python)

TOOLS := asan tsan checked memcheck kernels miri debug
.PHONY: demo docs pictures test test-all check format lint types rust pytest pytest-rest pytest-all fix wheel wheels test-newer test-oldest bench clean $(TOOLS)

demo: $(VENV)/.installed
	$(BIN)/python examples/train.py $(DEMO_ARGS)

# The documentation as a site, in build/docs: links are checked, tables and the API are generated from the package.
docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

# The pictures of README.md and docs/: the report page (needs chromium), and the five figures, with the README's table.
pictures: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python docs/images/report.py
	$(BIN)/python bench/plot.py

# Minutes: static checks, the engine's own tests, and the fast tier of the suite (tests/tiers.py).
test: check pytest

# Everything that runs without a GPU.
test-all: check pytest-all

check: format lint types rust

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.14 found; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# An editable install: Python sources are used in place, the extension is built in release mode beside them.
$(VENV)/.installed: pyproject.toml $(RUST) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(RUST) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,models]'
	@touch $(VENV)/.installed $@

format: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	cargo fmt --all --check

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The engine's own tests are a program with an embedded interpreter, linked with the library of the chosen Python.  The
# extension (feature `extension-module`) must not be linked with it.  clippy and the tests share one profile and its builds.
rust: $(VENV)/.installed-dev
	cargo clippy --all-targets --quiet -- -D warnings
	cargo test --lib --quiet --no-run
	PYTHONHOME="$$($(BIN)/python -c 'import sys; print(sys.base_prefix)')" \
	LD_LIBRARY_PATH="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))'):$$LD_LIBRARY_PATH" \
		cargo test --lib --quiet

RUN_TESTS := pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Another part of the cases with each commit; `pytest-rest` runs a quarter of the tests that this part leaves out.
pytest: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/$(RUN_TESTS) --tier fast $(PYTEST_ARGS)

pytest-rest: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/$(RUN_TESTS) --tier rest $(PYTEST_ARGS)

pytest-all: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/$(RUN_TESTS) $(PYTEST_ARGS)

fix: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --all

# One wheel for each supported Python found; they work with every supported torch.
wheels: $(VENV)/.installed-dev
	$(BIN)/python .ci/wheels.py --maturin $(BIN)/maturin --out wheels

# The wheel of this environment's Python alone.
wheel: $(VENV)/.installed-dev
	$(BIN)/python .ci/wheels.py --maturin $(BIN)/maturin --python $(BIN)/python --out wheels

# The suite under CPython 3.13, in an environment of its own.
test-newer:
	@test -n "$(NEWER_PYTHON)" || { echo "make: no Python 3.13 found; set NEWER_PYTHON" >&2; exit 1; }
	$(MAKE) pytest-all VENV=.venv-newer PYTHON=$(NEWER_PYTHON)

# The suite against an installed wheel of another Python, under the oldest torch supported.
test-oldest: wheels
	@test -n "$(OLDEST_PYTHON)" || { echo "make: no Python 3.12 found; set OLDEST_PYTHON" >&2; exit 1; }
	test -x $(OLDEST_VENV)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install --quiet 'torch==$(OLDEST_TORCH)' "$$(ls wheels/*-cp312-*.whl)[test,models]"
	$(OLDEST_VENV)/bin/python -m pip install --quiet --no-deps --force-reinstall wheels/*-cp312-*.whl
	@# Programs that tests start from this folder see these sources: give them the wheel's extension as well.
	cp "$$($(OLDEST_VENV)/bin/python -P -c 'import pycompiler._native as n; print(n.__file__)')" pycompiler/
	OMP_NUM_THREADS=1 $(OLDEST_VENV)/bin/$(RUN_TESTS) $(PYTEST_ARGS)

# The engine under sanitizers, valgrind, Miri, and a debug build of CPython; .ci/tools describes each.
$(TOOLS): $(VENV)/.installed-dev
	PYTHON=$(abspath $(BIN)/python) .ci/tools $@ $(PYTEST_ARGS)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	mkdir -p .benchmarks
	$(BIN)/pytest bench --benchmark-enable --benchmark-only --benchmark-json=.benchmarks/latest.json $(BENCH_ARGS)
	$(BIN)/python bench/ratios.py .benchmarks/latest.json

clean:
	rm -rf $(VENV) $(OLDEST_VENV) .venv-newer .venv-3.14 target wheels build dist
