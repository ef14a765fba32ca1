# The developer interface. `make` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup serve-local stop-local test test-nix test-image-local test-fleet test-fleet-load test-image test-csrc test-rows-long test-arm64 test-flags test-gpu test-engines test-nfs test-hub lint bench-local bench-pack pictures digests reference
# DSV41_VENV: the bin of an environment that is there already, as in `nix develop`
VENV := $(or $(DSV41_VENV),.venv/bin)
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with everything (idempotent)
	@[ -n "$(DSV41_VENV)" ] || scripts/setup.sh

serve-local: setup ## serve the tiny model on 127.0.0.1:8888 (ARGS="--tp 1 --port 9000")
	@$(VENV)/python -m dsv41 serve --profile local $(ARGS)

stop-local: setup ## stop it
	@$(VENV)/python -m dsv41 stop --profile local $(ARGS)

test: setup ## run the tests
	@OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-nix: setup ## evaluate and build the flake offline, on a stand-in for nixpkgs
	@scripts/test-nix.sh

test-image-local: setup ## build image-local (330 MB of packages, minutes) and run it under podman
	@scripts/test-image-local.sh $(ARGS)

test-image: setup ## build the engine image for arm64 (4.2 GB, up to an hour) and run its programs by qemu
	@scripts/test-image.sh $(ARGS)

test-fleet: setup ## serve on three and four machines of namespaces, and break them (root; image-local as above; minutes)
	@scripts/test-fleet.sh fleet $(ARGS)

test-fleet-load: setup ## eight streams for three minutes while a rank is killed (root)
	@scripts/test-fleet.sh fleet_load $(ARGS)

test-csrc: ## the C++ tests below ASan and UBSan, and the C library by its one command
	@csrc/tests/run.sh all

test-rows-long: ## ten million verified random row lookups (minutes)
	@csrc/tests/run.sh long

test-arm64: ## the C++ tests for aarch64 under qemu (g++-aarch64-linux-gnu, qemu-user)
	@csrc/tests/run.sh arm64

test-flags: setup ## install SGLang on the CPU (3 GB, minutes) and ask its parser for every flag
	@scripts/setup-engines.sh && $(VENV)/python -m pytest -m flags tests/test_flags.py $(ARGS)

test-engines: ## install SGLang on the CPU (3 GB, minutes) and run the engine plugin in it, 0.5.23 and 0.5.21
	@scripts/setup-engines.sh && scripts/test-engines.sh $(ARGS)

test-gpu: ## row lookups in CUDA graphs, and vLLM where it is installed (PYTHON=python3 of the GPU machine)
	@PYTHONPATH=python:$$PYTHONPATH $${PYTHON:-$(VENV)/python} -m pytest -m gpu -W default -s tests/gpu $(ARGS)

test-nfs: setup ## two machines in qemu share a checkpoint over NFS by `dsv41 share` (250 MB of packages, minutes)
	@scripts/test-nfs.sh $(ARGS)

test-hub: setup ## fetch by the hub's real client in both versions of the engine images (20 MB of packages)
	@scripts/test-hub.sh $(ARGS)

lint: setup ## ruff, mypy, import-linter
	@$(VENV)/ruff check . && $(VENV)/ruff format --check . && $(VENV)/mypy && $(VENV)/lint-imports

bench-local: setup ## measure the local engine and write a receipt below docs/evidence
	@OMP_NUM_THREADS=1 $(VENV)/python -m dsv41.local.bench $(ARGS)

bench-pack: setup ## measure the packer and write a receipt below docs/evidence (25 GB written; minutes)
	@$(VENV)/python scripts/bench_pack.py $(ARGS)

pictures: setup ## draw the pictures of the docs again
	@$(VENV)/python scripts/pictures.py

digests: ## write the digests of the images again (needs nix)
	@python3 scripts/image_digests.py $(ARGS)

reference: setup ## write the generated reference pages again
	@$(VENV)/python scripts/reference.py
