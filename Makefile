# A clean clone -> an environment and the commands that people need. `make` alone lists them.
#
# Everything lands inside the clone, in .venv and .cache (jars: or in MILLRACE_JARS). Each step of
# the setup leaves a stamp, so that the second one takes a moment.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
JARS := $(or $(MILLRACE_JARS),$(CURDIR)/.cache/jars)
RUN := .venv/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input
SETS := kafka spark opensearch

.PHONY: help setup prerequisites environment jars demo stop test lint bench lock clean

## help                 list these commands
help:
	@sed -n 's/^## /make /p' Makefile

## setup                check what has to be installed, make .venv, fetch the jars of the servers
setup: prerequisites
	@$(MAKE) -s -j2 environment jars

prerequisites:
	@PYTHON="$(PYTHON)" deploy/local/prerequisites.sh

environment: .venv/.project

jars: $(SETS:%=$(JARS)/%/.complete)

.venv/.requirements: requirements.txt
	@echo "setup: Python packages into .venv (a minute or two, the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes -r requirements.txt
	@touch $@

.venv/.project: .venv/.requirements pyproject.toml $(wildcard setup.py cdc/wal/*.pyx)
	@echo "setup: Millrace itself into .venv"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(JARS)/%/.complete: deploy/local/jars/%/pom.xml
	@echo "setup: jars of $*"
	@mkdir -p $(@D) && rm -f $(@D)/*.jar
	@mvn -q -B -ntp -Dstyle.color=never -f $< dependency:copy-dependencies -DoutputDirectory=$(@D) </dev/null
	@touch $@

# One after the other: Maven's local repository isn't made for two writers.
$(JARS)/spark/.complete: | $(JARS)/kafka/.complete
$(JARS)/opensearch/.complete: | $(JARS)/spark/.complete

## demo [KEEP=1]        the whole way, from PostgreSQL to derived tables; KEEP=1 leaves it running
demo: setup
	@KEEP="$(KEEP)" $(RUN) -m deploy.demo

## stop                 end what KEEP=1 left running
stop:
	@$(RUN) -m deploy.local.stack stop

## test [TESTS=path]    lint, then the tests
test: setup lint
	$(RUN) -m pytest $(TESTS)

## lint                 ruff, mypy and the import rules
lint:
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

## bench NAME=name      one of the benchmarks
bench: setup
	@$(if $(NAME),,$(error say which one: make bench NAME=name, see benchmarks/))
	$(RUN) -m benchmarks.$(subst -,_,$(NAME))

## lock                 write requirements.txt anew from pyproject.toml (needs uv)
lock:
	uv pip compile -q --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header pyproject.toml -o requirements.txt

## clean                remove all that setup, tests and runs have made
clean:
	@if [ -x $(RUN) ]; then $(MAKE) stop; fi
	rm -rf .venv .cache .run build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
