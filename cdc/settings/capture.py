"""[capture] → the captured tables, their slot and publication, and the treatment of events."""

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from cdc.records.topics import heartbeat_topic, request_topic, signal_topic, transaction_topic
from cdc.settings.events import ColumnSettings, EventSettings, ValueSettings
from cdc.settings.kinds import Names, PatternList, Section, Size, split
from cdc.settings.modes import EventModes, Patterns

_OVERRIDES: Final = "snapshot.select.statement.overrides"


class SnapshotSettings(Section):
    """Settings for existing rows: the rows to read, and the way."""

    snapshot_mode: Literal[
        "initial", "initial_only", "no_data", "always", "when_needed", "recovery"
    ] = Field("initial", alias="snapshot.mode")
    snapshot_include_collection_list: PatternList = Field(
        (), alias="snapshot.include.collection.list"
    )
    snapshot_select_statement_overrides: Names = Field((), alias=_OVERRIDES)
    snapshot_select_statements: dict[str, str] = Field({}, alias=f"{_OVERRIDES}.<schema>.<table>")
    snapshot_chunk_bytes: int = Field(8 << 20, alias="snapshot.chunk.bytes", ge=1 << 13)
    snapshot_max_threads: int = Field(2, alias="snapshot.max.threads", ge=1, le=64)
    snapshot_rows_per_second_max: int = Field(0, alias="snapshot.rows.per.second.max", ge=0)
    snapshot_adaptive: bool = Field(True, alias="snapshot.adaptive")
    snapshot_transaction_max_ms: int = Field(900_000, alias="snapshot.transaction.max.ms", ge=0)
    snapshot_lock_timeout_ms: int = Field(10_000, alias="snapshot.lock.timeout.ms", ge=1)
    snapshot_query_timeout_ms: int = Field(600_000, alias="snapshot.query.timeout.ms", ge=0)

    @model_validator(mode="before")
    @classmethod
    def _gather_statements(cls, data: Any) -> Any:
        """Gather keys ``snapshot.select.statement.overrides.<table>`` into a mapping."""
        start = f"{_OVERRIDES}."
        rest, given = split(data, lambda key: key.startswith(start))
        statements = {key.removeprefix(start): value for key, value in given.items()}
        return rest | {"snapshot_select_statements": statements} if given else data

    @model_validator(mode="after")
    def _has_statements(self) -> Self:
        listed, given = (
            set(self.snapshot_select_statement_overrides),
            set(self.snapshot_select_statements),
        )
        if missing := sorted(listed - given):
            raise ValueError(f"{_OVERRIDES} names {missing[0]}: add {_OVERRIDES}.{missing[0]}")
        if unlisted := sorted(given - listed):
            raise ValueError(f"{_OVERRIDES}.{unlisted[0]}: {_OVERRIDES} doesn't name the table")
        return self

    def snapshots(self, table: str) -> bool:
        """Whether existing rows of a captured ``schema.table`` are read."""
        listed = Patterns(self.snapshot_include_collection_list)
        reads = self.snapshot_mode not in {"no_data", "recovery"}
        return reads and (not listed or listed.match(table))


class SignalSettings(Section):
    """Sources of a running daemon's signals, and destinations of its notifications."""

    signal_enabled_channels: Names = Field(("source",), alias="signal.enabled.channels")
    signal_kafka_topic: str | None = Field(
        None, alias="signal.kafka.topic", pattern=r"^[A-Za-z0-9._-]{1,249}$"
    )
    signal_data_collection: str | None = Field(
        None, alias="signal.data.collection", pattern=r"(?s)^[^.]+\..+$"
    )
    incremental_snapshot_chunk_size: int = Field(
        20_000, alias="incremental.snapshot.chunk.size", ge=1
    )
    incremental_snapshot_watermarking_strategy: Literal[
        "message", "read_only", "insert_insert", "insert_delete"
    ] = Field("message", alias="incremental.snapshot.watermarking.strategy")
    notification_enabled_channels: Names = Field((), alias="notification.enabled.channels")
    notification_sink_topic_name: str | None = Field(
        None, alias="notification.sink.topic.name", pattern=r"^[A-Za-z0-9._-]{1,249}$"
    )

    @property
    def watermarks_in_table(self) -> bool:
        """Whether watermarks are rows of the signal table."""
        has_table = self.signal_data_collection and "source" in self.signal_enabled_channels
        return bool(has_table) and self.incremental_snapshot_watermarking_strategy in {
            "insert_insert",
            "insert_delete",
        }

    @model_validator(mode="after")
    def _has_sink(self) -> Self:
        if "sink" in self.notification_enabled_channels and not self.notification_sink_topic_name:
            raise ValueError(
                "notification.enabled.channels has sink: add notification.sink.topic.name"
            )
        return self


class CaptureSettings(
    ValueSettings, ColumnSettings, EventSettings, SnapshotSettings, SignalSettings
):
    """The captured tables, and their slot and publication."""

    topic_prefix: str = Field(alias="topic.prefix", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    plugin_name: Literal["pgoutput"] = Field("pgoutput", alias="plugin.name")
    slot_name: str = Field("millrace", alias="slot.name", pattern=r"^[a-z0-9_]{1,63}$")
    slot_max_retries: int = Field(6, alias="slot.max.retries", ge=-1)
    slot_retry_delay_ms: int = Field(10_000, alias="slot.retry.delay.ms", ge=1)
    slot_max_lag_bytes: Size | None = Field(None, alias="slot.max.lag.bytes", gt=0)
    slot_max_lag_policy: Literal["warn", "stop", "drop"] = Field(
        "warn", alias="slot.max.lag.policy"
    )
    heartbeat_source_interval_ms: int = Field(10_000, alias="heartbeat.source.interval.ms", ge=0)
    slot_failover: bool = Field(default=True, alias="slot.failover")
    publication_name: str = Field("millrace", alias="publication.name", min_length=1)
    publication_autocreate_mode: Literal["filtered", "disabled"] = Field(
        "filtered", alias="publication.autocreate.mode"
    )
    schema_include_list: PatternList = Field((), alias="schema.include.list")
    schema_exclude_list: PatternList = Field((), alias="schema.exclude.list")
    table_include_list: PatternList = Field((), alias="table.include.list")
    table_exclude_list: PatternList = Field((), alias="table.exclude.list")
    errors_dead_letter_include_list: PatternList = Field(
        (), alias="errors.dead.letter.include.list"
    )
    oversized_record: Literal["set_aside", "dead_letter", "claim_check"] = Field(
        "set_aside", alias="oversized.record"
    )
    table_without_key: Literal["retain", "refuse"] = Field("retain", alias="table.without.key")
    doubt_policy: Literal["reread", "set_aside"] = Field("reread", alias="doubt.policy")
    doubt_reread_bytes_max: Size = Field(10 << 30, alias="doubt.reread.bytes.max", ge=0)
    partition_drop_policy: Literal["keep", "delete"] = Field("keep", alias="partition.drop.policy")
    status_update_interval_ms: int = Field(
        2_000, alias="status.update.interval.ms", ge=100, le=5_000
    )
    max_batch_size: int = Field(20_000, alias="max.batch.size", ge=1)
    max_batch_size_in_bytes: int = Field(16 << 20, alias="max.batch.size.in.bytes", ge=1 << 16)
    spill_memory_bytes: int = Field(32 << 20, alias="spill.memory.bytes", ge=0)
    spill_directory: Path | None = Field(None, alias="spill.directory")

    @model_validator(mode="after")
    def _has_lag(self) -> Self:
        if self.slot_max_lag_policy != "warn" and self.slot_max_lag_bytes is None:
            raise ValueError("slot.max.lag.policy needs slot.max.lag.bytes")
        return self

    def captures(self, table: str) -> bool:
        """Whether ``schema.table`` passes the lists: whole name, any case, as in Debezium.

        The table of signals always does.
        """
        if table == self.signal_data_collection:
            return True
        schema = table.partition(".")[0]
        return _passes(schema, self.schema_include_list, self.schema_exclude_list) and _passes(
            table, self.table_include_list, self.table_exclude_list
        )

    def sets_aside(self, table: str) -> bool:
        """Whether broken records of ``schema.table`` go to the dead letters."""
        return Patterns(self.errors_dead_letter_include_list).match(table)

    def snapshot_rank(self, table: str) -> tuple[int, str]:
        """Return a captured table's rank in a snapshot: by table.include.list, then by name."""
        return (Patterns(self.table_include_list).first(table) or 0, table)

    @property
    def event_modes(self) -> EventModes:
        """Return the modes of events."""
        return EventModes(
            tombstones=self.tombstones_on_delete,
            skipped=frozenset(self.skipped_operations),
            unchanged="placeholder" if self.toast_unavailable == "placeholder" else "absent",
            reselect=self.toast_unavailable == "reselect",
            skip_without_change=self.skip_messages_without_change,
            transaction_metadata=self.provide_transaction_metadata,
            position_header=self.position_header,
            context_headers=self.extended_headers_enabled,
            key_change_headers=self.key_change_headers,
        )

    @property
    def transaction_topic(self) -> str:
        """Return the topic of BEGIN and END events of transactions."""
        return transaction_topic(self.topic_prefix, self.topic_transaction)

    @property
    def signal_topic(self) -> str:
        """Return the topic of signals. With the channel off, it is that of commands.

        That one is Millrace's own, like the state topics: programs that may write there are trusted
        anyway.
        """
        if "kafka" not in self.signal_enabled_channels:
            return request_topic(self.topic_prefix)
        return self.signal_kafka_topic or signal_topic(self.topic_prefix)

    @property
    def notification_topic(self) -> str | None:
        """Return the topic of notifications, if they go to a topic."""
        has_sink = "sink" in self.notification_enabled_channels
        return self.notification_sink_topic_name if has_sink else None

    @property
    def heartbeat_topic(self) -> str:
        """Return the topic of heartbeats."""
        return heartbeat_topic(self.topic_prefix, self.topic_heartbeat_prefix)


def _passes(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    return (not include or Patterns(include).match(name)) and not Patterns(exclude).match(name)
