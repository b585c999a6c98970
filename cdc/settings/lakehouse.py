"""[lakehouse] → the derived tables, their location, and their columns."""

import re
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from cdc.settings.drops import DropSettings, OwnDropSettings
from cdc.settings.kinds import Duration, repeated, split

TableKind = Literal["current", "history", "changes"]
Mask = Literal["hash", "null"]
Incompatible = Literal["fail_table", "new_column", "cast"]
Unfit = Literal["fail", "null"]
Compatibility = Literal["delta", "readers"]
TopicWriter = Literal["millrace", "debezium"]
_TYPE: Final = re.compile(
    r"string|smallint|int|bigint|float|double|decimal\((?:[1-9]|[12]\d|3[0-8]),\s*\d{1,2}\)"
)
_TABLE: Final = re.compile(r"[^.]+\..+", re.DOTALL)
_TYPES: Final = "types."
_SCHEMA: Final = r"^[^.`]+(\.[^.`]+)?$"
_IN_CATALOG: Final = r"^[^.`]+(\.[^.`]+){1,2}$"


def _table(text: str) -> str:
    if not _TABLE.fullmatch(text):
        raise ValueError(f"{text!r} has no schema: write schema.table")
    return text


TableText = Annotated[str, AfterValidator(_table)]


class DerivedTable(OwnDropSettings):
    """One derived table of a captured one (``source``, as ``schema.table``).

    ``current`` has the current rows, ``history`` every version of each, ``changes`` every event.
    ``name`` is its own, ``catalog`` that in Spark's catalog. Columns have their names in the
    source, except in ``partition`` and ``cluster``, which use the names in this table.
    ``incompatible`` decides about a column whose new type can't hold the old values, ``unfit``
    about a value that its column can't hold. ``compatibility`` limits the features of a merge: all
    of Delta's, or those of other readers.
    """

    source: TableText
    kind: TableKind = "current"
    name: TableText | None = None
    path: str | None = Field(None, min_length=1)
    catalog: str | None = Field(None, pattern=_IN_CATALOG)
    deletes: Literal["remove", "mark"] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = Field({})
    mask: dict[str, Mask] = Field({})
    types: dict[str, str] = Field({})
    unfit: dict[str, Unfit] = Field({})
    partition: tuple[str, ...] = ()
    cluster: tuple[str, ...] = Field((), max_length=4)
    incompatible: Incompatible | None = None
    compatibility: Compatibility | None = None

    @field_validator("types")
    @classmethod
    def _check_types(cls, types: dict[str, str]) -> dict[str, str]:
        for column, kind in types.items():
            if not _TYPE.fullmatch(kind):
                kinds = "string, smallint, int, bigint, float, double, decimal(p,s) with p up to 38"
                raise ValueError(f"{column}: {kind} isn't one of {kinds}")
        return types

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.include and self.exclude:
            raise ValueError(f"{self.source}: set include or exclude, not both")
        if self.partition and self.cluster:
            raise ValueError(f"{self.source}: set partition or cluster, not both")
        if self.deletes is not None and self.kind != "current":
            raise ValueError(f"{self.source}: deletes is for kind = current")
        if self.column_drop_policy == "remove" and self.kind == "changes":
            raise ValueError(
                f'{self.source}: column.drop.policy = "remove" isn\'t for kind = changes: an'
                " archive keeps every event unchanged"
            )
        return self

    @property
    def derived_name(self) -> str:
        """Return its name in plans, messages, cuts and queries: ``schema.table``."""
        return self.name or (
            self.source if self.kind == "current" else f"{self.source}_{self.kind}"
        )


class LakehouseSettings(DropSettings):
    """The Delta tables: their location, a path of any Hadoop file system, and their options.

    Every captured table has one of each of the ``kinds``. ``tables`` adds others, or refines one of
    those. ``catalog`` is the schema of Spark's catalog that also has their names (``sales``,
    ``main.sales``). ``salt`` is added to the input of a hash mask. For ``keep`` the tables can be
    queried at earlier versions. With ``deletion_vectors`` a merge marks rows of a file as removed,
    and doesn't rewrite the file. With ``compatibility = "readers"`` it rewrites files if some
    readers don't support a feature that avoids it. With ``topics_written_by`` a real Debezium,
    records may lack the types of columns: ``types`` has them, by table and column, as PostgreSQL
    declares them.
    """

    path: str = Field(min_length=1)
    catalog: str | None = Field(None, pattern=_SCHEMA)
    keep: Duration = Field(timedelta(days=7), ge=timedelta(hours=1))
    kinds: tuple[TableKind, ...] = ("current",)
    deletes: Literal["remove", "mark"] = "remove"
    incompatible: Incompatible = "fail_table"
    deletion_vectors: bool = True
    compatibility: Compatibility = "delta"
    salt: SecretStr | None = None
    tables: tuple[DerivedTable, ...] = ()
    topics_written_by: TopicWriter = "millrace"
    types: dict[str, dict[str, str]] = Field({})

    @model_validator(mode="before")
    @classmethod
    def _gather_types(cls, data: Any) -> Any:
        """Gather keys ``types.<table>.<column>`` into a mapping of mappings."""
        rest, given = split(data, lambda key: key.startswith(_TYPES))
        types: dict[str, dict[str, Any]] = {}
        for key, value in given.items():
            table, _, column = key.removeprefix(_TYPES).rpartition(".")
            types.setdefault(table, {})[column] = value
        return rest | {"types": types} if given else data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.types and self.topics_written_by == "millrace":
            raise ValueError(
                'types is for topics_written_by = "debezium": Millrace\'s own log has all types'
            )
        policies = (self.table_drop_policy, *(table.table_drop_policy for table in self.tables))
        if "delete" in policies and self.topics_written_by == "debezium":
            raise ValueError(
                'table.drop.policy = "delete" needs Millrace\'s own log: the topics of a real'
                " Debezium don't show that a table was dropped"
            )
        columns = (self.column_drop_policy, *(table.column_drop_policy for table in self.tables))
        if "remove" in columns and self.topics_written_by == "debezium":
            raise ValueError(
                'column.drop.policy = "remove" needs Millrace\'s own log: a field that records of'
                " a real Debezium lack may not be a dropped column"
            )
        options = (self.incompatible, *(table.incompatible for table in self.tables))
        if "new_column" in options and self.topics_written_by == "debezium":
            raise ValueError(
                'incompatible = "new_column" needs schema versions, which the records of a real'
                " Debezium don't have: use fail_table or cast"
            )
        if twice := repeated([table.derived_name for table in self.tables]):
            raise ValueError(f"tables: {twice}: give each derived table another name")
        if self.salt is None and any("hash" in table.mask.values() for table in self.tables):
            raise ValueError(
                'a mask that hashes needs a salt ("${env:NAME}"): without one, anyone can guess'
                " values"
            )
        return self

    def reshaped(self, source: str) -> set[str]:
        """Return the columns of a captured table that a derived one hashes or converts."""
        derived = (table for table in self.tables if table.source == source)
        return {column for table in derived for column in (*table.mask, *table.types)}
