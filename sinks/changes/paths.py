"""The lakehouse's location and a table's name → where things are in it."""

from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from cdc.records.schema import TableName

_RESERVED: Final = frozenset({".", "..", "_millrace"})


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
