# `make demo` shows the guard at work, `make test` runs everything CI checks. Both make .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types unit wheel format clean

demo: $(STAMP)
	$(BIN)/g2uardfl demo

test: lint types unit wheel

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest

# The wheel must carry all it needs: it is unpacked alone, and the command line runs from it.
wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python tests/check_wheel.py dist/*.whl

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
