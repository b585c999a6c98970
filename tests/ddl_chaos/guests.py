"""Kinds of DDL that cause trouble for one table: the daemon sets it aside, the others continue.

Some new tables can't be captured, and are corrected as docs/reference/errors.md says. So they stay
for a while, as guests that are compared like the others. Each kind leaves its tables whole.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.ddl_chaos.shapes import DAEMON, PUBLICATION, filled
from tests.ddl_chaos.source import Source

_GUESTS_MAX: Final = 3
_SMALL: Final = ("plain", "narrow", "users", "labelled", "bulk.loaded")
"""No large values: those aren't read again for an update while the daemon may not SELECT."""
_IDENTIFIED: Final = ("plain", "narrow", "archive")


def table_created(source: Source) -> None:
    name = f"bulk.guest_{source.number()}"
    source.ddl(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, note text)")
    source.pause()
    _fill(source, name)


def table_created_without_key(source: Source) -> None:
    name = f"bulk.guest_{source.number()}"
    source.ddl(f"CREATE TABLE {name} AS SELECT id, n, note FROM users")
    source.pause()
    source.ddl(f"INSERT INTO {name} VALUES ({_far(source)}, 1, 'behind')")
    source.pause()
    source.ddl(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    _fill(source, name)


def names_of_one_topic(source: Source) -> None:
    number = source.number()
    name, alike = f"bulk.guest_{number}", f'bulk."guest {number}"'
    for each in (name, alike):
        source.ddl(f"CREATE TABLE {each} (id int PRIMARY KEY, n int, note text)")
        source.ddl(filled("users", each, source.chance.randint(1, 60), 30))
        source.pause()
        source.changes("users", each)
    _fill(source, name)
    source.ddl(f"ALTER TABLE {alike} RENAME TO guest_{number}_other")
    _fill(source, f"bulk.guest_{number}_other")


def schema_with_a_dot(source: Source) -> None:
    number = source.number()
    source.ddl(f'CREATE SCHEMA "dot.{number}"')
    source.ddl(f'CREATE TABLE "dot.{number}".guest (id int PRIMARY KEY, n int, note text)')
    source.ddl(f'ALTER PUBLICATION {PUBLICATION} ADD TABLE "dot.{number}".guest')
    source.ddl(filled("users", f'"dot.{number}".guest', source.chance.randint(1, 60), 30))
    source.pause()
    source.changes("users", f'"dot.{number}".guest')
    source.pause()
    source.ddl(f'ALTER SCHEMA "dot.{number}" RENAME TO dot_{number}')
    source.listed.append(f"dot_{number}.guest")
    _fill(source, f"dot_{number}.guest")


def identity_taken_for_a_while(source: Source) -> None:
    """Meanwhile only INSERT is possible."""
    table = source.chance.choice(_IDENTIFIED)
    source.ddl(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING", table)
    source.pause()
    source.changes(table)
    source.pause()
    source.ddl(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT", table)


def select_revoked_for_a_while(source: Source) -> None:
    """Changes need no right, a read does."""
    table = source.chance.choice(_SMALL)
    source.ddl(f"REVOKE SELECT ON {table} FROM {DAEMON}", table)
    source.pause()
    source.changes(table)
    if table in {"plain", "narrow", "users"}:
        source.ddl(f"ALTER TABLE {table} ALTER n TYPE int USING (n + 1) % 1000000", table)
        source.pause()
        source.changes(table)
    source.ddl(f"GRANT SELECT ON {table} TO {DAEMON}", table)


def _fill(source: Source, name: str) -> None:
    """Give a guest rows, changes, and its place among the tables that are compared."""
    source.ddl(filled("users", name, source.chance.randint(1, 60), 30))
    source.pause()
    source.changes("users", name)
    source.guests.append(name)
    while len(source.guests) > _GUESTS_MAX:
        gone = source.guests.pop(0)
        if gone in source.listed:
            source.listed.remove(gone)
        source.ddl(f"DROP TABLE {gone}")


def _far(source: Source) -> int:
    return 10_000 + source.number()


GUESTS: Final[Mapping[str, Callable[[Source], None]]] = {
    "table created": table_created,
    "table created without a key": table_created_without_key,
    "names of one topic": names_of_one_topic,
    "schema with a dot": schema_with_a_dot,
    "replica identity taken for a while": identity_taken_for_a_while,
    "SELECT revoked for a while": select_revoked_for_a_while,
}
GUESTS_SINCE: Final[Mapping[str, int]] = {
    "table created": 15,  # before, nothing publishes a table by itself, but FOR ALL TABLES
    "table created without a key": 15,
    "names of one topic": 15,
}
"""The versions that have a kind, where not all that are supported have it."""
