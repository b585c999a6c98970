"""The log's state and the last plan → the next plan: what a run applies to which table.

A plan is written before anything is applied, and then finished or repeated, never replaced. Each
table goes on where its own last *applied* plan ended, so a table that fails holds up no other.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict

from cdc.errors import LogForgottenError
from cdc.log.offsets import LogState
from cdc.records.fields import PositionField
from cdc.records.position import FIRST_EPOCH, Lsn, Position
from cdc.records.schema import TableSchema
from cdc.records.state import GAPS_MAX, Gap, TableState
from cdc.settings.lakehouse import TableKind, TopicWriter
from sinks.changes.ends import RowsEnd
from sinks.run.debezium_topic import DebeziumTopic
from sinks.run.rekeyed import has_other_key, has_unread_key, snapshot_position, versions_at
from sinks.run.summary import RunOutcome

if TYPE_CHECKING:
    from sinks.run.wanted import WantedTable

FORMAT: Final = 1
Lack = Literal["nothing", "now", "before"]


class TablePlan(BaseModel):
    """What a run applies to one table: the records from ``start`` up to, not including, ``end``.

    Of these records it applies those that are newer than ``after``, newer than ``truncated`` and
    not newer than the plan's cut, but for those of rows that have ``ended`` by then. A topic of a
    real Debezium has no such positions: of it all is applied, and ``debezium`` says how.
    """

    model_config = ConfigDict(frozen=True)

    source: str
    """The captured table."""
    kind: TableKind = "current"
    """Whether it has the current rows, their history, or all changes."""
    topic: str
    """The captured table's topic."""
    start: dict[int, int]
    """By partition, the first offset to read."""
    end: dict[int, int]
    """By partition, the offset before which reading ends."""
    next: dict[int, int]
    """By partition, the first offset above the cut, where the next plan goes on."""
    read_end: dict[int, int] = {}
    """By partition, how far any plan has read: of that, all up to ``after`` is applied."""
    base: int
    """The run whose commit must be the table's last; 0: there is no table yet."""
    after: PositionField | None
    """The cut up to which the table has all records; None: it has none."""
    first_version: int = 0
    """The schema version that the derived table began with."""
    schema_version: int
    """The newest schema version of its records; of a table without any, that of the cut."""
    applied_version: int = 0
    """The schema version whose columns the derived table has; 0: there is none yet, or who wrote
    the plan didn't know."""
    removes: str = ""
    """By which options columns go that the source has dropped (``Derived.removal``); "": none."""
    removed: str = ""
    """By which they did so by the plans before."""
    events: int
    """How many records there are to apply."""
    ends: tuple[RowsEnd, ...] = ()
    """Where rows ended at once: by TRUNCATEs, new snapshots, and partitions that were dropped.

    Only a history has them all; other tables have the last end of all rows, and what isn't older.
    """
    emptied: RowsEnd | None = None
    """The end of all rows by which this plan, or one before it, empties the table: its captured
    table is gone, since ``ts_us``. Another drop of that is another end."""
    claims_ms: int | None = None
    """The time of the first record whose value is among the claims."""
    fresh_ms: int
    """When the log was last known to be complete from ``start`` on; 0: compacted too early."""
    lacks: Lack = "nothing"
    """Whether records are missing: of this plan (``now``), or of one ``before`` it."""
    gaps: tuple[Gap, ...] = ()
    """What a history or an archive is marked to lack: the newest ones."""
    marks: tuple[Gap, ...] = ()
    """Those that come to it by this plan, up to its cut."""
    replay: str | None = None
    """The archive that has the records before ``start``: what its own plans before have applied."""
    debezium: DebeziumTopic | None = None
    """The topic, where a real Debezium wrote it."""
    instead_of: "TablePlan | None" = None
    """The table as it stands, where the user has it rebuilt: this plan replaces all of it."""

    @property
    def begins(self) -> bool:
        """Whether all that the table has comes by this plan."""
        return not self.base or self.instead_of is not None

    @property
    def truncated(self) -> Position | None:
        """The position below which all rows of the table go."""
        return max((end.position for end in self.ends if not end.bounds), default=None)

    @property
    def ended(self) -> tuple[RowsEnd, ...]:
        """The ends of rows within bounds."""
        return tuple(end for end in self.ends if end.bounds)

    @property
    def rebuilds(self) -> bool:
        """Whether the table loses the rows that the log, read from its beginning, doesn't have."""
        return self.lacks == "now" and self.kind == "current"

    @property
    def gap(self) -> Position | None:
        """The cut behind which the log has forgotten changes, where the user accepted that."""
        return self.after if self.lacks == "now" and self.kind != "current" else None

    @property
    def unread(self) -> int:
        """About how many records there are to read, transactions' markers among them."""
        return sum(self.end[partition] - offset for partition, offset in self.start.items())

    @property
    def pending(self) -> bool:
        """Whether there is anything to read."""
        return any(self.end[partition] > offset for partition, offset in self.start.items())

    @property
    def writes(self) -> bool:
        """Whether there are rows to write or to take out, or the table isn't there yet."""
        news = self.events > 0 or bool(self.ends)
        is_marked = self.gap is not None or bool(self.marks)
        return self.begins or news or self.rebuilds or is_marked

    @property
    def evolves(self) -> bool:
        """Whether a table that is there gets the columns of another schema version.

        The log tells of that also where nobody writes to the table; a real Debezium doesn't. Or
        whether it loses those that it has kept so far: by the policy, or by options that are new.
        """
        is_older = 0 < self.applied_version < self.schema_version
        loses = self.removes not in {"", self.removed}
        return bool(self.base and (is_older or loses) and not self.debezium)

    @property
    def commits(self) -> bool:
        """Whether the run must commit to the table."""
        return self.writes or self.evolves

    def left_alone(self) -> "TablePlan":
        """The plan of a table that stays where it was."""
        if self.instead_of is not None:
            return self.instead_of
        nothing = {"end": self.start, "next": self.start, "events": 0, "ends": (), "marks": ()}
        nothing["schema_version"] = self.applied_version
        nothing["removes"] = self.removed
        if self.ends:  # which may be what has emptied it
            nothing["emptied"] = None
        return self.model_copy(update=nothing)

    def at_cut(self, versions: Sequence[TableSchema], cut: Position) -> "TablePlan":
        """The plan in the columns of its cut, if the table is there and has no record to apply.

        A record may be of the newest version, and needs it.
        """
        if self.events or self.begins:
            return self
        upto = [each.version for each in versions if Position.parse(each.since) <= cut]
        return self.model_copy(update={"schema_version": max([self.applied_version, *upto])})

    def begun_again(self, start: dict[int, int]) -> "TablePlan":
        """The plan of a table that isn't there any more, from where the log starts."""
        return self.model_copy(
            update={
                "start": start,
                "after": None,
                "base": 0,
                "emptied": None,
                "read_end": {},
                "lacks": "before",
                "gaps": (),
                "fresh_ms": int(time.time() * 1000),
                "debezium": self.debezium and self.debezium.begun_again(),
            }
        )

    def rebuilt(self, start: dict[int, int]) -> "TablePlan":
        """The plan of a table all of which is to be replaced, from where the log starts."""
        update = {"base": self.base, "lacks": "nothing", "instead_of": self.left_alone()}
        return self.begun_again(start).model_copy(update=update)


class RunPlan(BaseModel):
    """One run of a sink: its number, the log as it was at ``read_ms``, its cut, what it applies.

    Tables that are ``waiting`` don't come to the cut: they aren't configured any more, their rows
    are read again, or they were refused. Where a real Debezium has written the topics, no cut is
    known: each has its own end.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    run: int
    prefix: str
    log: str
    cut: PositionField
    cut_ts_us: int
    ts_ms: int
    tables: dict[str, TablePlan]
    waiting: dict[str, TablePlan] = {}
    written_by: TopicWriter = "millrace"
    read_ms: int = 0

    @property
    def all_tables(self) -> dict[str, TablePlan]:
        """The tables that come to the cut, and those that wait."""
        return self.tables | self.waiting

    def marks(self, name: str) -> tuple[Gap, ...]:
        """The gaps that come to a table by this plan: one that the user has accepted is the last.

        Up to the cut the log has the newest state of each row.
        """
        table = self.all_tables[name]
        if table.gap is None:
            return table.marks
        reason = "the log no longer had all changes"
        return (*table.marks, Gap(start=table.gap, end=self.cut, reason=reason, ts_ms=self.ts_ms))

    def gaps(self, name: str) -> tuple[Gap, ...]:
        """The newest gaps that a table has once this plan is applied."""
        return (*self.all_tables[name].gaps, *self.marks(name))[-GAPS_MAX:]

    @property
    def where(self) -> str:
        """Up to where it applies, for people."""
        own = self.written_by == "millrace"
        return str(self.cut.commit_lsn) if own else "the topics' ends"


def require_same_log(plan: RunPlan, log: str) -> None:
    """Raise LogForgottenError where the log isn't the one that the plan was made for."""
    if plan.log != log:
        raise _made_anew(f"the log of topic.prefix {plan.prefix}", "")


def goes_on(plan: RunPlan, outcome: RunOutcome) -> dict[str, TablePlan]:
    """Where each table of a finished plan goes on: nothing to read yet, if it was applied.

    One that failed stays where it was, and one that isn't there yet begins as if never planned, but
    for the types of its columns that were told.
    """
    tables = plan.waiting | {
        name: table.left_alone()
        if name in outcome.failed
        else table.model_copy(
            update={
                "start": table.next,
                "end": table.next,
                "after": plan.cut if table.pending or table.commits else table.after,
                "base": plan.run if table.commits else table.base,
                "applied_version": table.schema_version,
                "removed": table.removes,
                "events": 0,
                "ends": (),
                "gaps": plan.gaps(name),
                "marks": (),
                "read_end": {
                    number: max(end, table.read_end.get(number, end))
                    for number, end in table.end.items()
                },
                "lacks": table.lacks if table.lacks == "nothing" else "before",
                "replay": None,
                "instead_of": None,
            }
        )
        for name, table in plan.tables.items()
        if table.base or table.debezium or name not in outcome.failed
    }
    return {name: _settled(name, table, outcome) for name, table in tables.items()}


def _settled(name: str, table: TablePlan, outcome: RunOutcome) -> TablePlan:
    """The table without a doubt that has ended, or that a plan has brought which failed."""
    if (topic := table.debezium) is None:
        return table
    topic = topic.taken_back() if name in outcome.failed else topic
    return table.model_copy(update={"debezium": topic.applied(covered=name in outcome.covered)})


def ready(table: TableState, cut: Position) -> bool:
    """Whether the table's snapshot is complete at the cut, so that it may be shown."""
    return table.phase == "streaming" and snapshot_position(table) <= cut


def awaits_read(
    table: TablePlan | None, captured: TableState, versions: Sequence[TableSchema]
) -> bool:
    """Whether a captured table that is back, or has another key, is yet to be read again.

    Till then the log gets changes of rows that aren't in it. A new table begins with that, too.
    """
    is_doubtful = captured.doubt is not None and captured.doubt.replaces
    if captured.gone_ms or not (is_doubtful or any(each.reset for each in captured.requests)):
        return False
    if table is None or not table.base:
        return has_unread_key(versions, snapshot_position(captured))
    return bool(is_doubtful and table.emptied) or has_other_key(versions, table.applied_version)


def proposed(
    before: dict[str, TablePlan], state: LogState, wanted: "Mapping[str, WantedTable]"
) -> dict[str, TablePlan]:
    """The wanted tables with all that is new for them, before a census of the records."""
    tables: dict[str, TablePlan] = {}
    for name, request in wanted.items():
        source = request.source
        table = state.tables[source]
        if not ready(table, state.progress.cut) or source not in state.schemas:
            continue  # what was written since the ends were listed is shown topic by topic
        ends = state.ends[table.topic]
        last = before.get(name)
        versions = versions_at(state.schemas[source], state.progress.cut)
        if awaits_read(last, table, versions):
            continue
        if last is not None and any(ends[number] < last.start[number] for number in ends):
            raise _made_anew(f"the log of {source}", f"topic {table.topic}")
        start = last.start if last is not None else state.starts[table.topic]
        current = last is not None and start == ends
        newest = versions[-1].version if versions else 0  # else the plan itself has the schemas
        rekeyed = last and has_other_key(versions, last.applied_version)
        replaced = (rekeyed and request.kind == "current") or (last and last.instead_of)
        plan = TablePlan(
            topic=table.topic,
            start=start,
            end=ends,
            next=ends,
            after=last.after if last else None,
            schema_version=newest,
            applied_version=last.applied_version if last and last.base else 0,
            base=last.base if last else 0,
            events=0,
            fresh_ms=state.read_ms if current or last is None else last.fresh_ms,
            source=source,
            kind=request.kind,
            removes=request.removes,
            removed=last.removed if last and last.base else "",
            first_version=last.first_version if last and last.base and not replaced else newest,
            read_end=last.read_end if last else {},
            emptied=last.emptied if last and table.gone_ms else None,
            lacks=_lack(last, is_whole=request.is_whole),
            instead_of=last.instead_of if last else None,
            gaps=last.gaps if last else (),
            marks=_marks(table, last, state.progress.cut) if request.kind != "current" else (),
        )
        tables[name] = plan if plan.pending else plan.at_cut(versions, state.progress.cut)
    return tables


def _marks(table: TableState, last: TablePlan | None, cut: Position) -> tuple[Gap, ...]:
    """The gaps up to a cut that a table, as it was left, isn't marked with.

    One may end right at a cut that was applied before. Where older ones are missing, as the state
    keeps only the newest, they are part of the first.
    """
    marked = last.gaps if last else ()
    number = max((gap.number for gap in marked), default=0)
    new = [gap for gap in table.gaps if gap.end <= cut and gap.number > number]
    if new and new[0].number > number + 1:
        start = marked[-1].start if marked else Position(FIRST_EPOCH, Lsn(0), 0)
        reason = f"{new[0].number - number - 1} older gaps; {new[0].reason}"
        new[0] = new[0].model_copy(update={"start": min(start, new[0].start), "reason": reason})
    return tuple(new)


def _lack(last: TablePlan | None, *, is_whole: bool) -> Lack:
    """What a table lacks; records that an archive doesn't keep are missing, too."""
    lacks = last.lacks if last is not None else "nothing"
    return "before" if lacks == "nothing" and not is_whole else lacks


def _made_anew(what: str, where: str) -> LogForgottenError:
    return LogForgottenError(
        f"{what} was created again since the last run",
        where=where,
        remedy="a new log needs new derived tables: remove the lakehouse's tables and its "
        "_millrace folder, and the indexes with their progress index",
    )


def to_read(tables: dict[str, TablePlan]) -> int:
    """About how many records the tables have to read, transactions' markers among them."""
    return sum(table.unread for table in tables.values())
