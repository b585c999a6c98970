"""A partition is dropped at the source → its rows leave each kind of derived table, once."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from cdc.errors import ExitCode
from cdc.records.bounds import Bound
from cdc.records.state import Phase
from sinks.changes.names import DELETED, END, OP, POSITION, VALID_TO
from tests.fixtures.ended_rows import between, ended, listed
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.spark import HandLog, at, column

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
MARKED = {"source": "public.t", "kind": "current", "name": "public.marked", "deletes": "mark"}
RENAMED = {
    "source": "public.t",
    "kind": "current",
    "name": "public.renamed",
    "rename": {"day": "date"},
    "partition": ["date"],
}
BOUNDS: tuple[Bound, ...] = (between("day", [10], [20]), listed("region", "eu", "us"))
DROPPED_US = 1_700_000_000_000_000
DROPPED = datetime.fromtimestamp(DROPPED_US // 1_000_000, UTC)


def row(number: int, day: int, region: str = "eu", a: str = "a") -> dict[str, Any]:
    return {"id": number, "day": day, "region": region, "a": a}


KINDS = ("current", "history", "changes")


def begun(
    lakehouse: Lakehouse,
    *tables: dict[str, Any],
    kinds: Sequence[str] = KINDS,
    streamed: dict[str, Any] | None = None,
) -> HandLog:
    """A table whose snapshot is applied, to derived tables of these kinds, and more of them.

    A row may have been ``streamed`` since then, at 300.
    """
    lakehouse.configure(kinds=kinds, tables=tables)
    log = lakehouse.log(
        column("id", "int4", 1),
        column("day", "date", 2),
        column("region", "text", 3),
        column("a", "text"),
    )
    rows = (row(1, 10), row(2, 19, "us"), row(3, 20), row(4, 9), row(5, 15, "asia"))
    for each in rows:
        log.row("r", at(100, 0), each)
    log.table(100)
    if streamed is not None:
        log.row("c", at(300), streamed)
    log.reached(at(100, 0) if streamed is None else at(300))
    assert lakehouse.merge().exit_code == 0
    return log


def ids(lakehouse: Lakehouse, name: str) -> list[int]:
    return sorted(number for (number,) in lakehouse.read(name, "id"))


def history(lakehouse: Lakehouse) -> list[tuple[Any, ...]]:
    """Each version's key, where it begins and ends, and whether it was valid until the drop."""
    rows = lakehouse.read("public.t_history", "id", POSITION, END, VALID_TO)
    return sorted(((*version, valid_to == DROPPED) for *version, valid_to in rows), key=str)


@pytest.mark.proof
@pytest.mark.parametrize("more", [(), (RENAMED,)], ids=["usual", "renamed"])
def test_rows_within_the_bounds_go_from_each_table_and_newer_ones_stay(
    lakehouse: Lakehouse, more: tuple[dict[str, Any], ...]
) -> None:
    log = begun(lakehouse, MARKED, *more)
    log.row("u", at(200), row(1, 10, a="in vain"))
    log.row("c", at(300), row(2, 19, "us", "in the next partition"))
    log.drop(at(400, 0), ended(at(299), *BOUNDS), DROPPED_US)
    log.drop(at(400, 0), ended(at(299), between("day", ["min"], [0])), DROPPED_US)
    log.reached(at(400, 0))
    assert lakehouse.merge().exit_code == 0
    for name in ("public.t", *(table["name"] for table in more)):
        assert ids(lakehouse, name) == [2, 3, 4, 5]
    marked = lakehouse.read("public.marked", "id", DELETED, POSITION)
    assert sorted(marked)[:2] == [(1, True, str(at(299))), (2, False, str(at(300)))]
    assert [gone for _, gone, _ in sorted(marked)] == [True, *[False] * 4]
    read, end = str(at(100, 0)), str(at(299))
    assert history(lakehouse) == [
        (1, read, str(at(200)), False),
        (1, str(at(200)), end, True),
        (2, read, end, True),
        (2, str(at(300)), None, False),
        *((number, read, None, False) for number in (3, 4, 5)),
    ]
    archived = lakehouse.read("public.t_changes", OP, POSITION)
    assert sorted(event for event in archived if event[0] != "r") == [
        ("c", str(at(300))),
        ("p", str(at(400, 0))),
        ("p", str(at(400, 0))),
        ("u", str(at(200))),
    ]


@pytest.mark.proof
def test_an_event_that_comes_late_ends_versions_where_their_rows_went(
    lakehouse: Lakehouse,
) -> None:
    """And a table that begins again, of the log or of an archive, is what it was."""
    log = begun(lakehouse, streamed=row(2, 19, "us", "in the next partition"))
    log.drop(at(400, 0), ended(at(299), *BOUNDS), DROPPED_US)
    log.reached(at(400, 0))
    assert lakehouse.merge().exit_code == 0
    read, end = str(at(100, 0)), str(at(299))
    expected = [
        (1, read, end, True),
        (2, read, end, True),
        (2, str(at(300)), None, False),
        *((number, read, None, False) for number in (3, 4, 5)),
    ]
    assert (history(lakehouse), ids(lakehouse, "public.t")) == (expected, [2, 3, 4, 5])
    for name in ("t", "t_history"):
        shutil.rmtree(lakehouse.folder / "public" / name)
    log.row("u", at(500), row(3, 20, a="new"))
    log.reached(at(500))
    assert lakehouse.merge().exit_code == 0
    assert ids(lakehouse, "public.t") == [2, 3, 4, 5]
    assert [version for version in history(lakehouse) if version[0] != 3] == [
        version for version in expected if version[0] != 3
    ]


@pytest.mark.proof
def test_a_partition_that_is_read_again_replaces_its_rows_alone(lakehouse: Lakehouse) -> None:
    """The table isn't shown before it is whole; a version ends where the read began."""
    log = begun(lakehouse, kinds=("current", "history"))
    log.table(400, phase=Phase.SNAPSHOT)
    log.drop(at(399, 0), ended(at(399, 0), between("day", [10], [20])), DROPPED_US)
    log.row("u", at(410), row(3, 20, a="meanwhile"))
    log.row("r", at(420, 0), row(2, 19, "us"))
    log.reached(at(430))
    assert lakehouse.merge().exit_code is ExitCode.NOTHING_TO_DO
    assert ids(lakehouse, "public.t") == [1, 2, 3, 4, 5]
    log.row("r", at(440, 0), row(6, 12))
    log.table(400)
    log.reached(at(450))
    assert lakehouse.merge().exit_code == 0
    assert ids(lakehouse, "public.t") == [2, 3, 4, 6]
    read, end = str(at(100, 0)), str(at(399, 0))
    assert history(lakehouse) == [
        (1, read, end, True),
        (2, read, end, True),
        (2, str(at(420, 0)), None, False),
        (3, read, str(at(410)), False),
        (3, str(at(410)), None, False),
        (4, read, None, False),
        (5, read, end, True),
        (6, str(at(440, 0)), None, False),
    ]
