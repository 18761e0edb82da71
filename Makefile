# Two commands set everything up: `make demo` and `make test`. Both install into .venv first, the
# demo only what running needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := src/paceline/kernels/native

.PHONY: demo test install format docs gpu gpu-tables

PIP := $(BIN)/python -m pip install --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt hatch_build.py \
	$(NATIVE)/build.py $(wildcard $(NATIVE)/src/*.c $(NATIVE)/src/*.h)

$(VENV)/.runs: $(SOURCES)
	@echo "Installing paceline and what it needs into $(VENV): torch is large, and a C library is compiled."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed: $(VENV)/.runs
	@echo "Installing what the tests need, too."
	$(PIP) --quiet --editable ".[dev]"
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.runs
	$(BIN)/paceline compare --methods plain,auto,anpd,llma

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# What waits for a GPU, in calls of nine minutes; options go into GPU="--data DIR --only PIECE".
gpu: install
	$(BIN)/python benchmarks/gpu.py --out benchmarks/results/gpu $(GPU)

gpu-tables: install
	$(BIN)/python tools/gpu_tables.py benchmarks/results/gpu

# The documentation as a site, in site/; `make docs DOCS=serve` shows it while you write.
docs: install
	$(PIP) --quiet --editable ".[docs]"
	$(BIN)/mkdocs $(or $(DOCS),build)

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
