"""Tables of many columns: the cost of one changed row hardly grows with them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import ClientServerConnection

from sinks.changes.names import OWN
from sinks.changes.newest import contenders
from sinks.changes.shape import plain_shape
from sinks.log.parse import parse
from sinks.search.rows import documents
from tests.fixtures.indexes import Indexes
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import at, column, table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS_MAX = 1_600
"""As many as a table of PostgreSQL has."""


def texts(count: int) -> list[Any]:
    return [column("id", "int4", 1), *(column(f"c{n}", "text") for n in range(1, count))]


def row(count: int, value: str) -> dict[str, Any]:
    return {"id": 1} | {f"c{n}": value for n in range(1, count)}


@pytest.mark.proof
@pytest.mark.opensearch
@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_of_1600_columns_is_indexed(indexes: Indexes) -> None:
    """The limit of an index's fields is 1,000 by default, and a text has two."""
    log = indexes.log(*texts(COLUMNS_MAX))
    log.row("r", at(100, 0), row(COLUMNS_MAX, "old"))
    log.table(100)
    log.reached(at(100, 0))
    indexes.merge()
    changed = row(COLUMNS_MAX, "old") | {"c1599": "new", "c7": None}
    log.row("u", at(200), changed)
    without = {name: changed[name] for name in changed if name not in {"c1598", "c7", "c8"}}
    log.row("u", at(300), without | {"c1599": "newest"})  # they are large, and unchanged
    log.reached(at(300))
    indexes.merge()
    changed["c1599"] = "newest"
    stored = {name: value for name, value in changed.items() if value is not None}
    assert indexes.documents() == {"1": stored}


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.spark
def test_a_small_delta_table_of_many_columns_is_rewritten_whole(lakehouse: Lakehouse) -> None:
    """By one expression for all columns; one at a time where a change leaves values out."""
    width = 60
    log = lakehouse.log(*texts(width))
    for number in (1, 2, 3):
        log.row("r", at(100, 0), row(width, "old") | {"id": number})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    log.row("u", at(200, 1), row(width, "new") | {"c7": None})
    log.row("d", at(200, 2), None, {"id": 3})
    log.reached(at(200, 2))
    lakehouse.merge()
    log.row("u", at(300), {"id": 1, "c1": "last"})  # all others are as they were
    log.reached(at(300))
    lakehouse.merge()
    assert lakehouse.rows(log.schema) == [
        row(width, "new") | {"c7": None, "c1": "last"},
        row(width, "old") | {"id": 2},
    ]


@pytest.mark.spark
def test_spark_is_asked_as_little_for_many_columns_as_for_few(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the JVM takes a quarter of a millisecond; each node of a plan takes more."""
    types = (
        "topic string, partition int, offset bigint, key string, value string, position string,"
        " commit_lsn bigint, schema_version int, filled string, claim string, ts_ms bigint"
    )
    raw = spark.createDataFrame([], types)

    def calls(count: int) -> int:
        asked = 0
        send: Callable[..., Any] = ClientServerConnection.send_command

        def counting(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return send(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(ClientServerConnection, "send_command", counting)
            shape = plain_shape([table_schema("p", "t", *texts(count))], OWN)
            documents(contenders(parse(raw, shape), shape), shape)
        return asked

    few = calls(5)
    assert calls(700) < 2 * few + 700
