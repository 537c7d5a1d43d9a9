# Two commands do everything on a fresh machine with Python 3.11 or later and pip:
#   make demo    sets up .venv, then runs the main job (no GPU, no arguments)
#   make test    sets up .venv, then runs the tests
# `make check` runs format, lint, types and guards, as CI does.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check format setup clean

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
test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 4
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(HEAP)

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
