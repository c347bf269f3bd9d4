# The two commands of the README are `make serve` and `make test`; `make help` lists the rest.
SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The engine that this machine can run: an NVIDIA device node means the V100 build, none means vLLM for CPUs.
ENGINE ?= $(shell test -e /dev/nvidiactl && echo v100 || echo portable)
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
LOCK   := config/requirements/$(ENGINE).txt
GPU_PYTHON ?= $(shell test -x $(BIN)/python && echo $(BIN)/python || echo python3)
# `down` and `logs` find the containers by the project's name, which is the same for either engine.
COMPOSE := docker compose --file compose.yaml
READY  := $(VENV)/.ready-$(ENGINE)
IMAGE  ?= v100-appliance
CHECK_VENV  ?= .venv-check
CHECK_BIN   := $(CHECK_VENV)/bin
CHECK_READY := $(CHECK_VENV)/.ready
# One of them starts the engines and containers, the others run the rest.
WORKERS ?= 2
HOST_PYTHON = $(shell test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON))

.PHONY: help serve up down logs image image-sidecar base-image sbom check test test-image lint bench bench-host kernels gpu-test gpu-engine-test lock clean
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

serve: $(READY) ## Set everything up and serve (ARGS="..." goes to `appliance serve`)
	@$(BIN)/appliance serve $(ARGS)

up: ## Serve from containers: build what is missing, start, wait until it is ready
	@config/compose/up.sh $(ENGINE)

down: ## End the containers; caches and models stay (ARGS=--volumes removes them too)
	@$(COMPOSE) down $(ARGS)

logs: ## Follow what the containers say
	@$(COMPOSE) logs --follow $(ARGS)

# 3 GB less than all of config/requirements/v100.txt on the same base, which was built once and has 11,259 MB.
MOST_v100 := --most 8259

image: ## Build the image of ENGINE (v100 or portable) and show the size of its layers (CA_BUNDLE, NETWORK, INDEX_URL)
	@config/image/build.sh $(ENGINE) $(IMAGE):$(ENGINE) $(ARGS)
	@$(HOST_PYTHON) -m appliance.image.sizes $(IMAGE):$(ENGINE) $(MOST_$(ENGINE))

image-sidecar: ## Build the sidecar's image and show the size of its layers
	@config/image/build.sh sidecar $(IMAGE):sidecar $(ARGS)
	@$(HOST_PYTHON) -m appliance.image.sizes $(IMAGE):sidecar --most 150

base-image: ## Pull the base image, or make it from Debian's packages where no registry is reached
	@config/image/base.sh $(BASE)

sbom: ## Copy the bills of materials out of the images that are there into build/sbom
	@config/image/sbom.sh $(IMAGE) build/sbom

# lint BIN: warnings are errors.
lint = $(1)/ruff check . && $(1)/ruff format --check . && $(1)/mypy

check: $(CHECK_READY) ## Lint and run the unit tests, without Docker or an engine
	@$(call lint,$(CHECK_BIN))
	@$(CHECK_BIN)/python -m pytest -q --numprocesses $(WORKERS) -m "not (processes or engine or image or gpu)" $(ARGS)

# The environment has an engine's packages: a test that misses them fails.
test: export TESTS_REQUIRE := engine,$(TESTS_REQUIRE)
test: $(READY) lint ## Set everything up, lint, and run every test (ARGS="..." goes to pytest)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) $(ARGS)

test-image: $(READY) ## Build the images and run the tests that need Docker
	@TESTS_REQUIRE=docker $(BIN)/python -m pytest tests/system/containers $(ARGS)

lint: $(READY) ## ruff and mypy, warnings are errors
	@$(call lint,$(BIN))

bench: $(READY) ## Time the control plane: decisions under 0.4 s, probes under 0.1 s, the sidecar's p99 and memory
	@$(BIN)/python -m appliance.bench.control_plane $(ARGS)

bench-host: $(READY) ## Time the Python of ours in a decode step of the tiny model on the CPU engine: at most 1 ms
	@$(BIN)/python -m tests.benchmarks.host_share $(ARGS)

kernels: $(READY) ## Build every registered kernel into build/kernels (ARGS="--jobs 2")
	@$(BIN)/python -m sm70_kernels.build --out build/kernels $(ARGS)

# Also for a machine with no network and no environment of ours: any python with torch, numpy, pytest and cuda-bindings.
gpu-test: ## Prove the kernels on this machine's GPU and record it in verification/ (GPU_PYTHON=python3)
	@PYTHON=$(GPU_PYTHON) tests/gpu/run.sh build/gpu
	@mkdir -p verification && cp build/gpu/gpu.json verification/ && cp build/gpu/benchmark.json verification/gpu_benchmark.json

gpu-engine-test: ## The plugin's engine on one large GPU (GPU_PYTHON with vLLM; ARGS="compare serve serve-cut", or full)
	@PYTHON=$(GPU_PYTHON) SM70_KERNELS_DIR=$(CURDIR)/build/kernels tests/gpu/engine/run.sh build/gpu-engine $(ARGS)
	@mkdir -p verification && for each in engine serve serve_cut; do \
		[ ! -f build/gpu-engine/$$each.json ] || cp build/gpu-engine/$$each.json verification/; done
	@[ ! -f build/gpu-engine/full.json ] || cp build/gpu-engine/full.json verification/full_size.json

$(READY): $(LOCK) config/requirements/bootstrap.txt pyproject.toml
	@config/requirements/setup.sh "$(PYTHON)" "$(VENV)" "$(ENGINE)"
	@touch $@

$(CHECK_READY): config/requirements/check.txt config/requirements/bootstrap.txt pyproject.toml
	@config/requirements/setup.sh "$(PYTHON)" "$(CHECK_VENV)" check
	@touch $@

lock: $(READY) ## Resolve the requirements anew and write the hash-locked files
	@config/requirements/lock.sh $(BIN)/uv

clean: ## Remove the environment and everything the appliance wrote beside it
	@rm -rf $(VENV) $(CHECK_VENV) .appliance build *.egg-info .mypy_cache .ruff_cache .pytest_cache
