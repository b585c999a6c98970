"""The catalog check of many tables -> what it costs the source and the daemon, and how often it is.

A check compares all tables with their fingerprints, as the daemon does; nothing has changed. In
turns with it, the same session counts the same tables' rows of pg_attribute, as a yardstick.
"""

import argparse
import json
import shutil
import statistics
import time
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.scene import PREFIX, cpu_s, load, say
from cdc.postgres.connection import query
from cdc.postgres.fingerprints import CatalogTable, fingerprints
from cdc.records.position import Lsn
from cdc.records.state import Phase, TableState
from cdc.settings import Settings
from deploy.local.postgres import Postgres
from deploy.local.processes import run_folder
from snapshots.catalog_check import interval_s
from snapshots.inspection import WatchedTable, inspect

_COLUMNS: Final = 20
_TYPES: Final = ("mood", "level", "place", "route")
_SCHEMA: Final = (
    "CREATE TYPE mood AS ENUM ('happy', 'sad', 'calm')",
    "CREATE DOMAIN level AS mood",
    "CREATE TYPE place AS (x int, y int, name text)",
    "CREATE TYPE route AS (start place, stop place)",
    "CREATE PUBLICATION p FOR ALL TABLES",
)
_COUNT: Final = "SELECT count(*) FROM pg_attribute WHERE attrelid = ANY (%s)"
_OIDS: Final = (
    "SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    load_before = load()
    folder = run_folder("millrace-bench-")
    postgres = Postgres(folder)
    try:
        postgres.start()
        source = postgres.create_database(PREFIX)
        with psycopg.connect(make_conninfo(**source), autocommit=True) as connection:
            _make(connection, given.tables)
            say(f"{given.tables:,} tables made")
            figures = _measured(connection, given.rounds)
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)
    figures |= {"tables": given.tables, "columns": _COLUMNS, "load_before": load_before}
    print(json.dumps({"benchmark": "catalog-check", "figures": figures}))


def _make(connection: psycopg.Connection, tables: int) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    columns = [f"c{number} {_TYPES[number % 4]}" for number in range(4)]
    columns += [f"c{number} text" for number in range(4, _COLUMNS - 1)]
    for number in range(tables):
        listed = ", ".join(
            columns if number % 5 == 0 else [f"{c.split()[0]} text" for c in columns]
        )
        connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, {listed})".encode())
    connection.execute("VACUUM ANALYZE")


def _measured(connection: psycopg.Connection, rounds: int) -> dict[str, float]:
    settings = Settings.model_validate(
        {
            "source": {},
            "capture": {"topic.prefix": PREFIX, "publication.name": "p"},
            "kafka": {"bootstrap.servers": "none"},
        }
    ).capture
    oids = [oid for (oid,) in query(connection, _OIDS)]
    catalog = fingerprints(connection, oids, "p")
    watched = [
        WatchedTable(_state(table, oid), table.fingerprint) for oid, table in catalog.items()
    ]
    backend = connection.info.backend_pid
    source_ms, daemon_ms, check_ms, count_ms = 0.0, 0.0, list[float](), list[float]()
    for number in range(rounds + 1):
        begun, cpu, own = time.perf_counter(), cpu_s(backend), time.thread_time()
        inspection = inspect(connection, settings, watched)
        took_ms = (time.perf_counter() - begun) * 1_000
        if inspection.findings or len(inspection.seen) != len(oids):
            raise SystemExit(f"{len(inspection.findings)} tables differ, and nothing has changed")
        if number:  # the first one fills the session's caches
            check_ms.append(took_ms)
            source_ms += (cpu_s(backend) - cpu) * 1_000
            daemon_ms += (time.thread_time() - own) * 1_000
        begun = time.perf_counter()
        query(connection, _COUNT, [oids])
        count_ms += [(time.perf_counter() - begun) * 1_000] if number else []
    median_ms = statistics.median(check_ms)
    ratios = [check / count for check, count in zip(check_ms, count_ms, strict=True)]
    return {
        "check_ms": round(median_ms, 1),
        "count_ms": round(statistics.median(count_ms), 2),
        "ratio_to_count": round(statistics.median(ratios), 1),
        "source_cpu_ms": round(source_ms / rounds, 1),
        "daemon_cpu_ms": round(daemon_ms / rounds, 1),
        "interval_s": round(interval_s([median_ms / 1_000], len(oids)), 1),
    }


def _state(table: CatalogTable, oid: int) -> TableState:
    """The table's state, as if its rows were in a log."""
    return TableState(
        namespace=table.name.namespace,
        table=table.name.name,
        topic=f"{PREFIX}.{table.name}",
        partitions=1,
        cleanup="compact",
        epoch=1,
        phase=Phase.STREAMING,
        snapshot_lsn=Lsn(0),
        oid=oid,
        entry=table.entry,
        fingerprint=table.fingerprint,
    )


if __name__ == "__main__":
    main()
