"""Configuration → the search indexes that there are, or are to be, by their names."""

from cdc.log.state import read_all
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import TableState
from cdc.records.topics import schema_topic, table_topic
from cdc.settings import Settings


def keyed_tables(settings: Settings) -> list[TableName]:
    """The captured tables whose rows have keys, and so can be documents."""
    prefix = settings.capture.topic_prefix
    schemas = read_all(settings.kafka, schema_topic(prefix), TableSchema)
    newest = {one.name: one for one in sorted(schemas, key=lambda schema: schema.version)}
    states = read_all(settings.kafka, table_topic(prefix), TableState)
    return [one.name for one in states if one.name in newest and newest[one.name].key]


def all_aliases(settings: Settings) -> dict[str, str]:
    """The aliases of all indexes, by the names of tables and documents."""
    from sinks.search.documents import aliases

    if settings.search is None:
        return {}
    return aliases(settings.search, keyed_tables(settings))
