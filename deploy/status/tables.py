"""A table's state in the log → the progress of its rows, and what may be wrong with them.

For people and for metrics: ``millrace status`` and the health endpoints.
"""

import shlex
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel

from cdc.records.state import Phase, SnapshotRequest, TableState


class RequestStatus(BaseModel):
    """A read of a table that a signal asked for."""

    signal: str
    type: str
    paused: bool
    percent: float
    rows: int
    rows_per_s: float | None
    left_s: float | None
    obstacle: str = ""
    """Why its last attempt has failed."""


COMPLETE: Final = "complete"
"""The state of a table that needs no attention."""


class TableStatus(BaseModel):
    """A table in the log, with ``percent`` of its snapshot, and its active reads.

    Rates count from each read's begin, including pauses.
    """

    table: str
    topic: str
    phase: Phase
    left_unread: bool = False
    """Whether nothing reads the rest: the table is gone, or was left out."""
    percent: float
    rows: int | None = None
    """About how many rows the table has, by the source's catalog. None: unknown."""
    snapshot_rows: int
    """How many rows the active read, or the last one, has brought."""
    bytes_done: int | None = None
    bytes_total: int | None = None
    """Size of the heap's pages, by the active read or the last one. None: unknown."""
    rows_per_s: float | None = None
    left_s: float | None = None
    requests: list[RequestStatus] = []
    doubt: str = ""
    """Why its rows may be wrong. Empty: nothing shows that they are."""
    set_aside: bool = False
    """Whether its changes are skipped until it is read again."""
    doubtful_since_ms: int | None = None
    not_reread: str = ""
    """Why the daemon doesn't read a doubtful table again."""
    gone_since_ms: int | None = None
    """Since when it is missing at the source, or has another name ..."""
    renamed_to: str = ""
    """... and its new name."""
    gone_partitions: int = 0
    """The number of dropped partitions whose rows the log keeps."""
    gaps: int = 0
    """How often its histories and archives got a gap, from a read of changes that the stream lacks.
    """
    ended_partitions: int = 0
    """The number of dropped partitions whose rows will be deleted ..."""
    ended_waits: str = ""
    """... and what that waits for."""


def table_status(state: TableState, now_ms: int, rows: int | None = None) -> TableStatus:
    """Return the progress of a table's rows in the log at a time (ms since 1970).

    ``rows`` is about how many it has at the source.
    """
    # In a complete table, the counters belong to another read, which has its own rate.
    took_ms = now_ms - state.begun_ms if state.initial and state.begun_ms else 0
    rate, left_s = _pace(state.rows_sent, state.share_read, took_ms)
    return TableStatus(
        table=str(state.name),
        topic=state.topic,
        phase=state.phase,
        left_unread=state.is_left_unread,
        percent=100.0 * state.share_read,
        rows=rows,
        snapshot_rows=state.rows_sent,
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
        renamed_to=state.renamed_to,
        gone_partitions=state.gone_partitions,
        gaps=state.gaps_total,
        ended_partitions=sum(len(partition.leaves) for partition in state.ended),
        ended_waits=_ended_waits(state) if state.ended else "",
    )


def _ended_waits(state: TableState) -> str:
    if state.gone_ms:
        return "once the table exists again"
    if state.doubt is not None:
        return "once the daemon has read the table again"
    if state.requests:
        return "once the snapshots of the table are complete"
    return (
        "once all transactions that may have written to them have ended and the source has answered"
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
        obstacle=request.obstacle,
    )


def _pace(rows: int, share: float, took_ms: int) -> tuple[float | None, float | None]:
    """Return rows per second, and seconds left, of the active read."""
    took_s = took_ms / 1_000
    if took_s <= 0 or not 0 < share < 1:
        return None, None
    return rows / took_s, took_s * (1 - share) / share


def state_text(table: TableStatus) -> str:
    """Return the progress of the table's rows in the log, and of repeated reads."""
    text = COMPLETE
    if table.left_unread:
        text = "incomplete: the table no longer exists, or was left out of the capture"
    elif table.phase is not Phase.STREAMING:
        text = f"{table.percent:.0f} %{_bytes_text(table)}{_pace_text(table)}"
    for request in table.requests:
        if request.obstacle:
            text += f"\nthe daemon can't read it, and retries: {request.obstacle}"
        if request.type == "initial" and not request.paused:
            continue  # the line above has that
        percent = f"{request.percent:.0f} %{_bytes_text(table)}"
        pace = " paused" if request.paused else _pace_text(request).removeprefix(",")
        text += f"\n{request.type}: {percent}, {request.rows:,} rows,{pace}".rstrip(",")
    return text + _doubt_text(table)


def _doubt_text(table: TableStatus) -> str:
    """Return what may be wrong with the table's rows in the log, and the obstacle to a repair."""
    text = ""
    if table.gone_since_ms is not None:
        what = f"renamed to {table.renamed_to}" if table.renamed_to else "dropped"
        text += f"\n{what} at the source, seen {time_text(table.gone_since_ms)}"
    if table.gone_partitions:
        text += f"\nthe log has rows of {table.gone_partitions} dropped partitions"
        text += f": {_again(table)} deletes them"
    if table.ended_partitions:
        text += f"\nthe daemon deletes the rows of {table.ended_partitions} dropped partitions "
        text += table.ended_waits
    if table.doubtful_since_ms is not None:
        word = "SET ASIDE" if table.set_aside else "DOUBTFUL"
        text += f"\n{word} since {time_text(table.doubtful_since_ms)}: {table.doubt}"
    if table.not_reread:
        text += f"\nnot read again: {table.not_reread}: {_again(table)}"
    return text


def _again(table: TableStatus) -> str:
    return f"millrace snapshot --reset {shlex.quote(table.table)}"


def time_text(ms: int) -> str:
    """Return a time (ms since 1970), to the second, in UTC."""
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(" ", "seconds")[:19]


def _bytes_text(table: TableStatus) -> str:
    if table.bytes_done is None or table.bytes_total is None:
        return ""
    return f" of {size_text(table.bytes_total)}"


def _pace_text(read: TableStatus | RequestStatus) -> str:
    if read.rows_per_s is None:
        return ""
    return f", {read.rows_per_s:,.0f} rows/s, {seconds_text(read.left_s)} left"


def size_text(count: int) -> str:
    """Return a size, in the unit that makes the number short."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def seconds_text(seconds: float | None) -> str:
    """Return a time span, in the unit that makes the number short."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
