"""Faults of the search server, and killed runs → indexes equal the source in the end.

Nothing is lost, no deleted document returns, and no document shows a mixture: `make proof`.
"""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from deploy.local.opensearch import OpenSearch
from tests.fixtures.front import answering, handed_on
from tests.fixtures.library import BOOKS, Library, chosen
from tests.fixtures.pipeline import RunningPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.proof,
]
SEED: Final = 5
KILLS: Final = 2
AUTHORS: Final = "SELECT id::text, jsonb_strip_nulls(to_jsonb(a))::text FROM author a"


class Way:
    """A way to the server that may be too busy, and that counts what came through it."""

    def __init__(self, port: int) -> None:
        self.busy = 0.0
        self.bulks = 0
        self.refused = 0
        self.on_bulk: Callable[[], None] = lambda: None
        self._chance = random.Random(SEED)  # noqa: S311 (repeatable is what it has to be)
        self._port = port
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), answering(self.ask))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ask(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """The server's answer, or that it is busy."""
        if request.path.partition("?")[0].endswith("_bulk"):
            self.bulks += 1
            self.on_bulk()
        # What a run asks first it asks once: who isn't there then is the next run's matter.
        if request.path != "/" and self._chance.random() < self.busy:
            self.refused += 1
            return 429, b'{"error": {"type": "rejected_execution_exception", "reason": "full"}}'
        try:
            return handed_on(self._port, request, body, {"Content-Type": "application/json"})
        except (OSError, http.client.HTTPException):
            return 503, b'{"error": {"type": "away", "reason": "nobody answers"}}'


@pytest.fixture
def node(server_folder: Path) -> Iterator[OpenSearch]:
    node = OpenSearch(server_folder, release="3")
    try:
        yield node.start()
    finally:
        node.stop()


@pytest.fixture
def way(node: OpenSearch) -> Iterator[Way]:
    way = Way(node.port)
    yield way
    way.server.shutdown()
    way.server.server_close()


@pytest.fixture
def library(
    tmp_path: Path,
    spark: "SparkSession",
    database: dict[str, str],
    kafka: Kafka,
    topic_prefix: str,
    way: Way,
) -> Iterator[Library]:
    search = {"documents": [BOOKS], "tables": ["public.author"], "bulk.bytes": 65_536}
    made = RunningPipeline(
        tmp_path,
        database,
        kafka.client_options(),
        prefix=topic_prefix,
        search_url=way.url,
        sections={"search": search},
    )
    made.daemons = []
    yield Library(made, spark, database, tables=["public.author"])
    for daemon in made.daemons:
        daemon.kill()


def test_indexes_are_the_source_after_faults_of_every_kind(
    library: Library, node: OpenSearch, way: Way
) -> None:
    choose = random.Random(SEED)  # noqa: S311 (repeatable is what it has to be)

    def changed() -> None:
        library.live(chosen(choose, 25))
        library.source.execute("UPDATE country SET name = name || '?'")  # most of the documents
        library.merge()

    library.merge()
    assert library.index().exit_code == ExitCode.OK, library.said
    is_the_source(library)

    changed()
    way.busy = 0.4
    dies, bulks = threading.Thread(target=crash, args=[node]), way.bulks
    way.on_bulk = lambda: dies.start() if way.bulks == bulks + 2 else None
    assert library.index().exit_code == ExitCode.OK
    dies.join()  # it was started: a run is never done without a second bulk
    way.on_bulk, way.busy = lambda: None, 0.0
    assert way.refused > 3
    is_the_source(library)

    changed()
    block(library, is_on=True)
    failed = library.index()
    assert {table.name for table in failed.tables if table.error} == {"books", "public.author"}
    assert all("read-only" in str(table.error) for table in failed.tables)
    block(library, is_on=False)
    assert library.index().exit_code == ExitCode.OK
    is_the_source(library)

    for _ in range(KILLS):
        changed()
        kill_in_mid_bulk(library, way)
    library.source.execute("DELETE FROM review WHERE book % 3 = 0; DELETE FROM book WHERE id = 7")
    library.merge()
    assert library.index().exit_code == ExitCode.OK, json.dumps(library.said)
    is_the_source(library)


def crash(node: OpenSearch) -> None:
    node.kill()
    time.sleep(1)
    node.start()


def is_the_source(library: Library) -> None:
    assert library.documents() == library.expected()
    assert library.documents("public.author") == library.expected(AUTHORS)


def block(library: Library, *, is_on: bool) -> None:
    """What a server does whose disk is nearly full."""
    body = {"index.blocks.read_only_allow_delete": True if is_on else None}
    for name in ("books", "public.author"):
        alias = f"{library.search.index_prefix}{name}"
        library.client.indices.put_settings(index=alias, body=body)


def kill_in_mid_bulk(library: Library, way: Way) -> None:
    """Kill a run, as cron starts it, with its JVM and its workers, amid its documents."""
    first = way.bulks
    seen = threading.Event()
    way.on_bulk = lambda: seen.set() if way.bulks >= first + 2 else None
    merge = library.made.start_merge("search")
    assert seen.wait(120), merge.command.log_end()
    merge.kill()
    way.on_bulk = lambda: None
