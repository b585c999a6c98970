"""A view's rows → one commit to its Delta table: of all rows, or of the changed ones.

Each commit has its step's number as application transaction, so a repetition changes nothing. Keys
identify rows, null-safely. Unchanged rows aren't written.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from cdc.errors import SinkError
from sinks.changes.derived import Derived
from sinks.changes.names import END, IS_CURRENT, POSITION, VALID_FROM, VALID_TO, quoted
from sinks.delta.commit import ATTEMPTS_MAX
from sinks.delta.evolution import NAME_MAPPING, needs_mapping, retention_properties, set_properties
from sinks.delta.readers import MAPPING
from sinks.delta.table import CHECKPOINT_EVERY, DerivedDeltaTable
from sinks.delta.transaction import CONFLICTS, FILE_AND_INDEX, DeltaTransaction
from sinks.delta.version import Version
from sinks.run.cuts import Instant
from sinks.run.summary import Rows, TableVersion
from sinks.spark.jvm import EXACT, counted
from sinks.views.catalyst import has_unordered
from sinks.views.query import OF_VERSIONS
from sinks.views.sources import VIEWS

SMALL_BYTES: Final = 4 << 20
"""A smaller table is rewritten faster than its rows are found."""
_STATISTICS_MAX: Final = 32
"""Delta has statistics of this number of columns, the first ones, by default."""
_BOUNDED: Final = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "string")
"""Types whose least and greatest values exclude files."""
_CHANGE_NO_ROWS: Final = frozenset(
    {"OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"}
)
"""Operations that leave a table's rows unchanged."""
_NEW: Final = "_millrace_new"
_SAME: Final = "_millrace_same"
_STORED: Final = "_millrace_stored"
_TOUCHED: Final = "_millrace_touched"


class NewRows(NamedTuple):
    """All rows of some ``groups`` of a view at a cut, or of the whole view without groups.

    ``keys`` identify rows. ``columns``: the table's column of each of the groups'.
    """

    rows: DataFrame
    keys: Sequence[str]
    at: Instant
    groups: DataFrame | None = None
    columns: Mapping[str, str] = MappingProxyType({})


class ViewTable:
    """The Delta table of a view, in a session.

    With ``keeps``, it has each row's versions from cut to cut, with the columns of a table's
    history.
    """

    def __init__(
        self, spark: SparkSession, prefix: str, derived: Derived, *, keeps: bool = False
    ) -> None:
        self.delta = DerivedDeltaTable(spark, prefix, derived)
        self._keeps = keeps

    def step(self) -> int:
        """Return the number of the last commit. 0: there is none."""
        there = self.delta.read_applied()
        return there.run if there is not None else 0

    def is_altered(self, since: TableVersion) -> bool:
        """Whether other writers have changed rows since a version. Compaction doesn't."""
        there = self.delta.applied().at
        if there == since:
            return False
        if there.id != since.id or there.version < since.version:
            return True
        log = DeltaTable.forPath(self.delta.spark, self.delta.path)
        later = log.history(there.version - since.version).select("operation").collect()
        return not {row.operation for row in later} <= _CHANGE_NO_ROWS

    def rows_of(self, step: int) -> DataFrame:
        """Return its rows as of a step, whatever other writers did. Later steps don't count."""
        return Version(self.delta, self.delta.version_of_run(step, 0)).rows()

    def has_columns(self, rows: DataFrame) -> bool:
        """Whether the table has exactly the columns of these rows among the user's."""
        if not self.delta.exists():
            return False
        there = {field.name: field.dataType for field in self.delta.columns().fields}
        new = {field.name: field.dataType for field in rows.schema.fields}
        return new == {name: of for name, of in there.items() if name not in OF_VERSIONS}

    def replace(self, step: int, new: NewRows) -> Rows:
        """Replace the table's rows and columns by these, in one commit.

        A reader sees all earlier rows, or all of these.
        """
        return self._retried(lambda: self._replace(step, new))

    def _retried(self, write: Callable[[], Rows]) -> Rows:
        """Write. Try again if another commit was faster, such as compaction's."""
        for _attempt in range(ATTEMPTS_MAX):
            with suppress(*CONFLICTS):
                return write()
        raise SinkError(
            f"another writer committed first, {ATTEMPTS_MAX} times",
            where=self.delta.name,
            remedy="the next run tries again",
        )

    def _replace(self, step: int, new: NewRows) -> Rows:
        target = self.delta
        before = target.read_applied()
        rows = new.rows.select("*", *_begins(new.at)) if self._keeps else new.rows
        properties = self._properties(rows, new.keys)
        needs = needs_mapping(rows.columns)
        if before is not None and needs and MAPPING not in target.reader_features():
            set_properties(target, NAME_MAPPING)
        writer = rows.write.format("delta").option("overwriteSchema", "true")
        with target.transaction(step):
            writer.options(**properties).mode("overwrite").save(target.path)
        after = target.applied()
        if after.run != step:
            raise other_writer(target, after.run)
        return Rows(inserted=target.added(), version=after.at)

    def _properties(self, rows: DataFrame, keys: Sequence[str]) -> dict[str, str]:
        properties = {
            **retention_properties(self.delta.derived.keep),
            "delta.checkpointInterval": str(CHECKPOINT_EVERY),
            "delta.enableDeletionVectors": str(self.delta.derived.deletion_vectors).lower(),
        }
        if needs_mapping(rows.columns):
            properties |= NAME_MAPPING
        elif len(rows.columns) > _STATISTICS_MAX:
            properties["delta.dataSkippingStatsColumns"] = ",".join(map(quoted, keys))
        return properties

    def change(self, step: int, new: NewRows) -> Rows:
        """Set the rows of some groups, or all of them."""
        return self._retried(lambda: self._change(step, new))

    def _change(self, step: int, new: NewRows) -> Rows:
        rows, keys, at, groups, columns = new
        target = self.delta
        transaction = DeltaTransaction(target, step)
        few = target.size_bytes() < SMALL_BYTES
        small = few or not target.has_deletion_vectors()
        bounds = None if groups is None or small else _bounds(groups, columns)
        files = transaction.files(bounds)
        # If all rows are available, all new ones are written, without another read.
        anew = (few or (small and groups is None)) and not self._keeps
        stored = transaction.rows(files)
        if not anew:
            place = [F.col(of).alias(name) for name, of in FILE_AND_INDEX.items()]
            stored = stored.select("*", *place)
        current = stored.where(F.col(END).isNull()) if self._keeps else stored
        names = [name for name in rows.columns if name in stored.columns]
        if groups is not None:
            current = _of_groups(current, groups, columns, others=anew)
        pairs = _pairs(current, rows, names, keys)
        differences, counts = counted(
            pairs if anew else pairs.where(~F.col(_SAME)),
            {
                "inserted": F.count_if(~_is_there(_STORED)),
                "updated": F.count_if(_is_there(_NEW) & _is_there(_STORED) & ~F.col(_SAME)),
                "deleted": F.count_if(~_is_there(_NEW)),
            },
        )
        if not any(counts.values()):
            return Rows(version=target.applied().at)
        gone = differences.where(_is_there(_STORED)).select(f"{_STORED}.*")
        come = differences.where(_is_there(_NEW)).select(f"{_NEW}.*")
        if self._keeps:
            ended = gone.drop(*FILE_AND_INDEX).withColumns(_ends(at))
            come = come.select("*", *_begins(at)).unionByName(ended)
        if anew:
            transaction.write(come if groups is None else come.coalesce(1))
            transaction.remove(files)
        elif small:
            unchanged = stored.join(gone.select(*FILE_AND_INDEX), [*FILE_AND_INDEX], "left_anti")
            transaction.write(unchanged.drop(*FILE_AND_INDEX).unionByName(come).coalesce(1))
            transaction.remove(files)
        else:
            if counts["updated"] or counts["deleted"]:
                transaction.mark(gone.select(*FILE_AND_INDEX), files)
            transaction.write(come)
        done = transaction.commit(counts["inserted"], counts["updated"], counts["deleted"])
        return done._replace(version=target.applied().at)


def _begins(at: Instant) -> list[SparkColumn]:
    """Return the columns of versions that begin at a cut."""
    return [
        F.lit(str(at.cut)).alias(POSITION),
        F.timestamp_micros(F.lit(at.time_us)).alias(VALID_FROM),
        F.lit(None).cast("timestamp").alias(VALID_TO),
        F.lit(None).cast("string").alias(END),
        F.lit(True).alias(IS_CURRENT),
    ]


def _ends(at: Instant) -> dict[str, SparkColumn]:
    """Return the columns that change in versions that end at a cut."""
    return {
        VALID_TO: F.timestamp_micros(F.lit(at.time_us)),
        END: F.lit(str(at.cut)),
        IS_CURRENT: F.lit(False),
    }


def _is_there(side: str) -> SparkColumn:
    return F.col(side).isNotNull()


def _pairs(
    stored: DataFrame, rows: DataFrame, names: Sequence[str], keys: Sequence[str]
) -> DataFrame:
    """Pair rows by key: structs of the stored and the current row, and whether they are equal."""
    old = stored.select(F.struct("*").alias(_STORED))
    new = rows.select(F.struct(*map(quoted, names)).alias(_NEW))
    same = [F.col(_STORED)[key].eqNullSafe(F.col(_NEW)[key]) for key in keys]
    pairs = old.join(new, reduce(and_, same) if same else F.lit(True), "full_outer")
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    equal = [
        comparable(F.col(_STORED)[name], kinds[name]).eqNullSafe(
            comparable(F.col(_NEW)[name], kinds[name])
        )
        for name in names
        if name not in keys
    ]
    both = _is_there(_STORED) & _is_there(_NEW)
    pairs = pairs.withColumn(_SAME, reduce(and_, equal, both))
    if _TOUCHED not in stored.columns:
        return pairs
    is_other = _is_there(_STORED) & ~_is_there(_NEW) & F.col(_STORED)[_TOUCHED].isNull()
    as_it_was = F.struct(*(F.col(_STORED)[name].alias(name) for name in names))
    now = F.when(is_other, as_it_was).otherwise(F.col(_NEW))
    return pairs.withColumns({_NEW: now, _SAME: is_other | F.col(_SAME)})


def comparable(value: SparkColumn, kind: DataType) -> SparkColumn:
    """Return a value that can be compared: maps and variants can't, even nested."""
    return F.to_json(F.struct(value), EXACT) if has_unordered(kind) else value


def _of_groups(
    rows: DataFrame, groups: DataFrame, columns: Mapping[str, str], *, others: bool
) -> DataFrame:
    """Return the rows of some groups, or all, with a column that is null in ``others``."""
    if not columns:
        return rows
    values = groups.select(
        *(F.col(value).alias(f"{_NEW}_{place}") for place, value in enumerate(columns.values()))
    )
    same = reduce(
        and_,
        (
            F.col(quoted(name)).eqNullSafe(F.col(f"{_NEW}_{place}"))
            for place, name in enumerate(columns)
        ),
    )
    if not others:
        return rows.join(values, same, "left_semi")
    marked = values.withColumn(_TOUCHED, F.lit(True))
    return rows.join(marked, same, "left_outer").drop(*values.columns)


def _bounds(groups: DataFrame, columns: Mapping[str, str]) -> SparkColumn | None:
    """Return the range of the groups' values, in the columns with statistics of files."""
    kinds = {field.name: field.dataType.simpleString() for field in groups.schema.fields}
    bounded = {name: value for name, value in columns.items() if kinds[value] in _BOUNDED}
    if not bounded:
        return None
    asked: list[SparkColumn] = []
    for place, value in enumerate(bounded.values()):
        asked += [
            _plain(F.min(value), kinds[value]).alias(f"low_{place}"),
            _plain(F.max(value), kinds[value]).alias(f"high_{place}"),
            F.count_if(F.col(value).isNull()).alias(f"nulls_{place}"),
        ]
    limits = groups.agg(*asked).collect()[0]
    conditions = [
        F.col(quoted(name)).between(
            *(_of_plain(limits[f"{end}_{place}"], kinds[value]) for end in ("low", "high"))
        )
        for place, (name, value) in enumerate(bounded.items())
        if not limits[f"nulls_{place}"]
    ]
    return reduce(and_, conditions) if conditions else None


def _plain(value: SparkColumn, kind: str) -> SparkColumn:
    """Return a value that Python represents exactly. Its times have a zone, and fewer years."""
    numbers = {"timestamp": F.unix_micros, "date": F.unix_date}
    return numbers[kind](value) if kind in numbers else value


def _of_plain(value: Any, kind: str) -> SparkColumn:
    of = {"timestamp": F.timestamp_micros, "date": F.date_from_unix_date}
    return of[kind](F.lit(value)) if kind in of else F.lit(value)


def other_writer(target: DerivedDeltaTable, step: int) -> SinkError:
    """Return the error for a step that this run hasn't written."""
    return SinkError(
        f"the view's table has step {step}, which this run didn't write",
        where=target.path,
        remedy="if no other run is running: millrace rebuild view "
        + target.name.removeprefix(VIEWS),
    )
