"""A topic that may have forgotten records → whether a table can go on with what it has.

Millrace doesn't decide how long such a topic keeps its records. The first offset of a topic that
isn't compacted shows exactly what it has lost. A compacted topic has to promise ``log.keep``, as
Millrace's own topics do: without that promise a table may miss changes until it is rebuilt.
"""

from dataclasses import dataclass
from datetime import timedelta

from cdc.errors import LogForgottenError, TopicMismatchError
from cdc.log.offsets import LogReader, Offsets
from sinks.debezium.log import BrokerTopic
from sinks.run.plan import TablePlan
from sinks.run.retention import require_retained


@dataclass(frozen=True, slots=True)
class Retention:
    """One topic's: the first offsets of all topics, and for how long all records are needed."""

    log: LogReader
    starts: Offsets
    keep: timedelta
    topic: BrokerTopic

    def require_whole(self, name: str, table: TablePlan, *, fresh: bool) -> None:
        """Raise where the topic may lack records that the table has to read.

        TopicMismatchError where compaction may take what a table hasn't applied yet, else
        LogForgottenError.
        """
        promised = self.topic.compacted_after
        if promised is not None and promised < self.keep:
            raise self._unpromised(table, promised)
        if not table.base:
            self._require_all(table, name)
            return
        start = {table.topic: table.start}
        try:
            require_retained(start, self.starts, name, self.keep)
            if promised is None:
                return
            if not table.fresh_ms:
                require_retained(start, {table.topic: table.end}, name, self.keep)
            if not fresh:
                require_retained(start, self.log.forgotten(start, self.keep), name, self.keep)
        except LogForgottenError as error:
            raise LogForgottenError(
                f"{name} comes too late: the topic has forgotten records that it hasn't applied",
                where=error.where,
                remedy="remove its Delta table, have Debezium take a snapshot of the table once "
                f"more (a signal), then `millrace merge lakehouse --accept-gap {name}`",
            ) from None

    def _unpromised(self, table: TablePlan, promised: timedelta) -> TopicMismatchError:
        return TopicMismatchError(
            f"the topic is compacted, and promises every record for {promised} only "
            f"(min.compaction.lag.ms), where log.keep is {self.keep}: changes could be missed",
            where=f"topic {table.topic}",
            remedy=f"set its min.compaction.lag.ms to {int(self.keep.total_seconds() * 1000)}, or "
            "cleanup.policy to delete; or lower log.keep, and merge as often. The next run then "
            "rebuilds the table, for what was compacted meanwhile",
        )

    def _require_all(self, table: TablePlan, name: str) -> None:
        """Raise LogForgottenError where a topic doesn't begin with its first record any more."""
        from_zero = {table.topic: dict.fromkeys(table.start, 0)}
        try:
            require_retained(from_zero, self.starts, name, self.keep)
        except LogForgottenError:
            raise LogForgottenError(
                "the topic's first records are gone, so that rows may be missing for ever",
                where=f"topic {table.topic}",
                remedy="have Debezium take a snapshot of the table once more (a signal), then "
                f"`millrace merge lakehouse --accept-gap {name}` begins with what the topic has",
            ) from None
