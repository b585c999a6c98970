"""A derived table → its Delta table: its location, and the run that it has.

The number of the last applied run is Delta's application transaction (the ``txn`` action of its
log), which survives checkpoints and clean-up and is committed with the data.
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.errors import SinkError
from sinks.changes.derived import Derived
from sinks.changes.names import quoted, quoted_path
from sinks.delta.columns import TableColumns
from sinks.delta.readers import MAPPING
from sinks.run.owner import application
from sinks.run.summary import TableVersion
from sinks.spark.errors import spark_ended, spark_error

CHECKPOINT_EVERY: Final = 100
"""In versions. A checkpoint takes as long as two small commits; Delta's default is ten."""
_COORDINATED: Final = re.compile("coordinatedCommits|catalogManaged|catalogOwned")
_MAPPING_VERSION: Final = 2
"""The reader version from before features were listed."""
_TXN_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"


class Applied(NamedTuple):
    """A Delta table's last run (0: none of ours has written to it), and its version.

    ``altered``: the run that changed columns last, in a commit before its own.
    """

    run: int
    at: TableVersion
    altered: int

    @property
    def is_between(self) -> bool:
        """Whether it has the columns of a run without its rows. No cut has this state."""
        return self.altered > self.run


class DerivedDeltaTable:
    """The Delta table of a derived table, existing or not."""

    def __init__(self, spark: SparkSession, prefix: str, derived: Derived) -> None:
        self.spark = spark
        self.derived = derived
        self.name = derived.name
        self.path = derived.path
        self.application = application(prefix, derived.name)
        self.columns_application = f"{self.application}/columns"

    @property
    def sql_name(self) -> str:
        """Return the table's name in SQL."""
        return f"delta.{quoted(self.path)}"

    def exists(self) -> bool:
        """Whether a Delta table exists at the path."""
        return int(self._newest().version()) >= 0

    def read_applied(self, *, listed: bool = False) -> Applied | None:
        """Return the Delta table's last run. None: no table exists.

        Lists Delta's log, or uses the version that this process knows.
        """
        snapshot = self._listed() if listed else self._newest()
        return self._applied(snapshot) if snapshot.version() >= 0 else None

    def applied(self) -> Applied:
        """Return the table's run and version, as far as this process knows."""
        return self._applied(self.last_snapshot())

    def _applied(self, snapshot: Any) -> Applied:
        version = TableVersion(id=snapshot.metadata().id(), version=int(snapshot.version()))
        altered = self._last_of(self.columns_application, snapshot)
        return Applied(self.run_of(snapshot), version, altered)

    def version_of_run(self, run: int, since: int) -> int:
        """Return the newest version, from ``since`` on, that no later run has written to."""
        snapshot = self._listed()
        while (version := int(snapshot.version())) > since:
            applied = self._applied(snapshot)
            if max(applied.run, applied.altered) <= run:
                return version
            snapshot = self.snapshot_at(version - 1)
        return since

    def run_at(self, version: int) -> int:
        """Return the run of a version."""
        return self.run_of(self.snapshot_at(version))

    def snapshot_at(self, version: int) -> Any:
        """Return Delta's own object of a version."""
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        none = jvm.scala.Option.empty()
        return self.log().getSnapshotAt(version, none, none, False)

    def run_of(self, snapshot: Any) -> int:
        """Return the run of a version of the table."""
        return self._last_of(self.application, snapshot)

    @staticmethod
    def _last_of(application: str, snapshot: Any) -> int:
        """Return the number of an application's last transaction. 0: there is none.

        A version's checksum file lists its application transactions. Without it, Delta has to
        reconstruct the version's state, which takes three jobs.
        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        checksum = snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().setTransactions().isDefined():
            listed = checksum.get().setTransactions().get()
            runs = (listed.apply(number) for number in range(listed.size()))
            return next((int(r.version()) for r in runs if r.appId() == application), 0)
        last = snapshot.transactions().get(application)
        return int(last.get()) if last.isDefined() else 0

    def columns(self) -> StructType:
        """Return the table's columns."""
        return StructType.fromJson(json.loads(self._metadata()["schemaString"]))

    def columns_in_log(self) -> TableColumns:
        """Return the table's columns, as Delta's log has them."""
        return TableColumns.of(self._metadata())

    def files(self) -> DataFrame:
        """Return the table's current files, as Delta's log describes them (path, size, stats …).

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#add-file-and-remove-file
        """
        return DataFrame(self._newest().allFiles().toDF(), self.spark)

    def size_bytes(self) -> int:
        """Return the size of its files."""
        snapshot = self.last_snapshot()
        if snapshot.version() < 0:
            return 0
        checksum = snapshot.checksumOpt()  # without it, Delta reconstructs the state
        return int(
            checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes()
        )

    def checksum(self) -> dict[str, Any]:
        """Return the checksum of the version read last, which counts its files. {}: it has none.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file
        """
        checksum = self.last_snapshot().checksumOpt()
        if not checksum.isDefined():
            return {}
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        mapper = jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()
        listed: dict[str, Any] = json.loads(mapper.writeValueAsString(checksum.get()))
        return listed

    def rows(self) -> int:
        """Return the number of rows by Delta's log, even if files are missing."""
        files = self.files()
        count = F.get_json_object("stats", "$.numRecords").try_cast("bigint")
        marked = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        counted = files.agg(F.sum(count - marked).alias("rows")).first()
        return int(counted["rows"] or 0) if counted is not None else 0

    def added(self) -> int:
        """Return how many rows the last commit added."""
        return self.last_metric("numOutputRows")

    def last_metric(self, name: str) -> int:
        """Return a count of the last commit, from its own record. 0: it has none.

        DeltaTable.history would start a job.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#commit-provenance-information
        """
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        log, segment = self.log(), self.last_snapshot().logSegment()
        commits = segment.deltas()
        if commits.isEmpty():  # a checkpoint of the same version
            file = _commit_file(jvm, log.logPath(), int(segment.version()))
        else:
            file = commits.last().getPath()
        read = jvm.org.apache.spark.sql.delta.DeltaHistoryManager.getCommitInfoOpt
        try:
            said = read(log.store(), file, log.newDeltaHadoopConf())
        except Py4JJavaError as error:  # a count is no reason to fail after a commit
            if spark_ended(error):
                raise
            return 0
        metrics = said.get().operationMetrics() if said.isDefined() else said
        counted = metrics.get().get(name) if metrics.isDefined() else metrics
        return int(counted.get()) if counted.isDefined() else 0

    @contextmanager
    def transaction(self, run: int) -> Iterator[None]:
        """Mark the only commit in the block as the run's. Delta skips it if the table has it."""
        conf = self.spark.conf
        conf.set(_TXN_ID, self.application)
        conf.set(_TXN_VERSION, str(run))
        try:
            yield
        finally:
            conf.unset(_TXN_ID)
            conf.unset(_TXN_VERSION)

    def properties(self) -> dict[str, str]:
        """Return the table's Delta properties (``delta.…``) that are set."""
        return dict(self._metadata()["configuration"])

    def created_ms(self) -> int:
        """When the table was created (ms since 1970); 0: its log doesn't say."""
        return int(self._metadata().get("createdTime") or 0)

    def reader_features(self) -> set[str]:
        """Return the features that a reader of the table needs.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#reader-version-requirements
        """
        protocol = json.loads(self.last_snapshot().protocol().json())["protocol"]
        listed = {*protocol.get("readerFeatures", ())}
        return {MAPPING} if protocol["minReaderVersion"] == _MAPPING_VERSION else listed

    def has_deletion_vectors(self) -> bool:
        """Whether deletion vectors may mark rows of a file as removed."""
        return self.properties().get("delta.enableDeletionVectors") == "true"

    def log(self) -> Any:
        """Return Delta's own log of the table."""
        jvm: Any = self.spark._jvm  # noqa: SLF001 (PySpark has no other way to its JVM)
        session = self.spark._jsparkSession  # noqa: SLF001
        # Without a checksum Delta uses its thread's session, which a new thread lacks.
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.path)

    def rows_in(self, snapshot: Any, files: Any) -> DataFrame:
        """Return the rows of some files of a version."""
        jvm: Any = self.spark._jvm  # noqa: SLF001
        log, session = self.log(), self.spark._jsparkSession  # noqa: SLF001
        listed = jvm.millrace.sinks.ListedFiles.rows(session, log, snapshot, files)
        return DataFrame(listed, self.spark)

    def _newest(self) -> Any:
        """Return the table's current version.

        A listing reads the whole folder of Delta's log, which may have the files of weeks. A check
        for a newer version than the last snapshot is much cheaper.
        """
        last = self.last_snapshot()
        return last if self._is_newest(last) else self._listed()

    def _is_newest(self, snapshot: Any) -> bool:
        """Whether no newer version or new table exists, by the state of two files.

        The folder is still listed from time to time: a newer checkpoint shortens the log to read.
        Coordinated commits may be elsewhere.
        """
        version, log, segment = int(snapshot.version()), self.log(), snapshot.logSegment()
        if version < 0 or version - int(segment.checkpointProvider().version()) > CHECKPOINT_EVERY:
            return False
        if self.is_coordinated():
            return False
        jvm: Any = self.spark._jvm  # noqa: SLF001
        folder = log.logPath()
        files = folder.getFileSystem(log.newDeltaHadoopConf())
        this, following = (_commit_file(jvm, folder, number) for number in (version, version + 1))
        try:
            made_ms = files.getFileStatus(this).getModificationTime()
        except Py4JJavaError:  # it doesn't exist; a listing finds out why
            return False
        is_same = made_ms == segment.lastCommitFileModificationTimestamp()
        return is_same and not files.exists(following)

    def is_coordinated(self) -> bool:
        """Whether the table's commits may be outside Delta's log."""
        return any(map(_COORDINATED.search, self.properties()))

    def _listed(self) -> Any:
        jvm: Any = self.spark._jvm  # noqa: SLF001
        nothing = jvm.scala.Option.empty()
        return self.log().update(False, nothing, nothing)

    def last_snapshot(self) -> Any:
        """Return the version that this process has last read or written, without a listing."""
        return self.log().unsafeVolatileSnapshot()

    def _metadata(self) -> dict[str, Any]:
        """Return the table's metadata in Delta's log, in one call.

        https://github.com/delta-io/delta/blob/master/PROTOCOL.md#change-metadata
        """
        action: dict[str, Any] = json.loads(self.last_snapshot().metadata().json())
        return dict(action["metaData"])


def _commit_file(jvm: Any, folder: Any, version: int) -> Any:
    """Return the file of a version's commit in the folder of Delta's log."""
    return jvm.org.apache.hadoop.fs.Path(folder, f"{version:020d}.json")


def register(target: DerivedDeltaTable) -> None:
    """Register the table in the catalog. Raise SinkError if another table has its name."""
    if target.derived.catalog is None:
        return
    name = quoted_path(target.derived.catalog)
    location = str(target.log().dataPath().toString())
    escaped = location.replace("\\", "\\\\").replace("'", "\\'")
    try:
        target.spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{escaped}'")
        detail = target.spark.sql(f"DESCRIBE DETAIL {name}").first()
    except PySparkException as error:
        raise spark_error(
            "the catalog doesn't have the table",
            error,
            where=target.derived.catalog,
            remedy="the Delta table is up to date; create the schema if it is missing, and allow"
            " the merge to create tables in it",
        ) from None
    if detail is None or detail["location"] != location:
        raise SinkError(
            f"{target.derived.catalog} in the catalog is another table"
            + (f", at {detail['location']}" if detail is not None else ""),
            where=target.path,
            remedy="the Delta table is up to date; drop the other one, or give this one another"
            " name with catalog in [[lakehouse.tables]]",
        )
