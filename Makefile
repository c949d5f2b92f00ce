# `make demo` and `make test` do all the set-up on a fresh machine; everything lives in .venv and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-full parity parity-full lint format fixtures golden clean

demo: $(VENV)/.runtime
	@mkdir -p build
	$(BIN)/layactl convert fixtures/laya-nano -o build/laya-nano.gguf --spec fixtures/laya-nano/decision.spec.json
	$(BIN)/layactl decide -m build/laya-nano.gguf --jsonl fixtures/demo.jsonl --format table

# WORKERS processes share the tests, whole files each.
WORKERS ?= 2
test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The full sizes of every fuzz, soak and simulation, and full-size checkpoints (gigabytes in a temporary folder).
test-full: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "full or not full"

# All three fixtures against the real reference, over every EVERY-th item of the corpus; what CI runs.
EVERY ?= 12
parity: $(VENV)/.test
	$(BIN)/layactl parity corpus --check > /dev/null
	$(BIN)/layactl parity derive --check
	$(BIN)/python benchmarks/prove_parity.py fixtures/tiny-multilingual build/parity --every $(EVERY)
	$(BIN)/python benchmarks/prove_parity.py fixtures/tiny-english build/parity --every $(EVERY)
	$(BIN)/python benchmarks/prove_parity.py fixtures/laya-nano build/parity --every $(EVERY)

# The whole corpus on a full-size checkpoint with random weights (CHECKPOINT=multilingual or english; gigabytes in DIR;
# JOBS processes share the reference's pass).
CHECKPOINT ?= multilingual
DIR ?= build/full-size
JOBS ?= 1
parity-full: $(VENV)/.test
	$(BIN)/python fixtures/make_full_size.py $(CHECKPOINT) $(DIR)/$(CHECKPOINT)
	$(BIN)/python benchmarks/prove_parity.py $(DIR)/$(CHECKPOINT) $(DIR) --resume --jobs $(JOBS) $(if $(filter english,$(CHECKPOINT)),--english)

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
	$(BIN)/python fixtures/make_calib_golden.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[test,lint,reference,calib]'
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf build $(VENV)
