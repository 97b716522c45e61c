# Everything a fresh machine needs: `make run` and `make test` set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run check test test-cluster test-spark lint soak bench gpu-check docs clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## a virtual environment in .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[deepspeed,report,optuna,lora,qlora,tensorboard,mlflow,wandb,trackio,bitsandbytes,docs,test]"
	touch $@

run: $(STAMP) ## the main job on the embedded default: DeepSpeed ZeRO-2 on two CPU ranks
	$(BIN)/python -m runner

PYTEST := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest --durations=20
WORKERS ?= 2
EVERYDAY := not soak and not cluster and not spark
# Files side by side, in their order (the short unit tests last); then, by themselves, the tests that measure time.
define pytest # $(call pytest,MARKERS,PATHS)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(1) and not alone" $(2)
	$(PYTEST) -m "$(1) and alone" $(2)
endef

check: lint ## style, types and the unit tests: before every commit
	$(call pytest,$(EVERYDAY),tests/unit)

test: $(STAMP) ## all tests but the long ones, and the slowest 20 of them; WORKERS=2 at a time
	$(call pytest,$(EVERYDAY))

lint: $(STAMP) ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

SOAK ?= soak
soak: $(STAMP) ## the long tests: random kills and signals, trials of fit, 100 M parameters, further variants (40 min)
	$(call pytest,$(SOAK) and not cluster and not spark)

test-cluster: $(STAMP) ## two nodes as network namespaces, and a Slurm of them (root, Debian packages)
	tests/rigs/install
	$(PYTEST) -m cluster tests/cluster

test-spark: $(STAMP) ## a standalone Spark of two nodes without a shared disk (root, Java, pyspark: 460 MB)
	tests/rigs/install java openjdk-17-jre-headless
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[spark]"
	$(PYTEST) -m spark tests/spark tests/unit/test_compat.py

bench: $(STAMP) ## the figures of benchmarks/, as ratios
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks

gpu-check: $(STAMP) ## what only GPUs take, tried on this machine (ARGS=--dry-run: with the CPU in the GPU's place)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m runner.gpu_check $(ARGS)

docs: $(STAMP) ## docs/configuration.md from the schema, docs/combinations.md from the checks
	$(BIN)/python -m runner.documentation > docs/configuration.md
	$(BIN)/python -m runner.combinations > docs/combinations.md

clean: ## remove the environment and what runs wrote
	rm -rf $(VENV) outputs multirun build *.egg-info
