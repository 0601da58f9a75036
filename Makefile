# `make crawl` needs nothing but Python 3.11–3.13 and a network: it makes .venv from the locks, then crawls.
#
#   make crawl                                  the demo site in examples/
#   make crawl URLS="https://example.com/"      your own; ARGS="--depth 2 -s politeness.delay_s=2 -o pages.csv" goes to `crawlog run`
#   make setup EXTRAS="postgres xlsx"           installs, with extras of pyproject.toml
#   make test | check | bench                   the suite | what CI checks | the measurements of bench/
#   make test-long                              what the suite leaves out: deaths, damages and loads, and many examples of what is drawn
#   make faults                                 every fault that we can cause, judged by the site's access log: hours
#   make lock | kafka-lock                      new versions of the Python packages | of the engine's jars

VENV   ?= .venv
BIN     = $(VENV)/bin
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
URLS   ?=
EXTRAS ?=
ARGS   ?=
OUT    ?= pages.jsonl

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help crawl test test-long check format bench faults lock kafka-lock setup setup-dev clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

crawl: setup
ifeq ($(strip $(URLS)),)
	@$(BIN)/python examples/demo.py -o $(OUT) $(ARGS)
else
	@$(BIN)/crawlog run $(patsubst %,'%',$(subst ','\'',$(URLS))) -o $(OUT) $(ARGS)
endif

# Three workers for two cores: a test that starts a crawl spends a third of its time waiting. A suite whose workers die
# again and again ends soon.
PYTEST = $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 3

test: setup-dev
	$(PYTEST) -m 'not long' $(ARGS)

test-long: setup-dev
	$(PYTEST) -m 'long or hypothesis' --hypothesis-profile many $(ARGS)

check: setup-dev build/typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@cd build/typing && $(abspath $(BIN))/lint-imports --config ../../pyproject.toml --no-cache --no-logo
	$(BIN)/mypy -p crawlog
	$(BIN)/mypy tests bench examples

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

faults: setup-dev
	$(BIN)/python -m bench.faults $(ARGS)

bench: setup-dev
	$(BIN)/python -m bench $(ARGS)

# The installed layout for type checkers, which follow no import hooks: the files of crawlog/, and the three folders.
FRONT = $(filter-out %/__pycache__,$(wildcard crawlog/*))
build/typing: $(FRONT)
	@rm -rf $@ && mkdir -p $@/crawlog
	@ln -s $(addprefix ../../../,$(FRONT) schemas streams agents) $@/crawlog/

# Installed exactly as locked: every file by its hash; then crawlog itself, built with the locked setuptools.
setup: $(VENV)/.locked
ifneq ($(strip $(EXTRAS)),)
	@mkdir -p build && sed -n 's/^\([a-z0-9._-]*==[^ ]*\).*/\1/p' requirements-dev.lock >build/constraints.txt
	@$(BIN)/python -m pip install --quiet --no-build-isolation --constraint build/constraints.txt \
		--editable ".[$(shell echo $(EXTRAS) | tr ' ' ,)]"
endif
setup-dev: $(VENV)/.locked-dev

$(VENV)/.locked: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) (the first time takes a minute)"
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.locked-dev: requirements-dev.lock $(VENV)/.locked
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "crawlog needs Python 3.11, 3.12 or 3.13 with venv (Debian: apt install python3-venv);" \
		"name yours with make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

# No index address is written: an installation uses the index of its machine.
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --extra local --upgrade \
	--generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: setup-dev
	$(COMPILE) -o requirements.lock
	$(COMPILE) --group dev --constraint requirements.lock -o requirements-dev.lock
	@! grep -n '://' requirements.lock requirements-dev.lock

kafka-lock: setup-dev
	$(BIN)/python bench/kafka_lock.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
