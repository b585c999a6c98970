"""Columns' numbers in schema versions: they identify columns after each renaming."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from cdc.errors import ExitCode
from cdc.log.state import read_all
from cdc.postgres.catalog import describe_relation
from cdc.postgres.stream import ReplicationStream
from cdc.records.schema import Column, TableSchema
from cdc.records.topics import schema_topic
from cdc.settings import CaptureSettings
from cdc.wal.messages import Commit, Relation
from deploy.local.postgres import Postgres
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.server_settings import set_to, wait_for_hidden_commit
from tests.fixtures.source import (
    Conninfo,
    capture,
    described,
    messages,
    run,
    session,
    streaming,
)
from tests.integration.snapshots.test_while_streaming import logged, rows

pytestmark = pytest.mark.postgres
MakePipeline = Callable[..., RunningPipeline]
Numbers = dict[str, int | None]
TABLE = (
    """CREATE TABLE t (gone int, id int PRIMARY KEY, g int GENERATED ALWAYS AS (1) STORED,
       a text, b text)""",
    "ALTER TABLE t DROP COLUMN gone",
)
PARTITIONED = (
    "CREATE TABLE t (gone int, id int PRIMARY KEY, a text, b text) PARTITION BY RANGE (id)",
    "ALTER TABLE t DROP COLUMN gone",
    "CREATE TABLE leaf (b text, a text, id int NOT NULL)",
    "ALTER TABLE t ATTACH PARTITION leaf DEFAULT",
)
OWN = {"publication_name": "own", "publication_autocreate_mode": "disabled"}


def numbers(columns: tuple[Column, ...]) -> Numbers:
    return {column.name: column.number for column in columns}


def of_catalog(database: Conninfo, settings: CaptureSettings) -> Numbers:
    with session(database) as opened:
        (table,) = described(opened, settings)
    return numbers(table.columns)


@contextmanager
def announcing(database: Conninfo, settings: CaptureSettings) -> Iterator[Callable[..., Relation]]:
    """Stream; gives what writes a row, and returns the Relation message of its table."""
    with streaming(database, settings) as stream:
        yield partial(announced, database, stream)


def announced(database: Conninfo, stream: ReplicationStream, table: str = "t") -> Relation:
    run(database, f"INSERT INTO {table} (id) SELECT count(*) FROM {table}")
    sent = messages(stream, lambda message: isinstance(message, Commit))
    return next(one for one in sent if isinstance(one, Relation) and one.name == table)


def of_message(database: Conninfo, relation: Relation, settings: CaptureSettings) -> Numbers:
    with session(database) as opened:
        return numbers(describe_relation(opened, relation, settings.publication_name))


def test_a_column_keeps_its_number_and_no_other_one_gets_it(database: Conninfo) -> None:
    run(database, *TABLE)
    settings = capture(database)
    assert of_catalog(database, settings) == {"id": 2, "a": 4, "b": 5}
    run(database, "ALTER TABLE t RENAME a TO alpha", "ALTER TABLE t ALTER b TYPE varchar(9)")
    assert of_catalog(database, settings) == {"id": 2, "alpha": 4, "b": 5}
    run(database, "ALTER TABLE t DROP alpha", "ALTER TABLE t ADD alpha text")
    assert of_catalog(database, settings) == {"id": 2, "b": 5, "alpha": 6}


def test_a_table_made_anew_has_another_oid(database: Conninfo) -> None:
    oids = set()
    for _ in range(2):
        run(database, "DROP TABLE IF EXISTS t", *TABLE)
        with session(database) as opened:
            (table,) = described(opened, capture(database))
        oids.add(table.oid)
    assert len(oids) == 2


@pytest.mark.parametrize(
    ("table", "publication", "expected"),
    [
        (TABLE, "FOR TABLE t", {"id": 2, "a": 4, "b": 5}),
        (TABLE, "FOR TABLE t (id, b)", {"id": 2, "b": 5}),
        (
            PARTITIONED,
            "FOR TABLE t WITH (publish_via_partition_root)",
            {"id": 2, "a": 3, "b": 4},
        ),
    ],
    ids=["whole", "column list", "partitioned"],
)
def test_a_message_has_the_numbers_of_its_table(
    database: Conninfo, table: tuple[str, ...], publication: str, expected: Numbers
) -> None:
    run(database, *table, f"CREATE PUBLICATION own {publication}")
    settings = capture(database, **OWN)
    with announcing(database, settings) as announce:
        relation = announce()
    assert of_catalog(database, settings) == expected
    assert of_message(database, relation, settings) == expected
    run(database, "ALTER TABLE t ALTER b SET DEFAULT 'x', ADD CHECK (id < 10)")
    assert of_message(database, relation, settings) == expected


def test_a_partition_that_is_published_by_itself_has_its_own_numbers(database: Conninfo) -> None:
    run(database, *PARTITIONED, "CREATE PUBLICATION own FOR TABLE t")
    settings = capture(database, **OWN)
    with announcing(database, settings) as announce:
        relation = announce("leaf")
    assert of_message(database, relation, settings) == {"b": 1, "a": 2, "id": 3}


@pytest.mark.parametrize(
    ("statements", "sure"),
    [
        (["ADD c int"], True),
        (["ADD c int", "RENAME c TO d"], True),
        (["RENAME b TO z"], False),
        (["RENAME b TO z", "ADD b text"], False),
        (["RENAME a TO z", "ADD c text", "RENAME c TO a"], False),
        (["RENAME a TO z", "RENAME b TO a", "RENAME z TO b"], False),
        (["DROP a", "ADD a text"], False),
        (["DROP b"], False),
        (["ALTER b TYPE int USING 1"], False),
        (["DROP b", "ADD b int"], False),
    ],
    ids=lambda one: ", ".join(one) if isinstance(one, list) else "",
)
def test_a_message_has_no_numbers_where_its_table_has_gone_on(
    database: Conninfo, statements: list[str], sure: bool
) -> None:
    run(database, *TABLE)
    settings = capture(database)
    with announcing(database, settings) as announce:
        relation = announce()
        run(database, *(f"ALTER TABLE t {one}" for one in statements))
        later = announce()
    expected = {"id": 2, "a": 4, "b": 5} if sure else dict.fromkeys(("id", "a", "b"))
    assert of_message(database, relation, settings) == expected
    assert of_message(database, later, settings) == of_catalog(database, settings)


def test_a_message_of_a_table_that_is_gone_has_no_numbers(database: Conninfo) -> None:
    run(database, *TABLE)
    settings = capture(database)
    with announcing(database, settings) as announce:
        relation = announce()
    run(database, "DROP TABLE t", *TABLE)
    assert of_message(database, relation, settings) == {"id": None, "a": None, "b": None}


def versions(made: RunningPipeline) -> list[TableSchema]:
    topic = schema_topic(made.settings.capture.topic_prefix)
    known = read_all(made.settings.kafka, topic, TableSchema)
    return sorted(known, key=lambda one: one.version)


@pytest.mark.kafka
def test_versions_of_a_table_say_which_column_is_which(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *TABLE, "INSERT INTO t (id, a, b) VALUES (1, 'a', 'b')")
    made = pipeline()
    daemon = made.catch_up()
    for statement in (
        "ALTER TABLE t RENAME a TO alpha",
        "ALTER TABLE t DROP b, ADD c int, ADD b text",
        "ALTER TABLE t ALTER c SET DEFAULT 5",
    ):
        run(database, statement, "INSERT INTO t (id) SELECT max(id) + 1 FROM t")
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    (first,) = made.tables()
    run(database, "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
    name = made.settings.capture.publication_name
    run(database, f"ALTER PUBLICATION {name} ADD TABLE t", "INSERT INTO t VALUES (1, 'other', 2)")
    assert made.millrace("snapshot", "public.t").returncode == ExitCode.OK
    assert made.stop(made.catch_up()) == 0
    (second,) = made.tables()
    assert logged(made, "t") == rows(database, "t")
    assert first.oid != second.oid
    assert [(one.oid, numbers(one.columns)) for one in versions(made)] == [
        (first.oid, {"id": 2, "a": 4, "b": 5}),
        (first.oid, {"id": 2, "alpha": 4, "b": 5}),
        (first.oid, {"id": 2, "alpha": 4, "c": 6, "b": 7}),
        (second.oid, {"id": 1, "v": 2, "w": 3}),
    ]


@pytest.mark.kafka
def test_a_rename_that_nobody_sees_yet_is_one(
    pipeline: MakePipeline, database: Conninfo, postgres: Postgres
) -> None:
    """The stream has a commit before the catalog shows it: here it waits for a standby."""
    run(database, *TABLE)
    made = pipeline()
    daemon = made.catch_up()

    def rename() -> None:
        change = ("ALTER TABLE t RENAME a TO alpha", "INSERT INTO t (id) VALUES (1)")
        run(database, "; ".join(change))

    renaming = threading.Thread(target=rename)
    with set_to(postgres, synchronous_standby_names="nobody"):
        renaming.start()
        wait_for_hidden_commit(database)
        time.sleep(1)  # the stream comes to it
        assert renaming.is_alive()
    renaming.join()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert [numbers(one.columns) for one in versions(made)] == [
        {"id": 2, "a": 4, "b": 5},
        {"id": 2, "alpha": 4, "b": 5},
    ]
