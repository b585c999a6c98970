"""Log → a reader's items: one change of a row, or of a whole table, as a typed event.

A column without a value is missing in ``after`` or ``before``. A NULL is present, as None.
"""

from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cdc.records.bounds import EndedRows
from cdc.records.fields import LsnField, PositionField

RowImage = dict[str, Any]
ChangeOperation = Literal["c", "r", "u", "d", "t", "p"]
"""Debezium's letters: create, read by a snapshot, update, delete, truncate. Ours: the end of rows
with their partition.
"""


class ChangeSource(BaseModel):
    """The origin of a change: the members of Debezium's source block that PostgreSQL has.

    ``snapshot`` is Debezium's word for a row's place in its snapshot, and false in the stream.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    connector: str = ""
    name: str = ""
    database: str = Field("", alias="db")
    namespace: str = Field("", alias="schema")
    table: str = ""
    xid: int | None = Field(None, alias="txId")
    lsn: LsnField | None = None
    snapshot: str | bool | None = None
    origin: str | None = None


class ChangeEvent(BaseModel):
    """One change. docs/reference/types.md describes its values.

    Values are bytes or Decimal if schemas say so. ``key`` is None if the table has no key, or the
    change isn't about one row. An update has ``before`` only with REPLICA IDENTITY FULL. Without
    it, a delete's ``before`` has only the key. ``absent`` are the columns that an update left
    unchanged and that the log has no value for. ``filled`` columns were also unchanged, and their
    values were read at another time. ``lost`` columns were too large for their topic, and are no
    longer in the log, since a newer change of the row follows. ``ended`` says which rows were
    removed with a partition.

    ``position`` orders all changes of the source; a real Debezium's record has none. Topic,
    partition and offset identify the record, also when it arrives again.
    """

    model_config = ConfigDict(
        frozen=True, ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
    )

    operation: ChangeOperation
    table: str
    key: RowImage | None
    before: RowImage | None
    after: RowImage | None
    absent: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    ended: EndedRows | None = None
    source: ChangeSource
    position: PositionField | None
    commit_time: datetime
    schema_version: int | None = None
    topic: str
    partition: int
    offset: int

    @cached_property
    def row(self) -> RowImage:
        """Return the current row. For a delete, return the known part of the old row."""
        image = self.before if self.operation == "d" else self.after
        return {**(self.key or {}), **(image or {})}
