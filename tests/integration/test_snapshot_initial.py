"""The initial snapshot: exactly what was committed before its point, whatever happens meanwhile."""

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from cdc.backfill import SnapshotBatch
from cdc.errors import SourceUnreachableError, TableRefusedError
from cdc.events import TableEncoder
from cdc.postgres import slot
from cdc.postgres.catalog import TableDescription
from cdc.postgres.connection import query
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.settings import CaptureSettings
from snapshots.copytext import Row
from snapshots.initial import InitialSnapshot
from snapshots.reader import Limits
from tests.integration.source import Conninfo, capture, described, run, session

pytestmark = pytest.mark.postgres

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v text)",
    "INSERT INTO a SELECT i, repeat('a', 500) FROM generate_series(1, 1000) i",
    "CREATE TABLE b (id int PRIMARY KEY)",
    "INSERT INTO b SELECT generate_series(1, 100)",
    "CREATE TABLE c (id int PRIMARY KEY)",
)


class Keys:
    """Stands in for an encoder: a record's key is the row's first column."""

    def snapshot_row(self, row: Row, position: Position, lsn: Lsn, ts_us: int) -> Record:
        assert position == Position(3, lsn, 0)
        assert ts_us > 1_700_000_000_000_000
        return Record("topic", row[0], None, [])


def keys(_: TableDescription) -> TableEncoder:
    return cast("TableEncoder", Keys())


def tables(database: Conninfo) -> tuple[CaptureSettings, list[TableDescription]]:
    settings = capture(database)
    with session(database) as opened:
        return settings, described(opened, settings)


def reading(
    database: Conninfo, exported: slot.ExportedSnapshot, captured: list[TableDescription]
) -> Iterator[SnapshotBatch]:
    settings = capture(database, **{"snapshot.chunk.bytes": 20 * 8192})
    snapshot = InitialSnapshot(database, settings, limits=Limits(rows_max=150))
    return snapshot.read(exported, Position(3, exported.consistent_point, 0), captured, keys)


def test_it_reads_what_its_point_saw_while_the_tables_change(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        run(database, "INSERT INTO a VALUES (5000)", "DELETE FROM b", "INSERT INTO c VALUES (1)")
        batches = []
        for batch in reading(database, exported, captured):
            batches.append(batch)
            run(database, f"UPDATE a SET v = '{len(batches)}' WHERE id % 10 = 3")
    found: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for batch in batches:
        found[batch.table.name] += [int(record.key or b"") for record in batch.records]
        assert len(batch.records) <= 150
        assert len(found[batch.table.name]) == batch.rows
    assert {name: sorted(ids) for name, ids in found.items()} == {
        "a": list(range(1, 1001)),
        "b": list(range(1, 101)),
        "c": [],
    }
    assert [batch.table.name for batch in batches if batch.table_done] == ["a", "b", "c"]
    done = [batch.chunks_done for batch in batches if batch.table.name == "a"]
    assert done == sorted(done)
    assert done[-1] == batches[0].chunks_total > 2


def test_a_locked_table_is_named_and_tried_again_later(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshots.initial._LOCK_TIMEOUT", "100ms")
    run(database, *TABLES)
    settings, captured = tables(database)
    with session(database) as blocker, slot.exact_snapshot(database, settings.slot_name) as point:
        with blocker.transaction():
            blocker.execute("LOCK TABLE public.b IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SourceUnreachableError, match=r"public\.b can't be read") as caught:
                list(reading(database, point, captured))
        assert caught.value.retry
        assert sum(len(batch.records) for batch in reading(database, point, captured)) == 1_100


@pytest.mark.parametrize("statement", ["DROP TABLE b", "ALTER TABLE b RENAME TO d"])
def test_a_table_that_went_away_is_named(database: Conninfo, statement: str) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        run(database, statement)
        with pytest.raises(TableRefusedError, match=r"public\.b was dropped or renamed") as caught:
            list(reading(database, exported, captured))
    assert caught.value.retry


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE b ALTER id TYPE bigint", "TRUNCATE b", "VACUUM FULL b"]
)
def test_a_rewritten_table_is_never_taken_for_an_empty_one(
    database: Conninfo, statement: str
) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        run(database, statement)
        with pytest.raises(SourceUnreachableError, match="was rewritten") as caught:
            list(reading(database, exported, captured))
    assert caught.value.retry


def test_a_column_that_went_away_is_said(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    run(database, "ALTER TABLE a DROP COLUMN v")
    with (
        slot.exact_snapshot(database, settings.slot_name) as exported,
        pytest.raises(TableRefusedError, match="start again") as caught,
    ):
        list(reading(database, exported, captured))
    assert caught.value.retry


def test_an_exported_snapshot_that_is_gone_is_said(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        pass
    with pytest.raises(SourceUnreachableError, match="snapshot is gone"):
        list(reading(database, exported, captured))


def test_leaving_early_leaves_no_session_and_no_lock(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        batches = reading(database, exported, captured)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        with session(database) as opened:
            for _ in range(50):
                left = query(
                    opened,
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND application_name = 'millrace snapshot'",
                )
                if not left:
                    break
                threading.Event().wait(0.1)
    assert left == []


def test_locks_of_a_table_go_when_it_is_done(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        batches = reading(database, exported, captured)
        while next(batches).table.name == "a":
            pass
        run(database, "SET lock_timeout = '2s'", "ALTER TABLE a ADD COLUMN later int")
        assert sum(len(batch.records) for batch in batches) >= 0
