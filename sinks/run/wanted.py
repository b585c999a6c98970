"""A sink's section and the log's tables → the derived tables to make.

Commands that make them, wait for them, or report missing ones use the same list.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self

from cdc.errors import ConfigError
from cdc.records.schema import TableName, TableSchema
from cdc.records.state import TableState
from cdc.settings import SearchSettings, Settings
from cdc.settings.drops import DropRule
from cdc.settings.lakehouse import LakehouseSettings, TableKind
from cdc.settings.views import VIEWS
from sinks.changes.derived import Derived, derived_tables, table_path, without_unfit
from sinks.changes.names import sql_name
from sinks.run.summary import SINK_NAMES, SinkName


class WantedTable(NamedTuple):
    """A derived table that a plan must have: the captured table, and the kind.

    An archive ``is_whole`` if others can be made of it. ``drop`` is the rule for its rows when the
    captured table is dropped. ``removes`` is a digest of the options that remove dropped columns.
    """

    source: str
    kind: TableKind = "current"
    is_whole: bool = True
    drop: DropRule = DropRule()
    removes: str = ""


class CapturedTables(NamedTuple):
    """The names of captured tables: all, those with a key, and those without.

    For some it isn't known yet whether they have a key.
    """

    names: tuple[str, ...]
    keyed: frozenset[str]
    keyless: frozenset[str]

    @classmethod
    def of(cls, names: Iterable[str], newest: Mapping[str, TableSchema]) -> Self:
        """Create it from the newest schema of each table that has one."""
        keyed = frozenset(name for name, schema in newest.items() if schema.key)
        return cls(tuple(names), keyed, frozenset(newest.keys() - keyed))

    @property
    def with_key(self) -> list[TableName]:
        """Return the tables whose rows can be documents."""
        return [TableName.parse(name) for name in self.names if name in self.keyed]


def names_in_log(states: Iterable[TableState]) -> list[str]:
    """Return the captured tables that have a topic, as a run sees them."""
    return [str(state.name) for state in states if state.is_in_log]


def newest_schemas(schemas: Iterable[TableSchema]) -> dict[str, TableSchema]:
    """Return each table's newest version."""
    return {str(each.name): each for each in sorted(schemas, key=lambda each: each.version)}


def configured_sinks(settings: Settings) -> tuple[SinkName, ...]:
    """Return the configured sinks, in the order of their runs."""
    return tuple(sink for sink in SINK_NAMES if getattr(settings, sink))


def lakehouse_tables(
    settings: Settings, captured: CapturedTables, begun: Collection[str] = ()
) -> tuple[dict[str, Derived], list[str]]:
    """Return the lakehouse's tables, by name, and the names of those that lack a required key.

    ``begun`` are those that the last plan had. Raise ConfigError if two have the same name, or one
    has a view's.
    """
    lakehouse = settings.require_lakehouse()
    tables = derived_tables(lakehouse, captured.names)
    _require_apart(settings, tables.values())
    return without_unfit(tables, lakehouse, captured.keyless, begun)


def _require_apart(settings: Settings, tables: Iterable[Derived]) -> None:
    """Raise ConfigError for a table with the folder, or the name in SQL, of a view."""
    lakehouse = settings.require_lakehouse().path
    names = {view.name for view in settings.views}
    paths = {table_path(lakehouse, TableName(VIEWS, name)): name for name in names}
    for table in tables:
        namespace, name = map(sql_name, TableName.parse(table.name))
        view = paths.get(table.path.rstrip("/"))
        if view is None and namespace == VIEWS and name in names:
            view = name
        if view is not None:
            raise ConfigError(
                f"derived table {table.name} and view {view} would have the same folder, or the"
                " same name in SQL",
                where="[[views]]",
                remedy="give the view another name",
            )


def wanted_in_lakehouse(
    lakehouse: LakehouseSettings, derived: Mapping[str, Derived]
) -> dict[str, WantedTable]:
    """Return the wanted table of each derived one."""
    return {
        name: WantedTable(
            table.source,
            table.kind,
            table.keeps_records,
            lakehouse.drop_rule(table.options),
            table.removal,
        )
        for name, table in derived.items()
    }


def wanted_in_search(search: SearchSettings, captured: CapturedTables) -> dict[str, WantedTable]:
    """Return the tables with an index: those that [search] names, or all, except keyless ones.

    Joined documents aren't among them.
    """
    return {
        name: WantedTable(name, drop=search.drop_rule(search.index_of(name)))
        for name in captured.names
        if name in captured.keyed and (search.tables is None or name in search.tables)
    }


def expected_tables(
    settings: Settings,
    sink: SinkName,
    captured: CapturedTables,
    begun: Collection[str] = (),
) -> dict[str, frozenset[str]]:
    """Return each derived table of a sink, and each joined document, with its captured tables.

    Only Spark knows a view's tables, from its SELECT, and reports have them.
    """
    if sink == "views":
        return {view.name: frozenset() for view in settings.views}
    if sink == "lakehouse":
        derived, _ = lakehouse_tables(settings, captured, begun)
        return {name: frozenset({table.source}) for name, table in derived.items()}
    search = settings.require_search()
    documents = {each.name: frozenset(each.tables()) for each in search.documents}
    return {name: frozenset({name}) for name in wanted_in_search(search, captured)} | documents
