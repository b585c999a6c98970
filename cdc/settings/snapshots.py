"""Debezium's keys of [capture] about snapshots and signals → what is read, and in which order."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from cdc.modes import Patterns
from cdc.settings.kinds import PatternList, Section, names

_OVERRIDES: Final = "snapshot.select.statement.overrides"
Names = Annotated[tuple[str, ...], BeforeValidator(names)]


class SnapshotSettings(Section):
    """What of the existing rows is read, and how."""

    snapshot_mode: Literal["initial", "initial_only", "no_data", "always"] = Field(
        "initial", alias="snapshot.mode"
    )
    snapshot_include_collection_list: PatternList = Field(
        (), alias="snapshot.include.collection.list"
    )
    snapshot_select_statement_overrides: Names = Field((), alias=_OVERRIDES)
    snapshot_select_statements: dict[str, str] = Field({}, alias=f"{_OVERRIDES}.<schema>.<table>")
    snapshot_chunk_bytes: int = Field(32 << 20, alias="snapshot.chunk.bytes", ge=1 << 13)

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
        return self.snapshot_mode != "no_data" and (not listed or listed.match(table))


class SignalSettings(Section):
    """How running captures are told something."""

    signal_enabled_channels: Names = Field(("source",), alias="signal.enabled.channels")
    signal_data_collection: str | None = Field(
        None, alias="signal.data.collection", pattern=r"^[^.]+\..+$"
    )
    incremental_snapshot_chunk_size: int = Field(
        1_024, alias="incremental.snapshot.chunk.size", ge=1
    )
    incremental_snapshot_watermarking_strategy: Literal["insert_insert", "insert_delete"] = Field(
        "insert_insert", alias="incremental.snapshot.watermarking.strategy"
    )
