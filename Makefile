# make up        starts Lathe: the page, the queue, a worker. Ctrl-C stops it.
# make quick     runs every check and the unit tests that do not import torch.
# make test      runs every check and the tests of every promise, in WORKERS=3 processes.
# make test-all  runs every test, those of rarely touched ground too, and measures their durations.
# make coverage  prints the line coverage of app, worker and training by `make test` and by `make test-all`.
# make check     runs lint, format, types and the direction of imports.
# make screenshots takes the pictures of README.md and docs/ again.
# make chaos     makes random faults for MINUTES=10 and looks for what is lost; also SEED=, DATABASE=postgresql, BROKER=redis, ENGINE=slurm, LOAD=8.
# The first of each installs what it needs into .venv; afterwards only what has changed. PYTHON=python3.12 takes another Python.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: up test suite test-all coverage quick quick-suite check chaos screenshots chromium faketime slurm
.DEFAULT_GOAL := up

# Each process collects and runs a share of the files (tests/shares.py).
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist each --max-worker-restart 0
# Importing torch takes longer than all other unit tests.
WITH_TORCH = $(addprefix tests/training/, models batches reports ranks trainer results simulation) \
	$(addprefix tests/training/tokens/test_, answer_tokens.py order.py packing.py tokens.py) tests/whole/test_reference_loop.py \
	tests/training/results/test_by_vllm.py

up: $(VENV)/.installed
	@$(BIN)/lathe up

test: $(VENV)/.installed-dev chromium faketime slurm
	@$(MAKE) --no-print-directory --jobs 2 check suite

suite: $(VENV)/.installed-dev
	@$(PYTEST) -m "not nightly" --durations=10

test-all: $(VENV)/.installed-dev chromium faketime slurm check
	@$(PYTEST) --write-durations --durations=10

coverage: $(VENV)/.installed-dev chromium faketime slurm
	@$(BIN)/python tests/line_coverage.py

quick: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs 2 check quick-suite

quick-suite: $(VENV)/.installed-dev
	@$(PYTEST) --quiet -m "not train and not browser and not slow and not nightly" $(addprefix --ignore=, $(WITH_TORCH))

check: $(VENV)/.installed-dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

screenshots: $(VENV)/.installed-dev chromium
	@$(BIN)/python docs/pictures.py

MINUTES ?= 10
DATABASE ?= sqlite
BROKER ?= valkey
ENGINE ?= local
LOAD ?= 8
chaos: $(VENV)/.installed
	@$(BIN)/python -m benchmarks.chaos --minutes $(MINUTES) --database $(DATABASE) --broker $(BROKER) --engine $(ENGINE) --load $(LOAD) $(if $(SEED),--seed $(SEED))

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Lathe into $(VENV): about 1 GB the first time (several with CUDA) ..."
	@$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Lathe and what its tests need into $(VENV): about 1 GB the first time (several with CUDA) ..."
	@$(PIP) --editable '.[train,dev]'
	@touch $(VENV)/.installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Lathe needs Python 3.11 or newer, and '$(PYTHON)' is not that. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@command -v g++ >/dev/null \
		|| { echo "Lathe needs g++, with which DeepSpeed builds its operators. On Debian: sudo apt-get install -y g++" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "No virtual environment could be made. On Debian: sudo apt-get install -y python3-venv" >&2; exit 1; }

# The browser of the end-to-end test. Root on Debian gets it; others are told how.
chromium:
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium for the browser test ..."; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else echo "No Chromium: the browser test is skipped. On Debian: sudo apt-get install -y chromium"; fi

# What sets the clock in its test. Root on Debian gets it; others are told how.
faketime:
	@if ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing faketime for the test of clocks ..."; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends faketime >/dev/null; \
	else echo "No libfaketime: the test of clocks is skipped. On Debian: sudo apt-get install -y faketime"; fi

# The cluster of two virtual nodes for the tests of the engine slurm. Root on Debian gets it; others are told how.
SLURM_PACKAGES := slurmctld slurmd slurm-client
slurm:
	@if [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && command -v sbatch >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Slurm for the tests of its engine ..."; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM_PACKAGES) >/dev/null; \
	else echo "No Slurm: the tests of its engine are skipped. On Debian: sudo apt-get install -y $(SLURM_PACKAGES)"; fi
