"""``millrace snapshot``: existing rows, read by its own daemon or by the running one.

One slot's topics have one producer. So a running daemon reads the tables, at a signal.
"""

import json
import math
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Annotated, Any
from uuid import uuid4

import typer
from psycopg import sql
from rich.table import Table

from cdc.capture.daemon import Daemon
from cdc.errors import (
    ConfigError,
    ExitCode,
    SlotInUseError,
    SourceError,
    SourceUnreachableError,
    TableRefusedError,
)
from cdc.kafka.sending import send
from cdc.postgres.captured import captured_tables, described_tables, require_captured
from cdc.postgres.connection import at_one_instant, connect, query
from cdc.postgres.described import TableDescription
from cdc.records.state import Phase, SnapshotRequest
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption, stop_on_signals
from deploy.commands.printing import print_rich
from deploy.commands.run import prepare_to_capture, use_daemon
from deploy.commands.snapshot_watch import SnapshotWatch, is_captured
from deploy.status.sinks import table_states
from snapshots.signals.parsed import NAMES_MAX


def snapshot(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Read these tables again (schema.table). Default: tables that were never read."
        ),
    ] = None,
    config: ConfigOption = DEFAULT_PATH,
    *,
    where: Annotated[
        str | None, typer.Option(help="Read only rows that meet this SQL condition.")
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Read with this many threads. Default: snapshot.max.threads."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue paused snapshots.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Delete rows that no longer exist in the source.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read, and change nothing.")
    ] = False,
    json_log: JsonOption = False,
) -> None:
    """Read existing rows into the log, and end.

    If a daemon runs, the command has it read them, and shows its progress.
    """
    names, settings = tables or [], prepare_to_capture("snapshot", config, json=json_log)
    require_fitting(names, where, resume=resume, reset=reset)
    beside = is_captured(settings)
    if beside:
        require_askable(names, parallel)
    described = describe(settings, names) if names or beside or dry_run else []
    if where is not None:
        check_condition(settings, described, where)
    if dry_run:
        show_plan(settings, names, described, beside=beside)
        return
    if not beside:
        use, arguments = (Daemon.resume, (names,)) if resume else (Daemon.snapshot, (names, where))
        try:
            if use_daemon(settings, use, *arguments, threads=parallel):
                raise typer.Exit(ExitCode.INTERRUPTED)  # the next start reads the rest
        except SlotInUseError:
            if not is_captured(settings):
                raise
            require_askable(names, parallel)  # a daemon has started in the meantime
            described = describe(settings, names)
        else:
            return
    with stop_on_signals() as stop:
        if ask(settings, names, described, stop, where=where, resume=resume, reset=reset):
            return
    print("the daemon continues: `millrace status` shows the progress", file=sys.stderr)
    raise typer.Exit(ExitCode.INTERRUPTED)


def require_fitting(names: Sequence[str], where: str | None, *, resume: bool, reset: bool) -> None:
    """Raise ConfigError for options that exclude each other."""
    if (where is not None or reset) and (not names or resume):
        raise ConfigError(
            "--where and --reset need names of tables, and exclude --resume",
            remedy="millrace snapshot schema.table --where …",
        )
    if where is not None and reset:
        raise ConfigError(
            "--where and --reset exclude each other: a reset reads all rows of a table",
            remedy="use one of them",
        )


def require_askable(names: Sequence[str], parallel: int | None) -> None:
    """Raise ConfigError for requests that a daemon doesn't accept."""
    if len(names) > NAMES_MAX:
        raise ConfigError(
            f"the running daemon accepts at most {NAMES_MAX:,} tables at once, not {len(names):,}",
            remedy="name fewer tables, and the others in another call",
        )
    if parallel is not None:
        raise ConfigError(
            "a daemon is running; its configuration sets the number of threads",
            remedy="omit --parallel, or change snapshot.max.threads and restart the daemon",
        )


def describe(settings: Settings, names: Sequence[str]) -> list[TableDescription]:
    """Return the captured tables of these names. Raise ConfigError if one doesn't exist."""
    with connect(settings.source, purpose="snapshot command") as connection:
        captured = captured_tables(connection, settings.capture)
        require_captured(names, (table.name for table in captured))
        wanted = [table for table in captured if not names or str(table.name) in names]
        return described_tables(connection, settings.capture, wanted)


def check_condition(settings: Settings, tables: Iterable[TableDescription], condition: str) -> None:
    """Raise ConfigError unless a daemon, and PostgreSQL, accept the condition for each table."""
    from cdc.postgres.checks.conditions import rendered_for

    with connect(settings.source, purpose="snapshot command") as connection:
        for table in tables:
            try:
                plain = rendered_for(settings.capture, table, condition)
            except TableRefusedError as error:
                raise ConfigError(error.what, where="--where", remedy=error.remedy) from None
            statement = sql.SQL("FROM {} WHERE {}").format(
                sql.Identifier(*table.name), sql.SQL(plain)
            )
            # With a parameter PostgreSQL accepts only one statement, and a % has to be doubled.
            text = statement.as_string(None).replace("%", "%%")
            try:
                with at_one_instant(connection):  # planning runs code of the table's owner
                    query(connection, f"EXPLAIN SELECT %s::int {text}", [1])
            except SourceUnreachableError:
                raise
            except SourceError as error:
                remedy = f"write a condition on the rows of {table.name}"
                raise ConfigError(error.what, where="--where", remedy=remedy) from None


def show_plan(
    settings: Settings,
    names: Sequence[str],
    described: Sequence[TableDescription],
    *,
    beside: bool,
) -> None:
    """Print what would be read, and how. Changes nothing. ``beside``: a daemon would do it."""
    states = {str(state.name): state for state in table_states(settings)}
    tables = [
        table
        for table in described
        if names
        or (state := states.get(str(table.name))) is None
        or state.phase is not Phase.STREAMING
    ]
    if not tables:
        what = (
            f"the log has all captured tables ({len(described):,}); name tables to read them again"
        )
        print(f"nothing to read: {what if described else 'no table is captured'}")
        return
    way = "daemon" if beside else "this command"
    shown = Table("table", "rows (guess)", "size", "chunks", "read by", "rows read before")
    for table in tables:
        size = table.pages * table.block_bytes
        chunks = sum(
            max(
                1, math.ceil(leaf.pages * table.block_bytes / settings.capture.snapshot_chunk_bytes)
            )
            for leaf in table.leaves
        )
        state = states.get(str(table.name))
        shown.add_row(
            str(table.name),
            f"{table.rows_estimated:,}",
            f"{size / (1 << 20):,.1f} MiB",
            f"{chunks:,}",
            way,
            "none" if state is None else f"{state.rows_sent:,}",
        )
    print_rich(shown)


def ask(
    settings: Settings,
    names: Sequence[str],
    described: Iterable[TableDescription],
    stop: threading.Event,
    *,
    where: str | None = None,
    resume: bool = False,
    reset: bool = False,
) -> bool:
    """Ask the daemon, and show its progress. Return whether it ended before being stopped.

    Without names, show active reads. Raise NotDoneError for tables that the daemon couldn't, or
    wouldn't, read.
    """
    sizes = {str(table.name): table.pages * table.block_bytes for table in described}
    patterns = [re.escape(name) for name in names]
    data: dict[str, Any] = {"data-collections": patterns} if names else {}
    signal = str(uuid4())
    with closing(SnapshotWatch(settings, sizes)) as watch:
        if resume or not names:
            watch.want_under_way(names)
        else:
            watch.wanted = dict.fromkeys(names, SnapshotRequest(kind="incremental", signal=signal))
            data |= {"type": "incremental", **({"reset": True} if reset else {})}
        if where is not None:
            conditions = [{"data-collection": pattern, "filter": where} for pattern in patterns]
            data["additional-conditions"] = conditions
        if watch.wanted and (resume or names):
            kind = "resume-snapshot" if resume else "execute-snapshot"
            text = json.dumps({"id": signal, "type": kind, "data": data})
            key = settings.capture.topic_prefix.encode()
            signals = [(key, text.encode())]
            watch.signal_offset = send(settings.kafka, settings.capture.signal_topic, signals)
        return watch.show(stop, names)
