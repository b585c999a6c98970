"""Which tables that can't be captured end a start, and which are set aside."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import Mock

import pytest

from cdc.capture.servers import Servers
from cdc.dead_letters.guard import Refusals
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.settings import Settings
from tests.fixtures.made_states import streaming

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
NEW = replace(TABLE, name=TableName("public", "new"))


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
        ("filtered", UNPUBLISHED, False),  # another table of that name, or its publication is gone
        ("filtered", NEW, False),
        ("disabled", TABLE, True),
        ("disabled", NEW, True),  # the publication is the user's, and so is what it makes fail
    ],
)
def test_a_start_never_publishes_a_table_that_cannot_be_captured(
    mode: str, table: TableDescription, is_spared: bool
) -> None:
    made = servers(**{"publication.autocreate.mode": mode})
    assert made.is_spared(table, {CAPTURED}) == is_spared


def test_a_first_start_sets_nothing_aside() -> None:
    made = servers(**{"publication.autocreate.mode": "disabled"})
    made.progress = None
    assert not made.is_spared(TABLE, {CAPTURED})
