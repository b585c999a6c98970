"""The state of all parts → lines and tables for people, complete at 80 columns.

Names and LSNs are never cut: without room, they continue in the next line.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cdc.records.reports import RunReport
from cdc.records.state import Phase
from deploy.status.model import Problem, Status
from deploy.status.sinks import SinkStatus
from deploy.status.tables import (
    COMPLETE,
    TableStatus,
    seconds_text,
    size_text,
    state_text,
    time_text,
)
from sinks.run.summary import kept_out_text

SHOWN_MAX: Final = 20
"""Up to this many tables, views, indexes, problems and notes are shown, unless all are wanted."""
_BAR: Final = 10
"""Characters of a bar."""
_ALL: Final = "millrace status --tables lists all, millrace status NAME… some"

ListedRow = TypeVar("ListedRow")


class Selection(NamedTuple):
    """The tables, views and indexes to show: those with some ``names``, or all.

    Without either, all of a few are shown. Of many, those that need attention are shown.
    """

    names: Collection[str] = ()
    is_all: bool = False

    def rows(
        self,
        rows: Iterable[ListedRow],
        name_of: Callable[[ListedRow], str],
        needs_attention: Callable[[ListedRow], bool],
    ) -> list[ListedRow]:
        """Return the rows to show."""
        rows = list(rows)
        if self.names:
            return [row for row in rows if name_of(row) in self.names]
        if self.is_all or len(rows) <= SHOWN_MAX:
            return rows
        return [row for row in rows if needs_attention(row)][:SHOWN_MAX]

    def lines(self, lines: Iterable[Text], what: str) -> Iterator[Text]:
        """Yield lines, the first of many, and how many more there are."""
        lines = list(lines)
        end = len(lines) if self.is_all else SHOWN_MAX
        yield from lines[:end]
        if more := len(lines[end:]):
            yield Text(f"… and {more:,} more {what} (millrace status --tables)")


def render(status: Status, selection: Selection = Selection()) -> Group:  # noqa: B008 (immutable)
    """Return the status for people: problems first."""
    problems = (_problem(problem) for problem in status.problems)
    parts: list[RenderableType] = [*selection.lines(problems, "problems")]
    if not parts:
        parts.append(Text("no problems", style="green"))
    parts += [Text(""), *_capture(status), *_tables(status, selection)]
    if status.sinks:
        parts.append(_sinks(status))
    parts += [*_views(status, selection), *_indexes(status, selection)]
    return Group(*parts, *selection.lines(_notes(status), "lines"))


def names_in(status: Status) -> set[str]:
    """Return the names of tables, views and indexes that can be selected."""
    return {
        *(table.table for table in status.tables),
        *(view.name for sink in status.sinks for view in sink.views),
        *(index.name for sink in status.sinks for index in sink.indexes),
    }


def _problem(problem: Problem) -> Text:
    return Text(f"PROBLEM {problem}", style="red")


def _capture(status: Status) -> Iterator[Text]:
    slot = status.slot
    if slot is not None:
        activity = "active" if slot.active else "not active"
        if not slot.active and status.is_captured:
            activity = "not active yet: the daemon is reading rows"
        yield Text(
            f"slot {slot.name}: {activity}, acknowledged {slot.confirmed_flush_lsn},"
            f" {size_text(slot.lag_bytes)} to read, {size_text(slot.retained_bytes)} of WAL held"
            f" back ({slot.invalidation_reason or slot.wal_status or 'unknown'})"
        )
    if status.position is not None:
        yield Text(
            f"log: {status.events or 0:,} events, up to {status.position} (epoch {status.epoch},"
            f" timeline {status.timeline}), capture lag {status.capture_lag}"
        )


def _table(*columns: str) -> Table:
    """Return a table whose cells continue in the next line, and aren't cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        is_number = column in {"rows", "events", "tables"}
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    return table


def _tables(status: Status, selection: Selection) -> Iterator[RenderableType]:
    """Yield the captured tables, and their totals if some aren't shown."""
    tables = status.tables
    selected = selection.rows(
        tables, lambda table: table.table, lambda t: state_text(t) != COMPLETE
    )
    shown = _table("table", "rows", "snapshot")
    for table in selected:
        rows = "unknown" if table.rows is None else f"~{table.rows:,}"
        shown.add_row(Text(table.table), rows, Text(f"{_bar(table)}{state_text(table)}"))
    if shown.row_count:
        yield shown
    if len(selected) < len(tables):
        done = sum(state_text(table) == COMPLETE for table in tables)
        rows_in_all = sum(table.rows or 0 for table in tables)
        yield Text(f"{len(tables):,} tables, ~{rows_in_all:,} rows: {done:,} complete ({_ALL})\n")


def _bar(table: TableStatus) -> str:
    """Return the progress of the table's first read."""
    if table.phase is Phase.STREAMING or table.left_unread or table.set_aside:
        return ""
    done = round(_BAR * table.percent / 100)
    return f"{'█' * done}{'░' * (_BAR - done)} "


def _sinks(status: Status) -> Table:
    shown = _table("sink", "tables", "cut", "behind the source", "last run")
    for sink in status.sinks:
        shown.add_row(
            sink.sink,
            f"{sink.tables}" + (f", {len(sink.failed)} FAILED" if sink.failed else ""),
            sink.cut or "none yet",
            Text(f"{sink.lag}\n(behind the log: {sink.sink_lag})"),
            Text(_run_text(sink)),
        )
    return shown


def _run_text(sink: SinkStatus) -> str:
    """Return the result of the sink's last run, and the progress of the active one."""
    lines = []
    now_ms = time.time_ns() // 1_000_000
    if (running := sink.running) is not None and not running.is_gone(now_ms):
        done = f", {running.done} of {running.tables} tables" if running.tables else ""
        lines.append(f"running for {seconds_text((now_ms - running.started_ms) / 1e3)}{done}")
    if (last := sink.last_run) is not None and last.ended_ms is not None:
        ago = seconds_text(max(0.0, (now_ms - last.ended_ms) / 1e3))
        what = f"{last.events:,} events in {seconds_text(last.seconds)}"
        what += kept_out_text(last.kept_out)
        lines.append(f"{ago} ago: {'nothing to do' if last.exit_code == 3 else what}")
    if (verified := sink.verified) is not None and not verified.error:
        difference = f"{len(verified.failed):,} tables differ" if verified.failed else "0 differ"
        ago = seconds_text(max(0.0, (now_ms - (verified.ended_ms or now_ms)) / 1e3))
        part = verified.where.partition(" (")[2].removesuffix(")")  # a slice
        part = f", {part} only" if part else ""
        lines.append(f"verified {ago} ago: {verified.events:,} rows{part}, {difference}")
    if sink.keep_left_s is not None:
        lines.append(f"log.keep left: {seconds_text(sink.keep_left_s)}")
    return "\n".join(lines) or "none yet"


def _views(status: Status, selection: Selection) -> Iterator[RenderableType]:
    """Yield the views, if there are any."""
    views = [view for sink in status.sinks for view in sink.views]
    selected = selection.rows(views, lambda view: view.name, lambda v: bool(v.loads or v.failed))
    shown = _table("view", "cut", "state")
    for view in selected:
        states = ["being built"] if view.loads else []
        states += ["FAILED"] if view.failed else []
        shown.add_row(Text(view.name), view.cut or "none yet", ", ".join(states))
    if shown.row_count:
        yield shown
    if len(selected) < len(views):
        yield Text(f"{len(views):,} views ({_ALL})\n")


def _indexes(status: Status, selection: Selection) -> Iterator[RenderableType]:
    """Yield the search indexes, if there are any."""
    indexes = [index for sink in status.sinks for index in sink.indexes]
    selected = selection.rows(
        indexes,
        lambda index: index.name,
        lambda index: bool(index.loading or index.refused or not index.index),
    )
    shown = _table("index of", "serves", "cut", "being loaded", "documents refused")
    for index in selected:
        percent = index.loaded_percent
        share = f" ({percent:.0f} %)" if percent is not None else ""
        shown.add_row(
            Text(index.name),
            Text(index.index or "none yet"),
            index.cut or "",
            Text(f"{index.loading}{share}" if index.loading else ""),
            f"{index.refused:,} (millrace dead-letters search)" if index.refused else "",
        )
    if shown.row_count:
        yield shown
    if len(selected) < len(indexes):
        yield Text(f"{len(indexes):,} indexes ({_ALL})\n")


def _notes(status: Status) -> Iterator[Text]:
    for sink in status.sinks:
        for text in (*sink.gap_texts(), *sink.doubt_texts(), *sink.drop_texts()):
            yield Text(text)


def runs_table(runs: Sequence[RunReport]) -> Table:
    """Return the results of runs, the newest first."""
    shown = _table("ended (UTC)", "run", "cut", "tables", "events", "seconds", "outcome")
    for run in runs:
        failed = "".join(f"\n{table}: {reason}" for table, reason in run.failed.items())
        done = "nothing differs" if run.job == "verify" else "applied"
        outcome = run.error or ("FAILED" + failed if failed else done)
        name = sink_name(run)
        shown.add_row(
            time_text(run.ended_ms or run.started_ms),
            f"{name} {run.run}" if run.run else name,
            run.where,
            f"{run.done}",
            f"{run.events:,}",
            f"{run.seconds:.1f}",
            Text("done" if run.job == "compact" and not run.error else outcome),
        )
    return shown


def sink_name(run: RunReport) -> str:
    """Return the subject of a run."""
    return run.sink if run.job == "merge" else f"{run.job} {run.sink}"
