"""Raw records → those that end rows at once, and the ends that they tell.

A TRUNCATE ends all rows that are older; a partition that was dropped those within its bounds. Each
is in every Kafka partition, in a compacted topic under a key that no row has.
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
    """The operation of a raw record that ends rows, null of any other.

    Parses the value of a record without a key only.
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
    """Whether a raw record that ends rows is in another Kafka partition as well, which is shown.

    Debezium's rules have one record of a TRUNCATE without a key, in any partition.
    """
    copied = F.coalesce((ending_op() == DROP) | F.col("key").isNotNull(), F.lit(False))
    # The cheap test first: most records, if not all, are in that partition.
    return (F.col("partition") != _FIRST_PARTITION) & ends_rows() & copied


def end_struct(op: Column, value: Column, time_us: Column) -> Column:
    """What ``ends_of`` reads of a record; its position and schema version are beside them."""
    ended = F.when(op == DROP, F.coalesce(F.get_json_object(value, "$.ended"), F.lit("")))
    return F.struct("position", time_us.alias("ts_us"), ended.alias("ended"), "schema_version")


def ends_of(structs: Iterable[Row]) -> tuple[RowsEnd, ...]:
    """The ends that records tell; raises LogFormatError where one can't be read."""
    return tuple(
        RowsEnd.of_record(end["position"], end["ts_us"], end["ended"], end["schema_version"])
        for end in structs
    )
