"""A table's new index, loaded beside the one that serves: its topic's partitions, one by one.

Each is loaded as of what the index that serves has been given by then, and from there on what
changes in it is written to both. So whoever dies in between leaves the rest to the next run.
"""

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from cdc.errors import LogForgottenError
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName, TableSchema
from cdc.settings import Settings
from sinks.batch import LogState, Report, require_retained
from sinks.counted import counted
from sinks.plan import Plan, TablePlan
from sinks.records import Records
from sinks.search.indexes import TableIndex
from sinks.search.progress import Ledger, TableLoading, TableRecord
from sinks.session import Session
from sinks.summary import TableResult


class Loads:
    """The loads of all tables' indexes, against one state of the log."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        state: LogState,
        index: Callable[[TableName], TableIndex],
        session: Session,
        report: Report,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._state = state
        self._names = [table.name for table in state.tables.values()]
        self._index = index
        self._session = session
        self._report = report

    def begin(self, names: Collection[str]) -> list[TableResult]:
        """Make new indexes for tables, unless they are being loaded; and say where that can't be.

        What has no index yet has been loaded just now.
        """
        from sinks.search.apply import begin_load

        records = self._ledger.tables(self._names)
        wanted = {name: table for name, table in self._state.tables.items() if name in names}
        begun = {name: records[one.name] for name, one in wanted.items() if one.name in records}
        parts = {name: self._part(name, record) for name, record in begun.items()}
        refused = never_whole(
            {name: plan.tables[name] for name, plan in parts.items()},
            self._state,
            self._settings.log.keep,
        )
        for name, record in begun.items():
            if name not in refused and record.loading is None:
                table = wanted[name].name
                schema = versions_of(self._state, name, record.schema_version)[-1]
                begin_load(self._index(table), self._ledger, record, schema)
        return [TableResult(name, error=error) for name, error in refused.items()]

    def next(self) -> bool:
        """Load the next partition of a table that is being loaded, if there is one.

        With the last one, the new index takes the place of the one that serves.
        """
        from sinks.search.apply import generation_of

        for table, record in self._ledger.tables(self._names).items():
            loading, index = record.loading, self._index(table)
            if loading is None or index.uuid(loading.index) != loading.uuid:
                continue
            left = sorted(record.offsets.keys() - set(loading.done))
            if left:
                self._load(str(table), record, loading, left[0])
                loading = loading.model_copy(update={"done": (*loading.done, left[0])})
            changes: dict[str, object] = {"loading": loading}
            if len(left) <= 1:
                index.publish(loading.index)
                generation = generation_of(loading.index)
                served = {"index": loading.index, "uuid": loading.uuid, "generation": generation}
                changes = {**served, "loading": None}
            self._ledger.write_table(table, record.model_copy(update=changes))
            return True
        return False

    def _load(self, name: str, record: TableRecord, loading: TableLoading, partition: int) -> None:
        from sinks.census import census
        from sinks.search.apply import load_part

        count = len(record.offsets)
        self._report(f"{name}: loading {loading.index}, part {len(loading.done) + 1} of {count}")
        plan = self._part(name, record, partition)
        found = census(self._session(), Records(self._settings.kafka), plan.tables, plan.cut)
        table = counted(plan.tables[name], found.get(name, {}), plan.cut, keyed=True)
        if table.events:
            versions = versions_of(self._state, name, record.schema_version)
            load_part(self._session(), self._settings, table, plan, versions, loading.index)

    def _part(self, name: str, record: TableRecord, partition: int | None = None) -> Plan:
        """What a table's index has been given, or one partition of that, as a plan."""
        topic = self._state.tables[name].topic
        starts = self._state.starts[topic]
        chosen = [partition] if partition is not None else sorted(record.offsets)
        table = TablePlan(
            topic=topic,
            start={number: starts[number] for number in chosen},
            end={number: max(starts[number], record.offsets[number]) for number in chosen},
            next={number: record.offsets[number] for number in chosen},
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
