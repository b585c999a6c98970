"""An order to repair rows → each as at the source, or as deleted, after its earlier events."""

import time
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
    given = RepairOrder.model_construct(format=1, id="a repair", log=name, table=table, keys=keys)
    content = given.model_dump_json()
    message = "SELECT pg_logical_emit_message(true, %s, %s)"
    connection.execute(message, [REPAIR_ORDERS, content])


def emit(database: Mapping[str, str], name: str, table: str, *keys: dict[str, str]) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        order(connection, name, table, *keys)


def wait_until_gone(made: RunningPipeline) -> None:
    """Wait until the log knows that a partition was dropped."""
    deadline = time.monotonic() + 30
    while not any(state.gone_partitions for state in made.tables()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
        order(connection, progress.log, "public.doc", {"id": "\0"})
        with connection.transaction():  # a lock holds up no other table
            connection.execute("LOCK TABLE doc")
            emit(database, progress.log, "public.doc", {"id": "1"})
            emit(database, progress.log, "public.parted", {"day": "2024-05-02", "a b": "ü"})
            made.wait_until_logged(made.wal_end(), daemon)
        # The rows of a dropped partition are kept: nobody knows which ones they were.
        connection.execute("DROP TABLE parted_2024")
        made.wait_until_logged(made.wal_end(), daemon)
        wait_until_gone(made)
        order(connection, progress.log, "public.parted", {"day": "2024-05-01", "a b": "it's"})
        connection.execute("UPDATE doc SET v = 'later' WHERE id = 3")
        made.wait_until_logged(made.wal_end(), daemon)
        later = newer(made, before + len(repaired))
        assert [(record.op, record.topic.rpartition(".")[2]) for record in later] == [
            ("r", "parted"),
            ("u", "doc"),
        ]
    assert made.stop(daemon) == 0
