"""Configuration → how the slot, the snapshot, the log and each sink stand: ``millrace status``.

It only reads. A server that can't be reached is a line in the output, and the rest still shows.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cdc.errors import LogUnreachableError, MillraceError
from cdc.log.state import last_progress, read_dead_letters
from cdc.postgres import slot
from cdc.postgres.connection import connect
from cdc.postgres.slot import concerns
from cdc.records.state import Phase, Progress, SnapshotRequest, TableState
from cdc.records.topics import dead_letter_topic, progress_topic
from cdc.settings import DEFAULT_PATH, Settings, load
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.sink_status import (
    SinkStatus,
    keyed_tables,
    lakehouse_status,
    search_status,
    table_states,
)

Answer = TypeVar("Answer")


def status(config: ConfigOption = DEFAULT_PATH, *, json: JsonOption = False) -> None:
    """Show slot, lag, snapshot progress, and how far each sink is."""
    shown = collect(load(config))
    if json:
        print(shown.model_dump_json(indent=2))
    else:
        Console().print(render(shown))


class SlotStatus(BaseModel):
    """The slot at the source; ``retained_bytes`` of WAL are kept for it.

    Standbys get a copy of it where ``failover`` is true.
    """

    name: str
    active: bool
    confirmed_flush_lsn: str
    lag_bytes: int
    retained_bytes: int
    wal_status: str | None
    safe_wal_size: int | None
    invalidation_reason: str | None
    failover: bool


class RequestStatus(BaseModel):
    """A read of a table that a signal asked for."""

    signal: str
    type: str
    paused: bool
    percent: float
    rows: int
    rows_per_s: float | None
    left_s: float | None


class TableStatus(BaseModel):
    """A table in the log; ``percent`` of its snapshot, and the reads that are under way.

    Rates are since each began, pauses too.
    """

    table: str
    topic: str
    phase: Phase
    left_unread: bool = False
    """Whether nobody reads the rest: the table is gone, or was left out."""
    percent: float
    rows: int
    bytes_done: int | None = None
    bytes_total: int | None = None
    """Of the heap's pages, by the read under way or the last one; None: not known."""
    rows_per_s: float | None = None
    left_s: float | None = None
    requests: list[RequestStatus] = []
    doubt: str = ""
    """Why rows of it may be wrong; empty: nothing says so."""
    set_aside: bool = False
    """Whether its changes aren't taken until it was read again."""
    doubtful_since_ms: int | None = None
    not_reread: str = ""
    """Why a doubtful table isn't read again by itself."""
    gone_since_ms: int | None = None
    """Since when it isn't at the source any more, or has another name."""
    gone_partitions: int = 0
    """How many partitions are gone whose rows the log keeps."""


class Status(BaseModel):
    """Everything that ``millrace status`` shows. ``lag_s`` of the daemon: see ``log_lag_s``."""

    slot: SlotStatus | None = None
    position: str | None = None
    epoch: int | None = None
    """The history that the log is in: one more with every ``millrace new-epoch``."""
    timeline: int | None = None
    """The source's, when the log was written last: one more with every promotion."""
    events: int = 0
    lag_s: float | None = None
    tables: list[TableStatus] = []
    dead_letters: dict[str, int] = {}
    """How many of each table nobody has dealt with."""
    sinks: list[SinkStatus] = []
    problems: list[str] = []


def collect(settings: Settings) -> Status:
    """Ask PostgreSQL, Kafka and the sinks; what doesn't answer becomes a problem."""
    problems: list[str] = []
    silent: list[LogUnreachableError] = []

    def ask(question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except MillraceError as error:
            silent.extend([error] if isinstance(error, LogUnreachableError) else [])
            problems.append(str(error))
            return None

    def ask_log(question: Callable[[], Answer]) -> Answer | None:
        """Each question to brokers that are silent would take half a minute: one is enough."""
        return None if silent else ask(question)

    capture = settings.capture
    prefix, kafka = capture.topic_prefix, settings.kafka
    slot_status = ask(lambda: _slot(settings, problems))
    progress = ask_log(lambda: last_progress(kafka, progress_topic(prefix), capture.slot_name))
    states = ask_log(lambda: table_states(settings)) or []
    dead_letters = ask_log(lambda: read_dead_letters(kafka, dead_letter_topic(prefix))) or {}
    names = ask_log(lambda: keyed_tables(settings)) or []
    sinks = [
        ask(lambda: lakehouse_status(settings, progress)),
        ask(lambda: search_status(settings, progress, names)),
    ]
    return Status(
        slot=slot_status,
        position=str(progress.position) if progress else None,
        epoch=progress.position.epoch if progress else None,
        timeline=progress.timeline if progress else None,
        events=progress.events if progress else 0,
        lag_s=log_lag_s(progress, slot_status.lag_bytes) if progress and slot_status else None,
        tables=[table_status(state, time.time_ns() // 1_000_000) for state in states],
        dead_letters=Counter(
            dead_letter.table
            for dead_letter in dead_letters.values()
            if dead_letter.outcome is None
        ),
        sinks=[sink for sink in sinks if sink is not None],
        problems=problems,
    )


def _slot(settings: Settings, problems: list[str]) -> SlotStatus | None:
    """The slot, and what is to be worried about in it."""
    with connect(settings.source, purpose="status") as connection:
        state = slot.inspect(connection, settings.capture.slot_name)
    if state is None:
        return None
    problems += [concern.text for concern in concerns(state, settings.capture.slot_max_lag_bytes)]
    lsn = str(state.confirmed_flush_lsn)
    return SlotStatus.model_validate({**state._asdict(), "confirmed_flush_lsn": lsn})


def table_status(state: TableState, now_ms: int) -> TableStatus:
    """How far a table's rows are in the log, by its state there, at a time (ms since 1970)."""
    # Of a whole table, what is counted is of another read, which tells its own pace.
    took_ms = now_ms - state.begun_ms if state.initial and state.begun_ms else 0
    rate, left_s = _pace(state.rows_sent, state.share_read, took_ms)
    return TableStatus(
        table=str(state.name),
        topic=state.topic,
        phase=state.phase,
        left_unread=state.is_left_unread,
        percent=100.0 * state.share_read,
        rows=state.rows_sent,
        bytes_done=state.pages_done * state.block_bytes if state.block_bytes else None,
        bytes_total=state.pages_total * state.block_bytes if state.block_bytes else None,
        rows_per_s=rate,
        left_s=left_s,
        requests=[
            _request(state, request, now_ms)
            for request in sorted(state.requests, key=lambda each: each.order)
        ],
        doubt=state.doubt.reason if state.doubt else "",
        set_aside=state.is_set_aside,
        doubtful_since_ms=state.doubt.since_ms if state.doubt else None,
        not_reread=state.doubt.refused if state.doubt else "",
        gone_since_ms=state.gone_ms or None,
        gone_partitions=state.gone_partitions,
    )


def _request(state: TableState, request: SnapshotRequest, now_ms: int) -> RequestStatus:
    share = state.share_of(request)
    begun_ms = request.begun_ms or (state.begun_ms if request.kind == "initial" else 0)
    is_timed = begun_ms and not request.paused
    rate, left_s = _pace(request.rows, share, now_ms - begun_ms if is_timed else 0)
    return RequestStatus(
        signal=request.signal,
        type=request.kind,
        paused=request.paused,
        percent=100.0 * share,
        rows=request.rows,
        rows_per_s=rate,
        left_s=left_s,
    )


def _pace(rows: int, share: float, took_ms: int) -> tuple[float | None, float | None]:
    """Rows a second, and seconds left, of what is under way."""
    took_s = took_ms / 1_000
    if took_s <= 0 or not 0 < share < 1:
        return None, None
    return rows / took_s, took_s * (1 - share) / share


def log_lag_s(progress: Progress, lag_bytes: int) -> float | None:
    """How old the oldest change is that the log may lack, in seconds; None before it streams.

    With WAL to go: since the commit last recorded, or since a keepalive said that all was read.
    """
    if progress.phase is not Phase.STREAMING:
        return None
    if lag_bytes == 0:
        return 0.0
    read_all_until_ms = progress.ts_ms if progress.position.index == 0 else 0
    return max(0.0, time.time() - max(progress.cut_ts_us / 1e6, read_all_until_ms / 1e3))


def render(status: Status) -> Group:
    """The status as tables for people."""
    log = Text(
        f"log: {status.events:,} events, position {status.position or 'none'} "
        f"(epoch {status.epoch or 'none'}, timeline {status.timeline or 'none'}), "
        f"{_seconds(status.lag_s)} behind"
    )
    tables = Table("table", "snapshot", "rows", "topic")
    for table in status.tables:
        snapshot = _snapshot_text(table)
        tables.add_row(Text(table.table), snapshot, f"{table.rows:,}", Text(table.topic))
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
    dead_letters = [
        Text(f"dead letters, {table}: {count:,} (millrace dead-letters list)", style="red")
        for table, count in status.dead_letters.items()
    ]
    failures = [
        Text(f"{sink.sink}, {table}: {reason}")
        for sink in status.sinks
        for table, reason in sink.failed.items()
    ]
    problems = [Text(f"problem: {problem}", style="red") for problem in status.problems]
    of_sinks: list[Table | Text] = [sinks, *_runs(status), *_indexes(status), *failures]
    return Group(_slot_text(status.slot), log, tables, *dead_letters, *of_sinks, *problems)


def _slot_text(state: SlotStatus | None) -> Text:
    if state is None:
        return Text("slot: none (has `millrace run` been started?)")
    activity = "active" if state.active else "NOT ACTIVE: is the daemon running?"
    return Text(
        f"slot {state.name}: {activity}, acknowledged {state.confirmed_flush_lsn}, "
        f"{_bytes(state.lag_bytes)} to go, {_bytes(state.retained_bytes)} of WAL held back"
        f" ({state.invalidation_reason or state.wal_status or 'unknown'})"
        f"{', copied to standbys' if state.failover else ''}"
    )


def _indexes(status: Status) -> list[Table]:
    """The search indexes; nothing where there is none."""
    shown = Table("index of", "serves", "cut", "being loaded", "documents refused")
    for sink in status.sinks:
        for index in sink.indexes:
            percent = index.loaded_percent
            share = f" ({percent:.0f} %)" if percent is not None else ""
            shown.add_row(
                Text(index.name),
                Text(index.index or "none yet"),
                index.cut or "",
                Text(f"{index.loading}{share}" if index.loading else ""),
                f"{index.refused:,} (millrace dead-letters search)" if index.refused else "",
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
                _time(run.ended_ms),
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
    for request in table.requests:
        if request.type == "initial" and not request.paused:
            continue  # the line above says that
        percent = f"{request.percent:.0f} %{_bytes_text(table)}"
        pace = " paused" if request.paused else _pace_text(request).removeprefix(",")
        text += f"\n{request.type}: {percent}, {request.rows:,} rows,{pace}".rstrip(",")
    return text + _doubt_text(table)


def _doubt_text(table: TableStatus) -> str:
    """What may be wrong with the table's rows in the log, and what keeps it from being mended."""
    text = ""
    if table.gone_since_ms is not None:
        text += f"\ndropped or renamed at the source, seen {_time(table.gone_since_ms)}"
    if table.gone_partitions:
        text += f"\nhas rows of {table.gone_partitions} dropped partitions"
    if table.doubtful_since_ms is not None:
        word = "SET ASIDE" if table.set_aside else "DOUBTFUL"
        text += f"\n{word} since {_time(table.doubtful_since_ms)}: {table.doubt}"
    if table.not_reread:
        text += f"\nnot read again, {table.not_reread}: millrace snapshot --reset {table.table}"
    return text


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(" ", "seconds")[:19]


def _bytes_text(table: TableStatus) -> str:
    if table.bytes_done is None or table.bytes_total is None:
        return ""
    return f" of {_bytes(table.bytes_total)}"


def _pace_text(read: TableStatus | RequestStatus) -> str:
    if read.rows_per_s is None:
        return ""
    return f", {read.rows_per_s:,.0f} rows/s, {_seconds(read.left_s)} left"


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
