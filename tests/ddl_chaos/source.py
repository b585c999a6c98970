"""The source of a run: DDL step by step, and changes of rows all the time.

Each step of DDL notes the tables whose rows it may have changed, and when. A re-read of a table
must have such a cause, and so must an unpublished TRUNCATE.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from tests.ddl_chaos.shapes import LISTED, PUBLICATION, SCHEMA, SHAPES, Changes, Shape, filled

_ATTEMPTS: Final = 20
PAUSES_S: Final = (0.0, 0.0, 0.2, 0.8, 2.0)
GENERATED_SINCE: Final = 18
"""The version since which values of generated columns are published."""
_SCHEMAS_SINCE: Final = 15
"""The version since which a publication can have all tables of a schema."""
_PUBLISHES_TRUNCATE: Final = (
    f"SELECT FROM pg_publication WHERE pubname = '{PUBLICATION}' AND pubtruncate"
)
_WRITER_PAUSE_S: Final = 0.08
_LATER: Final = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InternalError_,  # tuple concurrently updated
)


_UNIDENTIFIED: Final = (psycopg.errors.ObjectNotInPrerequisiteState,)
"""An UPDATE or a DELETE of a table that is published without a replica identity."""


class Source:
    """The database, and what was done to each of its tables.

    ``during`` is called between two steps of one DDL, and then one of ``pauses_s`` is made.
    ``version`` is PostgreSQL's major one.
    """

    def __init__(
        self,
        conninfo: str,
        seed: int,
        during: Callable[[], None],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.pauses_s = pauses_s
        self.chance = random.Random(f"ddl {seed}")  # noqa: S311 (repeatable)
        self.causes: dict[str, list[float]] = defaultdict(list)
        self.steps: dict[str, list[str]] = defaultdict(list)
        self.added: dict[str, list[str]] = defaultdict(list)
        self.guests: list[str] = []
        """Tables like ``users`` that have come meanwhile, in order ..."""
        self.listed: list[str] = []
        """... and those of them that the publication names."""
        self._changes = Changes(self.chance)
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self.version = self._connection.info.server_version // 10_000
        self._during = during
        self._last_number = 0

    def make(self) -> None:
        """Make the tables with their rows, and the publication."""
        for statement in (
            SCHEMA,
            "CREATE TABLESPACE elsewhere LOCATION ''",
            *map(filled, SHAPES),
            self.publication(),
            "SET lock_timeout = '3s'",
        ):
            self._connection.execute(statement.encode())

    def publication(self, *more: str) -> str:
        """What makes the publication, with more options."""
        generated = ["publish_generated_columns = stored"] * (self.version >= GENERATED_SINCE)
        options = ", ".join(["publish_via_partition_root", *generated, *more])
        return f"CREATE PUBLICATION {PUBLICATION} FOR {self.published()} WITH ({options})"

    def published(self, table: str = "", part: str = "", *, bulk: bool = True) -> str:
        """What the publication lists: of one table a ``part``; ``bulk``: that, too."""
        names = (*LISTED, *self.listed)
        tables = [f"{name}{part if name == table else ''}" for name in names]
        of_schema = "TABLES IN SCHEMA bulk" if self.version >= _SCHEMAS_SINCE else "bulk.loaded"
        return f"TABLE {', '.join([*tables, *([of_schema] if bulk else [])])}"

    def publishes_truncate(self) -> bool:
        """Whether a TRUNCATE is in the stream, but for one of a partition."""
        return bool(self.ask(_PUBLISHES_TRUNCATE))

    @property
    def shapes(self) -> dict[str, Shape]:
        """All tables that are compared."""
        return {**SHAPES, **dict.fromkeys(self.guests, SHAPES["users"])}

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
            self.note(table, statement)

    def note(self, table: str, statement: str) -> None:
        """Note that rows of a table may be others now, and no row event tells."""
        self.causes[table].append(time.time())
        self.steps[table].append(statement)

    def changes(self, table: str, name: str = "") -> None:
        """Rows of a table come, change and go, under whatever name it has now."""
        for statement in self._changes.all_kinds(table, name):
            try:
                self._connection.execute(statement.encode())
            except (psycopg.IntegrityError, *_UNIDENTIFIED, *_LATER):
                continue

    def pause(self) -> None:
        """Let the daemon see what is there now, or not, or let it die meanwhile."""
        self._during()
        time.sleep(self.chance.choice(self.pauses_s))


class Writer(threading.Thread):
    """A session that changes rows of all tables until told to stop.

    It calls ``note`` with a table and a TRUNCATE of it that may not have been published.
    """

    def __init__(self, conninfo: str, seed: int, note: Callable[[str, str], None]) -> None:
        super().__init__(name="writer", daemon=True)
        self.tally: Counter[str] = Counter()
        self._conninfo = conninfo
        self._note = note
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
                for _, statement in statements:
                    connection.execute(statement.encode())
            self.tally["transactions"] += 1
            self.tally["statements"] += len(statements)
        except psycopg.Error:  # a table is away, a key exists, a lock took too long, a deadlock
            self.tally["refused"] += 1
            return
        truncated = [table for table, text in statements if text.startswith("TRUNCATE")]
        if truncated and not connection.execute(_PUBLISHES_TRUNCATE).fetchone():
            for table in truncated:
                self._note(table, "TRUNCATE, unpublished")

    def _statement(self) -> tuple[str, str]:
        """A table, and a change of its rows."""
        table = self._chance.choice([*SHAPES])
        if self._chance.random() < 0.003:
            return table, f"TRUNCATE {table}; {filled(table)}"
        return table, self._changes.statement(table)
