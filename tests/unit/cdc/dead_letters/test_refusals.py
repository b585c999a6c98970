"""Refusals of brokers, one after the other → which table is to blame, if any."""

from cdc.convert.converters import converters
from cdc.convert.pipeline import RecordPipeline
from cdc.dead_letters.guard import DeadLetters, GuardedEncoder, Refusals
from cdc.errors import RecordRefusedError, RefusedRecord
from cdc.records.connect import SourceRecord
from tests.fixtures.made_changes import LOG, LSN, NATIVE, POSITION, TRANSACTION, row, table


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


def test_a_topic_that_a_transform_routes_other_tables_to_blames_none() -> None:
    """Nor is the search without an end."""
    own = table("id int4!, v text")

    def routed(record: SourceRecord) -> list[SourceRecord]:
        return [record._replace(topic="pre.public.other")]

    refusals = Refusals()
    encoder = GuardedEncoder(
        DeadLetters(LOG.prefix, lambda _: False, {}, refusals),
        own,
        NATIVE,
        LOG,
        RecordPipeline(converters({}), routed),
    )
    encoder.begin(TRANSACTION)
    encoder.insert(row("1", "x"), LSN, POSITION)
    starts = 0
    while refusals.learn(refusal("pre.public.other", 50)):
        starts += 1
        assert starts < 10
    assert not refusals.of_tables, "its table has nothing to do with it"
