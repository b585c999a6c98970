"""Plans and their outcomes → cuts: instants of the source, and where each table has them.

A cut is a position up to which every table was applied: a commit of the source, and so an instant
that the source itself has shown. Each table has it at one of its own versions.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from cdc.errors import ConfigError, SinkError
from cdc.records.position import Lsn, Position
from cdc.records.state import PositionField
from sinks.run.plan import TableCounts, TableVersion
from sinks.run.plans import Plans

_RUN: Final = re.compile(r"\d{1,18}")


class Cut(BaseModel):
    """An instant of the source that a run has brought the tables to.

    ``position`` is the last commit's, ``committed_us`` its time (µs since 1970, UTC; 0: none was
    seen yet), ``applied_ms`` when the run was done, in ``seconds``. ``versions`` has the version of
    each table that stands there; ``missing`` are the others, which had failed. ``tables`` are those
    that the run had something for.

    Of topics that a real Debezium wrote it is no instant: each table has what its topic had when
    the run began, at ``planned_ms``, and the position says nothing.
    """

    model_config = ConfigDict(frozen=True)

    run: int
    position: PositionField
    committed_us: int
    applied_ms: int
    seconds: float
    versions: dict[str, TableVersion]
    missing: list[str]
    tables: dict[str, TableCounts]
    planned_ms: int = 0
    is_instant: bool = True

    def __str__(self) -> str:
        if not self.is_instant:
            return f"run {self.run}, {self.where}, {_text(self.planned_ms / 1e3)}"
        epoch = f" of epoch {self.position.epoch}" if self.position.epoch > 1 else ""
        return f"run {self.run}, {self.position.commit_lsn}{epoch}, {self.committed}"

    @property
    def where(self) -> str:
        """Its LSN, for people."""
        return str(self.position.commit_lsn) if self.is_instant else "the topics' ends"

    @property
    def committed(self) -> str:
        """When its last transaction was committed."""
        if not self.is_instant:
            return "not known"
        if not self.committed_us:
            return "before any commit was seen"
        return _text(self.committed_us / 1e6)


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(" ")


def cuts(plans: Plans, newest: int | None = None) -> list[Cut]:
    """The cuts that runs have reached, ascending; only so many of the ``newest`` where asked."""
    found: list[Cut] = []
    for run in reversed(plans.runs()):
        if newest is not None and len(found) >= newest:
            break
        plan, outcome = plans.plan_of(run), plans.outcome_of(run)
        if plan is None or outcome is None:
            continue
        found.append(
            Cut(
                run=run,
                position=plan.cut,
                committed_us=plan.cut_ts_us,
                applied_ms=outcome.ts_ms,
                seconds=outcome.seconds,
                versions=outcome.versions,
                missing=sorted(
                    plan.tables.keys() - outcome.versions.keys() | outcome.failed.keys()
                ),
                tables=outcome.tables,
                planned_ms=plan.ts_ms,
                is_instant=plan.written_by == "millrace",
            )
        )
    return found[::-1]


def cut_at(found: Sequence[Cut], at: str) -> Cut:
    """The newest cut that isn't later than a run's number, an LSN, a position or a timestamp.

    Raises ConfigError where ``at`` is none of these, SinkError where no cut reaches back so far,
    or the newest one isn't there yet.
    """
    if not found:
        raise SinkError(
            "there is no cut yet", where="the lakehouse", remedy="run `millrace merge lakehouse`"
        )
    newest = found[-1]
    if at == "latest":
        return newest
    if _RUN.fullmatch(at):
        upto = [cut for cut in found if cut.run <= int(at)]
        late = int(at) > newest.run
    elif not newest.is_instant:
        raise ConfigError(
            f"{at}: topics of a real Debezium don't tell when all tables were there together",
            where="--at",
            remedy="latest, or the number of a run; `millrace cuts` lists them",
        )
    elif (place := _position(at, newest.position.epoch)) is not None:
        upto = [cut for cut in found if cut.position <= place]
        late = (place.epoch, place.commit_lsn) > newest.position[:2]
    else:
        moment_us = _moment_us(at)
        upto = [cut for cut in found if cut.committed_us <= moment_us]
        late = False
    if late:
        raise SinkError(
            f"{at} isn't reached yet: the newest cut is {newest}",
            where="the lakehouse",
            remedy="run `millrace merge lakehouse`",
        )
    if not upto:
        raise SinkError(
            f"no cut is as old as {at}: the oldest is {found[0]}",
            where="the lakehouse",
            remedy="`millrace cuts` lists all; lakehouse.keep says how long they stay",
        )
    return upto[-1]


def _position(at: str, epoch: int) -> Position | None:
    """A position, or all of what was committed at an LSN of the newest epoch."""
    try:
        return Position(epoch, Lsn.parse(at), (1 << 64) - 1)
    except ValueError:
        pass
    try:
        return Position.parse(at)
    except ValueError:
        return None


def _moment_us(at: str) -> int:
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise ConfigError(
            f"{at} is no instant",
            where="--at",
            remedy="latest, the number of a run, an LSN (16/B374D848), or a timestamp "
            "(2026-01-31T12:00:00+01:00; without a zone it is UTC)",
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)
