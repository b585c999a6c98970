"""Rows that differ at two instants → orders to the daemon, which sends their current state again.

An order is a logical message of the source: no table is written to. The daemon reads each row by
its key, and sends it at the order's position in the stream. Each sink applies it in its next run,
as it does any change.
"""

import shlex
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

import psycopg

from cdc.errors import MillraceError
from cdc.postgres.connection import connect, query
from cdc.records.orders import KEYS_MAX, ORDER_BYTES_MAX, REPAIR_ORDERS, RepairOrder
from cdc.records.record import to_json
from cdc.settings import Settings
from compaction.verify.confirm import printed_keys
from compaction.verify.hashed import KeyTexts, is_text
from compaction.verify.instant import PURPOSE
from compaction.verify.report import SinkTable
from compaction.verify.source import SourceRead

_HEAD_BYTES: Final = 1_024
"""More than an order has in addition to its keys, with its message."""
REPAIRED_MAX: Final = 10_000
"""The daemon reads row by row while its stream waits. For more rows, read the table again."""
_UNKNOWN: Final = "some keys can't be sent as orders: {} reads the table again"
_UNANSWERED: Final = "the source hasn't confirmed the orders in time: verify again later"
_EMIT: Final = "SELECT pg_logical_emit_message(true, %s, %s::text)"
_KeyByName = dict[str, str]


class DifferingRows(NamedTuple):
    """A table's read at the source, and the keys of all its differing rows."""

    read: SourceRead
    keys: Collection[KeyTexts]


class Ordered(NamedTuple):
    """The ordered keys of each table, and why others weren't ordered."""

    keys: dict[SinkTable, set[KeyTexts]]
    why_not: dict[SinkTable, str]


class Repair:
    """Orders rows of one pipeline. A header of the daemon's records has ``id``."""

    def __init__(
        self, settings: Settings, log_name: str, id_: str, timeout_s: float = 30.0
    ) -> None:
        self._settings = settings
        self._log_name = log_name
        self._timeout_s = timeout_s
        self.id = id_

    def order(self, tables: Mapping[SinkTable, DifferingRows]) -> Ordered:
        """Write the orders, which tables in several sinks may share."""
        ordered = Ordered({}, {})
        written = dict[str, set[KeyTexts]]()
        with closing(connect(self._settings.source, purpose=PURPOSE)) as connection:
            # Its commit is visible after everything that waits for a synchronous standby.
            query(connection, "SET synchronous_commit = remote_apply")
            for place, rows in tables.items():
                if why := _UNANSWERED if connection.broken else _why_not(rows):
                    ordered.why_not[place] = why
                    continue
                known = {texts for texts in rows.keys if _fits(rows.read, texts)}
                if len(known) < len(rows.keys):
                    ordered.why_not[place] = _UNKNOWN.format(_again(rows))
                done = written.setdefault(str(rows.read.description.name), set())
                try:
                    self._order(connection, rows.read, sorted(known - done))
                except MillraceError as error:
                    ordered.why_not[place] = error.what
                else:
                    done |= known
                    ordered.keys[place] = known
        return ordered

    def _order(
        self, connection: psycopg.Connection, read: SourceRead, keys: list[KeyTexts]
    ) -> None:
        table = str(read.description.name)
        for some in _fitting(_canonical(connection, read, keys)):
            order = RepairOrder(id=self.id, log=self._log_name, table=table, keys=tuple(some))
            with _no_longer_than(connection, self._timeout_s) as has_waited:
                query(connection, _EMIT, [REPAIR_ORDERS, order.model_dump_json()])
            if has_waited.is_set():
                query(connection, "SET synchronous_commit = local")


@contextmanager
def _no_longer_than(connection: psycopg.Connection, timeout_s: float) -> Iterator[threading.Event]:
    """Bound a commit's wait for a standby that doesn't follow. The commit is already done."""
    has_waited = threading.Event()

    def cancel() -> None:
        has_waited.set()
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=timeout_s)

    timer = threading.Timer(timeout_s, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield has_waited
    finally:
        timer.cancel()


def _again(rows: DifferingRows) -> str:
    return f"millrace snapshot {shlex.quote(str(rows.read.description.name))}"


def _why_not(rows: DifferingRows) -> str:
    """Return why no row can be sent again. Empty: they can."""
    description, compared = rows.read.description, rows.read.compared
    again = f"{_again(rows)} reads the table again"
    sources = [compared.columns[place].source for place in compared.key]
    if not compared.is_keyed or set(sources) != set(description.identifying_columns):
        return f"their keys in the log are unknown: {again}"
    if len(rows.keys) > REPAIRED_MAX:
        return f"more than {REPAIRED_MAX:,} keys differ: {again}"
    return ""


def _fits(read: SourceRead, texts: KeyTexts) -> bool:
    """Whether a key is known, and fits into an order."""
    compared = read.compared
    names = [compared.columns[place].source for place in compared.key]
    if not is_text(texts) or len(texts) != len(names):
        return False
    return len(to_json(dict(zip(names, texts, strict=True)))) <= ORDER_BYTES_MAX - _HEAD_BYTES


def _canonical(
    connection: psycopg.Connection, read: SourceRead, keys: list[KeyTexts]
) -> Iterator[_KeyByName]:
    """Yield keys as PostgreSQL prints them. Derived rows may have another form."""
    names = [read.compared.columns[place].source for place in read.compared.key]
    for texts in printed_keys(connection, read, keys):
        yield dict(zip(names, texts, strict=True))


def _fitting(keys: Iterable[_KeyByName]) -> Iterator[list[_KeyByName]]:
    """Yield lists of keys that fit into one order."""
    some, size = list[_KeyByName](), 0
    for key in keys:
        size += (own := len(to_json(key)) + 1)
        if some and (size > ORDER_BYTES_MAX - _HEAD_BYTES or len(some) == KEYS_MAX):
            yield some
            some, size = [], own
        some.append(key)
    if some:
        yield some
