"""A fresh machine → the whole job on real data, with a proof at the end: ``make demo``.

Real servers, the flights of New York in 2013, the daemon and the merge jobs as a user runs them,
life going on in the database meanwhile; then every derived table is compared with its source.
KEEP=1 leaves everything running. Exit code 0 only if there is no difference.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cdc.errors import ExitCode, MillraceError
from cdc.records.schema import TableName
from cdc.records.state import Phase
from deploy.demo import flights, workload
from deploy.demo.proof import (
    Comparison,
    connect,
    document_differences,
    index_differences,
    lakehouse_differences,
)
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process, ServerError
from deploy.local.stack import Stack

DATABASE: Final = "flights"
PREFIX: Final = "demo"
TRANSACTIONS_MIN: Final = 3_000
SLICE: Final = 500
RATE: Final = 25.0
"""Transactions a second: life goes on during the snapshot and the first merge."""
TABLES: Final = tuple(TableName("public", table.name) for table in flights.TABLES)
INDEXED: Final = tuple(table for table in TABLES if table.name != "flights")
SEARCH: Final = {"tables": [str(table) for table in INDEXED], "documents": [flights.DOCUMENT]}
"""An index for each small table; a flight's has all that belongs to it."""
EXAMPLE_QUERY: Final = (
    "SELECT a.name, count(*) AS flights, round(avg(f.dep_delay), 1) AS delay_min\n"
    "FROM flights f JOIN airlines a ON f.carrier = a.carrier\n"
    "GROUP BY a.name ORDER BY flights DESC LIMIT 3"
)
EXAMPLE_SEARCH: Final = "airline.name:delta AND to_airport.name:orlando AND weather.visib:<2"


@dataclass(slots=True)
class Proof:
    """What one table's comparison found."""

    table: TableName
    rows: int
    row_differences: int
    documents: int
    document_differences: int
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether table and index are exactly the source."""
        return not self.row_differences and not self.document_differences


class WorkloadThread(threading.Thread):
    """The workload, slice after slice, beside everything else."""

    def __init__(self, conninfo: dict[str, str]) -> None:
        super().__init__(name="workload", daemon=True)
        self._conninfo = conninfo
        self._enough = threading.Event()
        self._error: Exception | None = None
        self.transactions = self.rolled_back = 0

    def run(self) -> None:
        """Make transactions until it is enough; what goes wrong is kept for who joins."""
        try:
            while not self._enough.is_set() or self.transactions < TRANSACTIONS_MIN:
                done = workload.run(
                    self._conninfo,
                    SLICE,
                    seed=2013 + self.transactions,
                    rate=RATE,
                    hurry=self._enough,
                )
                self.transactions += done.transactions
                self.rolled_back += done.rolled_back
        except Exception as error:  # noqa: BLE001 (raised again by finish, in the main thread)
            self._error = error

    def finish(self) -> None:
        """Let it come to its end, and wait for that."""
        self._enough.set()
        self.join()
        if self._error is not None:
            raise self._error


class Demo:
    """The steps of the demo, each timed and told."""

    def __init__(self, stack: Stack, console: Console, *, keep: bool) -> None:
        self._stack = stack
        self._console = console
        self._keep = keep
        self._started = time.monotonic()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        at = time.monotonic()
        self._console.print(f"[bold]{text}[/] …")
        yield
        self._seconds[text] = time.monotonic() - at
        self._console.print(f"  done in {self._seconds[text]:.1f} s")

    def run(self) -> bool:
        """Go through all steps; returns whether the proof holds."""
        stack = self._stack
        with self._step("Starting PostgreSQL, Kafka and OpenSearch"):
            stack.start()
        source = stack.postgres.create_database(DATABASE)
        with self._step("Loading the flights of New York in 2013"):
            self._load(source)
        pipeline = Pipeline(
            stack.folder,
            source,
            stack.kafka.client_options(),
            prefix=PREFIX,
            search_url=stack.opensearch.url,
            sections={"search": SEARCH},
        )
        daemon = pipeline.start(keep=self._keep)
        if self._keep:
            stack.keep_also("millrace run", daemon.pid)
        try:
            background = WorkloadThread(source)
            background.start()
            with self._step(f"Snapshot, while {RATE:.0f} transactions a second go on"):
                rows = self._snapshot(pipeline, daemon)
            with self._step("First merge, as cron would run it"):
                self._merge(pipeline)
            with self._step("The rest of the workload reaches the log"):
                background.finish()
                progress = pipeline.wait_until_logged(pipeline.wal_end(), daemon)
            with self._step("Second merge: what changed meanwhile"):
                self._merge(pipeline)
            with self._step("Proof: source, Delta tables and indexes, row by row"):
                proofs = self._prove(pipeline, source)
            self._report(proofs, rows, progress.events, background)
        finally:
            if not self._keep:
                daemon.stop()
        holds = all(proof.holds for proof in proofs)
        self._next_steps(pipeline, holds=holds)
        return holds

    def _load(self, source: dict[str, str]) -> None:
        last = ""

        def report(table: str, _rows: int) -> None:
            nonlocal last
            if table != last:
                self._console.print(f"  {table}")
                last = table

        rows = flights.load(source, report)
        self._console.print(f"  {sum(rows.values()):,} rows in {len(rows)} tables")

    def _snapshot(self, pipeline: Pipeline, daemon: Process) -> int:
        with Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            console=self._console,
            disable=not self._console.is_terminal,
        ) as bars:
            tasks: dict[TableName, TaskID] = {}
            deadline = time.monotonic() + 180
            while True:
                states = pipeline.tables()
                for state in states:
                    if state.name not in tasks:
                        tasks[state.name] = bars.add_task(str(state.name))
                    bars.update(
                        tasks[state.name],
                        completed=state.rows_sent,
                        total=max(state.rows_estimated, state.rows_sent) or 1,
                    )
                if states and all(state.phase is Phase.STREAMING for state in states):
                    break
                if not daemon.running or time.monotonic() > deadline:
                    raise ServerError(f"the snapshot doesn't end. {daemon.command.log_end()}")
                time.sleep(0.2)
        rows = sum(state.rows_sent for state in states)
        self._console.print(f"  {rows:,} rows of {len(states)} tables")
        return rows

    def _merge(self, pipeline: Pipeline) -> None:
        result = pipeline.millrace("merge", "all")
        for line in result.stdout.splitlines():
            self._console.print(f"  {line}", markup=False, highlight=False)
        if result.returncode != ExitCode.OK:
            raise ServerError(f"the merge failed ({result.returncode}): {result.stderr}")

    def _prove(self, pipeline: Pipeline, source: dict[str, str]) -> list[Proof]:
        """Compare Delta tables (in Spark) and indexes (here) at the same time."""
        with ThreadPoolExecutor() as executor:
            in_delta = executor.submit(self._prove_lakehouse, pipeline, source)
            in_search = executor.submit(self._prove_search, pipeline, source)
            return [
                Proof(
                    table,
                    rows.total,
                    rows.differences,
                    documents.total,
                    documents.differences,
                    [*rows.examples, *documents.examples],
                )
                for table, rows, documents in zip(
                    TABLES, in_delta.result(), in_search.result(), strict=True
                )
            ]

    def _prove_lakehouse(self, pipeline: Pipeline, source: dict[str, str]) -> list[Comparison]:
        from sinks.changes.derived import table_path
        from sinks.spark.session import open_session

        assert pipeline.settings.lakehouse is not None  # noqa: S101 (we wrote the settings)
        location = pipeline.settings.lakehouse.path
        spark = open_session(pipeline.settings.spark, "proof")
        comparisons = []
        with connect(source) as connection:
            for table in TABLES:
                path = table_path(location, table)
                comparison = lakehouse_differences(spark, connection, table, path, pipeline.folder)
                comparisons.append(comparison)
                self._console.print(f"  Delta {table}: {comparison.differences} differ")
                spark.read.format("delta").load(path).createOrReplaceTempView(table.name)
        self._console.print("\n[bold]An example query[/] on the Delta tables:")
        self._console.print(EXAMPLE_QUERY, highlight=False, markup=False)
        for row in spark.sql(EXAMPLE_QUERY).collect():
            self._console.print("  " + " | ".join(str(value) for value in row))
        spark.stop()
        return comparisons

    def _prove_search(self, pipeline: Pipeline, source: dict[str, str]) -> list[Comparison]:
        from sinks.search.client import connect as connect_search
        from sinks.search.client import search
        from sinks.search.documents import document_index, index_name

        settings = pipeline.settings.search
        assert settings is not None  # noqa: S101 (we wrote the settings)
        client = connect_search(settings)
        name = str(flights.DOCUMENT["name"])
        comparisons = []
        with connect(source) as connection:
            for table in TABLES:
                if table in INDEXED:
                    index = index_name(settings.index_prefix, table)
                    comparison = index_differences(
                        client, connection, table, index, pipeline.folder
                    )
                else:
                    index = document_index(settings.index_prefix, name)
                    comparison = document_differences(
                        client, connection, flights.DOCUMENTS_SQL, index
                    )
                comparisons.append(comparison)
                self._console.print(f"  index {index}: {comparison.differences} differ")
        self._console.print(f"\n[bold]An example search[/] in joined documents: {EXAMPLE_SEARCH}")
        for hit in search(settings, name, EXAMPLE_SEARCH, limit=3).hits:
            about = (hit["airline"]["name"], hit["route"], f"left {hit['dep_delay']} min late")
            self._console.print("  " + " | ".join(about), markup=False)
        return comparisons

    def _report(
        self, proofs: list[Proof], rows: int, events: int, background: WorkloadThread
    ) -> None:
        table = Table(title="\nSource = Delta = index")
        for heading in ("table", "source rows", "rows that differ", "documents", "that differ"):
            table.add_column(heading, justify="left" if heading == "table" else "right")
        for proof in proofs:
            table.add_row(
                str(proof.table),
                f"{proof.rows:,}",
                f"{proof.row_differences}",
                f"{proof.documents:,}",
                f"{proof.document_differences}",
            )
        self._console.print(table)
        for proof in proofs:
            for example in proof.examples:
                self._console.print(f"  {proof.table} differs: {example}", markup=False)
        seconds = self._seconds[f"Snapshot, while {RATE:.0f} transactions a second go on"]
        self._console.print(
            f"{events:,} events in the log; snapshot of {rows:,} rows in {seconds:.1f} s with its "
            f"start ({rows / seconds:,.0f} rows/s); "
            f"{background.transactions:,} transactions meanwhile "
            f"({background.rolled_back} rolled back); "
            f"{time.monotonic() - self._started:.0f} s in all"
        )

    def _next_steps(self, pipeline: Pipeline, *, holds: bool) -> None:
        verdict = "[bold green]0 differences.[/]" if holds else "[bold red]The proof fails.[/]"
        self._console.print(f"\n{verdict} Your own database: `millrace init`, then README.md.")
        if self._keep:
            from deploy.local.stack import STATE_FILE

            self._console.print(
                "Everything is still running; connections and passwords: "
                f"{STATE_FILE}\nTry: .venv/bin/millrace status --config {pipeline.config}\n"
                "`make stop` ends it."
            )


def main() -> int:
    """Run the demo; the exit code says whether the proof holds."""
    console = Console()
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    stack = Stack(keep=keep)
    holds = False
    try:
        holds = Demo(stack, console, keep=keep).run()
    except (ServerError, MillraceError, psycopg.Error, subprocess.TimeoutExpired) as error:
        console.print(f"demo: {error}", style="red", markup=False)
    except KeyboardInterrupt:
        console.print("\ninterrupted: stopping everything")
        keep = False
    finally:
        if not (keep and holds):
            stack.stop()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
