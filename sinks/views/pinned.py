"""A run's Spark session → the session that evaluates its views, with one correct result."""

import re
from functools import cached_property
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, Literal

from sinks.spark.session import SparkProvider, tune, untune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # Otherwise rows of missing files would be lost silently.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.variable.substitute": "false",
}
"""Settings that a result depends on: pinned, whatever [spark] says."""
_QUERIES: Final = "spark.sql."
"""Prefix of settings of queries."""
_TUNING: Final = re.compile(
    r"spark\.sql\.(adaptive|analyzer\.maxIterations|autoBroadcastJoinThreshold|broadcast\w*|cache"
    r"|catalog|cbo|codegen|cteRecursion\w+|execution|extensions|files|inMemoryColumnarStorage|join"
    r"|maven|objectHashAggregate|optimizer|parquet|redaction"
    r"|shuffle|sortMergeJoin\w*|sources|streaming|ui|variable|warehouse|window|windowExec"
    r"|constraintPropagation)\b.*"
)
"""Settings without an effect on results. In a view, any other one has Spark's default."""
_STARTING: Final = Lock()
"""The first user starts Spark, and only once."""
Tuning = Literal["little", "changes", "much"]
"""The work: to read small tables, to follow few changes of large ones, or more."""
_CHANGES: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""With few changes, a separate job for each step takes longer than the step."""


def changes_answers(setting: str) -> bool:
    """Whether a query may have another result with another value of a Spark setting."""
    return setting.startswith(_QUERIES) and not _TUNING.fullmatch(setting)


def pinned(spark: "SparkSession") -> "SparkSession":
    """Return a new session in which a query has one result."""
    own = spark.newSession()
    options: Any = spark.sparkContext._jsc.sc().getConf()  # noqa: SLF001 (getAll asks for each)
    for option in options.getAllWithPrefix(_QUERIES):
        name = f"{_QUERIES}{option.productElement(0)}"
        if changes_answers(name) and own.conf.isModifiable(name):
            own.conf.unset(name)
    for name, value in SESSION.items():
        own.conf.set(name, value)
    return own


class PinnedSession:
    """A session of a run's views, created at its first use. They run in it one by one."""

    def __init__(self, session: SparkProvider) -> None:
        self._session = session
        self._work: Tuning = "much"
        self._thread: int | None = None

    @property
    def spark(self) -> "SparkSession":
        """Return the session, and activate it in this thread for Spark's configuration."""
        if self._thread != get_ident():
            jvm: Any = self._made._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
            own = self._made._jsparkSession  # noqa: SLF001
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(own)
            self._thread = get_ident()
        return self._made

    @cached_property
    def _made(self) -> "SparkSession":
        with _STARTING:
            return pinned(self._session())

    def fit(self, work: Tuning) -> None:
        """Adapt it to the work that follows."""
        if work == self._work:
            return
        untune(self.spark, self._session())
        if work == "little":
            tune(self.spark, 0)
        elif work == "changes":
            for name, value in _CHANGES.items():
                self.spark.conf.set(name, value)
        self._work = work
