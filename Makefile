# Two commands matter: `make repro` (set up, run the main job) and `make test` (set up, all tests).
# Each makes its own virtual environment and needs only python3 with venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDEST := .venvs/oldest
PIP_QUIET := --quiet --disable-pip-version-check

.PHONY: repro test test-oldest lint format sglang dashboards bench setup clean help

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# The stamp is newer than the files that say what is installed, or the set-up runs again.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt -e '.[all]' --group test
	touch $@

$(VENV)/.lint-ready: $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt --group lint
	touch $@

$(OLDEST)/.ready: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install $(PIP_QUIET) --upgrade 'pip>=25.1'
	$(OLDEST)/bin/python -m pip install $(PIP_QUIET) -c constraints.txt -c constraints-oldest.txt -e '.[all]' --group test
	touch $@

setup: $(VENV)/.ready ## make the virtual environment

repro: setup ## 30 agent sessions through the tiered cache, every copied page checked
	$(BIN)/hicache-dbg repro

test: setup sglang test-oldest ## all tests, with the newest and the oldest libraries we support
	$(BIN)/pytest

# Released wheels of SGLang, unpacked beside an environment that holds what their pools import.
sglang: setup ## set up SGLang as released, for its tests
	$(BIN)/python tests/sglang/prepare.py

test-oldest: $(OLDEST)/.ready ## the tests of what touches third-party libraries, with the oldest of them
	$(OLDEST)/bin/pytest tests/exporters tests/tracer tests/diagnose tests/cli

lint: $(VENV)/.lint-ready ## ruff, mypy --strict, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

format: $(VENV)/.lint-ready ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: setup ## make the committed dashboards from their code
	$(BIN)/python -m hicache_dbg.tracer.dashboards.build dashboards/grafana

bench: setup ## what the instrument costs on this machine, as ratios
	$(BIN)/python benchmarks/overhead.py

clean: ## remove the virtual environments and caches
	rm -rf $(VENV) .venvs .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
