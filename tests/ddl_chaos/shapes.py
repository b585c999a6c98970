"""The source's tables, and statements that change their rows.

Each has a column ``id``, which is its key or a part of it, and a column ``n``.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

PUBLICATION: Final = "ddl_chaos"
DAEMON: Final = "ddl_daemon"
"""The daemon's role; it may read what is made."""
ROWS: Final = 120
IDS: Final = 200
PARTITION_IDS: Final = 100
"""So many ids a partition has room for."""
PARTITIONS: Final = 4

SCHEMA: Final = f"""
    CREATE TYPE mood AS ENUM ('sad', 'fine', 'happy');
    CREATE TYPE label AS ENUM ('a', 'b', 'c');
    CREATE DOMAIN felt AS mood;
    CREATE TYPE place AS (street text, number int);
    CREATE SCHEMA bulk;
    CREATE SCHEMA apart;
    CREATE TABLE plain (id int PRIMARY KEY, n int, note text);
    CREATE TABLE wide (id int PRIMARY KEY, n int, body text);
    ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE narrow (id int PRIMARY KEY, n int, v bigint);
    CREATE TABLE noted (id int PRIMARY KEY, n int, note text);
    ALTER TABLE noted REPLICA IDENTITY FULL;
    CREATE TABLE feelings (id int PRIMARY KEY, n int, mood mood, felt felt, moods mood[]);
    CREATE TABLE places (id int PRIMARY KEY, n int, spot place);
    CREATE TABLE labelled (id int, n int, kind label, PRIMARY KEY (kind, id));
    CREATE TABLE users (id int PRIMARY KEY, n int, note text);
    CREATE TABLE archive (id int PRIMARY KEY, n int, note text);
    CREATE TABLE bulk.loaded (id int PRIMARY KEY, n int, note text);
    CREATE TABLE computed (id int PRIMARY KEY, n int, note text,
        product bigint GENERATED ALWAYS AS (n * 2::bigint) STORED);
    CREATE TABLE events (id int PRIMARY KEY, n int, note text) PARTITION BY RANGE (id);
    CREATE TABLE events_0 PARTITION OF events FOR VALUES FROM (0) TO ({PARTITION_IDS});
    CREATE TABLE events_1 PARTITION OF events
        FOR VALUES FROM ({PARTITION_IDS}) TO ({2 * PARTITION_IDS});
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns beside ``id`` and ``n``, with expressions over a number each."""

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    key: str = "id"
    ids: int = IDS
    fixed: bool = False
    """Whether its columns stay as they are: partitions, or a generated column, have them, too."""


_NOTE: Final = {"note": "'note ' || {v}"}
_MOOD: Final = "(enum_range(NULL::mood))[1 + {v} % 3]"
_KIND: Final = "(enum_range(NULL::label))[1 + {v} % 3]"
SHAPES: Final[Mapping[str, Shape]] = {
    "plain": Shape(_NOTE),
    "wide": Shape({"body": "repeat(md5(({v})::text), 100)"}),
    "narrow": Shape({"v": "{v}"}),
    "noted": Shape(_NOTE),
    "feelings": Shape({"mood": _MOOD, "felt": _MOOD, "moods": f"ARRAY[{_MOOD}, NULL]"}),
    "places": Shape(
        {"spot": "jsonb_populate_record(NULL::place, jsonb_build_object('number', {v}))"}
    ),
    "labelled": Shape({"kind": _KIND}, key="kind, id"),
    "users": Shape(_NOTE),
    "archive": Shape(_NOTE),
    "bulk.loaded": Shape(_NOTE),
    "computed": Shape(_NOTE, fixed=True),
    "events": Shape(_NOTE, ids=PARTITIONS * PARTITION_IDS, fixed=True),
}
LISTED: Final = tuple(name for name in SHAPES if not name.startswith("bulk."))
"""What the publication names; it has all of the schema ``bulk`` beside them."""
HISTORIES: Final = ("feelings", "labelled", "users", "bulk.loaded", "events")
ARCHIVES: Final = ("events", *(name for name in SHAPES if name not in HISTORIES))
"""Each table has a history or an archive: a merge would take too long for both."""


def filled(table: str, name: str = "", first: int = 1, rows: int = ROWS) -> str:
    """Insert rows into a table, or into another one that is like it."""
    shape = SHAPES[table]
    columns = ", ".join(["id", "n", *shape.values])
    values = ", ".join(text.format(v="i") for text in shape.values.values())
    return (
        f"INSERT INTO {name or table} ({columns}) SELECT i, i, {values}"
        f" FROM generate_series({first}, {first + rows - 1}) i ON CONFLICT DO NOTHING"
    )


class Changes:
    """A seed → statements that change rows."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def statement(self, table: str, name: str = "") -> str:
        """One of any kind, for a table, or for one that is like it and has another name."""
        choose = self._chance.choice
        return choose([self.put, self.update, self.update, self.rewrite, self.move, self.delete])(
            table, name or table
        )

    def all_kinds(self, table: str, name: str = "") -> list[str]:
        """Rows come, change and go."""
        called = name or table
        kinds = (self.delete, self.update, self.put, self.rewrite, self.move, self.delete)
        return [kind(table, called) for kind in kinds]

    def put(self, table: str, name: str) -> str:
        """Insert a row, or have it changed where it is there."""
        shape, key = SHAPES[table], self._id(table)
        columns = ", ".join(["id", "n", *shape.values])
        values = ", ".join(text.format(v=self._value()) for text in shape.values.values())
        return (
            f"INSERT INTO {name} ({columns}) VALUES ({key}, {self._value()}, {values})"
            f" ON CONFLICT ({shape.key}) DO UPDATE SET n = excluded.n"
        )

    def update(self, table: str, name: str) -> str:
        """Change ``n`` of a few rows; what is stored out of line isn't in the WAL then."""
        key = self._id(table)
        return f"UPDATE {name} SET n = {self._value()} WHERE id BETWEEN {key} AND {key + 3}"

    def rewrite(self, table: str, name: str) -> str:
        """Change another column of a row; it may be of the key."""
        column, text = self._chance.choice([*SHAPES[table].values.items()])
        value = text.format(v=self._value())
        return f"UPDATE {name} SET {column} = {value} WHERE id = {self._id(table)}"

    def move(self, table: str, name: str) -> str:
        """Let a row have another id."""
        one, other = self._id(table), self._id(table)
        free = f"NOT EXISTS (SELECT FROM {name} WHERE id = {other})"
        return f"UPDATE {name} SET id = {other} WHERE id = {one} AND {free}"

    def delete(self, table: str, name: str) -> str:
        """Delete some rows, so that the table stays as large as it is."""
        key = self._id(table)
        return f"DELETE FROM {name} WHERE id BETWEEN {key} AND {key + 1}"

    def _id(self, table: str) -> int:
        return self._chance.randrange(SHAPES[table].ids)

    def _value(self) -> int:
        return self._chance.randrange(1_000_000)
