"""The recorded cases' rows, by Millrace's own log and by Debezium's topics → the same lakehouse.

Both ways end in typed rows of the same source. ``LOST`` has the columns that differ because
Debezium writes other values. Columns that it omits are in neither.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.values import codec
from sinks.changes.names import OWN, quoted
from sinks.changes.shape import plain_shape
from sinks.debezium import parse as debezium
from sinks.log.parse import parse
from sinks.log.records import RAW
from tests.fixtures.both_ways import available_extensions, copied
from tests.fixtures.debezium_topics import CASES, described, frame, recorded
from tests.fixtures.json_values import written
from tests.fixtures.source import Conninfo, session
from tests.fixtures.spark import table_schema
from tests.integration.cdc.values.test_values_against_golden import described as tables_of
from tests.integration.cdc.values.test_values_against_golden import modes, script

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

# No months in microseconds; all parts of ISO 8601; a time zone's own offset.
_INTERVALS: Final = frozenset({"iv", "ivd", "ttz", "ttz3"})
_MS: Final = frozenset({"t", "t6", "ts", "ts6"})
# Outside of 1677 to 2262 a number of nanoseconds is null, or wraps.
_NS: Final = frozenset({"ts", "ts0", "ts3", "ts6"})
_STRUCTS: Final = frozenset({"pt", "sv", "ve", "hv"})
_DECIMALS: Final = frozenset({"n_5_2", "n_38_0", "n_38_10", "n_3_5", "n_free", "dec_free", "m"})
LOST: Final[dict[str, frozenset[str]]] = {
    "types_numeric": frozenset({"n_free", "dec_free"}),  # zeros at their end
    "types_temporal": _INTERVALS,
    "types_text_binary": frozenset({"hs", "vb", "vbu"}),  # JSON of an hstore, bits of any length
    "types_text_binary_b64": frozenset({"hs", "vb", "vbu"}),
    "types_text_binary_hex_map": frozenset({"hs", "vb", "vbu"}),
    "types_arrays": frozenset({"e", "i", "nf", "tm", "tmz"}),  # NULL in enum[], lower bounds …
    "types_arrays_odd": frozenset({"bt", "hs", "lt"}),
    "types_arrays_odd_unknown": frozenset({"bt", "dm", "hs", "lt"}),
    "types_misc_default": _STRUCTS,
    "types_misc_unknown_true": _STRUCTS | {"bx", "ce", "ln", "ls", "pa", "pg"},  # 1.0 for 1
    "decimal_double": _DECIMALS,
    "decimal_string": frozenset(),
    "numeric_special_precise": frozenset(),
    "numeric_special_string": frozenset(),
    "interval_string": _INTERVALS,
    "keys_exotic_types": frozenset({"id"}),  # 1.5 for 1.50
    "time_adaptive_extreme": frozenset({"d"}),  # dates before Christ
    "time_adaptive_time_microseconds": _INTERVALS,
    "time_connect": _INTERVALS | _MS,
    "time_isostring": _INTERVALS | {"t", "t0", "t3", "t6"},  # 24:00
    "time_microseconds": _INTERVALS,
    "time_nanoseconds": _INTERVALS | _NS,
}
"""Case → columns whose values Debezium writes differently, or loses."""


@pytest.fixture
def opened(database: Conninfo) -> Iterator[psycopg.Connection]:
    with session(database) as connection:
        yield connection


@pytest.fixture
def refused_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what would end a table's run be null, so that all other values are looked at."""
    from pyspark.sql import functions as F

    def nothing(_condition: "SparkColumn", _message: "SparkColumn", kind: str) -> "SparkColumn":
        return F.lit(None).cast(kind)

    monkeypatch.setattr("sinks.changes.types.refuse", nothing)
    monkeypatch.setattr("sinks.debezium.values.refuse", nothing)


def collected(rows: "DataFrame") -> list[dict[str, str]]:
    """The typed values' representations; timestamps are text, for Python has none near year 1."""
    from pyspark.sql import functions as F

    texts = [
        F.col(quoted(name)).cast(re.sub("timestamp(_ntz)?", "string", kind)).alias(name)
        for name, kind in rows.dtypes
        if not name.startswith("_millrace")
    ]
    found = (row.asDict(recursive=True) for row in rows.select(*texts).collect())
    return [{name: repr(value) for name, value in row.items()} for row in found]


def natively(
    spark: "SparkSession", opened: psycopg.Connection, table: TableDescription
) -> "DataFrame":
    """A table's rows by Millrace's own log."""
    schema = table_schema("p", table.name.name, *table.columns)
    place = str(Position(1, Lsn(1), 0))
    records: list[tuple[Any, ...]] = []
    for row in copied(opened, table):
        members = []
        for column, value in zip(table.columns, row, strict=True):
            found = codec(column)
            assert found is not None
            text = written(found, value) if isinstance(value, bytes) else "null"
            members.append(f"{json.dumps(column.name)}:{text}")
        said = f'{{"before":null,"after":{{{",".join(members)}}},"op":"r"}}'
        records.append(("t", 0, len(records), "{}", said, place, 1, 1, None, None, 0))
    return parse(spark.createDataFrame(records, RAW), plain_shape([schema], OWN))


def differing(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> set[str]:
    """Columns whose values differ in some row; those that Debezium leaves out aren't looked at."""
    return {
        name
        for mine, other in zip(ours, theirs, strict=True)
        for name in other
        if mine[name] != other[name]
    }


@pytest.mark.proof
@pytest.mark.parametrize("case", LOST)
@pytest.mark.usefixtures("refused_is_null")
def test_rows_of_a_snapshot_are_those_of_our_own_log(
    spark: "SparkSession", opened: psycopg.Connection, case: str
) -> None:
    setup = CASES / case / "setup.sql"
    wanted = re.findall(r"CREATE EXTENSION (\w+)", setup.read_text(encoding="utf-8"))
    if missing := set(wanted) - available_extensions(opened):
        pytest.skip(f"this server has no {', '.join(missing)}")
    script(opened, setup)
    found: set[str] = set()
    for table in tables_of(opened):
        records = [
            one for one in recorded(case, table.name.name) if one.value and b'"op":"r"' in one.value
        ]
        if records:
            raw = frame(spark, records)
            topic = described(raw, modes(case), columns={one.name: one for one in table.columns})
            theirs = collected(debezium.parse(raw, topic))
            ours = collected(natively(spark, opened, table))
            key = table.columns[0].name
            order = {row[key]: place for place, row in enumerate(theirs)}
            found |= differing(sorted(ours, key=lambda row: order.get(row[key], 0)), theirs)
    assert found == LOST[case]
