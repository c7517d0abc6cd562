# `make demo` and `make test` do everything, set-up included, on a machine with Python 3.11 or newer.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench paper clean

demo: .venv/installed
	$(BIN)/krogh verify hidden-progress/fig-5.3 --no-record || test $$? -eq 1
	$(BIN)/krogh report

test: .venv/installed-dev
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: .venv/installed
	$(BIN)/krogh bench engine

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Krogh needs Python 3.11 or newer; point PYTHON at one: make PYTHON=python3.12 demo" >&2; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/installed-dev: pyproject.toml .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/installed

# The document's own settings, on a GPU. Small ensembles leave it idle and compiling is CPU work, so several processes
# share the device. Stopped at any point, the same command goes on from the checkpoints.
JOBS ?= 8
paper: .venv/installed
	$(BIN)/krogh list --json | $(BIN)/python -c "import json, sys; \
		print('\n'.join(e['system'] + '/' + e['experiment'] for e in json.load(sys.stdin) if e['claims']))" | \
		XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=0.1 \
		xargs -P $(JOBS) -n 1 -I{} $(BIN)/krogh run {} --preset paper
	$(BIN)/krogh verify --preset paper

clean:
	rm -rf .venv runs report
