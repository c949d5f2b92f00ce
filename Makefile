# `make demo` and `make test` do all the set-up on a fresh machine; everything lives in .venv and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-full lint format fixtures golden clean

demo: $(VENV)/.runtime
	@mkdir -p build
	$(BIN)/layactl convert fixtures/tiny-english -o build/tiny-english.gguf
	$(BIN)/layactl decide -m build/tiny-english.gguf "Billed twice this month, please refund me." \
	  --ask 'refund=noul: Does the customer ask for money back?' \
	  --ask 'team=choice: Which team? billing=payments and invoices|technical|other' \
	  --ask 'urgency=score: How urgent? low|medium|high' --format table
	@echo "(the demo checkpoint has random weights: it shows the tool at work, its answers mean nothing)"

test: $(VENV)/.test
	$(BIN)/python -m pytest

# Every size the issues state: the full fuzz, soak and full-size checkpoints (gigabytes in a temporary folder).
test-full: $(VENV)/.test
	$(BIN)/python -m pytest -m "full or not full"

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Rewrites fixtures/tiny-* from their script; `golden` their expected answers, from the reference package.
fixtures: $(VENV)/.test
	$(BIN)/python fixtures/make_fixtures.py

golden: fixtures
	$(BIN)/python fixtures/make_golden.py
	$(BIN)/python fixtures/make_router_golden.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[test,lint,reference]'
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf build $(VENV)
