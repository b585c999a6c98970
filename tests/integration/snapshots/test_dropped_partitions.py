"""Dropped partitions, and their rows without an event: partition.drop.policy = "delete".

The sum of the log is compared with the source's own SELECT. An event trigger reports DDL, so no
test waits for the next catalog check, except while the daemon is down.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.records.bounds import ENDED_KEY, Bound, EndedRows, RangeEdge
from cdc.records.state import TableState
from deploy.local.processes import Process
from tests.fixtures.ended_rows import between
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
DELETE: Final = {"partition.drop.policy": "delete"}
NUMBERS: Final = (
    "CREATE TABLE numbers (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE n0 PARTITION OF numbers FOR VALUES FROM (MINVALUE) TO (10)",
    "CREATE TABLE n1 PARTITION OF numbers FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE n2 PARTITION OF numbers FOR VALUES FROM (20) TO (30)",
    "INSERT INTO numbers SELECT i, 'v' FROM generate_series(1, 29) i",
)


def begun(made: RunningPipeline, database: Conninfo, *, has_levels: bool = True) -> Process:
    """A daemon that is told of DDL, and knows the bounds of all partitions if it wants to."""
    words = (sys.executable, "-m", "millrace", "ddl-trigger", "--print")
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    daemon = made.catch_up()
    run(database, printed)
    if has_levels:
        wait_for(lambda: all(each.levels for state in made.tables() for each in leaves(state)))
    return daemon


def leaves(state: TableState) -> Iterable[Any]:
    return state.fingerprint.leaves if state.fingerprint else ()


def ends(records: Iterable[LogRecord]) -> list[EndedRows]:
    """What events say has ended, once each; each reaches every partition of its topic."""
    ended = [record for record in records if record.op == "p" and record.value]
    assert sorted(record.partition for record in ended) == sorted([0, 1, 2] * (len(ended) // 3))
    said = {}
    for record in ended:
        assert record.value is not None
        assert (record.value["before"], record.value["after"]) == (None, None)
        rows = EndedRows.model_validate(record.value["ended"])
        assert rows.upto <= record.position
        assert json.loads(record.key or "") == {
            ENDED_KEY: [bound.model_dump(mode="json") for bound in rows.bounds]
        }
        said[record.key, record.position] = rows
    return list(said.values())


def is_within(row: dict[str, Any], bound: Bound) -> bool:
    values = tuple(row[column] for column in bound.columns)
    if bound.values is not None:
        return values[0] in bound.values

    def at(edges: tuple[RangeEdge, ...]) -> list[tuple[int, Any]]:
        return [({"min": 0, "value": 1, "max": 2}[kind], value) for kind, value in edges]

    place = [(1, value) for value in values]
    return at(bound.lower) <= place < at(bound.upper)


def by_text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def log_rows(records: list[LogRecord], table: str) -> list[dict[str, Any]]:
    """The rows that the table's log adds up to."""
    of_table = [record for record in records if record.topic.endswith(f".public.{table}")]
    rows = [record for record in of_table if record.op != "p"]
    for ended in ends(of_table):
        gone = {
            record.key
            for record in rows
            if record.key and ENDED_KEY not in record.key and "__millrace" not in record.key
            if all(is_within(json.loads(record.key), bound) for bound in ended.bounds)
        }
        rows = [record for record in rows if record.key not in gone or record.position > ended.upto]
    return sorted(state_of(rows).values(), key=by_text)


def source_rows(database: Conninfo, table: str) -> list[dict[str, Any]]:
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = connection.execute(f"SELECT to_jsonb(t) FROM {table} t".encode()).fetchall()
    return sorted((row for (row,) in rows), key=by_text)


def differing(made: RunningPipeline, database: Conninfo, tables: Iterable[str]) -> list[Any]:
    records = made.log()
    pairs = [(table, log_rows(records, table), source_rows(database, table)) for table in tables]
    return [pair for pair in pairs if pair[1] != pair[2]]


def state(made: RunningPipeline, table: str) -> TableState:
    return next(each for each in made.tables() if each.table == table)


def is_settled(each: TableState) -> bool:
    return not each.ended and each.doubt is None and not each.requests


def reads(records: Iterable[LogRecord]) -> int:
    return sum(record.op == "r" for record in records)


def test_the_rows_of_dropped_partitions_end_by_an_event_each(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """Of whole trees by one, of lists with NULL; columns are in another order in the partitions."""
    run(
        database,
        *NUMBERS,
        "CREATE TABLE trees (day date, id int, kind text, PRIMARY KEY (id, kind, day))"
        " PARTITION BY RANGE (day)",
        "CREATE TABLE t1 (kind text NOT NULL, id int NOT NULL, day date NOT NULL)"
        " PARTITION BY LIST (kind)",
        "ALTER TABLE trees ATTACH PARTITION t1 FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
        "CREATE TABLE t1a PARTITION OF t1 FOR VALUES IN ('a', NULL)",
        "CREATE TABLE t1b PARTITION OF t1 FOR VALUES IN ('b', 'it''s')",
        "CREATE TABLE t2 PARTITION OF trees FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')"
        " PARTITION BY HASH (id)",
        "CREATE TABLE t2a PARTITION OF t2 FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE t2b PARTITION OF t2 FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO trees SELECT day, id, kind FROM generate_series(1, 4) id,"
        " unnest('{2024-01-31,2024-02-01}'::date[]) day, unnest('{a,b,it''s}'::text[]) kind"
        " WHERE kind <> 'it''s' OR id > 2",
    )
    made = pipeline(**DELETE, **{"table.include.list": "public.numbers, public.trees"})
    daemon = begun(made, database)
    assert differing(made, database, ["numbers"]) == []
    before = reads(made.log())
    run(
        database,
        "DROP TABLE n0",
        "ALTER TABLE numbers DETACH PARTITION n2",
        "BEGIN; CREATE TABLE n3 PARTITION OF numbers FOR VALUES FROM (30) TO (40);"
        " INSERT INTO numbers VALUES (30, 'new'); COMMIT",
        "DROP TABLE t1a, t2",
    )
    wait_for(lambda: all(map(is_settled, made.tables())) and len(ends(made.log())) == 4)
    records = made.log()
    day = between("day", [19_723], [19_754])
    assert sorted((rows.bounds for rows in ends(records)), key=str) == sorted(
        [
            (between("id", ["min"], [10]),),
            (between("id", [20], [30]),),
            (day, Bound(columns=("kind",), values=("a", None))),
            (between("day", [19_754], [19_783]),),
        ],
        key=str,
    )
    assert differing(made, database, ["numbers"]) == []
    assert len(log_rows(records, "trees")) == len(source_rows(database, "trees")) == 6
    assert reads(records) == before + 1, "only that of the new partition"
    assert [each.gone_partitions for each in made.tables()] == [0, 0]
    run(
        database,
        "CREATE TABLE n2b PARTITION OF numbers FOR VALUES FROM (20) TO (30)",
        "INSERT INTO numbers VALUES (22, 'again')",
    )
    wait_for(lambda: len(list(leaves(state(made, "numbers")))) == 3)
    wait_for(lambda: is_settled(state(made, "numbers")))
    assert differing(made, database, ["numbers"]) == []
    assert not any(record.op == "t" for record in made.log()), "nothing was read in its place"
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_drop_is_found_by_the_next_start_and_ends_what_was_written_before(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """Rows that a start has still to stream come before the event; one killed is gone on with."""
    run(database, *NUMBERS)
    made = pipeline(**DELETE)
    daemon = begun(made, database)
    assert made.stop(daemon) == 0
    run(database, "INSERT INTO numbers VALUES (0, 'late')", "DROP TABLE n0")
    with psycopg.connect(make_conninfo(**database)) as writer:
        writer.execute("UPDATE numbers SET v = 'open' WHERE id = 15")
        daemon = made.start()
        wait_for(lambda: state(made, "numbers").ended)
        (shown,) = made.status()["tables"]
        assert (shown["ended_partitions"], shown["gone_partitions"]) == (1, 0)
        daemon.kill()
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        time.sleep(1.5)
        assert ends(made.log()) == [], "not before those have ended who may have written into it"
    wait_for(lambda: is_settled(state(made, "numbers")))
    assert [rows.bounds for rows in ends(made.log())] == [(between("id", ["min"], [10]),)]
    assert differing(made, database, ["numbers"]) == []
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_writer_may_still_be_in_a_partition_that_is_detached_concurrently(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """Its rows come into the log behind the moment from which on the partition is none.

    Nobody else writes, and no heartbeat does: what the stream waits for comes from us.
    """
    run(database, *NUMBERS)
    made = pipeline(**DELETE, **{"heartbeat.source.interval.ms": 0})
    daemon = begun(made, database)
    with psycopg.connect(make_conninfo(**database)) as writer:
        writer.execute("UPDATE numbers SET v = 'while it is detached' WHERE id = 15")
        detach = "ALTER TABLE numbers DETACH PARTITION n1 CONCURRENTLY"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(database, "SET lock_timeout = '300ms'", detach)
        wait_for(lambda: state(made, "numbers").ended)
    wait_for(lambda: is_settled(state(made, "numbers")))
    records = made.log()
    assert [record.op for record in records if record.key == '{"id":15}'] == ["r", "u"]
    assert [rows.bounds for rows in ends(records)] == [(between("id", [10], [20]),)]
    assert differing(made, database, ["numbers"]) == []
    run(database, "ALTER TABLE numbers DETACH PARTITION n1 FINALIZE")
    assert made.stop(daemon) == 0


def test_no_row_ends_that_the_source_has_or_that_bounds_cant_tell(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    """New rows within the bounds, in another partition or the default one; hashes, text."""
    run(
        database,
        *NUMBERS,
        "CREATE TABLE again (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE a1 PARTITION OF again FOR VALUES FROM (0) TO (10)",
        "INSERT INTO again VALUES (1, 'old'), (2, 'old')",
        "CREATE TABLE texts (id text PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE x1 PARTITION OF texts FOR VALUES FROM ('a') TO ('b')",
        "CREATE TABLE hashes (id int PRIMARY KEY) PARTITION BY HASH (id)",
        "CREATE TABLE h1 PARTITION OF hashes FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "INSERT INTO texts VALUES ('a')",
        "INSERT INTO hashes VALUES (1)",
        "CREATE TABLE others PARTITION OF numbers DEFAULT",
    )
    made = pipeline(**DELETE)
    daemon = begun(made, database)
    run(
        database,
        "DROP TABLE n0, x1, h1, a1",
        "INSERT INTO numbers VALUES (5, 'in the default partition')",
        "CREATE TABLE a2 PARTITION OF again FOR VALUES FROM (0) TO (10)",
        "INSERT INTO again VALUES (2, 'new')",
    )
    unsaid = ("hashes", "numbers", "texts")
    wait_for(lambda: all(state(made, table).gone_partitions for table in unsaid))
    wait_for(lambda: all(map(is_settled, made.tables())))
    assert differing(made, database, ["again"]) == []
    again = (between("id", [0], [10]),)
    assert [rows.bounds for rows in ends(made.log())] == [again], "one was exchanged for another"
    run(database, "DROP TABLE n1")
    wait_for(lambda: len(ends(made.log())) == 2)
    assert [rows.bounds for rows in ends(made.log())] == [again, (between("id", [10], [20]),)]
    assert state(made, "numbers").gone_partitions == 1
    assert made.millrace("snapshot", "--reset", "public.numbers").returncode == 0
    wait_for(lambda: differing(made, database, ["numbers"]) == [])
    assert state(made, "numbers").gone_partitions == 0
    assert made.stop(daemon) == 0
