"""A pipeline → a report of what differs from the source.

Only what differs at two instants counts: a value that the daemon has read again, for an event that
lacked it, may be newer than its event, and so is right at the second one.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from compaction.verify.both_sides import BothSides, ComparedInstant, Comparing, VerifyOptions
from compaction.verify.confirm import ConfirmedRow, RowsByKey, confirmed, derived_rows, source_rows
from compaction.verify.differences import Difference, TableComparison
from compaction.verify.instant import open_session
from compaction.verify.report import DifferingKey, VerifiedTable, VerifyReport
from compaction.verify.source import SourceRead, SourceReader
from sinks.run.options import RunContext
from sinks.views.pinned import pinned
from snapshots.reader import OF_ONE_TABLE

INSTANTS_MAX: Final = 3
"""How often a table is looked at that changes while it is read."""


def verify(
    context: RunContext,
    options: VerifyOptions,
    progress: Callable[[int], None] = lambda _rows: None,
) -> VerifyReport:
    """Compare the lakehouse's tables with the source.

    Raises MillraceError where none can be compared: NotDoneError where there is no instant, or the
    log doesn't reach it in time.
    """
    started = time.monotonic()
    comparing = Comparing(context, options, pinned(context.session()), progress)
    taken = [comparing.compare(options.tables or None)]
    while taken[-1].changed and len(taken) < INSTANTS_MAX:
        taken.append(comparing.compare(frozenset(taken[-1].changed)))
    tables = {name: table for result in taken for name, table in result.tables.items()}
    found = {
        name: each for result in taken for name, each in result.comparisons.items() if each.counts
    }
    if found:
        tables |= _Confirming(comparing, tables, found).tables()
    return VerifyReport(
        lsn=str(taken[0].lsn),
        ts_us=taken[0].taken_us,
        seconds=round(time.monotonic() - started, 3),
        snapshot_s=round(max(result.snapshot_s for result in taken), 3),
        tables=tuple(tables[name] for name in sorted(tables)),
    )


class _Confirming:
    """Comparing again at tables of which rows differ."""

    def __init__(
        self,
        comparing: Comparing,
        tables: Mapping[str, VerifiedTable],
        found: Mapping[str, TableComparison],
    ) -> None:
        self._comparing = comparing
        self._tables = tables
        self._found = found
        self._why_not = dict[str, str]()

    def tables(self) -> dict[str, VerifiedTable]:
        """The tables, with the rows that differ at a later instant, too."""
        done = self._by_key()
        others = self._found.keys() - done.keys() - self._why_not.keys()
        if others:
            again = self._comparing.compare(others)
            for name in others:
                if (found := again.comparisons.get(name)) is not None:
                    done[name] = self._counted(name, _still(self._found[name], found))
                elif name in again.tables:
                    self._why_not[name] = again.tables[name].unverified
        return {name: done.get(name) or self._unconfirmed(name) for name in self._found}

    def _unconfirmed(self, name: str) -> VerifiedTable:
        """A table of which rows have differed, and that couldn't be compared again."""
        rows = self._found[name].counts.total()
        why = self._why_not.get(name) or "it isn't there any more"
        text = f"{rows:,} rows differed at one instant, and then it couldn't be compared: {why}"
        return self._tables[name].model_copy(update={"unverified": text})

    def _by_key(self) -> dict[str, VerifiedTable]:
        """Those whose rows can be looked up by their keys."""
        with (
            tempfile.TemporaryDirectory(dir=self._comparing.folder) as folder,
            self._comparing.at_one_instant(self._found.keys()) as both,
        ):
            result = ComparedInstant(both.source.lsn, both.taken_us)
            reads = self._comparing.reads(both, Path(folder), result)
            at_source = self._source_rows(both, [read for read in reads if read.compared.is_keyed])
            both.reading.close()
            there = both.lake.brought()
            self._why_not |= there.missing
            self._why_not |= {name: table.unverified for name, table in result.tables.items()}
            counted = dict[str, VerifiedTable]()
            for read in reads:
                table, found = there.tables.get(read.name), at_source.get(read.name)
                if table is not None and found is not None:
                    rows = self._found[read.name].rows
                    keys = sorted({row.key for row in rows})
                    here = derived_rows(table.rows(self._comparing.spark), read.compared, keys)
                    still = list(confirmed(rows, found, here, read.compared))
                    counted[read.name] = self._counted(read.name, still, read)
            return counted

    def _source_rows(self, both: BothSides, reads: Sequence[SourceRead]) -> dict[str, RowsByKey]:
        settings = self._comparing.context.settings
        with closing(SourceReader(settings, both.source, sessions=1, age_max_s=0)) as reading:
            rows = dict[str, RowsByKey]()
            for read in reads:
                found = self._found[read.name].rows
                keys = list(dict.fromkeys(row.texts for row in found if row.texts is not None))
                try:
                    with closing(open_session(settings)) as connection:
                        rows[read.name] = source_rows(connection, both.source, reading, read, keys)
                except OF_ONE_TABLE as error:
                    self._why_not[read.name] = error.what
            return rows

    def _counted(
        self, name: str, still: Sequence[ConfirmedRow], read: SourceRead | None = None
    ) -> VerifiedTable:
        counts: Counter[Difference] = Counter(row.difference for row in still)
        compared = read.compared if read is not None else None
        names = [compared.columns[place].name for place in compared.key] if compared else []
        shown = still[: self._comparing.options.keys_shown]
        keys = tuple(
            DifferingKey(
                key=dict(zip(names, row.texts, strict=False)),
                difference=row.difference,
                columns=row.columns,
            )
            for row in shown
        )
        found = self._found[name]
        if found.counts.total() > len(found.rows):  # more than are looked at one by one
            counts, healed = found.counts, 0
        else:
            confirmed_keys = {row.texts for row in still}
            healed = max(0, len({row.texts for row in found.rows}) - len(confirmed_keys))
        update: dict[str, object] = {"healed": healed, "keys": keys}
        update |= {str(difference): number for difference, number in counts.items()}
        return self._tables[name].model_copy(update=update)


def _still(before: TableComparison, after: TableComparison) -> list[ConfirmedRow]:
    """The rows that differ in the same way as before."""
    again = Counter((row.key, row.difference) for row in after.rows)
    still = list[ConfirmedRow]()
    for row in before.rows:
        if again[row.key, row.difference] > 0:
            again[row.key, row.difference] -= 1
            still.append(ConfirmedRow(row.texts or (), row.difference))
    return still
