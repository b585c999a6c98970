"""Raw records → those that end rows at once, and their ends.

A TRUNCATE ends all older rows. A dropped partition ends those within its bounds. Each is in every
Kafka partition, in a compacted topic with a key that no row has.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, Row
from pyspark.sql import functions as F

from cdc.records.bounds import ENDED_KEY
from cdc.records.topics import TRUNCATE_KEY
from sinks.changes.ends import RowsEnd

TRUNCATE: Final = "t"
DROP: Final = "p"
ENDING: Final = (TRUNCATE, DROP)
"""The operations of such records."""
_FIRST_PARTITION: Final = 0
_ENDED_KEY: Final = f'{{"{ENDED_KEY}":'


def ending_op() -> Column:
    """Return the operation of a raw record that ends rows, null for any other.

    Parses the value only of a record without a key.
    """
    key, value = F.col("key"), F.col("value")
    keyless = F.get_json_object(value, "$.op")
    return (
        F.when(key == TRUNCATE_KEY.decode(), F.lit(TRUNCATE))
        .when(key.startswith(_ENDED_KEY), F.lit(DROP))
        .when(key.isNull() & value.isNotNull(), F.when(keyless.isin(*ENDING), keyless))
    )


def ends_rows() -> Column:
    """Whether a raw record ends rows."""
    return ending_op().isNotNull()


def is_copy() -> Column:
    """Whether a raw record that ends rows is a copy of one in another Kafka partition.

    Debezium's rules write one record of a TRUNCATE without a key, in any partition.
    """
    copied = F.coalesce((ending_op() == DROP) | F.col("key").isNotNull(), F.lit(False))
    # The cheap test first: most records, if not all, are in that partition.
    return (F.col("partition") != _FIRST_PARTITION) & ends_rows() & copied


def end_struct(op: Column, value: Column, time_us: Column) -> Column:
    """Return the input of ``ends_of`` from a record, with its position and schema version."""
    ended = F.when(op == DROP, F.coalesce(F.get_json_object(value, "$.ended"), F.lit("")))
    return F.struct("position", time_us.alias("ts_us"), ended.alias("ended"), "schema_version")


def ends_of(structs: Iterable[Row]) -> tuple[RowsEnd, ...]:
    """Return the ends in records. Raise LogFormatError if one can't be read."""
    return tuple(
        RowsEnd.of_record(end["position"], end["ts_us"], end["ended"], end["schema_version"])
        for end in structs
    )
