"""Kinds of DDL: some make rows differ from the log, others are harmless.

Each leaves the tables with their old names. It works in steps, with changes of rows and pauses
between them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.ddl_chaos import keys, partitions
from tests.ddl_chaos.guests import GUESTS, GUESTS_SINCE
from tests.ddl_chaos.shapes import LISTED, PUBLICATION, SHAPES, filled
from tests.ddl_chaos.source import Source

_ALTERED: Final = tuple(name for name, shape in SHAPES.items() if not shape.fixed)
_NARROWED: Final = ("plain", "wide", "narrow")
"""Tables that can be published in part: their replica identity is the key."""
_COLUMNS_MAX: Final = 2
_FEELING: Final = ("feelings",)
_ALL: Final = tuple(SHAPES)
_PUBLISH: Final = "insert, update, delete, truncate"


def _rename_label(source: Source, kind: str, *touched: str) -> tuple[str, str]:
    labels = [label for (label,) in source.ask(f"SELECT unnest(enum_range(NULL::{kind}))::text")]
    old, new = source.chance.choice(labels), f"{kind}{source.number()}"
    source.ddl(f"ALTER TYPE {kind} RENAME VALUE '{old}' TO '{new}'", *touched)
    return old, new


def enum_label_renamed(source: Source) -> None:
    _rename_label(source, "mood", *_FEELING)


def enum_label_renamed_and_back(source: Source) -> None:
    old, new = _rename_label(source, "mood", *_FEELING)
    source.changes("feelings")
    source.pause()
    source.ddl(f"ALTER TYPE mood RENAME VALUE '{new}' TO '{old}'", *_FEELING)


def key_label_renamed(source: Source) -> None:
    _rename_label(source, "label", "labelled")
    source.pause()
    source.changes("labelled")


def attribute_renamed(source: Source) -> None:
    (name,) = source.ask(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'place'::regclass AND attnum = 1"
    )[0]
    new = f"street{source.number()}"
    source.ddl(f"ALTER TYPE place RENAME ATTRIBUTE {name} TO {new}", "places")


def attribute_added_or_dropped(source: Source) -> None:
    names = source.ask(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'place'::regclass AND attnum > 2"
        " AND NOT attisdropped"
    )
    if names:
        source.ddl(f"ALTER TYPE place DROP ATTRIBUTE {names[0][0]}", "places")
    else:
        source.ddl(f"ALTER TYPE place ADD ATTRIBUTE more{source.number()} int", "places")


def set_unlogged_and_logged(source: Source) -> None:
    source.ddl("ALTER TABLE bulk.loaded SET UNLOGGED", "bulk.loaded")
    source.pause()
    source.changes("bulk.loaded")
    source.pause()
    source.ddl("ALTER TABLE bulk.loaded SET LOGGED", "bulk.loaded")


def rewritten_with_other_values(source: Source) -> None:
    table = source.chance.choice([*_ALTERED, "events"])
    source.ddl(f"ALTER TABLE {table} ALTER n TYPE int USING (n + 1) % 1000000", table)


def expression_changed(source: Source) -> None:
    factor = source.chance.randint(2, 1000)
    source.ddl(
        f"ALTER TABLE computed ALTER product SET EXPRESSION AS (n * {factor}::bigint)", "computed"
    )


def _add_column(source: Source, default: str) -> None:
    table = source.chance.choice(_ALTERED)
    added = source.added[table]
    if len(added) >= _COLUMNS_MAX:
        source.ddl(f"ALTER TABLE {table} DROP COLUMN {added.pop(0)}", table)
    name = f"c{source.number()}"
    source.ddl(f"ALTER TABLE {table} ADD COLUMN {name} int DEFAULT {default}", table)
    added.append(name)


def column_with_volatile_default(source: Source) -> None:
    _add_column(source, "(random() * 1000)::int")


def column_with_constant_default(source: Source) -> None:
    _add_column(source, str(source.chance.randrange(1000)))


def column_dropped(source: Source) -> None:
    having = [table for table in _ALTERED if source.added[table]]
    if having:
        table = source.chance.choice(having)
        source.ddl(f"ALTER TABLE {table} DROP COLUMN {source.added[table].pop()}", table)
    else:
        _add_column(source, "7")
        column_dropped(source)


def column_made_again(source: Source) -> None:
    table = source.chance.choice(_ALTERED)
    again = f"ADD COLUMN n int DEFAULT {source.chance.choice(['NULL', '5', 'random()::int'])}"
    if source.chance.random() < 0.5:
        source.ddl(f"ALTER TABLE {table} DROP COLUMN n, {again}", table)
        return
    source.ddl(f"ALTER TABLE {table} DROP COLUMN n", table)
    source.pause()
    source.ddl(f"ALTER TABLE {table} {again}", table)


def columns_swapped_in_steps(source: Source) -> None:
    """Two of one type take each other's name, and the daemon may see some of the steps."""
    having = [table for table in _ALTERED if source.added[table]]
    if not having:
        _add_column(source, "7")
        columns_swapped_in_steps(source)
        return
    table = source.chance.choice(having)
    name, between = source.added[table][-1], f"c{source.number()}"
    for old, new in (("n", between), (name, "n"), (between, name)):
        source.ddl(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}", table)
        source.pause()
    source.changes(table)


def publishes_inserts_only_for_a_while(source: Source) -> None:
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET (publish = 'insert')", *_ALL)
    for table in source.chance.sample(_ALL, 4):
        source.changes(table)
    source.pause()
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET (publish = '{_PUBLISH}')", *_ALL)


def truncated_unpublished(source: Source) -> None:
    """The publication goes on without TRUNCATE, until another kind changes its options."""
    table = source.chance.choice(_ALL)
    if source.publishes_truncate():
        publish = _PUBLISH.replace(", truncate", "")
        source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET (publish = '{publish}')", *_ALL)
        source.pause()
    source.ddl(f"TRUNCATE {table}", table)
    source.ddl(filled(table, rows=source.chance.randint(1, 60)))


def taken_out_and_in(source: Source) -> None:
    table = source.chance.choice(LISTED)
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table}", table)
    source.pause()
    source.changes(table)
    source.pause()
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}", table)


def row_filter_for_a_while(source: Source) -> None:
    table = source.chance.choice(_NARROWED)
    some = source.published(table, " WHERE (id > 60)")
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET {some}", table)
    source.pause()
    source.changes(table)
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET {source.published()}", table)


def column_list_for_a_while(source: Source) -> None:
    """Columns can't be chosen where a schema is published, which is left out meanwhile."""
    table = source.chance.choice(_NARROWED)
    some, touched = source.published(table, " (id)", bulk=False), (table, "bulk.loaded")
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET {some}", *touched)
    source.pause()
    source.changes(table)
    source.changes("bulk.loaded")
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} SET {source.published()}", *touched)


def publication_made_again(source: Source) -> None:
    """At one instant each time: the stream ends for good at what is written in between."""
    drop = f"DROP PUBLICATION {PUBLICATION}"
    inserts = source.publication("publish = 'insert'")
    source.ddl(f"{drop}; {inserts}", *_ALL)
    for table in source.chance.sample(_ALL, 4):
        source.changes(table)
    source.pause()
    source.ddl(f"{drop}; {source.publication()}", *_ALL)


def swapped(source: Source) -> None:
    """Two tables that are captured take each other's name."""
    source.ddl(
        "ALTER TABLE users RENAME TO third; ALTER TABLE archive RENAME TO users;"
        " ALTER TABLE third RENAME TO archive",
        *("users", "archive"),
    )
    source.added["users"], source.added["archive"] = source.added["archive"], source.added["users"]


def replaced(source: Source) -> None:
    """A table that was made and filled beside another takes its place."""
    source.ddl("CREATE TABLE users_new (LIKE users INCLUDING ALL)")
    source.ddl(filled("users", "users_new", source.chance.randint(1, 60), 50))
    source.ddl(
        "ALTER TABLE users RENAME TO users_old; ALTER TABLE users_new RENAME TO users;"
        f" ALTER PUBLICATION {PUBLICATION} ADD TABLE users",
        "users",
    )
    source.pause()
    source.ddl("DROP TABLE users_old")


def dropped_and_created(source: Source) -> None:
    source.ddl("DROP TABLE archive", "archive")
    source.pause()
    source.ddl("CREATE TABLE archive (id int PRIMARY KEY, n int, note text)", "archive")
    source.added["archive"].clear()
    source.ddl(filled("archive", first=source.chance.randint(1, 60), rows=40))
    source.pause()
    source.ddl(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE archive", "archive")


def renamed_away_and_back(source: Source) -> None:
    source.ddl("ALTER TABLE plain RENAME TO away", "plain")
    source.pause()
    source.changes("plain", "away")
    source.pause()
    source.ddl("ALTER TABLE away RENAME TO plain", "plain")


def moved_out_and_in(source: Source) -> None:
    """Out of the schema that the publication has all tables of."""
    source.ddl("ALTER TABLE bulk.loaded SET SCHEMA apart", "bulk.loaded")
    source.pause()
    source.changes("bulk.loaded", "apart.loaded")
    source.pause()
    source.ddl("ALTER TABLE apart.loaded SET SCHEMA bulk", "bulk.loaded")


Kind = Callable[[Source], None]
KINDS: Final[Mapping[str, Kind]] = {
    "enum label": enum_label_renamed,
    "enum label and back": enum_label_renamed_and_back,
    "enum label in a key": key_label_renamed,
    "attribute renamed": attribute_renamed,
    "attribute added or dropped": attribute_added_or_dropped,
    "unlogged for a while": set_unlogged_and_logged,
    "type with USING": rewritten_with_other_values,
    "generated column's expression": expression_changed,
    "column with a volatile default": column_with_volatile_default,
    "column with a constant default": column_with_constant_default,
    "column dropped": column_dropped,
    "column made again": column_made_again,
    "columns swapped in steps": columns_swapped_in_steps,
    "inserts only for a while": publishes_inserts_only_for_a_while,
    "TRUNCATE unpublished": truncated_unpublished,
    "unpublished for a while": taken_out_and_in,
    "row filter for a while": row_filter_for_a_while,
    "column list for a while": column_list_for_a_while,
    "publication made again": publication_made_again,
    "partition attached": partitions.attached,
    "partition detached and attached": partitions.detached_and_attached,
    "partition exchanged": partitions.exchanged,
    "partition truncated": partitions.truncated,
    "new partition truncated": partitions.new_and_truncated,
    "partition unlogged for a while": partitions.unlogged_and_logged,
    "tables swapped": swapped,
    "table replaced": replaced,
    "table dropped and created": dropped_and_created,
    "table renamed for a while": renamed_away_and_back,
    "table in another schema for a while": moved_out_and_in,
    "key migrated": keys.migrated,
    "key in another order": keys.reordered,
    "key with a column more or less": keys.extended_or_not,
    **GUESTS,
}
"""What leaves rows other than the log has them, and no row event."""
SINCE: Final[Mapping[str, int]] = {
    "row filter for a while": 15,
    "column list for a while": 15,
    "table in another schema for a while": 15,
    "unlogged for a while": 15,  # what a publication names, other than by schema, can't be so
    "generated column's expression": 18,  # before, their values aren't published
    **GUESTS_SINCE,
}
"""The versions that have a kind, where not all that are supported have it."""
