"""Broken sources → the findings of `check`; its own SQL, run as printed, corrects them.

Each case begins with a role that has all rights except those that the case removes.
"""

import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.check.result import CheckReport, CheckResult, Level
from deploy.check.runner import run_parts
from deploy.check.scene import CapturedLog, Scene
from deploy.check.source import check_source
from deploy.check.standby import check_standby
from tests.fixtures.checks import NO_KAFKA, STATEMENT, scenes_of
from tests.fixtures.source import Conninfo, run, session

pytestmark = pytest.mark.postgres
TABLES: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE items (id int PRIMARY KEY, code int NOT NULL UNIQUE)",
)
PUBLICATION: Final = (
    "CREATE PUBLICATION millrace FOR TABLE ONLY public.orders, ONLY public.items"
    " WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
)
MENDED_MAX: Final = 3
"""One thing that is mended may show another, such as a right behind that to a schema."""
SILENT_S: Final = 6.0
"""More than the two seconds that a standby is given, and less than everything may take."""
OWN: Final = {"publication.autocreate.mode": "disabled"}


SIGNALS: Final = {
    "signal.data.collection": "public.signals",
    "incremental.snapshot.watermarking.strategy": "insert_delete",
}
REVOKE_MESSAGES: Final = """
DO $$ DECLARE f regprocedure; BEGIN
FOR f IN SELECT oid FROM pg_proc WHERE proname = 'pg_logical_emit_message'
LOOP EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); END LOOP;
END $$
"""


@dataclass(frozen=True)
class Case:
    """What is broken, by SQL as a superuser (``{role}``), and what `check` is to say of it."""

    requirement: str
    words: str
    broken: tuple[str, ...]
    capture: dict[str, Any]
    level: Level = Level.FAILURE
    attributes: str = "REPLICATION"


def case(requirement: str, words: str, *broken: str, **more: Any) -> Case:
    level = more.pop("level", Level.FAILURE)
    attributes = more.pop("attributes", "REPLICATION")
    return Case(requirement, words, broken, more.pop("capture", {}), level, attributes)


CASES: Final = {
    "replication": case("replication", " to start ", attributes=""),
    "select": case(
        "rights to rows", "lacks SELECT on 1 captured tables", "REVOKE SELECT ON orders FROM {role}"
    ),
    "schema": case(
        "rights to rows",
        "lacks SELECT",
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.t (id int PRIMARY KEY)",
        "ALTER PUBLICATION millrace ADD TABLE ONLY hidden.t",
    ),
    "select on columns": case(
        "rights to rows",
        "SELECT on columns, as on public.orders, isn't enough",
        "REVOKE SELECT ON orders FROM {role}",
        "GRANT SELECT (id) ON orders TO {role}",
    ),
    "row security": case(
        "rights to rows", "row-level security hides", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY"
    ),
    "another's tables": case(
        "right to publish", "belongs to postgres", "DROP PUBLICATION millrace"
    ),
    "no right to create": case(
        "right to publish",
        "CREATE on the database",
        "DROP PUBLICATION millrace",
        "ALTER TABLE orders OWNER TO {role}",
        "ALTER TABLE items OWNER TO {role}",
    ),
    "messages": case(
        "right to write messages",
        "lacks EXECUTE on pg_logical_emit_message(boolean,text,text",
        REVOKE_MESSAGES,
    ),
    "signal table": case(
        "right to write messages",
        "lacks rights to write watermarks to the signal table public.signals",
        "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)",
        "GRANT SELECT ON signals TO {role}",
        "ALTER PUBLICATION millrace ADD TABLE ONLY signals",
        capture=SIGNALS,
    ),
    "no signal table": case(
        "right to write messages",
        "the signal table public.signals doesn't exist",
        capture=SIGNALS,
    ),
    "no signal table to read": case(
        "signal table",
        "the signal table public.signals doesn't exist: no signal can arrive through it",
        level=Level.WARNING,
        capture={"signal.data.collection": "public.signals"},
    ),
    "no schema of a signal table": case(
        "signal table",
        'the signal table "Ops"."my signals" doesn\'t exist',
        level=Level.WARNING,
        capture={"signal.data.collection": "Ops.my signals"},
    ),
    "no signal table in a schema without rights": case(
        "right to write messages",
        "the signal table ops.signals doesn't exist",
        "CREATE SCHEMA ops",
        capture=SIGNALS | {"signal.data.collection": "ops.signals"},
    ),
    "no signal table for read-only reads": case(
        "signal table",
        "the signal table public.signals doesn't exist: no signal can arrive through it",
        level=Level.WARNING,
        capture=SIGNALS | {"incremental.snapshot.watermarking.strategy": "read_only"},
    ),
    "messages beside a signal table": case(
        "right to write messages",
        "lacks EXECUTE on pg_logical_emit_message(boolean,text,text",
        "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)",
        "GRANT SELECT, INSERT, DELETE ON signals TO {role}",
        "ALTER PUBLICATION millrace ADD TABLE ONLY signals",
        REVOKE_MESSAGES,
        capture=SIGNALS,
    ),
    "no key": case(
        "public.heap",
        "has no replica identity",
        "CREATE TABLE heap (v int)",
        "GRANT SELECT ON heap TO {role}",
        "ALTER PUBLICATION millrace ADD TABLE ONLY heap",
    ),
    "identity nothing": case(
        "public.orders", "has no replica identity", "ALTER TABLE orders REPLICA IDENTITY NOTHING"
    ),
    "identity without the key": case(
        "public.items",
        "without its primary key",
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_code_key",
    ),
    "partition with another identity": case(
        "public.days",
        "has a replica identity without its primary key, or partitions",
        "CREATE TABLE days (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE day PARTITION OF days DEFAULT",
        "GRANT SELECT ON days, day TO {role}",
        "ALTER PUBLICATION millrace ADD TABLE ONLY days",
        "ALTER TABLE day REPLICA IDENTITY FULL",
    ),
    "publication lacks a table": case(
        "publication", "it lacks public.orders", "ALTER PUBLICATION millrace DROP TABLE orders"
    ),
    "publication has more": case(
        "publication",
        "it also publishes public.more",
        "CREATE TABLE more (id int PRIMARY KEY)",
        "ALTER PUBLICATION millrace ADD TABLE ONLY more",
        capture={"table.exclude.list": "public.more"},
    ),
    "publication lacks operations": case(
        "publication",
        "doesn't publish all operations",
        "ALTER PUBLICATION millrace SET (publish = 'insert')",
    ),
    "own publication lacks operations": case(
        "publication",
        "doesn't publish delete, truncate",
        "ALTER PUBLICATION millrace SET (publish = 'insert, update')",
        level=Level.WARNING,
        capture=OWN,
    ),
    "large values": case(
        "public.orders",
        "doesn't change a large value of note doesn't contain it",
        level=Level.WARNING,
        capture={"toast.unavailable": "absent"},
    ),
    "unlogged": case(
        "public.fast",
        "is unlogged",
        "CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)",
        level=Level.WARNING,
        capture=OWN,
    ),
    "slot without a record": case(
        "continuity",
        "exists, but the log has no progress record",
        "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    ),
    "another program's slot": case(
        "slot",
        "belongs to another program (plugin test_decoding",
        "SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')",
    ),
    "superuser": case(
        "powers of the role",
        "is or can become a superuser",
        level=Level.WARNING,
        attributes="REPLICATION SUPERUSER",
    ),
    "makes roles": case(
        "powers of the role",
        "can create and change roles",
        level=Level.WARNING,
        attributes="REPLICATION CREATEROLE",
    ),
    "connect": case(
        "connection",
        "permission denied for database",
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
    ),
}


def look(scene: Scene) -> CheckReport:
    """Look at the source; of the log it knows that there is nothing yet."""
    scene.log.settle(CapturedLog(None, {}))
    return CheckReport.of(run_parts({"source": partial(check_source, scene)}))


def problems(report: CheckReport) -> list[CheckResult]:
    return [each for each in report.findings if each.level in {Level.FAILURE, Level.UNKNOWN}]


def of_case(report: CheckReport, wanted: Case) -> Iterator[CheckResult]:
    for each in report.findings:
        if each.requirement == wanted.requirement and wanted.words in each.found:
            yield each


def statements(remedies: Iterable[str]) -> list[str]:
    """The SQL of remedies, as a user copies it."""
    return [line for remedy in remedies for line in STATEMENT.findall(remedy)]


@pytest.mark.parametrize("name", CASES)
def test_what_check_prints_mends_what_it_finds(
    name: str,
    database: Conninfo,
    role: Callable[[str], dict[str, str]],
    tmp_path: Path,
) -> None:
    wanted = CASES[name]
    own = role(wanted.attributes)
    slot = f"slot_{database['dbname']}"
    names = {"role": own["user"], "slot": slot, "database": database["dbname"]}
    run(database, *TABLES, PUBLICATION, f"GRANT SELECT ON orders, items TO {own['user']}")
    capture = {"slot.name": slot, **wanted.capture}
    scenes = scenes_of(tmp_path, {**database, **own}, NO_KAFKA, "t", capture)
    run(database, *(_filled(each, names) for each in wanted.broken))
    report = look(scenes())
    assert [each.level for each in of_case(report, wanted)] == [wanted.level], report.findings
    for _ in range(MENDED_MAX):
        left = {each.remedy for each in (*problems(report), *of_case(report, wanted))}
        if not left:
            break
        run(database, *dict.fromkeys(statements(left)))
        report = look(scenes())
    assert problems(report) == []
    assert not list(of_case(report, wanted))


def _filled(statement: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        statement = statement.replace(f"{{{name}}}", value)
    return statement


def test_a_standby_that_is_silent_hides_neither_publication_nor_tables(
    database: Conninfo, tmp_path: Path
) -> None:
    run(database, *TABLES)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        own = {"host": "127.0.0.1", "port": port}
        scene = scenes_of(tmp_path, database, NO_KAFKA, "t", {}, snapshot_source=own)()
        scene.log.settle(CapturedLog(None, {}))
        began = time.monotonic()
        parts = {"source": check_source, "standby": check_standby}
        found = run_parts({name: partial(check, scene) for name, check in parts.items()})
        assert time.monotonic() - began < SILENT_S
    levels = {(each.part, each.requirement): each.level for each in found}
    assert levels["standby", "[snapshot_source]"] is Level.FAILURE
    assert levels["source", "publication"] is levels["tables", "public.orders"] is Level.OK


def test_clocks_that_differ_are_told(
    database: Conninfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    scene = scenes_of(tmp_path, database, NO_KAFKA, "t", {})()
    monkeypatch.setattr("deploy.check.source.time.time", lambda: real() + 60)
    (clock,) = (each for each in look(scene).findings if each.requirement == "clock")
    assert clock.level is Level.WARNING
    assert re.search(r"server's clock is (59|60)\.\d s behind this machine's", clock.found)


def test_what_a_table_has_that_events_lack_or_have_as_text_is_told(
    database: Conninfo, tmp_path: Path
) -> None:
    run(
        database,
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE plain (id int PRIMARY KEY, p pair) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF plain DEFAULT",
        "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE held (id int PRIMARY KEY)",
    )
    scenes = scenes_of(tmp_path, database, NO_KAFKA, "t", {})
    with session(database) as opened:
        opened.execute("BEGIN")
        opened.execute("ALTER TABLE public.held ADD COLUMN v int")
        locked = look(scenes())
    told = {each.requirement: each for each in look(scenes()).findings if each.part == "tables"}
    assert told["public.plain"].found == (
        "key id; identity DEFAULT; partitioned into 1;"
        " unchanged large values are read again after an UPDATE: p; as text: p"
    )
    assert told["public.made"].level is Level.WARNING
    assert "generated columns aren't captured: twice" in told["public.made"].found
    assert told["public.held"].level is Level.OK
    unknown = [each for each in locked.findings if each.level is Level.UNKNOWN]
    assert any("lock" in each.found for each in unknown)


def test_a_table_of_which_no_events_can_be_made_is_a_failure(
    database: Conninfo, tmp_path: Path
) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL UNIQUE)")
    capture = {"message.key.columns": "public.t:v"}
    (failure,) = problems(look(scenes_of(tmp_path, database, NO_KAFKA, "t", capture)()))
    assert failure.requirement == "public.t"
    assert "message.key.columns names columns that old rows don't contain" in failure.found
    run(database, *statements([f"{failure.remedy};"]))
    assert problems(look(scenes_of(tmp_path, database, NO_KAFKA, "t", capture)())) == []
