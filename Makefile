# Two commands set everything up: `make demo` and `make test`. Both install into .venv first, the
# demo only what running needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := src/paceline/kernels/native

.PHONY: demo test types pytest install format docs gpu

# pip would compile all modules of all packages. So they are compiled where they are first imported,
# and kept for the other processes, even where Python is told to keep nothing.
export PYTHONDONTWRITEBYTECODE :=
# The pip that comes with Python may be years old: a new one takes three quarters of its time.
NEW_VENV := $(PYTHON) -m venv --upgrade-deps $(VENV)
PIP := $(BIN)/python -m pip install --no-compile --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt hatch_build.py \
	$(NATIVE)/build.py $(wildcard $(NATIVE)/src/*.c $(NATIVE)/src/*.h)

$(VENV)/.runs: $(SOURCES)
	@echo "Installing paceline and what it needs into $(VENV): torch is large, and a C library is compiled."
	$(NEW_VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed: $(SOURCES)
	@echo "Installing paceline and what its tests need into $(VENV), and compiling a C library."
	$(NEW_VENV)
	$(PIP) --quiet --editable ".[dev]"
	@touch $(VENV)/.runs $@

install: $(VENV)/.installed

demo: $(VENV)/.runs
	$(BIN)/paceline compare --methods plain,auto,anpd,llma

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs 2 types pytest

types: install
	$(BIN)/mypy

pytest: install
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# What needs a GPU: its tests, what passes cost and, on the suites in DATA, methods beside
# transformers: `make gpu DATA=DIR MODEL=qwen2.5-coder-1.5b`.
MODEL ?= smollm2-135m
ON_GPU = --model $(MODEL) --device cuda --dtype bfloat16
gpu: install
	$(BIN)/python -m pytest -m gpu
	$(BIN)/paceline tune $(ON_GPU)
ifdef DATA
	$(BIN)/paceline bench run mt_bench canitedit cnndm --data "$(DATA)" --resume \
		--limit 4 --repeats 2 -n 128 --methods plain,auto,anpd,eagle,medusa,transformers \
		--out build/gpu $(ON_GPU)
endif

# The documentation as a site, in site/; `make docs DOCS=serve` shows it while you write.
docs: install
	$(PIP) --quiet --editable ".[docs]"
	$(BIN)/mkdocs $(or $(DOCS),build)

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
