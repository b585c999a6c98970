"""A chunk's condition → SQL, or a refusal, before any query at the source."""

from typing import Any, cast

import pytest

from cdc.errors import TableRefusedError
from cdc.postgres.described import Leaf
from cdc.settings import CaptureSettings
from snapshots.chunk import ChunkRange, DescribedTable, read
from snapshots.reader import ALL
from tests.unit.snapshots.test_changes import TABLE


def test_no_lock_or_snapshot_is_held_while_a_condition_is_read() -> None:
    settings = CaptureSettings(**{"topic.prefix": "pre", "table.include.list": "public.t"})
    leaf = Leaf(1, TABLE.name, 1, "d", frozenset({"id"}))
    asked = ChunkRange(leaf, ALL, "pg_sleep(1) IS NULL", 1)
    nobody = cast("Any", None)
    with pytest.raises(TableRefusedError, match="the function pg_sleep"):
        read(nobody, settings, DescribedTable(TABLE, {1: ""}), asked)
