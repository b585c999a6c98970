"""Settings and what a command asks for → a merge's options, with whom it may ask."""

from functools import partial

from cdc.convert.registry import schema_reader
from cdc.errors import ConfigError
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.connection import connect
from cdc.records.schema import Column
from cdc.records.topics import data_topic
from cdc.settings import Settings
from sinks.run.options import RunOptions


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


def run_options(
    settings: Settings,
    records_max: int | None,
    accepted_gaps: frozenset[str],
    *,
    types_from_source: bool,
) -> RunOptions:
    """The options of a run; raises ConfigError for one that the topics have no use for."""
    lakehouse = settings.lakehouse
    if lakehouse is None or lakehouse.topics_written_by == "millrace":
        if types_from_source:
            raise ConfigError(
                "Millrace's own log tells all types",
                where="--types-from-source",
                remedy='it is for topics_written_by = "debezium" in [lakehouse]',
            )
        return RunOptions(records_max, accepted_gaps)
    types_of = None
    if types_from_source:
        from deploy.commands.merge import source_types

        types_of = partial(source_types, settings)
    return RunOptions(records_max, accepted_gaps, schema_reader(settings.format), types_of)
