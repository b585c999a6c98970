"""Signals → the requests in tables' states, and the reports about them."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import Doubt, Phase, SnapshotRequest, TableState, parse_state
from cdc.settings import Settings
from cdc.tables.tables import Tables
from snapshots.signals.requests import Requests, queued
from tests.fixtures.made_changes import NATIVE, table
from tests.fixtures.made_states import table_state
from tests.fixtures.made_tables import NO_LOOKUPS

HERE = Position(1, Lsn(500), 3)
A, B, OTHER = TableName("public", "a"), TableName("public", "b"), TableName("other", "a")
NEVER = table_state(
    TableName("public", "never"),
    phase=Phase.CREATING,
    doubt=Doubt(reason="it has no key", since_ms=1, replaces=True, set_aside=True),
)
"""A table that could never be captured: it has no topic."""


class SignalledTables:
    """Requests for three tables, of which one isn't captured."""

    def __init__(self, schemas: Sequence[TableSchema] = (), **capture: object) -> None:
        self.settings = settings = Settings(
            source={},
            capture={
                "topic.prefix": "pre",
                "table.include.list": "public.*",
                "notification.enabled.channels": "sink",
                "notification.sink.topic.name": "told",
                **capture,
            },
            kafka={"bootstrap.servers": "nowhere"},
        )
        states = [table_state(name, partitions=3, snapshot_lsn=Lsn(100)) for name in (A, B, OTHER)]
        self.tables = Tables(settings, "shop", states, schemas, NATIVE, PLAIN, NO_LOOKUPS)
        self._requests = Requests(settings.capture, self.tables)

    def signal(self, kind: str, data: Any = None, *, by_topic: bool = False) -> list[Record]:
        """Follow a signal, whose id is its type."""
        return self._requests.follow(kind, f"{kind}-snapshot", data, HERE, by_topic=by_topic)

    def notifications(self, kind: str, data: Any = None) -> list[tuple[str, str, str]]:
        """The notifications that come of it: id, type and tables."""
        values = [
            json.loads(record.value or b"")
            for record in self.signal(kind, data)
            if is_notification(record)
        ]
        return [
            (value["id"], value["type"], value["additional_data"].get("data_collections", ""))
            for value in values
        ]

    def of(self, table: TableName) -> tuple[SnapshotRequest, ...]:
        """The requests for a table."""
        return self.tables.states[table].requests


def is_notification(record: Record) -> bool:
    """Whether it is a notification."""
    return record.topic == "told"


BOTH = {"data-collections": [".*[.][ab]"]}
ONLY_B = {"data-collections": ["public.b"]}


def test_a_snapshot_is_told_of_from_its_beginning_to_its_end() -> None:
    signalled = SignalledTables()
    assert signalled.notifications("execute", BOTH) == [("execute", "STARTED", "public.a,public.b")]
    assert signalled.notifications("execute", ONLY_B) == []  # one more of those under way
    assert signalled.notifications("pause", ONLY_B) == [("pause", "PAUSED", "public.b")]
    assert signalled.notifications("pause") == [("pause", "PAUSED", "public.a")]
    assert signalled.notifications("pause") == []
    assert signalled.notifications("resume", ONLY_B) == [("resume", "RESUMED", "public.b")]
    assert signalled.notifications("stop", ONLY_B) == [("stop", "ABORTED", "public.b")]
    assert signalled.notifications("stop") == [("stop", "ABORTED", "")]
    assert queued(signalled.tables) == []


def test_tables_are_paused_one_by_one_and_what_comes_later_waits_with_all() -> None:
    signalled = SignalledTables()
    signalled.signal("execute", BOTH)
    signalled.signal("pause", ONLY_B)
    assert [request.paused for request in (*signalled.of(A), *signalled.of(B))] == [False, True]
    assert queued(signalled.tables, paused=False) == [A]
    signalled.signal("execute", ONLY_B)
    assert [request.paused for request in signalled.of(B)] == [True, False]
    signalled.signal("pause")
    signalled.signal("execute", {"data-collections": ["public.a"]})
    assert {request.paused for request in (*signalled.of(A), *signalled.of(B))} == {True}


def test_a_first_snapshot_is_paused_and_goes_on_whatever_else_is_asked_of_its_table() -> None:
    signalled = SignalledTables()
    first = SnapshotRequest(kind="initial")
    signalled.tables.states.set_requests(B, [first])
    assert signalled.notifications("pause") == [("pause", "PAUSED", "public.b")]
    signalled.signal("execute", ONLY_B)
    signalled.signal("stop", ONLY_B)
    assert signalled.notifications("resume") == [("resume", "RESUMED", "public.b")]
    assert signalled.of(B) == (first,)
    signalled.signal("execute", {**ONLY_B, "type": "blocking"})
    assert [request.kind for request in signalled.of(B)] == ["initial", "blocking"]


def test_what_a_signal_says_is_kept_with_the_table() -> None:
    signalled = SignalledTables()
    condition = {"data-collection": "public.a", "filter": "id > 5"}
    signalled.signal("execute", {**BOTH, "reset": True, "additional-conditions": [condition]})
    (of_a,), (of_b,) = signalled.of(A), signalled.of(B)
    assert (of_a.condition, of_a.reset, of_a.signal, of_a.order) == ("id > 5", True, "execute", 1)
    assert (of_b.condition, of_b.reset, of_b.order) == (None, True, 2)
    signalled.signal("stop", ONLY_B)
    outcome = signalled.tables.states[B].outcome
    assert outcome is not None
    assert (outcome.signal, outcome.status) == ("execute", "ABORTED")


@pytest.mark.parametrize("kind", ["incremental", "initial"])
def test_the_command_alone_goes_on_with_what_is_paused_and_doesnt_wait_else(
    kind: Any,
) -> None:
    tables = SignalledTables().tables
    assert not tables.reads.is_to_read
    held = SnapshotRequest(kind=kind, order=1, paused=True)
    behind = SnapshotRequest(kind="incremental", order=2)
    tables.states.set_requests(B, [behind, held])
    assert not tables.reads.is_to_read
    assert tables.reads.resume(["public.a"]) == []
    tables.states.set_requests(B, [held, SnapshotRequest(kind="blocking")])
    assert tables.reads.is_to_read  # those go past it
    tables.states.set_requests(B, [held])
    assert len(tables.reads.resume([])) == 1
    assert tables.reads.is_to_read


def test_a_select_of_ones_own_isnt_taken_from_the_topic() -> None:
    """Who may write there may not read all that the daemon's role may."""
    signalled = SignalledTables()
    own = {"data-collection": "public.a", "filter": "SELECT 1 AS id, salary AS v FROM hr.salaries"}
    data = {**BOTH, "type": "blocking", "additional-conditions": [own]}
    for by_topic, count in ((True, 0), (False, 1)):
        signalled.signal("execute", data, by_topic=by_topic)
        assert [len(signalled.of(table)) for table in (A, B)] == [count, count]


@pytest.mark.parametrize(
    "pattern",
    [
        "(.+)+x",
        "(.|.)(.|.)x",
        ".*.*.*.*x",
        "((.*))x",
        "(?=(.+))x",
        r"public\.(.{1,9}){9}",
        "a" * 1_001,
        "(" * 5_000,
        "[",
        ".*.*.*(" + "|".join("." * count for count in range(39)) + ")!",
        r"(.*.*.*)\1!",
        "(?:.*.*.*)!",
        "a{.*.*.*.*}!",
    ],
)
def test_a_pattern_never_takes_long(pattern: str) -> None:
    signalled = SignalledTables()
    begun = time.monotonic()
    assert signalled.signal("execute", {"data-collections": [pattern]}) == []
    assert time.monotonic() - begun < 1


def test_patterns_as_they_are_needed_are_taken() -> None:
    for pattern in (
        *("public.a", r"public\.a", "public.(a|c)", "PUBLIC[.]a", ".*[.]a", "pub.+a+", "PUBLIC.A"),
        *("pub.*?a+?", r"p\w{5}\.a{1,2}"),
    ):
        signalled = SignalledTables()
        signalled.signal("execute", {"data-collections": [pattern]})
        assert len(signalled.of(A)) == 1, pattern


@pytest.mark.parametrize("member", ["data-collections", "additional-conditions"])
def test_many_patterns_for_many_tables_never_take_long(member: str) -> None:
    signalled = SignalledTables()
    for number in range(200):
        name = TableName("public" + "a" * 57, f"{number:03}" + "a" * 60)
        signalled.tables.states.put(table_state(name))
    patterns = ["[^" + "😀-😃" * count + "]*.*.*!" for count in range(1, 200)] * 5
    data: dict[str, Any] = {"data-collections": patterns}
    if member == "additional-conditions":
        conditions = [{"data-collection": pattern, "filter": "true"} for pattern in patterns]
        data = {**ONLY_B, member: conditions}
    begun = time.thread_time()
    with capture_logs() as logs:
        assert signalled.signal("execute", data) == []
    assert time.thread_time() - begun < 2
    assert "take too long to match: write the tables' names instead" in logs[0]["reason"]


def test_many_names_are_one_warning_and_take_no_time() -> None:
    signalled = SignalledTables()
    begun = time.thread_time()
    with capture_logs() as logs:
        signalled.signal("execute", {"data-collections": ["public.a", *["public.none"] * 999]})
    assert time.thread_time() - begun < 1
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert line["names"] == "public.none, " * 4 + "public.none … and 994 more"
    assert len(signalled.of(A)) == 1


@pytest.mark.parametrize("character", ["x", "😀", "\0"])
def test_what_is_asked_for_again_and_again_fits_into_a_record(character: str) -> None:
    """What is counted are the bytes of JSON."""
    signalled = SignalledTables()
    condition = {"data-collection": "public.a", "filter": "x" + character * 8_000 + "x"}
    for _ in range(200):
        signalled.signal("execute", {**BOTH, "additional-conditions": [condition]})
    size = len(signalled.tables.states[A].model_dump_json().encode())
    assert 200 << 10 < size < 270 << 10
    signalled.signal("stop")
    signalled.signal("execute", BOTH)
    assert len(signalled.of(A)) == 1


def test_what_is_asked_for_of_many_tables_fits_into_a_transaction() -> None:
    signalled = SignalledTables()
    for number in range(500):
        signalled.tables.states.put(table_state(TableName("public", f"t{number}")))
    condition = {"data-collection": ".*", "filter": "x" * 8_000}
    everything = {"data-collections": [".*"], "additional-conditions": [condition]}
    sizes = []
    with capture_logs() as logs:
        for _ in range(10):
            records = signalled.signal("execute", everything)
            sizes.append(sum(len(record.value or b"") for record in records))
    assert max(sizes) < 20 << 20
    assert sum(map(bool, sizes)) == 4
    reasons = {line["reason"] for line in logs if "ignored" in line["event"]}
    assert reasons == {"a table waits for too many reads: stop some, or wait for them"}
    assert signalled.signal("stop")


def test_a_signal_with_a_long_id_is_ignored() -> None:
    signalled = SignalledTables()
    follow = signalled._requests.follow
    assert follow("x" * 1_001, "execute-snapshot", BOTH, HERE) == []
    assert follow("x" * 1_000, "execute-snapshot", BOTH, HERE) != []


def test_two_that_no_signal_has_asked_for_are_two() -> None:
    tables = SignalledTables().tables
    for condition in ("x", "y"):
        assert len(tables.reads.ask({A: condition, B: condition}, signal="")) == 2
    first, second = tables.states[A].requests
    assert not first.is_same(second)
    begun = first.model_copy(update={"rows": 5})
    tables.reads.advance(A, begun, 10, 5)
    assert tables.states[A].requests == (begun, second)
    tables.reads.finish(A, begun, HERE, 10)
    assert tables.states[A].requests == (second,)


def test_each_that_is_stopped_is_told_of() -> None:
    signalled = SignalledTables()
    signalled.signal("execute", ONLY_B)
    signalled.tables.states.set_requests(
        B, [*signalled.of(B), SnapshotRequest(kind="incremental", signal="2")]
    )
    states = [
        parse_state(TableState, record.value or b"", "") for record in signalled.signal("stop")[:2]
    ]
    assert [state.outcome.signal for state in states if state.outcome] == ["execute", "2"]
    assert [len(state.requests) for state in states] == [1, 0]


@pytest.mark.parametrize("name", ["other.a", "public.c", "("])
def test_a_table_that_isnt_captured_is_a_warning(name: str) -> None:
    signalled = SignalledTables()
    with capture_logs() as lines:
        assert signalled.signal("execute", {"data-collections": [name]}) == []
    assert lines[0]["log_level"] == "warning"
    assert queued(signalled.tables) == []


def test_notifications_are_debeziums_records() -> None:
    notification = next(
        record for record in SignalledTables().signal("execute", BOTH) if is_notification(record)
    )
    assert notification.key == b'{"id":"execute"}'
    value = json.loads(notification.value or b"")
    assert value.pop("timestamp") > 1_700_000_000_000
    assert value == {
        "id": "execute",
        "type": "STARTED",
        "aggregate_type": "Incremental Snapshot",
        "additional_data": {"connector_name": "pre", "data_collections": "public.a,public.b"},
    }


def test_a_pause_isnt_undone_by_rows_that_were_on_their_way() -> None:
    signalled = SignalledTables()
    signalled.signal("execute", ONLY_B)
    (before,) = signalled.of(B)
    signalled.signal("pause")
    signalled.tables.reads.advance(B, before.model_copy(update={"rows": 5}), 10, 1)
    assert [(request.paused, request.rows) for request in signalled.of(B)] == [(True, 5)]
    (before,) = signalled.of(B)
    signalled.signal("resume")
    signalled.tables.reads.advance(B, before.model_copy(update={"rows": 7}), 10, 2)
    assert [(request.paused, request.rows) for request in signalled.of(B)] == [(False, 7)]


def test_a_blocking_snapshot_leaves_tables_without_a_key_out() -> None:
    keyless = table("id int4", key="", name="b")
    signalled = SignalledTables(schemas=[keyless])
    with capture_logs() as logs:
        signalled.signal("execute", {"type": "blocking", **BOTH})
    assert [len(signalled.of(table)) for table in (A, B)] == [1, 0]
    assert "each row twice" in logs[0]["event"]


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_table_that_could_never_be_captured_isnt_read_by_a_signal(kind: str) -> None:
    """Its read would begin without a topic: where it joins, that is made."""
    signalled = SignalledTables()
    signalled.tables.states.put(NEVER)
    names = {"data-collections": ["public.a", "public.never"], "type": kind, "reset": True}
    with capture_logs() as logs:
        assert signalled.notifications("execute", names) == (
            [("execute", "STARTED", "public.a")] if kind == "incremental" else []
        )
    assert [line["table"] for line in logs if line["log_level"] == "warning"] == ["public.never"]
    assert [request.kind for request in signalled.of(A)] == [kind]
    assert signalled.of(NEVER.name) == ()
    outcome = signalled.tables.states[NEVER.name].outcome
    assert outcome is not None
    assert (outcome.signal, outcome.failure) == ("execute", "it has no key")


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_reset_alone_reads_a_table_that_is_set_aside(kind: str) -> None:
    signalled = SignalledTables()
    signalled.tables.reads.set_aside(B, "it has no key")
    signalled.signal("execute", {**ONLY_B, "type": kind})
    outcome = signalled.tables.states[B].outcome
    assert outcome is not None
    assert (outcome.signal, outcome.failure) == ("execute", "it has no key")
    assert signalled.of(B) == ()
    signalled.signal("execute", {**ONLY_B, "reset": True})
    assert [request.reset for request in signalled.of(B)] == [True]
