"""What the progress index keeps: the last run and its owner, and what each index has been given."""

import os
import socket
import time
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from cdc.records.state import PositionField
from cdc.settings.search import Document
from sinks.run.plan import RunPlan
from sinks.run.summary import LastCheck, RunOutcome, TableVersion
from sinks.search.indexes import Generation

FORMAT: Final = 1
SILENCE_S_MAX: Final = 30.0
"""After this long without a heartbeat a run counts as dead; a clock may be off by half of it."""


class Owner(BaseModel):
    """The process that runs; ``token`` tells two runs of one process apart."""

    model_config = ConfigDict(frozen=True)

    host: str
    pid: int
    token: str
    beat_ms: int

    def alive(self, now_ms: int) -> bool:
        """Whether the process may still run: its heart beats, and if it is ours, it exists."""
        if now_ms - self.beat_ms > SILENCE_S_MAX * 1000:
            return False
        if self.host != socket.gethostname() or self.pid == os.getpid():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


class RunRecord(BaseModel):
    """The last run: its plan, and its outcome once nothing of it is under way any more.

    ``checked`` is when a run last found nothing to do.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    plan: RunPlan | None = None
    outcome: RunOutcome | None = None
    checked: LastCheck = LastCheck()
    owner: Owner | None = None


class TableGeneration(Generation):
    """An index of a table; ``overrides`` are the user's for it (``Indexed.overrides``)."""

    overrides: str = ""


class TableLoad(BaseModel):
    """An index that is being loaded: it has what is before the offsets ``loaded``.

    ``ts_ms`` is when it got that far.
    """

    model_config = ConfigDict(frozen=True)

    into: TableGeneration
    loaded: dict[int, int] = {}
    ts_ms: int = 0


class TableRecord(BaseModel):
    """What a table has been given: everything before ``offsets``, up to ``cut`` (text).

    The index that ``serves`` has all of it, once there is one. The one that is ``loading`` to take
    its place has what its load has come to, and ends there, too.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    run: int
    serves: TableGeneration | None = None
    loading: TableLoad | None = None
    epoch: int
    cut: str
    offsets: dict[int, int]
    schema_version: int
    ts_ms: int = 0

    @property
    def newest(self) -> TableGeneration | None:
        """The index that was made last."""
        return self.loading.into if self.loading is not None else self.serves


def now_ms() -> int:
    """Milliseconds since 1970, as records have them."""
    return time.time_ns() // 1_000_000


class Instant(BaseModel):
    """A cut of the lakehouse (the ``run`` that made it), and its version of each joined table."""

    model_config = ConfigDict(frozen=True)

    run: int
    cut: PositionField
    versions: dict[str, TableVersion]


class JoinedIndex(Generation):
    """An index of joined documents, and what these are like.

    ``columns`` are the types of their columns by path, ``mapping`` is the server's. ``identities``
    are what each column of the joined tables is, which another one of its name isn't.
    """

    definition: Document
    columns: dict[str, str]
    identities: dict[str, str] = Field({})
    mapping: dict[str, Any]


class DocumentLoad(BaseModel):
    """An index that is being loaded, slice by slice; ``done`` of its ``slices`` are in it.

    ``rows`` is about how many a slice has (0: unknown).
    """

    model_config = ConfigDict(frozen=True)

    into: JoinedIndex
    slices: int
    done: int = 0
    rows: int = 0


class DocumentRecord(BaseModel):
    """The index that ``serves`` behind the alias, and one that is ``loading`` to take its place.

    Both have all documents as they are ``at`` a cut; the latter those of the slices that are done.
    A run that brings them ``to`` a later one may have died in the middle: that is done again first.
    Where the one that serves can't be brought there, it is ``frozen``.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    serves: JoinedIndex | None = None
    frozen: bool = False
    loading: DocumentLoad | None = None
    at: Instant | None = None
    to: Instant | None = None
    ts_ms: int = 0

    @property
    def newest(self) -> JoinedIndex | None:
        """The index that was made last."""
        return self.loading.into if self.loading is not None else self.serves

    @property
    def targets(self) -> list[JoinedIndex]:
        """The indexes that changes are written to."""
        serving = [self.serves] if self.serves is not None and not self.frozen else []
        return serving + ([self.loading.into] if self.loading is not None else [])
