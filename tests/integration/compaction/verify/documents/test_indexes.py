"""Indexes that are right during changes, and documents that other programs changed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opensearchpy import OpenSearch

from cdc.records.state import TableState
from compaction.verify.documents import indexes
from compaction.verify.documents.point_in_time import PointInTime, open_alias
from compaction.verify.options import VerifyOptions
from compaction.verify.report import VerifiedTable
from compaction.verify.run import verify
from sinks.job import run_lakehouse
from sinks.run.options import RunContext, RunOptions
from sinks.search.client import connect
from sinks.search.progress import Ledger
from sinks.search.run import run_search
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.compaction.verify.test_verify import KINDS, ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.opensearch,
    pytest.mark.usefixtures("opensearch"),
]
OTHERS = """
CREATE TABLE odd (
    "a.b" text, "_c" timestamptz, d bytea, n numeric(38,10), PRIMARY KEY ("a.b", "_c", d)
);
CREATE TABLE big (id int PRIMARY KEY, t text, n int);
ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
CREATE TABLE emptied (id int PRIMARY KEY, n int);
CREATE TABLE parts (id int, n int, PRIMARY KEY (id, n)) PARTITION BY RANGE (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (10);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO parts SELECT g, g FROM generate_series(1, 19) g;
INSERT INTO odd SELECT 'x' || repeat('"', g * 200), '2024-02-29 13:14:15.5+02', '\\x00ff', 0
    FROM generate_series(0, 3) g;
INSERT INTO big SELECT g, repeat('x', 9000) || g, 0 FROM generate_series(1, 20) g;
INSERT INTO emptied SELECT g, 0 FROM generate_series(1, 20) g
"""
EARLIER = """
UPDATE kinds SET t = 'before the merge died' WHERE id = 1;
DELETE FROM big WHERE id = 19;
UPDATE big SET n = 7 WHERE id IN (5, 18);
INSERT INTO emptied VALUES (99, 1)
"""
CHANGES = """
UPDATE kinds SET t = 'later', i4 = 7, af = NULL WHERE id = 1;
DELETE FROM kinds WHERE id = 3;
UPDATE big SET n = 1 WHERE id < 10;
UPDATE big SET id = 100 WHERE id = 20;
TRUNCATE emptied;
INSERT INTO emptied VALUES (3, 3);
DROP TABLE parts_1;
INSERT INTO parts VALUES (9, 1)
"""
ITEMS: dict[str, Any] = {
    "name": "items",
    "table": "public.item",
    "exclude": ["size", "at"],
    "where": "id <= 100",
    "computed": {"drawn": "rand() < 2"},
    "embed": [
        {
            "field": "parts",
            "table": "public.part",
            "on": {"item": "id"},
            "many": True,
            "exclude": ["item"],
            "computed": {"of": "concat(name, '/', n)"},
        }
    ],
    "settings": {"index": {"number_of_shards": 2}},
}
SEARCH: dict[str, Any] = {
    "tables": ["public.item"],
    "indexes": [
        {
            "table": "public.item",
            "mapping": {"size": {"type": "integer"}},
            "settings": {"index": {"number_of_shards": 3}},
        }
    ],
    "documents": [ITEMS],
}


def context_of(made: RunningPipeline, spark: "SparkSession") -> RunContext:
    return RunContext(made.settings, lambda _records=0: spark, print, RunOptions())


def verified(
    made: RunningPipeline, spark: "SparkSession", *tables: str
) -> dict[str, VerifiedTable]:
    """What a verify of the indexes finds, by table; what these are made of is right."""
    options = VerifyOptions(frozenset(tables), frozenset({"search"}))
    report = verify(context_of(made, spark), options)
    made_of = {table.name: table.differing for table in report.tables if table.sink != "search"}
    assert made_of == dict.fromkeys(["public.item", "public.part"] if "items" in tables else (), 0)
    return {table.name: table for table in report.tables if table.sink == "search"}


def merge(made: RunningPipeline, spark: "SparkSession") -> None:
    ended = run_once(run_search, made.settings, spark)
    assert not [table.error for table in ended.tables if table.error]


def merge_that_dies(made: RunningPipeline, spark: "SparkSession") -> None:
    """Documents are written, and no progress is."""

    def die(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write_table", die)
        with pytest.raises(ZeroDivisionError):
            run_once(run_search, made.settings, spark)


def has_bounds(made: RunningPipeline) -> bool:
    """Whether it is known where the partitions begin and end."""
    state = next(state for state in made.tables() if state.name.name == "parts")
    leaves = state.fingerprint.leaves if state.fingerprint else ()
    return bool(leaves) and all(leaf.levels for leaf in leaves)


def emptied(made: RunningPipeline) -> TableState:
    """A table that is read again behind a TRUNCATE."""
    return next(state for state in made.tables() if state.name.name == "emptied")


@contextmanager
def changing(database: Conninfo) -> Iterator[None]:
    """Transactions that go on, one by one."""
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            row = f"({1000 + number}, repeat('y', 9000), {number})"
            run(
                database,
                f"UPDATE big SET n = {number} WHERE id = {number % 30}",
                f"INSERT INTO big VALUES {row}",
                f"DELETE FROM emptied WHERE id = {number % 7}",
                f"INSERT INTO emptied VALUES ({number % 7}, {number})",
            )

    changes = threading.Thread(target=change)
    changes.start()
    try:
        yield
    finally:
        ended.set()
        changes.join()


@pytest.mark.proof  # tests/integration/test_end_to_end.py has it of fewer types
def test_right_indexes_have_no_difference_whatever_their_types(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    run(database, *KINDS.strip().split(";\n"), ROWS.strip(), "INSERT INTO kinds (id) VALUES (2)")
    run(database, *OTHERS.strip().split(";\n"))
    made = pipeline(search=True, **{"partition.drop.policy": "delete"})
    daemon = made.catch_up()
    run(database, made.millrace("ddl-trigger", "--print").stdout)
    merge(made, spark)
    run(database, *EARLIER.strip().split(";\n"))
    made.wait_until_logged(made.wal_end(), daemon)
    merge_that_dies(made, spark)
    daemon.wait_until(lambda: has_bounds(made))
    run(database, *CHANGES.strip().split(";\n"))
    made.wait_until_logged(made.wal_end(), daemon)
    daemon.wait_until(lambda: any(gap for gap in emptied(made).gaps))
    daemon.wait_until(lambda: any(record.op == "p" for record in made.log()))
    with changing(database):
        found = verified(made, spark)
    rows = {"public.kinds": 2, "public.odd": 4, "public.parts": 10}
    for table in found.values():
        assert (table.unverified, table.left_out, table.keys) == ("", {}, ()), table.name
        assert (table.differing, table.healed, table.derived_rows) == (0, 0, table.rows)
        assert table.rows == rows.get(table.name, table.rows)
    assert found.keys() == {*rows, "public.big", "public.emptied"}


def test_documents_that_were_changed_behind_its_back_are_found_by_key_and_field(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    """Those of tables, and those with rows of other tables in them, at their own cut."""
    run(
        database,
        "CREATE TABLE item (id int PRIMARY KEY, name text, at timestamptz, size text)",
        "CREATE TABLE part (item int, n int, name text, PRIMARY KEY (item, n))",
        "INSERT INTO item SELECT g, 'item ' || g, '2024-01-01', g FROM generate_series(1, 3000) g",
        "INSERT INTO part SELECT g / 2, g % 2, 'part' FROM generate_series(0, 399) g",
        "UPDATE item SET size = 'huge' WHERE id = 55",
    )
    made = pipeline(search=True, sections={"search": SEARCH})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run_once(run_lakehouse, made.settings, spark)
    merge(made, spark)
    run(database, "UPDATE part SET name = 'later' WHERE item IN (30, 90)")
    planted = Planted(made)
    plant_in_documents_of_a_table(planted)
    plant_in_joined_documents(planted)
    planted.show()
    run(database, "UPDATE item SET name = 'merged meanwhile' WHERE id = 2500")
    made.wait_until_logged(made.wal_end(), daemon)
    with merging_behind_the_points(made, spark):
        found = verified(made, spark, "public.item", "items")
    table, joined = found["public.item"], found["items"]
    assert {(key.key["id"], key.difference, key.columns) for key in table.keys} == {
        ("17", "missing", ()),
        ("55", "refused", ()),
        ("56", "different", ("name", "size")),
        ("71", "different", ("_id",)),
        ("72", "different", ("_id",)),
        ("90", "different", ("_version",)),
        ("400", "different", ("name", "at")),
        ("9000", "extra", ()),
    }
    assert (table.missing, table.extra, table.different, table.refused) == (1, 1, 5, 1)
    assert table.healed == 0, "a run ended behind the point in time"
    assert {(key.key["_id"], key.difference, key.columns) for key in joined.keys} == {
        ("18", "missing", ()),
        ("20", "different", ("parts",)),
        ("31", "different", ("parts",)),
        ("32", "different", ("parts",)),
        ("40", "different", ("_version",)),
        ("50", "different", ("name",)),
        ("500", "extra", ()),
    }
    assert joined.rows == 100
    assert list(joined.left_out) == ["drawn"]


@contextmanager
def merging_behind_the_points(made: RunningPipeline, spark: "SparkSession") -> Iterator[None]:
    """A run begins and ends once the first point in time is open."""

    def opened(client: OpenSearch, alias: str) -> PointInTime | str:
        point = open_alias(client, alias)
        patched.setattr(indexes, "open_alias", open_alias)
        merge(made, spark)
        return point

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(indexes, "open_alias", opened)
        yield


class Planted:
    """Documents that are changed behind Millrace's back."""

    def __init__(self, made: RunningPipeline) -> None:
        search = made.settings.require_search()
        self._client, self._prefix = connect(search), search.index_prefix

    def _alias(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def of_item(self, id_: int) -> dict[str, Any]:
        return self._stored("public.item", id_)

    def joined(self, id_: int) -> dict[str, Any]:
        return self._stored("items", id_)

    def _stored(self, name: str, id_: int) -> dict[str, Any]:
        return dict(self._client.get(index=self._alias(name), id=str(id_))["_source"])

    def as_it_is(self, name: str, id_: int) -> dict[str, object]:
        """The version that a document has, to be kept."""
        version = self._client.get(index=self._alias(name), id=str(id_))["_version"]
        return {"version": version, "version_type": "external_gte"}

    def put(self, name: str, id_: int, document: dict[str, Any], **params: object) -> None:
        self._client.index(index=self._alias(name), id=str(id_), body=document, params=params)

    def delete(self, name: str, id_: int) -> None:
        self._client.delete(index=self._alias(name), id=str(id_))

    def show(self) -> None:
        """Let searches see it."""
        self._client.indices.refresh(index=f"{self._prefix}*")


ABOVE = {"version": 1 << 60, "version_type": "external"}


def plant_in_documents_of_a_table(planted: Planted) -> None:
    name, of_item = "public.item", planted.of_item
    planted.delete(name, 17)
    planted.put(name, 400, of_item(400) | {"name": 7, "at": "2024-01-01"})
    planted.put(name, 9000, of_item(1) | {"id": 9000})
    planted.put(name, 56, of_item(57) | {"id": 56})
    one, other = of_item(71), of_item(72)
    planted.put(name, 71, other)
    planted.put(name, 72, one)
    planted.put(name, 90, of_item(90), **ABOVE)


def plant_in_joined_documents(planted: Planted) -> None:
    name, joined = "items", planted.joined
    planted.delete(name, 18)
    planted.put(name, 40, joined(40), **ABOVE)
    planted.put(name, 500, joined(50) | {"id": 500})
    older = [part | {"name": "older"} for part in joined(20)["parts"]]
    changes: dict[int, dict[str, Any]] = {
        20: {"parts": older},
        31: {"parts": joined(31)["parts"][:1]},
        32: {"parts": joined(32)["parts"] * 2},
        50: {"name": "another"},
        60: {"drawn": False},
    }
    for id_, change in changes.items():
        planted.put(name, id_, joined(id_) | change, **planted.as_it_is(name, id_))
