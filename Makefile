# make demo     shows the defence at work on embedded data
# make quick    lint, types and the fast tests
# make test     everything CI checks: lint, types, all tests, doctests, the wheel, the documentation site
# make docs     the documentation site in docs/_build/html; a warning is an error
# Each first installs what it needs into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

# All tests of a file run on one worker, because they share fixtures such as trained models and servers. Files start in
# the order of tests/conftest.py, those with slow tests first. `logical` is one process for each core; slow tests take
# `auto`, which is one more.
PYTEST := $(BIN)/python -m pytest --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Two targets at a time: the type checker, the builds and the site use one core only, and print nothing before their end.
PARALLEL = $(MAKE) --no-print-directory --jobs 2

GENERATED_DOCS = docs/_build docs/reference/attacks docs/reference/defences docs/reference/tasks \
	docs/reference/command-line.md docs/tutorials/notebook.md

# The tests start many processes; none of them has to compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test lint types fast unit wheel docs format clean

# A development environment has everything that the demo needs.
demo: $(firstword $(wildcard $(DEV)) $(DEMO))
	$(BIN)/g2uardfl demo

quick: lint
	$(PARALLEL) fast types

test: lint
	$(PARALLEL) unit types wheel docs

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(DEV)
	$(BIN)/mypy

fast: $(DEV)
	$(PYTEST) -n logical -m "not slow"

unit: $(DEV)
	$(PYTEST) -n auto

# The wheel must be complete: it is unpacked into an empty folder, and the command line runs from there.
wheel: $(DEV)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python tests/check_wheel.py dist/*.whl

# Without -E, a warning about a page that has not changed since the last build would not be repeated. Sphinx 9 needs
# Python 3.11; the library itself runs on 3.10.
docs: $(DEV)
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; \
	then $(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html; \
	else echo "docs: skipped, the site needs Python 3.11"; fi

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(DEV): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) dist runs $(GENERATED_DOCS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
