"""The programs in examples/, run as a user runs them."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deploy.local.processes import environment_with
from tests.fixtures.pipeline import RunningPipeline

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
ROOT = Path(__file__).parents[4]


@contextmanager
def running(name: str, output: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an example; SIGTERM ends it, in order."""
    environment = environment_with({"PYTHONPATH": str(ROOT)})
    with output.open("wb") as file:
        program = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / name), *words],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            yield program
            program.terminate()
            assert program.wait(30) == 0, output.read_text()
        finally:
            program.kill()
            program.wait()


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, "it doesn't come"
        time.sleep(0.05)


def test_an_audit_trail_and_a_monitor_of_silent_tables(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], tmp_path: Path
) -> None:
    with psycopg.connect(make_conninfo(**database), autocommit=True) as source:
        source.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        source.execute("CREATE TABLE other (id int PRIMARY KEY)")
        source.execute("INSERT INTO orders VALUES (1, 'new')")
        made = pipeline()
        made.catch_up()
        config, said = str(made.config), tmp_path / "silent"
        tables = "public.orders", "public.other"
        with (
            running("audit_trail.py", tmp_path / "audit", config, str(tmp_path / "audit.db")),
            running("silent_tables.py", said, config, "2", *tables),
        ):
            wait(lambda: len(said.read_text().splitlines()) == 2)
            source.execute("UPDATE orders SET status = 'paid'")
            source.execute("DELETE FROM orders")
            wait(lambda: "public.orders: changes again" in said.read_text())
            wait(lambda: len(trail(tmp_path / "audit.db")) == 3)
        assert sorted(said.read_text().splitlines()[:2]) == [
            "public.orders: no change for 2 s",
            "public.other: no change for 2 s",
        ]
        operations = [(op, json.loads(after)) for op, after in trail(tmp_path / "audit.db")]
        assert operations == [
            ("r", {"id": 1, "status": "new"}),
            ("u", {"id": 1, "status": "paid"}),
            ("d", None),
        ]


def trail(file: Path) -> list[Any]:
    """What is in the trail, if it has begun."""
    if not file.exists():
        return []
    with sqlite3.connect(file) as connection:
        try:
            rows = connection.execute('SELECT operation, after FROM audit ORDER BY "offset"')
            return rows.fetchall()
        except sqlite3.OperationalError:
            return []
