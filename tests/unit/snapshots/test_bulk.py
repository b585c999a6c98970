"""Tables of a first snapshot that can't become records → one failure for each."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import snapshots.bulk
from cdc.convert.pipeline import Encoder
from cdc.errors import RecordRefusedError
from cdc.postgres.described import Leaf, TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.settings import CaptureSettings
from snapshots.bulk import Bulk
from snapshots.pace import Pace
from tests.fixtures.made_tables import COLUMNS
from tests.unit.cdc.tables.test_tables import described


def test_a_table_that_has_no_encoder_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoder(table: TableDescription) -> Encoder:
        raise RecordRefusedError(f"no {table.name.name}")

    worker = SimpleNamespace(table=None, close=lambda: None)
    monkeypatch.setattr(snapshots.bulk, "_Worker", lambda *_: worker)
    leaf = Leaf(9, TableName("public", "part"), 3, "d", frozenset())
    empty = replace(described(*COLUMNS), name=TableName("public", "empty"), partitioned=True)
    filled = replace(empty, name=TableName("public", "filled"), leaves=(leaf,))
    settings: Any = {"topic.prefix": "pre", "table.include.list": "public.*"}
    bulk = Bulk(
        CaptureSettings(**settings),
        {},
        cast("Any", None),
        Position(1, Lsn(1), 0),
        encoder,
        time.monotonic() + 60,
        Pace(adaptive=False),
    )
    made = list(bulk.batches([empty, filled], {}))
    assert [(each.progress.table.name, str(each.failure)) for each in made] == [
        ("empty", "no empty"),
        ("filled", "no filled"),
    ]
