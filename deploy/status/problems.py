"""The parts' answers → the problems that need an action, each with its remedy."""

import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cdc.errors import LogMissingError, MillraceError
from cdc.records.state import Phase
from cdc.settings import Settings
from deploy.status.model import Problem, Status
from deploy.status.sinks import SinkStatus
from deploy.status.tables import TableStatus, seconds_text

KEEP_LEFT: Final = 0.25
"""A sink with less than this share of log.keep left will soon be too late."""
OVERDUE_S: Final = 120.0
"""Without news, or after failures, `merge --follow` waits for a minute."""
_READ_AGAIN: Final = "wait until the daemon has read the table again: millrace status --watch"
_PARTS: Final = {"source": "the source", "log": "the log", "standby": "[snapshot_source]"}


def unanswered(given: Mapping[str, Any]) -> list[Problem]:
    """Return the parts without an answer, or with an error."""
    problems = []
    for name, answer in given.items():
        if isinstance(answer, LogMissingError):
            problems.append(Problem.of(_PARTS.get(name, name), answer))
        elif isinstance(answer, MillraceError):
            problem = Problem.of(_PARTS.get(name, name), answer)
            what = f"unknown, because {problem.what}"
            problems.append(problem.model_copy(update={"what": what}))
    return problems


def found_problems(
    settings: Settings, status: Status, answers: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield the problems in the answers."""
    yield from _of_capture(settings, status, answers)
    (unread,) = answers["standby"] or (None,)
    if unread is not None:
        yield Problem.of("[snapshot_source]", unread)
    for table in status.tables:
        yield from _of_table(table)
    for name, count in status.dead_letters.items():
        yield Problem(
            part=f"table {name}",
            what=f"{count:,} open dead letters",
            remedy="millrace dead-letters list",
        )
    log = answers["log"]
    if status.sinks and log is not None and log.unreported is not None:
        yield Problem.of("the log", log.unreported)
    is_merging = any(sink.running is not None for sink in status.sinks)
    for sink in status.sinks:
        yield from _of_sink(settings, sink, is_log_read=answers["log"] is not None)
        if not is_merging:
            yield from _overdue(sink)


def _of_capture(
    settings: Settings, status: Status, answers: Mapping[str, Any]
) -> Iterator[Problem]:
    source, log = answers["source"], answers["log"]
    name = settings.capture.slot_name
    phase = log.progress.phase if log is not None and log.progress is not None else None
    is_once = settings.capture.snapshot_mode == "initial_only"
    if is_once and phase is Phase.STREAMING and source is not None and source.slot is None:
        return  # it is done, and its slot was dropped with it
    if source is not None:
        for concern in source.concerns:
            yield Problem(part="the source", what=concern.text, remedy=concern.remedy)
        if not source.is_captured:
            yield Problem(
                part="the daemon", what=f"no daemon reads slot {name}", remedy="millrace run"
            )
        if source.slot is None and phase in {Phase.SNAPSHOT, Phase.STREAMING}:
            yield Problem(
                part="the source",
                what=f"slot {name} is missing, and the log has a gap",
                remedy="read about exit code 17 in docs/reference/errors.md; millrace new-epoch"
                " reads every table again",
            )
    daemon = status.daemon
    if daemon is not None and daemon.fault:
        age_s = max(0.0, time.time() - daemon.since_ms / 1_000)
        yield Problem(
            part="the daemon",
            what=f"it has been starting over for {seconds_text(age_s)}: {daemon.fault}",
            remedy=daemon.remedy or "run millrace check: it shows what is missing",
        )
    if log is not None and status.capture_lag.seconds is None and settings.captures_itself:
        lag = status.capture_lag
        yield Problem(part="the log", what=f"its lag is {lag}", remedy=lag.remedy or "millrace run")


def _of_table(table: TableStatus) -> Iterator[Problem]:
    part = f"table {table.table}"
    again = f"millrace snapshot --reset {shlex.quote(table.table)}"
    if table.doubt:
        word = "set aside" if table.set_aside else "doubtful"
        # The daemon itself checks whether it can continue, but not whether rows can be written.
        remedy = f"solve this, then run {again}" if table.set_aside else _READ_AGAIN
        remedy = again if table.not_reread else remedy
        what = f"{word}: {table.doubt}"
        if table.not_reread:
            what += f"; the daemon doesn't read it again: {table.not_reread}"
        yield Problem(part=part, what=what, remedy=remedy)
    elif table.left_unread and table.gone_since_ms is None:
        what = "the log has only a part of its rows: it was left out of the capture"
        yield Problem(part=part, what=what, remedy=again)
    for request in table.requests:
        if request.obstacle:
            what = f"the daemon can't read it, and retries: {request.obstacle}"
            yield Problem.of_text(
                part, what, "solve this, and watch the table: millrace status --watch"
            )


def _of_rows(sink: SinkStatus) -> Iterator[Problem]:
    """Yield rows that a derived table lacks, or may have wrong, though no run has failed."""
    for index in sink.indexes:
        if index.refused:
            what = f"the search server refused {index.refused:,} documents"
            part = f"{sink.sink}, {index.name}"
            yield Problem(part=part, what=what, remedy="millrace dead-letters search")
    for table, why in sink.doubts.items():
        yield Problem.of_text(f"{sink.sink}, {table}", why, f"millrace merge {sink.sink}")
    for drop in sink.drops:
        if drop.needs_word:
            what = (
                f"{drop.table} no longer exists at the source, but its rows stay here: {drop.held}"
            )
            remedy = f"millrace merge {sink.sink} --accept-drop {shlex.quote(drop.table)}"
            yield Problem(part=f"{sink.sink}, {drop.name}", what=what, remedy=remedy)


def _overdue(sink: SinkStatus) -> Iterator[Problem]:
    """Yield an announced run that doesn't start, as a small lag doesn't show it."""
    last = sink.last_run
    if last is None or last.next_due_ms is None:
        return
    late_s = time.time() - last.next_due_ms / 1_000
    if late_s > OVERDUE_S:
        what = f"its next run was due {seconds_text(late_s)} ago"
        yield Problem(part=sink.sink, what=what, remedy=f"millrace merge {sink.sink} --follow")


def _of_sink(settings: Settings, sink: SinkStatus, *, is_log_read: bool) -> Iterator[Problem]:
    merge = f"millrace merge {sink.sink}"
    for table, reason in sink.failed.items():
        yield Problem.of_text(f"{sink.sink}, {table}", reason, f"{merge} retries it")
    for table, found in (sink.verified.failed if sink.verified else {}).items():
        what = f"the last verify: {found}"
        remedy = "read docs/guides/verify.md; millrace verify compares again"
        yield Problem(part=f"{sink.sink}, {table}", what=what, remedy=remedy)
    last, running = sink.last_run, sink.running
    now_ms = time.time_ns() // 1_000_000
    if running is not None and running.is_gone(now_ms):
        since_s = (now_ms - running.started_ms) / 1_000
        what = f"a run that began {seconds_text(since_s)} ago ended without a report"
        yield Problem(part=sink.sink, what=what, remedy=f"{merge} finishes it")
    if last is not None and last.error:
        code = f" (exit code {last.exit_code})" if last.exit_code else ""
        what = f"the last run failed{code}: {last.error}"
        yield Problem.of_text(sink.sink, what, f"{merge} retries it")
    if is_log_read and sink.sink_lag.seconds is None:
        lag = sink.sink_lag
        yield Problem(part=sink.sink, what=f"its lag is {lag}", remedy=lag.remedy or merge)
    yield from _of_rows(sink)
    keep_s = settings.log.keep.total_seconds()
    if sink.keep_left_s is not None and sink.keep_left_s < KEEP_LEFT * keep_s:
        left = seconds_text(max(0.0, sink.keep_left_s))
        what = f"changes that it hasn't applied may leave the log in {left} (log.keep)"
        yield Problem(part=sink.sink, what=what, remedy=merge)
