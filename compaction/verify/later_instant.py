"""Tables whose rows differed at one instant → the rows that still differ at a later one."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, get_args

from cdc.errors import MillraceError, SourceError, TableChangedError
from compaction.verify.both_sides import BothSides, ComparedInstant, Comparing
from compaction.verify.comparable import masks_some
from compaction.verify.confirm import (
    ConfirmedRow,
    RowsByKey,
    SourceRows,
    TextsByKey,
    confirmed,
    printed_keys,
    source_rows,
)
from compaction.verify.differences import Difference, TableComparison, hashed_by
from compaction.verify.documents.joined import JoinedSide
from compaction.verify.hashed import KeyTexts, is_text
from compaction.verify.instant import open_session
from compaction.verify.repairs import DifferingRows
from compaction.verify.report import DifferingKey, DifferingValue, SinkTable, VerifiedTable
from compaction.verify.rules import ComparedTable, Kind
from compaction.verify.sides import DerivedRows, table_of
from compaction.verify.source import SourceRead, SourceReader
from sinks.run.summary import SinkName
from sinks.spark.errors import explained
from snapshots.reader import OF_ONE_TABLE

ValuesByKey = Mapping[KeyTexts, dict[str, DifferingValue]]
"""The values of columns that differ, by the texts of the key."""
_OTHER_KEY: Final = "its columns have other types now"


class HasTexts(Protocol):
    """A side that knows the texts of its rows' columns."""

    def texts(self, keys: Sequence[int], /) -> TextsByKey:
        """Return the texts of some keys' rows."""


class LaterInstant:
    """Compares tables again whose rows differ.

    ``differing`` has the tables whose rows were read by their keys, once ``tables`` has run.
    """

    def __init__(
        self,
        comparing: Comparing,
        tables: Mapping[SinkTable, VerifiedTable],
        found: Mapping[SinkTable, TableComparison],
    ) -> None:
        self._comparing = comparing
        self._tables = tables
        self._found = found
        self._why_not = dict[SinkTable, str]()
        self._keep = comparing.context.settings.log.keep
        self.differing = dict[SinkTable, DifferingRows]()

    def tables(self) -> dict[SinkTable, VerifiedTable]:
        """Return the tables, with the rows that also differ at a later instant."""
        done, again = dict[SinkTable, VerifiedTable](), None
        try:
            done = self._by_key()
            others = self._found.keys() - done.keys() - self._why_not.keys()
            again = self._comparing.compare(names_by_sink(others)) if others else None
        except MillraceError as error:  # the first instant's differences are reported even so
            others = self._found.keys() - done.keys()
            self._why_not |= dict.fromkeys(others - self._why_not.keys(), error.what)
        if again is not None:
            for place in others:
                if (found := again.comparisons.get(place)) is not None:
                    done[place] = self._counted(place, still(self._found[place], found))
                elif place in again.tables:
                    self._why_not[place] = again.tables[place].unverified
        return {place: done.get(place) or self._unconfirmed(place) for place in self._found}

    def _unconfirmed(self, place: SinkTable) -> VerifiedTable:
        """Return a table whose rows differed, and that couldn't be compared again."""
        rows = self._found[place].counts.total()
        why = self._why_not.get(place) or "it no longer exists"
        text = (
            f"{rows:,} rows differed at the first instant, but it can't be compared at a later"
            f" one: {why}"
        )
        update = {"unverified": text, "unconfirmed": rows}
        return self._tables[place].model_copy(update=update)

    def _by_key(self) -> dict[SinkTable, VerifiedTable]:
        """Return the tables whose rows can be read by their keys."""
        with (
            tempfile.TemporaryDirectory(dir=self._comparing.folder) as temporary,
            self._comparing.at_one_instant(names_by_sink(self._found), Path(temporary)) as both,
        ):
            result = ComparedInstant(both.source.lsn, both.taken_us)
            reads = self._comparing.reads(both, Path(temporary), result)
            self._why_not |= {
                place: _OTHER_KEY
                for place, read in reads.items()
                if hashed_by(read.compared) != self._found[place].hashed_by
            }
            keyed = {
                place: read
                for place, read in reads.items()
                if read.compared.is_keyed and place not in self._why_not
            }
            at_source = self._source_rows(both, keyed)
            both.reading.close()
            self._why_not |= {place: table.unverified for place, table in result.tables.items()}
            counted = dict[SinkTable, VerifiedTable]()
            for side in both.sides:
                tables, missing = side.brought()
                self._why_not |= {table_of(side, name): why for name, why in missing.items()}
                for name, table in tables.items():
                    if (there := at_source.get(place := table_of(side, name))) is None:
                        continue
                    try:
                        compared = reads[place].compared
                        with explained(name, self._keep):
                            still = self._still(place, there.hashes, table, compared)
                            values = self._values(place, still, compared, there.texts, table)
                    except MillraceError as error:
                        self._why_not[place] = error.what
                        continue
                    counted[place] = self._counted(place, still, compared, values)
                    texts = {row.texts for row in still}
                    self.differing[place] = DifferingRows(reads[place], texts)
            return counted | self._joined(both.joined)

    def _still(
        self, place: SinkTable, there: RowsByKey, table: DerivedRows, compared: ComparedTable
    ) -> list[ConfirmedRow]:
        """Return the rows of a table that still differ. ``there`` are the source's."""
        rows = self._found[place].rows
        here = table.by_key(sorted({row.key for row in rows}))
        return [*confirmed(rows, there, here, compared, table.refused)]

    def _values(
        self,
        place: SinkTable,
        still: Sequence[ConfirmedRow],
        compared: ComparedTable,
        there: TextsByKey,
        here: HasTexts,
    ) -> ValuesByKey:
        """Return the differing values of the shown rows, without those of masked columns."""
        if not self._comparing.options.values:
            return {}
        shown = still[: self._comparing.options.keys_shown]
        hashes = {row.texts or (): row.key for row in self._found[place].rows}
        keys = {
            row.texts: hashes[row.texts] for row in shown if row.columns and row.texts in hashes
        }
        if not keys:
            return {}
        texts = here.texts(sorted(keys.values()))
        places = {column.name: number for number, column in enumerate(compared.columns)}
        hidden = {
            column.name
            for column in compared.columns
            if column.rule.is_masked or column.rule.kind == Kind.NOTHING
        }
        return {
            row.texts: {
                name: DifferingValue(source=there[key][at], here=texts[key][at])
                for name in row.columns
                if name not in hidden
                for at in [places[name]]
            }
            for row in shown
            if (key := keys.get(row.texts)) in there and key in texts
        }

    def _joined(self, joined: JoinedSide | None) -> dict[SinkTable, VerifiedTable]:
        """Return the tables of joined documents."""
        counted = dict[SinkTable, VerifiedTable]()
        if joined is None:
            return counted
        settings = self._comparing.context.settings
        for name in joined.names:
            place = SinkTable("search", name)
            try:
                still, both = joined.confirmed(name, self._found[place].rows)
                keys = sorted({row.key for row in self._found[place].rows})
                shows_values = self._comparing.options.values and not masks_some(settings)
                made = both.expected.texts(keys) if shows_values else {}
                values = self._values(place, still, both.compared, made, both.there)
            except MillraceError as error:
                self._why_not[place] = error.what
            else:
                counted[place] = self._counted(place, still, both.compared, values)
        return counted

    def _source_rows(
        self, both: BothSides, reads: Mapping[SinkTable, SourceRead]
    ) -> dict[SinkTable, SourceRows]:
        rows = dict[SinkTable, SourceRows]()
        with closing(self._comparing.reader(both)) as reading, reading.measuring():
            for place, read in reads.items():
                texts = (row.texts for row in self._found[place].rows if is_text(row.texts))
                keys = list(dict.fromkeys(texts))
                try:
                    rows[place] = self._looked_up(both, reading, read, keys)
                except TableChangedError:
                    pass  # all of it is compared again
                except SourceError as error:
                    if error.retry and not isinstance(error, OF_ONE_TABLE):
                        raise
                    self._why_not[place] = error.what
        return rows

    def _looked_up(
        self, both: BothSides, reading: SourceReader, read: SourceRead, keys: Sequence[KeyTexts]
    ) -> SourceRows:
        """Return the source's rows of some keys."""
        settings = self._comparing.context.settings
        values = self._comparing.options.values
        try:
            with closing(open_session(settings)) as connection:
                return source_rows(connection, both.source, reading, read, keys, values=values)
        except SourceError as error:
            if error.retry or isinstance(error, OF_ONE_TABLE):
                raise
        # A value that only the derived side has may be invalid for the column's type.
        with closing(open_session(settings)) as connection:
            keys = list(dict.fromkeys(printed_keys(connection, read, keys)))
        with closing(open_session(settings)) as connection:
            return source_rows(connection, both.source, reading, read, keys, values=values)

    def _counted(
        self,
        place: SinkTable,
        still: Sequence[ConfirmedRow],
        compared: ComparedTable | None = None,
        values: ValuesByKey = MappingProxyType({}),
    ) -> VerifiedTable:
        counts: Counter[Difference] = Counter(row.difference for row in still)
        names = [compared.columns[at].name for at in compared.key] if compared else []
        shown = still[: self._comparing.options.keys_shown]
        keys = tuple(
            DifferingKey(
                key=dict(zip(names, row.texts, strict=False)),
                difference=row.difference,
                columns=row.columns,
                values=values.get(row.texts, {}),
            )
            for row in shown
        )
        found = self._found[place]
        if found.counts.total() > len(found.rows):  # more than are compared one by one
            counts, healed = found.counts, 0
        elif compared is None:
            healed = len(found.rows) - len(still)
        else:
            texts = {row.texts for row in still}
            healed = len({row.key for row in found.rows if (row.texts or ()) not in texts})
        update: dict[str, object] = {"healed": healed, "keys": keys}
        update |= dict.fromkeys(get_args(Difference), 0)
        update |= {str(difference): number for difference, number in counts.items()}
        return self._tables[place].model_copy(update=update)


def names_by_sink(places: Iterable[SinkTable]) -> dict[SinkName, set[str]]:
    """Return the names of the tables of each sink."""
    names = dict[SinkName, set[str]]()
    for place in places:
        names.setdefault(place.sink, set()).add(place.name)
    return names


def still(before: TableComparison, after: TableComparison) -> list[ConfirmedRow]:
    """Return the rows that differ in the same way at both instants."""
    again = Counter((row.key, row.difference) for row in after.rows)
    rows = list[ConfirmedRow]()
    for row in before.rows:
        if again[row.key, row.difference] > 0:
            again[row.key, row.difference] -= 1
            rows.append(ConfirmedRow(row.texts or (), row.difference))
    return rows
