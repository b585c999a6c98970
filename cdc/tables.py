"""Relation messages and catalog descriptions → an encoder per table, in its current version.

Also keeps each table's state record. What is new (a schema version, a table's state) is handed
out as a state record, to be written in the same Kafka transaction as the rows that need it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

from cdc.errors import GapError, UnreadTableError
from cdc.events import TableEncoder
from cdc.postgres.catalog import TableDescription, relation_signature
from cdc.records.position import Lsn, Position
from cdc.records.record import Record
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.state import Phase, TableState, schema_record, table_record
from cdc.records.topics import data_topic
from cdc.schemas import SchemaHistory
from cdc.settings import Settings
from cdc.wal.messages import Relation

DescribeRelation = Callable[[Relation], tuple[Column, ...]]
Entry = Callable[[int], int]
"""A relation's OID → the OID of its entry in the publication."""


class Tables:
    """The captured tables as the log knows them: states, schema versions, encoders."""

    def __init__(
        self,
        settings: Settings,
        database: str,
        states: Iterable[TableState],
        schemas: Iterable[TableSchema],
        describe: DescribeRelation,
        entry: Entry,
    ) -> None:
        self.states = {state.name: state for state in states}
        self.prefix = settings.capture.topic_prefix
        self._captures = settings.capture.captures
        self._partitions = settings.log.topic_partitions
        self._database = database
        self._history = SchemaHistory(self.prefix, schemas)
        self._describe = describe
        self._entry = entry

    def unread(
        self, described: Iterable[TableDescription], again: Collection[str] = ()
    ) -> list[TableDescription]:
        """The tables whose rows aren't all in the log yet, and those asked for again."""
        return [
            table
            for table in described
            if str(table.name) in again or not self.is_whole(table.name)
        ]

    def is_whole(self, table: TableName) -> bool:
        """Whether all of the table's rows are in the log."""
        return table in self.states and self.states[table].phase is Phase.STREAMING

    def has_read(self, relation: Relation, position: Position) -> bool:
        """Whether the table's snapshot shows what was committed at the position."""
        state = self.states.get(TableName(relation.namespace, relation.name))
        return state is not None and position < Position(state.epoch, state.snapshot_lsn, 0)

    def begin_snapshot(self, table: TableDescription, consistent_point: Lsn) -> list[Record]:
        """Start (or start again) a table's snapshot; returns the state records to write."""
        known = self.states.get(table.name)
        renamed = self._renamed(table.oid, table.name, consistent_point)
        begun = self._set(
            TableState(
                namespace=table.name.namespace,
                table=table.name.name,
                topic=data_topic(self.prefix, table.name),
                partitions=known.partitions if known else self._partitions,
                cleanup="compact" if any(column.key for column in table.columns) else "delete",
                epoch=1,
                phase=Phase.SNAPSHOT,
                snapshot_lsn=consistent_point,
                oid=table.oid,
                entry=table.entry,
                rows_estimated=table.rows_estimated,
            )
        )
        return [*renamed, begun]

    def advance_snapshot(self, table: TableName, rows: int, chunks: tuple[int, int]) -> Record:
        """Count the chunks (done, total) and rows sent so far; returns the table's state record."""
        chunks_done, chunks_total = chunks
        return self._set(
            self.states[table].model_copy(
                update={
                    "rows_sent": rows,
                    "chunks_done": chunks_done,
                    "chunks_total": chunks_total,
                    "phase": Phase.STREAMING if chunks_done == chunks_total else Phase.SNAPSHOT,
                    "ts_ms": time.time_ns() // 1_000_000,
                }
            )
        )

    def _set(self, state: TableState) -> Record:
        self.states[state.name] = state
        return table_record(self.prefix, state)

    def snapshot_encoder(
        self, table: TableDescription, since: Position
    ) -> tuple[TableEncoder, list[Record]]:
        """An encoder for a described table, and the record of its schema version if it is new."""
        return self._encoder(
            table.name, table.signature, table.replica_identity, since, lambda: table.columns
        )

    def stream_encoder(
        self, relation: Relation, since: Position
    ) -> tuple[TableEncoder | None, list[Record]]:
        """An encoder for a relation, or None when its table isn't captured.

        Raises UnreadTableError when it should be: the next start reads its rows first. Raises
        GapError if it left the publication and came back: PostgreSQL then sends a new Relation.
        """
        table = TableName(relation.namespace, relation.name)
        renamed = self._renamed(relation.oid, table, since.commit_lsn)
        if table not in self.states:
            if self._captures(str(table)):
                raise UnreadTableError(
                    f"changes of table {table} arrive, whose rows were never read: it was renamed,"
                    " or added to the publication",
                    where=f"position {since}",
                    remedy="start again: its rows are read first. If this comes again, the table"
                    " had this name for a while only: leave the name out by table.exclude.list,"
                    " then read it again by `millrace snapshot` under its present name",
                )
            return None, renamed
        entry = self._entry(relation.oid)
        if entry != 0 and self._captures(str(table)):  # 0: it has just left, maybe for ever
            check_published([self.states[table]], {table: (relation.oid, entry)}, since.commit_lsn)
        encoder, new = self._encoder(
            table,
            relation_signature(relation),
            relation.replica_identity,
            since,
            lambda: self._describe(relation),
        )
        return encoder, [*renamed, *new]

    def _renamed(self, oid: int, name: TableName, lsn: Lsn) -> list[Record]:
        """Note in a table's state that it goes by another name since then."""
        return [
            self._set(state.model_copy(update={"renamed_lsn": lsn}))
            for state in list(self.states.values())
            if state.oid == oid and state.name != name
            if state.renamed_lsn is None and lsn > state.snapshot_lsn
        ]

    def _encoder(
        self,
        table: TableName,
        signature: str,
        replica_identity: Literal["d", "n", "f", "i"],
        since: Position,
        columns: Callable[[], tuple[Column, ...]],
    ) -> tuple[TableEncoder, list[Record]]:
        schema = self._history.current(table, signature)
        new: list[Record] = []
        if schema is None:
            schema = self._history.add(table, columns(), signature, replica_identity, since)
            new.append(schema_record(self.prefix, schema))
        state = self.states[table]
        encoder = TableEncoder(
            schema,
            prefix=self.prefix,
            database=self._database,
            partitions=state.partitions,
            compacted=state.cleanup == "compact",
        )
        return encoder, new


def check_published(
    states: Iterable[TableState],
    now: Mapping[TableName, tuple[int, int]],
    lsn: Lsn | None = None,
) -> None:
    """Raise GapError for tables that aren't, or aren't published, as when they were read.

    ``now`` has the OIDs of each table and of its entry in the publication, at ``lsn`` or today.
    """
    names = [
        str(state.name)
        for state in states
        if state.oid and (found := now.get(state.name)) is not None
        if found != (state.oid, state.entry)
        or (state.renamed_lsn is not None and (lsn is None or lsn > state.renamed_lsn))
    ]
    if names:
        raise GapError(
            "tables left the publication or had another name, and came back, were made anew, or are"
            " published with other columns or rows: what they lack isn't in the log:"
            f" {', '.join(names[:20])}",
            remedy="read them again: millrace snapshot " + " ".join(names),
        )
