"""A seed → tables of several kinds, and sessions that change them at random until stopped.

Every row has a version ``n`` from one sequence, so newer rows than the log's are known.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tests.fixtures.source import Conninfo, run

Connection = psycopg.Connection[tuple[Any, ...]]
NEXT: Final = "nextval('version')"
PUBLICATION: Final = "under_fire"
_PAUSE_S: Final = 0.01
_FRESH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Table:
    """One that is captured. ``key``: the key's columns with an expression over a number each."""

    name: str
    key: tuple[tuple[str, str, str], ...]
    """Column, type, and expression with {i}."""
    rows: int
    more: str = "v text"
    value: str = "'v' || {i}"
    joins_late: bool = False

    def of(self, number: int | str) -> str:
        """The key's values that belong to a number."""
        return ", ".join(text.format(i=number) for _, _, text in self.key)

    def where(self, number: int) -> str:
        """A condition that the row with this number meets."""
        return " AND ".join(f"{name} = {text.format(i=number)}" for name, _, text in self.key)

    @property
    def columns(self) -> str:
        """The key's columns."""
        return ", ".join(name for name, _, _ in self.key)

    @property
    def create(self) -> str:
        """Makes it, with its rows."""
        key = ", ".join(f"{name} {kind}" for name, kind, _ in self.key)
        end = "PARTITION BY RANGE (id)" if self.name == "parted" else ""
        return f"""
            CREATE TABLE {self.name} (n bigint, {key}, {self.more},
                CONSTRAINT {self.name}_key PRIMARY KEY ({self.columns})) {end};
            {_PARTITIONS if end else f"ALTER TABLE {self.name} SET (autovacuum_enabled = off);"}
            {self.insert(f"generate_series(1, {self.rows}) i")};
        """

    def insert(self, source: str) -> str:
        """Inserts a row for each number ``i`` of a source of rows."""
        names = self.more.split()[0]
        rows = f"SELECT {NEXT}, {self.of('i')}, {self.value.format(i='i')} FROM {source}"
        return f"INSERT INTO {self.name} (n, {self.columns}, {names}) {rows}"


_PARTITIONS: Final = """
    CREATE TABLE parted_a PARTITION OF parted FOR VALUES FROM (0) TO (150);
    CREATE TABLE parted_b PARTITION OF parted FOR VALUES FROM (150) TO (300);
    CREATE TABLE parted_rest PARTITION OF parted FOR VALUES FROM (300) TO (MAXVALUE);
"""
_INT: Final = (("id", "int", "{i}"),)
TABLES: Final = (
    Table("item", _INT, 600, value="repeat('v', 100)"),
    Table("large", _INT, 150, "v text STORAGE EXTERNAL", "repeat(md5({i}::text), 290)"),
    Table("named", (("id", "text", "'k \"ž\" ' || {i}"),), 400),
    Table("pair", (("b", "text", "'b' || {i}"), ("a", "int", "{i} / 3")), 400),
    Table("thing", (("id", "uuid", "md5({i}::text)::uuid"),), 400),
    Table("parted", _INT, 400),
    Table("late", _INT, 300, joins_late=True),
)
_KINDS: Final = {
    "small": 100,
    "many": 15,
    "rollback": 10,
    "savepoint": 20,
    "held": 12,
    "prepared": 6,
    "back_and_forth": 20,
    "truncate": 1,
    "alter": 2,
    "rewrite": 2,
    "vacuum": 3,
    "partition": 2,
}


def light(connection: Connection) -> None:
    """Make the tables, and the publication that has all but those that join late.

    Transactions of some rows are streamed before they end.
    """
    database = connection.info.dbname
    connection.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'".encode())
    connection.execute("CREATE SEQUENCE version")
    for table in TABLES:
        connection.execute(table.create.encode())
    connection.execute("ALTER TABLE named REPLICA IDENTITY FULL")
    names = ", ".join(table.name for table in TABLES if not table.joins_late)
    connection.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}"
        " WITH (publish_via_partition_root = true)".encode()
    )


def join(database: Conninfo) -> None:
    """Let the late ones join."""
    names = ", ".join(table.name for table in TABLES if table.joins_late)
    run(database, f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {names}")


class Fire(threading.Thread):
    """One session's changes."""

    def __init__(self, conninfo: str, seed: int, number: int) -> None:
        super().__init__(name=f"fire {number}", daemon=True)
        self.tally: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.ddl = threading.Event()
        """Whether it changes more than rows, too."""
        self.ddl.set()
        self._conninfo = conninfo
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311 (repeatable)
        self._fresh = _FRESH * number
        self._out = threading.Event()
        self._added: list[tuple[str, str]] = []

    def put_out(self) -> None:
        """Stop, and raise what has gone wrong."""
        self._out.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Change until told to stop."""
        try:
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                connection.execute("SET lock_timeout = '1s'")
                while not self._out.wait(self._random.expovariate(1 / _PAUSE_S)):
                    self._one(connection)
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            self.error = error

    def _one(self, connection: Connection) -> None:
        kind = self._random.choices(list(_KINDS), list(_KINDS.values()))[0]
        make: Callable[[Connection], None] = getattr(self, f"_{kind}")
        if kind in {"truncate", "alter", "rewrite", "partition"} and not self.ddl.is_set():
            return
        try:
            make(connection)
            self.tally[kind] += 1
        except psycopg.errors.Error as error:  # a key exists, a lock took too long, a deadlock
            self.tally[type(error).__name__] += 1
            connection.rollback()

    def _small(self, connection: Connection) -> None:
        with connection.transaction():
            self._change(connection, self._random.choice([1, 1, 3, 8]))

    def _many(self, connection: Connection) -> None:
        where = f"n % 7 = {self._random.randint(0, 6)}"
        self._do(connection, f"UPDATE {self._table().name} SET n = {NEXT} WHERE {where}")

    def _values(self, connection: Connection) -> None:
        """More than is kept in memory."""
        value, part = f"repeat(md5('{self._next()}'), 290)", self._random.randint(0, 6)
        self._do(connection, f"UPDATE large SET n = {NEXT}, v = {value} WHERE n % 7 = {part}")

    def _rollback(self, connection: Connection) -> None:
        with connection.transaction(force_rollback=True):
            self._change(connection, 4)

    def _savepoint(self, connection: Connection) -> None:
        with connection.transaction():
            self._change(connection, 1)
            with connection.transaction(force_rollback=self._random.random() < 0.6):
                self._change(connection, 3)
            self._change(connection, 1)

    def _held(self, connection: Connection) -> None:
        with connection.transaction():
            self._change(connection, 3)
            if self._random.random() < 0.4:
                self._values(connection)
            self._out.wait(self._random.uniform(0.05, 0.8))
            self._change(connection, 1)

    def _prepared(self, connection: Connection) -> None:
        name = f"{connection.info.dbname} {self._next()}"
        self._do(connection, "BEGIN")
        self._change(connection, 3)
        self._do(connection, f"PREPARE TRANSACTION '{name}'")
        self._out.wait(self._random.uniform(0, 0.4))
        how = self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        self._do(connection, f"{how} PREPARED '{name}'")

    def _back_and_forth(self, connection: Connection) -> None:
        """A row leaves its key and comes back, or another one does."""
        table, one = self._table(), self._number()
        away = self._next()
        with connection.transaction():
            self._do(connection, self._move(table, one, away))
            if self._random.random() < 0.5:
                self._do(connection, self._move(table, self._number(), one))
            else:
                self._do(connection, self._move(table, away, one))

    def _truncate(self, connection: Connection) -> None:
        name = self._table().name
        with connection.transaction():
            self._change(connection, 1)
            self._do(connection, f"TRUNCATE {name}")
            self._change(connection, 2)

    def _alter(self, connection: Connection) -> None:
        """A column is added, with values for some; later it gets wider, or is dropped."""
        with connection.transaction():
            if len(self._added) < 2 or self._random.random() < 0.5:
                added = self._table().name, f"x{self._next()}"
                self._do(connection, f"ALTER TABLE {added[0]} ADD COLUMN {added[1]} int")
                where = f"n % 7 = {self._random.randint(0, 6)}"
                values = f"n = {NEXT}, {added[1]} = 1"
                self._do(connection, f"UPDATE {added[0]} SET {values} WHERE {where}")
                self._added.append(added)
            else:
                name, column = self._added.pop(0)
                if self._random.random() < 0.3:
                    self._do(connection, f"ALTER TABLE {name} ALTER {column} TYPE bigint")
                else:
                    self._do(connection, f"ALTER TABLE {name} DROP COLUMN {column}")
                self._change(connection, 1)

    def _rewrite(self, connection: Connection) -> None:
        name = self._random.choice([one.name for one in TABLES if one.name != "parted"])
        self._do(
            connection,
            self._random.choice([f"VACUUM FULL {name}", f"CLUSTER {name} USING {name}_key"]),
        )

    def _vacuum(self, connection: Connection) -> None:
        self._do(connection, f"VACUUM {self._table().name}")

    def _partition(self, connection: Connection) -> None:
        """A partition leaves, or comes back: neither is published, so it takes a reset."""
        self._do(
            connection,
            self._random.choice(
                [
                    "ALTER TABLE parted DETACH PARTITION parted_b",
                    "ALTER TABLE parted ATTACH PARTITION parted_b FOR VALUES FROM (150) TO (300)",
                    f"UPDATE parted_b SET n = {NEXT} WHERE id = {self._number()}",
                ]
            ),
        )

    def _change(self, connection: Connection, count: int) -> None:
        for _ in range(count):
            table, one = self._table(), self._number()
            new, value = f"n = {NEXT}", table.value.format(i=self._next())
            self._do(
                connection,
                self._random.choice(
                    [
                        f"UPDATE {table.name} SET {new} WHERE {table.where(one)}",
                        f"UPDATE {table.name} SET {new} WHERE {table.where(one)}",
                        f"UPDATE {table.name} SET {new}, v = {value} WHERE {table.where(one)}",
                        self._move(table, one, self._next()),
                        f"DELETE FROM {table.name} WHERE {table.where(one)}",
                        self._put(table, one),
                        table.insert(f"generate_series({self._next()}, {self._fresh}) i"),
                    ]
                ),
            )

    def _put(self, table: Table, one: int) -> str:
        put = table.insert(f"generate_series({one}, {one}) i")
        return f"{put} ON CONFLICT ({table.columns}) DO UPDATE SET n = {NEXT}"

    def _move(self, table: Table, one: int, other: int) -> str:
        key = f"({table.columns}) = ROW ({table.of(other)})"
        return f"UPDATE {table.name} SET n = {NEXT}, {key} WHERE {table.where(one)}"

    def _do(self, connection: Connection, statement: str) -> None:
        connection.execute(statement.encode())

    def _table(self) -> Table:
        return self._random.choice(TABLES)

    def _number(self) -> int:
        return self._random.randint(1, 400)

    def _next(self) -> int:
        self._fresh += 1
        return self._fresh
