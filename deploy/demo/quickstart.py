"""Servers and a pipeline in containers → the demo's data, a workload, and the proof.

`demo` of deploy/containers/quickstart/compose.yaml runs this next to the daemon, the merges and
compaction, with their configuration: ``python -m deploy.demo.quickstart FILE``. It waits for
services that aren't ready yet, so the order in which containers start doesn't matter.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console

from cdc.errors import MillraceError
from cdc.log.state import StateReader
from cdc.records.position import Lsn
from cdc.records.state import Phase, TableState
from cdc.records.topics import progress_topic, table_topic
from cdc.settings import Settings, load
from deploy.demo import flights, workload
from deploy.demo.verdict import TABLES, prove, show

TRANSACTIONS: Final = 3_000
RATE: Final = 50.0
"""Transactions a second, also during the snapshot and the first merge."""
PATIENCE_S: Final = 2_400.0
_POLL_S: Final = 3.0


def main(file: Path) -> int:
    """Load, change, wait until everything is derived, compare. Return 0 if nothing differs."""
    console = Console(width=100)
    settings = load(file)
    source = settings.source
    wait(lambda: accepts(source), "PostgreSQL accepts connections", console)
    with psycopg.connect(make_conninfo(**source)) as connection:
        is_loaded = connection.execute("SELECT to_regclass('public.flights')").fetchone() != (None,)
    if not is_loaded:
        rows = flights.load(source, lambda table: console.print(f"  loading {table}"))
        console.print(f"{sum(rows.values()):,} rows in {len(rows)} tables")
    loaded = wal_end(source)
    wait(
        lambda: is_derived(file, settings, loaded),
        "the first rows are in the lakehouse and indexes",
        console,
    )
    kinds = workload.run(source, TRANSACTIONS, int(time.time()), rate=RATE)
    console.print(f"{kinds.total():,} transactions, {kinds['abandon']} of them rolled back")
    end = last_change(source)
    wait(
        lambda: is_derived(file, settings, end, end),
        "the lakehouse and indexes have their changes, too",
        console,
    )
    return prove_all(settings, console)


def prove_all(settings: Settings, console: Console) -> int:
    """Compare, and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        proofs = prove(settings, settings.source, Path(folder), console)
    show(proofs, console)
    holds = all(proof.holds for proof in proofs)
    console.print("0 differences." if holds else "The proof fails.")
    return 0 if holds else 1


def wait(until: Callable[[], bool], what: str, console: Console) -> None:
    """Wait, and print for what."""
    console.print(f"waiting until {what}")
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        if time.monotonic() > deadline:
            raise SystemExit(
                f"demo: this didn't happen within {PATIENCE_S:.0f} s: {what}. Read the logs"
            )
        time.sleep(_POLL_S)


def accepts(source: Any) -> bool:
    """Whether the source can be used."""
    try:
        psycopg.connect(make_conninfo(**source), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def wal_end(source: Any) -> Lsn:
    """Return the current end of the source's WAL."""
    with psycopg.connect(make_conninfo(**source), autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101 (a function call returns a row)
    return Lsn.parse(row[0])


def last_change(source: Any) -> Lsn:
    """Change a last row. Return a position directly before its commit."""
    with psycopg.connect(make_conninfo(**source)) as connection:
        connection.execute("UPDATE airports SET alt = alt + 1 WHERE faa = 'JFK'")
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101 (a function call returns a row)
    return Lsn.parse(row[0])


def is_derived(file: Path, settings: Settings, logged: Lsn, applied: int = 0) -> bool:
    """Whether the log has everything before a position, and both sinks are past another one."""
    return is_logged(settings, logged) and is_applied(file, applied)


def is_logged(settings: Settings, lsn: Lsn) -> bool:
    """Whether snapshots are complete, and the log has everything before a position."""
    states, capture = StateReader(settings.kafka), settings.capture
    try:
        progress = states.last_progress(progress_topic(capture.topic_prefix), capture.slot_name)
        if progress is None or progress.phase is not Phase.STREAMING or progress.flush_lsn < lsn:
            return False
        tables = states.read_all(table_topic(capture.topic_prefix), TableState)
    except MillraceError:
        return False
    whole = {state.name for state in tables if not state.initial}
    return whole >= set(TABLES)


def is_applied(file: Path, lsn: int) -> bool:
    """Whether all tables and indexes exist, at a cut past a position."""
    command = (sys.executable, "-m", "millrace", "status", "--json", "--config", str(file))
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return False
    sinks = {sink["sink"]: sink for sink in json.loads(answer.stdout)["sinks"]}
    return (
        sinks.keys() == {"lakehouse", "search"}
        and sinks["lakehouse"]["tables"] == len(TABLES)
        and len(sinks["search"]["indexes"]) == len(TABLES)
        and all(index["index"] and not index["loading"] for index in sinks["search"]["indexes"])
        and all(
            sink["finished"] and not sink["failed"] and Lsn.parse(sink["cut"]) >= lsn
            for sink in sinks.values()
        )
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
