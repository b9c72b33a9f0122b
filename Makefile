# Everything starts here: make quickstart, make test. forge/install makes .venv; PYTHON=, TORCH= and LLAMA= choose with what.

PYTHON ?= python3
BIN := .venv/bin
PYTEST_ARGS ?=
TIER :=
# One more than cores: a third of the tests' time is a wait for a process, a server or a deadline.
WORKERS ?= $(shell expr $$(nproc) + 1)
PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))
LENT := import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))

.PHONY: help setup quickstart test test-all frameworks docs pictures check lint types tests format clean

help:
	@echo "make quickstart   install, then forge run experiments/quickstart.toml"
	@echo "make test         install, then linters, type checker and tests (WORKERS=4: in 4 processes; default: one more than cores, at most 8)"
	@echo "make test-all     the same with the tests marked long: more whole runs, more sizes"
	@echo "make frameworks   TRL, OpenEnv's client and verifiers, unchanged, against the judge; installs the last two in .frameworks"
	@echo "make docs         the documentation as pages in build/docs; a broken link is an error"
	@echo "make pictures RUN=runs/quickstart-1   the pictures of the documentation, from a finished run"
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

test-all: setup lint .frameworks/done
	@$(MAKE) --no-print-directory --keep-going --jobs=2 types tests TIER='-m "long or not long"'

# Beside .venv, since OpenEnv's pins contradict those of constraints.txt; a path file lends it the packages of .venv.
.frameworks/done: tests/adapters/frameworks.txt constraints.txt | setup
	$(BIN)/python -m venv --clear --without-pip .frameworks
	$(BIN)/python -c "$(LENT)" > "$$(.frameworks/bin/python -c "$(PACKAGES)")/forge.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python .frameworks/bin/python install -q --no-deps -r $<
	touch $@

frameworks: .frameworks/done
	@$(MAKE) --no-print-directory tests TIER='-m "frameworks and long" tests/adapters'

# MkDocs is installed when it is first needed: no other command waits for it.
.venv/docs-done: constraints.txt | setup
	$(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs-material latex2mathml
	touch $@

docs: .venv/docs-done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'build/docs/index.html; search needs a server: "$(BIN)/python -m http.server -d build/docs"'

pictures:
	$(BIN)/python bench/pictures.py $(RUN) $(INTO)

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
	rm -rf .venv .frameworks .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path "./runs/*" -prune -exec rm -rf {} +
