"""A Delta table in its current state → one commit of our own to it.

Delta's own MERGE reads its source two or three times. If the removed and the new rows are known,
one read of the keys is enough. Also, each of Delta's statements changes columns in a separate
commit. So this module builds such commits with the protocol's own interface
(OptimisticTransaction), which Delta's commands also use. It isn't public, so it writes rows only
with tested versions of Delta; with others, MERGE does.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from delta import exceptions
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import SinkError
from sinks.delta.columns import TableColumns
from sinks.delta.table import DerivedDeltaTable
from sinks.run.summary import Rows

_FILE: Final = "_millrace_file"
_INDEX: Final = "_millrace_index"
FILE_AND_INDEX: Final = {_FILE: "_metadata.file_path", _INDEX: "_metadata.row_index"}
"""Columns with a row's place, and their names in Spark."""
_VERSIONS: Final = ("4.4.",)
_UNSUPPORTED: Final = ("delta.enableChangeDataFeed", "delta.enableRowTracking", "delta.appendOnly")
"""Table properties that require more from a commit."""
_DOMAINS: Final = "domainMetadata"
"""Information that a writer of a clustered table needs, for example."""
_PREFIX_LENGTH: Final = 32
"""Of text in statistics."""
CONFLICTS: Final = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Delta's errors when another commit was faster. In Python they share no base."""


class DeltaTransaction:
    """A transaction on the table's current state, for one commit of a run."""

    def __init__(self, target: DerivedDeltaTable, run: int) -> None:
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
        self._update: Any = None
        last_run = target.run_of(self._transaction.snapshot())
        if last_run >= run:
            raise SinkError(f"the Delta table has run {last_run}", where=target.path)
        self._transaction.readTxn().addOne(target.application)  # other writers of it are conflicts

    @staticmethod
    def is_supported(target: DerivedDeltaTable) -> bool:
        """Whether a commit to the table needs nothing more."""
        jvm: Any = target.spark._jvm  # noqa: SLF001
        version = str(jvm.io.delta.package.VERSION())
        properties = target.properties()
        strange = any(properties.get(name, "").lower() == "true" for name in _UNSUPPORTED)
        return not strange and version.startswith(_VERSIONS)

    @staticmethod
    def clone(source: DerivedDeltaTable, version: int, target: DerivedDeltaTable, run: int) -> None:
        """Create a table from the files of another table's version, as a run's commit.

        It copies protocol, properties and columns, and uses absolute paths of files. Delta's
        SHALLOW CLONE takes several jobs, and leaves out the run.
        """
        jvm: Any = target.spark._jvm  # noqa: SLF001 (PySpark has no other way)
        snapshot, delta = source.snapshot_at(version), jvm.org.apache.spark.sql.delta
        log, new = target.log(), target.last_snapshot()
        action = json.loads(snapshot.metadata().json())
        action["metaData"]["id"] = str(uuid4())
        transaction = log.startTransaction(jvm.scala.Option.empty(), jvm.scala.Option.apply(new))
        transaction.updateMetadata(delta.actions.Action.fromJson(json.dumps(action)), True)
        transaction.updateProtocol(snapshot.protocol())
        now = jvm.scala.Option.apply(DeltaTransaction._now_ms())
        has_run = delta.actions.SetTransaction(target.application, run, now)
        actions = jvm.millrace.sinks.ListedFiles.absolute(source.log(), snapshot).appended(has_run)
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        if _DOMAINS in protocol.get("writerFeatures", ()):  # a query for any takes a job
            copied = delta.DomainMetadataUtils.handleDomainMetadataForCloneTable(snapshot, new)
            actions = actions.appendedAll(copied)
        operation = getattr(delta, "DeltaOperations$Clone")(source.path, version)
        transaction.commit(actions, operation)

    def files(self, condition: SparkColumn | None = None) -> Any:
        """Return the files that may have rows that meet the condition, by their statistics."""
        if condition is None:
            return self._all_files()
        filtered = self.rows(self._sequence([])).where(condition)
        plan = filtered._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
        while plan.nodeName() != "Filter" and not plan.children().isEmpty():
            plan = plan.children().head()  # Spark reads a part of a VARIANT
        if plan.nodeName() != "Filter":
            return self._all_files()
        return self._transaction.filterFiles(self._sequence([plan.condition()]), True)

    def _all_files(self) -> Any:
        """Return all files. The checksum of a small table has them without a job.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        checksum = self._transaction.snapshot().checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            self._transaction.readWholeTable()
            return checksum.get().allFiles().get()
        return self._transaction.filterFiles()

    def rows(self, files: Any) -> DataFrame:
        """Return the rows of some of the table's files, in the transaction's version."""
        return self._target.rows_in(self._transaction.snapshot(), files)

    def mark(self, indexes: DataFrame, files: Any) -> int:
        """Remove the rows at these indexes, by deletion vectors. Return their number.

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
        """Remove whole files."""
        now = self._now_ms()
        removed = [file.removeWithTimestamp(now, True) for file in self._each(files)]
        self._actions.append(self._sequence(removed))

    def write(self, rows: DataFrame) -> int:
        """Add rows, and return their number."""
        added = self._transaction.writeFiles(rows._jdf)  # noqa: SLF001
        self._actions.append(added)
        return sum(int(file.numLogicalRecords().get()) for file in self._each(added))

    def change_columns(self, columns: TableColumns) -> None:
        """Set the table's columns and properties."""
        old = self._transaction.metadata()
        action = json.loads(old.json())
        action["metaData"] = columns.into(action["metaData"])
        new = self._delta.actions.Action.fromJson(json.dumps(action))
        self._transaction.updateMetadata(new, False)
        update = getattr(self._delta, "DeltaOperations$UpdateSchema")
        self._update = update(old.schema(), new.schema())

    def commit_columns(self) -> None:
        """Commit that as one version, which isn't the run's yet.

        Raise if other writers were faster.
        """
        run = self._set_transaction(self._target.columns_application)
        self._transaction.commit(self._all_actions([run]), self._update)

    def commit(self, inserted: int, updated: int, deleted: int) -> Rows:
        """Commit everything with the run's number. Raise if other writers were faster."""
        self._set_metrics({
            "operationNumSourceRows": inserted + updated + deleted,
            "numTargetRowsInserted": inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "executionTimeMs": int((time.monotonic() - self._started) * 1000),
        })  # fmt: skip
        run = self._set_transaction(self._target.application)
        empty = self._sequence([])
        merge = getattr(self._delta, "DeltaOperations$Merge")
        operation = merge(self._none, self._none, self._none, self._none, empty, empty, empty)
        self._transaction.commit(self._all_actions([run]), operation)
        return Rows(inserted, updated, deleted)

    def _set_transaction(self, application: str) -> Any:
        since = self._jvm.scala.Option.apply(self._now_ms())
        return self._delta.actions.SetTransaction(application, self._run, since)

    def _all_actions(self, more: list[Any]) -> Any:
        actions = self._sequence(more)
        for added in self._actions:
            actions = actions.appendedAll(added)
        return actions

    def _set_metrics(self, metrics: Mapping[str, int]) -> None:
        """Set the metrics of the commit in the table's history."""
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
        """Return Spark's helper for Python to make Scala's collections."""
        return self._jvm.org.apache.spark.api.python.PythonUtils

    @staticmethod
    def _each(sequence: Any) -> list[Any]:
        return [sequence.apply(number) for number in range(sequence.size())]

    @staticmethod
    def _now_ms() -> int:
        return int(time.time() * 1000)
