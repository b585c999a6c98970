"""The source as a run changes it: DDL step by step, and rows all the time.

Each step of DDL notes the tables whose rows it may have changed, and when: a re-read of a table has
to have such a cause.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from tests.ddl_chaos.shapes import LISTED, PUBLICATION, SCHEMA, SHAPES, Changes, filled

_ATTEMPTS: Final = 20
_PAUSES_S: Final = (0.0, 0.0, 0.2, 0.8, 2.0)
_WRITER_PAUSE_S: Final = 0.08
_LATER: Final = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InternalError_,  # tuple concurrently updated
)


class Source:
    """The database, and what was done to each of its tables.

    ``during`` is called between two steps of one DDL.
    """

    def __init__(self, conninfo: str, seed: int, during: Callable[[], None]) -> None:
        self.chance = random.Random(f"ddl {seed}")  # noqa: S311 (repeatable)
        self.causes: dict[str, list[float]] = defaultdict(list)
        self.steps: dict[str, list[str]] = defaultdict(list)
        self.added: dict[str, list[str]] = defaultdict(list)
        self._changes = Changes(self.chance)
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._during = during
        self._last_number = 0

    def make(self) -> None:
        """Make the tables with their rows, and the publication."""
        tables = f"TABLE {', '.join(LISTED)}, TABLES IN SCHEMA bulk"
        options = "publish_via_partition_root, publish_generated_columns = stored"
        for statement in (
            SCHEMA,
            "CREATE TABLESPACE elsewhere LOCATION ''",
            *map(filled, SHAPES),
            f"CREATE PUBLICATION {PUBLICATION} FOR {tables} WITH ({options})",
            "SET lock_timeout = '3s'",
        ):
            self._connection.execute(statement.encode())

    def close(self) -> None:
        """Leave."""
        self._connection.close()

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """What a query says."""
        return self._connection.execute(query.encode()).fetchall()

    def number(self) -> int:
        """One that no name has had."""
        self._last_number += 1
        return self._last_number

    def ddl(self, statement: str, *touched: str) -> None:
        """Do it, sooner or later, and note whose rows may be others now."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._connection.execute(statement.encode())
                break
            except _LATER:
                if attempt == _ATTEMPTS:
                    raise
                time.sleep(0.1)
        for table in touched:
            self.causes[table].append(time.time())
            self.steps[table].append(statement)

    def changes(self, table: str, name: str = "") -> None:
        """Rows of a table come, change and go, under whatever name it has now."""
        for statement in self._changes.all_kinds(table, name):
            try:
                self._connection.execute(statement.encode())
            except (psycopg.IntegrityError, *_LATER):
                continue

    def pause(self) -> None:
        """Let the daemon see what is there now, or not, or let it die meanwhile."""
        self._during()
        time.sleep(self.chance.choice(_PAUSES_S))


class Writer(threading.Thread):
    """A session that changes rows of all tables until told to stop."""

    def __init__(self, conninfo: str, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.tally: Counter[str] = Counter()
        self._conninfo = conninfo
        self._chance = random.Random(f"dml {seed}")  # noqa: S311 (repeatable)
        self._changes = Changes(self._chance)
        self._out = threading.Event()
        self._idle = threading.Lock()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is open, and nothing begins, until the block ends."""
        with self._idle:
            yield

    def stop(self) -> None:
        """End for good."""
        self._out.set()
        self.join()

    def run(self) -> None:
        """Change rows."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '1s'")
            while not self._out.wait(self._chance.expovariate(1 / _WRITER_PAUSE_S)):
                with self._idle:
                    self._transact(connection)

    def _transact(self, connection: psycopg.Connection) -> None:
        is_vain = self._chance.random() < 0.1
        statements = [self._statement() for _ in range(self._chance.choice([1, 1, 2, 4]))]
        try:
            with connection.transaction(force_rollback=is_vain):
                for statement in statements:
                    connection.execute(statement.encode())
            self.tally["transactions"] += 1
            self.tally["statements"] += len(statements)
        except psycopg.Error:  # a table is away, a key exists, a lock took too long, a deadlock
            self.tally["refused"] += 1

    def _statement(self) -> str:
        table = self._chance.choice([*SHAPES])
        if self._chance.random() < 0.003:
            return f"TRUNCATE {table}; {filled(table)}"
        return self._changes.statement(table)
