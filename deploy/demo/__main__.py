"""A fresh machine → the whole pipeline on real data, with a proof at the end: ``make demo``.

Real servers, the flights of New York in 2013, the daemon and the merge jobs as a user runs them,
and transactions during all of it. Then every derived table is compared with its source. KEEP=1
leaves everything running. Exit code 0 only without a difference.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cdc.errors import ExitCode, MillraceError
from cdc.records.state import Phase
from deploy.demo import flights, workload
from deploy.demo.verdict import SEARCH, TABLES, Proof, prove, show
from deploy.local.pipeline import Pipeline
from deploy.local.processes import Process, ServerError
from deploy.local.stack import STATE_FILE, Stack

DATABASE: Final = "flights"
PREFIX: Final = "demo"
TRANSACTIONS_MIN: Final = 3_000
SLICE: Final = 500
RATE: Final = 25.0
"""Transactions a second, also during the snapshot and the first merge."""


def _go_on(conninfo: Mapping[str, str], enough: threading.Event) -> Counter[str]:
    """Run transactions, slice after slice, until ``enough`` is set.

    Return how many of each kind.
    """
    kinds: Counter[str] = Counter()
    while not enough.is_set() or kinds.total() < TRANSACTIONS_MIN:
        seed = 2013 + kinds.total()
        kinds += workload.run(conninfo, SLICE, seed, rate=RATE, hurry=enough)
    return kinds


class Demo:
    """The steps of the demo, each timed and reported."""

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
        """Run all steps. Return whether the proof holds."""
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
        enough = threading.Event()
        try:
            transactions = ThreadPoolExecutor(1).submit(_go_on, source, enough)
            with self._step(f"Snapshot, during {RATE:.0f} transactions a second"):
                rows = self._snapshot(pipeline, daemon)
            with self._step("First merge, as cron would run it"):
                self._merge(pipeline)
            with self._step("The log receives the rest of the workload"):
                enough.set()
                kinds = transactions.result()
                progress = pipeline.wait_until_logged(pipeline.wal_end(), daemon)
            with self._step("Second merge: changes since the first"):
                self._merge(pipeline)
            with self._step("millrace verify: every table against the source at one instant"):
                is_verified = self._verify(pipeline)
            with self._step("Second proof: Delta tables and indexes, row by row"):
                proofs = prove(pipeline.settings, source, stack.folder, self._console)
            self._report(proofs, rows, progress.events, kinds)
        finally:
            enough.set()
            if not self._keep:
                daemon.stop()
        holds = is_verified and all(proof.holds for proof in proofs)
        self._next_steps(pipeline, holds=holds)
        return holds

    def _load(self, source: dict[str, str]) -> None:
        rows = flights.load(source, lambda table: self._console.print(f"  {table}"))
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
            tasks = {table: bars.add_task(str(table)) for table in TABLES}
            deadline = time.monotonic() + 180
            while True:
                states = pipeline.tables()
                for state in states:
                    bars.update(
                        tasks[state.name],
                        completed=state.rows_sent,
                        total=max(state.rows_estimated, state.rows_sent) or 1,
                    )
                if states and all(state.phase is Phase.STREAMING for state in states):
                    break
                if not daemon.running or time.monotonic() > deadline:
                    raise ServerError(
                        f"the snapshot didn't end in time. {daemon.command.log_end()}"
                    )
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

    def _verify(self, pipeline: Pipeline) -> bool:
        """Whether nothing differs, and everything was compared."""
        result = pipeline.millrace("verify")
        for line in (result.stdout + result.stderr).splitlines():
            self._console.print(f"  {line}", markup=False, highlight=False)
        return result.returncode == ExitCode.OK

    def _report(self, proofs: list[Proof], rows: int, events: int, kinds: Counter[str]) -> None:
        show(proofs, self._console)
        seconds = self._seconds[f"Snapshot, during {RATE:.0f} transactions a second"]
        self._console.print(
            f"{events:,} events in the log; snapshot of {rows:,} rows in {seconds:.1f} s, start"
            f" included ({rows / seconds:,.0f} rows/s); {kinds.total():,} transactions during the"
            f" demo ({kinds['abandon']} rolled back); {time.monotonic() - self._started:.0f} s in"
            " all"
        )

    def _next_steps(self, pipeline: Pipeline, *, holds: bool) -> None:
        verdict = "[bold green]0 differences.[/]" if holds else "[bold red]The proof fails.[/]"
        self._console.print(f"\n{verdict} Continue with your own database: docs/start.md.")
        if self._keep:
            self._console.print(
                f"All programs are still running; {STATE_FILE} has connections and"
                f" passwords\nTry: .venv/bin/millrace status --config {pipeline.config}\n`make"
                " stop` ends them."
            )


def _interrupt(number: int, _frame: object) -> None:
    """End the demo at SIGTERM as at Ctrl-C, and ignore further signals."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo. The exit code says whether the proof holds."""
    signal.signal(signal.SIGTERM, _interrupt)
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
