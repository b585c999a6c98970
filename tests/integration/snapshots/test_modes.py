"""The rows that a snapshot reads: by mode, by list, by the user's own statement, as in Debezium."""

import json
import re
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from cdc.convert.pipeline import Encoder
from cdc.errors import ConfigError, ExitCode, MillraceError
from cdc.events.changes import Read, Row
from cdc.kafka.sending import send
from cdc.postgres import catalog, slot
from cdc.postgres.captured import captured_tables
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from cdc.records.position import Lsn, Position
from cdc.records.record import Record, each
from deploy.commands.app import app
from snapshots.initial import InitialSnapshot
from snapshots.pace import Pace
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, capture, described, run, session
from tests.golden.records import collect

pytestmark = pytest.mark.postgres

STATEMENTS = "snapshot.select.statement.overrides"
FAMILY = (
    "CREATE TABLE b_parent (id int, v text)",
    "CREATE TABLE c_child () INHERITS (b_parent)",
    "CREATE TABLE a_root (id int, v text) PARTITION BY LIST (v)",
    "CREATE TABLE z_one PARTITION OF a_root FOR VALUES IN ('one')",
    "CREATE TABLE y_two PARTITION OF a_root FOR VALUES IN ('two')",
    "CREATE TABLE d_empty (id int)",
    "INSERT INTO b_parent VALUES (1, 'parent')",
    "INSERT INTO c_child VALUES (2, 'child')",
    "INSERT INTO a_root VALUES (3, 'two'), (4, 'one')",
)


READ = Read()


class Marking(Encoder):
    """Stands in for an encoder that marks rows: a record's key is the first column and the mark."""

    def __init__(self, table: TableDescription) -> None:
        """Nothing of a table is known but its columns."""
        self._table = table

    @property
    def schema(self) -> Any:
        return SimpleNamespace(columns=self._table.columns, version=1)

    def compiled_read(self, *_: object) -> None:
        """There is none."""

    def snapshot_row(
        self, row: Row, position: Position, lsn: Lsn, ts_us: int, read: Read = READ
    ) -> list[Record]:
        assert position == Position(3, lsn, 0)
        assert min(read.xid or 0, ts_us) > 0
        assert isinstance(row[0], bytes)
        return [Record("topic", f"{row[0].decode()} {read.marker}".encode(), None, [])]


def read(database: Conninfo, **settings: object) -> dict[str, list[str]]:
    """Table → its rows' keys, in the order in which a snapshot gives them."""
    chosen = capture(database, lossless=False, **settings)
    found: dict[str, list[str]] = {}

    def encoder(table: TableDescription) -> Encoder:
        return Marking(table)

    with session(database) as opened:
        tables = catalog.describe(
            opened, captured_tables(opened, chosen), chosen.publication_name, generated=True
        )
    tables.sort(key=lambda table: chosen.snapshot_rank(str(table.name)))
    with slot.exact_snapshot(database, chosen.slot_name) as exported:
        position = Position(3, exported.consistent_point, 0)
        snapshot = InitialSnapshot(database, chosen, Pace())
        batches = snapshot.read(exported, position, tables, encoder)
        for progress, records, *_ in batches:
            keys = [(record.key or b"").decode() for record in each(records)]
            found.setdefault(progress.table.name, []).extend(keys)
            assert len(found[progress.table.name]) == progress.rows
    return found


def test_as_debezium_a_parent_has_its_childrens_rows_too(database: Conninfo) -> None:
    run(database, *FAMILY, "CREATE PUBLICATION own FOR ALL TABLES")
    chosen = {"publication.name": "own", "publication.autocreate.mode": "disabled"}
    assert read(database, **chosen) == {
        "a_root": ["4 first", "3 last_in_data_collection"],
        "b_parent": ["1 first_in_data_collection", "2 last_in_data_collection"],
        "c_child": ["2 last_in_data_collection"],
        "d_empty": [],
        "y_two": ["3 last_in_data_collection"],
        "z_one": ["4 last"],
    }


def test_the_last_row_is_marked_though_empty_tables_follow(database: Conninfo) -> None:
    run(database, "CREATE TABLE a (id int)", "INSERT INTO a VALUES (1), (2), (3)")
    run(database, "CREATE TABLE b (id int)", "CREATE TABLE c (id int)")
    assert read(database) == {"a": ["1 first", "2 true", "3 last"], "b": [], "c": []}


def test_a_statement_of_ones_own_chooses_rows_and_their_order(database: Conninfo) -> None:
    run(database, "CREATE TABLE a (id int, v text)", "CREATE TABLE b (id int)")
    run(database, "INSERT INTO a SELECT i, 'v' FROM generate_series(1, 6) i")
    chosen = {
        STATEMENTS: "public.a",
        f"{STATEMENTS}.public.a": "SELECT * FROM public.a WHERE id % 2 = 0 ORDER BY id DESC;",
    }
    assert read(database, **chosen)["a"] == ["6 first", "4 true", "2 last"]


@pytest.mark.parametrize("select", ["SELEC 1", "SELECT 1 AS other", "SELECT * FROM public.none"])
def test_a_wrong_statement_of_ones_own_is_named(database: Conninfo, select: str) -> None:
    run(database, "CREATE TABLE a (id int)")
    with pytest.raises(ConfigError, match=rf"{STATEMENTS}\.public\.a: .* does not exist|syntax"):
        read(database, **{STATEMENTS: "public.a", f"{STATEMENTS}.public.a": select})


def test_generated_columns_are_read_as_debezium_reads_them(database: Conninfo) -> None:
    run(database, "CREATE TABLE a (g int GENERATED ALWAYS AS (id + 1) STORED, id int)")
    run(database, "INSERT INTO a VALUES (DEFAULT, 1)")
    with session(database) as opened:
        (kept,) = described(opened, capture(database))
        assert [column.name for column in kept.columns] == ["id"]
    assert read(database) == {"a": ["2 last"]}


def operations(made: RunningPipeline, prefix: str) -> list[tuple[str, str, object]]:
    """(table, op, id) of every event in the log."""
    lines = collect(made.settings.kafka, re.compile(re.escape(prefix) + r"\..*"))
    values = [json.loads(line.text)["value"] for line in lines]
    return [
        (value["source"]["table"], value["op"], (value["after"] or {}).get("id"))
        for value in values
        if value is not None
    ]


@pytest.fixture
def two(database: Conninfo) -> Conninfo:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    run(database, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    return database


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("chosen", "read"),
    [
        pytest.param({"snapshot.mode": "no_data"}, [], marks=pytest.mark.proof),
        ({"snapshot.include.collection.list": "public.b"}, [("b", "r", 1)]),
    ],
)
def test_changes_of_all_tables_follow_whatever_was_read(
    pipeline: Callable[..., RunningPipeline],
    two: Conninfo,
    topic_prefix: str,
    chosen: dict[str, str],
    read: list[tuple[str, str, object]],
) -> None:
    made = pipeline(**chosen)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run(two, "INSERT INTO a VALUES (2)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert operations(made, topic_prefix) == [("a", "c", 2), *read]


@pytest.mark.kafka
def test_a_table_that_is_asked_for_by_name_is_read_whatever_the_mode(
    pipeline: Callable[..., RunningPipeline], two: Conninfo, topic_prefix: str
) -> None:
    made = pipeline(**{"snapshot.mode": "no_data"})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert made.millrace("snapshot", "public.a").returncode == 0
    assert ("a", "r", 1) in operations(made, topic_prefix)
    assert {table for table, _, _ in operations(made, topic_prefix)} == {"a"}
    progress = made.progress()
    assert progress is not None
    (shown,) = (each for each in made.tables() if each.table == "a")
    assert progress.cut.commit_lsn >= shown.snapshot_lsn, "a merge that comes now applies it"


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.usefixtures("here")
def test_the_command_alone_reads_what_isnt_paused_and_ends(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, topic_prefix: str
) -> None:
    odd = 'Odd "x". 100%'
    name = psycopg.sql.Identifier(odd).as_string(None)
    run(database, "CREATE TABLE a (id int PRIMARY KEY, v text)")
    run(database, f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    run(database, f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b%')")
    made = pipeline(**{"snapshot.mode": "no_data"})

    def snapshot(*words: str) -> ExitCode | int:
        ended = CliRunner().invoke(app, ["snapshot", *words, "--config", str(made.config)])
        error = ended.exception
        return error.exit_code if isinstance(error, MillraceError) else ended.exit_code

    assert snapshot() == 0
    where = (f"public.{odd}", "--where", "v LIKE '%\\%' -- {}")
    for words in (
        ("public.odd",),
        ("odd", "--resume"),
        ("public.a", "--where", "true); INSERT INTO public.a VALUES (1"),
    ):
        assert snapshot(*words) == ExitCode.CONFIG, words
        assert snapshot(*words, "--dry-run") in {0, ExitCode.CONFIG}
    assert snapshot(*where, "--parallel", "0") == ExitCode.CONFIG
    assert snapshot(*where, "--parallel", "1") == 0
    assert operations(made, topic_prefix) == [(odd, "r", 2)]

    # What is paused is neither waited for nor forgotten.
    key = topic_prefix.encode()
    signals = {"execute": {"data-collections": [r"public\.Odd.*"]}, "pause": {}}
    for number, (kind, data) in enumerate(signals.items()):
        text = json.dumps({"id": str(number), "type": f"{kind}-snapshot", "data": data})
        send(made.settings.kafka, made.settings.capture.signal_topic, [(key, text.encode())])
    daemon = made.start()
    topic = made.settings.capture.signal_topic
    while (progress := made.progress()) is None or progress.signal_offset(topic).offset < 2:
        assert daemon.running
        time.sleep(0.1)
    assert made.stop(daemon) == 0
    before = len(operations(made, topic_prefix))
    assert [request.paused for state in made.tables() for request in state.requests] == [True]
    assert snapshot() == 0
    assert snapshot(*where) == ExitCode.NOT_DONE
    assert len(operations(made, topic_prefix)) == before
    assert snapshot("--resume", "public.a") == 0
    assert len(operations(made, topic_prefix)) == before
    assert snapshot("--resume", f"public.{odd}") == 0
    assert len(operations(made, topic_prefix)) == 1 + 2 + 1
    assert snapshot("--resume") == 0


@pytest.mark.proof
@pytest.mark.kafka
def test_a_broken_statement_of_ones_own_gives_a_blocking_snapshot_up(
    pipeline: Callable[..., RunningPipeline], two: Conninfo, topic_prefix: str
) -> None:
    wrong = {STATEMENTS: "public.a", f"{STATEMENTS}.public.a": "SELECT * FROM public.none"}
    made = pipeline(**{"snapshot.mode": "no_data"}, **wrong)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    data = {"type": "blocking", "data-collections": ["public.a"]}
    text = json.dumps({"id": "1", "type": "execute-snapshot", "data": data})
    topic = made.settings.capture.signal_topic
    send(made.settings.kafka, topic, [(topic_prefix.encode(), text.encode())])
    while "is abandoned" not in daemon.command.log_end():
        assert daemon.running, daemon.command.log_end()
        time.sleep(0.1)
    run(two, "INSERT INTO a VALUES (2)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert operations(made, topic_prefix) == [("a", "c", 2)]
    assert not any(state.requests for state in made.tables())


@pytest.mark.kafka
def test_initial_only_ends_by_itself_once_and_leaves_no_slot(
    pipeline: Callable[..., RunningPipeline], two: Conninfo, topic_prefix: str
) -> None:
    made = pipeline(**{"snapshot.mode": "initial_only"})
    for _ in range(2):
        assert made.start().wait(60) == 0
        run(two, "INSERT INTO a SELECT max(id) + 1 FROM a")
    assert operations(made, topic_prefix) == [("a", "r", 1), ("b", "r", 1)]
    with session(two) as opened:
        assert query(opened, "SELECT 1 FROM pg_replication_slots WHERE NOT temporary") == []


@pytest.mark.kafka
def test_always_reads_again_at_every_start(
    pipeline: Callable[..., RunningPipeline], two: Conninfo, topic_prefix: str
) -> None:
    made = pipeline(**{"snapshot.mode": "always", "table.include.list": "public.a"})
    for number in (2, 3):
        daemon = made.start()
        while [state.rows_sent for state in made.tables()] != [number - 1]:
            assert daemon.running
            time.sleep(0.1)
        run(two, f"INSERT INTO a VALUES ({number})")
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
    events = operations(made, topic_prefix)
    assert sorted(str(event) for event in events if event[1] == "r") == [
        "('a', 'r', 1)",
        "('a', 'r', 1)",
        "('a', 'r', 2)",
    ]


@pytest.mark.kafka
def test_a_table_that_appears_is_captured_from_there_on_under_the_preset(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, topic_prefix: str
) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION own FOR ALL TABLES")
    made = pipeline(
        **{
            "lossless": "false",
            "publication.name": "own",
            "publication.autocreate.mode": "disabled",
        }
    )
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    with psycopg.connect(make_conninfo(**database)) as connection:
        connection.execute("CREATE TABLE b (id int PRIMARY KEY)")
        connection.execute("INSERT INTO b VALUES (1)")
    made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    assert operations(made, topic_prefix) == [("b", "c", 1)]
