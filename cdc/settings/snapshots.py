"""Debezium's keys of [capture] about snapshots, signals and notifications."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from cdc.settings.kinds import PatternList, Section, names
from cdc.settings.modes import Patterns

_OVERRIDES: Final = "snapshot.select.statement.overrides"
Names = Annotated[tuple[str, ...], BeforeValidator(names)]


class SnapshotSettings(Section):
    """What of the existing rows is read, and how."""

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
        """Keys that hold a table's name can't be fields: they become one."""
        if not isinstance(data, Mapping):
            return data
        start = f"{_OVERRIDES}."
        statements = {key: value for key, value in data.items() if str(key).startswith(start)}
        if not statements:
            return data
        return {key: value for key, value in data.items() if key not in statements} | {
            "snapshot_select_statements": {
                str(key).removeprefix(start): value for key, value in statements.items()
            }
        }

    @model_validator(mode="after")
    def _has_statements(self) -> Self:
        listed, given = (
            set(self.snapshot_select_statement_overrides),
            set(self.snapshot_select_statements),
        )
        if missing := sorted(listed - given):
            raise ValueError(f"{_OVERRIDES} names {missing[0]}: needs {_OVERRIDES}.{missing[0]}")
        if unlisted := sorted(given - listed):
            raise ValueError(f"{_OVERRIDES}.{unlisted[0]}: {_OVERRIDES} doesn't name the table")
        return self

    def snapshots(self, table: str) -> bool:
        """Whether existing rows of a captured ``schema.table`` are read."""
        listed = Patterns(self.snapshot_include_collection_list)
        reads = self.snapshot_mode not in {"no_data", "recovery"}
        return reads and (not listed or listed.match(table))


class SignalSettings(Section):
    """Where a running daemon takes signals from, and where its notifications go."""

    signal_enabled_channels: Names = Field(("source", "kafka"), alias="signal.enabled.channels")
    signal_kafka_topic: str | None = Field(
        None, alias="signal.kafka.topic", pattern=r"^[A-Za-z0-9._-]{1,249}$"
    )
    signal_data_collection: str | None = Field(
        None, alias="signal.data.collection", pattern=r"^[^.]+\..+$"
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
                "notification.enabled.channels has sink: needs notification.sink.topic.name"
            )
        return self
