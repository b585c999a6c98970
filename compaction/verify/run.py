"""A pipeline → a report of what differs from the source.

Only differences at two instants count. If an event lacks a value, the daemon reads the value again.
It may be newer than its event, and is right at the second instant. After a repair, a third instant
shows which rows no longer differ.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from compaction.verify.both_sides import Comparing
from compaction.verify.differences import TableComparison
from compaction.verify.hashed import KeyTexts
from compaction.verify.later_instant import LaterInstant, names_by_sink
from compaction.verify.options import VerifyOptions, compared_names
from compaction.verify.repairs import DifferingRows, Repair
from compaction.verify.report import SinkTable, VerifiedTable, VerifyReport
from compaction.verify.views import ComparedViews
from sinks.run.options import RunContext
from sinks.views.pinned import pinned

INSTANTS_MAX: Final = 3
"""How often a table is compared that changes during the read."""
LOOKS_MAX: Final = 3
"""How often rows that were sent again are compared."""
_OF_VIEW: Final = (
    "run `millrace merge all`; if it still differs, write the view again (`millrace rebuild view`)"
)
VerifiedTables = dict[SinkTable, VerifiedTable]
_UNKEYED: Final = (
    "its rows can't be sent again by a key: read the table again (`millrace snapshot`), or write"
    " the derived one again (`millrace rebuild`)"
)
_TOO_MANY: Final = "too many rows differ: read the table again (`millrace snapshot`)"
_KEPT: Final = (
    "the source has dropped partitions, and their rows are kept (partition.drop.policy): rows"
    " that the source doesn't have aren't deleted"
)
_BROKEN: Final = {
    "history": "versions aren't repaired: write the history again (`millrace rebuild lakehouse`)",
    "changes": "events aren't repaired: `millrace rebuild lakehouse` writes the archive again if"
    " the log has all of them; else restore its files from a backup",
}
_NOT_HEALED: Final = (
    "the daemon sent these rows again, and they still differ: write the derived table again"
    " (`millrace rebuild`); if the daemon sent nothing, its log says why"
)


def verify(
    context: RunContext,
    options: VerifyOptions,
    progress: Callable[[int], None] = lambda _rows: None,
) -> VerifyReport:
    """Compare the tables of some sinks with the source.

    Raise MillraceError if none can be compared. It is NotDoneError if there is no instant, or if
    the log doesn't reach it in time.
    """
    started = time.monotonic()
    comparing = Comparing(context, options, pinned(context.session()), progress)
    names = compared_names(context.settings, options)
    views = None
    if "views" in names:
        views = ComparedViews(context, names.pop("views"), options)
        if (lakehouse := names.get("lakehouse", set())) is not None:
            names["lakehouse"] = {*lakehouse, *views.tables()}
    taken = [comparing.compare(names)]
    while taken[-1].changed and len(taken) < INSTANTS_MAX:
        taken.append(comparing.compare(names_by_sink(taken[-1].changed)))
    tables = {place: table for result in taken for place, table in result.tables.items()}
    found = {
        place: each for result in taken for place, each in result.comparisons.items() if each.counts
    }
    if views is not None:
        tables |= _of_views(views.compared(), repair=options.repair)
    repair = ""
    if found:
        later = LaterInstant(comparing, tables, found)
        tables |= later.tables()
        if options.repair and any(tables[place].differing_rows for place in found):
            repair = uuid.uuid4().hex
            tables |= _repaired(comparing, repair, tables, later, found)
    if options.repair:
        tables |= _with_broken(tables)
    return VerifyReport(
        lsn=str(taken[0].lsn),
        ts_us=taken[0].taken_us,
        seconds=round(time.monotonic() - started, 3),
        snapshot_s=round(max(result.snapshot_s for result in taken), 3),
        tables=tuple(tables[place] for place in sorted(tables)),
        repair=repair,
        slice=str(options.slice_ or ""),
    )


def _of_views(found: VerifiedTables, *, repair: bool) -> VerifiedTables:
    """Return the results of views. Their rows aren't sent again: a run evaluates them again."""
    return {
        place: table.model_copy(
            update={"unrepaired": _OF_VIEW if repair and table.differing else ""}
        )
        for place, table in found.items()
    }


def _repaired(
    comparing: Comparing,
    id_: str,
    tables: VerifiedTables,
    later: LaterInstant,
    found: Mapping[SinkTable, TableComparison],
) -> VerifiedTables:
    """Return the differing tables, with counts of repaired rows, and why others weren't."""
    differing = {place: tables[place] for place in found if tables[place].differing_rows}
    asked, why_not = dict[SinkTable, DifferingRows](), dict[SinkTable, str]()
    for place, table in differing.items():
        rows, extra = later.differing.get(place), set[KeyTexts | None]()
        if rows is None or found[place].counts.total() > len(found[place].rows):
            why_not[place] = _UNKEYED if rows is None else _TOO_MANY
            continue
        if table.extra and comparing.keeps_gone(table.source):
            why_not[place] = _KEPT
            extra = {row.texts for row in found[place].rows if row.difference == "extra"}
        asked[place] = rows._replace(keys=[texts for texts in rows.keys if texts not in extra])
    settings, timeout_s = comparing.context.settings, comparing.options.timeout_s
    ordered = Repair(settings, comparing.log_name, id_, timeout_s).order(asked)
    why_not |= ordered.why_not
    left = {place: _only(found[place], keys) for place, keys in ordered.keys.items() if keys}
    comparing.wait_for(sum(len(each.rows) for each in left.values()))
    for place, table in _looked_at(comparing, tables, left).items():
        sent, still = len(left[place].rows), table.differing_rows
        if table.unverified or still:
            why_not[place] = table.unverified or _NOT_HEALED
        repaired = 0 if table.unverified else max(0, sent - still)
        differing[place] = differing[place].model_copy(update={"repaired": repaired})
    return {
        place: table.model_copy(update={"unrepaired": why_not.get(place, "")})
        for place, table in differing.items()
    }


def _looked_at(
    comparing: Comparing, tables: VerifiedTables, sent: Mapping[SinkTable, TableComparison]
) -> VerifiedTables:
    """Return what still differs of rows that were sent again, after several checks.

    If a row changes during the repair, its content is newer than its position. At the next instant
    the change itself is applied, too.
    """
    done, left = VerifiedTables(), dict(sent)
    for number in range(LOOKS_MAX):
        if not left:
            break
        later, before = LaterInstant(comparing, tables, left), left
        seen, left = later.tables(), {}
        done |= seen
        for place, table in seen.items():
            shrinks = table.differing_rows < len(before[place].rows)
            if place in later.differing and table.differing_rows and (shrinks or not number):
                left[place] = _only(before[place], later.differing[place].keys)
    return done


def _with_broken(tables: VerifiedTables) -> VerifiedTables:
    """Return the tables with broken rows, and why these aren't repaired."""
    broken = {place: table for place, table in tables.items() if table.broken}
    return {
        place: table.model_copy(
            update={"unrepaired": "; ".join(filter(None, [table.unrepaired, _BROKEN[table.kind]]))}
        )
        for place, table in broken.items()
    }


def _only(found: TableComparison, keys: Collection[KeyTexts]) -> TableComparison:
    """Return the comparison of some keys."""
    rows = [row for row in found.rows if row.texts in keys]
    return found._replace(rows=rows, counts=Counter(row.difference for row in rows))
