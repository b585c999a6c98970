#!/usr/bin/env bash
# The Java sources here -> a jar, compiled against a Python's PySpark and Delta Lake's jars in a
# folder: build.sh PYTHON JAR FOLDER
set -euo pipefail

python=$1 jar=$2 jars=$3
sources=$(dirname "${BASH_SOURCE[0]}")/millrace/sinks
bin=${JAVA_HOME:+$JAVA_HOME/bin/}
spark=$("$python" -c 'import pyspark, os; print(os.path.dirname(pyspark.__file__))')

classes=$(mktemp -d)
trap 'rm -rf "$classes" "$jar.new"' EXIT
"${bin}javac" -Xlint:all,-path -Werror -proc:none -encoding UTF-8 --release 17 \
    -cp "$spark/jars/*:$jars/*" -d "$classes" "$sources"/*.java
# With a fixed date, the same classes make the same jar.
"${bin}jar" --create --date 2020-01-01T00:00:00Z --file "$jar.new" -C "$classes" .
mv "$jar.new" "$jar"
