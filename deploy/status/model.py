"""The state of all parts, in the form of ``millrace status --json``."""

import re
from typing import Final

from pydantic import BaseModel, ConfigDict

from cdc.errors import MillraceError
from cdc.records.reports import DaemonReport
from deploy.status.lag import Lag
from deploy.status.sinks import SinkStatus
from deploy.status.source import SlotStatus
from deploy.status.tables import TableStatus

_ARROW: Final = re.compile(r"\n +→ ")


class Problem(BaseModel):
    """A problem of a part, and its remedy."""

    model_config = ConfigDict(frozen=True)

    part: str
    what: str
    where: str = ""
    remedy: str

    @classmethod
    def of(cls, part: str, error: MillraceError) -> "Problem":
        """Return a part's error as a problem."""
        remedy = error.remedy or "ask with more time: millrace check"
        return cls(part=part, what=error.what, where=error.where, remedy=remedy)

    @classmethod
    def of_text(cls, part: str, text: str, otherwise: str) -> "Problem":
        """Return a problem from a reported text: an error with its remedy, or without one."""
        what, *remedy = _ARROW.split(text, maxsplit=1)
        return cls(part=part, what=what, remedy="".join(remedy) or otherwise)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.part}: {self.what}{where}\n  → {self.remedy}"


class Status(BaseModel):
    """Everything that ``millrace status`` shows."""

    problems: list[Problem] = []
    slot: SlotStatus | None = None
    is_captured: bool | None = None
    """Whether a daemon runs for the slot. None: unknown."""
    daemon: DaemonReport | None = None
    position: str | None = None
    """The LSN of the commit up to which the log has everything ..."""
    epoch: int | None = None
    """... in this history: one more with every ``millrace new-epoch``."""
    timeline: int | None = None
    """The source's timeline at the log's last write: one more with every promotion."""
    events: int | None = None
    capture_lag: Lag = Lag(unknown="the log wasn't read")
    tables: list[TableStatus] = []
    dead_letters: dict[str, int] = {}
    """The number of open ones for each table."""
    sinks: list[SinkStatus] = []
