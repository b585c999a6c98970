"""What commands tell the daemon to do: the contents of transactional logical messages.

So an order has a position in the stream, and is followed once, by the only one who writes to the
log. Whoever may connect to the source may write such messages: an order is harmless, or proves that
its author can read the log.
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
"""Prefix and content are smaller; of a message that isn't, nothing is kept."""
REPAIR_HEADER: Final = "millrace.repair"
"""Name of the header of records that a repair has made; its value is the repair's id."""


KEYS_MAX: Final = 100
"""So many keys has an order: each is a question at the source, before the stream goes on."""
KeyText = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""A text that PostgreSQL may hold."""


class DeadLetterOrder(BaseModel):
    """The outcome that the dead letter with this number gets."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    outcome: DeadLetterOutcome
    number: int
    id: str


class RepairOrder(BaseModel):
    """Keys whose rows are to be sent as they are now, or as deleted.

    ``log`` is the name of the log, which only its readers know. A key has the texts of its columns
    by name, as PostgreSQL prints them.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    id: str
    log: str
    table: str
    keys: Annotated[tuple[dict[str, KeyText], ...], Field(max_length=KEYS_MAX)]
