"""An order to repair rows → each as it is at the source, or as deleted, behind what was there."""

from collections.abc import Mapping
from operator import attrgetter

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.records.orders import REPAIR_ORDERS, RepairOrder
from tests.fixtures.pipeline import LogRecord, RunningPipeline
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
TABLES = """
    CREATE TABLE doc (id int PRIMARY KEY, v text);
    CREATE TABLE parted (day date, "a b" text, v int, PRIMARY KEY (day, "a b"))
        PARTITION BY RANGE (day);
    CREATE TABLE parted_2024 PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
    INSERT INTO doc VALUES (1, 'one'), (2, 'two'), (3, 'three');
    INSERT INTO parted VALUES ('2024-05-01', 'it''s', 1), ('2024-05-02', 'ü', 2);
"""
Keys = tuple[dict[str, str], ...]


def order(connection: psycopg.Connection, name: str, table: str, *keys: dict[str, str]) -> None:
    content = RepairOrder(id="a repair", log=name, table=table, keys=keys).model_dump_json()
    message = "SELECT pg_logical_emit_message(true, %s, %s)"
    connection.execute(message, [REPAIR_ORDERS, content])


def newer(made: RunningPipeline, count: int) -> list[LogRecord]:
    """The records behind the first ones; those of a key as they stand in the log."""
    order = attrgetter("position", "key", "offset")
    return sorted(made.log(), key=order)[count:]


def values(records: list[LogRecord]) -> list[tuple[str | None, str, Mapping[str, object] | None]]:
    return [(record.key, record.op, record.value and record.value["after"]) for record in records]


def test_rows_come_as_they_are_now_or_as_deleted(
    configured: Configured, database: dict[str, str]
) -> None:
    made = configured(**{"column.mask.with.3.chars": "public.doc.v"})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(TABLES)
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        progress = made.progress()
        assert progress is not None
        order(connection, progress.log, "public.doc", {"id": "2"}, {"id": "77"})
        parted: Keys = (
            {"day": "2024-05-01", "a b": "it's"},
            {"a b": "nobody", "day": "2024-05-01"},
        )
        order(connection, progress.log, "public.parted", *parted)
        made.wait_until_logged(made.wal_end(), daemon)
        before = 5
        repaired = newer(made, before)
        assert values(repaired) == [
            ('{"id":2}', "r", {"id": 2, "v": "***"}),
            ('{"id":77}', "d", None),
            ('{"id":77}', "tombstone", None),
            ('{"day":19844,"a b":"it\'s"}', "r", {"day": 19844, "a b": "it's", "v": 1}),
            ('{"day":19844,"a b":"nobody"}', "d", None),
            ('{"day":19844,"a b":"nobody"}', "tombstone", None),
        ]
        # An order that can't be followed changes nothing, and ends nothing.
        order(connection, "a guess", "public.doc", {"id": "1"})
        order(connection, progress.log, "public.doc", {"v": "one"})
        order(connection, progress.log, "public.nothing", {"id": "1"})
        order(connection, progress.log, "public.doc", {"id": "no number"})
        connection.execute("UPDATE doc SET v = 'later' WHERE id = 3")
        made.wait_until_logged(made.wal_end(), daemon)
        assert [record.op for record in newer(made, before + len(repaired))] == ["u"]
    assert made.stop(daemon) == 0
