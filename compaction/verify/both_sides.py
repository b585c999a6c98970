"""Both sides of a pipeline at one instant → each derived table compared with the source there.

Separate sessions read the source while the sinks' tables are brought to the instant. They end as
soon as it is read.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from cdc.errors import MillraceError, NotDoneError, TableChangedError
from cdc.log.offsets import LogReader, LogState
from cdc.records.position import Lsn, Position
from compaction.verify.comparable import (
    lacking_columns,
    lacks,
    require_same_cluster,
    require_there,
    why_not,
)
from compaction.verify.differences import HashedSide, TableComparison, compare, hashed_by
from compaction.verify.documents.indexes import IndexSide, open_indexes
from compaction.verify.documents.joined import JoinedSide
from compaction.verify.instant import SourceInstant, source_at_instant
from compaction.verify.lakehouse.derived import lakehouse_at
from compaction.verify.lakehouse.side import ArchiveRows, CheckedRows, LakehouseSide
from compaction.verify.lakehouse.versions import NONE, BrokenRows
from compaction.verify.options import VerifyOptions, WantedNames
from compaction.verify.report import BrokenKey, SinkTable, VerifiedTable
from compaction.verify.sides import DerivedRows, Side, table_of
from compaction.verify.source import SourceRead, SourceReader, described_sources, table_read
from sinks.run.options import RunContext
from sinks.spark.errors import explained
from sinks.spark.private_files import scratch_folder

_AGAIN_S: Final = 0.1
_SENT_S: Final = 0.02
"""More than the daemon takes for a row that it sends again."""
_CHANGED: Final = "it changed while it was read"
_STATE: Final = "the state that its events leave"


@dataclass(slots=True)
class BothSides:
    """The source and the sinks at one instant. The source's sessions end with ``reading``.

    Documents that are ``joined`` have their own cuts.
    """

    source: SourceInstant
    sides: list[Side]
    taken_us: int
    reading: ExitStack
    joined: JoinedSide | None = None


@dataclass(slots=True)
class ComparedInstant:
    """The results at one instant. Tables that ``changed`` may be compared again."""

    lsn: Lsn
    taken_us: int
    tables: dict[SinkTable, VerifiedTable] = field(default_factory=dict)
    comparisons: dict[SinkTable, TableComparison] = field(default_factory=dict)
    changed: set[SinkTable] = field(default_factory=set)
    snapshot_s: float = 0.0


class _HashedRows(NamedTuple):
    """A table's rows at the instant, and their hashes."""

    rows: DerivedRows
    hashes: HashedSide
    seconds: float
    broken: BrokenRows = NONE


class Comparing:
    """Compares the sides of a pipeline.

    ``progress`` gets the number of new rows from the source.
    """

    def __init__(
        self,
        context: RunContext,
        options: VerifyOptions,
        spark: SparkSession,
        progress: Callable[[int], None],
    ) -> None:
        self.context = context
        self.options = options
        self.spark = spark
        self.folder = scratch_folder()
        """For the source's data. If the process dies, the next start removes it."""
        self._progress = progress
        self._settings = context.settings
        self._log = LogReader(self._settings.kafka, context.while_waiting)
        self._state: LogState | None = None

    @property
    def log_name(self) -> str:
        """Return the log's name, once its state is read."""
        return self._state.progress.log if self._state is not None else ""

    def keeps_gone(self, table: str) -> bool:
        """Whether the log keeps rows of a captured table's dropped partitions."""
        state = self._state.tables.get(table) if self._state is not None else None
        return state is not None and state.gone_partitions > 0

    def wait_for(self, rows: int) -> None:
        """Extend the timeout, as the daemon has this many rows to send again."""
        timeout_s = self.options.timeout_s + rows * _SENT_S
        self.options = self.options._replace(timeout_s=timeout_s)

    @contextmanager
    def at_one_instant(self, names: WantedNames, folder: Path) -> Iterator[BothSides]:
        """Yield both sides of some tables. Their files are in the ``folder``."""
        with ExitStack() as stack:
            opened = (
                stack.enter_context(
                    open_indexes(self.context, names["search"], self.options.timeout_s)
                )
                if "search" in names
                else None
            )
            reading = stack.enter_context(ExitStack())
            instant = reading.enter_context(
                source_at_instant(self._settings, self.options.timeout_s)
            )
            taken_us = time.time_ns() // 1_000
            state = self._reached(instant)
            position = Position(state.progress.cut.epoch, instant.lsn, 0)
            sides, joined = list[Side](), None
            if "lakehouse" in names:
                lake = lakehouse_at(self.context, position, names["lakehouse"])
                there = stack.enter_context(lake)
                sides.append(
                    LakehouseSide(there, position, self.spark, self._settings, self.options.slice_)
                )
            if opened is not None:
                indexes = IndexSide(self.context, opened, position, folder, self.options.slice_)
                sides.append(stack.enter_context(closing(indexes)))
                joined = indexes.joined
            yield BothSides(instant, sides, taken_us, reading, joined)

    def _reached(self, instant: SourceInstant) -> LogState:
        """Return the log's state, once it has every commit before the instant."""
        capture, deadline = self._settings.capture, time.monotonic() + self.options.timeout_s
        while True:
            state = self._log.state(capture.topic_prefix, capture.slot_name, self.context.report)
            require_same_cluster(state.progress, instant.system_identifier)
            self._state = state
            lacking = lacks(state.progress, instant.lsn, instant.timeline)
            if not lacking:
                return state
            if time.monotonic() > deadline:
                raise NotDoneError(
                    f"{lacking} within {self.options.timeout_s:.0f} s",
                    where=f"topic.prefix {capture.topic_prefix}",
                    remedy="`millrace status` shows whether the daemon runs, and how far it is"
                    " behind",
                )
            time.sleep(_AGAIN_S)

    def compare(self, names: WantedNames) -> ComparedInstant:
        """Compare tables of some sinks at a new instant."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as temporary,
            self.at_one_instant(names, folder := Path(temporary)) as both,
        ):
            require_there(names, both.sides)
            result = ComparedInstant(both.source.lsn, both.taken_us)
            reads = self.reads(both, folder, result)
            with closing(self.reader(both)) as reading, ThreadPoolExecutor(1) as executor:
                read = executor.submit(_read_source, reading, reads.values(), both, result)
                try:
                    derived = {
                        side.sink: self._derived(side, reads, result, read) for side in both.sides
                    }
                except BaseException:
                    reading.stop()
                    raise
                read.result()
            for side in both.sides:
                for name, there in derived[side.sink].items():
                    self._compare(result, side, reads[table_of(side, name)], there)
            if both.joined is not None:
                _compare_joined(both.joined, result)
            return result

    def reader(self, both: BothSides) -> SourceReader:
        """Return a reader of the source at an instant."""
        return SourceReader(
            self._settings,
            both.source,
            sessions=self.options.sessions,
            age_max_s=self.options.age_max_s,
            rows_per_second=self.options.rows_per_second,
            progress=self._progress,
        )

    def reads(
        self, both: BothSides, folder: Path, result: ComparedInstant
    ) -> dict[SinkTable, SourceRead]:
        """Return the reads of the source. Record why other tables can't be compared."""
        sources = {side.about(name).source for side in both.sides for name in side.expected}
        described, refused = described_sources(both.source, self._settings.capture, sources)
        reads = dict[SinkTable, SourceRead]()
        for side in both.sides:
            for name, expected in side.expected.items():
                place, about = table_of(side, name), side.about(name)
                description, compared = described.get(about.source), expected.compared
                why = (
                    refused.get(about.source)
                    or why_not(self._settings, about, description)
                    or expected.why_not
                    or lacking_columns(self._settings, description, expected.shape, compared)
                )
                if why or description is None:
                    result.tables[place] = about.model_copy(update={"unverified": why})
                    continue
                own = folder / f"source-{len(reads)}"
                read = table_read(both.source, place, description, compared, own)
                read.sliced = expected.sliced
                reads[place] = read
        return reads

    def _derived(
        self,
        side: Side,
        reads: Mapping[SinkTable, SourceRead],
        result: ComparedInstant,
        of_source: Future[None],
    ) -> dict[str, _HashedRows]:
        """Return a sink's derived rows at the instant. Record why others can't be compared.

        Raise the error that ended the read ``of_source``, as nothing can be compared then.
        """
        _require_unfailed(of_source)
        tables, missing = side.brought()
        missing, derived = dict(missing), dict[str, _HashedRows]()
        for name, rows in tables.items():
            place = table_of(side, name)
            if place not in reads and not isinstance(rows, ArchiveRows):
                continue
            _require_unfailed(of_source)
            started = time.monotonic()
            hashes, broken, why = None, NONE, ""
            try:
                with explained(name, self._settings.log.keep):
                    if isinstance(rows, CheckedRows):
                        broken = rows.broken(self.options.keys_shown)
            except MillraceError as error:
                missing[name] = error.what
                continue
            try:
                with explained(name, self._settings.log.keep):
                    hashes = rows.hashes() if place in reads else None
            except MillraceError as error:
                why = error.what
            if hashes is not None:
                seconds = time.monotonic() - started
                derived[name] = _HashedRows(rows, hashes, seconds, broken)
                continue
            about = result.tables.get(place, side.about(name))
            why = why or about.unverified
            if why and broken.beside:
                # Its rows can't be compared with the source, but its events or versions were
                # compared.
                update = {"unverified": "", "left_out": {_STATE: why}, **_of_broken(broken)}
                result.tables[place] = about.model_copy(update=update)
            elif why:
                missing[name] = why
        for name, why in missing.items():
            unverified = side.about(name).model_copy(update={"unverified": why})
            result.tables[table_of(side, name)] = unverified
        return derived

    def _compare(
        self, result: ComparedInstant, side: Side, read: SourceRead, there: _HashedRows
    ) -> None:
        """Compare a table that was read on both sides."""
        place, about = read.place, side.about(read.place.name)
        if read.error is not None:
            has_changed = isinstance(read.error, TableChangedError)
            if has_changed:
                result.changed.add(place)
            why = f"{_CHANGED}: {read.error.what}" if has_changed else read.error.what
            result.tables[place] = about.model_copy(update={"unverified": why})
            return
        try:
            with explained(place.name, self._settings.log.keep):
                found = _compared(read, there)
        except MillraceError as error:
            result.tables[place] = about.model_copy(update={"unverified": error.what})
            return
        result.comparisons[place] = found
        result.tables[place] = about.model_copy(
            update={
                "rows": found.source_rows,
                "derived_rows": found.derived_rows,
                "left_out": read.compared.left_out,
                "seconds": round(there.seconds, 3),
                **_of_broken(there.broken),
            }
        )


def _of_broken(broken: BrokenRows) -> dict[str, object]:
    """Return the report's fields about broken rows."""
    return {
        "broken": dict(broken.counts),
        "broken_keys": tuple(BrokenKey(key=key, why=why) for why, key in broken.keys),
        "beside": broken.beside,
    }


def _compared(read: SourceRead, there: _HashedRows) -> TableComparison:
    """Return the rows that differ, with the texts of their keys.

    The source doesn't have all of them.
    """
    found = compare(read.hashes.table(), there.hashes, there.rows.refused)
    found = found._replace(hashed_by=hashed_by(read.compared))
    extra = [row.key for row in found.rows if row.texts is None]
    if not (extra and read.compared.is_keyed):
        return found
    texts = there.rows.key_texts(extra)
    named = [row._replace(texts=row.texts or texts.get(row.key)) for row in found.rows]
    return found._replace(rows=named)


def _compare_joined(joined: JoinedSide, result: ComparedInstant) -> None:
    """Compare joined documents with their definitions. Record why some can't be compared."""
    for name in joined.names:
        place = SinkTable("search", name)
        try:
            result.tables[place], result.comparisons[place] = joined.compare(name)
        except MillraceError as error:
            result.tables[place] = joined.about(name).model_copy(update={"unverified": error.what})


def _require_unfailed(of_source: Future[None]) -> None:
    if of_source.done():
        of_source.result()


def _read_source(
    reading: SourceReader, reads: Collection[SourceRead], both: BothSides, result: ComparedInstant
) -> None:
    """Read all tables, and then free the source."""
    try:
        reading.read([*reads])
    finally:
        result.snapshot_s = both.source.age_s
        both.reading.close()
