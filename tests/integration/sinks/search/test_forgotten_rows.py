"""A topic that lost rows of an index → no other index replaces that one."""

import pytest

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from tests.fixtures.indexes import Indexes, forget_records, loaded
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


def forgotten(indexes: Indexes, kafka: Kafka) -> HandLog:
    """An index of rows that its topic, which keeps none for ever, has no more."""
    n = column("n", "int8", number=3)
    log = indexes.log(column("id", "int4", 1, number=1), column("a", "text", number=2), n)
    for number in range(5):
        log.row("r", at(100, 0), {"id": number, "a": f"a{number}", "n": number})
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    forget_records(kafka, log.schema.topic, log.partitions)
    log.table(100, cleanup="delete")
    return log


def test_no_index_that_would_lack_rows_takes_the_place_of_one_that_has_them(
    indexes: Indexes, kafka: Kafka
) -> None:
    """The names of an idle table's columns are other ones."""
    log = forgotten(indexes, kafka)
    old, documents = indexes.index(), indexes.documents()
    renamed = (*log.schema.columns[:2], column("q", "int8", number=3))
    log.add_schema(table_schema(indexes.prefix, "t", *renamed, version=2))
    log.reached(at(200, 0))
    for _ in range(2):
        assert indexes.merge().exit_code not in {ExitCode.OK, ExitCode.NOTHING_TO_DO}
    assert (indexes.index(), indexes.documents()) == (old, documents)


def test_documents_keep_values_of_a_dropped_column_where_no_other_index_can_be_loaded(
    indexes: Indexes, kafka: Kafka
) -> None:
    log = forgotten(indexes, kafka)
    old, documents = indexes.index(), indexes.documents()
    log.add_schema(table_schema(indexes.prefix, "t", *log.schema.columns[:2], version=2))
    log.row("u", at(200), {"id": 0, "a": "new"})
    log.reached(at(200))
    assert indexes.merge().exit_code == ExitCode.OK
    assert any("documents keep the values of dropped columns" in line for line in indexes.said)
    assert (indexes.index(), indexes.documents()) == (
        old,
        {**documents, "0": {"id": 0, "a": "new"}},
    )
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_an_index_that_comes_too_late_is_loaded_from_rows_that_were_read_again(
    indexes: Indexes, kafka: Kafka
) -> None:
    """Of a topic that isn't compacted: what was changed before that is nowhere."""
    log = loaded(indexes, 3)
    log.table(100, cleanup="delete")
    log.row("d", at(200), None, {"id": 0})
    log.reached(at(200))
    forget_records(kafka, log.schema.topic, log.partitions)
    log.row("c", at(210), {"id": 3, "a": "new", "n": 3})
    log.reached(at(210))
    old, documents = indexes.index(), indexes.documents()
    refused = indexes.merge()
    assert refused.exit_code == ExitCode.LOG_FORGOTTEN
    assert "`millrace snapshot --reset public.t`" in str(refused.tables[0].error)
    assert (indexes.index(), indexes.documents()) == (old, documents)
    log.truncate(at(300, 0))
    for number in (1, 2, 3):
        log.row("r", at(300), {"id": number, "a": f"a{number}", "n": number})
    log.table(300, cleanup="delete")
    log.reached(at(300))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents().keys() == {"1", "2", "3"}
    assert indexes.index() != old
    assert indexes.merge(rebuilt=frozenset({"public.t"})).exit_code == ExitCode.OK, "as at any time"
    assert indexes.documents().keys() == {"1", "2", "3"}
    log.row("d", at(310), None, {"id": 1})
    log.reached(at(310))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents().keys() == {"2", "3"}
