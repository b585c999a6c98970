"""A described table and a range of TIDs → the rows in it, in one short transaction.

The transaction first takes the lock of a plain SELECT. So these belong together: the table's
catalog version, its rows, and the snapshot that says which transactions they show. A condition
comes from any user who may send signals, so it is rendered from its parsed form
(cdc/postgres/checks/conditions.py).
https://www.postgresql.org/docs/current/functions-info.html (pg_current_snapshot)
"""

import shlex
from collections.abc import Callable, Collection
from itertools import chain
from typing import Final, NamedTuple, Self

import psycopg
from psycopg import sql

from cdc.compiled.fast import COMMITS_MAX
from cdc.errors import TableGoneError, TableLockedError, TableRefusedError
from cdc.postgres.captured import described_tables
from cdc.postgres.connection import at_one_instant, query
from cdc.postgres.described import CapturedTable, Leaf, TableDescription
from cdc.records.position import Lsn
from cdc.settings import CaptureSettings
from snapshots.reader import Range, frames, of_range, parse_tid

BYTES_MAX: Final = 8 << 20
"""A chunk ends with the row that reaches this size, as it is in memory until its watermark."""

# DDL writes these catalog rows again: while their xmins stay, the description is valid.
_LEAF_STATE: Final = """
SELECT pg_relation_filenode(c.oid)::int8, concat_ws(' ', c.xmin, (
    SELECT string_agg(concat(a.xmin, '.', d.xmin), ',' ORDER BY a.attnum)
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = %s AND a.attnum > 0
), (
    SELECT string_agg(concat(i.xmin), ',' ORDER BY i.indexrelid)
    FROM pg_index i WHERE i.indrelid = %s AND (i.indisprimary OR i.indisreplident)
), (
    SELECT string_agg(concat(r.oid, '.', r.xmin), ',' ORDER BY r.oid)
    FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE r.prrelid = %s AND p.pubname = %s
), (
    SELECT string_agg(concat(t.relid), ',' ORDER BY t.relid)
    FROM pg_partition_tree(%s) t WHERE t.isleaf
)), pg_current_snapshot()::text, pg_is_in_recovery(),
(extract(epoch FROM clock_timestamp()) * 1000000)::int8
FROM pg_class c WHERE c.oid = %s
"""
_XID_BITS: Final = 32
_NAME: Final = """
SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s
"""
_ORDERED: Final = """
SET LOCAL synchronize_seqscans = off; SET LOCAL enable_indexscan = off;
SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off;
SET LOCAL max_parallel_workers_per_gather = 0
"""
"""Force a TID range scan, or a scan of the whole heap: rows come in the order of their TIDs."""


class Visibility(NamedTuple):
    """The transactions that a snapshot shows: pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]
    is_awaited: bool = False
    """Whether the read waited for everything streamed before (a standby's replay)."""

    @classmethod
    def parse(cls, text: str, *, of_standby: bool = False) -> Self:
        """Parse ``xmin:xmax:xid,xid…``.

        A standby doesn't list running transactions, so nothing from the oldest one on counts as
        shown.
        """
        xmin, xmax, running = text.split(":")
        if of_standby:
            return cls(int(xmin), int(xmin), frozenset(), is_awaited=True)
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Whether it shows a transaction's effects. ``xid`` has 32 bits, as in the stream."""
        half = 1 << (_XID_BITS - 1)
        distance = (xid - self.xmax + half) % (1 << _XID_BITS) - half
        full = self.xmax + distance
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def shows_all_before(self, lsn: Lsn, committed_at: Callable[[int], Lsn]) -> bool:
        """Whether it shows every transaction that the stream had committed up to ``lsn``."""
        if self.is_awaited:
            return True
        mask = (1 << _XID_BITS) - 1
        # The newest ones may be in the WAL, and open for every session: xmax comes before them.
        newer = range(self.xmax, self.xmax + COMMITS_MAX)
        return not any(0 < committed_at(xid & mask) <= lsn for xid in chain(self.running, newer))


class DescribedTable(NamedTuple):
    """A table's description, and the version of its catalog rows for each leaf."""

    table: TableDescription
    catalog_versions: dict[int, str]


class ChunkRange(NamedTuple):
    """The rows that a chunk reads."""

    leaf: Leaf
    tids: Range
    condition: str | None
    rows_max: int
    behind_xid: int = 0


class Chunk(NamedTuple):
    """Rows as COPY sends them, each followed by its TID: the rows of ``range``.

    ``file`` is the leaf's filenode, ``row_count`` the number of rows.
    """

    described: DescribedTable
    leaf: int
    file: int
    range: Range
    rows: bytearray
    row_count: int
    visibility: Visibility
    read_us: int


def open_transactions(xids: Collection[int] = ()) -> str:
    """Return how to see open transactions: all, or those with these XIDs (32 bits)."""
    numbers = ", ".join(f"'{xid}'" for xid in sorted(xids))
    some = f"IN ({numbers})" if numbers else "IS NOT NULL"
    return (
        "see pg_stat_activity (pid, xact_start, query) WHERE"
        f" backend_xid {some}, and pg_prepared_xacts"
    )


def open_remedy(xids: Collection[int] = ()) -> str:
    """Return the remedy for a wait: for all open transactions, or for some (32 bits)."""
    return f"it is read once these transactions have ended: {open_transactions(xids)}"


class _LeafState(NamedTuple):
    """The leaf's filenode, the transaction's view of it, and the time (µs since 1970, UTC)."""

    file: int
    catalog_version: str
    visibility: Visibility
    read_us: int


class AlteredError(Exception):
    """The table differs from its description."""


def describe(
    connection: psycopg.Connection, settings: CaptureSettings, captured: CapturedTable
) -> DescribedTable:
    """Describe a table. Raise TableRefusedError if it can't be read while streaming."""
    with at_one_instant(connection):
        described = described_tables(connection, settings, [captured])
        name = query(connection, _NAME, [captured.oid])
        is_wanted = settings.captures(str(captured.name))
        is_published = described and (described[0].entry or not settings.lossless)
        if not (is_published and name == [captured.name] and is_wanted):
            raise TableGoneError(
                "it was dropped, renamed, or removed from the publication or the lists",
                where=f"table {captured.name}",
            )
        (table,) = described
        versions = {
            leaf.oid: _leaf_state(connection, settings, table, leaf).catalog_version
            for leaf in table.leaves
        }
    if not table.is_chunked:
        again = f"millrace snapshot {shlex.quote(str(table.name))}"
        blocking = "request a snapshot of type blocking; or " if table.identifying_columns else ""
        raise TableRefusedError(
            "it can't be read while it is streamed: this needs a key (or a replica identity by"
            " an index), a heap, and a publication with UPDATE and DELETE",
            where=f"table {table.name}",
            remedy=f"{blocking}stop the daemon, and run {again}",
        )
    return DescribedTable(table, versions)


def read(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    described: DescribedTable,
    chunk_range: ChunkRange,
) -> Chunk:
    """Read rows from the range's start on, as many as a chunk may have.

    Raise AlteredError, the errors of statements, TableLockedError for open transactions, and
    TableRefusedError for a condition that isn't allowed.
    """
    condition = chunk_range.condition
    if condition is not None:  # first, so that no lock or snapshot waits for the parser
        from cdc.postgres.checks.conditions import rendered_for  # its parser is large

        condition = rendered_for(settings, described.table, condition)
    with at_one_instant(connection):
        _lock(connection, settings, chunk_range.leaf)
        state = _leaf_state(connection, settings, described.table, chunk_range.leaf)
        if state.catalog_version != described.catalog_versions.get(chunk_range.leaf.oid):
            raise AlteredError
        if state.visibility.xmin < chunk_range.behind_xid:
            raise TableLockedError(
                "transactions are open that may have changed it before it was published, or"
                " before DDL",
                where=f"table {described.table.name}",
                remedy=open_remedy(),
            )
        columns = [*(column.name for column in described.table.columns), "ctid"]
        conditions = described.table.row_filter, condition
        select = of_range(chunk_range.leaf, columns, chunk_range.tids, conditions)
        select += sql.SQL(" LIMIT {}").format(sql.Literal(chunk_range.rows_max))
        copied = frames(connection, select, BYTES_MAX)
    first, end = chunk_range.tids
    if copied.last is not None and (copied.is_cut or copied.rows >= chunk_range.rows_max):
        end = parse_tid(copied.last) + 1
    return Chunk(
        described,
        chunk_range.leaf.oid,
        state.file,
        (first, end),
        copied.text,
        copied.rows,
        state.visibility,
        state.read_us,
    )


def _leaf_state(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    table: TableDescription,
    leaf: Leaf,
) -> _LeafState:
    root = table.oid
    given = [root, root, root, settings.publication_name, root, leaf.oid]
    rows = query(connection, _LEAF_STATE, given)
    if not rows:
        raise AlteredError
    file, version, snapshot, of_standby, now_us = rows[0]
    visibility = Visibility.parse(snapshot, of_standby=of_standby)
    return _LeafState(file or 0, version, visibility, now_us)


def _lock(connection: psycopg.Connection, settings: CaptureSettings, leaf: Leaf) -> None:
    """Lock before the transaction's snapshot, which would hide rows of a table rewritten since."""
    query(connection, f"SET LOCAL lock_timeout = {settings.snapshot_lock_timeout_ms}")
    query(connection, f"SET LOCAL statement_timeout = {settings.snapshot_query_timeout_ms}")
    lock = sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE")
    try:
        query(connection, lock.format(sql.Identifier(*leaf.name)))
    except TableRefusedError:
        raise AlteredError from None
    query(connection, _ORDERED)
