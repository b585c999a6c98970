"""The source's catalog → the types of captured tables' columns, for topics that don't tell them."""

from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import connect
from cdc.records.schema import Column
from cdc.records.topics import data_topic
from cdc.settings import Settings


def source_types(settings: Settings) -> dict[str, dict[str, Column]]:
    """Columns by topic and name, as the tables have them now; nothing is written."""
    read_only = {"default_transaction_read_only": "on"}
    with connect(settings.source, purpose="column types", pinned=read_only) as connection:
        tables = captured_tables(connection, settings.capture)
        described = described_tables(connection, settings.capture, tables)
    prefix = settings.capture.topic_prefix
    return {
        data_topic(prefix, table.name): {column.name: column for column in table.columns}
        for table in described
    }
