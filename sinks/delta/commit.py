"""What a run writes to a Delta table → one commit that is the run's, once.

The commit carries the run's number (an application transaction), so a run that is repeated
changes nothing.

Delta's own MERGE reads what it merges into two or three times. Who knows which rows go, and which
come, needs one read of the keys, and none of what stays. Such a commit is put together here, by
the protocol's own interface (OptimisticTransaction), which Delta's commands use, too. It isn't
public, so it is used with the versions of Delta that are tested, and MERGE with any other.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from delta import exceptions
from delta.tables import DeltaMergeBuilder
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.changes.shape import TableShape
from sinks.delta.evolution import creation_properties, evolve, prepare_replacement, settle
from sinks.delta.table import DeltaTarget
from sinks.run.summary import Rows

_FILE: Final = "_millrace_file"
_INDEX: Final = "_millrace_index"
FILE_AND_INDEX: Final = {_FILE: "_metadata.file_path", _INDEX: "_metadata.row_index"}
"""Columns that tell where a row is, and what Spark calls them."""
_VERSIONS: Final = ("4.4.",)
_UNSUPPORTED: Final = ("delta.enableChangeDataFeed", "delta.enableRowTracking", "delta.appendOnly")
"""Properties of a table by which a commit has more to it."""
_PREFIX_LENGTH: Final = 32
"""Of the statistics of text."""


ATTEMPTS_MAX: Final = 5
"""How often a commit is tried that another writer (OPTIMIZE, a second run) gets in the way of."""
_CONFLICTS: Final = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""What Delta raises where another commit was faster; in Python they have no base in common."""


class DeltaTransaction:
    """A transaction on a table as it is now, for one commit of a run's."""

    def __init__(self, target: DeltaTarget, run: int) -> None:
        self._target = target
        self._run = run
        jvm: Any = target.spark._jvm  # noqa: SLF001 (PySpark has no other way)
        self._jvm = jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._none = jvm.scala.Option.empty()
        self._log = target.log()
        self._session = target.spark._jsparkSession  # noqa: SLF001
        self._started = time.monotonic()
        # If it isn't the newest, the commit meets a conflict.
        last = jvm.scala.Option.apply(target.last_snapshot())
        self._transaction = self._log.startTransaction(self._none, last)
        self._actions: list[Any] = []
        last_run = target.run_of(self._transaction.snapshot())
        if last_run >= run:
            raise SinkError(f"the Delta table has run {last_run}", where=target.path)
        self._transaction.readTxn().addOne(target.application)  # who else writes it is in the way

    @staticmethod
    def is_supported(target: DeltaTarget) -> bool:
        """Whether a commit to the table needs no more than this."""
        jvm: Any = target.spark._jvm  # noqa: SLF001
        version = str(jvm.io.delta.package.VERSION())
        properties = target.properties()
        strange = any(properties.get(name, "").lower() == "true" for name in _UNSUPPORTED)
        return not strange and version.startswith(_VERSIONS)

    def files(self, condition: SparkColumn | None = None) -> Any:
        """The files that may have rows for which the condition holds, by their statistics."""
        if condition is None:
            return self._all_files()
        filtered = self.rows(self._sequence([])).where(condition)
        resolved = filtered._jdf.queryExecution().optimizedPlan().condition()  # noqa: SLF001
        return self._transaction.filterFiles(self._sequence([resolved]), True)

    def _all_files(self) -> Any:
        """All of them; of a small table the version's checksum has them without any job.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        checksum = self._transaction.snapshot().checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            self._transaction.readWholeTable()
            return checksum.get().allFiles().get()
        return self._transaction.filterFiles()

    def rows(self, files: Any) -> DataFrame:
        """The rows of some of the table's files, as they are in the transaction's version."""
        snapshot = self._transaction.snapshot()
        rows = self._log.createDataFrame(snapshot, files, False, self._none)
        return DataFrame(rows, self._target.spark)

    def mark(self, indexes: DataFrame, files: Any) -> int:
        """Take out the rows at these indexes, by deletion vectors; returns how many there were.

        ``indexes`` are ``FILE_AND_INDEX`` of each row.
        """
        commands, option = self._delta.commands, self._jvm.scala.Option
        bitmaps = commands.DeletionVectorBitmapGenerator.buildRowIndexSetsForFilesMatchingCondition(
            self._session,
            self._transaction,
            True,
            indexes._jdf,  # noqa: SLF001
            files,
            self._jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral(),
            option.apply(F.col(_FILE)._jc),  # noqa: SLF001
            option.apply(F.col(_INDEX)._jc),  # noqa: SLF001
        )
        helper = commands.DMLWithDeletionVectorsHelper
        by_name = helper.generateCandidateFileMap(self._log.dataPath(), files)
        touched = helper.findFilesWithMatchingRows(self._transaction, by_name, bitmaps)
        snapshot = self._transaction.snapshot()
        done = helper.processUnmodifiedData(self._session, touched, snapshot, _PREFIX_LENGTH)
        actions, counts = (done.productElement(number) for number in range(2))
        self._actions.append(actions)
        return int(counts.apply("numModifiedRows"))

    def remove(self, files: Any) -> None:
        """Take out whole files."""
        now = self._now_ms()
        removed = [file.removeWithTimestamp(now, True) for file in self._each(files)]
        self._actions.append(self._sequence(removed))

    def write(self, rows: DataFrame) -> int:
        """Put rows in; returns how many there were."""
        added = self._transaction.writeFiles(rows._jdf)  # noqa: SLF001
        self._actions.append(added)
        return sum(int(file.numLogicalRecords().get()) for file in self._each(added))

    def commit(self, inserted: int, updated: int, deleted: int) -> Rows:
        """Make all of that, and the run's number, one version; raises if others were faster."""
        self._set_metrics({
            "operationNumSourceRows": inserted + updated + deleted,
            "numTargetRowsInserted": inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "executionTimeMs": int((time.monotonic() - self._started) * 1000),
        })  # fmt: skip
        since = self._jvm.scala.Option.apply(self._now_ms())
        run = self._delta.actions.SetTransaction(self._target.application, self._run, since)
        actions = self._sequence([run])
        for added in self._actions:
            actions = actions.appendedAll(added)
        empty = self._sequence([])
        merge = getattr(self._delta, "DeltaOperations$Merge")
        operation = merge(self._none, self._none, self._none, self._none, empty, empty, empty)
        self._transaction.commit(actions, operation)
        return Rows(inserted, updated, deleted)

    def _set_metrics(self, metrics: Mapping[str, int]) -> None:
        """Set the metrics that the table's history has of the commit."""
        context = self._target.spark.sparkContext._jsc.sc()  # noqa: SLF001
        made = self._jvm.java.util.HashMap()
        metric_of = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        for name, value in metrics.items():
            metric = metric_of(context, name)
            metric.set(value)
            made[name] = metric
        self._transaction.registerSQLMetrics(self._session, self._python().toScalaMap(made))

    def _sequence(self, of: list[Any]) -> Any:
        return self._python().toSeq(of)

    def _python(self) -> Any:
        """What Spark has for Python to make Scala's collections."""
        return self._jvm.org.apache.spark.api.python.PythonUtils

    @staticmethod
    def _each(sequence: Any) -> list[Any]:
        return [sequence.apply(number) for number in range(sequence.size())]

    @staticmethod
    def _now_ms() -> int:
        return int(time.time() * 1000)


def create(target: DeltaTarget, rows: DataFrame, shape: TableShape) -> Rows:
    """Write a Delta table that isn't there yet; inside of ``commit``."""
    options = target.derived.options
    writer = rows.write.format("delta").options(**creation_properties(target, shape))
    if options.partition:
        writer = writer.partitionBy(*options.partition)
    writer.mode("errorifexists").save(target.path)
    return Rows(inserted=target.added())


def replace_all(target: DeltaTarget, rows: DataFrame) -> Rows:
    """Write rows, and their columns, in place of all that the table has; inside of ``commit``."""
    before = target.spark.read.format("delta").load(target.path).count()
    writer = rows.write.format("delta").option("overwriteSchema", "true")
    if target.derived.options.partition:
        writer = writer.partitionBy(*target.derived.options.partition)
    writer.mode("overwrite").save(target.path)
    return Rows(inserted=target.added(), deleted=before)


def execute(builder: DeltaMergeBuilder) -> Rows:
    """Run a MERGE and count what it did."""
    done: Any = builder.execute()
    counts = done.first() if done is not None else None
    if counts is None:
        return Rows()
    return Rows(
        int(counts["num_inserted_rows"]),
        int(counts["num_updated_rows"]),
        int(counts["num_deleted_rows"]),
    )


def write_nothing(target: DeltaTarget) -> Rows:
    """Note the run at a table whose rows stay as they are; inside of ``commit``."""
    none = target.spark.read.format("delta").load(target.path).where(F.lit(False))
    none.write.format("delta").mode("append").save(target.path)
    return Rows()


def commit(
    target: DeltaTarget,
    run: int,
    base: int,
    shape: TableShape,
    write: Callable[[], Rows],
    *,
    replaces: bool = False,
) -> Rows:
    """Make ``write``'s commit the run's, once; raises SinkError if another run was there.

    ``base`` is the run that the table must have before. Where ``write`` ``replaces`` the columns as
    well, they aren't changed one by one. After the commit the table must have this
    one: Delta skips a lower number than it has without a word. The version that comes back
    has this run and no later one.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        applied = target.read_applied()
        if (applied.run if applied else 0) not in {base, run}:
            applied = target.read_applied(listed=True)
        if applied is not None and applied.run == run:
            return Rows(version=applied.at)
        if (applied.run if applied else 0) != base or (applied is None) != (base == 0):
            raise _foreign(target, applied.run if applied else None, base)
        if base:
            (prepare_replacement if replaces else evolve)(target, shape)
        try:
            with target.transaction(run):
                rows = write()
        except _CONFLICTS as error:
            if attempt == ATTEMPTS_MAX:
                raise SinkError(
                    f"another writer got in the way {ATTEMPTS_MAX} times: {error}",
                    where=target.name,
                    remedy="the next run tries again",
                ) from None
            continue
        after = target.applied()
        if after.run != run:
            raise _foreign(target, after.run, run)
        if replaces or not base:
            settle(target, shape)
        return rows._replace(version=after.at)
    raise AssertionError("the last attempt returns or raises")


def _foreign(target: DeltaTarget, run: int | None, expected: int) -> SinkError:
    state = "isn't there" if run is None else f"has run {run}" if run else "isn't ours"
    return SinkError(
        f"the Delta table {state}, but the plan goes on from run {expected}",
        where=target.path,
        remedy="if no other run is under way, remove the Delta table: the next run rebuilds it",
    )
