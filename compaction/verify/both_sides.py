"""Both sides of a pipeline at one instant → each derived table compared with the source there.

The source is read by sessions of its own while copies of the tables are brought to the instant, and
is free as soon as it has been read.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from cdc.errors import ConfigError, MillraceError, NotDoneError, TableChangedError
from cdc.log.offsets import LogReader, LogState
from cdc.postgres.captured import captured_tables, described_tables
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import Column
from cdc.records.state import Progress
from cdc.settings import Settings
from compaction.verify.confirm import derived_keys
from compaction.verify.derived import LakehouseAtInstant, ScratchLakehouse, lakehouse_at
from compaction.verify.differences import DerivedHashes, TableComparison, compare
from compaction.verify.instant import SourceInstant, source_at_instant
from compaction.verify.report import VerifiedTable
from compaction.verify.rules import ComparedTable, compared_table
from compaction.verify.source import SourceRead, SourceReader, table_read
from sinks.changes.derived import Derived
from sinks.changes.shape import TableShape
from sinks.run.options import RunContext
from sinks.spark.errors import explained
from sinks.spark.private_files import scratch_folder

_AGAIN_S: Final = 0.1
_CHANGED: Final = "it changed while it was read"


class VerifyOptions(NamedTuple):
    """Which derived tables (none: all), and what a verify may take of the source.

    It waits ``timeout_s`` for transactions that are open, and for the log. What the source shows is
    kept for ``age_max_s`` at most. Of each table ``keys_shown`` keys are named.
    """

    tables: frozenset[str] = frozenset()
    sessions: int = 2
    rows_per_second: int = 0
    timeout_s: float = 30.0
    age_max_s: float = 3600.0
    keys_shown: int = 10


@dataclass(slots=True)
class BothSides:
    """The source and the lakehouse at one instant; the source's sessions end with ``reading``."""

    source: SourceInstant
    lake: ScratchLakehouse
    taken_us: int
    reading: ExitStack


@dataclass(slots=True)
class ComparedInstant:
    """What was found at one instant; tables that ``changed`` may be looked at again."""

    lsn: Lsn
    taken_us: int
    tables: dict[str, VerifiedTable] = field(default_factory=dict)
    comparisons: dict[str, TableComparison] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    snapshot_s: float = 0.0


class _HashedRows(NamedTuple):
    """A table's rows at the instant, and their hashes."""

    rows: DataFrame
    hashes: DerivedHashes
    seconds: float


class Comparing:
    """Comparing at a pipeline; ``progress`` is told how many rows of the source have come."""

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
        """For what is read of the source; a process that dies leaves it to the next start."""
        self._progress = progress
        self._settings = context.settings
        self._log = LogReader(self._settings.kafka, context.while_waiting)

    @contextmanager
    def at_one_instant(self, names: Collection[str] | None) -> Iterator[BothSides]:
        """Both sides, of some tables or all, while the context lasts."""
        with ExitStack() as stack:
            reading = stack.enter_context(ExitStack())
            instant = reading.enter_context(
                source_at_instant(self._settings, self.options.timeout_s)
            )
            taken_us = time.time_ns() // 1_000
            state = self._reached(instant.lsn, instant.system_identifier)
            position = Position(state.progress.cut.epoch, instant.lsn, 0)
            lake = stack.enter_context(lakehouse_at(self.context, position, names))
            yield BothSides(instant, lake, taken_us, reading)

    def _reached(self, lsn: Lsn, cluster: str) -> LogState:
        """The log's state, once it has all that was committed before the instant."""
        capture, deadline = self._settings.capture, time.monotonic() + self.options.timeout_s
        while True:
            state = self._log.state(capture.topic_prefix, capture.slot_name, self.context.report)
            _require_same_cluster(state.progress, cluster)
            if state.progress.cut.commit_lsn >= lsn:
                return state
            if time.monotonic() > deadline:
                raise NotDoneError(
                    f"the source was at {lsn}, and the log has reached"
                    f" {state.progress.cut.commit_lsn} within {self.options.timeout_s:.0f} s",
                    where=f"topic.prefix {capture.topic_prefix}",
                    remedy="`millrace status` shows whether the daemon runs, and how far behind"
                    " it is",
                )
            time.sleep(_AGAIN_S)

    def compare(self, names: Collection[str] | None) -> ComparedInstant:
        """Compare tables, or all, at an instant that is now."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as folder,
            self.at_one_instant(names) as both,
        ):
            _require_there(names, both.lake)
            result = ComparedInstant(both.source.lsn, both.taken_us)
            reads = self.reads(both, Path(folder), result)
            with closing(self._reader(both)) as reading, ThreadPoolExecutor(1) as executor:
                read = executor.submit(_read_source, reading, reads, both, result)
                try:
                    derived, missing = self._derived(both.lake, reads)
                except BaseException:
                    reading.stop()
                    raise
                read.result()
            for name, why in missing.items():
                result.tables[name] = unverified(both.lake, name, why)
            for table in reads:
                if table.name in derived:
                    self._compare(result, both.lake, table, derived[table.name])
            return result

    def _reader(self, both: BothSides) -> SourceReader:
        return SourceReader(
            self._settings,
            both.source,
            sessions=self.options.sessions,
            age_max_s=self.options.age_max_s,
            rows_per_second=self.options.rows_per_second,
            progress=self._progress,
        )

    def reads(self, both: BothSides, folder: Path, result: ComparedInstant) -> list[SourceRead]:
        """What is to be read of the source; why other tables can't be compared is noted."""
        connection, lake = both.source.connection, both.lake
        captured = captured_tables(connection, self._settings.capture)
        described = {
            str(table.name): table
            for table in described_tables(connection, self._settings.capture, captured)
        }
        reads = list[SourceRead]()
        for number, (name, shape) in enumerate(lake.expected.items()):
            derived, compared = lake.derived[name], self._compared_table(shape)
            description = described.get(derived.source)
            why = self._why_not(derived, description) or _lacking(
                self._settings, description, shape, compared
            )
            if why or description is None:
                result.tables[name] = unverified(lake, name, why)
                continue
            own = folder / str(number)
            reads.append(table_read(both.source, name, description, compared, own))
        return reads

    def _compared_table(self, shape: TableShape) -> ComparedTable:
        """The columns that are compared: not those that the capture masks or cuts."""
        modes, table = self._settings.capture.column_modes, str(shape.table)
        rules = {
            field.name: "the capture masks it, or cuts it"
            for field in shape.fields
            if modes.rule(table, field.column.name) is not None
        }
        return compared_table(shape, rules)

    def _why_not(self, derived: Derived, description: TableDescription | None) -> str:
        """Why a table can't be compared with the source; empty: it may."""
        capture = self._settings.capture
        if derived.kind == "changes":
            return "an archive has events, and not rows"
        if self._settings.transforms or capture.skipped_operations:
            return (
                "the log doesn't have all changes as they were ([transforms], skipped.operations)"
            )
        is_own = derived.source in capture.snapshot_select_statements
        if is_own or not capture.snapshots(derived.source):
            return "its first rows may be others, or not in the log (snapshot options)"
        if description is None:
            return "the source doesn't have the table any more, or it isn't captured"
        return "" if description.all_changes else "the publication leaves out operations"

    def _derived(
        self, lake: ScratchLakehouse, reads: Sequence[SourceRead]
    ) -> tuple[dict[str, _HashedRows], dict[str, str]]:
        """The derived rows at the instant, and why others can't be compared."""
        there: LakehouseAtInstant = lake.brought()
        derived = dict[str, _HashedRows]()
        for read in reads:
            if (table := there.tables.get(read.name)) is None:
                continue
            started = time.monotonic()
            try:
                with explained(read.name, self._settings.log.keep):
                    rows = table.rows(self.spark)
                    hashes = DerivedHashes(rows, read.compared)
            except MillraceError as error:
                there.missing[read.name] = error.what
                continue
            derived[read.name] = _HashedRows(rows, hashes, time.monotonic() - started)
        return derived, there.missing

    def _compare(
        self, result: ComparedInstant, lake: ScratchLakehouse, read: SourceRead, there: _HashedRows
    ) -> None:
        """Compare a table that was read on both sides."""
        name = read.name
        if read.error is not None:
            has_changed = isinstance(read.error, TableChangedError)
            if has_changed:
                result.changed.add(name)
            why = f"{_CHANGED}: {read.error.what}" if has_changed else read.error.what
            result.tables[name] = unverified(lake, name, why)
            return
        with explained(name, self._settings.log.keep):
            found = compare(read.hashed(), there.hashes, read.compared)
            extra = [row.key for row in found.rows if row.texts is None]
            if extra and read.compared.is_keyed:
                texts = derived_keys(there.rows, read.compared, extra)
                named = [row._replace(texts=row.texts or texts.get(row.key)) for row in found.rows]
                found = found._replace(rows=named)
        result.comparisons[name] = found
        result.tables[name] = unverified(lake, name, "").model_copy(
            update={
                "rows": found.source_rows,
                "derived_rows": found.derived_rows,
                "left_out": read.compared.left_out,
                "seconds": round(there.seconds, 3),
            }
        )


def unverified(lake: ScratchLakehouse, name: str, why: str) -> VerifiedTable:
    """What is said of a table that can't be compared."""
    source, kind = lake.described(name)
    return VerifiedTable(name=name, source=source, kind=kind, unverified=why)


def _require_same_cluster(progress: Progress, cluster: str) -> None:
    """Refuse a source whose LSNs aren't the log's."""
    if progress.system_identifier != cluster:
        raise ConfigError(
            f"the source is cluster {cluster}, and the log is of cluster"
            f" {progress.system_identifier}: nothing can be compared",
            where="[source]",
            remedy="correct [source]; after a gap: millrace new-epoch",
        )


def _require_there(names: Collection[str] | None, lake: ScratchLakehouse) -> None:
    if unknown := sorted(set(names or ()) - lake.derived.keys()):
        raise ConfigError(
            f"there is no derived table {', '.join(unknown)}",
            remedy=f"there are: {', '.join(sorted(lake.derived))}",
        )


def _read_source(
    reading: SourceReader, reads: Sequence[SourceRead], both: BothSides, result: ComparedInstant
) -> None:
    """Read all of it; then the source is free."""
    try:
        reading.read(reads)
    finally:
        result.snapshot_s = both.source.age_s
        both.reading.close()


def _lacking(
    settings: Settings,
    description: TableDescription | None,
    shape: TableShape,
    compared: ComparedTable,
) -> str:
    """Why the columns of both sides don't fit each other; empty: they do."""
    if not compared.columns:
        reasons = [f"{name}: {why}" for name, why in compared.left_out.items()]
        return f"no column of it can be compared ({'; '.join(reasons)})"
    keeps, table = settings.capture.column_modes.keeps, str(shape.table)
    columns = description.columns if description is not None else ()
    at_source = {_form(column) for column in columns if keeps(table, column.name)}
    in_log = {_form(column) for column in shape.versions[-1].event_columns}
    if others := sorted({name for name, *_ in at_source ^ in_log}):
        return f"its columns have changed, and the log doesn't know yet: {', '.join(others)}"
    return ""


def _form(column: Column) -> tuple[str, str, int, bool]:
    return column.name, column.type, column.modifier, column.array
