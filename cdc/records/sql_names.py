"""Names → their form in SQL, including SQL that users paste."""

import re
from collections.abc import Iterable
from typing import Final

from cdc.records.schema import TableName

_RESERVED: Final = """
all analyse analyze and any array as asc asymmetric authorization binary both case cast check
collate collation column concurrently constraint create cross current_catalog current_date
current_role current_schema current_time current_timestamp current_user default deferrable desc
distinct do else end except false fetch for foreign freeze from full grant group having ilike in
initially inner intersect into is isnull join lateral leading left like limit localtime
localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
references returning right select session_user similar some symmetric system_user table
tablesample then to trailing true union unique user using variadic verbose when where window
with
"""
RESERVED_WORDS: Final = frozenset(_RESERVED.split())
"""Words of PostgreSQL 14 to 18 that need quotes as names.

https://www.postgresql.org/docs/current/sql-keywords-appendix.html
"""


def quote(name: str) -> str:
    """Return a name's form in SQL that the user can paste."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in RESERVED_WORDS:
        return name
    if not name.isprintable():  # a line break would end the line
        units = (c if c.isprintable() and c != "\\" else f"\\+{ord(c):06X}" for c in name)
        return 'U&"' + "".join(units).replace('"', '""') + '"'
    return '"' + name.replace('"', '""') + '"'


def sql_names(names: Iterable[TableName]) -> str:
    """Return tables' names in SQL that the user can paste."""
    return ", ".join(f"{quote(name.namespace)}.{quote(name.name)}" for name in names)
