# These do everything on a fresh machine with Python 3.11 or later and pip:
#   make demo      sets up .venv, then runs the main job (no GPU, no arguments)
#   make check     format, lint, types and guards
#   make test      all other tests but the long sweeps
#   make test-all  those too; CI runs `make check` and this

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all check format setup clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/tightfit demo

# These walk through everything that is alive, so nothing else is collected beside them.
HEAP := tests/watch/leaks tests/api/test_leaking.py tests/bench/test_pages.py tests/cases/test_l_leaks.py

# A process for each core, up to four: each takes about 1 GiB, most of it PyTorch.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4

test: $(STAMP)
	$(PYTEST) -m "not slow" --ignore tests/guards
	$(PYTEST) $(HEAP)

test-all: test
	$(PYTEST) -m slow

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/guards

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
