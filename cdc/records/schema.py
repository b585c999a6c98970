"""Table schemas and their versions: a record's columns → their meaning, without the source.

A version applies from its position on. The schema topic keeps versions by (table, version), so
compaction never loses one: docs/decisions/0003-state-topics.md.
"""

from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

FORMAT: Final = 1
DECIMAL_DIGITS_MAX: Final = 38
"""Digits of a decimal in derived tables. A numeric that may have more is text there."""
UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""Replaces bytes of a name that aren't UTF-8. A SQL_ASCII database accepts any."""


class TableName(NamedTuple):
    """A table's schema and name, as PostgreSQL stores them (unquoted)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return Debezium's ``schema.table`` form, used in filters, topics and messages."""
        return f"{self.namespace}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """Parse that form. The first dot ends the schema, so a schema's name can't contain one."""
        namespace, _, name = text.partition(".")
        return cls(namespace, name)


def is_readable_name(table: TableName) -> bool:
    """Whether a table's name is UTF-8. Two other names may look the same."""
    return UNREADABLE not in str(table)


class Column(BaseModel):
    """One column, with its type resolved as far as a reader needs it.

    ``type`` is the name in pg_type of the base type (``int4``, ``numeric``, ``timestamptz``): a
    domain's base, an array's element. Every enum is ``enum``. ``modifier`` is atttypmod (-1: none).
    ``declared`` is format_type()'s text, for people. ``key`` is the ordinal in the record's key,
    from 1. ``default`` is the DEFAULT as SQL. ``labels`` are an enum's, in order. ``domain`` and
    ``domain_elements`` mean that the type of the column or of its elements was declared as a
    domain. ``typtype`` and ``delimiter`` are pg_type's, of the base type. ``number`` is
    pg_attribute.attnum, which a column keeps permanently, and which no other column of its table
    gets; None: uncertain. Events lack a column that ``column.include.list`` or
    ``column.exclude.list`` has ``left_out``.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    type: str
    type_oid: int
    modifier: int = -1
    array: bool = False
    declared: str
    optional: bool = True
    key: int | None = None
    default: str | None = None
    labels: tuple[str, ...] = ()
    domain: bool = False
    domain_elements: bool = False
    typtype: str = "b"
    delimiter: str | None = None
    number: int | None = None
    left_out: bool = False

    @property
    def precision_scale(self) -> tuple[int, int] | None:
        """Return (precision, scale) of a constrained numeric, else None.

        numeric's modifier packs both, the scale as a signed 11-bit field
        (https://www.postgresql.org/docs/current/datatype-numeric.html allows -1000 to 1000).
        """
        if self.type != "numeric" or self.modifier < 4:
            return None
        packed = self.modifier - 4
        scale = packed & 0x7FF
        return (packed >> 16) & 0xFFFF, scale - 2048 if scale >= 1024 else scale

    @property
    def decimal_digits(self) -> tuple[int, int] | None:
        """Return (precision, scale) of a decimal for all of its values. The scale is at least 0."""
        if (declared := self.precision_scale) is None:
            return None
        precision, scale = declared
        return (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)

    @property
    def is_decimal(self) -> bool:
        """Whether it is a numeric that is a decimal in derived tables."""
        digits = self.decimal_digits
        return digits is not None and digits[0] <= DECIMAL_DIGITS_MAX

    @property
    def time_precision(self) -> int:
        """Return the fractional digits of a time or timestamp type: 0 to 6."""
        return 6 if self.modifier < 0 else self.modifier & 0xFFFF


class TableSchema(BaseModel):
    """One version of a table's schema. ``since`` is the position from which it applies, as text.

    ``replica_identity`` is pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex).
    ``signature`` shows whether a Relation message still has this version's meaning. ``oid`` is the
    table's (0: unknown). Columns of two versions match by number if both have the same OID in one
    epoch.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    namespace: str
    table: str
    version: int
    since: str
    topic: str
    replica_identity: Literal["d", "n", "f", "i"]
    columns: tuple[Column, ...]
    signature: str
    oid: int = 0

    @property
    def name(self) -> TableName:
        """The table that this schema describes."""
        return TableName(self.namespace, self.table)

    @property
    def event_columns(self) -> tuple[Column, ...]:
        """The columns that events have."""
        return tuple(column for column in self.columns if not column.left_out)

    @property
    def key(self) -> tuple[Column, ...]:
        """Return the key's columns in key order; empty for a table without one."""
        keyed = [column for column in self.columns if column.key is not None]
        return tuple(sorted(keyed, key=lambda column: column.key or 0))
