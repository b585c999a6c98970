"""Relations and catalog descriptions → schema versions: one more where the columns changed."""

from collections.abc import Iterable
from typing import Literal

from cdc.records.position import Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.topics import data_topic


class SchemaHistory:
    """The newest schema version of each table, as the log has it.

    A version is compared by its signature, so that asking the catalog what a Relation message
    doesn't say is needed only where the signature is new.
    """

    def __init__(self, prefix: str, stored: Iterable[TableSchema]) -> None:
        self._prefix = prefix
        self._newest: dict[TableName, TableSchema] = {}
        self._older: dict[tuple[TableName, str], TableSchema] = {}
        for schema in sorted(stored, key=lambda schema: schema.version):
            self._set(schema)

    def current(self, table: TableName, signature: str, at: Position) -> TableSchema | None:
        """The newest version, if it still has this signature.

        Of what is streamed once more, from before that version, an older one that has it.
        """
        newest = self._newest.get(table)
        if newest is None or newest.signature == signature:
            return newest
        is_older = at < Position.parse(newest.since)
        return self._older.get((table, signature)) if is_older else None

    def newest(self, table: TableName) -> TableSchema | None:
        """The newest version, whatever its signature."""
        return self._newest.get(table)

    def add(
        self,
        table: TableName,
        oid: int,
        columns: tuple[Column, ...],
        signature: str,
        replica_identity: Literal["d", "n", "f", "i"],
        since: Position,
    ) -> TableSchema:
        """A new version, which the caller writes to the schema topic with its first row."""
        newest = self._newest.get(table)
        schema = TableSchema(
            namespace=table.namespace,
            table=table.name,
            version=newest.version + 1 if newest else 1,
            since=str(since),
            topic=data_topic(self._prefix, table),
            replica_identity=replica_identity,
            columns=columns,
            signature=signature,
            oid=oid,
        )
        self._set(schema)
        return schema

    def _set(self, schema: TableSchema) -> None:
        self._newest[schema.name] = self._older[schema.name, schema.signature] = schema
