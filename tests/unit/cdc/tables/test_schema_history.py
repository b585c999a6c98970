"""What a table's schema record says of its key, and whose it is."""

import json

import pytest

from cdc.errors import TableRefusedError
from cdc.records.schema import TableSchema
from cdc.records.state import parse_state
from tests.fixtures.made_tables import (
    BY_EMAIL,
    RELATION,
    SINCE,
    arrive,
    tables,
)


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
    assert len(arrive(tables(BY_EMAIL, schemas=[stored]))[1]) == 1


def test_a_key_that_old_rows_would_not_tell_is_refused() -> None:
    with pytest.raises(TableRefusedError, match="old rows come without"):
        arrive(tables(BY_EMAIL), RELATION._replace(replica_identity="d"), SINCE)
