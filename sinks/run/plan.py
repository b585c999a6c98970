"""The log's state and the last plan → the next plan: the records that a run applies to each table.

A plan is written before anything is applied, and then finished or repeated, never replaced. Each
table continues from its last *applied* plan, so a table that fails delays no other.
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
    """A run's work on one table: the records from ``start`` up to, not including, ``end``.

    It applies records that are newer than ``after`` and ``truncated``, and not newer than the
    plan's cut, except those of ``ended`` rows. A real Debezium's topic has no such positions:
    everything in it is applied, and ``debezium`` describes how.
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
    """By partition, the first offset above the cut, where the next plan continues."""
    read_end: dict[int, int] = {}
    """By partition, the end of all reads. Before it, all up to ``after`` is applied."""
    base: int
    """The run whose commit must be the table's last. 0: no table exists yet."""
    after: PositionField | None
    """The cut up to which the table has all records. None: it has none."""
    first_version: int = 0
    """The schema version that the derived table began with."""
    schema_version: int
    """The newest schema version of its records. Without records, that of the cut."""
    applied_version: int = 0
    """The schema version of the table's columns. 0: no table exists yet, or it is unknown."""
    removes: str = ""
    """A digest of the options that remove dropped columns (``Derived.removal``). "": none."""
    removed: str = ""
    """The same digest, of earlier plans."""
    events: int
    """The number of records to apply."""
    ends: tuple[RowsEnd, ...] = ()
    """The ends of many rows: by TRUNCATEs, new snapshots, and dropped partitions.

    Only a history has them all. Other tables have the last end of all rows, and newer ends.
    """
    emptied: RowsEnd | None = None
    """The end of all rows by which this plan, or an earlier one, empties the table. Its captured
    table is gone since ``ts_us``. Another drop is another end."""
    claims_ms: int | None = None
    """The time of the first record whose value is among the claims."""
    fresh_ms: int
    """When the log was last known to be complete from ``start`` on. 0: compacted too early."""
    lacks: Lack = "nothing"
    """Whether records are missing: of this plan (``now``), or of one ``before`` it."""
    gaps: tuple[Gap, ...] = ()
    """The newest marked gaps of a history or an archive."""
    marks: tuple[Gap, ...] = ()
    """The gaps that this plan adds, up to its cut."""
    replay: str | None = None
    """The archive that has the records before ``start``, as its earlier plans have applied them."""
    debezium: DebeziumTopic | None = None
    """The topic, if a real Debezium wrote it."""
    instead_of: "TablePlan | None" = None
    """The current table, if the user rebuilds it: this plan replaces all of it."""

    @property
    def begins(self) -> bool:
        """Whether this plan brings all contents of the table."""
        return not self.base or self.instead_of is not None

    @property
    def truncated(self) -> Position | None:
        """Return the position below which all rows of the table end."""
        return max((end.position for end in self.ends if not end.bounds), default=None)

    @property
    def ended(self) -> tuple[RowsEnd, ...]:
        """Return the ends of rows within bounds."""
        return tuple(end for end in self.ends if end.bounds)

    @property
    def rebuilds(self) -> bool:
        """Whether the table loses the rows that the log, read from its beginning, doesn't have."""
        return self.lacks == "now" and self.kind == "current"

    @property
    def gap(self) -> Position | None:
        """Return the cut after which the log lacks changes, if the user accepted this."""
        return self.after if self.lacks == "now" and self.kind != "current" else None

    @property
    def unread(self) -> int:
        """Return the approximate number of records to read, including transactions' markers."""
        return sum(self.end[partition] - offset for partition, offset in self.start.items())

    @property
    def pending(self) -> bool:
        """Whether there are records to read."""
        return any(self.end[partition] > offset for partition, offset in self.start.items())

    @property
    def writes(self) -> bool:
        """Whether rows must be written or removed, or the table doesn't exist yet."""
        news = self.events > 0 or bool(self.ends)
        is_marked = self.gap is not None or bool(self.marks)
        return self.begins or news or self.rebuilds or is_marked

    @property
    def evolves(self) -> bool:
        """Whether an existing table gets or loses columns.

        It gets those of a new schema version. The log has this even without writes, but a real
        Debezium's topic doesn't. It loses kept ones by the policy, or by new options.
        """
        is_older = 0 < self.applied_version < self.schema_version
        loses = self.removes not in {"", self.removed}
        return bool(self.base and (is_older or loses) and not self.debezium)

    @property
    def commits(self) -> bool:
        """Whether the run must commit to the table."""
        return self.writes or self.evolves

    def left_alone(self) -> "TablePlan":
        """Return the plan of a table that stays unchanged."""
        if self.instead_of is not None:
            return self.instead_of
        nothing = {"end": self.start, "next": self.start, "events": 0, "ends": (), "marks": ()}
        nothing["schema_version"] = self.applied_version
        nothing["removes"] = self.removed
        if self.ends:  # which may be what has emptied it
            nothing["emptied"] = None
        return self.model_copy(update=nothing)

    def at_cut(self, versions: Sequence[TableSchema], cut: Position) -> "TablePlan":
        """Return the plan in its cut's columns if the table exists and has no record to apply.

        A record may be of the newest version, and needs it.
        """
        if self.events or self.begins:
            return self
        upto = [each.version for each in versions if Position.parse(each.since) <= cut]
        return self.model_copy(update={"schema_version": max([self.applied_version, *upto])})

    def begun_again(self, start: dict[int, int]) -> "TablePlan":
        """Return the plan of a missing table, from where the log starts."""
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
        """Return the plan that replaces a whole table, from where the log starts."""
        update = {"base": self.base, "lacks": "nothing", "instead_of": self.left_alone()}
        return self.begun_again(start).model_copy(update=update)


class RunPlan(BaseModel):
    """One run of a sink: its number, the log as of ``read_ms``, its cut, and its tables.

    Tables that are ``waiting`` don't reach the cut: they are no longer configured, their rows are
    read again, or they were refused. If a real Debezium has written the topics, no cut is known:
    each has its own end.
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
        """Return the tables that reach the cut, and those that wait."""
        return self.tables | self.waiting

    def marks(self, name: str) -> tuple[Gap, ...]:
        """Return the gaps that this plan adds to a table. An accepted one is the last.

        Up to the cut the log has the newest state of each row.
        """
        table = self.all_tables[name]
        if table.gap is None:
            return table.marks
        reason = "the log no longer had all changes"
        return (*table.marks, Gap(start=table.gap, end=self.cut, reason=reason, ts_ms=self.ts_ms))

    def gaps(self, name: str) -> tuple[Gap, ...]:
        """Return the newest gaps that a table has once this plan is applied."""
        return (*self.all_tables[name].gaps, *self.marks(name))[-GAPS_MAX:]

    @property
    def where(self) -> str:
        """Return the end of the plan, for people."""
        own = self.written_by == "millrace"
        return str(self.cut.commit_lsn) if own else "the topics' ends"


def require_same_log(plan: RunPlan, log: str) -> None:
    """Raise LogForgottenError if the plan was made for another log."""
    if plan.log != log:
        raise _made_anew(f"the log of topic.prefix {plan.prefix}", "")


def goes_on(plan: RunPlan, outcome: RunOutcome) -> dict[str, TablePlan]:
    """Return where each table of a finished plan continues: nothing to read yet, if it was applied.

    A failed table stays unchanged. One that doesn't exist yet begins as if it was never planned,
    but keeps the known types of its columns.
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
    """Return the table without a doubt that has ended, or that a failed plan has brought."""
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
    """Whether a captured table that is back, or has another key, must still be read again.

    Until then the log gets changes of rows that aren't in it. A new table waits for this, too.
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
    """Return the wanted tables with all their new records, before a census of these."""
    tables: dict[str, TablePlan] = {}
    for name, request in wanted.items():
        source = request.source
        table = state.tables[source]
        if not ready(table, state.progress.cut) or source not in state.schemas:
            continue  # writes since the ends were listed are shown topic by topic
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
    """Return the gaps up to a cut with which a table isn't marked yet.

    One may end exactly at a cut that was applied before. The state keeps only the newest: missing
    older ones are part of the first.
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
    """Return which records a table lacks. An archive without records lacks them, too."""
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
    """Return about how many records the tables have to read, including transactions' markers."""
    return sum(table.unread for table in tables.values())
