"""The sources of views: the lakehouse's tables and other views, at their cuts.

A query uses their names there (``public.orders``, ``orders_history``, ``views.daily``). A table of
the schema ``public``, and a view, also have their bare names. ``changes(orders)`` is the archive.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.settings import LakehouseSettings
from sinks.changes.derived import Derived, derived_view
from sinks.changes.names import DELETED, END, POSITION, ROW, quoted
from sinks.delta.cuts import LakehouseCuts
from sinks.delta.query import sql_names
from sinks.run.cuts import Instant, TableDifference
from sinks.run.summary import TableVersion
from sinks.views.operators import OLD, CutSide
from sinks.views.query import HIDDEN
from sinks.views.records import ViewRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sinks.delta.version import Version

VIEWS: Final = "views."
"""Prefix of the names of views, among those of tables."""
_SCHEMA: Final = "public."
_PLANNED: Final = TableVersion(id="planned", version=0)
"""The version of a view that doesn't exist yet."""
_NOT_SHOWN: Final = frozenset({POSITION, DELETED, ROW})
"""Columns of current rows that aren't the source's."""


class ViewedColumn(NamedTuple):
    """A column of a table or a view: its type, and its identity, whatever its name."""

    type: str
    id: str


class Sources:
    """All sources of views, by name. ``wanted`` are the configured views."""

    def __init__(
        self,
        cuts: LakehouseCuts,
        records: ViewRecords,
        lakehouse: LakehouseSettings,
        prefix: str,
        wanted: Collection[str],
    ) -> None:
        self._cuts = cuts
        self._records = records
        self._lakehouse = lakehouse
        self._prefix = prefix
        self._views = {f"{VIEWS}{name}" for name in wanted}
        self.brought: dict[int, dict[str, TableVersion]] = {}
        self._compacted: dict[tuple[int, str], TableVersion] = {}
        self._planned: dict[str, tuple[Version, tuple[str, ...]]] = {}

    @cached_property
    def names(self) -> dict[str, str]:
        """Return names that a query may use, in lower case → their meaning."""
        names: dict[str, str] = {name: name for name in sorted(self._views)}
        names |= {name.removeprefix(VIEWS): name for name in sorted(self._views)}
        for name, table in sql_names(self._cuts.tables).items():
            written = f"{table.namespace}.{table.name}".lower()
            names[written] = name
            if written.startswith(_SCHEMA):
                names[written.removeprefix(_SCHEMA)] = name
        archives = {
            f"changes({written.removesuffix('_changes')})": name
            for written, name in names.items()
            if self._kind(name) == "changes" and written.endswith("_changes")
        }
        return names | archives

    def _kind(self, name: str) -> str:
        return self._cuts.tables[name].kind if name in self._cuts.tables else "view"

    def bring(
        self, run: int, name: str, version: TableVersion, before: TableVersion | None = None
    ) -> None:
        """Record that a view has the cut of a run. Compaction may have left one ``before``."""
        self.brought.setdefault(run, {})[f"{VIEWS}{name}"] = version
        if before is not None:
            self._compacted[run, f"{VIEWS}{name}"] = before

    def plan(self, name: str, version: "Version", keys: tuple[str, ...]) -> None:
        """Record a future view, so that others can be checked before it exists."""
        self._planned[f"{VIEWS}{name}"] = version, keys

    def newest(self, tables: Collection[str]) -> Instant | None:
        """Return the newest cut that all of these have."""
        return next(self._instants(tables), None)

    def _instants(self, tables: Collection[str]) -> Iterator[Instant]:
        views = {name for name in tables if name.startswith(VIEWS)}
        for instant in self._cuts.instants({*tables} - views):
            there = self._views_at(instant.run) if views else {}
            there = {**there, **dict.fromkeys(self._planned, _PLANNED)}
            if there.keys() >= views:
                versions = {name: there[name] for name in views}
                yield instant.model_copy(update={"versions": instant.versions | versions})

    def _views_at(self, run: int) -> Mapping[str, TableVersion]:
        if run in self.brought:
            return self.brought[run]
        at = self._records.at_cut(run)
        return {f"{VIEWS}{name}": of for name, of in at.versions.items()} if at else {}

    def has(self, instant: Instant) -> bool:
        """Whether a cut is unchanged, and its versions are kept."""
        views = {name for name in instant.versions if name.startswith(VIEWS)}
        tables = {name: of for name, of in instant.versions.items() if name not in views}
        if not self._cuts.has(instant.model_copy(update={"versions": tables})):
            return False
        there = self._views_at(instant.run)
        return all(
            instant.versions[name] in (there.get(name), self._compacted.get((instant.run, name)))
            for name in views
        )

    def version(self, spark: "SparkSession", name: str, instant: Instant) -> "Version":
        """Return a table at a cut."""
        from sinks.delta.table import DerivedDeltaTable
        from sinks.delta.version import Version

        if name in self._planned:
            return self._planned[name][0]
        at = instant.versions[name]
        derived = self._cuts.tables.get(name)
        if derived is None:
            derived = derived_view(self._lakehouse, name.removeprefix(VIEWS))
        return Version(DerivedDeltaTable(spark, self._prefix, derived), at.version)

    def columns(self, version: "Version", name: str) -> "dict[str, ViewedColumn]":
        """Return the columns that a query sees, by name."""
        return {
            field.name: ViewedColumn(
                field.dataType.simpleString(), str((field.metadata or {}).get("comment", ""))
            )
            for field in version.columns.fields
            if self._is_shown(name, field.name)
        }

    def schema(self, version: "Version", name: str) -> str:
        """Return the columns that a query sees, as Spark's JSON."""
        schema = version.columns.jsonValue()
        fields = [
            {**field, "metadata": {}}
            for field in schema["fields"]
            if self._is_shown(name, field["name"])
        ]
        return json.dumps({**schema, "fields": fields})

    def _is_shown(self, name: str, column: str) -> bool:
        if name.startswith(VIEWS):
            return not column.startswith(HIDDEN)
        return not (self._kind(name) == "current" and column in _NOT_SHOWN)

    def key(self, name: str, instant: Instant) -> tuple[str, ...]:
        """Return the columns that identify the rows of a table or a view. Empty: none do."""
        if name in self._planned:
            return self._planned[name][1]
        if name.startswith(VIEWS):
            record = self._records.view(name.removeprefix(VIEWS))
            return record.serves.keys if record is not None and record.serves is not None else ()
        kind = self._kind(name)
        if kind == "changes":
            return ()
        keys = tuple(self._cuts.shapes(instant)[name].keys)
        return (*keys, POSITION) if kind == "history" and keys else keys

    def rebuilt(self, *instants: Instant | None) -> set[str]:
        """Return the tables that were rebuilt between some cuts."""
        return self._cuts.rebuilt([instant for instant in instants if instant is not None])

    def derived(self, name: str) -> Derived | None:
        """Return the configuration of a table. None: it is a view."""
        return self._cuts.tables.get(name)


class SourceAtCuts:
    """A table of a query, at two cuts (None: only at the new one).

    One that was ``rebuilt`` in between may have other values in the same rows.
    """

    def __init__(
        self,
        sources: Sources,
        name: str,
        older: "Version | None",
        newer: "Version",
        keys: tuple[str, ...],
        columns: Collection[str],
        *,
        rebuilt: bool = False,
    ) -> None:
        self._name = name
        self._rebuilt = rebuilt
        self._older, self._newer = older, newer
        self._keys = keys
        self._columns = [*columns]
        self._sources = sources

    @property
    def is_small(self) -> bool:
        """Whether reading all rows is faster than a search through them."""
        return self._newer.is_small and (self._older is None or self._older.is_small)

    def count(self) -> int:
        """Return how many rows the newer one has."""
        return self._newer.count()

    def _at(self, cut: CutSide) -> "Version":
        version = self._older if cut == OLD else self._newer
        assert version is not None  # noqa: S101 (a table of one cut has no other)
        return version

    def rows(self, cut: CutSide) -> "DataFrame":
        """Return all rows."""
        return self._chosen(self._at(cut).rows())

    def _chosen(self, rows: "DataFrame") -> "DataFrame":
        return rows.select(*map(quoted, self._columns))

    def rows_with(
        self, cut: CutSide, values: "DataFrame", columns: Mapping[str, str]
    ) -> "DataFrame":
        """Return rows that include all with any of the ``values``, by each value's column.

        A value may be null, which files' statistics don't show, so they exclude no file.
        """
        return self._chosen(self._at(cut).rows_with(values, columns, nulls=True))

    def difference(self) -> TableDifference | None:
        """Return the rows that only one of the cuts has, with the columns that are read."""
        from sinks.delta.difference import difference

        assert self._older is not None  # noqa: S101 (as above)
        if self._older is self._newer:
            return None
        derived = self._sources.derived(self._name)
        if derived is None or not self._keys:
            return self._of_bags()
        marks = (END,) if derived.kind == "history" else (POSITION,)
        older, newer, columns = self._older, self._newer, {*self._columns}
        changed = difference(older, newer, self._keys, columns, marks, by_values=self._rebuilt)
        if changed is None:
            return None
        gone, come, count = changed
        return TableDifference(self._chosen(gone), self._chosen(come), count)

    def _of_bags(self) -> TableDifference | None:
        """Return rows without a key that one of the cuts has more often."""
        from sinks.delta.difference import differing_rows
        from sinks.spark.jvm import kept
        from sinks.views.catalyst import has_unordered

        assert self._older is not None  # noqa: S101 (as above)
        old, new = map(self._chosen, differing_rows(self._older, self._newer))
        if has_unordered(old.schema):  # Spark can't compare these; too many do no harm
            return TableDifference(old, new)
        sides = [kept(one.exceptAll(other)) for one, other in ((old, new), (new, old))]
        return TableDifference(sides[0][0], sides[1][0]) if any(n for _, n in sides) else None
