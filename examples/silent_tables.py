"""Warn of tables that have gone silent: a job that died writes nothing any more.

    python examples/silent_tables.py millrace.toml 3600 public.orders public.payments

Each table that had no change for so many seconds is named once, and again when changes come. The
program keeps no position: it starts now, and watches what comes. Ctrl-C ends it.
"""

import sys
import threading
import time

from millrace import changes


class Watch:
    """When each table has changed last, as two threads see it."""

    def __init__(self, tables: list[str], limit_s: float) -> None:
        self._limit_s = limit_s
        self._changed_at = dict.fromkeys(tables, time.monotonic())
        self._silent: set[str] = set()

    def note(self, table: str) -> None:
        """A table has changed."""
        self._changed_at[table] = time.monotonic()
        if table in self._silent:
            self._silent.discard(table)
            print(f"{table}: changes again", flush=True)

    def warn(self) -> None:
        """Name the tables that have become silent."""
        for table, changed_at in self._changed_at.items():
            if table not in self._silent and time.monotonic() - changed_at > self._limit_s:
                self._silent.add(table)
                print(f"{table}: no change for {self._limit_s:g} s", flush=True)


def main(config: str, limit_s: str, *tables: str) -> None:
    """Watch until a signal comes."""
    watch = Watch(list(tables), float(limit_s))
    ended = threading.Event()

    def remind() -> None:
        while not ended.wait(1):
            watch.warn()

    reminder = threading.Thread(target=remind)
    reminder.start()
    try:
        with changes(config, tables=tables, start="now") as stream:
            for change in stream:
                watch.note(change.table)
    finally:
        ended.set()
        reminder.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
