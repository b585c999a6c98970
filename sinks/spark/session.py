"""The [spark] section → a SparkSession with Delta and Kafka, or one clear reason why not.

Started from Python, the session takes its jars from ``make setup`` or ``millrace jars``
(``sinks.spark.jars``). Under spark-submit, or if [spark] itself names jars, it uses those. The
JVM's own output goes to a file without a name, whose end is shown if the JVM doesn't start. So a
user reads one message, not log4j's.
"""

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from cdc.errors import ConfigError, SparkMissingError
from sinks.spark import driver, jars
from sinks.spark.private_files import own_folder, scratch_folder, submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


REQUIRED: Final = {
    "Delta Lake": "org.apache.spark.sql.delta.DeltaLog",
    "Spark's Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Millrace's own jar": "millrace.sinks.HeapWatch",
}
SESSION: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Other readers misread Spark's default, INT96, outside the years 1677 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A name may be ${env:…}. Its value must not get into SQL or a table.
    "spark.sql.variable.substitute": "false",
    # A cut may use an old version of an idle table, whose files all still exist.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Kafka's secrets are options of the reader, so keep them out of plans, logs and event files.
    # The same applies to a file system's, which may be Azure's.
    "spark.redaction.regex": "(?i)secret|password|token|(access|account)[.]?key|[.]sas[.]|jaas"
    "|keystore|ssl[.]key|(private|encryption)[.]key",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|jaas|keystore|ssl[.]key",
    "spark.sql.shuffle.partitions": "8",
    # Spark infers from each value's own conditions: with 30 columns this never ended.
    "spark.sql.constraintPropagation.enabled": "false",
    # PySpark would ask the JVM twice for each function call, to show its line in errors.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists files with this parallelism: 27 s with the default of 32, 3 s with this (docs:
    # FACTS).
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
ZONE: Final = "spark.sql.session.timeZone"
PINNED: Final = {ZONE: "UTC"}
"""Settings that rows depend on, whatever [spark] says: times without a zone, and their texts."""
OWN_DRIVER: Final = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # For pages of the UI only: plans as text, for each of a thousand queries.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    # A later run finds all generated code: 100 entries are those of one table.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
_LOCAL_FILES: Final = {
    "spark.hadoop.fs.file.impl": "millrace.sinks.LocalFiles$FileSystemWithChecksums",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "millrace.sinks.LocalFiles$FsWithChecksums",
}
"""Avoids a child process for each file. Executors of a cluster get our jar too late for that."""
_IN_DRIVER: Final = re.compile(r"local(\[|$)")
"""Masters whose tasks run in the driver."""
_FEW: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
_BYTES_FEW: Final = 1 << 20
"""Bytes to rewrite: some 30,000 rows."""
RECORDS_FEW: Final = 100_000
"""A run with fewer records ends before the JVM's best compiler pays off."""
# Its space for code is a fifth without the best compiler, so it would recompile repeatedly. Earlier
# compilation costs less than uncompiled execution.
QUICK: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    " -XX:Tier3InvocationThreshold=50 -XX:Tier3MinInvocationThreshold=25"
    " -XX:Tier3CompileThreshold=500 -XX:Tier3BackEdgeThreshold=15000"
)
"""For a JVM that ends soon."""
# Only the hottest code is worth its best compilation, which shares the cores with the run.
_STEADY: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=30000"
    " -XX:Tier4MinInvocationThreshold=5000 -XX:Tier4CompileThreshold=80000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
_JAVA_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
JAR_SETTINGS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_QUERY_ERRORS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's loggers of every failed query, with a page of JSON on stderr."""
_SHOWN: Final = 500
"""How many characters of a Java error's message are shown."""
_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)


@cache  # once per process
def ask_names_once() -> None:
    """Cache classes, their methods and packages, for the life of their gateway."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def remembering(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def member(self: Any, name: str) -> Any:
            value = ask(self, name)
            if isinstance(value, (JavaClass, JavaMember, JavaPackage)):
                self.__dict__[name] = value
            return value

        return member

    for kind in (JVMView, JavaPackage, JavaClass):
        kind.__getattr__ = remembering(kind.__getattr__)


def tune(session: "SparkSession", records: int, table_bytes: int = 0) -> None:
    """Adapt a session's configuration to the number of records, and the table that they go to.

    With few records, planning is most of the work: compilation of generated code, a job for each
    step, and deletion vectors cost more than they save.
    """
    if records < RECORDS_FEW and table_bytes < _BYTES_FEW:
        for name, value in _FEW.items():
            session.conf.set(name, value)


def untune(session: "SparkSession", base: "SparkSession") -> None:
    """Revert ``tune``, to the values of the session's base."""
    for name in _FEW:
        if (value := base.conf.get(name, None)) is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)


class SparkProvider(Protocol):
    """Starts a run's Spark session at the first call, and returns it at each later call.

    ``records`` is about how many records to read, if known.
    """

    def __call__(self, records: int = RECORDS_FEW, /) -> "SparkSession":
        """Return the session."""


def open_session(
    options: Mapping[str, str], name: str = "millrace", records: int = RECORDS_FEW
) -> "SparkSession":
    """Start Spark, or join this process's session. Raise SparkMissingError.

    Our own driver is tuned for about this many ``records``. [spark] overrides that, except for
    ``PINNED``.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissingError(
            "PySpark isn't installed", remedy="run make setup, or: pip install 'millrace[spark]'"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    interrupted = signal.getsignal(signal.SIGINT)
    joined = SparkSession.getActiveSession() is not None
    if not joined and not submitted:
        own = {
            "spark.app.name": name,
            "spark.driver.extraJavaOptions": java_options(options, records),
        }
        # Never used, since tables have paths, but it would appear in the working directory.
        own["spark.sql.warehouse.dir"] = str(own_folder() / "warehouse")
        session = _start(own | SESSION | OWN_DRIVER | dict(options) | PINNED)
    else:
        builder = SparkSession.builder.appName(name)
        session = builder.config(map={**SESSION, **options, **PINNED}).getOrCreate()
    if threading.current_thread() is threading.main_thread():  # PySpark handles Ctrl-C there
        signal.signal(signal.SIGINT, interrupted)
    ask_names_once()
    session.sparkContext.setLogLevel("OFF")
    for name_of_logger in _QUERY_ERRORS:
        logging.getLogger(name_of_logger).disabled = True
    # Py4J logs its exceptions with the root logger.
    logging.getLogger().addFilter(_not_of_py4j)
    _require_classes(session)
    if not joined:  # a notebook's JVM isn't ours to end
        _watch_heap(session)
    return session


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def java_options(options: Mapping[str, str], records: int) -> str:
    """Return the JVM's options. With two collectors it wouldn't start, so the user's wins."""
    words = [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    words.append(options.get("spark.driver.defaultJavaOptions", ""))
    collector = "" if _COLLECTOR.search(" ".join(words)) else "-XX:+UseParallelGC "
    return collector + (QUICK if records < RECORDS_FEW else _STEADY)


def _start(options: dict[str, str]) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    require_java()
    if not any(setting in options for setting in JAR_SETTINGS):
        options |= _jars(local=options["spark.master"].startswith("local"))
        if _IN_DRIVER.match(options["spark.master"]):
            options |= _LOCAL_FILES | options
        classes = jars.class_archive()
        if classes.exists() and classes.stat().st_size:
            archive = f'"-XX:SharedArchiveFile={classes}"'
            options.setdefault("spark.driver.defaultJavaOptions", archive)
    if options["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", options["spark.driver.host"])
        if "spark.local.dir" not in options:
            options["spark.local.dir"] = str(scratch_folder())
    # Spark handles executors: it spills what doesn't fit, and ends them itself (52) otherwise.
    java = "spark.driver.defaultJavaOptions"
    options[java] = f"{driver.ON_OUT_OF_MEMORY} {options.get(java, '')}".strip()
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    output = tempfile.TemporaryFile()  # noqa: SIM115 (the JVM writes to it until it ends)
    try:
        quiet = {"stdout": output, "stderr": output}
        with submitted(options):
            gateway: Any = launch_gateway(None, quiet)  # type: ignore[no-untyped-call]
        driver.started(driver.Driver(gateway.proc, output, options["spark.driver.memory"]))
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        reason = reason_in(output) or first_line(error)
        if "INVALID_DRIVER_MEMORY" in full_text(error):
            raise too_little(options["spark.driver.memory"]) from None
        if "OutOfMemoryError" in reason:
            raise driver.out_of_memory(options["spark.driver.memory"], reason) from None
        raise SparkMissingError(
            f"Spark can't start: {reason}",
            remedy="check Java (17 or newer) and the [spark] section",
        ) from None


def too_little(memory: str) -> ConfigError:
    """Return the error for a spark.driver.memory below Spark's own minimum."""
    return ConfigError(
        f"spark.driver.memory = {memory} is less than Spark needs: 450 MiB",
        where="[spark]",
        remedy="raise spark.driver.memory",
    )


def _watch_heap(session: "SparkSession") -> None:
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    jvm.millrace.sinks.HeapWatch.begin(driver.PAUSES_S, driver.PAUSES_PERCENT)


def jvm_ended(error: Exception) -> bool:
    """Whether a call of Spark failed because its JVM has ended.

    It decides by names, since a run that needs no Spark doesn't import Py4J. Py4J raises one of
    several errors, depending on the call's progress. If the call had an answer, its error also has
    the Java error.
    """
    name = type(error).__name__
    unanswered = name == "Py4JError" and "\n" not in str(error).strip()
    return unanswered or name == "Py4JNetworkError" or isinstance(error, ConnectionError)


def full_text(error: Exception) -> str:
    """Return all of an error's text, with its Java errors and their places.

    PySpark shows a caught error's trace or not, depending on the session's configuration.
    """
    trace = getattr(error, "_stackTrace", None)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (Py4J asks a JVM for it, which may have ended)
        text = type(error).__name__
    return text if trace is None else f"{text}\n{trace}"


def first_line(error: Exception) -> str:
    """Return the first line of Spark's error, and its root cause.

    In Py4J's error, the line before only names a call.
    """
    text = full_text(error)
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        lines = lines[1:]
    first = lines[0][:_SHOWN] if lines else type(error).__name__
    causes = _CAUSE.findall(text)
    if not causes:
        return first
    kind, reason = causes[-1]
    short = kind.rpartition(".")[2]
    root = f"{short}: {reason.strip()[:_SHOWN]}" if reason.strip() else short
    return first if (reason.strip() or short) in first else f"{first}: {root}"


def require_java() -> str:
    """Return the Java that Spark starts. Raise SparkMissingError if it is missing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise SparkMissingError(
            "JAVA_HOME and PATH have no java" if home else "PATH has no java",
            remedy="install Java 17 or newer (Debian: openjdk-17-jre-headless)",
        )
    return java


def _jars(*, local: bool) -> dict[str, str]:
    """Return a class path for a local driver, which starts faster, or files for a cluster."""
    if local:
        return {"spark.driver.extraClassPath": jars.class_path()}
    return {"spark.jars": ",".join(map(str, jars.driver_jars()))}


def _require_classes(session: "SparkSession") -> None:
    from py4j.protocol import Py4JJavaError

    jvm = session.sparkContext._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
    assert jvm is not None  # noqa: S101 (of a running session)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for library, name in REQUIRED.items():
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            raise SparkMissingError(
                f"Spark's class path lacks {library} ({name} not found)",
                remedy="set --jars of spark-submit, or spark.jars in [spark], to the output of:"
                f" {sys.executable} -m sinks.spark.jars",
            ) from None


def reason_in(output: IO[bytes]) -> str:
    """Return the most useful output of the JVM: from the first error on, or the last line."""
    output.seek(0)
    text = output.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (number for number, line in enumerate(lines) if "rror" in line or "xception" in line)
    first = next(telling, len(lines) - 1)
    return " ".join(lines[first : first + 2])[:400]
