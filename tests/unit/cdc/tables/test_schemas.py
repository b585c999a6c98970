"""A table's schema record → its key, its owner, and its encoder."""

import json
from dataclasses import replace

import pytest

from cdc.convert.converters import converters
from cdc.convert.pipeline import NATIVE as PLAIN
from cdc.convert.pipeline import RecordPipeline
from cdc.events.rules import EventRules
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn
from cdc.records.schema import Column, TableSchema
from cdc.records.state import SnapshotRequest, parse_state
from cdc.settings.modes import ColumnModes, EventModes
from tests.fixtures.made_changes import NATIVE, TRANSACTION, patterns, row
from tests.fixtures.made_tables import (
    BY_EMAIL,
    COLUMNS,
    RELATION,
    SINCE,
    STATE,
    arrive,
    tables,
)
from tests.fixtures.preset import DEBEZIUM
from tests.unit.cdc.tables.test_tables import described


def keyed(key: str) -> TableDescription:
    """The table with another key, and nothing else that is other."""
    ordinals = {name: ordinal for ordinal, name in enumerate(key.split(), 1)}
    columns = (
        column.model_copy(update={"key": ordinals.get(column.name), "number": number})
        for number, column in enumerate(COLUMNS, 1)
    )
    return replace(described(*columns), name=STATE.name, oid=STATE.oid, replica_identity="f")


NOT_LOSSLESS = {"topic.prefix": "pre", "table.include.list": "public.t", "lossless": False}


def test_a_schema_says_which_columns_key_its_records() -> None:
    (record,) = arrive(tables(BY_EMAIL))[1]
    assert record.value is not None
    keys = {column["name"]: column["key"] for column in json.loads(record.value)["columns"]}
    assert keys == {"id": None, "email": 1}


def test_a_schema_says_whose_it_is_and_one_that_is_stored_without_that_is_still_right() -> None:
    (record,) = arrive(tables())[1]
    assert record.value is not None
    written = json.loads(record.value)
    assert written["oid"] == RELATION.oid
    del written["oid"]
    for column in written["columns"]:
        assert column.pop("number") is None
    stored = parse_state(TableSchema, json.dumps(written).encode(), record.topic)
    assert arrive(tables(schemas=[stored]))[1] == []


def test_a_schema_of_a_newer_daemon_is_read_without_what_only_that_knows() -> None:
    (record,) = arrive(tables())[1]
    written = json.loads(record.value or b"")
    known = parse_state(TableSchema, record.value or b"", record.topic)
    written["more"] = written["columns"][0]["more"] = 1
    assert parse_state(TableSchema, json.dumps(written).encode(), record.topic) == known


def test_another_key_is_another_schema_version() -> None:
    made = tables()
    (record,) = arrive(made)[1]
    assert arrive(made)[1] == []
    stored = parse_state(TableSchema, record.value or b"", record.topic)
    assert arrive(tables(schemas=[stored]))[1] == []
    made = tables(BY_EMAIL, schemas=[stored])
    version, _ = arrive(made)[1]
    assert version.topic == record.topic
    doubt = made.states[STATE.name].doubt
    assert doubt is not None
    assert (doubt.reason, doubt.replaces) == ("the key has other columns", True)


@pytest.mark.parametrize("key", ["email", "email id", "id email"])
def test_a_description_tells_another_key_where_its_signature_does_not(key: str) -> None:
    """Under REPLICA IDENTITY FULL, or where the key has another order."""
    made = tables()
    before = "id" if key == "email" else "id email"
    schema, _ = made.schemas.described(keyed(before), SINCE)
    now, records = made.schemas.described(keyed(key), SINCE)
    assert [column.name for column in now.key] == key.split()
    doubt = made.states[STATE.name].doubt
    if key == before:
        assert (now, records, doubt) == (schema, [], None)
        return
    assert doubt is not None
    assert (now.version, doubt.replaces) == (schema.version + 1, True)
    assert not made.schemas.is_newest(keyed(before))


def test_a_key_that_old_rows_would_not_tell_sets_the_table_aside() -> None:
    made = tables(BY_EMAIL)
    assert arrive(made, RELATION._replace(replica_identity="d"), SINCE)[0] is None
    doubt = made.states[STATE.name].doubt
    assert doubt is not None
    assert doubt.set_aside
    assert "old rows don't contain" in doubt.reason
    debezium = tables(replace(BY_EMAIL, values=DEBEZIUM.values), capture=NOT_LOSSLESS)
    assert arrive(debezium, RELATION._replace(replica_identity="d"), SINCE)[0] is not None


def test_a_table_without_a_key_that_gets_one_is_read_again_into_its_topic() -> None:
    made = tables()
    made.states.put(STATE.model_copy(update={"cleanup": "delete"}))
    made.schemas.described(keyed(""), SINCE)
    assert made.obstacles.of(keyed("id")) is None
    made.schemas.described(keyed("id"), SINCE)
    doubt = made.states[STATE.name].doubt
    assert doubt is not None
    assert (doubt.replaces, doubt.set_aside) == (True, False)
    made.begin_anew(keyed("id"), SINCE, (SnapshotRequest(kind="initial"),))
    assert made.states[STATE.name].cleanup == "delete", "a topic stays what it was made as"


def test_unchanged_values_are_read_again_for_compacted_topics_only() -> None:
    plain = arrive(tables())[0]
    assert plain is not None
    assert plain.reselects == {0, 1}
    other = tables()
    other.states.put(STATE.model_copy(update={"cleanup": "delete"}))
    absent = tables(replace(NATIVE, events=EventModes(reselect=False)))
    for made in (other, absent):
        found = arrive(made)[0]
        assert found is not None
        assert not found.reselects
    without = ColumnModes(exclude=patterns("public.t.email"))
    readable = arrive(tables(replace(NATIVE, columns=without)))[0]
    assert readable is not None
    assert readable.reselects == {0}, "no need for what events don't have"


@pytest.mark.parametrize(
    ("rules", "pipeline", "is_compiled"),
    [
        (NATIVE, PLAIN, True),
        (DEBEZIUM, PLAIN, True),
        (NATIVE, RecordPipeline(converters({"schemas.enable": "true"})), True),
        (replace(NATIVE, events=EventModes(transaction_metadata=True)), PLAIN, False),
        (replace(NATIVE, events=EventModes(skip_without_change=True)), PLAIN, False),
        (NATIVE, replace(PLAIN, transform=lambda record: [record]), False),
    ],
)
def test_what_is_counted_compared_or_transformed_is_not_for_the_extension(
    rules: EventRules, pipeline: RecordPipeline, is_compiled: bool
) -> None:
    encoder = arrive(tables(rules, pipeline))[0]
    assert encoder is not None
    assert (encoder.compiled() is not None) == is_compiled


def test_events_count_where_transactions_are_marked() -> None:
    assert tables().encoders.transactions is None
    marked = tables(replace(NATIVE, events=EventModes(transaction_metadata=True)))
    assert marked.encoders.transactions is not None


def test_while_a_table_is_read_no_update_of_it_is_left_out() -> None:
    modes = EventModes(skipped=frozenset("uc"), skip_without_change=True)
    made = tables(replace(NATIVE, events=modes))
    old, new = row("1", "same"), row("1", "same")
    for requests, events in (((SnapshotRequest(kind="initial"),), 1), ((), 0)):
        made.states.set_requests(STATE.name, requests)
        found, _ = arrive(made)
        assert found is not None
        found.begin(TRANSACTION)
        assert len(found.update(old, False, new, Lsn(900), SINCE)) == events


def test_what_a_signature_does_not_tell_is_asked_for_where_events_show_it() -> None:
    showing = replace(PLAIN, convert=converters({"schemas.enable": "true"}))
    key, email = (c.model_copy(update={"number": n}) for n, c in enumerate(COLUMNS, 1))
    altered = email.model_copy(update={"default": "'a'::text", "optional": False})
    other = altered.model_copy(update={"number": 3})  # made anew under its name

    def versions(pipeline: RecordPipeline, now: Column) -> list[tuple[int, Column, int]]:
        made = tables(pipeline=pipeline).schemas
        columns = [(key, email), (key, now), (key, now)]
        given = [made.streamed(RELATION, SINCE, iter([each]).__next__) for each in columns]
        return [(schema.version, schema.columns[1], len(new)) for schema, new in given]

    assert versions(PLAIN, altered) == [(1, email, 1), (1, email, 0), (1, email, 0)]
    assert versions(showing, altered) == [(1, email, 1), (2, altered, 1), (2, altered, 0)]
    assert versions(showing, other) == [(1, email, 1), (1, email, 0), (1, email, 0)]
