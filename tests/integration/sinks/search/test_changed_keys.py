"""Another key of a table, in a log written by hand → the documents of its index."""

import pytest

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from tests.fixtures.indexes import Indexes, forget_records
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


def rekeyed(log: HandLog) -> None:
    """The table is read again under another key, of a text column."""
    columns = (column("id", "int4", number=1), column("code", "text", 1, number=2))
    schema = table_schema(log.prefix, "t", *columns, version=2)
    log.add_schema(schema.model_copy(update={"since": str(at(200))}))
    log.truncate(at(210).just_before())
    for number in (1, 2, 3):
        log.row("r", at(220, 0), {"id": number, "code": f"c{number}"})


@pytest.mark.proof
def test_documents_go_by_a_text_column_that_is_the_key_now(indexes: Indexes) -> None:
    """An update may have no value for a text column, but for one of the key."""
    log = indexes.log(column("id", "int4", 1, number=1), column("code", "text", number=2))
    for number in (1, 2):
        log.row("r", at(100, 0), {"id": number, "code": f"c{number}"})
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    rekeyed(log)
    log.row("d", at(230), None, {"id": 2, "code": "c2"})
    log.tombstone(at(230), {"code": "c2"})
    log.table(220)
    log.reached(at(230))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {f"c{n}": {"id": n, "code": f"c{n}"} for n in (1, 3)}
    log.row("d", at(240), None, {"id": 1, "code": "c1"})
    log.tombstone(at(240), {"code": "c1"})
    log.reached(at(240))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {"c3": {"id": 3, "code": "c3"}}


def test_an_index_under_another_key_needs_what_is_behind_the_new_read_alone(
    indexes: Indexes, kafka: Kafka
) -> None:
    """A topic that keeps nothing for ever has lost the rows of before."""
    log = indexes.log(column("id", "int4", 1, number=1), column("code", "text", number=2))
    for number in range(5):
        log.row("r", at(100, 0), {"id": number, "code": f"c{number}"})
    log.table(100)
    log.reached(at(100, 0))
    assert indexes.merge().exit_code == ExitCode.OK
    forget_records(kafka, log.schema.topic, log.partitions)
    rekeyed(log)
    log.row("d", at(230), None, {"id": 2, "code": "c2"})
    log.tombstone(at(230), {"code": "c2"})
    log.table(220, cleanup="delete")
    log.reached(at(230))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {f"c{n}": {"id": n, "code": f"c{n}"} for n in (1, 3)}
