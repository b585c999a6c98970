"""DDL that gives tables another key; the columns that identify their rows always stay unique."""

from typing import Final

from tests.ddl_chaos.shapes import IDS
from tests.ddl_chaos.source import Source

_MIGRATED: Final = ("plain", "users")
_EXTENDED: Final = ("archive", "noted")
_LAST_ID: Final = IDS - 1
_FILLED: Final = f"""
    CREATE OR REPLACE FUNCTION new_id() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.new_id := {_LAST_ID} - NEW.id; RETURN NEW; END $$
"""


def _key(source: Source, table: str) -> tuple[str, list[str]]:
    """The name of a table's primary key, and its columns."""
    rows = source.ask(
        "SELECT conname, attname FROM pg_constraint, unnest(conkey) WITH ORDINALITY k (number, nth)"
        " JOIN pg_attribute ON attnum = number WHERE attrelid = conrelid AND contype = 'p'"
        f" AND conrelid = '{table}'::regclass ORDER BY nth"
    )
    return rows[0][0], [column for _, column in rows]


def migrated(source: Source) -> None:
    """With no downtime: another column is filled beside the key, and takes its place and name."""
    table, name = source.chance.choice(_MIGRATED), f"key{source.number()}"
    (kind,) = source.ask(
        "SELECT atttypid::regtype::text FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attname = 'id'"
    )[0]
    source.ddl(f"ALTER TABLE {table} ADD COLUMN new_id {'int' if kind == 'bigint' else 'bigint'}")
    source.ddl(_FILLED)
    source.ddl(
        f"CREATE TRIGGER filled BEFORE INSERT OR UPDATE ON {table}"
        " FOR EACH ROW EXECUTE FUNCTION new_id()"
    )
    source.pause()
    for first in range(0, IDS, IDS // 4):
        source.ddl(f"UPDATE {table} SET n = n WHERE id BETWEEN {first} AND {first + IDS // 4 - 1}")
    source.changes(table)
    source.ddl(f"CREATE UNIQUE INDEX {name} ON {table} (new_id)")
    source.pause()
    source.ddl(
        f"DROP TRIGGER filled ON {table};"
        f" ALTER TABLE {table} DROP CONSTRAINT {_key(source, table)[0]};"
        f" ALTER TABLE {table} ALTER id DROP NOT NULL, ALTER new_id SET NOT NULL;"
        f" ALTER TABLE {table} RENAME id TO old_id; ALTER TABLE {table} RENAME new_id TO id;"
        f" ALTER TABLE {table} ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {name}",
        table,
    )
    source.changes(table)
    source.pause()
    source.ddl(f"ALTER TABLE {table} DROP COLUMN old_id", table)


def reordered(source: Source) -> None:
    name, columns = _key(source, "labelled")
    columns.reverse()
    source.ddl(
        f"ALTER TABLE labelled DROP CONSTRAINT {name}, ADD PRIMARY KEY ({', '.join(columns)})",
        "labelled",
    )
    source.changes("labelled")


def extended_or_not(source: Source) -> None:
    """A key gets one column more, or one less; ``id`` alone stays unique by an index."""
    table = source.chance.choice(_EXTENDED)
    name, columns = _key(source, table)
    if columns == ["id"]:
        source.ddl(f"CREATE UNIQUE INDEX ids{source.number()} ON {table} (id)")
        source.ddl(f"UPDATE {table} SET note = 'none' WHERE note IS NULL")
    key = "id, note" if columns == ["id"] else "id"
    source.ddl(f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD PRIMARY KEY ({key})", table)
    source.changes(table)
    source.pause()
