"""``table.drop.policy``, ``column.drop.policy`` → what becomes of rows and values that are gone."""

from typing import Final, Literal, NamedTuple

from pydantic import Field

from cdc.settings.kinds import Section

DropPolicy = Literal["keep", "delete"]
ColumnDropPolicy = Literal["keep", "remove"]
_POLICY: Final = "table.drop.policy"
_DELAY: Final = "table.drop.delay.ms"
COLUMN_POLICY: Final = "column.drop.policy"
_DAY_MS: Final = 86_400_000


class DropRule(NamedTuple):
    """Whether rows of a table that is gone stay, or go once it has been gone for so long."""

    policy: DropPolicy = "keep"
    delay_ms: int = _DAY_MS


class OwnColumnDropSettings(Section):
    """What one derived table, or one index, says of columns that are gone; None: as its section."""

    column_drop_policy: ColumnDropPolicy | None = Field(None, alias=COLUMN_POLICY)


class OwnDropSettings(OwnColumnDropSettings):
    """What one derived table, or one index, says of it; None: what its section says."""

    table_drop_policy: DropPolicy | None = Field(None, alias=_POLICY)
    table_drop_delay_ms: int | None = Field(None, alias=_DELAY, ge=0)


class DropSettings(Section):
    """What a section says of it, for all that is in there."""

    table_drop_policy: DropPolicy = Field("keep", alias=_POLICY)
    table_drop_delay_ms: int = Field(_DAY_MS, alias=_DELAY, ge=0)
    column_drop_policy: ColumnDropPolicy = Field("keep", alias=COLUMN_POLICY)

    def drop_rule(self, own: OwnDropSettings) -> DropRule:
        """What counts for one derived table, or one index."""
        policy, delay_ms = own.table_drop_policy, own.table_drop_delay_ms
        return DropRule(
            self.table_drop_policy if policy is None else policy,
            self.table_drop_delay_ms if delay_ms is None else delay_ms,
        )

    def removes_columns(self, own: OwnColumnDropSettings) -> bool:
        """Whether columns that the source has dropped go from one derived table, or one index."""
        return (own.column_drop_policy or self.column_drop_policy) == "remove"
