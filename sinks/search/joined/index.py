"""A tree → its index's mapping; and what an index was made for → why it can't go on as it is."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import ArrayType, DataType, StructType

from cdc.errors import ConfigError
from cdc.settings.search import Document
from sinks.changes.shape import TableShape
from sinks.search.documents import field_mapping, mapping_of, override, type_mapping, type_of
from sinks.search.joined.source import Lakehouse
from sinks.search.joined.tree import Node, tree
from sinks.search.progress_records import DocumentRecord, Instant, JoinedIndex


def mapping(root: Node, types: StructType, document: Document) -> dict[str, Any]:
    """The mapping of a document's index; ``types`` are those of its fields, in Spark.

    Raises ConfigError where the user speaks of a field that isn't there.
    """
    properties = _properties(root, types)
    override(properties, document.mapping, f"[[search.documents]] {document.name}")
    return mapping_of(properties)


def _properties(node: Node, types: StructType) -> dict[str, Any]:
    properties = {name: field_mapping(field.column) for name, field in node.fields.items()}
    for name, _ in node.computed:
        properties[name] = _computed(types[name].dataType)
    for embedded in node.embeds:
        kind = types[embedded.field].dataType
        inner = kind.elementType if isinstance(kind, ArrayType) else kind
        assert isinstance(inner, StructType)  # noqa: S101 (assemble makes it so)
        mapping = {"properties": _properties(embedded.shown, inner)}
        properties[embedded.field] = {"type": "nested", **mapping} if embedded.many else mapping
    return properties


def _computed(kind: DataType) -> dict[str, Any]:
    if isinstance(kind, ArrayType):
        return _computed(kind.elementType)
    if isinstance(kind, StructType):
        return {"properties": {field.name: _computed(field.dataType) for field in kind.fields}}
    return type_mapping(type_of(kind.simpleString()))


def unfit(lakehouse: Lakehouse, record: DocumentRecord, newest: Instant) -> str | None:
    """Why no changes lead from where the indexes are to the newest cut."""
    for at in (record.at, record.to):
        if at is not None and (reason := _parted(lakehouse, at, newest)) is not None:
            return f"{reason}: loading a new index"
    at = record.at
    for target in record.targets:
        if at is not None and not _linked_alike(lakehouse, target.definition, at, newest):
            return "columns that join have other names: loading a new index"
    return None


def outgrown(wanted: JoinedIndex, grown: JoinedIndex) -> str | None:
    """Why an index needs another one in its place, whose fields would be these."""
    before = wanted.identities
    others = [name for name, id_ in grown.identities.items() if before.get(name, id_) != id_]
    if others:
        return f"{', '.join(sorted(others))}: another column has that name: loading a new index"
    if not extends(grown.mapping, wanted.mapping):
        return "its fields are others: loading a new index"
    return None


def identities(definition: Document, shapes: Mapping[str, TableShape]) -> dict[str, str]:
    """What each column of the tables is, whatever it is called."""
    return {
        f"{name}.{field.name}": field.id
        for name in sorted(set(definition.tables()))
        for field in shapes[name].fields
    }


def extends(mapping: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a mapping has all that another one has, and as it is there."""
    return all(
        name in mapping
        and (
            extends(mapping[name], value)
            if isinstance(value, dict) and isinstance(mapping[name], dict)
            else mapping[name] == value
        )
        for name, value in before.items()
    )


def _parted(lakehouse: Lakehouse, at: Instant, newest: Instant) -> str | None:
    if at.cut.epoch != newest.cut.epoch or at.cut > newest.cut:
        return "a new history begins"
    shared = newest.versions.keys() & at.versions.keys()
    if any(at.versions[name].id != newest.versions[name].id for name in shared):
        return "a lakehouse table was made anew"
    is_same = all(at.versions[name] == newest.versions[name] for name in shared)
    if not is_same and not lakehouse.has(at):
        return "the lakehouse doesn't have its cut any more"
    return None


def _linked_alike(lakehouse: Lakehouse, definition: Document, at: Instant, newest: Instant) -> bool:
    """Whether rows are told apart, and joined, by columns of the same names at both cuts."""
    if at.run == newest.run:
        return True
    try:
        before = tree(definition, lakehouse.shapes(at)).linking()
        return before == tree(definition, lakehouse.shapes(newest)).linking()
    except ConfigError:
        return True  # which is told, or has the one that serves frozen
