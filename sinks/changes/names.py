"""The names of Millrace's own columns in a derived table, and of operations."""

import re
from typing import Final

POSITION: Final = "_millrace_position"
OP: Final = "_millrace_op"
ABSENT: Final = "_millrace_absent"
FILLED: Final = "_millrace_filled"
COUNT: Final = "_millrace_count"
ROW: Final = "_millrace_row"
LOST: Final = "_millrace_lost"
"""Why a change lacks values that its record should have. Present if records had claims."""
TIME: Final = "_millrace_time"
"""When a change was committed. For a snapshot's row: when it was read."""
CREATED: Final = "_millrace_created"
"""Whether a change has created the row. Present if a history asks for it."""
SNAPSHOT: Final = "_millrace_snapshot"
"""Whether it is a row that a snapshot has read (op r), not a change."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"

DELETED: Final = "_millrace_deleted"
"""Whether a row is gone from the source. Present if deletes are marked."""
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
END: Final = "_millrace_end"
"""The position at which the next version, or a delete, follows. Null: it is current.

In an archive: a gap's end, up to which events may be missing.
"""
VERSION: Final = "_millrace_schema_version"
RECORD_PARTITION: Final = "_millrace_partition"
RECORD_OFFSET: Final = "_millrace_offset"
RAW_KEY: Final = "_millrace_key"
RAW_VALUE: Final = "_millrace_value"
OWN: Final = (POSITION, OP, ABSENT, FILLED, COUNT, ROW, LOST, TIME, CREATED, SNAPSHOT)
"""Names that no column of the source can have in a derived table."""
COLUMN_ID: Final = "millrace column "
"""Beginning of the comment that identifies a derived table's column, whatever its name."""

NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that a column's name can have only with Delta's column mapping."""
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")


def sql_name(name: str) -> str:
    """Return a table's name in SQL without quotes: ``_`` replaces other characters."""
    return _OTHER.sub("_", name).lower()


def quoted(name: str) -> str:
    """Return a column's name as a part of an SQL expression."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def quoted_path(name: str) -> str:
    """Return a table's qualified name in Spark's catalog, in SQL."""
    return ".".join(map(quoted, name.split(".")))
