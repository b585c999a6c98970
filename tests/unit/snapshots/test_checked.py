"""A catalog check's result, and the stream's place → the end of the surely right log."""

import shlex
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import psycopg
import pytest
from structlog.testing import capture_logs

from cdc.compiled.fast import Cursor
from cdc.postgres.fingerprints import CatalogTable
from cdc.records.fingerprint import TableFingerprint
from cdc.records.position import Lsn, Position
from cdc.records.schema import TableName
from cdc.records.state import Doubt
from cdc.settings import CaptureSettings
from snapshots.catalog_check import CatalogCheck
from snapshots.inspection import Inspection
from snapshots.windows import Job, WindowReader
from tests.fixtures.made_tables import STATE, tables

SETTINGS = CaptureSettings(**{"topic.prefix": "pre", "table.include.list": "public.t"})
START = Position(1, Lsn(1_000), 0)


class Source:
    """A catalog without anything to find, as this snapshot shows it."""

    seen = "100:100:"

    def ask(self, question: Callable[[psycopg.Connection], Inspection]) -> Job[Inspection]:
        del question
        job = Job[Inspection]()
        job.future = Future()
        job.future.set_result(None)
        made = TableFingerprint(columns="", identity="", seen=self.seen)
        table = CatalogTable(made, STATE.name, entry=9)
        job.result = Inspection(
            Lsn(0), Lsn(0), {STATE.name: table}, [], {STATE.name: made}, set(), {}
        )
        return job


def test_the_log_is_right_up_to_where_a_check_saw_all_commits() -> None:
    source, made = Source(), tables()
    check = CatalogCheck(cast("WindowReader", source), made, SETTINGS)
    cursor = Cursor(START, START, Lsn(1_000))

    def checked(seen: str) -> Position | None:
        source.seen = seen
        check.note_ddl()
        for _ in range(3):  # it is asked, answers, and counts
            check.turn(cursor)
        return made.states.checked

    assert checked("100:100:") == START
    cursor.begin(100, Lsn(2_000), 0)
    cursor.commit(Lsn(2_000), Lsn(2_100))
    assert checked("100:100:") == START, "it is in the stream, and has ended for nobody yet"
    cursor.begin(101, Lsn(3_000), 0)
    cursor.commit(Lsn(3_000), Lsn(3_100))
    assert checked("100:102:100") == START
    assert checked("102:102:") == cursor.reached


@pytest.mark.parametrize("name", ['Weird "name"', "a b", "o'clock"])
def test_the_command_that_reads_a_table_again_takes_any_name(name: str) -> None:
    made = tables()
    doubt = Doubt(reason="why", since_ms=1, replaces=False)
    doubtful = STATE.model_copy(update={"namespace": name, "table": name, "doubt": doubt})
    made.states.put(doubtful)
    check = CatalogCheck(cast("WindowReader", Source()), made, SETTINGS)
    with capture_logs() as logs:
        for _ in range(4):  # it is asked, answers, and counts
            check._next_read = 0
            check.note_ddl()
            check.turn(Cursor(START, START, Lsn(1_000)))
    (remedy,) = [line["remedy"] for line in logs if "remedy" in line]
    assert shlex.split(remedy) == ["millrace", "snapshot", "--reset", str(TableName(name, name))]
