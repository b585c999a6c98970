"""Commands' orders to the daemon → the contents of transactional logical messages.

So an order has a position in the stream, and the only writer of the log executes it once. Any role
that can connect to the source can write such messages. So an order is harmless, or proves that its
author can read the log.
https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from cdc.records.dead_letters import DeadLetterOutcome

FORMAT: Final = 1
DEAD_LETTER_ORDERS: Final = "millrace.dead-letters"
REPAIR_ORDERS: Final = "millrace.repairs"
ORDERS: Final = frozenset({DEAD_LETTER_ORDERS, REPAIR_ORDERS})
"""The prefixes of the logical messages."""
ORDER_BYTES_MAX: Final = 8_192
"""Prefix and content are smaller. Nothing is kept of a larger message."""
REPAIR_HEADER: Final = "millrace.repair"
"""Name of the header of records that a repair has made. Its value is the repair's id."""


KEYS_MAX: Final = 100
"""Maximum keys of an order, as each is a query at the source while the stream waits."""
KeyText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""A text that PostgreSQL can hold."""


class DeadLetterOrder(BaseModel):
    """The outcome that the dead letter with this number gets."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    outcome: DeadLetterOutcome
    number: int
    id: str


class RepairOrder(BaseModel):
    """Keys whose rows must be sent in their current state, or as deleted.

    ``log`` is the name of the log, which only its readers have. A key has the texts of its columns
    by name, as PostgreSQL prints them.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    id: str
    log: str
    table: str
    keys: Annotated[tuple[dict[str, KeyText], ...], Field(max_length=KEYS_MAX)]
