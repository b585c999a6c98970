"""A record that ends rows at once → the plan's entry: up to which position, when, which rows."""

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc.errors import LogFormatError
from cdc.records.bounds import Bound, EndedRows
from cdc.records.fields import PositionField
from cdc.records.position import Position


class RowsEnd(BaseModel):
    """An end of rows as old as ``position``: all of them, or those within all ``bounds``.

    All rows end with a TRUNCATE, and before a whole new snapshot. Those within bounds end with a
    dropped partition. Newer rows stay, wherever they are in the log. ``ts_us`` is the time (µs
    since 1970). Bounds use the column names of the table's ``schema_version``.
    """

    model_config = ConfigDict(frozen=True)

    position: PositionField
    ts_us: int
    bounds: tuple[Bound, ...] = ()
    schema_version: int = 0

    @classmethod
    def of_record(
        cls, position: str, ts_us: int, ended: str | None, schema_version: int
    ) -> "RowsEnd":
        """Return the end in a record at a position. ``ended`` is JSON; None: a TRUNCATE.

        Raise LogFormatError if it can't be read.
        """
        if ended is None:
            return cls(position=Position.parse(position), ts_us=ts_us)
        try:
            rows = EndedRows.model_validate_json(ended)
        except ValidationError as error:
            raise LogFormatError(
                f"an event of op p can't be read: {error.errors()[0]['msg']}",
                where=f"position {position}",
                remedy="upgrade this Millrace: a newer one has written it",
            ) from None
        return cls(
            position=rows.upto, ts_us=ts_us, bounds=rows.bounds, schema_version=schema_version
        )
