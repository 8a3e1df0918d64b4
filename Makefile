# What a developer and CI call. Each target is one or two lines; the steps behind them are in tools/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit test-real test-lab lab lab-down bench soak nightly check check-types check-rest fmt protos lock clean
bin := .venv/bin
LAB ?= tests/lab
REAL ?= tests/real_sglang
pins := pyproject.toml simulator/pyproject.toml requirements/tools.txt tools/setup.sh

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/installed-dev ## make .venv with everything a developer needs (PYTHON=… chooses the interpreter)

demo: .venv/installed-run ## run examples/demo.yaml on simulated servers, to its verdict
	@tools/demo.sh

test: .venv/installed-dev ## all tests but those on a real SGLang and on lab hosts
	@tools/test_programs.sh
	@tools/tests.sh test 3 -m "not real_sglang and not lab"

test-unit: .venv/installed-dev ## the pure parts only: seconds
	$(bin)/pytest tests/unit

test-real: .venv/installed-dev ## tests on a real SGLang server on the CPU (first time: installs it into the cache; REAL=FILES for some)
	$(bin)/python tests/real_sglang/environment.py
	tools/tests.sh real 0 -m real_sglang $(REAL)

test-lab: .venv/installed-dev ## tests on lab hosts: real ssh, real networks, real faults on this machine (as root; LAB=FILES for some)
	@tools/lab_programs.sh
	@tools/tests.sh lab 2 -m lab -rs $(LAB)

lab: .venv/installed-dev ## lab hosts to try things on by hand, until Ctrl-C or make lab-down (HOSTS=3 SYSTEMD=0 VENV=0)
	@tools/lab_programs.sh
	@$(bin)/python -m tests.lab.by_hand up

lab-down: ## end the labs that make lab started
	@$(bin)/python -m tests.lab.by_hand down

bench: .venv/installed-dev ## overheads of fleetctl and the agent, diagnose, restart with 10,000 trials, the load client: tables and benchmarks/latest.json
	@tools/bench.sh

soak: .venv/installed-dev ## many short trials for SOAK_MINUTES (30): fails when memory, descriptors or disk grow beyond what is stored
	$(bin)/python -m benchmarks.soak

nightly: .venv/installed-dev ## every check, test and benchmark in its long form: about two hours (SOAK_MINUTES=30)
	@tools/nightly.sh

check: .venv/installed-dev ## ruff, mypy --strict, import contracts, proto drift, buf lint, sizes, folders, wording
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target check-types check-rest

check-types:
	$(bin)/mypy && $(bin)/mypy benchmarks tools tests/conftest.py

check-rest:
	$(bin)/ruff check --quiet . && $(bin)/ruff format --check --quiet . && $(bin)/lint-imports --no-logo
	tools/protos.sh check && tools/buf_lint.sh && $(bin)/python -m tools.sizes && $(bin)/python -m tools.structure

fmt: .venv/installed-dev ## format, sort imports and apply ruff's safe fixes
	$(bin)/ruff check --fix . && $(bin)/ruff format .

protos: .venv/installed-dev ## regenerate the stubs and values of protos/fleet_protos/v1
	tools/protos.sh write

lock: .venv/installed-dev ## refresh requirements/*.txt from pyproject.toml
	tools/lock.sh

clean: ## remove what was made here: .venv, caches, builds, the demo's state
	rm -rf .venv .benchfleet build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/latest.json

.venv/installed-%: requirements/%.txt $(pins)
	@tools/setup.sh $* && touch $@
