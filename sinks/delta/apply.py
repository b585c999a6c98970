"""A table's plan → its commit, and Spark's errors → ours."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.errors import ConfigError, LogForgottenError, SinkError, SinkUnreachableError
from cdc.records.schema import TableSchema
from sinks.changes.derived import Derived
from sinks.changes.latest import within
from sinks.changes.names import LOST
from sinks.changes.shape import TableShape, derive_shape
from sinks.changes.types import REFUSED
from sinks.delta.archive import not_archived, read_archive, write_changes
from sinks.delta.commit import DeltaTransaction, Rows, commit
from sinks.delta.current import merge, write_new
from sinks.delta.history import Gap, merge_history, write_new_history
from sinks.delta.keyless import merge_keyless, write_new_keyless
from sinks.delta.newest import Newest, newest_of_changes, newest_of_contenders
from sinks.delta.replace import SMALL_BYTES, mark, rewrite
from sinks.delta.table import DeltaTarget
from sinks.log.parse import parse, parse_images
from sinks.log.records import GONE, KeptLostError, Records, in_session, with_values
from sinks.run.plan import RunPlan, TablePlan
from sinks.spark.session import first_line, jvm_ended


def apply_table(
    target: DeltaTarget,
    records: Records,
    table: TablePlan,
    plan: RunPlan,
    versions: Sequence[TableSchema],
    archive: str | None = None,
    early: DataFrame | None = None,
) -> Rows:
    """Commit what the plan says to the table, unless the table has it already.

    ``archive`` is the path of the archive that the plan replays; ``early`` are the table's
    contenders, if they were read already.
    """
    keyed = bool(versions[-1].key)
    _require_key(target, keyed=keyed)
    columns = columns_of(target.derived, table, versions)
    log = records.of(target.spark, {table.topic: table})
    raw = log.transform(lambda rows: _applicable(rows, table, plan, keyed=keyed)).transform(
        lambda rows: with_values(rows, records.kafka, table, plan)
    )
    if table.replay is not None and archive is not None:
        archived = read_archive(target.spark, archive, table.replay, table.topic)
        raw = _behind(raw, archived, table, plan.tables[table.replay.archive])
    return commit(
        target,
        plan.run,
        table.base,
        columns,
        lambda: _write(target, log, raw, columns, table, plan, early),
    )


def columns_of(derived: Derived, table: TablePlan, versions: Sequence[TableSchema]) -> TableShape:
    """The columns that a derived table has, of these schema versions."""
    by_key = derived.kind != "changes"
    return derive_shape(
        versions, table.first_version, derived.column_options, derived.reserved, by_key=by_key
    )


def _behind(raw: DataFrame, archived: DataFrame, table: TablePlan, archive: TablePlan) -> DataFrame:
    """The archived records, and those of the log that came after; without what a TRUNCATE took."""
    if table.kind == "current" and table.truncated is not None:
        archived = archived.where(F.col("position") > str(table.truncated))
    if LOST in raw.columns:
        archived = archived.withColumn(LOST, F.lit(None).cast("string"))
    return archived.unionByName(not_archived(raw, archive))


def _require_key(target: DeltaTarget, *, keyed: bool) -> None:
    """Raise ConfigError where a kind follows rows by their keys, and there are none."""
    derived = target.derived
    if not keyed and (derived.kind == "history" or derived.marks_deletes):
        raise ConfigError(
            f"{derived.source} has no key, by which a row could be followed",
            where="[[lakehouse.tables]]",
            remedy='leave out kind = "history" and deletes = "mark" for it',
        )


def _applicable(raw: DataFrame, table: TablePlan, plan: RunPlan, *, keyed: bool) -> DataFrame:
    """The raw records that the run has to apply; kinds differ in what they have already."""
    if table.kind == "changes":
        upto = within(raw, None, plan.cut, None, keyed=keyed)
        return not_archived(upto, table)
    truncated = table.truncated if table.kind == "current" else None
    return within(raw, table.after, plan.cut, truncated, keyed=keyed)


def _write(
    target: DeltaTarget,
    log: DataFrame,
    raw: DataFrame,
    columns: TableShape,
    table: TablePlan,
    plan: RunPlan,
    early: DataFrame | None,
) -> Rows:
    if table.kind == "changes":
        return write_changes(target, raw, columns, table)
    if table.kind == "history":
        changes = parse(raw, columns, timed=True)
        if not table.base:
            return write_new_history(target, changes, columns, table)
        whole = None if table.gap is None else within(log, None, plan.cut, None, keyed=True)
        gap = None if whole is None else Gap(parse(whole, columns), plan.ts_ms)
        return merge_history(target, changes, columns, table, gap)
    if columns.keys:
        newest = _newest(target, raw, columns, early)
        return _write_rows(target, newest, columns, table, plan)
    images = parse_images(raw, columns)
    if not table.base:
        return write_new_keyless(target, images, columns)
    return merge_keyless(target, images, columns, table.truncated)


def _newest(
    target: DeltaTarget, raw: DataFrame, columns: TableShape, early: DataFrame | None
) -> Callable[..., AbstractContextManager[Newest]]:
    """A reader of each key's newest change, or of the changes that were read early."""
    if early is not None:
        return partial(newest_of_contenders, in_session(target.spark, early), columns)
    return partial(newest_of_changes, parse(raw, columns), columns)


def _write_rows(
    target: DeltaTarget,
    read: Callable[..., AbstractContextManager[Newest]],
    columns: TableShape,
    table: TablePlan,
    plan: RunPlan,
) -> Rows:
    if not table.base:
        with read() as newest:
            return write_new(target, newest.all(), columns)
    simple = not (table.rebuilds or target.derived.marks_deletes) and DeltaTransaction.is_supported(
        target
    )
    if simple and target.size_bytes() < SMALL_BYTES:
        with read() as newest:
            return rewrite(target, plan.run, newest, columns, table.truncated)
    older = plan.cut if table.rebuilds else table.truncated
    with read(ranges=older is None) as newest:
        if simple and older is None and _all_newer(newest, table) and target.has_deletion_vectors():
            return mark(target, plan.run, newest, columns)
        return merge(target, newest, columns, older, rebuilds=table.rebuilds)


def _all_newer(newest: Newest, table: TablePlan) -> bool:
    """Whether no stored row can be as new, since all are of before what the table had reached."""
    return table.after is not None and (newest.oldest or "") > str(table.after)


@contextmanager
def explained(name: str, keep: timedelta) -> Iterator[None]:
    """Turn what Spark raises while a table is applied into an error with a remedy."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if jvm_ended(error):
            raise  # for all tables
        text = str(error)
        if GONE in text:
            raise KeptLostError(
                "an executor has ended, and records that it kept",
                where=f"table {name}",
                remedy="the next run goes on where this one was",
            ) from None
        if REFUSED in text:
            reason = text.partition(REFUSED)[2].partition("\n")[0].partition(" SQLSTATE")[0]
            raise SinkError(
                reason, where=f"table {name}", remedy="docs/types.md says what to do"
            ) from None
        if "failOnDataLoss" in text or "OffsetOutOfRange" in text:
            raise LogForgottenError(
                f"the log no longer has all records that {name} needs (log.keep is {keep})",
                where=f"table {name}",
                remedy="remove the derived table, so that the next run rebuilds it from the log",
            ) from None
        if "org.apache.kafka.common.errors" in text or "java.io.IOException" in text:
            raise SinkUnreachableError(
                f"Kafka or the file system failed: {first_line(error)}", where=f"table {name}"
            ) from None
        raise SinkError(first_line(error), where=f"table {name}") from None
