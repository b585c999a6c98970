"""Refusals of brokers, one after another → the table to blame, if there is one."""

from cdc.convert.converters import converters
from cdc.convert.pipeline import RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder, Refusals
from cdc.errors import RecordRefusedError, RefusedRecord
from cdc.records.connect import SourceRecord
from cdc.records.position import Position
from cdc.records.record import Record
from cdc.records.schema import TableName
from tests.fixtures.made_changes import LOG, LSN, NATIVE, POSITION, TRANSACTION, row, table

SHARED = "pre.public.other"


def refusal(topic: str, suspects: int) -> RecordRefusedError:
    error = RecordRefusedError("too large")
    error.refused = RefusedRecord(topic, b"k", str(POSITION), str(POSITION), suspects)
    return error


def test_a_batch_that_is_refused_days_later_is_no_second_refusal_of_the_first() -> None:
    """The topic's limit was lowered: once batches are smaller, each record may be taken."""
    now = [100.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(2):
        assert refusals.learn(refusal("t", 50))
        assert not refusals.of_tables
        now[0] += 86_400
    assert refusals.has_any, "batches stay as small as topics want them"
    assert refusals.learn(refusal("t", 50))
    assert refusals.learn(refusal("t", 50)), "at once"
    assert refusals.of_tables.keys() == {"t"}


def test_a_table_that_is_read_again_gets_as_many_tries_as_before() -> None:
    refusals = Refusals()
    assert refusals.learn(refusal("t", 50))
    assert refusals.learn(refusal("t", 50))
    refusals.of_tables.clear()  # it was set aside, and is read again
    assert refusals.learn(refusal("t", 50))
    assert not refusals.of_tables


def routing(
    refusals: Refusals, name: str, key: str, position: Position = POSITION
) -> GuardedEncoder:
    """An encoder of a table whose records a transform routes to the topic that others share."""

    def routed(record: SourceRecord) -> list[SourceRecord]:
        return [record._replace(topic=SHARED)]

    encoder = GuardedEncoder(
        DeadLetters(LOG.prefix, lambda _: False, {}, refusals),
        table("id int4!, v text").model_copy(update={"table": name}),
        NATIVE,
        LOG,
        RecordPipeline(converters({}), routed),
    )
    encoder.begin(TRANSACTION)
    encoder.insert(row(key, "x"), LSN, position)
    return encoder


def starts_until_blamed(refusals: Refusals, error: RecordRefusedError) -> int:
    starts = 0
    while not refusals.of_writers:
        assert refusals.learn(error), "the daemon doesn't end"
        starts += 1
        assert starts < 10, "nor is the search without an end"
    assert not refusals.of_tables, "the table that the topic is named after has no part in it"
    return starts


def test_of_a_topic_that_tables_are_routed_to_the_writer_of_the_record_is_blamed() -> None:
    refusals = Refusals()
    routing(refusals, "one", "1")
    routing(refusals, "two", "2")
    error = refusal(SHARED, 50)
    assert error.refused is not None
    error.refused = error.refused._replace(key=b'{"id":2}')
    starts_until_blamed(refusals, error)
    assert refusals.of_writers.keys() == {TableName("public", "two")}


def test_of_tables_that_share_keys_the_one_is_blamed_that_wrote_at_the_records_position() -> None:
    """As shards do, whose tables are routed to one topic."""
    later = POSITION._replace(index=POSITION.index + 1)
    for blamed, position in (("one", POSITION), ("two", later)):
        refusals = Refusals()
        routing(refusals, "one", "1")
        routing(refusals, "two", "1", later)
        error = refusal(SHARED, 50)
        assert error.refused is not None
        error.refused = error.refused._replace(key=b'{"id":1}', position=str(position))
        starts_until_blamed(refusals, error)
        assert refusals.of_writers.keys() == {TableName("public", blamed)}


def test_of_tables_that_share_keys_both_are_set_aside_where_the_position_isnt_told() -> None:
    refusals = Refusals()
    routing(refusals, "one", "1")
    routing(refusals, "two", "1")
    routing(refusals, "three", "2")
    error = refusal(SHARED, 50)
    assert error.refused is not None
    error.refused = error.refused._replace(key=b'{"id":1}')
    starts_until_blamed(refusals, error)
    assert {name.name for name in refusals.of_writers} == {"one", "two"}


def test_the_writer_of_a_large_transactions_first_record_is_known() -> None:
    refusals = Refusals(records_max=40_000)
    routing(refusals, "one", "1")
    record, two = Record(SHARED, b"other", b"", []), TableName("public", "two")
    for _ in range(39_999):
        refusals.note_routed(record, two, POSITION)
    error = refusal(SHARED, 50)
    assert error.refused is not None
    error.refused = error.refused._replace(key=b'{"id":1}')
    starts_until_blamed(refusals, error)
    assert refusals.of_writers.keys() == {TableName("public", "one")}


def test_where_the_record_isnt_told_all_that_write_there_are_set_aside() -> None:
    refusals = Refusals()
    routing(refusals, "one", "1")
    routing(refusals, "two", "2")
    starts_until_blamed(refusals, refusal(SHARED, 50))
    assert {name.name for name in refusals.of_writers} == {"one", "two"}
