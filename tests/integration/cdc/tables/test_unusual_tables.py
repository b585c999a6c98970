"""Tables that break assumptions → the log equals SELECT for each, by snapshot and stream."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from psycopg.conninfo import make_conninfo

from cdc.kafka.admin import LogAdmin
from cdc.records.schema import TableName
from cdc.records.topics import TRUNCATE_KEY, data_topic
from tests.faults.test_killed_daemon import assert_in_commit_order, assert_log_is_whole
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
ODD_SCHEMA, ODD_TABLE, ODD_KEY = 'Odd "schema" ß', "Tisch.größe 😀 'x'", 'Schlüssel "k".1'
ODD = '"Odd ""schema"" ß"."Tisch.größe 😀 \'x\'"'
KEYED: dict[str, tuple[str, Sequence[str]]] = {
    "public.empty": ("empty", ["id"]),
    f"{ODD_SCHEMA}.{ODD_TABLE}": (ODD, [ODD_KEY]),
    "public.sales": ("sales", ["region", "id"]),
    "public.parent": ("ONLY parent", ["id"]),
    "public.child": ("child", ["id"]),
    "public.computed": ("(SELECT id, v FROM computed)", ["id"]),
    "public.moved": ("moved", ["b", "a"]),
    "public.toasted": ("toasted", ["id"]),
    "public.text": ("text", ["id"]),
    "public.cleared": ("cleared", ["id"]),
    "public.cleared_too": ("cleared_too", ["id"]),
}
"""Table → what SELECT reads of it, and its key."""
SCHEMA = f"""
    CREATE TABLE empty (id int PRIMARY KEY);
    CREATE TABLE nothing ();
    ALTER TABLE nothing REPLICA IDENTITY FULL;
    INSERT INTO nothing DEFAULT VALUES;
    CREATE SCHEMA "Odd ""schema"" ß";
    CREATE TABLE {ODD} ("Schlüssel ""k"".1" text PRIMARY KEY, "a\\b{{}}😀" text, "SELECT" int);
    INSERT INTO {ODD} VALUES ('eins "1"\t\n', 'ä\\n😀', 1), ('', NULL, NULL);
    CREATE TABLE sales (region text, id int, v int, PRIMARY KEY (region, id))
        PARTITION BY LIST (region);
    CREATE TABLE sales_north PARTITION OF sales FOR VALUES IN ('n');
    CREATE TABLE sales_south (v int, id int, region text, PRIMARY KEY (region, id));
    ALTER TABLE sales ATTACH PARTITION sales_south FOR VALUES IN ('s');
    INSERT INTO sales VALUES ('n', 1, 1), ('s', 1, 2);
    CREATE TABLE parent (id int PRIMARY KEY, v int);
    CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
    INSERT INTO parent VALUES (1, 1);
    INSERT INTO child VALUES (2, 2);
    CREATE TABLE computed (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
    INSERT INTO computed VALUES (1, 1);
    CREATE TABLE moved (a int, b text, v int, PRIMARY KEY (b, a));
    INSERT INTO moved SELECT i, 'b' || i, i FROM generate_series(1, 5) i;
    CREATE TABLE toasted (id int PRIMARY KEY, big text, n int);
    ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
    INSERT INTO toasted VALUES (1, repeat('t', 100000), 0);
    CREATE TABLE text (id int PRIMARY KEY, v text);
    CREATE TABLE cleared (id int PRIMARY KEY);
    CREATE TABLE cleared_too (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES cleared);
    INSERT INTO cleared VALUES (1), (2);
    INSERT INTO cleared_too VALUES (1);
    CREATE TABLE loose (v int);
    ALTER TABLE loose REPLICA IDENTITY FULL;
    INSERT INTO loose VALUES (1), (1), (NULL);
"""
CHANGES = f"""
    INSERT INTO nothing DEFAULT VALUES;
    INSERT INTO {ODD} VALUES ('zwei', '\\', 2);
    UPDATE {ODD} SET "SELECT" = 3 WHERE "Schlüssel ""k"".1" = '';
    DELETE FROM {ODD} WHERE "SELECT" = 1;
    INSERT INTO sales VALUES ('n', 2, 3), ('s', 2, 4);
    UPDATE sales SET region = 's' WHERE region = 'n' AND id = 2 AND false;
    UPDATE sales SET v = 9 WHERE region = 's' AND id = 1;
    UPDATE sales SET region = 's', id = 7 WHERE region = 'n' AND id = 1;
    UPDATE parent SET v = v + 1;
    INSERT INTO child VALUES (3, 3);
    UPDATE computed SET v = 5;
    UPDATE moved SET a = 10 WHERE a = 1;
    UPDATE moved SET a = a + 100, b = b || 'x' WHERE a = 2;
    DELETE FROM moved WHERE a = 3;
    UPDATE toasted SET n = 1;
    TRUNCATE cleared, cleared_too;
    INSERT INTO cleared VALUES (3);
    DELETE FROM loose WHERE v = 1;
    INSERT INTO loose VALUES (4);
    BEGIN; INSERT INTO empty VALUES (1); DELETE FROM moved; TRUNCATE cleared_too; ROLLBACK;
    BEGIN; INSERT INTO empty VALUES (2); SAVEPOINT s; INSERT INTO empty VALUES (3);
    ROLLBACK TO s; INSERT INTO empty VALUES (4); COMMIT;
"""


def unicode_text(characters: int) -> str:
    """Random text of every plane, without NUL (which PostgreSQL refuses) and surrogates."""
    choose = random.Random(7)  # noqa: S311 (repeatable is what it has to be)
    ranges = [(1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return "".join(chr(choose.randint(*choose.choice(ranges))) for _ in range(characters))


def source_rows(
    connection: psycopg.Connection, relation: str, key: Sequence[str]
) -> dict[str, dict[str, object]]:
    """Key as the log's JSON text → row."""
    rows = connection.execute(f"SELECT row_to_json(t) FROM {relation} t".encode()).fetchall()
    return {
        json.dumps(
            {name: row[name] for name in key}, separators=(",", ":"), ensure_ascii=False
        ): row
        for (row,) in rows
    }


def of_table(records: list[LogRecord], prefix: str, table: str) -> list[LogRecord]:
    schema, _, name = table.partition(".") if table.startswith("public.") else ("", "", "")
    named = TableName(schema, name) if schema else TableName(ODD_SCHEMA, ODD_TABLE)
    return [record for record in records if record.topic == data_topic(prefix, named)]


def ops(records: Sequence[LogRecord]) -> Counter[str]:
    return Counter(record.op for record in records)


def test_unusual_tables_are_captured_right_by_snapshot_and_stream(
    pipeline: MakePipeline, database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
        connection.execute("INSERT INTO text VALUES (1, %s)", [unicode_text(100_000)])
        daemon = made.start()
        daemon.wait_until(lambda: (p := made.progress()) is not None and p.phase == "streaming")
        for statement in CHANGES.split(";"):
            connection.execute(statement.encode())
        connection.execute("INSERT INTO text VALUES (2, %s)", [unicode_text(100_000)])
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        records = made.log()
        assert_log_is_whole([record for record in records if record.key != TRUNCATE_KEY.decode()])
        assert_in_commit_order(records)
        for table, (relation, key) in KEYED.items():
            found = state_of(of_table(records, topic_prefix, table))
            assert found == source_rows(connection, relation, key), table
    assert_each_table_has_its_own_traits(records, topic_prefix)


def assert_each_table_has_its_own_traits(records: list[LogRecord], prefix: str) -> None:
    def table(name: str) -> list[LogRecord]:
        return of_table(records, prefix, f"public.{name}")

    assert not table("sales_north"), "partitions go to their root's topic"
    assert ops(table("nothing")) == {"r": 1, "c": 1}
    assert [r.value and r.value["after"] for r in table("nothing")] == [{}, {}]
    loose = table("loose")
    assert {record.key for record in loose} == {None}
    assert ops(loose) == {"r": 3, "d": 2, "c": 1}
    for name in ("cleared", "cleared_too"):
        truncates = [record for record in table(name) if record.op == "t"]
        assert {record.key for record in truncates} == {TRUNCATE_KEY.decode()}
        assert {record.partition for record in truncates} == {0, 1, 2}
    (update,) = (record for record in table("toasted") if record.op == "u")
    assert update.value is not None
    assert update.value["after"]["big"], "an unchanged TOAST value is read again"
    assert update.filled
    assert ops(table("moved")) == {"r": 5, "d": 3, "tombstone": 3, "c": 2}


@pytest.mark.proof
def test_an_oversized_record_sets_its_table_aside_until_the_limit_is_raised(
    pipeline: MakePipeline, database: dict[str, str], topic_prefix: str
) -> None:
    made = pipeline(**{"max.batch.size": 1})
    topic = f"{topic_prefix}.public.text"
    keep = str(7 * 86_400_000)
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": keep,
        "delete.retention.ms": keep,
        "max.message.bytes": "20000",
    }
    made_topics = LogAdmin(made.settings.kafka).create([NewTopic(topic, 3, 1, config=config)])
    assert made_topics == {}
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE text (id int PRIMARY KEY, v text)")
        daemon = made.start()
        daemon.wait_until(lambda: (p := made.progress()) is not None and p.phase == "streaming")
        insert = "INSERT INTO text VALUES (%s, %s)"
        for number, characters in enumerate((10, 10, 60_000, 10)):
            connection.execute(insert, [number, unicode_text(characters)])
        daemon.wait_until(lambda: any(table.is_set_aside for table in made.tables()))
        assert daemon.command.log_end().count("a table is set aside") == 1
        for word in (topic, "max.message.bytes", "oversized.record", "too large"):
            assert word in daemon.command.log_end()
        assert ops(made.log()) == {"c": 2}
        assert made.stop(daemon) == 0
        raise_limit(AdminClient({**made.settings.kafka}), topic)
        connection.execute("UPDATE text SET v = repeat(md5(id::text), 650000) WHERE id = 1")
        daemon = made.start()
        daemon.wait_until(
            lambda: all(not (table.doubt or table.requests) for table in made.tables())
        )
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        records = made.log()
        found = state_of(records)
        assert found == source_rows(connection, "text", ["id"])
    assert len(found['{"id":1}']["v"]) == 20_800_000


def raise_limit(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry(
        "max.message.bytes",
        "33554432",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
