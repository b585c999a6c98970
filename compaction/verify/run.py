"""A pipeline → a report of what differs from the source.

Only what differs at two instants counts: a value that the daemon has read again, for an event that
lacked it, may be newer than its event, and so is right at the second one. Where rows are repaired,
a third instant tells which of them differ no more.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from compaction.verify.both_sides import Comparing, VerifyOptions, compared_names
from compaction.verify.differences import TableComparison
from compaction.verify.later_instant import LaterInstant, names_by_sink
from compaction.verify.repairs import Repair
from compaction.verify.report import SinkTable, VerifiedTable, VerifyReport
from sinks.run.options import RunContext
from sinks.views.pinned import pinned

INSTANTS_MAX: Final = 3
"""How often a table is looked at that changes while it is read."""
VerifiedTables = dict[SinkTable, VerifiedTable]
_UNKEYED: Final = (
    "its rows can't be sent again by a key: read the table again (`millrace snapshot`), or make the"
    " derived one again (`millrace rebuild`)"
)
_TOO_MANY: Final = "too many rows differ: read the table again (`millrace snapshot`)"
_NOT_HEALED: Final = (
    "sent again, they still differ: make the derived table again (`millrace rebuild`); if the"
    " daemon has sent nothing, its log says why"
)


def verify(
    context: RunContext,
    options: VerifyOptions,
    progress: Callable[[int], None] = lambda _rows: None,
) -> VerifyReport:
    """Compare the tables of some sinks with the source.

    Raises MillraceError where none can be compared: NotDoneError where there is no instant, or the
    log doesn't reach it in time.
    """
    started = time.monotonic()
    comparing = Comparing(context, options, pinned(context.session()), progress)
    taken = [comparing.compare(compared_names(context.settings, options))]
    while taken[-1].changed and len(taken) < INSTANTS_MAX:
        taken.append(comparing.compare(names_by_sink(taken[-1].changed)))
    tables = {place: table for result in taken for place, table in result.tables.items()}
    found = {
        place: each for result in taken for place, each in result.comparisons.items() if each.counts
    }
    repair = ""
    if found:
        later = LaterInstant(comparing, tables, found)
        tables |= later.tables()
        if options.repair and any(table.differing for table in tables.values()):
            repair = uuid.uuid4().hex
            tables |= _repaired(comparing, repair, tables, later, found)
    return VerifyReport(
        lsn=str(taken[0].lsn),
        ts_us=taken[0].taken_us,
        seconds=round(time.monotonic() - started, 3),
        snapshot_s=round(max(result.snapshot_s for result in taken), 3),
        tables=tuple(tables[place] for place in sorted(tables)),
        repair=repair,
    )


def _repaired(
    comparing: Comparing,
    id_: str,
    tables: VerifiedTables,
    later: LaterInstant,
    found: Mapping[SinkTable, TableComparison],
) -> VerifiedTables:
    """The tables of which rows differ, with how many were repaired, and why others weren't."""
    differing = {place: tables[place] for place in found if tables[place].differing}
    rows = {place: later.differing[place] for place in differing if place in later.differing}
    why_not = dict.fromkeys(differing.keys() - rows.keys(), _UNKEYED)
    for place in rows:
        if found[place].counts.total() > len(found[place].rows):
            why_not[place] = _TOO_MANY
    asked = {place: rows[place] for place in rows if place not in why_not}
    why_not |= Repair(comparing.context.settings, comparing.log_name, id_).order(asked)
    left = {
        place: found[place]._replace(
            rows=[row for row in found[place].rows if row.texts in rows[place].keys]
        )
        for place in asked
        if place not in why_not
    }
    again = LaterInstant(comparing, tables, left).tables() if left else {}
    return {
        place: _with_repairs(table, again.get(place), why_not.get(place, ""))
        for place, table in differing.items()
    }


def _with_repairs(table: VerifiedTable, again: VerifiedTable | None, why_not: str) -> VerifiedTable:
    if again is None:
        return table.model_copy(update={"unrepaired": why_not})
    still = table.differing if again.unverified else min(again.differing, table.differing)
    why = again.unverified or (_NOT_HEALED if still else "")
    return table.model_copy(update={"repaired": table.differing - still, "unrepaired": why})
