"""A table's new index, loaded beside the one that serves: the log's records, step by step.

It follows the log like any other reader. Once it has come to where the one that serves is, it takes
that one's place. So whoever dies in between leaves the rest to the next run.
"""

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from cdc.errors import BusyError, LogForgottenError, MillraceError, SinkUnreachableError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName, TableSchema
from sinks.batch import LogState, require_retained
from sinks.counted import counted
from sinks.plan import Plan, TablePlan
from sinks.records import Records
from sinks.search.indexes import TableIndex
from sinks.search.place import Place
from sinks.search.records import TableLoading, TableRecord
from sinks.summary import TableResult

if TYPE_CHECKING:
    from sinks.search.apply import Tables


class Loads:
    """The loads of all tables' indexes, against one state of the log."""

    def __init__(
        self, place: Place, state: LogState, index: Callable[[TableName], TableIndex]
    ) -> None:
        self._settings = place.settings
        self._search = place.search
        self._ledger = place.ledger
        self._state = state
        self._names = [table.name for table in state.tables.values()]
        self._index = index
        self._session = place.session
        self._report = place.report

    def begin(self, names: Collection[str]) -> list[TableResult]:
        """Make new indexes for tables, unless they are being loaded; and say where that can't be.

        Also for those that the user now wants otherwise. What has no index yet has been loaded just
        now.
        """
        records = {str(name): one for name, one in self._ledger.tables(self._names).items()}
        begun: list[str] = []
        for name, record in records.items():
            made = record.loading or record
            if made.wishes != self._search.index_of(name).wishes:
                self._report(f"{name}: [[search.indexes]] says something else: a new index")
                begun.append(name)
            elif name in names and record.loading is None:
                begun.append(name)
        parts = {name: self._plan(name, records[name]).tables[name] for name in begun}
        errors: dict[str, MillraceError] = {}
        errors |= never_whole(parts, self._state, self._settings.log.keep)
        for name in begun:
            if name not in errors:
                schema = versions_of(self._state, name, records[name].schema_version)[-1]
                try:
                    self._tables().begin_load(self._index(schema.name), records[name], schema)
                except (BusyError, SinkUnreachableError):
                    raise
                except MillraceError as error:
                    errors[name] = error
        return [TableResult(name, error=error) for name, error in errors.items()]

    def next(self) -> bool:
        """Load the next step of a table that is being loaded, if there is one.

        Behind the last one, the new index takes the place of the one that serves.
        """
        for table, record in self._ledger.tables(self._names).items():
            loading, index = record.loading, self._index(table)
            if loading is None or index.uuid(loading.index) != loading.uuid:
                continue
            loading, is_whole = self._stepped(str(table), index, record, loading)
            changes = self._published(table, index, loading) if is_whole else {"loading": loading}
            self._ledger.write_table(table, record.model_copy(update=changes))
            return True
        return False

    def again(self, name: str, record: TableRecord, documents: Collection[str]) -> None:
        """Write some documents of the index that serves anew."""
        plan = self._plan(name, record)
        versions = versions_of(self._state, name, record.schema_version)
        chosen = frozenset(documents)
        self._tables().write(record.index, plan.tables[name], plan, versions, chosen)
        self._index(versions[-1].name).refresh(record.index)

    def _published(
        self, table: TableName, index: TableIndex, loading: TableLoading
    ) -> dict[str, object]:
        """Let it serve; returns what of the table's record is another one by that."""
        from sinks.search.apply import served_by

        index.publish(loading.index, self._search.index_of(str(table)).settings)
        served = served_by(loading)
        return {
            "index": served.index,
            "uuid": served.uuid,
            "generation": served.generation,
            "wishes": served.wishes,
            "loading": None,
        }

    def _stepped(
        self, name: str, index: TableIndex, record: TableRecord, loading: TableLoading
    ) -> tuple[TableLoading, bool]:
        """What is loaded then, and whether that is all that the index that serves has."""
        from sinks.search.apply import loaded_text, steps

        whole = self._plan(name, record)
        table = whole.tables[name]
        step = next(steps(table, loading.loaded), None)
        if step is None:
            return loading, True
        self._load(name, index, loading.index, whole, step)
        self._report(f"{name}: {loading.index}: {loaded_text(table.start, step.end, table.end)}")
        return loading.model_copy(update={"loaded": step.end}), step.end == table.end

    def _load(
        self, name: str, target: TableIndex, index: str, whole: Plan, step: TablePlan
    ) -> None:
        from sinks.census import census

        plan = whole.model_copy(update={"tables": {name: step}})
        found = census(self._session(), Records(self._settings.kafka), plan.tables, plan.cut)
        table = counted(step, found.get(name, {}), plan.cut, keyed=True)
        if table.events:
            versions = versions_of(self._state, name, table.schema_version)
            self._tables().write(index, table, plan, versions)
        if table.truncated is not None:
            target.truncate(index, table.truncated)

    def _plan(self, name: str, record: TableRecord) -> Plan:
        """What a table's index has been given, as a plan."""
        topic = self._state.tables[name].topic
        starts = self._state.starts[topic]
        offsets = {number: max(starts[number], end) for number, end in record.offsets.items()}
        table = TablePlan(
            topic=topic,
            start={number: starts[number] for number in offsets},
            end=offsets,
            next=record.offsets,
            after=None,
            truncated=None,
            snapshot=Position(record.epoch, Lsn(0), 0),
            shown=None,
            schema_version=record.schema_version,
            base=0,
            events=0,
            fresh_ms=0,
        )
        return Plan(
            run=record.run,
            prefix=self._settings.capture.topic_prefix,
            log=self._state.progress.log,
            cut=Position.parse(record.cut),
            cut_ts_us=0,
            ts_ms=int(time.time() * 1000),
            tables={name: table},
        )

    def _tables(self) -> "Tables":
        from sinks.search.apply import Tables

        return Tables(self._session(), self._settings, self._search, self._ledger, self._report)


def versions_of(state: LogState, name: str, newest: int) -> list[TableSchema]:
    """A table's schema versions up to the one that a plan or a record knows."""
    return [schema for schema in state.schemas[name] if schema.version <= newest]


def never_whole(
    tables: Mapping[str, TablePlan], state: LogState, keep: timedelta
) -> dict[str, LogForgottenError]:
    """Tables to be loaded from a log that keeps no table whole, and has forgotten its start."""
    found = {}
    for name, table in tables.items():
        if table.base or state.tables[name].cleanup == "compact":
            continue
        first = {table.topic: dict.fromkeys(table.start, 0)}
        try:
            require_retained(first, state.starts, name, keep)
        except LogForgottenError as error:
            found[name] = error
    return found
