"""The source's side of a verify: its queries, and a single table's trouble."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import TableRefusedError
from cdc.postgres import slot
from cdc.postgres.connection import connect_replication
from cdc.settings import Settings
from compaction.verify import source
from compaction.verify.confirm import printed_keys, source_rows
from compaction.verify.hashed import KeyTexts
from compaction.verify.instant import (
    SourceInstant,
    older_readings,
    open_session,
    source_at_instant,
)
from compaction.verify.repairs import DifferingRows, Repair
from compaction.verify.report import SinkTable
from compaction.verify.rules import ComparedColumn, ComparedTable, Kind, Rule
from compaction.verify.source import SourceRead, SourceReader, described_sources, table_read
from deploy.local.postgres import Postgres
from snapshots import reader
from snapshots.reader import lock
from tests.fixtures.server_settings import set_to
from tests.fixtures.source import Conninfo, capture, run, session

pytestmark = pytest.mark.postgres
ID = ComparedColumn("id", "id", Rule(Kind.INTEGER, lambda value: value))
TABLE = ComparedTable((ID,), (0,), {})


def settings_of(database: Conninfo) -> Settings:
    made = Settings(
        source=dict(database),
        capture={"topic.prefix": "t"},
        kafka={"bootstrap.servers": "nowhere"},
    )
    return made.model_copy(update={"capture": capture(database)})


@contextmanager
def instant_of(database: Conninfo) -> Iterator[tuple[Settings, SourceInstant]]:
    settings = settings_of(database)
    with source_at_instant(settings, 30) as instant:
        yield settings, instant


def reads_of(settings: Settings, instant: SourceInstant, folder: Path) -> list[SourceRead]:
    """What is to be read of all tables, of which ``id`` is compared."""
    described, _ = described_sources(instant, settings.capture, {"public.a", "public.b"})
    return [
        table_read(instant, SinkTable("lakehouse", name), table, TABLE, folder / name)
        for name, table in sorted(described.items())
    ]


def read(settings: Settings, instant: SourceInstant, *tables: SourceRead, **more: Any) -> None:
    options = {"sessions": 1, "age_max_s": 3600.0, **more}
    with closing(SourceReader(settings, instant, **options)) as reading:
        reading.read(tables)


def test_older_sessions_and_slots_of_a_verify_are_named(database: Conninfo) -> None:
    settings = settings_of(database)
    assert older_readings(settings) == []
    with (
        closing(open_session(settings)) as older,
        slot.exact_snapshot(settings.source, settings.capture.slot_name),
    ):
        reading, held = older_readings(settings)
        assert reading.startswith(
            f"a session of another verify (pid {older.info.backend_pid}, for "
        )
        assert held.startswith(f"the temporary slot {settings.capture.slot_name}_snapshot_")
        named = settings.model_copy(update={"source": {**database, "application_name": "ours"}})
        assert older_readings(named) == [held]


def test_a_table_that_is_locked_is_the_only_one_that_cannot_be_described(
    database: Conninfo,
) -> None:
    run(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    with (
        patch.object(reader, "_LOCK_TIMEOUT", "200ms"),
        instant_of(database) as (settings, instant),
        session(database) as other,
    ):
        other.execute("BEGIN; LOCK TABLE public.b, public.c")
        names = {"public.a", "public.b"}
        described, refused = described_sources(instant, settings.capture, names)
        assert described.keys() == {"public.a"}
        assert refused.keys() == {"public.b"}
        other.execute("ROLLBACK")
        described, refused = described_sources(instant, settings.capture, names)
        assert described.keys() == names, "the instant's transaction goes on"
        assert not refused


def test_a_table_whose_rows_cannot_be_read_is_the_only_one_that_is_left(
    database: Conninfo, tmp_path: Path
) -> None:
    for name in "ab":
        run(
            database,
            f"CREATE TABLE {name} (id int PRIMARY KEY)",
            f"INSERT INTO {name} SELECT generate_series(0, 99)",
        )
    with instant_of(database) as (settings, instant):
        bad, good = reads_of(settings, instant, tmp_path)
        bad.description = replace(bad.description, row_filter="1 / id > 0")
        read(settings, instant, bad, good)
        assert bad.error is not None
        assert "division by zero" in bad.error.what
        assert (good.error, good.hashes.table().rows) == (None, 100)


def test_no_lock_and_no_snapshot_is_held_for_longer_than_it_may_be(
    database: Conninfo, tmp_path: Path
) -> None:
    for name in "ab":
        run(
            database,
            f"CREATE TABLE {name} (id int PRIMARY KEY)",
            f"INSERT INTO {name} SELECT generate_series(1, 4000)",
            f"ANALYZE {name}",
        )
    with instant_of(database) as (settings, instant):
        a, b = reads_of(settings, instant, tmp_path)
        with patch.object(source, "CHUNK_S", 0.1), patch.object(reader, "lock", wraps=lock) as took:
            read(settings, instant, a, b, rows_per_second=3000, age_max_s=instant.age_s + 2)
        assert took.call_count > 4, "a chunk is as long as the pace lets it be"
        assert (a.error, a.hashes.table().rows) == (None, 4000)
        assert b.error is not None
        assert "can't be read within" in b.error.what
    with instant_of(database) as (settings, instant):
        a, b = reads_of(settings, instant, tmp_path / "again")
        read(settings, instant, a, b, rows_per_second=500, age_max_s=instant.age_s + 0.5)
        assert a.error is not None, "it is left in the middle of a chunk"
        assert b.error is not None
        assert instant.age_s < 4


def test_keys_that_are_no_values_keep_no_others_from_being_asked_for(
    database: Conninfo, tmp_path: Path
) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with instant_of(database) as (settings, instant), session(database) as opened:
        (a,) = reads_of(settings, instant, tmp_path)
        keys: list[KeyTexts] = [("1",), ("x",), ("02",), ("",), ("3",)]
        assert [*printed_keys(opened, a, keys)] == [("1",), ("2",), ("3",)]


def test_rows_are_looked_up_no_faster_and_no_longer_than_they_may_be(
    database: Conninfo, tmp_path: Path
) -> None:
    run(
        database,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a SELECT generate_series(1, 2000)",
    )
    keys: list[KeyTexts] = [(str(number),) for number in range(1, 2001)]
    with instant_of(database) as (settings, instant), session(database) as opened:
        (a,) = reads_of(settings, instant, tmp_path)
        reading = SourceReader(settings, instant, sessions=1, age_max_s=3600, rows_per_second=2000)
        with closing(reading):
            assert len(source_rows(opened, instant, reading, a, keys).hashes) == 2000
        assert instant.age_s > 0.4
        reading = SourceReader(settings, instant, sessions=1, age_max_s=0)
        with closing(reading), pytest.raises(TableRefusedError, match="can't be read within"):
            source_rows(opened, instant, reading, a, keys)


def test_an_order_does_not_wait_for_a_standby_without_end(
    postgres: Postgres, database: Conninfo, tmp_path: Path
) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with instant_of(database) as (settings, instant):
        (a,) = reads_of(settings, instant, tmp_path)
        rows = {SinkTable("lakehouse", "a"): DifferingRows(a, [("1",), ("2",)])}
        with set_to(postgres, synchronous_standby_names="nobody"):
            ordered = Repair(settings, "log", "id", 0.3).order(rows)
    assert ordered == ({SinkTable("lakehouse", "a"): {("1",), ("2",)}}, {})


def test_a_slot_goes_though_its_maker_died_while_the_server_waited(database: Conninfo) -> None:
    class Died(BaseException):
        """Nobody sees to the connection any more."""

    opened_by = connect_replication(dict(database))

    def die(_waited_s: float) -> None:
        opened_by.finish()
        raise Died

    run(database, "CREATE TABLE a (id int PRIMARY KEY)")
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    with session(database) as other, session(database) as opened:
        other.execute("BEGIN; INSERT INTO public.a VALUES (1)")
        with (
            patch.object(slot, "connect_replication", return_value=opened_by),
            pytest.raises(Died),
            slot.exact_snapshot(dict(database), "dies", die, 3),
        ):
            pass
        assert opened.execute(slots).fetchall(), "the server waits, and doesn't notice"
        deadline = time.monotonic() + 10
        while opened.execute(slots).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.1)
