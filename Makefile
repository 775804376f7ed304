# Every target does its own set-up in .venv and re-uses it while pyproject.toml is unchanged.
# `make` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
# Compiling thousands of modules that nobody imports would take most of an install. What is used is compiled once, by
# importing it, and kept even where the surroundings ask Python not to write bytecode.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
WARM := $(BIN)/python -c "import rollweave.cli.main, pydantic, ray, torch, transformers.models.qwen3.modeling_qwen3"
unexport PYTHONDONTWRITEBYTECODE
CORE := .venv/.core-installed
DEV := .venv/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help setup quickstart rollart sharing test lint bench recipes docs clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -m venv .venv

$(CORE): pyproject.toml | $(BIN)/python
	@echo "installing rollweave into .venv (about a minute: torch, transformers and ray are large) ..."
	@$(PIP) -e .
	@$(WARM)
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing rollweave and its development tools into .venv (about a minute) ..."
	@$(PIP) -e '.[dev]'
	@$(WARM)
	@touch $(CORE) $@

setup: $(DEV) ## make .venv with everything that development needs

quickstart: $(CORE) ## train a small agent to play FrozenLake, in a few minutes
	@run=runs/quickstart-$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/rollweave train recipes/quickstart.yaml --out $$run && \
	printf '%s\n' \
	  "look:   $$run/report.html in a browser" \
	  "again:  $(BIN)/rollweave eval $$run" \
	  "next:   $(BIN)/rollweave train recipes/quickstart.yaml pipeline.type=sync    (what does the overlap gain?)" \
	  "        ls recipes    (others to try)        docs/configuration.md    (every key)"

rollart: $(CORE) ## train two tasks on two kinds of devices, and compare with single pools of equal cost
	@$(PIP) -e ".[tasks]"
	@$(BIN)/python -m tools.rollart $(if $(LAB),--lab)

sharing: $(CORE) ## three jobs that share one elastic pool of reward processes, against pools of their own
	@$(BIN)/python -m tools.sharing

test: $(DEV) ## the fast tests
	@$(BIN)/pytest -n auto --dist worksteal -m "not slow and not llm"

lint: $(DEV) ## ruff, mypy --strict, layers, what the control plane may not do, names in docs that do not exist
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tools
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m tools.lint_control_plane
	@$(BIN)/python -m tools.lint_names

BENCH ?= engine
bench: $(DEV) ## measure the engine, or another part with BENCH=NAME (docs/benchmarks.md)
	@$(BIN)/python -m bench.$(BENCH)

recipes: $(DEV) ## train every recipe to its target
	@$(BIN)/python -m tools.recipes

KUBERAY := $(BIN)/python -m rollweave.cluster.kuberay
EXAMPLE := deploy/kuberay/cluster.yaml registry.example.com/rollweave:0.1.0
docs: $(CORE) ## write the pages that come from the code
	@$(BIN)/python -m tools.reference > docs/configuration.md
	@$(BIN)/python -m rollweave.observability.catalogue > docs/metrics.md
	@$(KUBERAY) RayCluster $(EXAMPLE) > deploy/kuberay/raycluster.yaml
	@$(KUBERAY) RayJob $(EXAMPLE) > deploy/kuberay/rayjob.yaml
	@echo "wrote docs/configuration.md, docs/metrics.md and deploy/kuberay/"

clean: ## remove .venv and caches; runs/ stays
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
