"""A seed → sessions that change all tables at random, until they are stopped.

They survive every fault of the server. They don't record which transactions were committed: a
session that loses its connection in COMMIT can't know.
"""

import contextlib
import random
import threading
from collections import Counter
from typing import Final

import psycopg

_KEYS: Final = 400
_DEPTH_MAX: Final = 3
_LARGE_ROWS: Final = (500, 2_500)
_PAUSE_S: Final = 0.02
_RETRY_S: Final = 0.2
_LOCK_WAIT_S: Final = 2
_TEXTS: Final = ("", "plain", "it''s", 'a "b" \\\\ c', "žluť\N{SNOWMAN}", "a\nb")
_KINDS: Final = {
    "small": 130,
    "savepoints": 30,
    "medium": 10,
    "rollback": 10,
    "prepared": 12,
    "large": 1,
    "truncate": 2,
    "schema": 3,
}


class Session(threading.Thread):
    """One connection's life."""

    def __init__(self, conninfo: str, seed: int, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"session {number}")
        self.tally: Counter[str] = Counter()
        self._conninfo = conninfo
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311 (repeatable)
        self._number = number
        self._stop_event = stop
        self._fresh = number * 10_000_000
        self._columns: list[tuple[str, str]] = []
        self._connection: psycopg.Connection

    def run(self) -> None:
        """Make transactions until told to stop; nothing prepared is left."""
        while not self._stop_event.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as made:
                    self._connection = made
                    self._settle()
                    while not self._stop_event.wait(self._random.expovariate(1 / _PAUSE_S)):
                        self._transaction()
            except psycopg.Error:
                self.tally["connections lost"] += 1
                self._stop_event.wait(_RETRY_S)
        with contextlib.suppress(psycopg.Error):
            self.settle_last()

    def settle_last(self) -> None:
        """Finish what was prepared, by a connection of its own."""
        with psycopg.connect(self._conninfo, autocommit=True) as self._connection:
            self._settle()

    def _settle(self) -> None:
        self._do(f"SET lock_timeout = '{_LOCK_WAIT_S}s'")
        rows = self._connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
        for (gid,) in rows:
            if gid.startswith(f"s{self._number}-"):
                self._do(f"{self._random.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")

    def _transaction(self) -> None:
        kind = self._random.choices(list(_KINDS), list(_KINDS.values()))[0]
        try:
            self._do("BEGIN")
            getattr(self, f"_{kind}")()
            self.tally[kind] += 1
        except psycopg.Error:
            if self._connection.broken or self._connection.closed:
                raise
            self.tally["refused"] += 1  # a deadlock, a lock that took too long, a key that exists
            self._do("ROLLBACK")

    def _small(self) -> None:
        self._changes(self._random.randint(1, 5))
        self._do("COMMIT")

    def _medium(self) -> None:
        self._changes(self._random.randint(30, 80))
        self._do("COMMIT")

    def _rollback(self) -> None:
        self._changes(self._random.randint(1, 20))
        self._do("ROLLBACK")

    def _savepoints(self) -> None:
        self._nested(0)
        self._do("COMMIT")

    def _nested(self, depth: int) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._changes(self._random.randint(0, 4))
            if depth < _DEPTH_MAX:
                self._do(f"SAVEPOINT s{depth}")
                self._nested(depth + 1)
                back = self._random.random() < 0.4
                self._do(f"{'ROLLBACK TO' if back else 'RELEASE'} SAVEPOINT s{depth}")

    def _prepared(self) -> None:
        self._changes(self._random.randint(1, 10))
        gid = f"s{self._number}-{self._next()}"
        self._do(f"PREPARE TRANSACTION '{gid}'")
        self._stop_event.wait(self._random.uniform(0, 0.5))
        self._do(f"{self._random.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{gid}'")

    def _large(self) -> None:
        rows = self._random.randint(*_LARGE_ROWS)
        self._do(
            f"INSERT INTO bulk SELECT {self._next()}, n, repeat(md5(n::text), 2)"
            f" FROM generate_series(1, {rows}) n"
        )
        self._do("SAVEPOINT large")
        self._do(f"DELETE FROM bulk WHERE n % {self._random.randint(2, 9)} = 0")
        back = self._random.random() < 0.4
        self._do(f"{'ROLLBACK TO' if back else 'RELEASE'} SAVEPOINT large")
        self._changes(3)
        self._do("DELETE FROM bulk WHERE batch < (SELECT max(batch) FROM bulk)")
        self._do("ROLLBACK" if self._random.random() < 0.15 else "COMMIT")

    def _truncate(self) -> None:
        self._changes(2)
        self._do(f"TRUNCATE {self._random.choice(['loose', 'pair', 'item', 'loose, bulk'])}")
        self._changes(2)
        self._do("COMMIT")

    def _schema(self) -> None:
        """A column's life: added as int, widened, dropped."""
        self._changes(1)
        added: tuple[str, str] | None = None
        if len(self._columns) < 3:
            added = self._random.choice(["item", "account", "loose", "pair"]), f"x{self._next()}"
            self._do(f"ALTER TABLE {added[0]} ADD COLUMN {added[1]} int")
            self._do(f"UPDATE {added[0]} SET {added[1]} = {self._random.randint(1, 9)}")
        else:
            table, column = self._columns[0]
            if self._random.random() < 0.5:
                self._do(f"ALTER TABLE {table} ALTER {column} TYPE bigint")
            else:
                self._columns.pop(0)
                self._do(f"ALTER TABLE {table} DROP COLUMN IF EXISTS {column}")
        self._changes(1)
        self._do("COMMIT")
        if added is not None:
            self._columns.append(added)

    def _changes(self, count: int) -> None:
        for _ in range(count):
            table = self._random.choice([self._item, self._item, self._account, self._loose])
            (self._random.choice([table, self._pair]))()

    def _item(self) -> None:
        key, other = self._key(), self._key()
        self._do(
            self._random.choice(
                [
                    (
                        f"INSERT INTO item VALUES ({self._new_item(key)}) ON CONFLICT (id)"
                        " DO UPDATE SET amount = item.amount + 1, doc = excluded.doc"
                    ),
                    f"UPDATE item SET name = '{self._text()}' WHERE id = {key}",
                    (
                        f"UPDATE item SET amount = {self._amount()}, at = clock_timestamp()"
                        f" WHERE id BETWEEN {key} AND {key + 3}"
                    ),
                    f"UPDATE item SET doc = {self._json()}, ok = NULL WHERE id = {key}",
                    f"UPDATE item SET big = {self._big()} WHERE id = {key}",
                    f"UPDATE item SET id = {self._next()} WHERE id = {key}",
                    (
                        f"UPDATE item SET id = {other} WHERE id = {key}"
                        f" AND NOT EXISTS (SELECT 1 FROM item WHERE id = {other})"
                    ),
                    f"DELETE FROM item WHERE id = {key}",
                    f"DELETE FROM item WHERE id = (SELECT max(id) FROM item WHERE id > {_KEYS})",
                ]
            )
        )

    def _new_item(self, key: int) -> str:
        return (
            f"{key}, '{self._text()}', {self._amount()}, {self._json()}, {self._big()},"
            f" clock_timestamp(), '{{a{key},b}}', {key % 2 == 0}"
        )

    def _account(self) -> None:
        key = self._key()
        self._do(
            self._random.choice(
                [
                    (
                        f"INSERT INTO account VALUES ({key}, '{self._text()[:40]}', {key}.25,"
                        f" {self._big()}, {self._random.random()}) ON CONFLICT DO NOTHING"
                    ),
                    f"UPDATE account SET balance = balance + 1.5 WHERE id = {key}",
                    f"UPDATE account SET big = {self._big()} WHERE id = {key}",
                    f"UPDATE account SET ratio = ratio * 1.1 WHERE id BETWEEN {key} AND {key + 5}",
                    f"UPDATE account SET id = {self._next()} WHERE id = {key}",
                    f"DELETE FROM account WHERE id = {key} OR id = (SELECT max(id) FROM account)",
                ]
            )
        )

    def _loose(self) -> None:
        key = self._random.randint(1, 60)
        self._do(
            self._random.choice(
                [
                    f"INSERT INTO loose VALUES ({key}, '{self._text()}', {self._random.random()})",
                    f"INSERT INTO loose VALUES ({key}, 'twice', 0), ({key}, 'twice', 0)",
                    f"UPDATE loose SET f = f + 1 WHERE v = {key}",
                    f"DELETE FROM loose WHERE v = {key}",
                ]
            )
        )

    def _pair(self) -> None:
        key = self._random.randint(1, 100)
        self._do(
            self._random.choice(
                [
                    (
                        f"INSERT INTO pair VALUES ({key}, 'b{key}', {key}, {self._json()})"
                        " ON CONFLICT DO NOTHING"
                    ),
                    f"UPDATE pair SET v = v + 1 WHERE a = {key}",
                    f"UPDATE pair SET b = 'c{self._next()}' WHERE a = {key}",
                    f"DELETE FROM pair WHERE a = {key}",
                ]
            )
        )

    def _do(self, statement: str) -> None:
        self._connection.execute(statement.encode(), prepare=False)

    def _key(self) -> int:
        return self._random.randint(1, _KEYS)

    def _next(self) -> int:
        self._fresh += 1
        return self._fresh

    def _text(self) -> str:
        return self._random.choice(_TEXTS)

    def _amount(self) -> str:
        numbers = ["0", "1.10", "-12345678901234567890.123456789", "'NaN'", "1e-20"]
        return self._random.choice(numbers)

    def _json(self) -> str:
        return f"jsonb_build_object('k', {self._random.randint(1, 9)}, 'ü', NULL)"

    def _big(self) -> str:
        """A value that is stored out of line, so that updates of other columns lack it."""
        return f"repeat('{self._random.getrandbits(64):016x}', {self._random.randint(160, 400)})"
