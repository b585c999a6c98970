"""Server, role, configuration and tables → every obstacle to capturing, with its remedy.

Each requirement is one function that yields its problems. ``check`` runs them all, so that a user
can solve everything at once. Rights are found by trying, as managed services grant them in their
own ways.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import psycopg

from cdc.errors import (
    ConfigError,
    MillraceError,
    SourceError,
    TablePublicationError,
    TableRefusedError,
)
from cdc.lines import Lines, name_first, on_one_line
from cdc.postgres import connection as connections
from cdc.postgres.captured import publish_whole
from cdc.postgres.checks.rights import leaves, unpublishable, unreadable
from cdc.postgres.checks.server import requirements
from cdc.postgres.connection import query
from cdc.postgres.described import Leaf, TableDescription
from cdc.postgres.failures import alter_identity, server_address
from cdc.postgres.ownership import is_own
from cdc.records.schema import UNREADABLE, Column, TableName
from cdc.records.sql_names import sql_names
from cdc.records.topics import data_topic, kafka_name
from cdc.settings import CaptureSettings, LibraryOptions

_UNIQUE: Final = """
SELECT i.indrelid, array_agg(a.attname::text)
FROM pg_index i
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, ordinal)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.ordinal <= i.indnkeyatts
GROUP BY i.indexrelid, i.indrelid
HAVING bool_and(a.attnotnull)
"""


class PreflightError(SourceError):
    """Several unmet requirements. Behaves as the first of them."""

    def __init__(self, problems: Sequence[MillraceError]) -> None:
        lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__(Lines(f"{len(problems)} requirements aren't met:{lines}"))
        self.problems = tuple(problems)
        self.exit_code = problems[0].exit_code
        self.retry = all(problem.retry for problem in problems)


def check(
    connection: psycopg.Connection,
    source: LibraryOptions,
    settings: CaptureSettings,
    tables: Sequence[TableDescription],
    spared: Callable[[], Container[TableName]] = tuple,
) -> None:
    """Raise the problem, or PreflightError if there are several.

    ``spared`` returns the tables whose own problems end nothing.
    """
    problems = list(find_problems(connection, source, settings, tables, spared))
    if len(problems) > 1:
        raise PreflightError(problems)
    if problems:
        raise problems[0]


def find_problems(
    connection: psycopg.Connection,
    source: LibraryOptions,
    settings: CaptureSettings,
    tables: Sequence[TableDescription],
    spared: Callable[[], Container[TableName]],
) -> Iterator[MillraceError]:
    """Yield every unmet requirement."""
    where = server_address(connection.pgconn)
    of_server = requirements(connection, settings.slot_name, where)
    yield from (each.problem for each in of_server if each.problem is not None)
    yield from _role(source)
    yield from some_tables(tables, where)
    barred = list(unreadable(connection, leaves(tables), where))
    refused = list(refused_tables(connection, settings, tables, where))
    missing = list(unpublishable(connection, settings, tables, where))
    left = spared() if barred or refused or missing else ()
    needed = [table for table in tables if table.name not in left]
    if barred:
        yield from unreadable(connection, leaves(needed), where)
    if missing and needed:
        yield from unpublishable(connection, settings, needed, where)
    yield from (error for names, error in refused if not all(name in left for name in names))


def _role(source: LibraryOptions) -> Iterator[MillraceError]:
    """Try to start replication with the role."""
    try:
        pgconn = connections.connect_replication(source)
    except MillraceError as error:
        yield error
        return
    try:
        connections.identify(pgconn)
    except MillraceError as error:
        yield error
    finally:
        pgconn.finish()


def some_tables(tables: Sequence[TableDescription], where: str) -> Iterator[MillraceError]:
    """Yield an error if no table is captured."""
    if not tables:
        yield ConfigError(
            "no table is captured",
            where=where,
            remedy="check dbname in [source], table.include.list and table.exclude.list: they match"
            " whole names such as public.orders",
        )


def _named(table: TableDescription, where: str) -> Iterator[TableRefusedError]:
    """Refuse a schema with a dot: records name a table ``schema.table``, as Debezium does."""
    if "." in table.name.namespace:
        yield _refused(
            table,
            where,
            "is in a schema with a dot in its name",
            "rename the schema",
        )
    if (error := unreadable_column(table.name, table.columns)) is not None:
        yield error
    if leaves := [str(leaf.name) for leaf in table.leaves if UNREADABLE in str(leaf.name)]:
        yield _refused(
            table,
            where,
            f"has a partition whose name isn't UTF-8: {name_first(leaves)}",
            "rename the partition by its OID (docs/guides/postgresql.md, Encodings, has the line)",
        )
    if UNREADABLE in (table.row_filter or ""):
        yield _refused(
            table,
            where,
            f"has a row filter in the publication that isn't UTF-8: {table.row_filter}",
            "publish it with a condition in UTF-8 (ALTER PUBLICATION … SET TABLE … WHERE …)",
        )


def unreadable_column(table: TableName, columns: Iterable[Column]) -> TableRefusedError | None:
    """Return why no record can show all columns of a table. None: records can."""
    texts = [(each.name, f"{each.declared} {each.default}") for each in columns]
    what = "name"
    remedy = "rename the column by its number (docs/guides/postgresql.md, Encodings, has the line)"
    if not (names := [name for name, _ in texts if UNREADABLE in name]):
        names = [name for name, text in texts if UNREADABLE in text]
        what, remedy = "type or default", "rename the type, or ALTER COLUMN … SET DEFAULT …"
    return (
        TableRefusedError(
            f"table {table} has a column whose {what} isn't UTF-8: {', '.join(names)}",
            remedy=Lines(f"{remedy}\n    or add the table to table.exclude.list"),
        )
        if names
        else None
    )


def _identified(
    table: TableDescription, settings: CaptureSettings, where: str
) -> Iterator[TableRefusedError]:
    """Yield an error if changes of the table don't identify their row.

    Publishing updates and deletes of a table without identity would make the user's own UPDATE and
    DELETE fail (https://www.postgresql.org/docs/current/logical-replication-publication.html).
    """
    if not table.primary_key and settings.table_without_key == "refuse":
        yield _refused(
            table, where, "has no primary key", "add one (ALTER TABLE … ADD PRIMARY KEY)"
        )
        return
    if not settings.lossless and settings.publication_autocreate_mode == "disabled":
        return  # the user manages the publication and its effects
    identity = "DEFAULT" if table.primary_key else "FULL"
    # The whole row identifies even a table without columns.
    bare = [
        leaf.name for leaf in table.leaves if not leaf.identity and leaf.replica_identity != "f"
    ]
    if not table.identity and table.replica_identity != "f" and table.name not in bare:
        bare.insert(0, table.name)
    if bare:
        yield _refused(
            table,
            where,
            "has no replica identity: once it is published, UPDATE and DELETE fail",
            Lines(f"let its owner run{alter_identity(bare, identity)}"),
        )
        return
    if not settings.lossless:
        return  # a missing key is made up, as in Debezium
    relations: list[TableDescription | Leaf] = [table, *table.leaves]
    unlike = [
        relation.name
        for relation in relations
        if (relation.replica_identity == "f") != (table.replica_identity == "f")
        or not relation.identity >= set(table.primary_key)
    ]
    if unlike:
        identity = "FULL" if table.replica_identity == "f" else identity
        yield _refused(
            table,
            where,
            "has a replica identity without its primary key, or partitions with another"
            " identity: a DELETE doesn't contain the key",
            Lines(f"let its owner run{alter_identity(dict.fromkeys(unlike), identity)}"),
        )
    published = {column.name for column in table.columns}
    if lacking := [name for name in table.primary_key if name not in published]:
        yield _refused(
            table,
            where,
            f"is published without its key's column {', '.join(lacking)}",
            "add the column to the publication's column list",
        )


def _whole(
    connection: psycopg.Connection, table: TableDescription, settings: CaptureSettings, where: str
) -> Iterator[TablePublicationError]:
    """Yield an error if the publication lacks rows or columns that the configuration asks for.

    A publication that Millrace hasn't created may be intended that way, so its change is the last
    remedy.
    """
    if settings.publication_autocreate_mode == "disabled":
        return  # the user's own, used unchanged
    keeps = settings.column_modes.keeps
    lacking = [name for name in table.left_out if keeps(str(table.name), name)]
    parts = [f"only rows WHERE {table.row_filter}"] if table.row_filter else []
    parts += [f"without {', '.join(lacking)}"] if lacking else []
    if not parts:
        return
    remedies = [
        "use the publication unchanged: publication.autocreate.mode = disabled",
        "add the table to table.exclude.list",
    ]
    if lacking:
        names = "|".join(map(_literally, lacking))
        pattern = f"{_literally(str(table.name))}.({names})"
        remedies.insert(1, f"leave the columns out (column.exclude.list: {pattern})")
    lines = publish_whole(settings.publication_name, table.name)
    remedies.insert(0 if is_own(connection, settings) else 3, Lines(f"let its owner run{lines}"))
    yield TablePublicationError(
        f"table {table.name} is published in part: {', '.join(parts)}",
        where=where,
        remedy=Lines("\n    or ".join(map(on_one_line, remedies))),
    )


def _literally(name: str) -> str:
    """Return a pattern of the lists that matches the name. A dot matches itself."""
    return re.escape(name).replace(r"\.", ".").replace("\\\n", r"\n")


def _refused(table: TableDescription, where: str, what: str, remedy: str) -> TableRefusedError:
    return TableRefusedError(
        f"table {table.name} {what}",
        where=where,
        remedy=Lines(f"{on_one_line(remedy)}\n    or add it to table.exclude.list"),
    )


def refused_tables(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Sequence[TableDescription],
    where: str,
) -> Iterator[tuple[Sequence[TableName], TableRefusedError]]:
    """Yield tables that can't be captured, alone or together, and why. Ignores rights to rows."""
    for table in tables:
        identified = _identified(table, settings, where)
        whole = _whole(connection, table, settings, where)
        for error in chain(_named(table, where), whole, identified):
            yield [table.name], error
    if settings.lossless:
        yield from _topics(settings.topic_prefix, tables)
        yield from _keyed_apart(connection, settings, tables, where)


def _topics(
    prefix: str, tables: Sequence[TableDescription]
) -> Iterator[tuple[Sequence[TableName], TableRefusedError]]:
    by_topic: dict[str, list[TableName]] = {}
    for table in tables:
        topic = kafka_name(data_topic(prefix, table.name))
        by_topic.setdefault(topic, []).append(table.name)
    for names in by_topic.values():
        if len(names) > 1:
            yield names, shared_topic(data_topic(prefix, names[0]), names)


def shared_topic(topic: str, names: Sequence[TableName]) -> TableRefusedError:
    """Return the error for tables that share a topic. The last is the one to rename or exclude."""
    last = names[-1]
    return TableRefusedError(
        f"tables {' and '.join(map(str, names))} would share the topic {topic} (Kafka doesn't"
        " distinguish . from _, and a blank becomes _)",
        remedy=Lines(
            f"rename one, such as ALTER TABLE {sql_names([last])} RENAME TO …; (or its schema)\n"
            f"    or add one to table.exclude.list, such as {_literally(str(last))}\n    (a"
            " transform doesn't help: each table has its own topic, wherever its events are"
            " routed)"
        ),
    )


def check_joining(
    connection: psycopg.Connection, settings: CaptureSettings, table: TableDescription
) -> None:
    """Raise TableRefusedError for a joining table that a first start would refuse."""
    where = server_address(connection.pgconn)
    for _, error in refused_tables(connection, settings, [table], where):
        raise error


def _keyed_apart(
    connection: psycopg.Connection,
    settings: CaptureSettings,
    tables: Sequence[TableDescription],
    where: str,
) -> Iterator[tuple[Sequence[TableName], TableRefusedError]]:
    """Yield tables whose key two rows may share. A compacted topic would keep only one."""
    keys = {
        table.oid: {name.lower() for name in names}
        for table in tables
        if (names := settings.column_modes.key_columns(str(table.name))) is not None
    }
    unique: dict[int, list[set[str]]] = {}
    for oid, names in query(connection, _UNIQUE, [list(keys)]) if keys else ():
        unique.setdefault(oid, []).append({name.lower() for name in names})
    for table in tables:
        key = keys.get(table.oid)
        if key is not None and not any(columns <= key for columns in unique.get(table.oid, ())):
            error = _refused(
                table,
                where,
                f"message.key.columns gives it the key ({', '.join(sorted(key))}), which several"
                " rows may share: the log would keep only one of them",
                "add the primary key's columns, or columns that are NOT NULL and have a unique"
                " constraint",
            )
            yield [table.name], error
