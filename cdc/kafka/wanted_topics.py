"""Settings, tables and their recorded states → the topics that must exist, and what is wrong.

Code that creates topics and code that checks them use the same list.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka.cimpl import NewTopic

from cdc.errors import TopicMismatchError
from cdc.kafka.admin import TopicDescription
from cdc.kafka.copies import MIN_ISR, Copies
from cdc.kafka.options import MESSAGE_BYTES_MAX
from cdc.kafka.topic_settings import TopicTable, WantedTopic, promised, setting_findings
from cdc.records.state import TableState
from cdc.records.topics import (
    Cleanup,
    claim_topic,
    data_topic,
    dead_letter_topic,
    progress_topic,
    schema_topic,
    table_topic,
)
from cdc.settings import CaptureSettings, LibraryOptions
from cdc.settings.model import LogSettings

START_OVER: Final = "begin a new log: millrace drop --yes --topics, then millrace run"


def state_topics(prefix: str) -> list[WantedTopic]:
    """Return the topics of progress, schemas and tables."""
    names = [named(prefix) for named in (progress_topic, schema_topic, table_topic)]
    return [WantedTopic(name, 1, "compact", content="state") for name in names]


def topics_beside(settings: CaptureSettings) -> list[WantedTopic]:
    """Return the topics for replacements of records that don't fit into theirs."""
    prefix, oversized = settings.topic_prefix, settings.oversized_record
    has_dead_letters = settings.errors_dead_letter_include_list or oversized == "dead_letter"
    names = [dead_letter_topic(prefix)] if has_dead_letters else []
    names += [claim_topic(prefix)] if oversized == "claim_check" else []
    return [WantedTopic(name, 2, "compact", content="state") for name in names]


def data_config(kafka: LibraryOptions) -> dict[str, str]:
    """Return the settings of a topic of changes.

    The brokers' default is 1 MiB, so a long text would stop a daemon that could send it.
    """
    return {"max.message.bytes": kafka.get("message.max.bytes", str(MESSAGE_BYTES_MAX))}


def wanted_topic(
    prefix: str, settings: LogSettings, table: TopicTable, state: TableState | None
) -> WantedTopic:
    """Return a table's topic. Its recorded state takes precedence over the settings."""
    keyed = any(column.key is not None for column in table.columns)
    policy = settings.topic_cleanup_policy
    cleanup: Cleanup = policy if keyed else "delete"
    name = data_topic(prefix, table.name)
    if state is None or not state.is_in_log:
        return WantedTopic(name, settings.topic_partitions, cleanup)
    if keyed and policy == "delete" and state.cleanup == "compact":
        raise TopicMismatchError(
            f"table {table.name} has a compacted topic, but topic.cleanup.policy is delete",
            where=f"topic {state.topic}",
            remedy='set topic.cleanup.policy = "compact" in [log], or capture again with another'
            " topic.prefix",
        )
    if state.cleanup == "compact" and not keyed:
        raise TopicMismatchError(
            f"table {table.name} no longer has a primary key, but its topic was made for a table"
            " with a key",
            where=f"topic {state.topic}, cleanup.policy={state.cleanup}",
            remedy="undo the change, or leave the table out (table.exclude.list)",
        )
    return WantedTopic(state.topic, state.partitions, state.cleanup, recorded=True)


def new_topic(
    topic: WantedTopic, copies: Copies, config: Mapping[str, str], keep_ms: int
) -> NewTopic:
    """Return the request for a topic."""
    settings = {MIN_ISR: str(copies.min_isr), **promised(topic.cleanup, keep_ms), **config}
    return NewTopic(topic.name, topic.partitions, copies.replication_factor, config=settings)


def channel_mismatches(
    name: str, existing: TopicDescription, servers: str, keep_ms: int | None = None
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an existing topic of signals, notifications or runs.

    The topic stays unchanged. ``keep_ms``: how long it must keep its records, if that matters.
    """
    for setting, value, finding in setting_findings("delete", existing.config, keep_ms or 0):
        if keep_ms is not None or setting == "cleanup.policy":
            yield f"topic {name}: {finding}", _alter(servers, name, setting, value)
    if existing.partitions != 1:
        what = "but only the first is read, or their order is lost"
        delete = f"kafka-topics --bootstrap-server {servers} --delete --topic {name}"
        yield (
            f"topic {name} has {existing.partitions} partitions, {what}",
            f"run {delete}; the next start creates it again",
        )


def _alter(servers: str, topic: str, setting: str, value: str) -> str:
    """Return the command that changes a topic's setting."""
    return (
        f"kafka-configs --bootstrap-server {servers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}={value}"
    )


def topic_mismatches(
    wanted: WantedTopic, existing: TopicDescription | None, keep_ms: int, servers: str
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a topic, with its remedy. A topic still to be created is correct."""
    if existing is None:
        if wanted.recorded:
            yield f"topic {wanted.name} was deleted, and nothing else has its records", START_OVER
        return
    for name, value, finding in setting_findings(wanted.cleanup, existing.config, keep_ms):
        yield f"topic {wanted.name}: {finding}", _alter(servers, wanted.name, name, value)
    if existing.partitions != wanted.partitions:
        yield (
            f"topic {wanted.name} has {existing.partitions} partitions, not {wanted.partitions}",
            _repartition(wanted, existing, servers),
        )


def _repartition(wanted: WantedTopic, existing: TopicDescription, servers: str) -> str:
    """Return the remedy for a number of partitions.

    Kafka only adds some, and then keys have moved.
    """
    if wanted.recorded:
        return (
            "keys have moved between partitions: begin a new log (millrace drop --yes --topics,"
            " then millrace run)"
        )
    if wanted.content == "changes":
        return f"delete the topic, or set topic.partitions = {existing.partitions} in [log]"
    delete = f"kafka-topics --bootstrap-server {servers} --delete --topic {wanted.name}"
    anew = f"run {delete}; the next start creates it again"
    return (
        anew if wanted.content == "reports" else f"if no daemon has run yet, {anew}; {START_OVER}"
    )
