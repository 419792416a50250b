# The four jobs of the project. The first run of each makes the environment .venv.
PYTHON ?= python3
VENV ?= .venv
DATA ?= ../shared/data/mmlu_pro
DEMO ?= demo

BIN := $(VENV)/bin
ROUTE := $(BIN)/prefill-router

.PHONY: install demo test check bench

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The main job, from scored answers to a routed request.
demo: install
	$(ROUTE) describe $(DATA)
	$(ROUTE) encode $(DATA) --encoder minilm --out $(DEMO)/states
	$(ROUTE) fit $(DATA) --store $(DEMO)/states --out $(DEMO)/router
	$(ROUTE) evaluate $(DEMO)/router --data $(DATA) --store $(DEMO)/states --out $(DEMO)/report
	$(ROUTE) route $(DEMO)/router "A ball is thrown upward at 12 m/s. How high does it rise?" --lam 0.5

check: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two processes of one thread each: more threads than cores wait for each other.
test: export OMP_NUM_THREADS = 1
test: export OPENBLAS_NUM_THREADS = 1
test: check
	$(BIN)/pytest --numprocesses 2 --dist worksteal

bench: install
	$(BIN)/python -m benchmarks
