# make report: everything from nothing to a page on a sample trace. make test: what matters, in minutes.
# make test-all: everything that must hold, as CI runs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# what `make report` shows: the GPT-2 step captured on a real GPU, else any other real trace, else a simulated
# one, which its name says. SAMPLE=FILE takes another.
REAL := $(sort $(filter-out sample_traces/generated_%,$(wildcard sample_traces/*.json.gz)))
SAMPLE ?= $(firstword $(filter %_gpt2_vocab50257_head80_eager.json.gz,$(REAL)) $(REAL) \
  sample_traces/generated_gpt2_vocab50257.json.gz)
# one more than cores: a third of the time a worker waits for a browser or a process that it started
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: report test test-all test-matrix lint types contract fast unit coverage fuzz docs clean

# without byte code each Python that a test starts would compile the whole package again
unexport PYTHONDONTWRITEBYTECODE

report: $(VENV)/.installed
	$(BIN)/tracelens analyze $(SAMPLE) --waits --output report.html --json report.json
	@echo
	@echo "The page: $(CURDIR)/report.html"

# types beside the tests: mypy without its cache takes as long as a third of them
test: lint contract
	@$(MAKE) --no-print-directory --jobs=2 types fast

test-all: lint contract
	@$(MAKE) --no-print-directory --jobs=2 types unit

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(VENV)/.tested
	$(BIN)/mypy

contract: $(VENV)/.tested
	$(BIN)/lint-imports

docs: $(VENV)/.tested
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build
	@echo "The pages: $(CURDIR)/docs/_build/index.html"

# what tests/slow.txt does not list
fast: $(VENV)/.tested
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# last, so that the output ends with pytest's own summary line; neighbours share a process, and so what they set up
unit: $(VENV)/.tested
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# which statements and branches of tracelens/ the fast tests run, in child processes, too
coverage: $(VENV)/.tested
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal -m "not slow"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# the wheel alone, with the lowest and the newest version of everything that it needs
test-matrix: $(VENV)/.installed
	PYTHON=$(CURDIR)/$(BIN)/python .ci/matrix

# strange inputs until FUZZ_SECONDS are over; those that break something are kept in fuzz-found/
FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.tested
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --first $$(date +%s) --keep fuzz-found

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("tracelens needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[hta]'
	@touch $@

$(VENV)/.tested: $(VENV)/.installed pyproject.toml
	$(PIP) --editable '.[test]'
# for the axe-core that it carries; the 165 MB of browser driver that it asks for are not used
	$(PIP) --no-deps 'axe-playwright-python>=0.1.8'
	@touch $@

clean:
	rm -rf $(VENV) docs/_build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.* report.html report.json
