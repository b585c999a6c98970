"""``changes()``: a program's call → the changes, or the transactions, of captured tables."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, overload

from cdc.errors import ConfigError
from cdc.reader.access import LogAccess, Passed
from cdc.reader.start import Start
from cdc.reader.stream import ChangeStream
from cdc.reader.transactions import TransactionStream
from cdc.settings import DEFAULT_PATH, Settings


@overload
def changes(
    config: str | Path | Settings = ...,
    *,
    tables: Iterable[str] | None = ...,
    group: str | None = ...,
    start: Start = ...,
    transactions: Literal[False] = ...,
    on_dead_letter: Passed | None = ...,
    stop: threading.Event | None = ...,
) -> ChangeStream: ...


@overload
def changes(
    config: str | Path | Settings = ...,
    *,
    tables: Iterable[str] | None = ...,
    group: str | None = ...,
    start: Start = ...,
    transactions: Literal[True],
    on_dead_letter: Passed | None = ...,
    stop: threading.Event | None = ...,
) -> TransactionStream: ...


def changes(
    config: str | Path | Settings = DEFAULT_PATH,
    *,
    tables: Iterable[str] | None = None,
    group: str | None = None,
    start: Start = "beginning",
    transactions: bool = False,
    on_dead_letter: Passed | None = None,
    stop: threading.Event | None = None,
) -> ChangeStream | TransactionStream:
    """Read the changes of captured tables from the log, each at least once.

    ``tables`` are named schema.table; the default is all. A ``group`` continues at its position;
    without one, no position is kept. ``start`` is where a new group begins: at the beginning, now,
    at a time or at an LSN. With ``transactions`` each item is a transaction of the source, with its
    changes. ``on_dead_letter`` is called for each change that couldn't be written to the log.
    SIGTERM and SIGINT end the loop, unless ``stop`` is given, which ends it instead.
    """
    named = None if tables is None else tuple(tables)
    if isinstance(tables, str) or named == ():
        raise ConfigError("tables isn't a list of names", where="tables")
    access = LogAccess(config, named, stop, on_dead_letter)
    if transactions:
        return TransactionStream(access, group, start)
    return ChangeStream(access, group, start)
