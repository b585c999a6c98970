"""DDL that leaves every row unchanged: a re-read after it would be useless."""

from collections.abc import Mapping
from typing import Final

from tests.ddl_chaos.kinds import Kind
from tests.ddl_chaos.shapes import PARTITION_IDS, PARTITIONS, SHAPES
from tests.ddl_chaos.source import Source

_PLAIN: Final = tuple(name for name in SHAPES if name != "events")


def _on_any(statement: str, *, partitioned: bool = True) -> Kind:
    """A statement about a table {t} of a schema {s}, with a number {i} that no name has had."""

    def harmless(source: Source) -> None:
        table = source.chance.choice([*SHAPES] if partitioned else _PLAIN)
        schema = table.partition(".")[0] if "." in table else "public"
        source.ddl(statement.format(t=table, s=schema, i=source.number()))

    return harmless


def clustered(source: Source) -> None:
    table = source.chance.choice(_PLAIN)
    ((index,),) = source.ask(
        "SELECT relname FROM pg_index JOIN pg_class ON oid = indexrelid"
        f" WHERE indrelid = '{table}'::regclass AND indisprimary"
    )
    source.ddl(f"CLUSTER {table} USING {index}")


def moved(source: Source) -> None:
    """To another tablespace, or back from there."""
    table = source.chance.choice(_PLAIN)
    ((space,),) = source.ask(f"SELECT reltablespace FROM pg_class WHERE oid = '{table}'::regclass")
    source.ddl(f"ALTER TABLE {table} SET TABLESPACE {'pg_default' if space else 'elsewhere'}")


def label_added(source: Source) -> None:
    """Before others, too, which can give them other sort orders."""
    kind = source.chance.choice(["mood", "label"])
    ((first,),) = source.ask(f"SELECT (enum_range(NULL::{kind}))[1]::text")
    place = source.chance.choice(["", f" BEFORE '{first}'", f" AFTER '{first}'"])
    source.ddl(f"ALTER TYPE {kind} ADD VALUE '{kind}{source.number()}'{place}")


def column_renamed(source: Source) -> None:
    """One that was added; another one to another name and back, where there is none."""
    having = [table for table, added in source.added.items() if added]
    if not having:
        source.ddl("ALTER TABLE plain RENAME n TO m; ALTER TABLE plain RENAME m TO n")
        return
    table = source.chance.choice(having)
    name, added = f"c{source.number()}", source.added[table]
    source.ddl(f"ALTER TABLE {table} RENAME COLUMN {added[-1]} TO {name}")
    added[-1] = name


def columns_swapped(source: Source) -> None:
    """Two of one type take each other's name, where a column was added."""
    having = [table for table, added in source.added.items() if added]
    if not having:
        column_renamed(source)
        return
    table = source.chance.choice(having)
    name, between = source.added[table][-1], f"c{source.number()}"
    renames = (("n", between), (name, "n"), (between, name))
    steps = (f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}" for old, new in renames)
    source.ddl("; ".join(steps))


def empty_partition(source: Source) -> None:
    """Made, behind all ids; or dropped, where there is one."""
    made = source.ask(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'events'::regclass AND inhrelid::regclass::text LIKE 'spare%'"
    )
    if made:
        source.ddl(f"DROP TABLE {made[0][0]}")
        return
    number = source.number()
    first = (PARTITIONS + number) * PARTITION_IDS
    source.ddl(
        f"CREATE TABLE spare_{number} PARTITION OF events"
        f" FOR VALUES FROM ({first}) TO ({first + PARTITION_IDS})"
    )


HARMLESS: Final[Mapping[str, Kind]] = {
    "VACUUM FULL": _on_any("VACUUM FULL {t}"),
    "CLUSTER": clustered,
    "SET TABLESPACE": moved,
    "REINDEX": _on_any("REINDEX TABLE {t}"),
    "ANALYZE": _on_any("ANALYZE {t}"),
    "OWNER TO": _on_any("ALTER TABLE {t} OWNER TO CURRENT_USER"),
    "COMMENT": _on_any("COMMENT ON TABLE {t} IS '{i}'"),
    "CREATE INDEX": _on_any("CREATE INDEX i{i} ON {t} (n); DROP INDEX {s}.i{i}"),
    "fillfactor": _on_any("ALTER TABLE {t} SET (fillfactor = 90)", partitioned=False),
    "GRANT": _on_any("GRANT SELECT ON {t} TO PUBLIC"),
    "SET STATISTICS": _on_any("ALTER TABLE {t} ALTER n SET STATISTICS 50"),
    "ADD VALUE": label_added,
    "RENAME COLUMN": column_renamed,
    "columns swapped": columns_swapped,
    "empty partition": empty_partition,
}
