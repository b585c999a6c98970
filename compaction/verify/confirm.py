"""Keys that differed at one instant → those that still differ at a later one, and how."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg import sql
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.errors import SourceError
from cdc.postgres.connection import query
from cdc.postgres.described import TableDescription
from compaction.verify.differences import Difference, DifferingRow, as_refused
from compaction.verify.hashed import KeyTexts, key_texts
from compaction.verify.instant import SourceInstant
from compaction.verify.rules import ComparedTable, Kind
from compaction.verify.source import SourceRead, SourceReader
from sinks.changes.names import quoted
from snapshots import reader

_KEYS_AT_ONCE: Final = 500
_BY_INDEX: Final = "SET LOCAL enable_seqscan = off"
_LISTED_MAX: Final = 1_000
"""Up to this many keys are listed in a plan."""
_KEY: Final = "_key"
_HASHES: Final = "_hashes"
ColumnHashes = tuple[int | None, ...]
RowsByKey = dict[int, list[ColumnHashes]]
TextsByKey = dict[int, KeyTexts]
"""The texts of a row's columns, by the hash of its key."""
TEXTS_BYTES_MAX: Final = 16 << 20
"""Up to this many bytes of a table's values are kept. Other rows only name their columns."""


class ConfirmedRow(NamedTuple):
    """A key that differs at both instants, and its differing columns."""

    texts: KeyTexts
    difference: Difference
    columns: tuple[str, ...] = ()


class SourceRows(NamedTuple):
    """Rows of the source: the hashes of their columns, and the texts of some, by key hash."""

    hashes: RowsByKey
    texts: TextsByKey


def derived_keys(rows: DataFrame, table: ComparedTable, keys: Sequence[int]) -> dict[int, KeyTexts]:
    """Return the texts of keys that only a derived table has, by their hashes."""
    places = [table.columns[place] for place in table.key]
    texts = [
        _text(F.col(quoted(column.name)), column.rule.kind).alias(f"_text{number}")
        for number, column in enumerate(places)
    ]
    hashed = rows.select(table.key_hash().alias(_KEY), *texts)
    return {row[0]: tuple(row[1:]) for row in _with_keys(hashed, keys).toLocalIterator()}


def confirmed(
    rows: Sequence[DifferingRow],
    source: RowsByKey,
    derived: RowsByKey,
    table: ComparedTable,
    refused: Collection[int] = frozenset(),
) -> Iterator[ConfirmedRow]:
    """Yield the rows that still differ. Documents of some keys were ``refused``."""
    names = [column.name for column in table.columns]
    for key, texts in {row.key: row.texts for row in rows}.items():
        there, here = source.get(key, []), derived.get(key, [])
        if Counter(there) == Counter(here):
            continue
        if len(there) == len(here) == 1:
            pairs = zip(names, there[0], here[0], strict=True)
            columns = tuple(name for name, a, b in pairs if a != b)
            difference = as_refused(key, "different", refused)
            yield ConfirmedRow(texts or (), difference, columns)
            continue
        lacking = (Counter(there) - Counter(here)).total()
        extra = (Counter(here) - Counter(there)).total()
        missing = as_refused(key, "missing", refused)
        yield from (ConfirmedRow(texts or (), missing) for _ in range(lacking))
        yield from (ConfirmedRow(texts or (), "extra") for _ in range(extra))


def source_rows(
    connection: psycopg.Connection,
    instant: SourceInstant,
    reading: SourceReader,
    table: SourceRead,
    keys: Sequence[KeyTexts],
    *,
    values: bool = False,
) -> SourceRows:
    """Return the source's rows of these keys at the instant. With ``values``, add their texts."""
    digests = table.compared.digests(keeps_columns=True)
    lines, room = list[bytes](), TEXTS_BYTES_MAX if values else 0

    def feed(data: bytearray, start: int, end: int) -> int:
        nonlocal room
        stop = digests.feed(data, start, end)
        if room > 0:
            lines.extend(copied_lines(data[start:stop]))
            room -= stop - start
        return stop

    reader.begin(connection, instant.snapshot)
    query(connection, _BY_INDEX)
    try:
        for leaf in table.description.leaves:
            reader.lock(connection, leaf)
            reading.require_same_columns(table, leaf)
        at_once = reading.rows_at_once(_KEYS_AT_ONCE)
        for start in range(0, len(keys), at_once):
            if not reading.may_go_on(table) and table.error is not None:
                raise table.error
            some = keys[start : start + at_once]
            for _ in reader.read(connection, _select(table, some), feed):
                pass
            reading.took(len(some))
    finally:
        query(connection, "ROLLBACK")
    digests.take()
    rows = digests.take_columns()
    texts = {key: key_texts(line) for (key, _), line in zip(rows, lines, strict=False)}
    return SourceRows(_by_key((key, tuple(hashes)) for key, hashes in rows), texts)


def copied_lines(data: bytearray) -> Iterator[bytes]:
    """Yield the lines in messages of COPY, without their ends."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5]) - 4
        yield bytes(data[at + 5 : at + 4 + size])
        at += 5 + size


def derived_texts(rows: DataFrame, table: ComparedTable, keys: Sequence[int]) -> TextsByKey:
    """Return the texts of the derived rows of these keys."""
    texts = [
        _text(F.col(quoted(column.name)), column.rule.kind).alias(f"_text{number}")
        for number, column in enumerate(table.columns)
    ]
    hashed = rows.select(table.key_hash().alias(_KEY), *texts)
    return {row[0]: tuple(row[1:]) for row in _with_keys(hashed, keys).toLocalIterator()}


def derived_rows(rows: DataFrame, table: ComparedTable, keys: Sequence[int]) -> RowsByKey:
    """Return the derived rows of these keys."""
    hashed = rows.select(
        table.key_hash().alias(_KEY), F.array(*table.column_hashes()).alias(_HASHES)
    )
    found = _with_keys(hashed, keys).toLocalIterator()
    return _by_key((row[0], tuple(row[1])) for row in found)


def _by_key(rows: Iterable[tuple[int, ColumnHashes]]) -> RowsByKey:
    by_key: RowsByKey = {}
    for key, hashes in rows:
        by_key.setdefault(key, []).append(hashes)
    return by_key


def _with_keys(hashed: DataFrame, keys: Sequence[int]) -> DataFrame:
    if len(keys) <= _LISTED_MAX:
        return hashed.where(F.col(_KEY).isin(*keys))
    spark: SparkSession = hashed.sparkSession
    wanted = spark.createDataFrame([(key,) for key in keys], f"{_KEY} bigint")
    return hashed.join(F.broadcast(wanted), _KEY, "left_semi")


def _text(value: SparkColumn, kind: int) -> SparkColumn:
    """Return the text that PostgreSQL reads."""
    if kind == Kind.BYTES:
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    return value.cast("string")


def key_literals(
    description: TableDescription, names: Sequence[str], keys: Sequence[KeyTexts]
) -> sql.Composed:
    """Return keys in SQL, of columns with these names at the source."""
    declared = {column.name: column.declared for column in description.columns}

    def literal(texts: KeyTexts) -> sql.Composed:
        values = [
            sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(declared[name]))
            for name, text in zip(names, texts, strict=True)
        ]
        return sql.SQL("({})").format(sql.SQL(", ").join(values))

    return sql.SQL(", ").join(map(literal, keys))


def printed_keys(
    connection: psycopg.Connection, read: SourceRead, keys: Sequence[KeyTexts]
) -> Iterator[tuple[str, ...]]:
    """Yield keys as PostgreSQL prints them.

    A derived table may have keys that PostgreSQL can't read: these are left out. The connection is
    in no transaction.
    """
    names = [read.compared.columns[place].source for place in read.compared.key]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        yield from _printed(connection, read.description, names, some)


def _printed(
    connection: psycopg.Connection,
    description: TableDescription,
    names: Sequence[str],
    keys: Sequence[KeyTexts],
) -> list[tuple[str, ...]]:
    try:
        return query(connection, _texts_of(description, names, keys))
    except SourceError as error:
        if error.retry or connection.broken:
            raise
    if len(keys) == 1:
        return []
    half = len(keys) // 2
    parts = (keys[:half], keys[half:])
    return [texts for some in parts for texts in _printed(connection, description, names, some)]


def _texts_of(
    description: TableDescription, names: Sequence[str], keys: Sequence[KeyTexts]
) -> sql.Composed:
    columns = [sql.Identifier(f"k{number}") for number in range(len(names))]
    return sql.SQL("SELECT {} FROM (VALUES {}) AS k ({})").format(
        sql.SQL(", ").join(sql.SQL("{}::text").format(column) for column in columns),
        key_literals(description, names, keys),
        sql.SQL(", ").join(columns),
    )


def _select(table: SourceRead, keys: Sequence[KeyTexts]) -> sql.Composed:
    """Return the SELECT of the rows with these keys."""
    description, compared = table.description, table.compared
    names = [compared.columns[place].source for place in compared.key]
    tree = "" if description.partitioned else "ONLY "
    return sql.SQL("SELECT {} FROM {}{} WHERE ({}) AND ({}) IN ({})").format(
        sql.SQL(", ").join(sql.Identifier(column.source) for column in compared.columns),
        sql.SQL(tree),
        sql.Identifier(*description.name),
        sql.SQL(description.row_filter or "true"),
        sql.SQL(", ").join(map(sql.Identifier, names)),
        key_literals(description, names, keys),
    )
