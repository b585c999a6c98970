"""The slot's watch: heartbeats, its reports on slot and source, and when it ends the daemon."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from structlog.testing import capture_logs

from cdc.capture.health import Health, Stage
from cdc.capture.watch import SlotWatch
from cdc.errors import SlotLagError
from cdc.postgres import slot
from cdc.postgres.slot import concerns
from cdc.records.position import Lsn
from cdc.settings import Settings
from deploy.local.postgres import Postgres
from tests.fixtures.server_settings import set_to
from tests.fixtures.source import Conninfo, capture, leave_detach_pending, run, session, streaming
from tests.unit.cdc.capture.test_start import SLOT

pytestmark = pytest.mark.postgres


@contextmanager
def watched(
    database: Conninfo, stop: threading.Event | None = None, /, **more: object
) -> Iterator[Health]:
    """Watch the database's slot as if its stream were being read."""
    settings = Settings(
        source=database,
        capture=capture(database, **{"heartbeat_source_interval_ms": 200, **more}),
        kafka={"bootstrap.servers": "localhost:1"},
    )
    health = Health(Mock(), heartbeat_s=0.2, timeout_s=1)
    with SlotWatch(settings, health, stop or threading.Event()):
        health.entered(Stage.STREAMING)
        health.has_slot = True
        yield health


def until(ready: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def await_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a watch has looked at all twice more."""
    looks = Mock(side_effect=slot.inspect)
    with monkeypatch.context() as patched:
        patched.setattr(slot, "inspect", looks)
        until(lambda: looks.call_count > 2)  # the third begins when the second is over


def made(database: Conninfo, **more: object) -> None:
    """Make a publication and a slot."""
    with streaming(database, capture(database, **more)):
        pass


def wal_end(database: Conninfo) -> int:
    with session(database) as opened:
        row = opened.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def is_quiet(database: Conninfo) -> bool:
    """Whether nobody writes for a while, in which a watch writes more than once."""
    before = wal_end(database)
    time.sleep(0.5)
    return wal_end(database) == before


def test_a_role_that_may_not_write_messages_is_told_once_and_keepalives_do(
    database: Conninfo, role: Callable[[str], dict[str, str]]
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    run(
        database,
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(bool, text, text, bool) FROM PUBLIC",
    )
    allowed = role("REPLICATION SUPERUSER")
    with watched({**database, **allowed}) as health:
        before = wal_end(database)
        until(lambda: wal_end(database) > before)
        assert health.report()["slot"]["wal_status"] == "reserved"
    with capture_logs() as logs, watched({**database, **role("REPLICATION")}) as health:
        until(lambda: health._awaited)
        # Now and then the server itself writes, about transactions that run.
        assert any(is_quiet(database) for _ in range(5))
    (told,) = [entry for entry in logs if "it relies on keepalives" in entry["event"]]
    assert "permission denied" in told["reason"]


def test_each_stay_on_the_stream_is_proven_at_once_however_rare_heartbeats_are(
    database: Conninfo,
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    with watched(database, heartbeat_source_interval_ms=600_000) as health:
        until(lambda: health._awaited)
        health.failed("the connection was lost")
        health.entered(Stage.STREAMING)
        until(lambda: health._awaited)


def test_where_heartbeats_are_rare_others_writes_have_to_come_round(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.capture.watch.INSPECT_S", 0.1)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    with watched(database, heartbeat_source_interval_ms=600_000) as health:
        until(lambda: health._awaited)
        first = wal_end(database)
        health.streaming(Mock(flush_lsn=Lsn(first)))
        run(database, "INSERT INTO t VALUES (1)")
        until(lambda: health._awaited and health._awaited.lsn > first)


def test_a_silent_server_costs_the_watch_its_connection_and_nobody_else_anything(
    database: Conninfo, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.capture.watch.PATIENCE_S", 0.5)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    server = "SELECT pid FROM pg_stat_activity WHERE (datname, application_name) ="
    server += " (current_database(), 'millrace watch')"
    with capture_logs() as logs, watched(database) as health, session(database) as opened:
        until(lambda: health._awaited)
        ((pid,),) = opened.execute(server.encode()).fetchall()
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: any("can't read the slot's state" in entry["event"] for entry in logs))
        finally:
            os.kill(pid, signal.SIGCONT)


def test_what_the_server_is_set_to_is_told_where_it_may_harm_the_source(
    database: Conninfo, postgres: Postgres
) -> None:
    publication: dict[str, object] = {
        "publication_name": "p",
        "publication_autocreate_mode": "disabled",
    }
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE heap (v int)",
        'CREATE TABLE "Split" (v int) PARTITION BY RANGE (v)',
        'CREATE TABLE part PARTITION OF "Split" DEFAULT',
        'ALTER TABLE "Split" REPLICA IDENTITY FULL',
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    made(database, **publication)
    with (
        set_to(postgres, synchronous_standby_names="*"),
        capture_logs() as logs,
        watched(database, **publication) as health,
    ):
        until(lambda: health._awaited)
    told = "\n".join(entry["event"] for entry in logs)
    for words in (
        "slot.max.lag.bytes, or max_slot_wal_keep_size",
        "synchronous_standby_names (*)",
        "ALTER TABLE public.heap REPLICA IDENTITY FULL;\n      ALTER TABLE public.part",
    ):
        assert words in told
    assert "public.t " not in told


def warned(database: Conninfo, captured: dict[str, object]) -> list[str]:
    """What a first look at the server tells."""
    made(database, **captured)
    with capture_logs() as logs, watched(database, **captured) as health:
        until(lambda: health._awaited)
    return [entry["event"] for entry in logs]


def test_an_entry_that_captures_nothing_is_told(database: Conninfo) -> None:
    captured: dict[str, object] = {
        "table_include_list": (r"public\.t", r"public\.(seen|kept)", "public.typo", "public.u")
    }
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT * FROM t",
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM t",
        "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
    )
    told = "\n".join(warned(database, captured))
    for words in (
        "public.kept is a materialized view, public.seen is a view; PostgreSQL",
        "public.typo of table.include.list captures nothing: no table has such a name",
        "public.u is an unlogged table",
    ):
        assert words in told
    assert r"entry public\.t " not in told


def test_an_entry_that_ones_own_publication_hasnt_is_told(database: Conninfo) -> None:
    captured: dict[str, object] = {
        "publication_name": "own",
        "publication_autocreate_mode": "disabled",
        "table_include_list": (r"public\.t", "public.other", "public.part"),
    }
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE split (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF split DEFAULT",
        "CREATE PUBLICATION own FOR TABLE t, part",
    )
    (text,) = [told for told in warned(database, captured) if "captures nothing" in told]
    assert "entry public.other of table.include.list captures nothing" in text
    assert "Millrace captures only what publication own has" in text


def test_a_table_with_values_that_nothing_tells_of_is_told(database: Conninfo) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, owner regrole, kind regclass)",
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
        "CREATE TABLE split (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF split FOR VALUES FROM (0) TO (9)",
        "CREATE PUBLICATION own FOR TABLE t, split WITH (publish_via_partition_root = true)",
    )
    run(
        database,
        "ALTER TABLE split DROP CONSTRAINT split_pkey",
        "CREATE FOREIGN TABLE far PARTITION OF split DEFAULT SERVER elsewhere",
    )
    captured: dict[str, object] = {
        "publication_name": "own",
        "publication_autocreate_mode": "disabled",
        "table_include_list": (r"public\.t", r"public\.split"),
    }
    told = "\n".join(warned(database, captured))
    assert "public.t: owner, kind contains names of other objects" in told
    assert "public.split: changes of public.far aren't captured" in told


def test_a_table_whose_updates_begin_to_fail_is_told_while_we_run(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.capture.watch.RISKS_S", 0.1)
    monkeypatch.setattr("cdc.capture.watch.INSPECT_S", 0.1)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    with capture_logs() as logs, watched(database) as health:
        until(lambda: health._awaited)
        assert not any("without a replica identity" in entry["event"] for entry in logs)
        run(database, "ALTER TABLE t REPLICA IDENTITY NOTHING")
        until(lambda: any("ALTER TABLE public.t REPLICA" in entry["event"] for entry in logs))


@pytest.mark.parametrize("is_rooted", [True, False])
def test_a_partition_whose_next_change_would_crash_the_server_is_told_once(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch, *, is_rooted: bool
) -> None:
    monkeypatch.setattr("cdc.capture.watch.INSPECT_S", 0.1)
    run(
        database,
        'CREATE TABLE "Split" (id int PRIMARY KEY) PARTITION BY RANGE (id)',
        'CREATE TABLE part PARTITION OF "Split" FOR VALUES FROM (0) TO (9)',
        'CREATE TABLE other PARTITION OF "Split" FOR VALUES FROM (9) TO (19)',
        f"CREATE PUBLICATION own FOR ALL TABLES WITH (publish_via_partition_root = {is_rooted})",
    )
    own: dict[str, object] = {
        "publication_name": "own",
        "publication_autocreate_mode": "disabled",
    }
    made(database, **own)
    with capture_logs() as logs, watched(database, **own) as health:
        until(lambda: health._awaited)
        leave_detach_pending(database, '"Split"', "part")
        await_turns(monkeypatch)
        told = [entry["event"] for entry in logs if "DETACH" in entry["event"]]
    line = 'ALTER TABLE public."Split" DETACH PARTITION public.part FINALIZE;'
    assert [line in text for text in told] == [True] * is_rooted


def test_a_locked_table_keeps_nobody_from_looking_at_the_slot(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.capture.watch.RISKS_S", 0.1)
    monkeypatch.setattr("cdc.capture.watch.INSPECT_S", 0.1)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    with session(database) as other, capture_logs() as logs:
        other.execute("BEGIN; LOCK TABLE public.t")
        with watched(database) as health:
            until(lambda: health._awaited)
            await_turns(monkeypatch)
    assert not any("can't read the slot's state" in entry["event"] for entry in logs)


def test_a_slot_that_nobody_read_for_too_long_is_a_gap_with_its_setting(
    database: Conninfo, postgres: Postgres
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    with set_to(postgres, idle_replication_slot_timeout="1s"), session(database) as opened:
        until(lambda: reason(opened, database))
        assert "idle_replication_slot_timeout is 1s" in str(reason(opened, database))


def reason(opened: psycopg.Connection, database: Conninfo) -> str | None:
    opened.execute("CHECKPOINT")
    state = slot.inspect(opened, capture(database).slot_name)
    return slot.why_lost(state) if state else None


def test_a_slot_that_holds_back_too_much_ends_the_daemon_and_stays(database: Conninfo) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    noise = "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 600000))"

    stop = threading.Event()

    def hold_back() -> None:
        limit = {"slot_max_lag_bytes": "1MB", "slot_max_lag_policy": "stop"}
        with watched(database, stop, **limit) as health:
            run(database, noise)
            until(lambda: health.report().get("slot"))
            assert not stop.wait(0.3)
            run(database, noise)
            assert stop.wait(60)

    with capture_logs() as logs, pytest.raises(SlotLagError, match="holds back") as caught:
        hold_back()
    assert stop.is_set()
    assert "larger slot.max.lag.bytes" in caught.value.remedy
    assert any("% of slot.max.lag.bytes (1.0 MB)" in entry["event"] for entry in logs)
    with session(database) as opened:
        assert slot.inspect(opened, capture(database).slot_name) is not None


def test_a_slot_that_is_to_be_dropped_is_as_soon_as_the_start_knows_it_to_be_its_own(
    database: Conninfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start above the limit compares slot and log first: until then it may be somebody else's."""
    monkeypatch.setattr("cdc.capture.watch.INSPECT_S", 0.1)
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    made(database)
    run(database, "SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1500000))")
    stop = threading.Event()

    def start() -> None:
        limit = {"slot_max_lag_bytes": "1MB", "slot_max_lag_policy": "drop"}
        with watched(database, stop, **limit) as health:
            until(lambda: health.report().get("slot"))
            assert not stop.wait(0.5)
            health.opened(Mock(), {})
            assert stop.wait(60)

    with pytest.raises(SlotLagError, match="the daemon dropped the slot"):
        start()
    with session(database) as opened:
        assert slot.inspect(opened, capture(database).slot_name) is None


@pytest.mark.parametrize(
    ("state", "limit", "told"),
    [
        (SLOT._replace(retained_bytes=49), 100, []),
        (SLOT._replace(retained_bytes=50), 100, ["50 % of slot.max.lag.bytes"]),
        (SLOT._replace(retained_bytes=300), 100, ["300 % of slot.max.lag.bytes"]),
        (
            SLOT._replace(retained_bytes=90, safe_wal_size=10),
            None,
            ["90 % of max_slot_wal_keep_size"],
        ),
        (SLOT._replace(wal_status="unreserved"), None, ["unreserved"]),
        (
            SLOT._replace(retained_bytes=90, lag_bytes=9),
            100,
            ["the log lacks only 9 bytes, the rest is held for open transactions"],
        ),
    ],
)
def test_what_is_said_of_a_slot(state: slot.SlotState, limit: int | None, told: list[str]) -> None:
    found = list(concerns(state, limit))
    assert len(found) == len(told)
    for concern, words in zip(found, told, strict=True):
        assert words in concern.text
