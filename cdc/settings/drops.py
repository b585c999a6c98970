"""``table.drop.policy``, ``column.drop.policy`` → what happens to dropped tables and columns."""

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
    """Whether rows of a dropped table stay, or are removed after a delay."""

    policy: DropPolicy = "keep"
    delay_ms: int = _DAY_MS


class OwnColumnDropSettings(Section):
    """The rule of one derived table or index for dropped columns. None: its section's rule."""

    column_drop_policy: ColumnDropPolicy | None = Field(None, alias=COLUMN_POLICY)


class OwnDropSettings(OwnColumnDropSettings):
    """The rule of one derived table or index for drops. None: its section's rule."""

    table_drop_policy: DropPolicy | None = Field(None, alias=_POLICY)
    table_drop_delay_ms: int | None = Field(None, alias=_DELAY, ge=0)


class DropSettings(Section):
    """A section's rule for drops, for everything in it."""

    table_drop_policy: DropPolicy = Field("keep", alias=_POLICY)
    table_drop_delay_ms: int = Field(_DAY_MS, alias=_DELAY, ge=0)
    column_drop_policy: ColumnDropPolicy = Field("keep", alias=COLUMN_POLICY)

    def drop_rule(self, own: OwnDropSettings) -> DropRule:
        """Return the rule for one derived table or index."""
        policy, delay_ms = own.table_drop_policy, own.table_drop_delay_ms
        return DropRule(
            self.table_drop_policy if policy is None else policy,
            self.table_drop_delay_ms if delay_ms is None else delay_ms,
        )

    def removes_columns(self, own: OwnColumnDropSettings) -> bool:
        """Whether one derived table or index removes columns that the source has dropped."""
        return (own.column_drop_policy or self.column_drop_policy) == "remove"
