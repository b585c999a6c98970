"""What the parts of a pipeline report into the log about themselves: runs, tables, the daemon.

Reports are for people and for those who wait. They are written at least once, behind what they tell
of, and are never the truth: a sink keeps that itself, and its next run makes them again where they
are lost. docs/decisions/0003-state-topics.md lists the topics.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.fields import PositionField
from cdc.records.record import to_json
from cdc.records.state import FORMAT

RunKind = Literal["merge", "compact", "verify"]
RENEW_S: Final = 10.0
"""So often a run that goes on says so ..."""
GONE_S: Final = 30.0
"""... and after so long without that it counts as gone."""


class RunReport(BaseModel):
    """A run of a sink, under way or ended; times in ms since 1970.

    ``run`` is the number of the sink's newest plan (0: it has none). Of its ``tables``, ``done``
    are done. A run under way (``ended_ms`` None) has a record of its own beside that of the last
    one that ended, until it ends; it counts as gone after ``deadline_ms``. ``cut`` is
    up to where the sink has all of the log by then; where a real Debezium captures, ``where`` says
    that in words. The last transaction before the cut was committed at ``cut_ts_us`` (µs since
    1970; 0: not known). ``next_due_ms`` is when the next run begins, where anybody knows. ``log``
    is the name of the log that it has read (empty: it has failed before that): a new one under the
    same topics has another name, and other offsets.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    sink: str
    job: RunKind = "merge"
    log: str = ""
    run: int = 0
    started_ms: int
    deadline_ms: int = 0
    ended_ms: int | None = None
    tables: int = 0
    done: int = 0
    cut: PositionField | None = None
    where: str = ""
    cut_ts_us: int = 0
    failed: dict[str, str] = {}
    events: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0
    exit_code: int | None = None
    error: str = ""
    next_due_ms: int | None = None

    @property
    def key(self) -> bytes:
        """Key of the record of the newest run that ended, or of the one under way."""
        return to_json({"sink": self.sink, "job": self.job}) if self.ended_ms else self.running_key

    @property
    def running_key(self) -> bytes:
        """Key of the record of the run under way."""
        return to_json({"running": self.sink, "job": self.job})

    def is_gone(self, now_ms: int) -> bool:
        """Whether it hasn't ended, and nothing was heard of it for too long."""
        return self.ended_ms is None and now_ms > self.deadline_ms


class TableReport(BaseModel):
    """A derived table, view, index or kind of joined documents: up to where it has the log.

    It has all of the topics before ``offsets`` (topic → partition → offset). The ``run`` is the one
    that brought it there; its ``cut`` was committed at ``cut_ts_us``. Views and joined documents
    have no offsets, but are made of the derived tables, or views, ``made_of`` as they were at the
    cut. All of that is of the ``log`` of that name. Where it isn't ``shown``, nobody can query it
    yet. ``error`` is why the last run couldn't apply to it. The run
    that says so began at ``reported_ms`` (ms since 1970).
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    sink: str
    table: str
    log: str = ""
    source: str = ""
    offsets: dict[str, dict[int, int]] = {}
    made_of: tuple[str, ...] = ()
    run: int = 0
    cut: PositionField | None = None
    cut_ts_us: int = 0
    shown: bool = True
    error: str = ""
    reported_ms: int = 0

    @property
    def key(self) -> bytes:
        """Key of its newest record."""
        return to_json({"sink": self.sink, "table": self.table})


class DaemonReport(BaseModel):
    """What the daemon of a slot has come to: what it is at, and the fault it starts over after."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    slot: str
    fault: str = ""
    remedy: str = ""
    since_ms: int = 0
    ts_ms: int = 0

    @property
    def key(self) -> bytes:
        """Key of its newest record."""
        return to_json({"slot": self.slot})


StateReport = RunReport | TableReport | DaemonReport


def report_kind(key: bytes) -> type[StateReport] | None:
    """What stands under a key of the topic; None: something of a newer Millrace."""
    if key.startswith(b'{"slot":'):
        return DaemonReport
    if key.startswith((b'{"sink":', b'{"running":')):
        return TableReport if b',"table":' in key else RunReport
    return None
