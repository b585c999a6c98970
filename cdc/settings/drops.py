"""``table.drop.policy`` → what becomes of rows whose table was dropped or renamed at the source."""

from typing import Final, Literal, NamedTuple

from pydantic import Field

from cdc.settings.kinds import Section

DropPolicy = Literal["keep", "delete"]
_POLICY: Final = "table.drop.policy"
_DELAY: Final = "table.drop.delay.ms"
_DAY_MS: Final = 86_400_000


class DropRule(NamedTuple):
    """Whether rows of a table that is gone stay, or go once it has been gone for so long."""

    policy: DropPolicy = "keep"
    delay_ms: int = _DAY_MS


class OwnDropSettings(Section):
    """What one derived table, or one index, says of it; None: what its section says."""

    table_drop_policy: DropPolicy | None = Field(None, alias=_POLICY)
    table_drop_delay_ms: int | None = Field(None, alias=_DELAY, ge=0)


class DropSettings(Section):
    """What a section says of it, for all that is in there."""

    table_drop_policy: DropPolicy = Field("keep", alias=_POLICY)
    table_drop_delay_ms: int = Field(_DAY_MS, alias=_DELAY, ge=0)

    def drop_rule(self, own: OwnDropSettings) -> DropRule:
        """What counts for one derived table, or one index."""
        policy, delay_ms = own.table_drop_policy, own.table_drop_delay_ms
        return DropRule(
            self.table_drop_policy if policy is None else policy,
            self.table_drop_delay_ms if delay_ms is None else delay_ms,
        )
