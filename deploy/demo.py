"""A fresh machine → the whole job on real data, with a proof at the end: ``make demo``.

Real servers, the flights of New York in 2013, the daemon and the merge jobs as a user runs them,
life going on in the database meanwhile; then every derived table is compared with its source.
KEEP=1 leaves everything running. Exit code 0 only if there is no difference.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cdc.errors import ExitCode, MillraceError
from cdc.records.schema import TableName
from cdc.records.state import Phase
from deploy.local import flights, workload
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process, ServerError
from deploy.local.stack import Stack
from deploy.proof import connect, index_differences, lakehouse_differences

DATABASE: Final = "flights"
PREFIX: Final = "demo"
TRANSACTIONS: Final = 4_000
RATE: Final = 200.0
"""Transactions a second: life goes on during the snapshot and the first merge."""
TABLES: Final = tuple(TableName("public", table.name) for table in flights.TABLES)
EXAMPLE_QUERY: Final = (
    "SELECT a.name, count(*) AS flights, round(avg(f.dep_delay), 1) AS delay_min\n"
    "FROM flights f JOIN airlines a ON f.carrier = a.carrier\n"
    "GROUP BY a.name ORDER BY flights DESC LIMIT 3"
)


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


class Life(threading.Thread):
    """The workload, beside everything else."""

    def __init__(self, conninfo: dict[str, str]) -> None:
        super().__init__(name="workload", daemon=True)
        self._conninfo = conninfo
        self.summary: workload.WorkloadSummary | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Make the transactions; what goes wrong is kept for who joins."""
        try:
            self.summary = workload.run(self._conninfo, TRANSACTIONS, seed=2013, rate=RATE)
        except Exception as error:  # noqa: BLE001 (raised again by finish, in the main thread)
            self.error = error

    def finish(self) -> workload.WorkloadSummary:
        """Wait for the end."""
        self.join()
        if self.error is not None:
            raise self.error
        assert self.summary is not None  # noqa: S101 (set unless there was an error)
        return self.summary


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
        )
        daemon = pipeline.start(keep=self._keep)
        if self._keep:
            stack.keep_also("millrace run", daemon.pid)
        try:
            life = Life(source)
            life.start()
            with self._step(f"Snapshot, while {RATE:.0f} transactions a second go on"):
                rows = self._snapshot(pipeline, daemon)
            with self._step("First merge, as cron would run it"):
                self._merge(pipeline)
            with self._step("The rest of the workload reaches the log"):
                done = life.finish()
                progress = pipeline.wait_until_logged(pipeline.wal_end(), daemon)
            with self._step("Second merge: what changed meanwhile"):
                self._merge(pipeline)
            with self._step("Proof: source, Delta tables and indexes, row by row"):
                proofs = self._prove(pipeline, source)
            self._report(proofs, rows, progress.events, done)
        finally:
            if not self._keep:
                daemon.stop()
        holds = all(proof.holds for proof in proofs)
        self._next_steps(pipeline, holds=holds)
        return holds

    def _load(self, source: dict[str, str]) -> None:
        last = ""

        def tell(table: str, _rows: int) -> None:
            nonlocal last
            if table != last:
                self._console.print(f"  {table}")
                last = table

        rows = flights.load(source, tell)
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
        from sinks.paths import table_path
        from sinks.search.client import connect as search_client
        from sinks.search.documents import index_name
        from sinks.session import open_session

        search = pipeline.settings.search
        lakehouse = pipeline.settings.lakehouse
        assert search is not None and lakehouse is not None  # noqa: S101, PT018 (we wrote them)
        spark = open_session(pipeline.settings.spark, "proof")
        client = search_client(search)
        proofs = []
        with connect(source) as connection:
            for table in TABLES:
                rows, row_differences, examples = lakehouse_differences(
                    spark,
                    connection,
                    table,
                    table_path(lakehouse.path, table),
                    pipeline.folder,
                )
                documents, document_differences, keys = index_differences(
                    client,
                    connection,
                    table,
                    index_name(search.index_prefix, table),
                    pipeline.folder,
                )
                proofs.append(
                    Proof(
                        table,
                        rows,
                        row_differences,
                        documents,
                        document_differences,
                        examples + keys,
                    )
                )
                self._console.print(f"  {table}: {row_differences + document_differences} differ")
            for table in TABLES:
                path = table_path(lakehouse.path, table)
                spark.read.format("delta").load(path).createOrReplaceTempView(table.name)
            answer = spark.sql(EXAMPLE_QUERY).collect()
        hits = client.search(
            index=index_name(search.index_prefix, TableName("public", "airports")),
            body={"query": {"match": {"name": "international"}}, "size": 3},
        )["hits"]["hits"]
        spark.stop()
        self._examples(answer, [hit["_source"]["name"] for hit in hits])
        return proofs

    def _examples(self, answer: Sequence[Sequence[object]], names: Sequence[str]) -> None:
        self._console.print("\n[bold]An example query[/] on the Delta tables:")
        self._console.print(EXAMPLE_QUERY, highlight=False, markup=False)
        for row in answer:
            self._console.print("  " + " | ".join(str(value) for value in row))
        self._console.print('\n[bold]An example search[/] for airports named "international":')
        for name in names:
            self._console.print(f"  {name}", markup=False)

    def _report(
        self, proofs: list[Proof], rows: int, events: int, done: workload.WorkloadSummary
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
            f"start ({rows / seconds:,.0f} rows/s); {done.transactions:,} transactions "
            f"({done.rolled_back} rolled back) at {done.rate:.0f}/s; "
            f"{time.monotonic() - self._started:.0f} s in all"
        )

    def _next_steps(self, pipeline: Pipeline, *, holds: bool) -> None:
        verdict = "[bold green]0 differences.[/]" if holds else "[bold red]The proof fails.[/]"
        self._console.print(f"\n{verdict} Your own database: `millrace init`, then README.md.")
        if self._keep:
            from deploy.local.kept import STATE_FILE

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
    except (ServerError, MillraceError) as error:
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
