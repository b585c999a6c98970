"""Tables that can't be captured → the end of a start, or the table set aside."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import Mock

import pytest

from cdc.capture.servers import Servers
from cdc.dead_letters.guard import Refusals
from cdc.errors import LogAccessError, LogError, LogUnreachableError
from cdc.postgres import publishing
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Progress
from cdc.settings import Settings
from tests.fixtures.made_states import streaming, table_state

CAPTURED = TableName("public", "t")
TABLE = TableDescription(
    oid=8,
    name=CAPTURED,
    columns=(),
    primary_key=(),
    replica_identity="d",
    identity=frozenset(),
    partitioned=False,
    leaves=(),
    rows_estimated=0,
    block_bytes=8192,
    row_filter=None,
    signature="",
    entry=9,
)
UNPUBLISHED = replace(TABLE, entry=0)


def servers(**capture: object) -> Servers:
    """A start behind which the log is already."""
    lists = {"topic.prefix": "pre", "table.include.list": "public.*"}
    settings = Settings(
        source={}, capture={**lists, **capture}, kafka={"bootstrap.servers": "nowhere"}
    )
    made = Servers(
        settings,
        ExitStack(),
        threading.Event(),
        Mock(),
        refusals=Refusals(),
        in_progress=False,
    )
    made.progress = streaming(Position(1, Lsn(9), 0))
    return made


@pytest.mark.parametrize(
    ("mode", "table", "is_spared"),
    [
        ("filtered", TABLE, True),
        ("filtered", UNPUBLISHED, True),
        ("disabled", TABLE, True),
    ],
)
def test_a_table_that_cannot_be_captured_ends_no_later_start(
    mode: str, table: TableDescription, is_spared: bool
) -> None:
    made = servers(**{"publication.autocreate.mode": mode})
    assert made.is_spared(table) == is_spared


@pytest.mark.parametrize(
    ("mode", "table", "is_spared"),
    [
        ("filtered", TABLE, False),
        ("filtered", UNPUBLISHED, True),  # it isn't captured
        ("disabled", UNPUBLISHED, False),  # whose rows Debezium reads
    ],
)
def test_without_a_catalog_check_only_what_is_not_published_is_left_out(
    mode: str, table: TableDescription, is_spared: bool
) -> None:
    made = servers(**{"publication.autocreate.mode": mode, "lossless": "false"})
    assert made.is_spared(table) == is_spared


def log_that_fails(error: LogError) -> Callable[..., Progress | None]:
    def last_progress(*_: object) -> Progress | None:
        raise error

    return last_progress


def test_while_the_log_is_away_nobody_can_tell_whether_a_table_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon that has streamed waits for the brokers then, though a table is set aside."""
    made = servers()
    made.progress = None
    where = "cdc.capture.servers.last_progress"
    monkeypatch.setattr(made, "lease", Mock(), raising=False)
    monkeypatch.setattr(where, log_that_fails(LogUnreachableError("nothing answers")))
    with pytest.raises(LogUnreachableError):
        made.has_begun()
    monkeypatch.setattr(where, log_that_fails(LogAccessError("refused")))
    assert not made.has_begun()
    monkeypatch.setattr(where, lambda *_: streaming(Position(1, Lsn(9), 0)))
    assert made.has_begun()
    monkeypatch.setattr(where, log_that_fails(LogUnreachableError("nothing answers")))
    assert made.has_begun(), "it has begun for good"


def test_what_the_log_has_by_its_oid_or_of_the_epoch_before_by_its_name_is_not_new() -> None:
    other = TableName("public", "other")
    states = [table_state(CAPTURED, oid=8), table_state(other, oid=0)]
    new = CapturedTable(10, CAPTURED)  # made anew, under the same name
    asked = [CapturedTable(8, CAPTURED), CapturedTable(9, other), new]
    assert publishing.unknown(asked, states) == [new]
