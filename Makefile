# make demo   environment, real recordings, a CPC run, probes, report
# make test   environment, lint, types, tests, a small run of each experiment, the site
# make nightly  long tests, kills, damage and odd input for an hour, intervals, studies at full size
# make mutations  faults of one line each, and which of them the tests nearest to them miss
# make fast   the tests without a network, and without whole runs
# make docs   the tables of figures, and the site, in build/docs, its notebooks executed
# Nothing needs root; what is there is reused.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
DEMO_RUN ?= runs/voices
# Two processes, files in the order of conftest.py.
SHARED := -n 2 --dist loadfile --no-loadscope-reorder

# Big pages for big buffers: a CPU step spends its time computing instead of faulting pages in.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

# Where Python is told to write no bytecode, each of the tests' commands would compile its imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test nightly mutations tests fast lint docs clean
.DEFAULT_GOAL := demo

demo: .venv/demo
	$(BIN)/python -m experiments.train --config configs/audio_voices.py --workdir $(DEMO_RUN)

# Side by side, so that neither core waits: types, the site, and the tests in two processes.
test: .venv/dev
	$(MAKE) -j 3 lint docs tests

nightly: .venv/dev
	$(BIN)/python -m pytest $(SHARED) -m nightly
	$(BIN)/python -m tests.estimators.coverage
	$(BIN)/python -m tests.estimators.forty_tasks
	mkdir -p build/studies
	FULL=1 $(BIN)/jupyter execute --timeout=-1 --output='../../build/studies/{notebook_name}' notebooks/studies/*.ipynb
	$(BIN)/python -m tests.endurance

mutations: .venv/dev
	@mkdir -p build
	$(BIN)/python -m tests.mutations --out build/mutations.jsonl

tests: .venv/dev
	$(BIN)/python -m pytest $(SHARED) -m "not nightly"

fast: .venv/dev
	$(BIN)/python -m pytest $(SHARED) -m "not whole and not network and not nightly"

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

docs: .venv/dev
	$(BIN)/python docs/tables.py
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache *.egg-info build dist

.venv/demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --no-compile -e .
	@touch $@

.venv/dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --no-compile -e '.[dev,docs]'
	@touch $@ .venv/demo

# A new pip, because the pip of Python 3.11 takes a minute longer to choose versions.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python of at least 3.11 with venv was found: \
	install one (on Debian and Ubuntu: python3 and python3-venv), or run make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
