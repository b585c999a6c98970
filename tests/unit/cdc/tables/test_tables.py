"""Relations that arrive, and tables that appear → followed, read, skipped, or a gap."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from cdc.errors import GapError, TableRefusedError, UnreadTableError
from cdc.postgres.described import TableDescription
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.schema import UNREADABLE, Column, TableName
from cdc.records.state import Doubt, Phase, TableState, parse_state
from cdc.tables.states import check_published
from cdc.tables.tables import NO_EFFECTS, Arrival, Effects, NewTopic
from tests.fixtures.made_tables import (
    COLUMNS,
    END,
    RELATION,
    SINCE,
    STATE,
    arrive,
    tables,
)


def described(*columns: Column) -> TableDescription:
    """A table of these columns that has appeared."""
    return TableDescription(
        oid=8,
        name=TableName("public", "t2"),
        columns=columns,
        primary_key=(),
        replica_identity="d",
        identity=frozenset(column.name for column in columns if column.key),
        partitioned=False,
        leaves=(),
        rows_estimated=0,
        block_bytes=8192,
        row_filter=None,
        signature="",
        entry=9,
    )


def test_a_table_that_appears_unread_is_read_while_streaming_or_first_or_passed_over() -> None:
    new = RELATION._replace(oid=8, name="t2")
    here = (8, TableName("public", "t2"))
    all_tables = {"topic.prefix": "pre", "table.include.list": "public.*"}
    keyless = [column.model_copy(update={"key": None}) for column in COLUMNS]
    whole = replace(described(*keyless), replica_identity="f")
    with pytest.raises(UnreadTableError, match=r"public\.t2"):
        arrive(tables(capture=all_tables, late={here: whole}), new, SINCE)
    assert arrive(tables(capture=all_tables), new, SINCE) == (None, [])
    made = tables(capture=all_tables, late={here: described(*COLUMNS)})
    assert arrive(made, new, SINCE) == (None, []), "what is before the WAL's end is read"
    assert arrive(made, new, SINCE) == (None, [])
    assert made.begin_waiting(SINCE).records == []
    assert (made.reads.is_all_read, made.reads.is_to_read) == (False, True)
    assert len(made.begin_waiting(Position(1, END, 0)).records) == 1
    state = made.states[here[1]]
    assert (state.phase, state.snapshot_lsn) == (Phase.SNAPSHOT, END)
    assert state.initial is not None
    found, records = arrive(made, new, Position(1, END, 1))
    assert found is not None
    assert len(records) == 1


@pytest.mark.parametrize("lossless", [True, False])
def test_names_that_arent_utf8_are_passed_over_and_never_taken_for_one(lossless: bool) -> None:
    capture = {"topic.prefix": "p", "table.include.list": "public.*", "lossless": lossless}
    made = tables(capture=capture)
    with capture_logs() as logs:
        for oid in (8, 9):  # caf\xe8 and caf\xe9
            assert arrive(made, RELATION._replace(oid=oid, name=f"caf{UNREADABLE}")) == (None, [])
    assert [line["log_level"] for line in logs] == ["warning", "warning"]
    assert set(made.states) == {STATE.name}


def test_where_its_rows_arent_wanted_a_table_is_followed_at_once() -> None:
    new = RELATION._replace(oid=8, name="t2")
    name = TableName("public", "t2")
    unread = {"topic.prefix": "p", "table.include.list": "public.*", "snapshot.mode": "no_data"}
    made = tables(capture=unread, late={(8, name): described(*COLUMNS)})
    found, _ = arrive(made, new, SINCE)
    assert found is not None
    state = made.states[name]
    assert (state.phase, state.snapshot_lsn) == (Phase.STREAMING, SINCE.commit_lsn)
    assert (state.joined_lsn, state.joined_xid) == (END, 700)
    # It had another name before that: no gap, since nothing of it is in the log.
    arrive(made, RELATION._replace(oid=8, name="before"), Position(1, Lsn(END - 1), 1))
    assert made.states[name].renamed_lsn is None
    arrive(made, RELATION._replace(oid=8, name="since"), Position(1, Lsn(END + 1), 1))
    assert made.states[name].renamed_lsn == END + 1
    made.reads.ask({name: "true"}, "signal")
    assert [request.behind_xid for request in made.states[name].requests] == [700]


def test_a_table_that_cant_be_seen_yet_is_waited_for() -> None:
    new = RELATION._replace(oid=8, name="t2")
    name = TableName("public", "t2")
    late: dict[tuple[int, TableName], TableDescription] = {}
    all_tables = {"topic.prefix": "pre", "table.include.list": "public.*"}

    def appear(xid: int) -> None:
        assert xid == 77
        late[8, name] = described(*COLUMNS)

    made = tables(capture=all_tables, late=late, entry=0, await_visible=appear)
    arrive(made, new, SINCE, 77)
    assert name in made.states.waiting
    # As Debezium does it, a table is captured by its Relation alone. Its key is the catalog's.
    waited: list[int] = []
    made = tables(capture={**all_tables, "lossless": False}, entry=0, await_visible=waited.append)
    assert arrive(made, new, SINCE, 77)[0] is not None
    assert waited == [77]


def test_without_watermarks_the_wal_moves_on_behind_a_join() -> None:
    name = TableName("public", "t2")
    all_tables = {"topic.prefix": "pre", "table.include.list": "public.*"}
    for strategy, moves in (("read_only", True), ("insert_insert", False)):
        asked: list[Lsn] = []

        def instant(asked: list[Lsn] = asked) -> tuple[Lsn, int]:
            asked.append(END)
            return END, 700

        made = tables(
            capture={**all_tables, "incremental.snapshot.watermarking.strategy": strategy},
            late={(8, name): described(*COLUMNS)},
            instant=instant,
        )
        arrive(made, RELATION._replace(oid=8, name="t2"), SINCE)
        joined = made.begin_waiting(Position(1, END, 0))
        assert joined.records
        assert joined.effects.moves_wal == moves
        assert len(asked) == 1


def test_a_topic_is_there_before_a_table_has_an_encoder() -> None:
    new, name = RELATION._replace(oid=8, name="t2"), TableName("public", "t2")
    capture = {"topic.prefix": "pre", "table.include.list": "public.*"}
    late = {(8, name): described(*COLUMNS)}
    topics = (NewTopic("pre.public.t2", "compact"),)
    unread = tables(capture={**capture, "snapshot.mode": "no_data"}, late=late)
    assert unread.arrive(new, SINCE).effects == Effects(topics)
    by_its_relation = tables(capture={**capture, "lossless": False})
    assert by_its_relation.arrive(new, SINCE).effects == Effects(topics)
    assert by_its_relation.arrive(new, SINCE).effects == NO_EFFECTS
    read = tables(capture=capture, late=late)
    assert read.arrive(new, SINCE) == Arrival(None, [], NO_EFFECTS)
    assert read.begin_waiting(Position(1, END, 0)).effects == Effects(topics)


def test_a_table_that_would_share_anothers_topic_doesnt_join() -> None:
    new = RELATION._replace(oid=8, name="t 2")
    name = TableName("public", "t 2")
    late = {(8, name): replace(described(*COLUMNS), name=name)}
    capture = {"topic.prefix": "pre", "table.include.list": "public.*"}
    made = tables(capture=capture, late=late)
    shared = STATE.model_copy(update={"table": "t_2", "topic": "pre.public.t_2"})
    made.states.put(shared)
    found, records = arrive(made, new, SINCE)
    assert (found, len(records)) == (None, 1)
    assert not made.states[name].is_in_log
    assert made.states.is_set_aside(name)
    doubt = made.states[name].doubt
    assert doubt is not None
    assert "would share the topic pre.public.t_2" in doubt.reason
    assert arrive(made, new, SINCE) == (None, []), "it is told once"
    made = tables(capture={**capture, "lossless": False}, late=late)
    made.states.put(shared)
    made.join(late[8, name], SINCE)


def test_a_table_that_is_set_aside_is_read_before_its_changes_are_taken() -> None:
    made, name = tables(), STATE.name
    nothing = RELATION._replace(replica_identity="n", columns=tuple(
        column._replace(key=False) for column in RELATION.columns
    ))  # fmt: skip
    made.reads.ask({name: None}, "", reset=True)
    made.reads.ask({name: None}, "a signal's", reset=True)
    assert arrive(made, nothing, SINCE)[0] is None
    state = made.states[name]
    assert (state.is_set_aside, state.phase) == (True, Phase.STREAMING)
    assert [request.signal for request in state.requests] == ["a signal's"]
    assert not made.states.is_taken(name)
    assert made.states.is_followed(name)
    now = replace(described(*COLUMNS), oid=7, name=name)
    assert made.obstacles.of(now) is None
    made.begin_anew(now, SINCE, made.states[name].requests)
    assert not made.states.is_set_aside(name)
    assert made.states[name].doubt is not None, "until all of it was read"


def test_the_states_of_a_table_that_is_refused_as_its_read_begins_are_written() -> None:
    """A later state names their pieces."""
    made, name = tables(), STATE.name
    made.reads.ask({name: None}, "", reset=True)
    now, requests = replace(described(*COLUMNS), oid=7, name=name), made.states[name].requests
    with patch.object(made.schemas, "described", side_effect=TableRefusedError("another key")):
        events, records = made.begin_anew(now, SINCE, requests)
    assert events == []
    states = [parse_state(TableState, r.value or b"", r.topic) for r in records]
    assert (states[0].is_set_aside, states[-1].is_set_aside) == (False, True)
    assert states[0].requests


def test_without_a_catalog_check_a_table_that_was_set_aside_is_a_gap() -> None:
    capture = {"topic.prefix": "pre", "table.include.list": "public.t", "lossless": False}
    made, name = tables(capture=capture), STATE.name
    now = replace(described(*COLUMNS), oid=7, name=name)
    made.check_taken([now])
    made.reads.set_aside(name, "it has no key")
    with pytest.raises(GapError, match=r"public\.t$") as caught:
        made.check_taken([now])
    assert caught.value.remedy.endswith("millrace snapshot public.t")
    made.check_taken([])
    made.states.put(made.states[name].model_copy(update={"oid": 0, "phase": Phase.SNAPSHOT}))
    made.check_taken([now])  # a new epoch reads it anyhow


@pytest.mark.parametrize(
    ("before", "now", "oid", "is_ahead"),
    [
        ("d 1 ", "n 1 ", 7, True),
        ("d 1 ", "d  ", 7, True),  # the primary key is gone
        ("d 1 ", "d 1 ", 7, False),  # the configuration's doing
        ("f 1 ", "f  ", 7, False),  # the stream doesn't tell of it
        ("d 1 ", "n 1 ", 8, False),
    ],
)
def test_a_start_leaves_a_table_to_the_stream_that_comes_to_its_obstacle(
    before: str, now: str, oid: int, is_ahead: bool
) -> None:
    made, name = tables(), STATE.name
    fingerprint = TableFingerprint(columns="c", identity=before, seen="1:1:")
    made.states.put(made.states[name].model_copy(update={"fingerprint": fingerprint}))
    changed = fingerprint.model_copy(update={"identity": now})
    table = replace(described(*COLUMNS), oid=oid, name=name, fingerprint=changed)
    assert made.obstacles.is_ahead(table) == is_ahead
    made.reads.ask({name: None}, "a signal's")
    assert not made.obstacles.is_ahead(table), "its read can't go on"


def test_whoever_waits_for_a_read_of_a_table_that_is_set_aside_gets_its_reason() -> None:
    made, name = tables(), STATE.name
    made.reads.ask({name: "true"}, "1")
    made.reads.ask({name: None}, "2", "blocking")
    made.reads.ask({name: None}, "3", reset=True)
    records = made.reads.set_aside(name, "it has no key")
    states = [parse_state(TableState, record.value or b"", "") for record in records]
    assert all(state.is_set_aside for state in states)
    ended = [state.outcome for state in states if state.outcome]
    assert [(each.signal, each.failure) for each in ended] == [
        ("1", "it has no key"),
        ("2", "it has no key"),
    ]
    assert [each.signal for each in made.states[name].requests] == ["3"], "a reset looks for itself"


def test_a_table_that_is_forgotten_isnt_read() -> None:
    made, table = tables(), described(*COLUMNS)
    made.states.refused(table, SINCE, Doubt(reason="", since_ms=1, set_aside=True))
    made.reads.ask({table.name: None}, "1")
    before = made.states.requested_changes
    assert [record.value for record in made.states.forget(table.name)] == [None]
    assert made.states.requested == set()
    assert made.states.requested_changes > before, "who reads it leaves it"
    assert not made.reads.is_to_read


def test_changes_of_an_older_table_of_that_name_are_passed_over() -> None:
    older = arrive(tables(entry=0), RELATION._replace(oid=6), SINCE)
    assert older == (None, [])
    assert arrive(tables(entry=0), RELATION, SINCE)[0] is not None


def test_an_entry_that_could_not_be_seen_when_a_table_appeared_is_noted_when_it_can() -> None:
    made = tables()
    made.states.put(STATE.model_copy(update={"entry": 0}))
    check_published(made.states.values(), {STATE.name: (7, 9)})
    arrive(made)
    assert made.states[STATE.name].entry == 9
    with pytest.raises(GapError, match="left the publication"):
        check_published(made.states.values(), {STATE.name: (7, 10)})


def test_a_table_that_the_lists_leave_out_has_no_events_and_a_gap_once_it_is_back() -> None:
    made = tables(capture={"topic.prefix": "pre", "table.include.list": "public.other"})
    found, records = arrive(made)
    assert found is None
    assert len(records) == 1
    assert arrive(made) == (None, [])
    with pytest.raises(GapError, match="left the publication"):
        check_published(made.states.values(), {STATE.name: (7, 9)})
