"""The initial snapshot: exactly the rows committed before its point, after any event."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from cdc.convert.pipeline import Encoder
from cdc.errors import SourceUnreachableError, TableChangedError, TableRefusedError
from cdc.events.changes import Read
from cdc.postgres import slot
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, count, each
from cdc.settings import CaptureSettings
from cdc.tables.reads import SnapshotBatch
from snapshots.copied_rows import CopiedRow
from snapshots.initial import InitialSnapshot
from snapshots.pace import Pace
from tests.fixtures.source import Conninfo, capture, described, run, session

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

    def __init__(self, table: TableDescription) -> None:
        self.schema = SimpleNamespace(columns=table.columns, version=1)

    def compiled_read(self, *_: object) -> None:
        """There is none."""

    def snapshot_row(
        self, row: CopiedRow, position: Position, lsn: Lsn, ts_us: int, _read: Read
    ) -> list[Record]:
        assert position == Position(3, lsn, 0)
        assert ts_us > 1_700_000_000_000_000
        return [Record("topic", row[0], None, [])]


def keys(table: TableDescription) -> Encoder:
    return cast("Encoder", Keys(table))


def tables(database: Conninfo) -> tuple[CaptureSettings, list[TableDescription]]:
    settings = capture(database)
    with session(database) as opened:
        return settings, described(opened, settings)


def reading(
    database: Conninfo, exported: slot.ExportedSnapshot, captured: list[TableDescription]
) -> Iterator[SnapshotBatch]:
    settings = capture(database, **{"snapshot.chunk.bytes": 20 * 8192})
    read = InitialSnapshot(database, settings, Pace()).read
    return read(exported, Position(3, exported.consistent_point, 0), captured, keys, limit_s=60)


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
    for progress, records, number, *_ in batches:
        found[progress.table.name] += [int(record.key or b"") for record in each(records)]
        assert len(found[progress.table.name]) == progress.rows
        assert number == count(records)
    assert {name: sorted(ids) for name, ids in found.items()} == {
        "a": list(range(1, 1001)),
        "b": list(range(1, 101)),
        "c": [],
    }
    assert done(iter(batches)) == {"a", "b", "c"}
    of_a = [batch.progress for batch in batches if batch.progress.table.name == "a"]
    pages = [progress.pages_done for progress in of_a if progress.read]
    assert pages == sorted(pages)
    assert pages[-1] == captured[0].pages
    assert len(pages) > 2


KEYLESS = ("ALTER TABLE b DROP CONSTRAINT b_pkey",)
"""Such a table can't be read while it is streamed: then it is now or never."""


def done(batches: Iterator[SnapshotBatch]) -> set[str]:
    """The tables that were read to their ends."""
    return {batch.progress.table.name for batch in batches if batch.progress.is_done}


def test_a_locked_table_is_left_or_named_and_tried_again_later(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshots.reader._LOCK_TIMEOUT", "100ms")
    run(database, *TABLES)
    settings, captured = tables(database)
    run(database, *KEYLESS)
    _, keyless = tables(database)
    with session(database) as blocker, slot.exact_snapshot(database, settings.slot_name) as point:
        with blocker.transaction():
            blocker.execute("LOCK TABLE public.b IN ACCESS EXCLUSIVE MODE")
            assert done(reading(database, point, captured)) == {"a", "c"}
            with pytest.raises(SourceUnreachableError, match=r"public\.b can't be read") as caught:
                list(reading(database, point, keyless))
        assert caught.value.retry
        rows = sum(len(batch.records) for batch in reading(database, point, keyless))
        assert rows == 1_100


CHANGED = [
    ("DROP TABLE b", "was dropped or renamed"),
    ("ALTER TABLE b RENAME TO d", "was dropped or renamed"),
    ("ALTER TABLE b ALTER id TYPE bigint", "was rewritten"),
    ("TRUNCATE b", "was rewritten"),
    ("VACUUM FULL b", "was rewritten"),
]


@pytest.mark.parametrize(("statement", "what"), CHANGED)
def test_a_table_that_isnt_what_it_was_is_left_or_named_and_never_taken_for_an_empty_one(
    database: Conninfo, statement: str, what: str
) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    keyless = [replace(table, identity=frozenset()) for table in captured]
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        run(database, statement)
        assert done(reading(database, exported, captured)) == {"a", "c"}
        with pytest.raises(TableChangedError, match=rf"public\.b {what}") as caught:
            list(reading(database, exported, keyless))
    assert caught.value.retry


def test_a_column_that_went_away_is_said(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    keyless = [replace(table, identity=frozenset()) for table in captured]
    run(database, "ALTER TABLE a DROP COLUMN v")
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        assert done(reading(database, exported, captured)) == {"b", "c"}
        with pytest.raises(TableRefusedError, match="start again") as caught:
            list(reading(database, exported, keyless))
    assert caught.value.retry


def test_beyond_its_time_only_what_cant_be_read_otherwise_is_begun(database: Conninfo) -> None:
    run(database, *TABLES, *KEYLESS)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        read = InitialSnapshot(database, settings, Pace()).read
        position = Position(3, exported.consistent_point, 0)
        batches = read(exported, position, captured, keys, limit_s=0)
        assert done(batches) == {"b"}


def test_a_statement_of_ones_own_reads_its_table_to_the_end(database: Conninfo) -> None:
    run(database, *TABLES)
    overrides = "snapshot.select.statement.overrides"
    odd = {
        overrides: "public.b",
        f"{overrides}.public.b": "SELECT * FROM public.b WHERE id % 2 = 1",
    }
    settings = capture(database, **odd)
    with session(database) as opened:
        captured = described(opened, settings)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        read = InitialSnapshot(database, settings, Pace()).read
        position = Position(3, exported.consistent_point, 0)
        batches = list(read(exported, position, captured, keys, limit_s=60))
    assert done(iter(batches)) == {"a", "b", "c"}
    assert sum(batch.events for batch in batches if batch.progress.table.name == "b") == 50


def test_an_exported_snapshot_that_is_gone_is_said(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        pass
    with pytest.raises(SourceUnreachableError, match="snapshot no longer exists"):
        list(reading(database, exported, captured))


def test_while_a_table_is_locked_the_others_are_read(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with (
        slot.exact_snapshot(database, settings.slot_name) as exported,
        session(database) as other,
        other.transaction(),
    ):
        other.execute("LOCK TABLE public.a")
        began = time.monotonic()
        for batch in reading(database, exported, captured):
            if batch.progress.table.name == "c" and batch.progress.is_done:
                assert time.monotonic() - began < 9  # less than a lock is waited for
                other.execute("ROLLBACK")
            if batch.progress.table.name == "a" and batch.progress.is_done:
                break
    assert batch.progress.rows == 1000


def test_a_table_is_described_while_another_one_is_locked(database: Conninfo) -> None:
    run(database, *TABLES, "CREATE PUBLICATION own FOR TABLE a, b")
    settings = capture(database, publication_name="own")
    with session(database) as opened, session(database) as other:
        (wanted,) = [one for one in captured_tables(opened, settings) if one.name.name == "b"]
        other.execute("BEGIN; LOCK TABLE public.a")
        opened.execute("SET lock_timeout = '1s'")
        assert [one.name.name for one in described_tables(opened, settings, [wanted])] == ["b"]


def test_leaving_early_leaves_no_session_and_no_lock(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        batches = reading(database, exported, captured)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        with session(database) as opened:
            for _ in range(600):
                left = query(
                    opened,
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND application_name = 'millrace snapshot'",
                )
                if not left:
                    break
                threading.Event().wait(0.1)
    assert left == []


def test_a_chunk_of_a_table_keeps_nobody_out_for_longer_than_it_takes(database: Conninfo) -> None:
    run(database, *TABLES)
    settings, captured = tables(database)
    with slot.exact_snapshot(database, settings.slot_name) as exported:
        batches = reading(database, exported, captured)
        next(batches)
        alter = "SET lock_timeout = '30s'", "ALTER TABLE a ADD COLUMN later int"
        with ThreadPoolExecutor() as pool:
            altered = pool.submit(run, database, *alter)
            assert done(batches) == {"a", "b", "c"}
            altered.result()
