"""The status → tables and lines for people at a terminal."""

from datetime import UTC, datetime

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.records.state import Phase
from deploy.commands.status import RequestStatus, Status, TableStatus


def render(status: Status) -> Group:
    """The status as tables for people."""
    parts: list[Text | Table] = []
    if status.slot is None:
        parts.append(Text("slot: none (has `millrace run` been started?)"))
    else:
        found = status.slot
        state = "active" if found.active else "NOT ACTIVE: is the daemon running?"
        parts.append(
            Text(
                f"slot {found.name}: {state}, acknowledged {found.confirmed_flush_lsn}, "
                f"{_bytes(found.lag_bytes)} to go, {_bytes(found.retained_bytes)} of WAL held back"
                f" ({found.invalidation_reason or found.wal_status or 'unknown'})"
                f"{', copied to standbys' if found.failover else ''}"
            )
        )
    parts.append(
        Text(
            f"log: {status.events:,} events, position {status.position or 'none'} "
            f"(epoch {status.epoch or 'none'}, timeline {status.timeline or 'none'}), "
            f"{_seconds(status.lag_s)} behind; decoder: {status.decoder}"
        )
    )
    tables = Table("table", "snapshot", "rows", "topic")
    for table in status.tables:
        tables.add_row(
            Text(table.table),
            _snapshot_text(table),
            f"{table.rows:,}",
            Text(table.topic),
        )
    sinks = Table("sink", "run", "tables", "cut", "behind the log", "log.keep left")
    for sink in status.sinks:
        sinks.add_row(
            sink.sink,
            f"{sink.run}" + ("" if sink.finished else " (not finished)"),
            f"{sink.tables}" + (f", {len(sink.failed)} FAILED" if sink.failed else ""),
            sink.cut or "nothing applied yet",
            _seconds(sink.lag_s),
            _seconds(sink.keep_left_s),
        )
    letters = [
        Text(f"dead letters, {table}: {count:,} (millrace dead-letters list)", style="red")
        for table, count in status.dead_letters.items()
    ]
    failures = [
        Text(f"{sink.sink}, {table}: {reason}")
        for sink in status.sinks
        for table, reason in sink.failed.items()
    ]
    problems = [Text(f"problem: {problem}", style="red") for problem in status.problems]
    shown = [*parts, tables, *letters, sinks, *_runs(status), *_indexes(status)]
    return Group(*shown, *failures, *problems)


def _indexes(status: Status) -> list[Table]:
    """The search indexes; nothing where there is none."""
    shown = Table("index of", "serves", "cut", "being loaded", "documents refused")
    for sink in status.sinks:
        for one in sink.indexes:
            percent = one.loaded_percent
            share = f" ({percent:.0f} %)" if percent is not None else ""
            shown.add_row(
                Text(one.name),
                Text(one.index or "none yet"),
                one.cut or "",
                Text(f"{one.loading}{share}" if one.loading else ""),
                f"{one.refused:,} (millrace dead-letters search)" if one.refused else "",
            )
    return [shown] if shown.row_count else []


def _runs(status: Status) -> list[Table]:
    """What the sinks' last runs did; nothing where there was none."""
    runs = Table(
        "run", "ended (UTC)", "seconds", "cut", "tables", "events", "rows +", "rows ~", "rows -"
    )
    for sink in status.sinks:
        for run in sink.runs:
            runs.add_row(
                f"{sink.sink} {run.run}",
                datetime.fromtimestamp(run.ended_ms / 1e3, UTC).isoformat(" ", "seconds")[:19],
                f"{run.seconds:.1f}",
                run.cut,
                f"{run.tables}" + (f", {run.failed} FAILED" if run.failed else ""),
                *(f"{n:,}" for n in (run.events, run.inserted, run.updated, run.deleted)),
            )
    return [runs] if runs.row_count else []


def _snapshot_text(table: TableStatus) -> str:
    """How far the table's rows are in the log, and what is being read again."""
    text = "complete"
    if table.left_unread:
        text = "not all of it was read: it is gone, or was left out"
    elif table.phase is not Phase.STREAMING:
        text = f"{table.percent:.0f} %{_bytes_text(table)}{_pace_text(table)}"
    for one in table.requests:
        if one.type == "initial" and not one.paused:
            continue  # that is what was told
        percent = f"{one.percent:.0f} %{_bytes_text(table)}"
        pace = " paused" if one.paused else _pace_text(one).removeprefix(",")
        text += f"\n{one.type}: {percent}, {one.rows:,} rows,{pace}".rstrip(",")
    return text


def _bytes_text(table: TableStatus) -> str:
    if table.bytes_done is None or table.bytes_total is None:
        return ""
    return f" of {_bytes(table.bytes_total)}"


def _pace_text(one: TableStatus | RequestStatus) -> str:
    if one.rows_per_s is None:
        return ""
    return f", {one.rows_per_s:,.0f} rows/s, {_seconds(one.left_s)} left"


def _bytes(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
