"""A document's definition and the lakehouse's columns → the tree of joined tables.

Every table of it is a node. A table through which two others are joined is also a node, whose rows
show only the rows embedded in them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from cdc.errors import ConfigError
from cdc.settings.search import Document, Embedded, JoinedRows
from sinks.changes.shape import DerivedField, TableShape
from sinks.changes.types import spark_type
from sinks.search.documents import field_name, type_of

_INNER: Final = "_millrace_inner"
"""The embedded row of a row between two others: a name that none of its own columns has."""


JoinSide = Literal["own", "outer"]
LinkColumn = TypeVar("LinkColumn")
"""A column: its name, or its name and identity."""


class ColumnPair(NamedTuple):
    """Joining columns: a node's own one equals the outer node's."""

    own: str
    outer: str

    def column(self, side: JoinSide) -> str:
        """Return the column of one side."""
        return self.own if side == "own" else self.outer


class Links(NamedTuple, Generic[LinkColumn]):
    """The columns of a table's key, in the order for ids, and those that join its rows."""

    key: tuple[LinkColumn, ...]
    joins: set[LinkColumn]

    @property
    def columns(self) -> set[LinkColumn]:
        """All of them."""
        return {*self.key, *self.joins}


@dataclass(frozen=True, slots=True)
class Node:
    """Rows of a table, and how they are embedded in those of the outer node.

    ``fields`` are the visible columns, by their fields. ``on`` has the pairs of joining columns.
    Dropped columns had the fields that are ``gone``.
    """

    field: str
    table: str
    fields: Mapping[str, DerivedField]
    key_fields: tuple[DerivedField, ...]
    on: tuple[ColumnPair, ...] = ()
    many: bool = False
    where: str | None = None
    computed: tuple[tuple[str, str], ...] = ()
    embeds: tuple["Node", ...] = ()
    is_between: bool = False
    gone: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns of the key."""
        return tuple(field.name for field in self.key_fields)

    @property
    def shown(self) -> "Node":
        """Return the node whose rows are visible: of one between two others, the embedded one."""
        return self.embeds[0] if self.is_between else self

    def paths(self) -> Iterator[tuple["Node", ...]]:
        """Yield each node below this one, and itself, with all its outer nodes, outermost first."""
        yield (self,)
        for embedded in self.embeds:
            for path in embedded.paths():
                yield (self, *path)

    def gone_paths(self) -> Iterator[str]:
        """Yield the paths of fields that are gone, in this node and below it."""
        yield from self.gone
        for embedded in self.embeds:
            yield from (f"{embedded.field}.{path}" for path in embedded.shown.gone_paths())

    def linking(self) -> "dict[str, Links[str]]":
        """Return the columns of each table that identify or join its rows."""
        links: dict[str, Links[str]] = {}
        for path in self.paths():
            node = path[-1]
            joins = links.setdefault(node.table, Links(node.keys, set())).joins
            joins.update(pair.own for pair in node.on)
            for embedded in node.embeds:
                joins.update(pair.outer for pair in embedded.on)
        return links


def tree(document: Document, tables: Mapping[str, TableShape]) -> Node:
    """Return the document's root. Raise ConfigError if it refers to something missing."""
    where = f"[[search.documents]] {document.name}"
    return _node(document, "", tables, where)


def _node(
    rows: JoinedRows,
    field: str,
    tables: Mapping[str, TableShape],
    where: str,
) -> Node:
    shape = _shape(rows.table, tables, where)
    named = {*rows.include, *rows.exclude, *rows.rename}
    if strange := sorted(named - set(shape.names) - shape.gone):
        raise _no_columns(rows.table, strange, where)
    fields = _fields(rows, shape, where)
    embeds = tuple(_embedded(embedded, shape, tables, where) for embedded in rows.embed)
    made = Node(
        field=field,
        table=rows.table,
        fields=fields,
        key_fields=_key(shape),
        where=rows.where,
        computed=tuple(rows.computed.items()),
        embeds=embeds,
        gone=_gone(rows, shape, fields),
    )
    # Spark ignores case in names.
    columns = {name.lower() for name in shape.names}
    of_embeds = [node.field for node in embeds]
    taken = [name.lower() for name in (*fields, *rows.computed, *of_embeds)]
    of_columns = {field for field in of_embeds if field.lower() in columns}
    if twice := sorted(of_columns | {name for name in taken if taken.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)}: {rows.table} already has a column with this name",
            where=where,
            remedy="choose another name for what is embedded or computed",
        )
    return made


def _fields(rows: JoinedRows, shape: TableShape, where: str) -> dict[str, DerivedField]:
    fields: dict[str, DerivedField] = {}
    for field in shape.fields:
        if (rows.include and field.name not in rows.include) or field.name in rows.exclude:
            continue
        name = rows.rename.get(field.name, field_name(field.name))
        if name in fields:
            raise ConfigError(
                f"two columns of {rows.table} would be the field {name}",
                where=where,
                remedy="rename one of them",
            )
        fields[name] = _as_it_is(field)
    return fields


def _gone(rows: JoinedRows, shape: TableShape, fields: Iterable[str]) -> frozenset[str]:
    """Return fields that only dropped columns of the source had."""
    had = (rows.rename.get(name, field_name(name)) for name in shape.gone)
    return frozenset(had).difference(fields, rows.computed)


def _as_it_is(field: DerivedField) -> DerivedField:
    """Return the field with a column of its values' type, which a mask or an option changes."""
    column = field.column
    if not field.hashed and field.type == spark_type(column):
        return field
    element = field.type.removeprefix("array<").removesuffix(">")
    kind = {"type": type_of(element), "array": field.type != element}
    return replace(field, column=column.model_copy(update=kind))


def _embedded(
    rows: Embedded, outer: TableShape, tables: Mapping[str, TableShape], where: str
) -> Node:
    node = _node(rows, rows.field, tables, where)
    own = _shape(rows.table, tables, where)
    if rows.through is None:
        on = _on(rows.on, own, outer, where)
        return replace(node, on=on, many=rows.many)
    between = _shape(rows.through.table, tables, where)
    return Node(
        field=rows.field,
        table=rows.through.table,
        fields={},
        key_fields=_key(between),
        on=_on(rows.through.on, between, outer, where),
        many=True,
        embeds=(replace(node, field=_INNER, on=_on(rows.on, own, between, where), many=False),),
        is_between=True,
    )


def _on(
    on: Mapping[str, str], own: TableShape, outer: TableShape, where: str
) -> tuple[ColumnPair, ...]:
    for shape, named in ((own, on.keys()), (outer, on.values())):
        if strange := sorted(set(named) - set(shape.names)):
            raise _no_columns(str(shape.table), strange, where)
    return tuple(ColumnPair(own_name, outer_name) for own_name, outer_name in on.items())


def _key(shape: TableShape) -> tuple[DerivedField, ...]:
    fields = {field.name: _as_it_is(field) for field in shape.fields}
    return tuple(fields[name] for name in shape.keys)


def _shape(table: str, tables: Mapping[str, TableShape], where: str) -> TableShape:
    shape = tables.get(table)
    if shape is None:
        raise ConfigError(
            f"the lakehouse has no table {table} of kind current (yet)",
            where=where,
            remedy="joined documents need the lakehouse's tables: capture it, and run `millrace"
            " merge lakehouse`",
        )
    if not shape.keys:
        raise ConfigError(
            f"{table} has no key, so its rows can't be followed",
            where=where,
            remedy="add a primary key; or a unique index, as replica identity",
        )
    return shape


def _no_columns(table: str, names: list[str], where: str) -> ConfigError:
    return ConfigError(
        f"{table} has no column {', '.join(names)}",
        where=where,
        remedy="use the columns' names in the lakehouse",
    )
