"""Settings → rules of events, the pipeline that makes records, and the lookups of tables."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psycopg

from cdc.capture.servers import Servers
from cdc.convert.converters import Converters, converters
from cdc.convert.pipeline import OpenTopic, RecordPipeline, RecordTime, any_time
from cdc.dead_letters.claims import Claims
from cdc.dead_letters.guard import DeadLetters, Oversized
from cdc.errors import UnreadTableError
from cdc.events.rules import EventRules
from cdc.kafka.topics import LogTopics
from cdc.log.state import StateReader, read_all
from cdc.orders.orders import Orders
from cdc.postgres import catalog
from cdc.postgres.captured import captured_tables, described_tables, keyed_columns
from cdc.postgres.checks import preflight
from cdc.postgres.checks.rights import check_readable
from cdc.postgres.columns import filled_columns
from cdc.postgres.connection import current_insert_lsn
from cdc.postgres.described import CapturedTable, TableDescription
from cdc.postgres.failures import explained, server_address
from cdc.postgres.publications import publication_entries
from cdc.postgres.reselect import INVISIBLE, Rereading, await_visible
from cdc.records.dead_letters import ClaimHead
from cdc.records.position import Lsn
from cdc.records.schema import Column, TableName, TableSchema
from cdc.records.topics import claim_topic, schema_topic, table_topic
from cdc.settings import CaptureSettings, Settings
from cdc.settings.modes import Patterns
from cdc.stream.encoding import Actions
from cdc.tables.tables import Effects, Lookups, Tables
from cdc.transforms.chain import chain, routes_events
from cdc.wal.messages import Relation


def event_rules(settings: Settings) -> EventRules:
    """Return the rules in [capture]. A placeholder replaces a member that the format can't omit."""
    capture = settings.capture
    events = capture.event_modes
    if events.unchanged == "absent" and not _converters(settings).leaves_out:
        events = replace(events, unchanged="placeholder")
    return EventRules(
        values=capture.value_modes,
        events=events,
        columns=capture.column_modes,
        schema_names=capture.schema_name_adjustment_mode,
        field_names=capture.field_name_adjustment_mode,
        message_prefix_include=Patterns(capture.message_prefix_include_list),
        message_prefix_exclude=Patterns(capture.message_prefix_exclude_list),
    )


def pipeline(
    settings: Settings, open_topic: OpenTopic, record_time: RecordTime = any_time
) -> RecordPipeline:
    """Build the transforms and converters. Raise if their settings are wrong.

    Asks a schema registry whether it answers.
    """
    convert = _converters(settings)
    convert.check()
    # Build the chain even if nothing passes through it: it also checks the predicates.
    made = chain(settings.transforms, settings.predicates, lossless=settings.capture.lossless)
    return RecordPipeline(
        convert,
        made if settings.transforms else None,
        position_header=settings.capture.position_header,
        open_topic=open_topic,
        record_time=record_time,
        routes_events=routes_events(settings.transforms),
    )


def lookups(
    connection: psycopg.Connection, settings: CaptureSettings, keep_alive: Callable[[], None]
) -> Lookups:
    """Return the lookups of joining tables, on the session's own connection."""

    def columns(relation: Relation) -> tuple[Column, ...]:
        described = catalog.describe_relation(connection, relation, settings.publication_name)
        lossless = settings.lossless
        return described if lossless else keyed_columns(connection, relation.oid, described)

    def entry(oid: int) -> int:
        entries = publication_entries(connection, settings.publication_name, [oid])
        return entries.get(oid, 0)

    def description(oid: int, name: TableName) -> TableDescription | None:
        table = CapturedTable(oid, name)
        if table not in captured_tables(connection, settings):
            return None
        return next(iter(described_tables(connection, settings, [table])), None)

    def instant() -> tuple[Lsn, int]:
        # In this order: the end of the transaction moves the WAL even if no other session writes.
        return current_insert_lsn(connection), catalog.new_xid(connection)

    def visible(xid: int) -> None:
        with explained(connection.pgconn):
            is_seen = await_visible(connection, frozenset({xid}), keep_alive)
        if not is_seen:
            remedy = "the daemon continues once this is over"
            raise UnreadTableError(
                INVISIBLE, where=server_address(connection.pgconn), remedy=remedy
            )

    check = partial(preflight.check_joining, connection, settings)
    readable = partial(check_readable, connection)
    filled = partial(filled_columns, connection)
    return Lookups(columns, entry, description, instant, check, readable, visible, filled)


def open_tables(servers: Servers) -> Tables:
    """Open the tables as the log has them."""
    settings, topics = servers.settings, servers.topics
    capture, kafka = settings.capture, settings.kafka
    prefix, keep_alive = capture.topic_prefix, topics.while_waiting
    log = StateReader(kafka, keep_alive)
    tables = Tables(
        settings,
        servers.system.database,
        log.read_tables(table_topic(prefix)),
        log.read_all(schema_topic(prefix), TableSchema),
        event_rules(settings),
        pipeline(settings, topics.open_topic, topics.record_times),
        lookups(servers.sql, capture, keep_alive),
        DeadLetters(
            prefix,
            capture.sets_aside,
            topics.limits,
            servers.refusals,
            capture.column_modes,
            _oversized(settings, topics),
        ),
    )
    if servers.progress is not None:
        tables.states.checked = servers.progress.checked
        tables.states.watched_ms = servers.progress.watched_ms
    return tables


def open_actions(servers: Servers, tables: Tables) -> Actions:
    """Build the stream's actions on both servers."""
    settings, topics, connection = servers.settings, servers.topics, servers.sql
    rereading = Rereading(settings.source, topics.while_waiting)
    servers.stack.callback(rereading.close)
    orders = Orders(
        settings,
        connection,
        topics,
        tables.states,
        tables.schemas,
        tables.encoders,
        servers.refusals,
    )

    def perform(effects: Effects) -> None:
        for topic in effects.topics:
            topics.open_topic(topic.name, topic.cleanup)
        if effects.moves_wal:
            catalog.new_xid(connection)  # writes the transaction's end

    return Actions(perform, rereading, orders.follow)


def _oversized(settings: Settings, topics: LogTopics) -> Oversized:
    if settings.capture.oversized_record != "claim_check":
        return settings.capture.oversized_record
    prefix = settings.capture.topic_prefix
    heads = read_all(settings.kafka, claim_topic(prefix), ClaimHead, topics.while_waiting)
    return Claims(prefix, topics.limits, heads)


def _converters(settings: Settings) -> Converters:
    return converters(settings.format, preset=settings.preset == "debezium")
