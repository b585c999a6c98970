"""A log → what a run reads of it, also while the brokers still show a transaction in part."""

import threading

import pytest

from cdc.log.offsets import Log
from deploy.local.kafka import Kafka
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = pytest.mark.kafka


def test_schemas_are_read_when_their_transaction_is_shown(kafka: Kafka, topic_prefix: str) -> None:
    """Brokers show a transaction partition by partition: the progress may come first."""
    schema = table_schema(topic_prefix, "item", column("id", "int4", 1))
    log = HandLog(kafka, topic_prefix, schema)
    log.table(snapshot_lsn=1)
    log.reached(at(10))
    other = f"{topic_prefix}-other"
    late = HandLog(kafka, other, table_schema(other, "item", column("id", "int4", 1)))
    late.commit()
    late.begin()
    late.prefix = topic_prefix
    late.add_schema(schema.model_copy(update={"version": 2}))
    late.flush()
    threading.Timer(1, late.commit).start()
    reader = Log(kafka.client_options())
    try:
        state = reader.state(topic_prefix, "millrace", lambda _line: None)
    finally:
        reader.close()
    assert state is not None
    assert [version.version for version in state.schemas["public.item"]] == [1, 2]
