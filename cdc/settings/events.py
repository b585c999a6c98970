"""Debezium's keys of [capture] about which events there are → the same, checked."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from cdc.settings.kinds import PatternList, Section, names

Adjustment = Literal["none", "avro", "avro_unicode"]


def _operations(value: object) -> object:
    """``none``, or Debezium's letters."""
    return () if value == "none" else names(value)


class EventSettings(Section):
    """Which events there are, beside and about the changes of rows."""

    tombstones_on_delete: bool | None = Field(None, alias="tombstones.on.delete")
    skipped_operations: Annotated[
        tuple[Literal["c", "u", "d", "t"], ...], BeforeValidator(_operations)
    ] = Field((), alias="skipped.operations")
    skip_messages_without_change: bool = Field(False, alias="skip.messages.without.change")
    toast_unavailable: Literal["reselect", "absent", "placeholder"] = Field(
        "reselect", alias="toast.unavailable"
    )
    position_header: bool = Field(True, alias="position.header")
    extended_headers_enabled: bool = Field(False, alias="extended.headers.enabled")
    key_change_headers: bool = Field(False, alias="key.change.headers")
    schema_name_adjustment_mode: Adjustment = Field("none", alias="schema.name.adjustment.mode")
    field_name_adjustment_mode: Adjustment = Field("none", alias="field.name.adjustment.mode")
    provide_transaction_metadata: bool = Field(False, alias="provide.transaction.metadata")
    topic_transaction: str = Field(
        "transaction", alias="topic.transaction", pattern=r"^[A-Za-z0-9._-]{1,100}$"
    )
    heartbeat_interval_ms: int = Field(0, alias="heartbeat.interval.ms", ge=0)
    topic_heartbeat_prefix: str = Field(
        "__debezium-heartbeat", alias="topic.heartbeat.prefix", pattern=r"^[A-Za-z0-9._-]{1,100}$"
    )
    heartbeat_action_query: str | None = Field(None, alias="heartbeat.action.query")
    message_prefix_include_list: PatternList = Field((), alias="message.prefix.include.list")
    message_prefix_exclude_list: PatternList = Field((), alias="message.prefix.exclude.list")

    @model_validator(mode="before")
    @classmethod
    def _ask_for_placeholder(cls, data: Any) -> Any:
        """Whoever names a placeholder wants one."""
        asked = {"unavailable.value.placeholder", "unavailable_value_placeholder"}
        answered = {"toast.unavailable", "toast_unavailable"}
        if isinstance(data, dict) and asked & set(data) and not answered & set(data):
            return {**data, "toast.unavailable": "placeholder"}
        return data

    @model_validator(mode="after")
    def _has_heartbeats(self) -> Self:
        if self.heartbeat_action_query is not None and not self.heartbeat_interval_ms:
            raise ValueError("heartbeat.action.query needs heartbeat.interval.ms")
        return self
