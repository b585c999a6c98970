"""One table's part of a plan → its commit, and Spark's errors → ours."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc.errors import LogForgottenError, SinkError, SinkUnreachableError
from cdc.records.schema import TableSchema
from sinks.batch import read_raw
from sinks.claims import with_values
from sinks.delta.bag import merge_bag, write_new_bag
from sinks.delta.merge import Rows, commit, merge, write_new
from sinks.delta.table import DeltaTarget, first_line
from sinks.latest import latest, within
from sinks.parse import parse, parse_images
from sinks.plan import Plan, TablePlan
from sinks.types import REFUSED


def apply_table(
    target: DeltaTarget,
    kafka: Mapping[str, str],
    table: TablePlan,
    plan: Plan,
    versions: Sequence[TableSchema],
) -> Rows:
    """Commit what the plan says to the table, unless the table has it already."""
    require_same_key(versions)
    newest = versions[-1]
    bounds = table.after, plan.cut, table.truncated
    raw = (
        read_raw(target.spark, kafka, {table.topic: table.start}, {table.topic: table.end})
        .transform(lambda records: within(records, *bounds, keyed=bool(newest.key)))
        .transform(lambda records: with_values(records, kafka, table, plan))
    )

    def write() -> Rows:
        if not newest.key:
            images = parse_images(raw, versions)
            if not table.base:
                return write_new_bag(target, images, newest)
            return merge_bag(target, images, newest, table.truncated)
        rows = parse(raw, versions).transform(lambda changes: latest(changes, newest))
        if not table.base:
            return write_new(target, rows, newest)
        return merge(target, rows, newest, table.truncated)

    return commit(target, plan.run, table.base, newest, write)


def require_same_key(versions: Sequence[TableSchema]) -> None:
    """Raise SinkError where the key has other columns than it had: old rows wouldn't be found."""
    keys = [", ".join(column.name for column in version.key) for version in versions]
    if len(set(keys)) > 1:
        raise SinkError(
            f"the table's key was changed or renamed: {' → '.join(dict.fromkeys(keys))}",
            where=f"table {versions[-1].name}",
            remedy="rows of the old key can't be found by the new one: change it back, leave the "
            "table out by table.exclude.list, or capture it again under another topic.prefix",
        )


@contextmanager
def explained(name: str, keep: timedelta) -> Iterator[None]:
    """Turn what Spark raises while a table is applied into an error with a remedy."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
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
