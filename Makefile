# Everything starts here: make quickstart, make test. forge/install makes .venv; PYTHON=, TORCH= and LLAMA= choose with what.

PYTHON ?= python3
BIN := .venv/bin
PYTEST_ARGS ?=
TIER :=
# One more than cores: a third of the tests' time is a wait for a process, a server or a deadline.
WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: help setup quickstart test test-all check lint types tests format clean

help:
	@echo "make quickstart   install, then forge run experiments/quickstart.toml"
	@echo "make test         install, then linters, type checker and tests (WORKERS=4: in 4 processes; default: one more than cores, at most 8)"
	@echo "make test-all     the same with the tests marked long: more whole runs, more sizes"
	@echo "make setup        install only: .venv (TORCH=cpu|cuda|rocm|'torch==...' overrides what is detected)"
	@echo "                  (LLAMA=cuda|hip|vulkan|cpu builds llama.cpp for GPUs too; kept until another is named)"
	@echo "make check        linters and type checker"
	@echo "make format       rewrite sources as ruff wants them"
	@echo "make clean        remove .venv and caches; runs/ stays"

setup:
	@$(PYTHON) -m forge.install

quickstart: setup
	$(BIN)/forge run experiments/quickstart.toml

check: setup lint types

# The type checker runs on one core beside the tests: it takes a fifth of their time.
test: setup lint
	@$(MAKE) --no-print-directory --keep-going --jobs=2 types tests

test-all: setup lint
	@$(MAKE) --no-print-directory --keep-going --jobs=2 types tests TIER='-m "long or not long"'

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/pyright

# Bytecode is kept: without it each of a run's hundreds of processes compiles forge and pytest compiles the tests anew.
tests:
	env -u MAKEFLAGS -u MAKELEVEL -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(TIER) $(PYTEST_ARGS)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path "./runs/*" -prune -exec rm -rf {} +
