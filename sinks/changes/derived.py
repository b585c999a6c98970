"""[lakehouse] and the log's tables → the derived tables, with their sources and paths."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from cdc.errors import ConfigError
from cdc.records.schema import TableName
from cdc.settings.lakehouse import DerivedTable, LakehouseSettings, TableKind
from cdc.settings.views import VIEWS
from sinks.changes.names import (
    DELETED,
    END,
    IS_CURRENT,
    OWN,
    RAW_KEY,
    RAW_VALUE,
    RECORD_OFFSET,
    RECORD_PARTITION,
    VALID_FROM,
    VALID_TO,
    VERSION,
    sql_name,
)

_RESERVED: Final = frozenset({".", "..", "_millrace"})


_OWN: Final[dict[TableKind, tuple[str, ...]]] = {
    "current": (*OWN, DELETED),
    "history": (*OWN, VALID_FROM, VALID_TO, IS_CURRENT, END),
    "changes": (*OWN, VERSION, RECORD_PARTITION, RECORD_OFFSET, RAW_KEY, RAW_VALUE, END),
}


def table_path(lakehouse: str, table: TableName) -> str:
    """Return ``<lakehouse>/<schema>/<table>``, with =XX for all but letters, digits and ``.-_``.

    Names with a special meaning for a file system, or for Millrace, are escaped, too. Other readers
    of Delta tables would decode %XX as in a URL.
    """
    folders = (
        f"={ord(name[0]):02X}{name[1:]}"
        if name in _RESERVED
        else quote(name, safe="").replace("%", "=")
        for name in table
    )
    return "/".join([lakehouse.rstrip("/"), *folders])


def runs_path(lakehouse: str) -> str:
    """Return the folder of the plans."""
    return f"{lakehouse.rstrip('/')}/_millrace/runs"


def local_path(location: str) -> Path | None:
    """Return the path of a location on this machine's own file system, else None."""
    url = urlsplit(location)
    if url.scheme == "file":
        return Path(url.path)
    return None if url.scheme else Path(location).absolute()


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived table: its name, the captured table that it is made of, and its path.

    ``options`` are the user's, completed by the lakehouse's. ``salt`` is added to the input of a
    hash mask. ``catalog`` is its name in Spark's catalog, if it has one. ``removal`` is a digest of
    the options by which columns are removed once the source has dropped them. Empty: they stay.
    """

    name: str
    source: str
    kind: TableKind
    path: str
    options: DerivedTable
    salt: str = field(repr=False)
    marks_deletes: bool
    keep: timedelta
    deletion_vectors: bool
    catalog: str | None
    removal: str = ""

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names that its columns can't have, as its own columns have them."""
        return _OWN[self.kind]

    @property
    def for_readers(self) -> bool:
        """Whether it uses only features that all readers in docs/reference/lakehouse.md support."""
        return self.options.compatibility == "readers"

    @property
    def keeps_records(self) -> bool:
        """Whether an archive keeps complete records, as it hides none of their columns."""
        return not (self.options.include or self.options.exclude or self.options.mask)


def derived_tables(lakehouse: LakehouseSettings, captured: Iterable[str]) -> dict[str, Derived]:
    """Return every derived table by its name.

    Raise ConfigError if two have one name, or one is of a table that isn't captured.
    """
    captured = sorted(set(captured))
    usual = (
        DerivedTable(source=source, kind=kind) for source in captured for kind in lakehouse.kinds
    )
    configured = {(table.source, table.derived_name) for table in lakehouse.tables}
    wanted = [
        *(table for table in usual if (table.source, table.derived_name) not in configured),
        *(table for table in lakehouse.tables if table.source in captured),
    ]
    tables: dict[str, Derived] = {}
    for options in wanted:
        name = options.derived_name
        if name in tables:
            raise ConfigError(
                f"two derived tables would have the name {name}: one of {tables[name].source}"
                f" ({tables[name].kind}) and one of {options.source} ({options.kind})",
                where="[[lakehouse.tables]]",
                remedy="give one of them another name",
            )
        tables[name] = _derived(lakehouse, options)
    _require_different(tables.values())
    return tables


def derived_view(lakehouse: LakehouseSettings, name: str) -> Derived:
    """Return the Delta table of a view, ``views.<name>``, which has no captured table."""
    table = TableName(VIEWS, name)
    given = {"compatibility": lakehouse.compatibility, "incompatible": lakehouse.incompatible}
    return Derived(
        name=str(table),
        source="",
        kind="current",
        path=table_path(lakehouse.path, table),
        options=DerivedTable(source=str(table)).model_copy(update=given),
        salt="",
        marks_deletes=False,
        keep=lakehouse.keep,
        deletion_vectors=lakehouse.deletion_vectors and lakehouse.compatibility == "delta",
        catalog=None,
    )


def without_unfit(
    tables: Mapping[str, Derived],
    lakehouse: LakehouseSettings,
    keyless: Collection[str],
    begun: Collection[str],
) -> tuple[dict[str, Derived], list[str]]:
    """Return the tables without those that can't be made and that no option names.

    A history follows rows by their keys, and so do marks of deletes. So ``keyless`` sources have no
    marks, and no history unless it was ``begun``. Also returns the names left out.
    """
    configured = {table.derived_name for table in lakehouse.tables}
    usual = {
        name for name, table in tables.items() if name not in configured and table.source in keyless
    }
    out = sorted(name for name in usual if tables[name].kind == "history" and name not in begun)
    kept = {
        name: replace(table, marks_deletes=False) if name in usual else table
        for name, table in tables.items()
        if name not in out
    }
    return kept, out


def require_keyless_kind(derived: Derived) -> None:
    """Raise ConfigError if a table without a key needs one to follow its rows."""
    if derived.kind == "history" or derived.marks_deletes:
        raise ConfigError(
            f"{derived.source} has no key, so its rows can't be followed",
            where="[[lakehouse.tables]]",
            remedy='remove kind = "history" and deletes = "mark" for it',
        )


def _require_different(tables: Iterable[Derived]) -> None:
    """Refuse tables with the same path, or the same name in the catalog."""
    by_path: dict[str, str] = {}
    by_catalog_name: dict[str, str] = {}
    for table in tables:
        path = table.path.rstrip("/")
        if path in by_path:
            raise ConfigError(
                f"{by_path[path]} and {table.name} would both be in {table.path}",
                where="[[lakehouse.tables]]",
                remedy="give one of them another path",
            )
        by_path[path] = table.name
        if table.catalog is None:
            continue
        name = table.catalog.lower()
        if name in by_catalog_name:
            other = by_catalog_name[name]
            raise ConfigError(
                f"{other} and {table.name} would both be {table.catalog} in the catalog",
                where="[lakehouse] catalog",
                remedy="give one of them another name with catalog in [[lakehouse.tables]]",
            )
        by_catalog_name[name] = table.name


def _catalog_name(schema: str | None, table: TableName) -> str | None:
    """Return the table in a schema of the catalog. ``_`` replaces invalid characters."""
    return None if schema is None else f"{schema}.{sql_name(table.name)}"


def _derived(lakehouse: LakehouseSettings, options: DerivedTable) -> Derived:
    name = options.derived_name
    given = {
        "incompatible": options.incompatible or lakehouse.incompatible,
        "compatibility": options.compatibility or lakehouse.compatibility,
    }
    return Derived(
        name=name,
        source=options.source,
        kind=options.kind,
        path=options.path or table_path(lakehouse.path, TableName.parse(name)),
        options=options.model_copy(update=given),
        salt=lakehouse.salt.get_secret_value() if lakehouse.salt is not None else "",
        keep=lakehouse.keep,
        catalog=options.catalog or _catalog_name(lakehouse.catalog, TableName.parse(name)),
        deletion_vectors=lakehouse.deletion_vectors and given["compatibility"] == "delta",
        marks_deletes=options.kind == "current"
        and (options.deletes or lakehouse.deletes) == "mark",
        removal=_removal(lakehouse, options),
    )


def _removal(lakehouse: LakehouseSettings, options: DerivedTable) -> str:
    if options.kind == "changes" or not lakehouse.removes_columns(options):
        return ""
    of = json.dumps([sorted(options.include), sorted(options.exclude)])
    return hashlib.sha256(of.encode()).hexdigest()[:16]
