"""Nothing -> a table's index at the run's OpenSearch, and what tests ask it for."""

from collections.abc import Iterable, Mapping
from typing import Any

from opensearchpy import OpenSearch as Client

from cdc.records.position import Lsn, Position
from cdc.records.schema import Column, TableName, TableSchema
from cdc.settings import SearchSettings
from sinks.search.bulk import Action
from sinks.search.client import connect
from sinks.search.documents import POSITION_FIELD, document_id, index_name, mapping
from sinks.search.indexes import TableIndex, write_alias

TABLE = TableName("public", "things")


def settings(url: str, prefix: str = "", **more: Any) -> SearchSettings:
    return SearchSettings.model_validate({"url": url, "index.prefix": prefix, **more})


def schema(
    columns: Mapping[str, str], key: Iterable[str] = ("id",), version: int = 1
) -> TableSchema:
    ordinals = {name: number for number, name in enumerate(key, 1)}
    return TableSchema(
        namespace=TABLE.namespace,
        table=TABLE.name,
        version=version,
        since=str(position(1)),
        topic="test.public.things",
        replica_identity="d",
        columns=tuple(
            Column(name=name, type=kind, type_oid=0, declared=kind, key=ordinals.get(name))
            for name, kind in columns.items()
        ),
        signature=str(version),
    )


def position(lsn: int, index: int = 1) -> Position:
    return Position(1, Lsn(lsn), index)


def upsert(
    key: str,
    lsn: int,
    fields: str = "",
    absent: tuple[str, ...] = (),
    filled: tuple[str, ...] = (),
) -> Action:
    text = f'"id":"{key}",{fields + "," if fields else ""}"{POSITION_FIELD}":"{position(lsn)}"'
    return Action(document_id([key]), lsn, f"{{{text}}}".encode(), absent, filled)


def delete(key: str, lsn: int) -> Action:
    return Action(document_id([key]), lsn, None)


class Target:
    """One table's index, already published."""

    def __init__(self, url: str, prefix: str) -> None:
        self.settings = settings(url, prefix)
        self.client: Client = connect(self.settings)
        self.alias = index_name(prefix, TABLE)
        self.table_index = TableIndex(self.client, self.alias, "test", str(TABLE))
        self.index = self.table_index.make(
            mapping(schema({"id": "text", "n": "int4", "big": "text"})), 1
        )
        self.write_alias = write_alias(self.index)
        self.table_index.publish(self.index)

    def documents(self) -> dict[str, dict[str, Any]]:
        """Every document by id, without its position."""
        self.table_index.refresh(self.alias)
        answer = self.client.search(index=self.alias, body={"size": 10_000})
        hits = {hit["_id"]: dict(hit["_source"]) for hit in answer["hits"]["hits"]}
        for source in hits.values():
            source.pop(POSITION_FIELD)
        return hits
