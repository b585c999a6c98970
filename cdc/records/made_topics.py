"""A topic that Millrace is about to make → the state record that says so.

It is written before the topic is made: a topic without such a record was there before, and is its
user's. `millrace drop` leaves those. docs/decisions/0003-state-topics.md.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.record import to_json
from cdc.records.state import FORMAT


class MadeTopic(BaseModel):
    """A topic that Millrace has made, or was about to make, at ``ts_ms`` (ms since 1970)."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    topic: str
    ts_ms: int = 0

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return to_json({"topic": self.topic})
