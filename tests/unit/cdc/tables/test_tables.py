"""Which encoder a table's rows get, and what its schema record says of its key."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdc.convert.converters import converters
from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.convert.pipeline import Encoder, ReadableEncoder, RecordPipeline
from cdc.errors import GapError, TableRefusedError, UnreadTableError
from cdc.events.rules import EventRules
from cdc.events.table_encoder import TableEncoder
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import Phase, SnapshotRequest, parse_state
from cdc.settings import Settings
from cdc.settings.modes import ColumnModes, EventModes, KeyRule
from cdc.tables.lookups import Lookups
from cdc.tables.states import check_published
from cdc.tables.tables import Tables
from cdc.wal.messages import Relation, RelationColumn
from tests.fixtures.made_changes import NATIVE, TRANSACTION, patterns, row, table
from tests.fixtures.made_states import table_state
from tests.fixtures.preset import DEBEZIUM

SINCE = Position(1, Lsn(900), 1)
END = Lsn(2_000)
"""How far the WAL is."""
RELATION = Relation(
    7,
    "public",
    "t",
    "f",
    (RelationColumn(True, "id", 23, -1), RelationColumn(True, "email", 25, -1)),
)
COLUMNS: tuple[Column, ...] = table("id int4!, email text").columns
STATE = table_state(TableName("public", "t"), partitions=3, snapshot_lsn=Lsn(100), oid=7, entry=9)
BY_EMAIL = replace(NATIVE, columns=ColumnModes(keys=(KeyRule(patterns("public.t"), ("email",)),)))


def tables(rules: EventRules = NATIVE, pipeline: RecordPipeline = PLAIN, **more: Any) -> Tables:
    settings = Settings(
        source={},
        capture=more.get("capture", {"topic.prefix": "pre", "table.include.list": "public.t"}),
        kafka={"bootstrap.servers": "nowhere"},
    )
    return Tables(
        settings,
        "shop",
        [STATE],
        more.get("schemas", ()),
        Lookups(
            lambda _relation: COLUMNS,
            lambda _oid: more.get("entry", 9),
            lambda _asked: {},
            lambda oid, name: more.get("late", {}).get((oid, name)),
            more.get("instant", lambda: (END, 700)),
            lambda _table: None,
            more.get("await_visible", lambda _xid: None),
            lambda _oid, _names: more.get("filled", ()),
        ),
        rules,
        pipeline,
    )


def encoder(made: Tables) -> tuple[Encoder | None, list[Record]]:
    return made.stream_encoder(RELATION, SINCE)


def test_what_is_plain_goes_the_hot_way() -> None:
    assert isinstance(encoder(tables())[0], TableEncoder)


def test_unchanged_values_are_read_again_for_compacted_topics_only() -> None:
    plain = encoder(tables())[0]
    assert plain is not None
    assert plain.reselects == {0, 1}
    other = tables()
    other.states[STATE.name] = STATE.model_copy(update={"cleanup": "delete"})
    absent = tables(replace(NATIVE, events=EventModes(reselect=False)))
    for made in (other, absent):
        found = encoder(made)[0]
        assert isinstance(found, TableEncoder)
        assert not found.reselects
    without = ColumnModes(exclude=patterns("public.t.email"))
    readable = encoder(tables(replace(NATIVE, columns=without)))[0]
    assert readable is not None
    assert readable.reselects == {0}, "no need for what events don't have"


@pytest.mark.parametrize(
    ("rules", "pipeline"),
    [
        (DEBEZIUM, PLAIN),
        (replace(NATIVE, events=EventModes(transaction_metadata=True)), PLAIN),
        (NATIVE, RecordPipeline(converters({"schemas.enable": "true"}))),
        (NATIVE, replace(PLAIN, transform=lambda record: [record])),
    ],
)
def test_what_asks_for_more_goes_the_readable_way(
    rules: EventRules, pipeline: RecordPipeline
) -> None:
    assert isinstance(encoder(tables(rules, pipeline))[0], ReadableEncoder)


def test_a_schema_says_which_columns_key_its_records() -> None:
    (record,) = encoder(tables(BY_EMAIL))[1]
    assert record.value is not None
    keys = {column["name"]: column["key"] for column in json.loads(record.value)["columns"]}
    assert keys == {"id": None, "email": 1}


def test_a_schema_says_whose_it_is_and_one_that_is_stored_without_that_is_still_right() -> None:
    (record,) = encoder(tables())[1]
    assert record.value is not None
    written = json.loads(record.value)
    assert written["oid"] == RELATION.oid
    del written["oid"]
    for column in written["columns"]:
        assert column.pop("number") is None
    stored = parse_state(TableSchema, json.dumps(written).encode(), record.topic)
    assert encoder(tables(schemas=[stored]))[1] == []


def test_a_schema_of_a_newer_daemon_is_read_without_what_only_that_knows() -> None:
    (record,) = encoder(tables())[1]
    written = json.loads(record.value or b"")
    known = parse_state(TableSchema, record.value or b"", record.topic)
    written["more"] = written["columns"][0]["more"] = 1
    assert parse_state(TableSchema, json.dumps(written).encode(), record.topic) == known


def test_another_key_is_another_schema_version() -> None:
    made = tables()
    (record,) = encoder(made)[1]
    assert encoder(made)[1] == []
    stored = parse_state(TableSchema, record.value or b"", record.topic)
    assert encoder(tables(schemas=[stored]))[1] == []
    assert len(encoder(tables(BY_EMAIL, schemas=[stored]))[1]) == 1


def test_a_key_that_old_rows_would_not_tell_is_refused() -> None:
    with pytest.raises(TableRefusedError, match="old rows come without"):
        tables(BY_EMAIL).stream_encoder(RELATION._replace(replica_identity="d"), SINCE)


def test_events_count_where_transactions_are_marked() -> None:
    assert tables().transactions is None
    marked = tables(replace(NATIVE, events=EventModes(transaction_metadata=True)))
    assert marked.transactions is not None


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
    with pytest.raises(UnreadTableError, match=r"public\.t2"):
        tables(capture=all_tables, late={here: described(*keyless)}).stream_encoder(new, SINCE)
    assert tables(capture=all_tables).stream_encoder(new, SINCE) == (None, [])
    made = tables(capture=all_tables, late={here: described(*COLUMNS)})
    assert made.stream_encoder(new, SINCE) == (None, []), "what is before the WAL's end is read"
    assert made.stream_encoder(new, SINCE) == (None, [])
    assert made.begin_joined(SINCE) == []
    assert (made.is_all_read, made.is_to_read) == (False, True)
    assert len(made.begin_joined(Position(1, END, 0))) == 1
    state = made.states[here[1]]
    assert (state.phase, state.snapshot_lsn) == (Phase.SNAPSHOT, END)
    assert state.initial is not None
    found, records = made.stream_encoder(new, Position(1, END, 1))
    assert found is not None
    assert len(records) == 1


def test_where_its_rows_arent_wanted_a_table_is_followed_at_once() -> None:
    new = RELATION._replace(oid=8, name="t2")
    name = TableName("public", "t2")
    unread = {"topic.prefix": "p", "table.include.list": "public.*", "snapshot.mode": "no_data"}
    made = tables(capture=unread, late={(8, name): described(*COLUMNS)})
    found, _ = made.stream_encoder(new, SINCE)
    assert found is not None
    state = made.states[name]
    assert (state.phase, state.snapshot_lsn) == (Phase.STREAMING, SINCE.commit_lsn)
    assert (state.joined_lsn, state.joined_xid) == (END, 700)
    # It had another name before that: no gap, since nothing of it is in the log.
    made.stream_encoder(RELATION._replace(oid=8, name="before"), Position(1, Lsn(END - 1), 1))
    assert made.states[name].renamed_lsn is None
    made.stream_encoder(RELATION._replace(oid=8, name="since"), Position(1, Lsn(END + 1), 1))
    assert made.states[name].renamed_lsn == END + 1
    made.ask([str(name)], "true", "signal")
    assert [one.behind_xid for one in made.states[name].requests] == [700]


def test_a_table_that_cant_be_seen_yet_is_waited_for() -> None:
    new = RELATION._replace(oid=8, name="t2")
    name = TableName("public", "t2")
    late: dict[tuple[int, TableName], TableDescription] = {}
    all_tables = {"topic.prefix": "pre", "table.include.list": "public.*"}

    def appear(xid: int) -> None:
        assert xid == 77
        late[8, name] = described(*COLUMNS)

    made = tables(capture=all_tables, late=late, entry=0, await_visible=appear)
    made.stream_encoder(new, SINCE, 77)
    assert name in made.joining
    # As Debezium does it, a table is captured by its Relation alone.
    made = tables(capture={**all_tables, "lossless": False}, entry=0, await_visible=pytest.fail)
    assert made.stream_encoder(new, SINCE, 77)[0] is not None


def test_without_watermarks_the_wal_moves_on_behind_a_join() -> None:
    name = TableName("public", "t2")
    asked: list[Lsn] = []

    def instant() -> tuple[Lsn, int]:
        asked.append(END)
        return END, 700

    read_only = {"incremental.snapshot.watermarking.strategy": "read_only"}
    all_tables = {"topic.prefix": "pre", "table.include.list": "public.*", **read_only}
    late = {(8, name): described(*COLUMNS)}
    made = tables(capture=all_tables, late=late, instant=instant)
    made.stream_encoder(RELATION._replace(oid=8, name="t2"), SINCE)
    assert len(asked) == 1
    assert made.begin_joined(Position(1, END, 0))
    assert len(asked) == 2


def test_a_table_that_would_share_anothers_topic_doesnt_join() -> None:
    new = RELATION._replace(oid=8, name="t 2")
    name = TableName("public", "t 2")
    late = {(8, name): replace(described(*COLUMNS), name=name)}
    capture = {"topic.prefix": "pre", "table.include.list": "public.*"}
    made = tables(capture=capture, late=late)
    shared = STATE.model_copy(update={"table": "t_2", "topic": "pre.public.t_2"})
    made.states[TableName("public", "t_2")] = shared
    with pytest.raises(TableRefusedError, match=r"would share the topic pre\.public\.t_2"):
        made.stream_encoder(new, SINCE)
    made = tables(capture={**capture, "lossless": False}, late=late)
    made.states[TableName("public", "t_2")] = shared
    made.join(late[8, name], SINCE)


def test_changes_of_an_older_table_of_that_name_are_passed_over() -> None:
    older = tables(entry=0).stream_encoder(RELATION._replace(oid=6), SINCE)
    assert older == (None, [])
    assert tables(entry=0).stream_encoder(RELATION, SINCE)[0] is not None


def test_while_a_table_is_read_no_update_of_it_is_left_out() -> None:
    modes = EventModes(skipped=frozenset("uc"), skip_without_change=True)
    made = tables(replace(NATIVE, events=modes))
    old, new = row("1", "same"), row("1", "same")
    for requests, events in (((SnapshotRequest(kind="initial"),), 1), ((), 0)):
        made.set_requests(STATE.name, requests)
        found, _ = encoder(made)
        assert found is not None
        found.begin(TRANSACTION)
        assert len(found.update(old, False, new, Lsn(900), SINCE)) == events


def test_an_entry_that_could_not_be_seen_when_a_table_appeared_is_noted_when_it_can() -> None:
    made = tables()
    made.states[STATE.name] = STATE.model_copy(update={"entry": 0})
    check_published(made.states.values(), {STATE.name: (7, 9)})
    encoder(made)
    assert made.states[STATE.name].entry == 9
    with pytest.raises(GapError, match="left the publication"):
        check_published(made.states.values(), {STATE.name: (7, 10)})


def test_a_table_that_the_lists_leave_out_has_no_events_and_a_gap_once_it_is_back() -> None:
    made = tables(capture={"topic.prefix": "pre", "table.include.list": "public.other"})
    found, records = encoder(made)
    assert found is None
    assert len(records) == 1
    assert encoder(made) == (None, [])
    with pytest.raises(GapError, match="left the publication"):
        check_published(made.states.values(), {STATE.name: (7, 9)})
