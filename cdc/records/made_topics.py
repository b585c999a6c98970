"""A topic that Millrace is about to create → its state record.

It is written before the topic is created. A topic without such a record existed before, and belongs
to its user. `millrace drop` leaves those. docs/decisions/0003-state-topics.md.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.record import to_json
from cdc.records.state import FORMAT


class MadeTopic(BaseModel):
    """A topic that Millrace has created, or was about to create, at ``ts_ms`` (ms since 1970)."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    topic: str
    ts_ms: int = 0

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return to_json({"topic": self.topic})
