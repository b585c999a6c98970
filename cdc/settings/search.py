"""[search] → the server, the names of its indexes, and the joined documents."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.settings.drops import (
    COLUMN_POLICY,
    ColumnDropPolicy,
    DropSettings,
    OwnColumnDropSettings,
    OwnDropSettings,
)
from cdc.settings.kinds import Section, repeated, web_address
from cdc.settings.lakehouse import TableText, Unfit

PROGRESS_INDEX: Final = "millrace-progress"
DEAD_LETTER_INDEX: Final = "millrace-dead-letters"
OWN_INDEXES: Final = frozenset({PROGRESS_INDEX, DEAD_LETTER_INDEX})
"""Millrace's own indexes. Each has ``index.prefix`` before its name."""
_FIELD: Final = re.compile(r"[^_.\s][^.]*")
_INDEX: Final = r"^[a-z0-9][a-z0-9._-]*$"


def _field(text: str) -> str:
    if not _FIELD.fullmatch(text):
        raise ValueError(
            f"{text!r} can't be a field: it must have no dot, no blank, and no _ at its beginning"
        )
    return text


def _index(text: str) -> str:
    if text in OWN_INDEXES:
        raise ValueError(f"{text} is one of Millrace's own indexes: choose another name")
    return text


IndexText = Annotated[str, Field(pattern=_INDEX), AfterValidator(_index)]
FieldText = Annotated[str, AfterValidator(_field)]
Columns = Annotated[dict[str, str], Field(min_length=1)]


class Through(Section):
    """The table between two that are joined many to many. ``on``: its column = the outer one's."""

    table: TableText
    on: Columns


class JoinedRows(Section):
    """Rows of a lakehouse table in a document, with the rows embedded in each.

    Columns have their names in the lakehouse. ``computed`` are fields in Spark SQL over the row's
    columns and embedded rows. ``where`` is Spark SQL over its columns.
    """

    table: TableText
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, FieldText] = Field({})
    computed: dict[FieldText, str] = Field({})
    where: str | None = Field(None, min_length=1)
    embed: tuple["Embedded", ...] = ()

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.include and self.exclude:
            raise ValueError(f"{self.table}: set include or exclude, not both")
        fields = [
            *self.rename.values(),
            *self.computed,
            *(embedded.field for embedded in self.embed),
        ]
        if twice := repeated(fields):
            raise ValueError(f"{self.table}: two fields have the name {twice}")
        return self

    def tables(self) -> Iterator[str]:
        """Yield all tables that are joined."""
        yield self.table
        for embedded in self.embed:
            if embedded.through is not None:
                yield embedded.through.table
            yield from embedded.tables()


class Embedded(JoinedRows):
    """Rows that are embedded in an outer one as ``field``: one row, or all if ``many``.

    ``on`` maps columns of the table to those of the outer table, or of the table ``through`` which
    it joins.
    """

    field: FieldText
    on: Columns
    many: bool = False
    through: Through | None = None


class Indexed(Section):
    """The part of an index that isn't derived from PostgreSQL's types, in the server's own words.

    ``mapping`` defines how fields are searched, by their paths (``airline.name``). ``settings`` are
    the index's, such as analyzers and the number of shards.
    """

    mapping: dict[str, dict[str, Any]] = Field({})
    settings: dict[str, Any] = Field({})

    @property
    def overrides(self) -> str:
        """Return mapping and settings as text, for a comparison with an existing index.

        Empty: none.
        """
        overrides = self.model_dump(include={"mapping", "settings"}, exclude_defaults=True)
        return json.dumps(overrides, sort_keys=True) if overrides else ""


class Document(JoinedRows, Indexed, OwnColumnDropSettings):
    """A joined document for each row of ``table``, in the index ``<index.prefix><name>``."""

    name: IndexText


class IndexOfTable(Indexed, OwnDropSettings):
    """How the index of a captured table differs from the derived one.

    With a ``name`` it is ``<index.prefix><name>``. ``unfit`` decides, by column, about a value that
    no date or number can be.
    """

    table: TableText
    name: IndexText | None = None
    unfit: dict[str, Unfit] = Field({})


class SearchSettings(DropSettings):
    """The OpenSearch or Elasticsearch server, and the names of its indexes.

    Each of the ``tables`` (default: every captured one) has its own index, which ``indexes`` may
    refine. ``documents`` are made of several tables. If a column is dropped, a new index without
    its field is loaded, by default.
    """

    url: Annotated[str, AfterValidator(web_address)] = Field(pattern=r"^https?://", repr=False)
    index_prefix: str = Field("", alias="index.prefix", pattern=r"^[a-z0-9._-]*$")
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    column_drop_policy: ColumnDropPolicy = Field("remove", alias=COLUMN_POLICY)
    bulk_bytes: int = Field(1 << 20, alias="bulk.bytes", ge=1 << 16)
    refused_documents: Literal["dead_letter", "fail"] = Field(
        "dead_letter", alias="refused.documents"
    )
    api_key: SecretStr | None = Field(None, alias="api.key")
    tables: tuple[TableText, ...] | None = None
    indexes: tuple[IndexOfTable, ...] = ()
    documents: tuple[Document, ...] = ()

    def index_of(self, table: str) -> IndexOfTable:
        """Return the configuration of a captured table's index."""
        none = IndexOfTable(table=table)
        return next((index for index in self.indexes if index.table == table), none)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.api_key is not None and self.username is not None:
            raise ValueError("set api.key, or username and password, not both")
        names = [document.name for document in self.documents]
        if twice := repeated(names):
            raise ValueError(f"documents: {twice}: give each index another name")
        if twice := repeated([index.table for index in self.indexes]):
            raise ValueError(f"indexes: {twice}: write all options of a table in one place")
        return self
