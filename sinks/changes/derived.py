"""[lakehouse] and the log's tables → the derived tables: which there are, of what, and where."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from cdc.errors import ConfigError
from cdc.records.schema import TableName
from cdc.settings.lakehouse import DerivedTable, Incompatible, LakehouseSettings, TableKind
from sinks.changes.names import (
    DELETED,
    END,
    IS_CURRENT,
    OWN,
    PLACE,
    RAW_KEY,
    RAW_VALUE,
    VALID_FROM,
    VALID_TO,
    VERSION,
    sql_name,
)

_RESERVED: Final = frozenset({".", "..", "_millrace"})


_OWN: Final[dict[TableKind, tuple[str, ...]]] = {
    "current": (*OWN, DELETED),
    "history": (*OWN, VALID_FROM, VALID_TO, IS_CURRENT, END),
    "changes": (*OWN, VERSION, *PLACE, RAW_KEY, RAW_VALUE),
}


def table_path(lakehouse: str, table: TableName) -> str:
    """``<lakehouse>/<schema>/<table>``; other characters than letters, digits, ``.-_`` as =XX.

    So is what a file system, or Millrace itself, means something else by. Not as %XX, which other
    readers of Delta tables take for an address's.
    """
    folders = (
        f"={ord(part[0]):02X}{part[1:]}"
        if part in _RESERVED
        else quote(part, safe="").replace("%", "=")
        for part in table
    )
    return "/".join([lakehouse.rstrip("/"), *folders])


def runs_path(lakehouse: str) -> str:
    """The folder of the plans."""
    return f"{lakehouse.rstrip('/')}/_millrace/runs"


def local_path(location: str) -> Path | None:
    """The path of a location on this machine's own file system, else None."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if parts.scheme else Path(location).absolute()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a derived table's columns are to be like; by the columns' names in the source.

    But for ``partition``, by names in the derived table.
    """

    include: Collection[str] = ()
    exclude: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    hashed: Collection[str] = ()
    nulled: Collection[str] = ()
    salt: str = field(default="", repr=False)
    types: Mapping[str, str] = field(default_factory=dict)
    unfit_is_null: Collection[str] = ()
    partition: Collection[str] = ()
    incompatible: Incompatible = "fail_table"

    def named(self) -> set[str]:
        """Every column that is spoken of."""
        listed = (self.include, self.exclude, self.rename, self.hashed, self.nulled, self.types)
        return {name for names in (*listed, self.unfit_is_null) for name in names}


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived table: its name, the captured table that it is made of, and its path.

    ``catalog`` is its name in Spark's catalog, where it has one.
    """

    name: str
    source: str
    kind: TableKind
    path: str
    options: DerivedTable
    wishes: Wishes
    marks_deletes: bool
    keep: timedelta
    deletion_vectors: bool
    catalog: str | None

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names that its columns can't have, since it has columns of its own by them."""
        return _OWN[self.kind]

    @property
    def keeps_records(self) -> bool:
        """Whether an archive has the records as they were: it hides nothing that they tell."""
        wishes = self.wishes
        return not (wishes.include or wishes.exclude or wishes.hashed or wishes.nulled)


def derived_tables(lakehouse: LakehouseSettings, captured: Iterable[str]) -> dict[str, Derived]:
    """Every derived table by its name.

    Raises ConfigError where two have one name, or one is of a table that isn't captured.
    """
    captured = sorted(set(captured))
    usual = (
        DerivedTable(source=source, kind=kind) for source in captured for kind in lakehouse.kinds
    )
    said = {(table.source, table.derived_name) for table in lakehouse.tables}
    wanted = [
        *(table for table in usual if (table.source, table.derived_name) not in said),
        *(table for table in lakehouse.tables if table.source in captured),
    ]
    tables: dict[str, Derived] = {}
    for options in wanted:
        name = options.derived_name
        if name in tables:
            raise ConfigError(
                f"there would be two derived tables {name}, of {tables[name].source} "
                f"({tables[name].kind}) and of {options.source} ({options.kind})",
                where="[[lakehouse.tables]]",
                remedy="give one of them another name",
            )
        tables[name] = _derived(lakehouse, options)
    _require_different(tables.values())
    return tables


def without_unfit(
    tables: Mapping[str, Derived],
    lakehouse: LakehouseSettings,
    keyless: Collection[str],
    begun: Collection[str],
) -> tuple[dict[str, Derived], list[str]]:
    """The tables, without those that nobody has asked for by name, and that can't be.

    A history follows rows by their keys, and so do marks of deletes: of sources that are
    ``keyless`` there is none, unless it was ``begun``. Also the names of those that were left out.
    """
    said = {table.derived_name for table in lakehouse.tables}
    usual = {
        name
        for name, one in tables.items()
        if name not in said and name not in begun and one.source in keyless
    }
    out = sorted(name for name in usual if tables[name].kind == "history")
    kept = {
        name: replace(one, marks_deletes=False) if name in usual else one
        for name, one in tables.items()
        if name not in out
    }
    return kept, out


def _require_different(tables: Iterable[Derived]) -> None:
    """Refuse tables with one path, or that would have one name in the catalog."""
    named: dict[str, str] = {}
    places: dict[str, str] = {}
    for table in tables:
        place = table.path.rstrip("/")
        if place in places:
            raise ConfigError(
                f"{places[place]} and {table.name} would both be in {table.path}",
                where="[[lakehouse.tables]]",
                remedy="give one of them another path",
            )
        places[place] = table.name
        if table.catalog is None:
            continue
        name = table.catalog.lower()
        if name in named:
            raise ConfigError(
                f"in the catalog, {named[name]} and {table.name} would both be {table.catalog}",
                where="[lakehouse] catalog",
                remedy="give one of them another name by catalog in [[lakehouse.tables]]",
            )
        named[name] = table.name


def _catalog_name(schema: str | None, table: TableName) -> str | None:
    """The table in a schema of the catalog; characters that names can't have there are ``_``."""
    return None if schema is None else f"{schema}.{sql_name(table.name)}"


def _derived(lakehouse: LakehouseSettings, options: DerivedTable) -> Derived:
    name = options.derived_name
    salt = lakehouse.salt.get_secret_value() if lakehouse.salt is not None else ""
    return Derived(
        name=name,
        source=options.source,
        kind=options.kind,
        path=options.path or table_path(lakehouse.path, TableName.parse(name)),
        options=options,
        wishes=Wishes(
            include=options.include,
            exclude=options.exclude,
            rename=options.rename,
            hashed=[name for name, mask in options.mask.items() if mask == "hash"],
            nulled=[name for name, mask in options.mask.items() if mask == "null"],
            salt=salt,
            types=options.types,
            unfit_is_null=[name for name, what in options.unfit.items() if what == "null"],
            partition=options.partition,
            incompatible=options.incompatible or lakehouse.incompatible,
        ),
        keep=lakehouse.keep,
        catalog=options.catalog or _catalog_name(lakehouse.catalog, TableName.parse(name)),
        deletion_vectors=lakehouse.deletion_vectors,
        marks_deletes=options.kind == "current"
        and (options.deletes or lakehouse.deletes) == "mark",
    )
