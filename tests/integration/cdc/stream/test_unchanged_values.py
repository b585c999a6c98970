"""Updates that leave large values unchanged → a compacted topic with only complete records."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deploy.local.processes import Process
from tests.faults.test_killed_daemon import assert_log_is_whole
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
ROWS, BYTES = 20, 9_000
COLUMNS = {"doc": {"id", "n", "big", "data"}, "part": {"region", "id", "n", "big"}}
SCHEMA = """
    CREATE TABLE doc (id int PRIMARY KEY, n int, big text, data bytea);
    ALTER TABLE doc ALTER big SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL;
    CREATE TABLE part (region text, id numeric, n int, big text, PRIMARY KEY (region, id))
        PARTITION BY LIST (region);
    CREATE TABLE part_n PARTITION OF part FOR VALUES IN ('n');
    CREATE TABLE part_s (big text, id numeric, n int, region text, PRIMARY KEY (region, id));
    ALTER TABLE part ATTACH PARTITION part_s FOR VALUES IN ('s');
    ALTER TABLE part_n ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE part_s ALTER big SET STORAGE EXTERNAL;
"""
FILL = f"""
    INSERT INTO doc SELECT i, 0, rpad(i::text, {BYTES}, 'a'), rpad(i::text, {BYTES}, 'b')::bytea
        FROM generate_series(0, {ROWS}) i;
    INSERT INTO part SELECT (ARRAY['n', 's'])[i % 2 + 1], i, 0, rpad(i::text, {BYTES}, 'a')
        FROM generate_series(0, {ROWS}) i
"""
STEPS = (
    "UPDATE {table} SET n = n + 1 WHERE id = {row}",
    "UPDATE {table} SET n = n + 1",
    "UPDATE {table} SET big = {text} WHERE id = {row}",
    "UPDATE {table} SET id = {other} WHERE id = {row} AND {other} NOT IN (SELECT id FROM {table})",
    "UPDATE {table} SET n = 0 WHERE id = {row}; DELETE FROM {table} WHERE id = {row}",
    "INSERT INTO doc (id, n, big) VALUES ({row}, 1, {text}) ON CONFLICT DO NOTHING",
    "INSERT INTO part VALUES ('n', {row}, 1, {text}) ON CONFLICT DO NOTHING",
    (
        "UPDATE part p SET region = 's' WHERE region = 'n' AND id = {row}"
        " AND NOT EXISTS (SELECT FROM part o WHERE o.region = 's' AND o.id = p.id)"
    ),
    "UPDATE doc SET data = NULL WHERE id = {row}",
)


def live(connection: psycopg.Connection, seed: int, transactions: int) -> None:
    """Updates of other columns, new values, moved keys, and deletes right after."""
    chosen = random.Random(seed)  # noqa: S311 (repeatable, not secret)
    for _ in range(transactions):
        with connection.transaction():
            for _ in range(chosen.randint(1, 4)):
                statement = chosen.choice(STEPS).format(
                    table=chosen.choice(list(COLUMNS)),
                    row=chosen.randrange(ROWS),
                    other=chosen.randrange(10 * ROWS),
                    text=f"rpad('{chosen.random()}', {BYTES}, 'x')",
                )
                connection.execute(statement.encode())


def streaming(made: RunningPipeline) -> Process:
    daemon = made.start()
    daemon.wait_until(lambda: (p := made.progress()) is not None and p.phase == "streaming")
    return daemon


def of_table(records: Iterable[LogRecord], table: str) -> list[LogRecord]:
    return [record for record in records if record.topic.endswith(f".{table}")]


def compacted(records: Iterable[LogRecord]) -> list[LogRecord]:
    """What compaction leaves: the last record of each key."""
    return list({(record.topic, record.key): record for record in records}.values())


def applied(records: Iterable[LogRecord]) -> list[dict[str, Any]]:
    """The rows as a sink has them that keeps its own values where a record's are filled."""
    rows: dict[str | None, dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: (record.position, record.offset)):
        if record.op in {"d", "tombstone"}:
            rows.pop(record.key, None)
        elif record.value is not None:
            known = rows.get(record.key, {}) if record.op == "u" else {}
            own = {name: known[name] for name in filled(record) if name in known}
            rows[record.key] = known | record.value["after"] | own
    return sorted(rows.values(), key=by_key)


def filled(record: LogRecord) -> list[str]:
    names = {"doc": ["id", "n", "big", "data"], "part": ["region", "id", "n", "big"]}
    return [names[record.topic.rpartition(".")[2]][index] for index in record.filled]


def source_rows(connection: psycopg.Connection, table: str) -> list[dict[str, Any]]:
    """The rows as ``after`` has them."""
    changed = "jsonb_build_object('data', replace(encode(data, 'base64'), chr(10), ''))"
    changed = changed if table == "doc" else "jsonb_build_object('id', id::text)"
    rows = connection.execute(f"SELECT to_jsonb(t) || {changed} FROM {table} t".encode())
    return sorted((dict(row) for (row,) in rows.fetchall()), key=by_key)


def by_key(row: dict[str, Any]) -> str:
    return json.dumps([row.get("region"), row["id"]])


def assert_complete(records: Sequence[LogRecord]) -> None:
    """Every record has every column, or its row is deleted by a later one."""
    gone: set[tuple[str, str | None]] = set()
    for record in sorted(records, key=lambda r: (r.position, r.offset), reverse=True):
        if record.op in {"d", "tombstone"}:
            gone.add((record.topic, record.key))
        elif record.value is not None:
            lacking = COLUMNS[record.topic.rpartition(".")[2]] - record.value["after"].keys()
            assert not lacking or (record.topic, record.key) in gone, record.position


def assert_numbered(records: list[LogRecord]) -> None:
    """A transaction's events count from 1, in the order of their positions."""
    orders: dict[str, list[int]] = {}
    for record in sorted(records, key=lambda r: (r.position, r.op != "d")):
        if record.value is not None and (block := record.value["transaction"]):
            orders.setdefault(block["id"], []).append(block["total_order"])
    assert orders
    assert all(order == list(range(1, len(order) + 1)) for order in orders.values())


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, marks=pytest.mark.proof), {"provide.transaction.metadata": "true"}],
)
def test_a_compacted_log_has_every_value_of_every_row(
    pipeline: MakePipeline, database: dict[str, str], more: dict[str, str]
) -> None:
    made = pipeline(**more)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(FILL.encode())
        daemon = streaming(made)
        live(connection, 1, 40)
        assert made.stop(daemon) == 0
        live(connection, 2, 80)  # so that the next start has full batches, and rows that are gone
        daemon = streaming(made)
        live(connection, 3, 40)
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        records = made.log()
        assert_log_is_whole(records)
        assert_complete(records)
        assert sum(bool(record.filled) for record in records) > 500
        if more:
            assert_numbered(records)
        for table in COLUMNS:
            expected, log = source_rows(connection, table), of_table(records, table)
            assert applied(log) == expected
            assert sorted(state_of(compacted(log)).values(), key=by_key) == expected
