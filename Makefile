# Two commands do all set-up: make demo (the main job, live) and make test.
SHELL := /bin/sh
PY ?= python3
BIN := .venv/bin
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
.DEFAULT_GOAL := help

.PHONY: help setup demo test lint bench soak lock agent emulate clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## a virtual environment with everything, from the lock file
	@$(PY) scripts/bootstrap.py

demo: setup ## a 32-node pool on four simulated clouds, live in this terminal
	@$(BIN)/fleetd demo

test: setup ## the tests, within ten minutes on two cores
	@$(PYTEST) -m "not soak and not bench" --session-timeout 1800

lint: setup ## ruff, its formatter, mypy, import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## figures as a table and as JSON lines in build/bench.jsonl
	@$(BIN)/python -m tests.bench

soak: setup ## long runs of what CI runs short
	@FLEETD_SOAK=1 $(PYTEST) -m "not bench" --timeout 3600

lock: ## resolve pyproject.toml again and rewrite requirements.lock
	@$(PY) scripts/bootstrap.py --lock

agent: setup ## fleet-agent for the nodes, one file: build/fleet-agent.pyz
	@$(BIN)/python scripts/zip_agent.py

emulate: setup ## the clouds' wire protocols on loopback, to try fleetd or your own tools
	@$(BIN)/fleetd emulate

clean: ## remove what was built, .venv too
	@rm -rf .venv build dist .coverage .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	@find fleet images policies providers scripts tests -name __pycache__ -prune -exec rm -rf {} +
