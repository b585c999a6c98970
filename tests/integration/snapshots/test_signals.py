"""Signals in a table: snapshots while streaming, under fire, killed, stopped, and refused."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from cdc.records.position import Position
from cdc.records.state import SnapshotRequest, TableState
from deploy.local.processes import Process
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]

SIGNALS = {
    "snapshot.mode": "no_data",
    "signal.data.collection": "public.dbz_signal",
    "incremental.snapshot.chunk.size": 50,
    "table.include.list": "public.item,public.pair",
    "slot.retry.delay.ms": 500,
    "slot.max.retries": 60,
}
IN_TABLE = {"incremental.snapshot.watermarking.strategy": "insert_insert"}
SCHEMA = """
    CREATE TABLE dbz_signal (id varchar(64) PRIMARY KEY, type varchar(32), data varchar(2048));
    CREATE TABLE item (id int PRIMARY KEY, v text);
    CREATE TABLE pair (a int, b text, v text, PRIMARY KEY (a, b));
    INSERT INTO item SELECT i, 'item ' || i FROM generate_series(1, 1000) i;
    INSERT INTO pair SELECT i / 3, 'b' || i, 'pair ' || i FROM generate_series(1, 300) i
"""


@pytest.fixture
def source(database: Conninfo) -> Conninfo:
    """A database with a signal table and two others."""
    run(database, *SCHEMA.split(";"))
    return database


def send(source: Conninfo, kind: str, data: str) -> None:
    """Send a signal."""
    signal = f"sig-{time.monotonic_ns()}"
    with psycopg.connect(make_conninfo(**source)) as connection:
        connection.execute("INSERT INTO dbz_signal VALUES (%s, %s, %s)", [signal, kind, data])


def execute(source: Conninfo, collections: str, more: str = "") -> None:
    """Ask for a snapshot; ``collections`` as in JSON, without its brackets."""
    send(source, "execute-snapshot", f'{{"data-collections": [{collections}]{more}}}')


def begin(made: RunningPipeline, environment: dict[str, str] | None = None) -> Process:
    """Start the daemon and wait until it streams."""
    daemon = made.start(environment)
    made.wait_until_logged(made.wal_end(), daemon)
    return daemon


def requests(made: RunningPipeline) -> list[SnapshotRequest]:
    """What is still to be read."""
    return [request for state in made.tables() for request in state.requests]


def wait_until_read(made: RunningPipeline, daemon: Process) -> None:
    """Wait until the log has all, and nothing is left to be read."""
    deadline = time.monotonic() + 120
    made.wait_until_logged(made.wal_end(), daemon)
    while requests(made):
        assert daemon.running, daemon.command.log_end()
        assert time.monotonic() < deadline, requests(made)
        time.sleep(0.1)
    made.wait_until_logged(made.wal_end(), daemon)


def of(made: RunningPipeline, table: str) -> list[LogRecord]:
    """A table's records."""
    return [record for record in made.log() if record.topic.endswith(f".public.{table}")]


def rows(source: Conninfo, table: str) -> list[tuple[Any, ...]]:
    """What the source has."""
    with psycopg.connect(make_conninfo(**source)) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def logged(records: list[LogRecord]) -> list[tuple[Any, ...]]:
    """What the log adds up to, by position."""
    return sorted(tuple(row.values()) for row in state_of(records).values())


def logged_in_order(records: list[LogRecord]) -> list[tuple[Any, ...]]:
    """What compaction leaves: each key's last record."""
    last = {
        record.key: record.value for record in sorted(records, key=lambda record: record.offset)
    }
    return sorted(
        tuple(value["after"].values()) for value in last.values() if value and value["after"]
    )


def change(source: Conninfo, seconds: float) -> None:
    """Update, delete, insert, and move rows to other keys for a while."""
    choose = random.Random(7)  # noqa: S311 (repeatable is what it has to be)
    end, fresh = time.monotonic() + seconds, 10_000
    with psycopg.connect(make_conninfo(**source), autocommit=True) as connection:
        while time.monotonic() < end:
            fresh += 1
            one = choose.randint(1, 1000)
            statements = (
                f"UPDATE item SET v = 'changed {fresh}' WHERE id = {one}",
                f"DELETE FROM item WHERE id = {one}",
                f"INSERT INTO item VALUES ({fresh}, 'new')",
                f"UPDATE item SET id = {fresh} WHERE id = {one}",
                f"UPDATE pair SET v = 'changed {fresh}' WHERE a = {one % 100}",
                f"UPDATE pair SET b = 'c{fresh}' WHERE a = {one % 100} AND b = 'b{one}'",
            )
            connection.execute(choose.choice(statements).encode())


@pytest.mark.parametrize(
    "strategy",
    [
        "message",
        pytest.param("read_only", marks=pytest.mark.proof),
        pytest.param("insert_insert", marks=pytest.mark.proof),
        pytest.param("insert_delete", marks=pytest.mark.proof),
    ],
)
def test_what_changes_meanwhile_isnt_overwritten(
    pipeline: MakePipeline, source: Conninfo, strategy: str
) -> None:
    made = pipeline(**SIGNALS, **{"incremental.snapshot.watermarking.strategy": strategy})
    daemon = begin(made)
    execute(source, '"public.(item|pair)"')
    change(source, 1.5)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    for table in ("item", "pair"):
        records = of(made, table)
        assert logged(records) == logged_in_order(records) == rows(source, table)
        read = [record for record in records if record.op == "r"]
        assert {(record.value or {})["source"]["snapshot"] for record in read} == {"incremental"}


def test_chunk_rows_have_the_position_of_their_high_watermark(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**SIGNALS, **IN_TABLE)
    daemon = begin(made)
    execute(source, '"public.item"')
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    closed: list[Position] = [
        one.position for one in of(made, "dbz_signal") if (one.key or "").endswith('-close"}')
    ]
    read = of(made, "item")
    assert len(read) == 1000
    assert {record.position for record in read} <= set(closed)


@pytest.mark.proof
def test_a_killed_daemon_goes_on_behind_the_last_chunk(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**{**SIGNALS, "incremental.snapshot.chunk.size": 5})
    daemon = begin(made)
    assert made.stop(daemon) == 0
    daemon = made.start({VARIABLE: f"{FaultPoint.BATCH_WRITTEN}:12"})
    execute(source, '"public.item"')
    assert daemon.wait(60) != 0
    (state,) = [state for state in made.tables() if state.requests]
    (request,) = state.requests
    assert 0 < request.rows == len(of(made, "item")) < 1000
    daemon = made.start()
    change(source, 1)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    records = of(made, "item")
    assert logged(records) == rows(source, "item")
    changed = {record.key for record in records if record.op != "r"}
    read = [record.key for record in records if record.op == "r" and record.key not in changed]
    assert len(read) == len(set(read)) > 0


def test_conditions_choose_rows(pipeline: MakePipeline, source: Conninfo) -> None:
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    condition = '{"data-collection": "public.item", "filter": "id > 990 -- the newest"}'
    more = f', "surrogate-key": "id", "additional-conditions": [{condition}]'
    execute(source, '"public.item"', more)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert len(of(made, "item")) == 10


def test_signals_that_cant_be_followed_stop_nothing(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    condition = '{"data-collection": "public.item", "filter": "%s"}'
    send(source, "execute-snapshot", "{")
    send(source, "no-such-signal", "{}")
    execute(source, '"public.unknown", "("')
    for text in ("no_such_column = 1", "id >", "true)) TO STDOUT; COMMIT; DELETE FROM item; --"):
        execute(source, '"public.item"', f', "additional-conditions": [{condition % text}]')
        execute(
            source,
            '"public.item"',
            f', "type": "blocking", "additional-conditions": [{condition % text}]',
        )
    execute(source, '"public.unknown", "public.pair"')
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert [len(of(made, table)) for table in ("item", "pair")] == [0, 300]
    assert len(rows(source, "item")) == 1000


@pytest.mark.proof
def test_a_refused_watermark_gives_the_snapshot_up(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**SIGNALS, **IN_TABLE)
    daemon = begin(made)
    check = "ALTER TABLE dbz_signal ADD CHECK (type NOT LIKE 'snapshot-window%')"
    run(source, check)
    execute(source, '"public.item"')
    wait_until_read(made, daemon)
    run(source, "INSERT INTO item VALUES (0, 'streamed')")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert [one.op for one in of(made, "item")] == ["c"]
    assert daemon.command.log.read_text().count("is abandoned") == 1


@pytest.mark.proof
def test_rows_that_cant_be_read_give_the_snapshot_up_once(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    """Though several chunks come to nothing together."""
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    which = {"data-collection": "public.item", "filter": "1 / greatest(500 - id, 0) >= 0"}
    execute(source, '"public.item"', f', "additional-conditions": [{json.dumps(which)}]')
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert daemon.command.log.read_text().count("is abandoned") == 1


@pytest.mark.proof
def test_a_watermark_that_the_publication_leaves_out_gives_the_snapshot_up(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    kept = "dbz_signal WHERE (id NOT LIKE '%-close')"
    run(source, f"CREATE PUBLICATION own FOR TABLE item, pair, {kept}")
    own = {"publication.name": "own", "publication.autocreate.mode": "disabled"}
    made = pipeline(**SIGNALS, **IN_TABLE, **own)
    daemon = begin(made)
    execute(source, '"public.item"')
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert "a watermark didn't come" in daemon.command.log.read_text()


def test_snapshots_are_paused_resumed_and_stopped(pipeline: MakePipeline, source: Conninfo) -> None:
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    with psycopg.connect(make_conninfo(**source)) as connection:
        data = '{"data-collections": ["public.item", "public.pair"]}'
        insert = "INSERT INTO dbz_signal VALUES (%s, %s, %s)"
        connection.execute(insert, ["1", "execute-snapshot", data])
        connection.execute(insert, ["2", "pause-snapshot", None])
    made.wait_until_logged(made.wal_end(), daemon)
    time.sleep(0.5)  # what isn't paused would go on
    assert [request.paused for request in requests(made)] == [True, True]
    send(source, "stop-snapshot", '{"data-collections": ["public.item"]}')
    send(source, "resume-snapshot", "")
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert len(of(made, "item")) in {0, 50}  # the chunk that was under way
    assert len(of(made, "pair")) == 300


def test_a_blocking_snapshot_reads_while_the_stream_waits(
    pipeline: MakePipeline, source: Conninfo
) -> None:
    made = pipeline(**SIGNALS)
    daemon = begin(made)
    condition = '{"data-collection": "public.pair", "filter": "SELECT * FROM public.pair LIMIT 7"}'
    execute(
        source,
        '"public.item", "public.pair"',
        f', "type": "blocking", "additional-conditions": [{condition}]',
    )
    change(source, 1)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    records = of(made, "item")
    assert logged(records) == logged_in_order(records) == rows(source, "item")
    assert len([one for one in of(made, "pair") if one.op == "r"]) == 7


def test_state_records_of_older_daemons_ask_for_nothing() -> None:
    text = (
        '{"format":1,"namespace":"public","table":"t","topic":"t","partitions":1,'
        '"cleanup":"compact","epoch":1,"phase":"streaming","snapshot_lsn":"0/1"}'
    )
    assert TableState.model_validate_json(text).requests == ()
