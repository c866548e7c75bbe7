# `make` alone prints the targets below. ARGS goes to the tool, for example: make test ARGS="-k claim"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
IMAGE_EXTRAS := 7z aws kafka mcp metrics objects otlp postgres qdrant serve
EXTRAS := 7z audio aws azure kafka langchain llamaindex mcp metrics milvus objects oidc onnx otlp pinecone postgres qdrant ray serve whisper
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
IN_MEMORY = $(shell [ -w /dev/shm ] && [ "$$(df -Pm /dev/shm | awk 'NR == 2 { print $$4 }')" -ge 4096 ] && \
	awk '/MemAvailable/ { exit $$2 < 8000000 }' /proc/meminfo && echo TMPDIR=/dev/shm)

.DEFAULT_GOAL := help
.PHONY: help install check test crash fuzz bench bench-peers demo lock clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## Create .venv from requirements.lock (again only when the lock or pyproject.toml changed)

# pip, though uv is faster: only pip reads the package index that this machine configured for pip.
# Compiled by all cores afterwards: pip does it on one, and where no bytecode is written every start would compile anew.
$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@$(PYTHON) scripts/install.py $(BIN)/pip requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true
	@touch $@

check: install ## Lint, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

# Four processes for two cores: most tests wait for other processes and for timers longer than they compute.
# Temporary files are in memory where there is plenty: on a disk the tests mostly wait for fsync.
# Bytecode is written, also where the environment forbids it: to compile all tests takes each process ten seconds.
test: install ## Run the tests that every change must pass
	$(IN_MEMORY) PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses=4 --dist=worksteal $(ARGS)

crash: install ## Kill workers at every failpoint, many times over (long)
	PENSTOCK_LONG=1 $(BIN)/pytest tests/crash tests/simulation tests/ledger/test_ledger_unknown_outcome.py \
		tests/integration/test_server.py --timeout=3600 $(ARGS)

fuzz: install ## Send generated requests to every operation of the API (long)
	PENSTOCK_LONG=1 $(BIN)/pytest tests/acceptance/test_fuzz.py --timeout=3600 $(ARGS)

bench: install ## Measure, and print a table
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: install ## Measure other queues at the same work (installs them under build/)
	$(BIN)/python -m benchmarks.peers $(ARGS)

demo: install ## Watch it: ingest samples, a kill in the middle, going on, search (half a minute)
	$(BIN)/penstock demo $(ARGS)

lock: install ## Pin what pyproject.toml asks for, with hashes (UPGRADE=1 takes the newest versions)
	$(BIN)/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --group dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet $(if $(UPGRADE),--upgrade) --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml $(IMAGE_EXTRAS:%=--extra %) --constraint requirements.lock --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --output-file deploy/docker/requirements.lock

clean: ## Remove .venv, build output and the caches of the tools (never .penstock)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
