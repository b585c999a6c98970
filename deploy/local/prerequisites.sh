#!/usr/bin/env bash
# The machine -> nothing, or each program that is missing and the line that installs it.
set -euo pipefail

readonly python=${PYTHON:-python3}
missing=0

lacks() { # what, Debian package, Homebrew formula
  missing=1
  printf 'missing: %s\n  Debian, Ubuntu:  apt-get install %s\n  macOS:           brew install %s\n' \
    "$1" "$2" "$3" >&2
}

# Sources of ours are compiled: `java` alone isn't enough.
java_version() {
  local javac=javac answer
  if [[ -n ${JAVA_HOME:-} ]]; then javac=$JAVA_HOME/bin/javac; fi
  answer=$("$javac" -version 2>&1)
  if [[ $answer =~ ^javac\ ([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; fi
}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  lacks "Python 3.11 or later (\"$python\" isn't; another: make setup PYTHON=python3.13)" \
    python3 python@3.13
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  lacks "Python's venv" python3-venv python@3.13
elif ! "$python" -c 'import pathlib, sysconfig, sys
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
  lacks "Python's C headers" python3-dev python@3.13
fi
java=$(java_version || true)
if ((${java:-0} < 17)); then
  lacks "a Java development kit, 17 or later (found: ${java:-none})" \
    openjdk-17-jdk-headless openjdk@17
fi
if ! command -v mvn >/dev/null; then lacks "Maven" maven maven; fi
if ! command -v cc >/dev/null && ! command -v gcc >/dev/null; then
  lacks "a C compiler" build-essential gcc
fi
exit "$missing"
