"""What a reader gets: one change of a row, or of a whole table, as a typed event.

A column that a row has no value for isn't in ``after``, or in ``before``. A NULL is there, as None.
"""

from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cdc.records.bounds import EndedRows
from cdc.records.fields import LsnField, PositionField

RowImage = dict[str, Any]
ChangeOperation = Literal["c", "r", "u", "d", "t", "p"]
"""Debezium's letters: create, read by a snapshot, update, delete, truncate; ours: rows that ended
with their partition."""


class ChangeSource(BaseModel):
    """Where a change comes from: the members of Debezium's source block that PostgreSQL has.

    ``snapshot`` is Debezium's word for where a row is in its snapshot, and false in the stream.
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
    """One change; its values are as docs/reference/types.md says.

    They are bytes or Decimal where schemas say so.
    ``key`` is None where the table has no key, and of what isn't about one row. ``before`` of an
    update is there under REPLICA IDENTITY FULL only; without it a delete's has only the key.
    ``absent`` are the columns that an update left unchanged and the log has no value for. The
    values of ``filled`` ones were read at another time, since the change left them unchanged.
    ``lost`` are columns that were too large for their topic, and are in the log no longer, since a
    newer change of the row follows. ``ended`` says which rows went with a partition.

    ``position`` orders all changes of the source; a record of a real Debezium has none. Topic,
    partition and offset are the record's own: they name it, whenever it comes again.
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
        """The row as it is now; of a delete what is known of the row that went."""
        image = self.before if self.operation == "d" else self.after
        return {**(self.key or {}), **(image or {})}
