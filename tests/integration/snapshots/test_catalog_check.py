"""DDL that changes rows without a row event: the table is doubtful until it was read again.

The expected rows are the source's own SELECT. Each case has its own table, so one daemon serves
all: once with the DDL during its stream, once during its outage.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.records.position import Lsn
from cdc.records.state import TableState
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
PUBLICATION = "published"
PLAIN = "id int PRIMARY KEY, v text"
ROWS = "SELECT i, 'v' || i FROM generate_series(1, 9) i"


class Case(NamedTuple):
    """DDL, with DML in between, of a table that is named ``{t}``; its type is ``{t}_type``.

    What comes ``before`` it leaves the table right: a check may say so until then.
    """

    columns: str
    rows: str
    steps: tuple[str, ...]
    type: str = ""
    before: tuple[str, ...] = ()


ENUM = "CREATE TYPE {t}_type AS ENUM ('a', 'b')"
LABELED = "SELECT i, (ARRAY['a', 'b'])[i % 2 + 1]::{t}_type FROM generate_series(1, 9) i"
MOVED = ("DELETE FROM {t} WHERE id = 3", "INSERT INTO {t} VALUES (10, 'new')")
CASES = {
    "label": Case(
        "id int PRIMARY KEY, v {t}_type",
        LABELED,
        ("ALTER TYPE {t}_type RENAME VALUE 'a' TO 'z'", "DELETE FROM {t} WHERE id = 3"),
        ENUM,
    ),
    "label_and_back": Case(
        "id int PRIMARY KEY, v {t}_type[]",
        LABELED.replace("(ARRAY", "ARRAY[(ARRAY").replace("::{t}_type", "::{t}_type]"),
        (
            "ALTER TYPE {t}_type RENAME VALUE 'a' TO 'z'",
            "UPDATE {t} SET v = v WHERE id = 2",
            "ALTER TYPE {t}_type RENAME VALUE 'z' TO 'a'",
        ),
        ENUM,
    ),
    "label_in_key": Case(
        "v {t}_type, id int, PRIMARY KEY (v, id)",
        LABELED.replace("i, (", "(").replace("::{t}_type", "::{t}_type, i"),
        ("ALTER TYPE {t}_type RENAME VALUE 'a' TO 'z'", "DELETE FROM {t} WHERE v = 'z' AND id < 5"),
        ENUM,
    ),
    "composite": Case(
        "id int PRIMARY KEY, v {t}_type",
        "SELECT i, ROW(i, i)::{t}_type FROM generate_series(1, 9) i",
        ("ALTER TYPE {t}_type ADD ATTRIBUTE c text",),
        "CREATE TYPE {t}_type AS (a int, b int)",
    ),
    "same_type": Case(PLAIN, ROWS, ("ALTER TABLE {t} ALTER COLUMN v TYPE text USING v || '!'",)),
    "volatile": Case(
        PLAIN, ROWS, ("ALTER TABLE {t} ADD COLUMN u uuid DEFAULT gen_random_uuid()",),
    ),
    "key_type": Case(PLAIN, "SELECT i - 5, 'v' || i FROM generate_series(1, 9) i",
        ("DELETE FROM {t} WHERE v = 'v3'", "ALTER TABLE {t} ALTER id TYPE oid")),
    "key_moved": Case("a int PRIMARY KEY, id int NOT NULL, v text",
        "SELECT i, 100 - i, 'v' || i FROM generate_series(1, 9) i",
        ("ALTER TABLE {t} REPLICA IDENTITY FULL, DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id)",)),
    "idle": Case(PLAIN, ROWS, ("ALTER TABLE {t} ADD COLUMN n int DEFAULT 7",)),
    "made_again": Case(
        PLAIN, ROWS, ("ALTER TABLE {t} DROP COLUMN v, ADD COLUMN v text",)
    ),
    "taken_out": Case(
        PLAIN,
        ROWS,
        (
            "ALTER PUBLICATION published DROP TABLE {t}",
            *MOVED,
            "ALTER PUBLICATION published ADD TABLE {t}",
        ),
    ),
    "swapped": Case(
        PLAIN,
        ROWS,
        (
            "ALTER TABLE {t} RENAME TO {t}_old",
            "ALTER TABLE {t}_new RENAME TO {t}",
            "ALTER PUBLICATION published ADD TABLE {t}",
        ),
        before=(
            "CREATE TABLE {t}_new (LIKE {t} INCLUDING ALL)",
            "INSERT INTO {t}_new SELECT id + 5, v FROM {t}",
        ),
    ),
    "made_anew": Case(
        PLAIN,
        ROWS,
        (
            "DROP TABLE {t}",
            "CREATE TABLE {t} (" + PLAIN + ")",
            "ALTER PUBLICATION published ADD TABLE {t}",
            "INSERT INTO {t} VALUES (2, 'other')",
        ),
    ),
    "away": Case(
        PLAIN,
        ROWS,
        ("ALTER TABLE {t} RENAME TO other_{t}",
         *(step.replace("{t}", "other_{t}") for step in MOVED),
         "ALTER TABLE other_{t} RENAME TO {t}", "INSERT INTO {t} VALUES (11, 'back')"),
    ),
}  # fmt: skip
NOTHING_MISSED = {"idle", "made_again", "key_type"}
"""What was written to these is in the log."""
OF_ALL_TABLES = {
    "unlogged": Case(
        PLAIN,
        ROWS,
        ("ALTER TABLE {t} SET UNLOGGED", *MOVED, "ALTER TABLE {t} SET LOGGED"),
    ),
    "unlogged_narrow": Case(
        "id int PRIMARY KEY, v int",
        "SELECT i, i FROM generate_series(1, 9) i",
        (
            "ALTER TABLE {t} SET UNLOGGED",
            "DELETE FROM {t} WHERE id = 3",
            "ALTER TABLE {t} SET LOGGED",
        ),
    ),
    "renamed_and_unlogged": Case(
        "id int PRIMARY KEY, v {t}_type",
        LABELED,
        (
            "ALTER TYPE {t}_type RENAME VALUE 'a' TO 'z'",
            "ALTER TABLE {t} SET UNLOGGED",
            "DELETE FROM {t} WHERE id = 3",
            "ALTER TABLE {t} SET LOGGED",
        ),
        ENUM,
    ),
    "published_in_part": Case(
        PLAIN,
        ROWS,
        (
            "ALTER PUBLICATION published SET (publish = 'insert')",
            *MOVED,
            "ALTER PUBLICATION published SET (publish = 'insert, update, delete, truncate')",
        ),
    ),
}
"""The publication has to be FOR ALL TABLES: others refuse unlogged tables."""
PARTITIONED = (
    "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE mid PARTITION OF parts FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (20) TO (30)",
    "INSERT INTO parts SELECT i, 'v' || i FROM generate_series(1, 29) i",
    "CREATE TABLE filled (id int PRIMARY KEY, v text)",
    "INSERT INTO filled SELECT i, 'f' || i FROM generate_series(30, 39) i",
)
PARTITIONS_CHANGE = (
    "TRUNCATE low",
    "ALTER TABLE parts DETACH PARTITION mid",
    "DELETE FROM mid WHERE id < 15",
    "ALTER TABLE parts ATTACH PARTITION mid FOR VALUES FROM (10) TO (20)",
    "ALTER TABLE parts ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)",
)
HARMLESS = (
    "VACUUM FULL {t}",
    "CLUSTER {t} USING {t}_pkey",
    "ALTER TABLE {t} SET (fillfactor = 70)",
    "CREATE INDEX ON {t} (v)",
    "COMMENT ON TABLE {t} IS 'harmless'",
    "ALTER TABLE {t} ALTER COLUMN v SET STATISTICS 50",
    "ALTER TABLE {t} ALTER COLUMN v SET NOT NULL",
    "GRANT SELECT ON {t} TO PUBLIC",
    "REINDEX TABLE {t}",
    "ANALYZE {t}",
)


def make(database: Conninfo, cases: dict[str, Case]) -> None:
    """Make the tables of these cases."""
    for name, case in cases.items():
        table = f"CREATE TABLE {name} ({case.columns})"
        made = [case.type, table, f"INSERT INTO {name} {case.rows}"]
        run(database, *(statement.replace("{t}", name) for statement in made if statement))


def source_rows(database: Conninfo, table: str) -> list[dict[str, str]]:
    """The rows of a table, each value as text."""
    with psycopg.connect(make_conninfo(**database)) as connection:
        names = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped", [table]
        ).fetchall()  # fmt: skip
        listed = ", ".join(f"'{name}', {name}::text" for (name,) in names)
        statement = f"SELECT jsonb_build_object({listed}) FROM {table}"
        rows = connection.execute(statement.encode()).fetchall()
    return sorted((row for (row,) in rows), key=lambda row: str(row["id"]))


def log_rows(records: list[LogRecord], table: str, columns: set[str]) -> list[dict[str, object]]:
    """The rows of a table that the log adds up to, those columns of them, as text."""
    of_table = [record for record in records if record.topic.endswith(f".public.{table}")]
    rows = sorted(state_of(of_table).values(), key=lambda row: str(row["id"]))
    return [{name: _text(row.get(name)) for name in columns} for row in rows]


def _text(value: object) -> object:
    if isinstance(value, list):
        return "{" + ",".join(map(str, value)) + "}"
    return value if value is None or isinstance(value, str) else str(value)


def differing(made: RunningPipeline, database: Conninfo, tables: Iterable[str]) -> list[Any]:
    """The tables whose rows in the log aren't the source's, each with both."""
    records = made.log()
    different = []
    for table in tables:
        expected = source_rows(database, table)
        actual = log_rows(records, table, set(expected[0]))
        if actual != expected:
            different.append((table, actual, expected))
    return different


def wait_until_checked(made: RunningPipeline, database: Conninfo, table: str) -> Lsn:
    """Wait until a check has seen all that the source has by now; returns how far that is."""
    right = made.wal_end()

    def is_checked() -> bool:
        run(database, f"UPDATE {table} SET id = id WHERE id = 1")  # the log says so when it moves
        progress = made.progress()
        assert progress is not None
        return progress.checked is not None and progress.checked.commit_lsn > right

    wait_for(is_checked)
    return right


def is_settled(states: list[TableState]) -> bool:
    return all(state.doubt is None and not state.requests for state in states)


@pytest.mark.parametrize(
    ("of_all", "is_streaming"),
    [
        pytest.param(False, True, id="some tables, while streaming"),
        pytest.param(True, False, id="all tables, while it is down"),
        pytest.param(True, True, id="all tables, while streaming", marks=pytest.mark.proof),
        pytest.param(False, False, id="some tables, while it is down", marks=pytest.mark.proof),
    ],
)
def test_what_the_stream_does_not_tell_is_read_again(
    pipeline: MakePipeline, database: Conninfo, of_all: bool, is_streaming: bool
) -> None:
    cases = OF_ALL_TABLES if of_all else CASES
    make(database, cases)
    tables = list(cases) if of_all else [*cases, "parts"]
    run(database, *(() if of_all else PARTITIONED))
    published = "FOR ALL TABLES" if of_all else f"FOR TABLE {', '.join(tables)}"
    options = "publish_via_partition_root = true"
    run(database, f"CREATE PUBLICATION {PUBLICATION} {published} WITH ({options})")
    made = pipeline(
        **{
            "publication.autocreate.mode": "disabled",
            "publication.name": PUBLICATION,
            "table.exclude.list": "public.other_.*,public..*_old",
        }
    )
    daemon = made.catch_up()
    assert differing(made, database, tables) == []
    if not is_streaming:
        assert made.stop(daemon) == 0
    right_until = {}
    for name, case in cases.items():
        run(database, *(step.replace("{t}", name) for step in case.before))
        right_until[name] = made.wal_end()
        run(database, *(step.replace("{t}", name) for step in case.steps))
    run(database, *(() if of_all else PARTITIONS_CHANGE))
    if not is_streaming:
        daemon = made.start()
    deadline = time.monotonic() + 180
    while different := differing(made, database, tables) or not is_settled(made.tables()):
        assert time.monotonic() < deadline, different
        assert daemon.running
        time.sleep(0.3)
    assert made.stop(daemon) == 0
    gaps = {state.table: state.gaps for state in made.tables() if state.gaps}
    assert set(tables) - gaps.keys() == (set() if of_all else NOTHING_MISSED)
    for name, lsn in right_until.items():
        for gap in gaps.get(name, ())[:1]:
            assert gap.start.commit_lsn <= lsn <= gap.end.commit_lsn, name


def test_what_changes_no_row_costs_no_read(pipeline: MakePipeline, database: Conninfo) -> None:
    for table in ("wide", "narrow"):
        column = "text" if table == "wide" else "int"
        run(
            database,
            f"CREATE TABLE {table} (id int PRIMARY KEY, v {column})",
            f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 9) i",
        )
    run(database, f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA public")
    made = pipeline(**{"publication.autocreate.mode": "disabled", "publication.name": PUBLICATION})
    daemon = made.catch_up()
    before = [record for record in made.log() if record.op == "r"]

    def change() -> None:
        for table in ("wide", "narrow"):
            run(database, *(statement.replace("{t}", table) for statement in HARMLESS))

    change()
    wait_until_checked(made, database, "wide")
    assert made.stop(daemon) == 0
    change()
    daemon = made.start()
    wait_until_checked(made, database, "wide")
    assert made.stop(daemon) == 0
    assert is_settled(made.tables())
    assert [record for record in made.log() if record.op == "r"] == before


def test_with_an_event_trigger_the_stream_tells_of_ddl(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    case = CASES["label"]
    make(database, {"label": case})
    made = pipeline()
    words = (sys.executable, "-m", "millrace", "ddl-trigger", "--print")
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    run(database, printed)
    daemon = made.start_broken("tests.fixtures.rare_checks")
    made.wait_until_logged(made.wal_end(), daemon)
    run(database, *(step.replace("{t}", "label") for step in case.steps))
    wait_for(lambda: differing(made, database, ["label"]) == [])
    assert made.stop(daemon) == 0


def test_what_is_too_large_stays_doubtful_and_status_says_what_to_do(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    make(database, {"label": CASES["label"]})
    run(database, "ANALYZE label")
    made = pipeline(**{"doubt.reread.bytes.max": 0})
    daemon = made.catch_up()
    run(database, *(step.replace("{t}", "label") for step in CASES["label"].steps))
    wait_for(lambda: any(state.doubt and state.doubt.refused for state in made.tables()))
    (shown,) = made.status()["tables"]
    assert shown["doubt"] == "labels of enum public.label_type were renamed"
    assert "doubt.reread.bytes.max" in shown["not_reread"]
    assert made.stop(daemon) == 0
    left_out = pipeline(**{"table.exclude.list": "public.label"})
    run(database, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    run(database, f"ALTER PUBLICATION {made.settings.capture.publication_name} SET TABLE other")
    assert left_out.millrace("snapshot", "public.other").returncode == 0
