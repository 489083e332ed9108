# Everything is made in .venv. The machine gives git, make, Python 3.11 or newer with venv, and Java 17 for Spark.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The tests start hundreds of processes; each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= 2
# Many tests wait for the disk, a JVM or a child, so one more than there are cores.
TEST_WORKERS ?= 3
SECONDS_EACH ?= 60
ENGINES ?= wheel rocksdb lmdb
CRASH_CASES := test_kill or test_power_loss or test_failing_calls or test_bit_rot
# By module, so that no other case is collected.
CRASH_MODULES := $(addprefix rmqstore_conformance.cases.,$(filter test_%,$(CRASH_CASES)))
# Cases that draw disk states by chance.
STATE_CASES := test_power_loss and not test_r2

RUN_PARTS := ./plugins/memory ./plugins/wheel ./plugins/rocksdb ./plugins/lmdb
DEV_PARTS := $(RUN_PARTS) ./conformance ./benchmarks
# All distributions take their version from the last file.
PROJECTS := pyproject.toml $(wildcard plugins/*/pyproject.toml) conformance/pyproject.toml benchmarks/pyproject.toml rmqstore/__init__.py

# Run a command and show what it printed only when it fails.
quietly = log=$$(mktemp); trap 'rm -f $$log' EXIT; $(1) >$$log 2>&1 || { cat $$log; exit 1; }

# Stamps of what .venv holds; a change of PROJECTS makes them stale.
BASE := $(VENV)/.installed-base
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev

.PHONY: help demo check changed test lint types memory-only wheels site conformance-small conformance bench bench-backlog bench-threads bench-peers grid grid-small load-test soak soak-streams crash clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(RUN)  ## see what it does, in a minute; leaves the store demo-store to look into
	@$(BIN)/rmqstore demo --store demo-store

check: $(DEV)  ## lint, types and the quick tests of what changed; under three minutes
	@$(MAKE) -j2 lint types changed

changed: $(DEV)
	@echo "== tests of what changed"
	@$(BIN)/pytest -q -n $(WORKERS) -m "not (long or slow or crash or spark)" $$($(BIN)/python tests/changed.py) || [ $$? = 5 ]  # 5: none is quick

test: $(DEV)  ## everything that CI checks; the tests come last
	@$(MAKE) -j2 wheels memory-only grid-small load-test types lint site
	@$(MAKE) conformance-small
	@echo "== tests"
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(DEV)  ## style, format, import layers
	@echo "== lint"
	@$(BIN)/ruff check --quiet --output-format concise
	@$(BIN)/ruff format --check --quiet
	@$(call quietly,$(BIN)/lint-imports --no-cache)

types: $(DEV)  ## static types
	@echo "== types"
	@$(BIN)/mypy

memory-only: $(DEV)  ## the tests with no engine but memory, and what they cover of the framework
	@echo "== memory engine alone"
	@$(BIN)/tox run -q -e memory-only -- -q

wheels: $(DEV)  ## build all wheels and use them from an empty directory
	@echo "== wheels"
	@$(BIN)/tox run -q -e wheels

site: $(DEV)  ## build the docs site, warnings are errors; it is in build/site
	@echo "== site"
	@$(call quietly,$(BIN)/mkdocs build --strict)

conformance-small: $(DEV)  ## the cases of the suite on every engine
	@echo "== conformance"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --pyargs rmqstore_conformance --rmq-engine all --rmq-level full \
		--rmq-effort 0.04 -k "not ($(CRASH_CASES))"
	@echo "== conformance: every call over a connection"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --pyargs rmqstore_conformance --rmq-engine wheel --rmq-level core --rmq-wired \
		--rmq-effort 0.02 -k "not every_pair"
	@echo "== conformance: kills, power losses and failing calls, at other places each time"
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --pyargs $(CRASH_MODULES) --rmq-engine all --rmq-level full \
		--rmq-effort 0.04 --rmq-seed fresh -k "not (rocksdb and ($(STATE_CASES)))"
	@$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --pyargs $(CRASH_MODULES) --rmq-engine all --rmq-level full \
		--rmq-effort 0.05 -k "rocksdb and ($(STATE_CASES))"
	@echo "== conformance: full disks under two engines"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --pyargs rmqstore_conformance.cases.test_full_disk --rmq-engine wheel --rmq-pop-engine lmdb \
		--rmq-level full

conformance: $(DEV)  ## the reports of docs/conformance, one for each engine and two mixed pairs; takes long
	@mkdir -p docs/conformance build/conformance
	@for name in memory wheel rocksdb lmdb; do $(BIN)/rmqstore conformance $$name --level full --workers $(WORKERS) \
		--report docs/conformance/$$name.md --report build/conformance/$$name.json; done
	@for pair in wheel+lmdb rocksdb+wheel; do $(BIN)/rmqstore conformance $${pair%+*} --pop-engine $${pair#*+} --level full \
		--workers $(WORKERS) --report docs/conformance/$$pair.md --report build/conformance/$$pair.json; done
	@$(BIN)/python docs/make_matrix.py

# Run a specification of the grid and make its report, in build/NAME.
grid = rm -rf build/$(1) && mkdir -p build && $(BIN)/rmqstore bench run benchmarks/specs/$(2).toml --out build/$(1) $(ARGS) && \
	$(BIN)/rmqstore bench report build/$(1)

bench: $(DEV)  ## speed of every engine beside its raw database, in some minutes; the report is in build/speed
	@$(call grid,speed,speed)

bench-threads: $(DEV)  ## 1 to 64 threads that send, and that consume over 1 and 8 queues; the report is in build/threads
	@$(call grid,threads,threads)

bench-backlog: $(DEV)  ## what a large backlog costs, which takes long; the report is in build/backlog
	@$(call grid,backlog,backlog)

bench-peers: $(DEV)  ## beside Redis, beanstalkd, PostgreSQL, SQLite, litequeue, RocketMQ, those that are there; options by ARGS="..."
	@$(PIP) install 'rmqstore-benchmarks[peers]'
	@$(BIN)/python -m rmqstore_benchmarks.peers $(ARGS)

load-test: $(DEV)  ## producers and consumers in failing Spark tasks, every message accounted for; options by ARGS="..."
	@echo "== load test"
	@$(BIN)/rmqstore load-test $(if $(ARGS),$(ARGS),--served --engine wheel --messages 4000 --shards 2)

soak: $(DEV)  ## kill a served store and its clients, account for every message; SECONDS_EACH=60 ENGINES="wheel lmdb" SEED=7
	@$(BIN)/python -m tests.soak.run --seconds-each $(SECONDS_EACH) --engines $(ENGINES) $(if $(SEED),--seed $(SEED))

soak-streams: $(DEV)  ## a million rows through streams of Spark while all that takes part is killed; ARGS="--rows 100000 --seed 7"
	@$(BIN)/python -m tests.soak.streams $(ARGS)

grid-small: $(DEV)  ## the grid of engines in small, with its report; under two minutes
	@echo "== grid"
	@$(call grid,grid-small,small)

crash: $(DEV)  ## the slow tier: kills, disk states, long runs
	@$(BIN)/pytest -n $(WORKERS) --dist load --pyargs rmqstore_conformance --rmq-engine all --rmq-level full \
		--rmq-effort 20 -k "$(CRASH_CASES)"
	@$(BIN)/pytest -n $(WORKERS) --pyargs rmqstore_conformance --rmq-engine wheel --rmq-engine rocksdb --rmq-engine lmdb \
		--rmq-level full --rmq-effort 84 -k test_f4_an_interrupted  # 20,000 interrupts on each
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "crash or slow"

clean:  ## remove environments, caches and builds
	rm -rf $(VENV) demo-store .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(if $(PYTHON),,$(error Python 3.11 or newer with venv is needed; name it: make PYTHON=/path/to/python3.11))
	@echo "== making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(BASE): | $(BIN)/python
	@$(PIP) install --upgrade 'pip>=25.1' 'hatchling>=1.26' 'editables>=0.5'
	@touch $@

$(RUN): $(PROJECTS) | $(BASE)
	@echo "== installing rmqstore and its engines"
	@$(PIP) install --no-build-isolation --editable . $(RUN_PARTS:%=--editable %)
	@touch $@

$(DEV): $(PROJECTS) | $(BASE)
	@echo "== installing rmqstore, its engines, Spark and the tools"
	@$(PIP) install --no-build-isolation --editable . $(DEV_PARTS:%=--editable %)
	@$(PIP) install --group dev 'rmqstore[spark]' 'rmqstore-benchmarks[report,spark]'
	@touch $@ $(RUN)
