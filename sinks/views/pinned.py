"""A run's Spark session → the one in which its views are evaluated, with one right answer."""

from functools import cached_property
from typing import TYPE_CHECKING, Final

from sinks.spark.session import SparkProvider, tune, untune

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION: Final = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.caseSensitive": "false",
}
"""What an answer depends on: pinned, whatever [spark] says."""
_LITTLE_BYTES: Final = 4 << 20
"""Of smaller tables, what Spark generates isn't worth to be compiled."""


def pinned(spark: "SparkSession") -> "SparkSession":
    """A session of its own in which a query has one answer."""
    own = spark.newSession()
    for name, value in SESSION.items():
        own.conf.set(name, value)
    return own


class PinnedSession:
    """The session of a run's views, made when it is first asked for: they run one by one."""

    def __init__(self, session: SparkProvider) -> None:
        self._session = session
        self._is_tuned = False

    @cached_property
    def spark(self) -> "SparkSession":
        """Itself."""
        return pinned(self._session())

    def fit(self, table_bytes: int) -> None:
        """Fit it to what there may be to read: compiling doesn't pay off for little."""
        is_little = table_bytes < _LITTLE_BYTES
        if is_little and not self._is_tuned:
            tune(self.spark, 0)
        elif self._is_tuned and not is_little:
            untune(self.spark, self._session())
        self._is_tuned = is_little
