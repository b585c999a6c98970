"""The comparison of slot, record and server: a stream that can't continue is a gap."""

from typing import cast
from unittest.mock import Mock

import pytest

from cdc.capture.servers import Servers
from cdc.capture.start import begin_epoch, check_continuity, check_untouched, create_slot
from cdc.errors import GapError
from cdc.postgres.connection import System
from cdc.postgres.slot import SlotState
from cdc.records.fingerprint import DoubtfulLeaf
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Doubt, Progress, TableState, parse_state
from tests.fixtures.made_states import streaming, table_state

SLOT = SlotState(
    name="s",
    plugin="pgoutput",
    database="d",
    temporary=False,
    active=False,
    active_pid=None,
    confirmed_flush_lsn=Lsn(300),
    wal_status="reserved",
    safe_wal_size=None,
    lag_bytes=0,
    retained_bytes=0,
    invalidation_reason=None,
    failover=False,
    synced=False,
    limits={"max_slot_wal_keep_size": "1GB", "idle_replication_slot_timeout": "1d"},
)


def progress(position: Position, flush: int, timeline: int = 1) -> Progress:
    return streaming(position, timeline=timeline, flush_lsn=Lsn(flush))


@pytest.mark.parametrize(
    ("timeline", "forks", "wal_end", "fits"),
    [
        (1, {}, 500, True),
        (1, {}, 499, False),  # restored from a copy of the disk
        (2, {1: Lsn(500)}, 900, True),  # a standby that had everything was promoted
        (2, {1: Lsn(499)}, 900, False),
        (2, {}, 900, False),
        (3, {1: Lsn(480), 2: Lsn(600)}, 900, False),  # promoted twice
        (3, {1: Lsn(500), 2: Lsn(600)}, 900, True),
    ],
)
def test_a_server_that_forgot_what_the_log_has_is_a_gap(
    timeline: int, forks: dict[int, Lsn], wal_end: int, fits: bool
) -> None:
    recorded = progress(Position(1, Lsn(490), 3), flush=500)
    system = System("1", timeline, Lsn(900), "d", forks)
    if fits:
        check_continuity(recorded, SLOT, system, Lsn(wal_end))
        return
    with pytest.raises(GapError, match="the server has another history"):
        check_continuity(recorded, SLOT, system, Lsn(wal_end))


def test_a_transaction_that_is_in_the_log_in_part_counts_as_reached() -> None:
    recorded = progress(Position(1, Lsn(700), 3), flush=500)
    with pytest.raises(GapError, match="only up to 0/258"):
        check_continuity(recorded, SLOT, System("1", 2, Lsn(900), "d", {1: Lsn(600)}), Lsn(900))


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (None, "is missing"),
        (SLOT._replace(confirmed_flush_lsn=Lsn(501)), "was moved to 0/1F5"),
        (SLOT._replace(invalidation_reason="idle_timeout"), "idle_timeout"),
        (SLOT._replace(wal_status="lost"), "wal_removed"),
        (SLOT._replace(temporary=True, synced=True), "incomplete copy"),
    ],
)
def test_a_slot_that_does_not_give_all_that_follows_is_a_gap(
    slot: SlotState | None, words: str
) -> None:
    recorded = progress(Position(1, Lsn(490), 3), flush=500)
    system = System("1", 2, Lsn(900), "d", {1: Lsn(500)})
    check_continuity(recorded, SLOT._replace(synced=True), system, Lsn(900))
    with pytest.raises(GapError, match=words) as caught:
        check_continuity(recorded, slot, system, Lsn(900))
    assert "millrace new-epoch" in caught.value.remedy


def test_a_new_slot_for_tables_that_were_captured_is_a_gap() -> None:
    item, other = TableName("public", "item"), TableName("public", "other")
    check_untouched({other: None}, [item])
    with pytest.raises(GapError, match=r"public\.item"):
        check_untouched({item: None, other: None}, [item])


def test_a_new_epoch_waits_for_no_transaction_of_the_cluster_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubt = Doubt(reason="r", since_ms=1, leaves=(DoubtfulLeaf(5),), behind_xid=800, set_aside=True)
    state = table_state(TableName("public", "t"), doubt=doubt, joined_xid=700, joined_lsn=Lsn(9))
    monkeypatch.setattr("cdc.capture.start.read_tables", lambda *_: [state])
    servers = Mock()
    servers.progress = progress(Position(1, Lsn(490), 3), flush=500)
    servers.settings.capture.topic_prefix, servers.settings.capture.slot_name = "pre", "s"
    servers.system = System("2", 1, Lsn(900), "d", {})
    servers.slot = None
    assert begin_epoch(cast("Servers", servers)) == 2
    ((_, record),) = (call.args[0] for call in servers.record.call_args_list)
    begun = parse_state(TableState, record.value, record.topic)
    assert (begun.epoch, begun.joined_xid, begun.joined_lsn) == (2, 0, 0)
    assert begun.doubt == doubt.model_copy(update={"leaves": (), "behind_xid": 0})


OTHER_CLUSTER = System("2", 1, Lsn(900), "d", {})
AHEAD = SLOT._replace(confirmed_flush_lsn=Lsn(501))


@pytest.mark.parametrize(
    ("state", "system", "words"),
    [
        (AHEAD, System("1", 1, Lsn(900), "d", {}), "ahead of the log"),
        (SLOT, OTHER_CLUSTER, "another PostgreSQL cluster"),
        (SLOT._replace(database="e"), System("1", 1, Lsn(900), "d", {}), "its database"),
    ],
)
def test_a_slot_that_may_be_another_programs_isnt_dropped_for_a_new_one(
    state: SlotState, system: System, words: str
) -> None:
    servers = Mock()
    servers.progress = progress(Position(1, Lsn(490), 3), flush=500)
    servers.slot, servers.system = state, system
    for drop in (begin_epoch, lambda servers: create_slot(servers, Mock())):
        with pytest.raises(GapError, match=words) as caught:
            drop(cast("Servers", servers))
        assert "pg_drop_replication_slot('s')" in caught.value.remedy
    servers.record.assert_not_called()
    servers.end_slot.assert_not_called()
