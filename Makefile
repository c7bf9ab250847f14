# The commands of a developer. `make` alone lists them.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-fast bench bench-peers bench-measured bench-training golden docs ci

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv and install the project with its developers' tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev]'

check:  ## linter, formatter, type checker, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format:  ## format the code and sort the imports
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

test:  ## all tests
	$(BIN)/pytest

test-fast:  ## the tests that need neither JAX nor patience
	$(BIN)/pytest -m 'not jax and not slow'

bench:  ## start-up against `import sympy`, growth with the program, candidates a second
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/throughput.py

bench-measured:  ## what published runs measured against what the library says, into docs/measured.md
	$(BIN)/python benchmarks/measured.py --write

bench-training:  ## examples/train_llama on one device, 8, two processes, and killed: the losses agree
	$(BIN)/python benchmarks/training.py

bench-peers:  ## wire bytes against JAX's partitioners and DTensor (needs the extra `bench`)
	$(BIN)/python benchmarks/peers.py

golden:  ## rewrite the golden files: read the diff before you commit it
	$(BIN)/pytest --update-golden -m 'not jax'

docs:  ## write docs/rules.md and the pictures, and refresh the outputs that README.md shows
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_plots.py
	$(BIN)/pytest --update-golden tests/test_readme.py

ci:  ## what CI runs: all of it in a new environment
	.ci/run
