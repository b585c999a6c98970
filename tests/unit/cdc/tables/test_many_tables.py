"""Many tables → what is asked and joined for all of them doesn't grow with their square."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from cdc.errors import TablePrivilegeError
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import SnapshotOutcome
from tests.fixtures.made_tables import COLUMNS, tables
from tests.unit.cdc.tables.test_tables import described

HERE = Position(1, Lsn(1), 0)


def many(count: int) -> list[TableDescription]:
    table = described(*COLUMNS)
    return [replace(table, name=TableName("public", f"t{number}")) for number in range(count)]


@pytest.mark.parametrize("count", [5, 50])
def test_whether_all_tables_are_readable_is_asked_once(count: int) -> None:
    made, asked = tables(), list[int]()

    def check(those: Sequence[TableDescription]) -> None:
        asked.append(len(those))

    made.obstacles._check_readable = check
    assert [error for _, error in made.obstacles.of_all(many(count))] == [None] * count
    assert asked == [count]


def test_where_one_isnt_readable_it_alone_is_refused() -> None:
    made = tables()

    def check(those: Sequence[TableDescription]) -> None:
        if any(table.name.name == "t3" for table in those):
            raise TablePrivilegeError("no SELECT", where="", remedy="")

    made.obstacles._check_readable = check
    refused = [table.name.name for table, error in made.obstacles.of_all(many(5)) if error]
    assert refused == ["t3"]


class Unread(Iterable[TableName]):
    """Names that nobody is to look at."""

    def __iter__(self) -> Iterator[TableName]:
        raise AssertionError("the names were joined, and nobody is told")


def test_where_no_channel_is_on_no_names_are_joined() -> None:
    made = tables()
    tell, now, outcome = made.notifications, TableName("public", "t"), SnapshotOutcome
    assert not tell.is_on
    told = [
        tell.initial("STARTED", HERE, Unread()),
        tell.initial_table(HERE, Unread(), now),
        tell.initial_table_done(HERE, Unread(), now, 1),
        tell.incremental("STARTED", HERE, "s", Unread()),
        tell.chunk(HERE, Unread(), now, "s", 1, 2),
        tell.table_done(HERE, Unread(), now, outcome(signal="s", status="EMPTY")),
    ]
    assert told == [[]] * 6
