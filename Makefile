# Two commands set everything up: `make demo` and `make test`. Both install into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := src/paceline/kernels/native

.PHONY: demo test install format gpu gpu-tables

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py \
		$(NATIVE)/build.py $(wildcard $(NATIVE)/src/*.c $(NATIVE)/src/*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/paceline compare --methods plain,anpd,llma,pld

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

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
