"""A check that began before later DDL, and counts after it → an unchanged schema."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import psycopg
import pytest

from cdc.compiled.fast import Cursor
from cdc.postgres.catalog import relation_signature
from cdc.postgres.described import TableDescription
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.settings import CaptureSettings
from cdc.tables.doubts import Differences
from cdc.wal.messages import Relation, RelationColumn
from snapshots.catalog_check import CatalogCheck
from snapshots.inspection import Finding, Inspection, WatchedTable
from snapshots.windows import Job, WindowReader
from tests.fixtures.made_tables import COLUMNS, RELATION, STATE, arrive, tables

SETTINGS = CaptureSettings(**{"topic.prefix": "pre", "table.include.list": "public.t"})
RENAMED = RELATION._replace(columns=(RELATION.columns[0], RelationColumn(True, "mail", 25, -1)))
THERE = CatalogTable(TableFingerprint(columns="", identity="", seen="1:1:"), STATE.name, entry=9)


def described(relation: Relation) -> TableDescription:
    return TableDescription(
        oid=relation.oid,
        name=STATE.name,
        columns=tuple(
            column.model_copy(update={"name": now.name})
            for column, now in zip(COLUMNS, relation.columns, strict=True)
        ),
        primary_key=("id",),
        replica_identity="f",
        identity=frozenset({"id"}),
        partitioned=False,
        leaves=(),
        rows_estimated=0,
        block_bytes=8_192,
        row_filter=None,
        signature=relation_signature(relation),
        entry=9,
    )


class Source:
    """A source that was found to have the table as it is ``described``, from there on."""

    def __init__(self, found: TableDescription, wal_begin: Lsn) -> None:
        self._found, self._wal_begin = found, wal_begin

    def ask(self, question: Callable[[psycopg.Connection], Inspection]) -> Job[Inspection]:
        del question
        job = Job[Inspection]()
        job.future = Future()
        job.future.set_result(None)
        finding = Finding(WatchedTable(STATE, None), THERE, Differences(), described=self._found)
        catalog = {STATE.name: THERE}
        job.result = Inspection(self._wal_begin, self._wal_begin, catalog, [finding], {}, set(), {})
        return job


@pytest.mark.parametrize(
    ("wal_begin", "versions"), [(1_500, ["email"]), (2_500, ["email", "mail"])]
)
def test_a_table_isnt_taken_back_to_what_it_was_before_the_stream_told_of_it(
    wal_begin: int, versions: list[str]
) -> None:
    made = tables()
    arrive(made, RELATION, Position(1, Lsn(2_000), 1))
    found = described(RENAMED)
    check = CatalogCheck(cast("WindowReader", Source(found, Lsn(wal_begin))), made, SETTINGS)
    reached = Position(1, Lsn(3_000), 0)
    check.note_ddl()
    for _ in range(3):  # it is asked, answers, and counts
        check.turn(Cursor(reached, reached, reached.commit_lsn))
    newest = made.schemas.newest(STATE.name)
    assert newest is not None
    assert newest.version == len(versions)
    assert newest.columns[1].name == versions[-1]
