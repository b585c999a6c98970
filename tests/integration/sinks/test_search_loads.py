"""A new index is loaded beside the one that serves, and takes its place when it is complete."""

from typing import Any

import pytest

from cdc.errors import ConfigError, ExitCode
from sinks.search.loads import Loads
from tests.fixtures.indexes import ALIAS, Indexes, loaded
from tests.fixtures.spark import at, column, table_schema

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.opensearch]


def test_a_column_of_another_type_is_a_new_index_of_all_rows(indexes: Indexes) -> None:
    log = loaded(indexes)
    old = indexes.index()
    columns = (*log.schema.columns[:2], column("n", "text"))
    log.add_schema(table_schema(indexes.prefix, "t", *columns, version=2))
    for number in range(5):  # PostgreSQL has written the table anew, and it was read again
        log.row("u", at(200, number), {"id": number, "a": f"a{number}", "n": f"no {number}"})
    log.reached(at(200, 9))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.index() != old
    assert indexes.documents() == {
        str(number): {"id": number, "a": f"a{number}", "n": f"no {number}"} for number in range(5)
    }
    query = {"query": {"match": {"n": "no"}}}
    answer = indexes.client.search(index=f"{indexes.prefix}-{ALIAS}", body=query)
    assert answer["hits"]["total"]["value"] == 5
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO


def test_a_rebuild_goes_on_where_it_was_while_changes_reach_both_indexes(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = loaded(indexes, 20)
    log.row("d", at(150, 1), None, {"id": 19})
    log.tombstone(at(150, 1), {"id": 19})
    log.reached(at(150, 1))
    indexes.merge()
    old, expected = indexes.index(), indexes.documents()
    load, parts = Loads._load, 0

    def loaded_part(self: Loads, *arguments: Any) -> None:
        """A part, behind which the log goes on: of its rows, and of others' rows."""
        nonlocal parts
        parts += 1
        assert indexes.index() == old, "it serves until the new one is complete"
        assert indexes.documents() == expected, "and keeps up"
        if parts == 2:
            raise ZeroDivisionError
        load(self, *arguments)
        for number in range(parts, 19, 4):
            log.row("u", at(200 + parts, number), {"id": number, "n": -parts})  # a is absent
            expected[str(number)]["n"] = -parts
        gone = f"{17 - parts}"
        del expected[gone]
        log.row("d", at(200 + parts, 99), None, {"id": int(gone)})
        log.tombstone(at(200 + parts, 99), {"id": int(gone)})
        log.reached(at(200 + parts, 99))

    monkeypatch.setattr(Loads, "_load", loaded_part)
    with pytest.raises(ConfigError, match=r"there is no index public\.x"):
        indexes.merge(rebuilt=("public.x",))
    with pytest.raises(ZeroDivisionError):
        indexes.merge(rebuilt=("public.t",))
    indexes.merge()
    assert parts == 3, "what was loaded isn't loaded again"
    assert indexes.index() != old
    assert indexes.documents() == expected
    assert len(indexes.client.indices.get(index=f"{indexes.prefix}-{ALIAS}-*")) == 1


def test_a_new_history_takes_the_place_of_what_is_being_loaded(
    indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = loaded(indexes)
    load = Loads._load

    def dying(self: Loads, name: str, record: Any, loading: Any, partition: int) -> None:
        if loading.done:
            raise ZeroDivisionError
        load(self, name, record, loading, partition)

    with monkeypatch.context() as patch:
        patch.setattr(Loads, "_load", dying)
        with pytest.raises(ZeroDivisionError):
            indexes.merge(rebuilt=("public.t",))
    log.truncate(at(50, 0, epoch=2).just_before())
    log.row("r", at(50, 0, epoch=2), {"id": 1, "a": "other history", "n": 1})
    log.table(50, epoch=2)
    log.reached(at(50, 0, epoch=2))
    assert indexes.merge().exit_code == ExitCode.OK
    assert indexes.documents() == {"1": {"id": 1, "a": "other history", "n": 1}}
    assert indexes.merge().exit_code == ExitCode.NOTHING_TO_DO
