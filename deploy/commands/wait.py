"""``millrace wait``: return once the sinks show an instant of the source."""

import time
from contextlib import closing
from typing import Annotated, Final, Literal, NamedTuple

import typer

from cdc.errors import (
    ConfigError,
    ExitCode,
    LogUnreachableError,
    MillraceError,
    SourceUnreachableError,
)
from cdc.lines import Lines
from cdc.postgres.captured import captured_tables
from cdc.postgres.checks.soon import connect_soon
from cdc.postgres.connection import bounded, query
from cdc.records.position import Lsn
from cdc.records.state import Progress
from cdc.settings import DEFAULT_PATH, Settings
from deploy.commands.app import ConfigOption
from deploy.commands.configuration import load_to_connect, seconds
from deploy.status.patience import PATIENCE_S, ask_source
from deploy.status.shown import Lacking, Outlook, Watched
from sinks.run.summary import SinkName
from sinks.run.wanted import configured_sinks

_LOOK_S: Final = 0.05
_ANSWER_S: Final = 1.0
"""Minimum time for the source's answer, however little is left of the timeout."""
_SOURCE: Final = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn() END::text,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
            ELSE pg_current_wal_flush_lsn() END::text,
       (SELECT system_identifier::text FROM pg_control_system()),
       pg_is_in_recovery(),
       CASE WHEN NOT pg_is_in_recovery()
            THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END
"""


class NotShownError(MillraceError):
    """A sink doesn't show the instant in time, or can't."""

    exit_code = ExitCode.NOT_SHOWN


class SourceEnd(NamedTuple):
    """The end of the source's WAL, the end of its durable WAL, and its cluster.

    On a standby they are the replayed and the received end, and its timeline is unknown.
    ``captured`` are the tables that the daemon captures, once it has seen them.
    """

    written: Lsn
    flushed: Lsn
    system_identifier: str
    is_standby: bool
    timeline: int | None = None
    captured: frozenset[str] = frozenset()


def wait(
    config: ConfigOption = DEFAULT_PATH,
    *,
    lsn: Annotated[
        str | None,
        typer.Option(help="Wait for this LSN: pg_current_wal_insert_lsn() after your commit."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Wait for this moment at the source.")] = False,
    sink: Annotated[Literal[SinkName, "all"], typer.Option(help="Wait for these sinks.")] = "all",
    timeout: Annotated[str, typer.Option(help="Give up after this time.")] = "30s",
) -> None:
    """Wait until the sinks show everything that was committed up to an instant.

    The command starts no run. Exit codes: 0 shown; 37 not in time, or not before something is
    repaired: the message names what is missing.
    """
    settings = load_to_connect(config)
    settings.require_own_capture("wait")
    sinks = _sinks(settings, sink)
    deadline = time.monotonic() + seconds(timeout)
    watched = Watched(settings, sinks, max(1.0, seconds(timeout)))
    instant, end = _instant(settings, lsn, deadline, now=now)
    asked_at = time.monotonic()
    _require_this_history(settings, watched.progress(), end)
    while lacking := _lacking(watched, instant, end, deadline):
        lasting = [each for each in lacking if each.outlook is not Outlook.LATER]
        if lasting or time.monotonic() > deadline:
            raise _not_shown(settings, instant, lasting or lacking, timeout)
        time.sleep(_LOOK_S)
        if watched.unseen and end is not None and time.monotonic() - asked_at > _ANSWER_S:
            end = _without_dropped(settings, end)
            asked_at = time.monotonic()
    print(f"{', '.join(sinks)}: all show {instant}")


def _lacking(
    watched: Watched, instant: Lsn, end: SourceEnd | None, deadline: float
) -> list[Lacking]:
    """Return the parts that lack the instant. Brokers that stay silent count, too."""
    timeline, captured = (end.timeline, end.captured) if end is not None else (None, frozenset())
    try:
        return watched.lacking(instant, timeline, captured)
    except LogUnreachableError as error:
        if time.monotonic() < deadline:
            raise
        return [Lacking("the log", error.what)]


def _sinks(settings: Settings, wanted: str) -> tuple[SinkName, ...]:
    sinks = tuple(name for name in configured_sinks(settings) if wanted in {name, "all"})
    if not sinks:
        what = "any sink" if wanted == "all" else f"a sink {wanted}"
        raise ConfigError(
            f"the configuration doesn't have {what}",
            where="[lakehouse], [[views]], [search]",
            remedy="add its section, or choose another sink with --sink",
        )
    return sinks


def _instant(
    settings: Settings, lsn: str | None, deadline: float, *, now: bool
) -> tuple[Lsn, SourceEnd | None]:
    """Return the instant, and the source's position, as far as it answers."""
    if now == (lsn is not None):
        raise ConfigError("no instant is given, or two", remedy="--lsn X, or --now")
    if lsn is None:
        end = _source_end(settings, deadline)
        return end.written, end
    try:
        instant = Lsn.parse(lsn)
    except ValueError:
        raise ConfigError(f"{lsn} isn't an LSN", where="--lsn", remedy="as 16/B374D848") from None
    try:
        end = _source_end(settings, deadline)
    except SourceUnreachableError:
        return instant, None
    if instant > end.written and not end.is_standby:  # it may only be late
        raise ConfigError(
            f"the source's WAL ends at {end.written}: {instant} belongs to another server, or to"
            " a lost timeline",
            where="--lsn",
            remedy="take the LSN from the server in [source]: SELECT pg_current_wal_insert_lsn()",
        )
    return instant, end


def _without_dropped(settings: Settings, end: SourceEnd) -> SourceEnd:
    """Return the same without tables that are no longer captured, as no daemon will see them."""
    try:
        now = _source_end(settings, time.monotonic())
    except MillraceError:
        return end
    return end._replace(captured=end.captured & now.captured)


def _source_end(settings: Settings, deadline: float) -> SourceEnd:
    """Return the source's position, if it answers by the deadline, or soon."""
    left_s = deadline - time.monotonic()
    return ask_source(max(_ANSWER_S, left_s), lambda: _asked_end(settings))


def _asked_end(settings: Settings) -> SourceEnd:
    with (
        closing(connect_soon(settings.source, purpose="wait")) as connection,
        bounded(connection, PATIENCE_S),  # the server may stop after it has let us in
    ):
        ((written, flushed, identifier, is_standby, timeline),) = query(connection, _SOURCE)
        # Without lossless, a table is new to the log with its first change.
        capture = settings.capture
        tables = captured_tables(connection, capture) if capture.lossless else []
    # A standby that restores WAL from an archive has received none.
    ends = Lsn.parse(written), Lsn.parse(flushed or written)
    captured = frozenset(str(table.name) for table in tables)
    on = int(timeline, 16) if timeline else None
    return SourceEnd(*ends, identifier, is_standby, on, captured)


def _require_this_history(
    settings: Settings, progress: Progress | None, end: SourceEnd | None
) -> None:
    """Refuse the LSNs of another history than the log's."""
    if progress is None or end is None or progress.system_identifier == end.system_identifier:
        return
    raise ConfigError(
        f"the source is cluster {end.system_identifier}, but the log is of cluster"
        f" {progress.system_identifier}: their LSNs aren't comparable",
        where=f"topic.prefix {settings.capture.topic_prefix}",
        remedy="correct [source]; if the source was replaced: millrace new-epoch",
    )


def _not_shown(
    settings: Settings, instant: Lsn, lacking: list[Lacking], timeout: str
) -> NotShownError:
    is_late = all(each.outlook is Outlook.LATER for each in lacking)
    what = f"{instant} isn't shown" + (f" within {timeout}" if is_late else "")
    lines = [str(each) for each in lacking]
    if is_late and any(each.part == "the log" for each in lacking):
        try:
            end = _source_end(settings, time.monotonic())
        except MillraceError as error:
            lines.append(f"the source: {error.what}")
        else:
            if end.is_standby and end.written < instant:
                lines.append(f"the source: a standby, which has replayed WAL up to {end.written}")
            elif end.flushed < instant:
                lines.append(f"the source: WAL is flushed up to {end.flushed}")
    return NotShownError(Lines("\n  ".join([f"{what}:", *lines])))
