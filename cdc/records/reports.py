"""States of a pipeline's parts ⇄ their reports in the log: runs, tables, the daemon.

Reports are for people and for programs that wait. They are written at least once, after the events
that they describe, and are never authoritative. A sink keeps its own state, and its next run writes
lost reports again. docs/decisions/0003-state-topics.md lists the topics.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.records.fields import PositionField
from cdc.records.record import to_json
from cdc.records.state import FORMAT

RunKind = Literal["merge", "compact", "verify"]
RENEW_S: Final = 10.0
"""How often an active run repeats its report ..."""
GONE_S: Final = 30.0
"""... and after how long without one it counts as gone."""


class RunReport(BaseModel):
    """A run of a sink, active or ended. Times are ms since 1970.

    ``run`` is the number of the sink's newest plan (0: none). ``done`` of its ``tables`` are done.
    An active run (``ended_ms`` None) has its own record next to that of the last one that ended,
    until it ends; it counts as gone after ``deadline_ms``. ``cut`` is where the sink then has all
    of the log; with a real Debezium, ``where`` has that in words. The last transaction before the
    cut was committed at ``cut_ts_us`` (µs since 1970; 0: unknown). ``next_due_ms`` is when the next
    run begins, if known. ``kept_out`` runs couldn't start meanwhile. ``log`` is the name of the log
    that it has read (empty: it failed earlier). A new log under the same topics has another name,
    and other offsets.
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
    kept_out: int = 0

    @property
    def key(self) -> bytes:
        """Key of the record of the newest run that ended, or of the active one."""
        return to_json({"sink": self.sink, "job": self.job}) if self.ended_ms else self.running_key

    @property
    def running_key(self) -> bytes:
        """Key of the record of the active run."""
        return to_json({"running": self.sink, "job": self.job})

    def is_gone(self, now_ms: int) -> bool:
        """Whether it hasn't ended, but has sent no report for too long."""
        return self.ended_ms is None and now_ms > self.deadline_ms


class TableReport(BaseModel):
    """A derived table, view, index or kind of joined documents, and its place in the log.

    It has all of the topics before ``offsets`` (topic → partition → offset). The ``run`` brought it
    there; its ``cut`` was committed at ``cut_ts_us``. Views and joined documents have no offsets,
    but the derived tables or views ``made_of`` which they are made, as of the cut. All of that
    refers to the ``log`` of that name. If it isn't ``shown``, it can't be queried yet. ``error`` is
    why the last run couldn't apply to it. The run that reports it began at ``reported_ms`` (ms
    since 1970).
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
    """The state of a slot's daemon: its activity, and the fault that it restarts after."""

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
    """Return the kind of report with a key of the topic. None: one of a newer Millrace."""
    if key.startswith(b'{"slot":'):
        return DaemonReport
    if key.startswith((b'{"sink":', b'{"running":')):
        return TableReport if b',"table":' in key else RunReport
    return None
