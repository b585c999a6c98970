"""One value along each of the ways that docs/explanation/architecture.md draws.

A test sends a marked value along a way, on real servers. It fails if a function of an unlisted file
held the value, or if no function of a listed file did. The message names the rows to add to the
page's table, and to remove. tests/fixtures/tracer.py defines *held*. The page has files that aren't
Python (the extension, Java), but no tracer sees them. The files of the readable path show that a
row went through the extension: none of them held it.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.capture.daemon import Daemon
from cdc.records.position import Lsn
from cdc.records.state import Phase
from deploy.commands.console import ConsoleObserver
from snapshots.channel import open_channel
from snapshots.initial import InitialSnapshot
from snapshots.pace import Pace
from tests.fixtures.indexes import Indexes
from tests.fixtures.lakehouse import Lakehouse
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.spark import HandLog, at, column, table_schema
from tests.fixtures.tracer import ROOT, Executors, Functions, Marked, Plans, Tracer

PAGE = ROOT / "docs/explanation/architecture.md"
HEADING = re.compile(r"^#+ (?:Way \d: )?(.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `([\w./]+\.(?:py|pyx|pxi|java))` \|", re.MULTILINE)
MARKER = f"marked{uuid4().hex}"
COLUMN = f"column{uuid4().hex}"
SCHEMA = "CREATE TABLE item (id int PRIMARY KEY, v text)"
WAIT_S = 120
MakePipeline = Callable[..., RunningPipeline]


def listed(way: str) -> list[str]:
    """The files in the tables below a heading of the page."""
    parts = HEADING.split(PAGE.read_text(encoding="utf-8"))
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return ROW.findall(sections[way])


def changes(way: str, held: Functions) -> list[str]:
    """What to change in the page's tables, so that they list the files that the value passed."""
    files = listed(way)
    assert len(files) == len(set(files))
    traced = {file for file in files if file.endswith(".py")}
    return [f"remove the row of {file}" for file in sorted(traced - held.keys())] + [
        f"add a row for {file}: held by {', '.join(sorted(held[file]))}"
        for file in sorted(held.keys() - traced)
    ]


def assert_drawn(way: str, held: Functions) -> None:
    """The page lists the files that the value passed, and no others."""
    wanted = changes(way, held)
    assert not wanted, "\n".join([f"{PAGE.relative_to(ROOT)}, {way}:", *wanted])


def test_a_row_too_many_and_one_too_few_are_named() -> None:
    way = "Changed row → joined document"
    first, *others = (file for file in listed(way) if file.endswith(".py"))
    assert changes(way, {file: {"f"} for file in [*others, "cdc/errors.py"]}) == [
        f"remove the row of {first}",
        "add a row for cdc/errors.py: held by f",
    ]


@contextmanager
def traced_daemon(made: RunningPipeline) -> Iterator[Tracer]:
    """A daemon in a thread of this process, which is traced."""
    settings, pace = made.settings, Pace(0, adaptive=False)
    backfill = InitialSnapshot(settings.source, settings.capture, pace)
    daemon = Daemon(settings, backfill, ConsoleObserver(), partial(open_channel, pace))
    stop, tracer = threading.Event(), Tracer(Marked(MARKER))
    thread = threading.Thread(target=daemon.run, args=(stop,))
    with tracer:
        thread.start()
    try:
        yield tracer
    finally:
        stop.set()
        thread.join(WAIT_S)


def wait_until_logged(made: RunningPipeline) -> None:
    lsn, deadline = made.wal_end(), time.monotonic() + WAIT_S
    while not is_logged(made, lsn):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_logged(made: RunningPipeline, lsn: Lsn) -> bool:
    progress = made.progress()
    return progress is not None and progress.phase is Phase.STREAMING and progress.flush_lsn >= lsn


def streamed(made: RunningPipeline, source: psycopg.Connection) -> Functions:
    """What has held a row that was inserted while the daemon streams."""
    source.execute(SCHEMA)
    with traced_daemon(made) as tracer:
        wait_until_logged(made)
        source.execute("INSERT INTO item VALUES (1, %s)", [MARKER])
        wait_until_logged(made)
    assert [(record.value or {})["after"] for record in made.log()] == [{"id": 1, "v": MARKER}]
    return tracer.functions()


@pytest.fixture
def source(database: dict[str, str]) -> Iterator[psycopg.Connection]:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        yield connection


@pytest.mark.postgres
@pytest.mark.kafka
def test_a_wal_frame_passes_the_files_that_the_page_draws(
    pipeline: MakePipeline, source: psycopg.Connection
) -> None:
    assert_drawn("WAL frame → Kafka", streamed(pipeline(), source))


@pytest.mark.postgres
@pytest.mark.kafka
def test_a_wal_frame_passes_python_where_the_page_says_so(
    pipeline: MakePipeline, source: psycopg.Connection
) -> None:
    """The extension doesn't compare rows."""
    made = pipeline(**{"skip.messages.without.change": "true"})
    assert_drawn("The readable path", streamed(made, source))


@pytest.mark.postgres
@pytest.mark.kafka
def test_a_snapshot_row_passes_the_files_that_the_page_draws(
    pipeline: MakePipeline, source: psycopg.Connection
) -> None:
    source.execute(SCHEMA)
    source.execute("INSERT INTO item VALUES (1, %s)", [MARKER])
    made = pipeline()
    with traced_daemon(made) as tracer:
        wait_until_logged(made)
    assert [(record.value or {})["after"] for record in made.log()] == [{"id": 1, "v": MARKER}]
    assert_drawn("Snapshot row → Kafka", tracer.functions())


@pytest.mark.kafka
@pytest.mark.spark
def test_a_record_passes_the_files_that_the_page_draws(lakehouse: Lakehouse) -> None:
    """A record of a table that stands already."""
    log = lakehouse.log(column("id", "int4", 1), column(COLUMN, "text"))
    log.row("r", at(100, 0), {"id": 1, COLUMN: "before"})
    log.table(100)
    log.reached(at(100, 0))
    lakehouse.merge()
    log.row("u", at(200), {"id": 1, COLUMN: MARKER})
    log.reached(at(200))
    with Tracer(Marked(MARKER, Plans(COLUMN))) as tracer:
        lakehouse.merge()
    assert lakehouse.rows(log.schema) == [{"id": 1, COLUMN: MARKER}]
    assert_drawn("Record → Delta row", tracer.functions())


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.opensearch
def test_a_changed_row_passes_the_files_that_the_page_draws(
    lakehouse: Lakehouse, indexes: Indexes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row that is embedded in another table's document, by the marked column."""
    log = written(lakehouse)
    lakehouse.merge()
    writer = {"field": "writer", "table": "public.author", "on": {COLUMN: "author"}}
    indexes.define(
        tables=[], documents=[{"name": "books", "table": "public.book", "embed": [writer]}]
    )
    section = {"lakehouse": lakehouse.settings.lakehouse}
    indexes.settings = indexes.settings.model_copy(update=section)
    indexes.merge()
    log.row("u", at(200), {COLUMN: "ann", "name": MARKER})
    log.reached(at(200))
    lakehouse.merge()
    executors = Executors(monkeypatch, MARKER, tmp_path)
    with Tracer(Marked(MARKER, Plans(COLUMN))) as tracer:
        indexes.merge()
    (hit,) = indexes.client.search(index=f"{indexes.prefix}-books")["hits"]["hits"]
    assert hit["_source"]["writer"] == {COLUMN: "ann", "name": MARKER}
    held = tracer.functions()
    for file, names in executors.functions().items():
        held.setdefault(file, set()).update(names)
    assert_drawn("Changed row → joined document", held)


def written(lakehouse: Lakehouse) -> HandLog:
    """A book and its author, as a snapshot has read them; returns the authors' log."""
    books = lakehouse.log(column("id", "int4", 1), column("author", "text"), table="book")
    columns = column(COLUMN, "text", 1), column("name", "text")
    authors = books.beside(table_schema(lakehouse.prefix, "author", *columns))
    books.row("r", at(100, 0), {"id": 1, "author": "ann"})
    authors.row("r", at(100, 0), {COLUMN: "ann", "name": "before"})
    books.table(100)
    authors.table(100)
    authors.reached(at(100, 0))
    return authors
