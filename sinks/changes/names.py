"""Columns of a derived table that are Millrace's own, and what an operation is called."""

import re
from typing import Final

POSITION: Final = "_millrace_position"
OP: Final = "_millrace_op"
ABSENT: Final = "_millrace_absent"
FILLED: Final = "_millrace_filled"
COUNT: Final = "_millrace_count"
ROW: Final = "_millrace_row"
LOST: Final = "_millrace_lost"
"""Why a change lacks values that its record should have; there where records had claims."""
TIME: Final = "_millrace_time"
"""When a change was committed; a snapshot's row: when it was read."""
CREATED: Final = "_millrace_created"
"""Whether a change has made the row; where a history asks for it."""
SNAPSHOT: Final = "_millrace_snapshot"
"""Whether it is a row as a snapshot has read it (op r), and no change."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"

DELETED: Final = "_millrace_deleted"
"""Whether a row is gone from the source; where deletes are marked."""
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
END: Final = "_millrace_end"
"""The position at which another version, or nothing, came after this one; null: it is current.

In an archive: of a gap, up to where events may be missing.
"""
VERSION: Final = "_millrace_schema_version"
RECORD_PARTITION: Final = "_millrace_partition"
RECORD_OFFSET: Final = "_millrace_offset"
RAW_KEY: Final = "_millrace_key"
RAW_VALUE: Final = "_millrace_value"
OWN: Final = (POSITION, OP, ABSENT, FILLED, COUNT, ROW, LOST, TIME, CREATED, SNAPSHOT)
"""Names that no column of the source can have in a derived table."""
COLUMN_ID: Final = "millrace column "
"""Opens the comment that identifies a derived table's column, whatever its name."""

NOT_IN_PARQUET: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that a column's name can have by Delta's column mapping only."""
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")


def sql_name(name: str) -> str:
    """A table's name as SQL has it without quotes: other characters are ``_``."""
    return _OTHER.sub("_", name).lower()


def quoted(name: str) -> str:
    """A column's name as part of an SQL expression."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def quoted_path(name: str) -> str:
    """A table's name in Spark's catalog, below its schemas, as SQL wants it."""
    return ".".join(map(quoted, name.split(".")))
