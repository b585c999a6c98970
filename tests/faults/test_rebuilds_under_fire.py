"""``millrace rebuild lakehouse``, typed and killed → tables that equal the source, row by row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from cdc.records.schema import TableName
from cdc.records.topics import data_topic
from sinks.changes.derived import table_path
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(900),  # each command starts a JVM
]
SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, v text, big text, n numeric(8, 2));
    ALTER TABLE item ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE plain (v text, n int);
    ALTER TABLE plain REPLICA IDENTITY FULL;
    INSERT INTO item SELECT i, 'read', repeat(i::text, 3000), i / 3.0 FROM generate_series(1, 99) i;
    INSERT INTO plain SELECT 'copy', i % 7 FROM generate_series(1, 50) i;
"""
CHANGES = """
    UPDATE item SET v = 'updated' WHERE id % 3 = 0;
    DELETE FROM item WHERE id % 5 = 0;
    UPDATE item SET id = id + 1000 WHERE id % 7 = 0;
    DELETE FROM plain WHERE n = 3;
    UPDATE plain SET v = 'other' WHERE n = 4;
"""
COLUMNS = {"item": ("id", "v", "big", "n"), "plain": ("v", "n")}


class Stand:
    """The source, its daemon, and its lakehouse."""

    def __init__(self, made: RunningPipeline, database: dict[str, str]) -> None:
        self.made = made
        self.source = psycopg.connect(make_conninfo(**database), autocommit=True)
        self.source.execute(SCHEMA)
        self.daemon = made.catch_up()

    def path(self, table: str) -> str:
        return table_path(str(self.made.folder / "lakehouse"), TableName("public", table))

    def version(self, table: str) -> int:
        return DeltaTable(self.path(table)).version()

    def damage(self, table: str) -> None:
        for file in Path(self.path(table)).glob("*.parquet"):
            file.unlink()

    def forget(self, table: str) -> None:
        """Have the broker remove all that a topic has."""
        prefix = self.made.settings.capture.topic_prefix
        topic = data_topic(prefix, TableName("public", table))
        admin = AdminClient({**self.made.settings.kafka})
        partitions = range(len(admin.list_topics(topic).topics[topic].partitions))
        ends = [TopicPartition(topic, number, OFFSET_END) for number in partitions]
        for future in admin.delete_records(ends).values():
            future.result()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        found = query_builder(self.path(table))
        return sorted(tuple(row[name] for name in COLUMNS[table]) for row in found)

    def expected(self, table: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {', '.join(COLUMNS[table])} FROM {table}"
        return sorted(self.source.execute(query.encode()).fetchall())

    def millrace(self, *words: str, fault: str = "") -> tuple[int, str]:
        """A command's exit code, and what it says."""
        done = self.made.millrace(*words, environment={VARIABLE: fault} if fault else None)
        return done.returncode, done.stdout + done.stderr


def test_a_killed_rebuild_is_finished_and_a_table_equals_the_source(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    stand = Stand(pipeline(), database)
    assert stand.millrace("merge", "lakehouse")[0] == ExitCode.OK
    stand.source.execute(CHANGES)
    stand.made.wait_until_logged(stand.made.wal_end(), stand.daemon)
    stood = stand.version("item")
    for table in COLUMNS:
        stand.damage(table)
    rebuild = ("rebuild", "lakehouse", "public.item", "public.plain")
    assert stand.millrace(*rebuild, fault=FaultPoint.RUN_PLANNED)[0] < 0
    assert stand.version("item") == stood
    assert stand.millrace(*rebuild, fault=FaultPoint.TABLE_COMMITTED)[0] < 0
    code, said = stand.millrace(*rebuild)
    assert code == ExitCode.OK, said
    assert "finishing run 2, which was interrupted" in said
    for table in COLUMNS:
        assert stand.rows(table) == stand.expected(table)
    assert stand.version("item") == stood + 1, "one version, however often it was begun"

    stand.forget("plain")
    stand.damage("plain")
    code, said = stand.millrace("rebuild", "lakehouse", "public.plain")
    assert code == ExitCode.LOG_FORGOTTEN, said
    assert "`millrace snapshot public.plain`; then" in said
    stand.source.execute("INSERT INTO plain VALUES ('read again', 1)")
    stand.made.stop(stand.daemon)
    code, said = stand.millrace("snapshot", "public.plain")
    assert code == ExitCode.OK, said
    code, said = stand.millrace("rebuild", "lakehouse", "public.plain")
    assert code == ExitCode.OK, said
    assert stand.rows("plain") == stand.expected("plain")

    code, said = stand.millrace("rebuild", "lakehouse", "public.nope")
    assert code == ExitCode.CONFIG
    assert "unknown derived table: public.nope" in said
    assert "public.item, public.plain" in said
