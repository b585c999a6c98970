"""Rows that end within bounds → the deletes of their documents.

No query finds exactly these: a field has a timestamp to the millisecond and a numeric as a double,
and users may define another search. So the index is searched for documents that may match, by the
first column of each bound if its field has our definition. Then the keys in these documents decide.
Each is deleted at the end's own version, so a newer document stays.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch, OpenSearchException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.errors import SinkUnreachableError
from cdc.records.bounds import Bound, RangeEdge
from cdc.records.schema import Column
from sinks.changes.ended import BoundColumn, bound_columns
from sinks.changes.ends import RowsEnd
from sinks.changes.shape import TableShape
from sinks.search.bulk import Action, Counts, write
from sinks.search.client import insist
from sinks.search.documents import POSITION_FIELD, field_mapping, field_name
from sinks.search.indexes import write_alias
from sinks.search.rows import JSON, value_in_json

_PAGE: Final = 5_000
_PAUSE_MAX: Final = "5m"
"""How long the server keeps a search open between pages."""
_KEYWORD_CHARS: Final = 256
"""How many characters of a text are found as a whole."""


class _InDocuments(NamedTuple):
    """A bound in the form of documents: the fields of its columns, and its values.

    A renamed column has several fields, the newest name's first. Documents not written since then
    have an older one.
    """

    fields: list[list[str]]
    columns: list[Column]
    bound: Bound

    def holds(self, document: Mapping[str, Any]) -> bool:
        """Whether a document is within the bound, by its key."""
        values = [
            _comparable(next((document[name] for name in names if name in document), None), column)
            for names, column in zip(self.fields, self.columns, strict=True)
        ]
        if self.bound.values is not None:
            return values[0] in [_comparable(value, self.columns[0]) for value in self.bound.values]
        if None in values:
            return False
        return self._reaches(values, self.bound.lower) and not self._reaches(
            values, self.bound.upper
        )

    def _reaches(self, values: Sequence[Any], edges: Sequence[RangeEdge]) -> bool:
        """Whether values are at a range's edge, or above."""
        for value, edge, column in zip(values, edges, self.columns, strict=True):
            if edge.kind != "value":
                return edge.kind == "min"
            at = _comparable(edge.value, column)
            if value != at:
                return bool(value > at)
        return True

    def clause(self, mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a query for documents that may be within. Empty: the index can't decide."""
        (field, *older_names), column = self.fields[0], self.columns[0]
        if older_names or mapping.get(field) != field_mapping(column):
            return []
        if self.bound.values is not None:
            values = [value for value in self.bound.values if value is not None]
            if len(values) < len(self.bound.values) or any(
                isinstance(value, str) and len(value) > _KEYWORD_CHARS for value in values
            ):
                return []
            whole = f"{field}.keyword" if mapping[field]["type"] == "text" else field
            return [{"terms": {whole: values}}]
        edges = {"gte": self.bound.lower[0], "lte": self.bound.upper[0]}
        limits = {name: edge.value for name, edge in edges.items() if edge.kind == "value"}
        return [{"range": {field: limits}}] if limits else []


class EndedDocuments(NamedTuple):
    """The documents that an end of rows deletes: those up to a position, within all bounds."""

    upto: str
    bounds: list[_InDocuments]

    def holds(self, document: Mapping[str, Any]) -> bool:
        """Whether a document is one of them."""
        is_older = str(document.get(POSITION_FIELD, "")) <= self.upto
        return is_older and all(bound.holds(document) for bound in self.bounds)


def delete_ended(
    spark: SparkSession,
    client: OpenSearch,
    index: str,
    ends: Sequence[RowsEnd],
    shape: TableShape,
    *,
    bulk_bytes: int,
) -> Counts:
    """Delete the documents of ended rows. All earlier writes must be visible."""
    where = f"index {index}"
    answer = insist(lambda: client.indices.get_mapping(index=index), where)
    mapping = answer[index]["mappings"].get("properties", {})
    counts = Counts()
    for end in ends:
        ended = ended_documents(spark, end, shape)
        older = {"range": {POSITION_FIELD: {"lte": ended.upto}}}
        clauses = [clause for bound in ended.bounds for clause in bound.clause(mapping)]
        query = {"bool": {"filter": [older, *clauses]}}
        names = {name for bound in ended.bounds for names in bound.fields for name in names}
        fields = sorted({*names, POSITION_FIELD})
        version = int(end.position.commit_lsn)
        deletes = (
            Action(hit["_id"], version, None)
            for hit in _hits(client, index, query, fields)
            if ended.holds(hit["_source"])
        )
        counts += write(client, write_alias(index), deletes, bulk_bytes=bulk_bytes)
    return counts


def ended_documents(spark: SparkSession, end: RowsEnd, shape: TableShape) -> EndedDocuments:
    """Return an end's bounds, with values converted like a row's, from record to document."""
    columns = [bound_columns(bound, end, shape) for bound in end.bounds]
    literals = [
        value
        for bound, of in zip(end.bounds, columns, strict=True)
        for value in _literals(bound, of)
    ]
    row = F.struct(*(value.alias(str(number)) for number, value in enumerate(literals)))
    (made,) = spark.sql("SELECT 1").select(F.to_json(row, JSON).alias("made")).collect()
    by_number = json.loads(made["made"])  # without those that are null
    values = iter([by_number.get(str(number)) for number in range(len(literals))])
    bounds = [
        _InDocuments(
            [_names(column) for column in of],
            [column.field.column for column in of],
            _with_values(bound, values),
        )
        for bound, of in zip(end.bounds, columns, strict=True)
    ]
    return EndedDocuments(str(end.position), bounds)


def _names(column: BoundColumn) -> list[str]:
    """Return the fields that a column has, or had: the newest first."""
    sources = sorted(column.field.sources.items(), reverse=True)
    return list(dict.fromkeys(field_name(source.name) for _, source in sources))


def _literals(bound: Bound, columns: Sequence[BoundColumn]) -> list[SparkColumn]:
    """Return a bound's values in the form of documents, with nulls for edges without one."""
    pairs = [
        *((value, columns[0]) for value in bound.values or ()),
        *((edge.value, column) for edge, column in zip(bound.lower, columns, strict=False)),
        *((edge.value, column) for edge, column in zip(bound.upper, columns, strict=False)),
    ]
    return [
        F.lit(None).cast("string")
        if value is None
        else value_in_json(column.field.column, column.literal(value))
        for value, column in pairs
    ]


def _with_values(bound: Bound, values: Iterator[Any]) -> Bound:
    """Return the bound with the next values, in the order of ``_literals``."""
    return Bound(
        columns=bound.columns,
        values=None if bound.values is None else tuple(next(values) for _ in bound.values),
        lower=tuple(RangeEdge(edge.kind, next(values)) for edge in bound.lower),
        upper=tuple(RangeEdge(edge.kind, next(values)) for edge in bound.upper),
    )


def _comparable(value: Any, column: Column) -> Any:
    """Return a document's value that compares. Dates and times are texts of one width."""
    return Decimal(value) if column.type == "numeric" and value is not None else value


def _hits(
    client: OpenSearch, index: str, query: Mapping[str, Any], fields: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the matching documents with some fields, page by page, as of the start."""
    where = f"index {index}"
    body = {"query": query, "size": _PAGE, "sort": ["_doc"], "_source": fields}
    answer = insist(lambda: client.search(index=index, body=body, scroll=_PAUSE_MAX), where)
    try:
        while hits := _whole(answer, where)["hits"]["hits"]:
            yield from hits
            more = {"scroll_id": answer["_scroll_id"], "scroll": _PAUSE_MAX}
            answer = insist(partial(client.scroll, body=more), where)
    finally:
        with suppress(OpenSearchException):
            client.clear_scroll(body={"scroll_id": [answer["_scroll_id"]]})


def _whole(answer: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a search's answer. Raise SinkError if a part of the index didn't answer."""
    if failed := answer["_shards"]["failed"]:
        raise SinkUnreachableError(
            f"{failed} shards of the index don't answer",
            where=where,
            remedy="check the search server's health; the next run continues",
        )
    return answer
