"""A tree, and the types of what is computed in it → its index's mapping.

What the user says of a field comes last. Rows that are embedded as many are ``nested``, so that a
query's conditions hold for one of them, and not for one each.
"""

from typing import Any

from pyspark.sql.types import ArrayType, DataType, StructType

from cdc.settings.search import Document
from sinks.search.documents import field_mapping, mapping_of, override, type_mapping, type_of
from sinks.search.joined.tree import Node


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
    for one in node.embeds:
        kind = types[one.field].dataType
        inner = kind.elementType if isinstance(kind, ArrayType) else kind
        assert isinstance(inner, StructType)  # noqa: S101 (assemble makes it so)
        found = {"properties": _properties(one.shown, inner)}
        properties[one.field] = {"type": "nested", **found} if one.many else found
    return properties


def _computed(kind: DataType) -> dict[str, Any]:
    if isinstance(kind, ArrayType):
        return _computed(kind.elementType)
    if isinstance(kind, StructType):
        return {"properties": {one.name: _computed(one.dataType) for one in kind.fields}}
    return type_mapping(type_of(kind.simpleString()))
