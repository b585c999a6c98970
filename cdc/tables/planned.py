"""A table as the catalog has it → whether events can be made of it, before any exist."""

from cdc.events.fields import plan
from cdc.events.rules import EventRules, rekeyed
from cdc.postgres.described import TableDescription
from cdc.records.schema import TableSchema
from cdc.records.topics import data_topic


def check_events(table: TableDescription, prefix: str, rules: EventRules) -> None:
    """Raise TableRefusedError if no events can be made of a table as it is described."""
    plan(
        TableSchema(
            namespace=table.name.namespace,
            table=table.name.name,
            version=1,
            since="",
            topic=data_topic(prefix, table.name),
            replica_identity=table.replica_identity,
            columns=rekeyed(table.columns, table.name, table.replica_identity, rules),
            signature=table.signature,
            oid=table.oid,
        ),
        rules,
    )
