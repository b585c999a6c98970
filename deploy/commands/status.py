"""Configuration → how the slot, the snapshot, the log and each sink stand: ``millrace status``.

It only reads. A server that can't be reached is a line in the output, and the rest still shows.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.errors import LogUnreachableError, MillraceError
from cdc.log.offsets import log_missing
from cdc.log.state import last_progress, read_dead_letters
from cdc.postgres import slot
from cdc.postgres.checks.standby import why_unread
from cdc.postgres.connection import connect
from cdc.postgres.slot import concerns
from cdc.records.state import Phase, Progress
from cdc.records.topics import dead_letter_topic, progress_topic
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption, JsonOption
from deploy.commands.configuration import load_to_connect
from deploy.commands.printing import print_json, print_rich
from deploy.status.sinks import (
    SinkStatus,
    keyed_tables,
    lakehouse_status,
    search_status,
    table_states,
)
from deploy.status.tables import (
    TableStatus,
    seconds_text,
    size_text,
    state_text,
    table_status,
    time_text,
)

Answer = TypeVar("Answer")


def status(config: ConfigOption = DEFAULT_PATH, *, json: JsonOption = False) -> None:
    """Show slot, lag, snapshot progress, and how far each sink is."""
    shown = collect(load_to_connect(config))
    if json:
        print_json(shown.model_dump_json(indent=2))
    else:
        print_rich(render(shown))


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
    progress = ask_log(lambda: _progress(settings))
    states = ask_log(lambda: table_states(settings)) or []
    dead_letters = ask_log(lambda: read_dead_letters(kafka, dead_letter_topic(prefix))) or {}
    names = ask_log(lambda: keyed_tables(settings, states)) or []
    if any(not request.paused for state in states for request in state.requests):
        problems += map(str, filter(None, [why_unread(settings)]))
    lakehouse = ask(lambda: lakehouse_status(settings, progress, states))
    search = ask(lambda: search_status(settings, progress, names, states, lakehouse))
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
        sinks=[sink for sink in (lakehouse, search) if sink is not None],
        problems=problems,
    )


def _progress(settings: Settings) -> Progress | None:
    """How far the log is; raises LogMissingError where the daemon hasn't written any."""
    capture, kafka = settings.capture, settings.kafka
    prefix, slot_name = capture.topic_prefix, capture.slot_name
    progress = last_progress(kafka, progress_topic(prefix), slot_name)
    if progress is None and settings.captures_itself:
        raise log_missing(prefix, slot_name, kafka.get("bootstrap.servers", ""))
    return progress


def _slot(settings: Settings, problems: list[str]) -> SlotStatus | None:
    """The slot, and what is to be worried about in it."""
    with connect(settings.source, purpose="status") as connection:
        state = slot.inspect(connection, settings.capture.slot_name)
    if state is None:
        return None
    problems += [concern.text for concern in concerns(state, settings.capture.slot_max_lag_bytes)]
    lsn = str(state.confirmed_flush_lsn)
    return SlotStatus.model_validate({**state._asdict(), "confirmed_flush_lsn": lsn})


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
        f"{seconds_text(status.lag_s)} behind"
    )
    tables = Table("table", "snapshot", "rows", "topic")
    for table in status.tables:
        snapshot = state_text(table)
        tables.add_row(Text(table.table), snapshot, f"{table.rows:,}", Text(table.topic))
    sinks = Table("sink", "run", "tables", "cut", "behind the log", "log.keep left")
    for sink in status.sinks:
        sinks.add_row(
            sink.sink,
            f"{sink.run}" + ("" if sink.finished else " (not finished)"),
            f"{sink.tables}" + (f", {len(sink.failed)} FAILED" if sink.failed else ""),
            sink.cut or "nothing applied yet",
            seconds_text(sink.lag_s),
            seconds_text(sink.keep_left_s),
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
    of_sinks += [Text(text) for sink in status.sinks for text in sink.gap_texts()]
    of_sinks += [Text(text) for sink in status.sinks for text in sink.doubt_texts()]
    of_sinks += [Text(text) for sink in status.sinks for text in sink.drop_texts()]
    return Group(_slot_text(status.slot), log, tables, *dead_letters, *of_sinks, *problems)


def _slot_text(state: SlotStatus | None) -> Text:
    if state is None:
        return Text("slot: none (has `millrace run` been started?)")
    activity = "active" if state.active else "NOT ACTIVE: is the daemon running?"
    return Text(
        f"slot {state.name}: {activity}, acknowledged {state.confirmed_flush_lsn}, "
        f"{size_text(state.lag_bytes)} to go, {size_text(state.retained_bytes)} of WAL held back"
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
                time_text(run.ended_ms),
                f"{run.seconds:.1f}",
                run.cut,
                f"{run.tables}" + (f", {run.failed} FAILED" if run.failed else ""),
                *(f"{n:,}" for n in (run.events, run.inserted, run.updated, run.deleted)),
            )
    return [runs] if runs.row_count else []
