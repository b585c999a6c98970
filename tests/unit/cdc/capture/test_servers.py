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
