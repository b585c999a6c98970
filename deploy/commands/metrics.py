"""The daemon's health, tables and slot → metrics, in Prometheus' own classes."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.capture.health import Health, Stage
from cdc.dead_letters.guard import Refusals
from cdc.records.state import Phase, Progress
from deploy.status.lag import LEAST_S, SKEW_S_MAX
from deploy.status.tables import TableStatus, table_status


def daemon_registry(
    health: Health, refusals: Refusals, rate_max: Callable[[], float]
) -> CollectorRegistry:
    """Return the registry with all metrics of a daemon.

    ``refusals``: records that it couldn't write. ``rate_max``: rows per second that snapshots may
    read now.
    """
    registry = CollectorRegistry()
    registry.register(_DaemonCollector(health, refusals, rate_max))
    ProcessCollector(registry=registry)
    return registry


class _DaemonCollector(Collector):
    def __init__(self, health: Health, refusals: Refusals, rate_max: Callable[[], float]) -> None:
        self._health = health
        self._refusals = refusals
        self._rate_max = rate_max

    def collect(self) -> Iterator[Metric]:
        now_ms = time.time_ns() // 1_000_000
        states = list(self._health.states.values())
        tables = [table_status(state, now_ms) for state in states]
        yield from self._daemon()
        yield from self._log()
        yield from self._slot()
        yield self._dead_letters(tables)
        yield self._messages()
        yield from _tables(tables)
        yield from self._snapshots(tables)

    def _daemon(self) -> Iterator[Metric]:
        health, now = self._health, self._health.stage
        phases = {stage.value: stage is now for stage in Stage}
        yield _gauges("phase", "1 for the daemon's current activity.", "phase", phases)
        yield _gauge("live", "1 while the main loop runs.", health.is_live)
        yield _gauge(
            "ready", "1 while it streams and its own heartbeat comes back.", health.unready is None
        )
        yield CounterMetricFamily("millrace_faults", "Restarts after faults.", value=health.faults)
        if health.round_trip_s is not None:
            yield _gauge(
                "heartbeat_round_trip_seconds",
                "Time of the last heartbeat that passed from the source through Kafka.",
                health.round_trip_s,
            )

    def _dead_letters(self, tables: list[TableStatus]) -> Metric:
        """Return the counters. A table without any has 0, so that the first one is an increase."""
        family = CounterMetricFamily(
            "millrace_dead_letters", "Dead letters written by this process.", labels=["table"]
        )
        made = {**{table.table: 0 for table in tables}, **self._refusals.dead_letter_counts}
        for table, count in made.items():
            family.add_metric([table], count)
        return family

    def _messages(self) -> Metric:
        family = CounterMetricFamily(
            "millrace_logical_messages_left_out",
            "Logical messages that made no event: no option asks for them, or they can't be"
            " written.",
            labels=["reason"],
        )
        left_out = self._refusals.messages_left_out
        for reason in ("unwanted", "refused"):
            family.add_metric([reason], left_out[reason])
        return family

    def _log(self) -> Iterator[Metric]:
        progress, slot = self._health.progress, self._health.slot
        if progress is None:
            return
        yield CounterMetricFamily(
            "millrace_log_events",
            "Data records that all daemons have written to the log.",
            value=self._health.events,
        )
        yield _gauge("log_epoch", "The log's epoch.", progress.position.epoch)
        yield _gauge(
            "log_flush_lsn", "WAL position that the log has reached (bytes).", progress.flush_lsn
        )
        if progress.cut_ts_us:
            yield _gauge(
                "log_commit_timestamp_seconds",
                "Commit time of the newest transaction that the log has completely.",
                progress.cut_ts_us / 1e6,
            )
        if slot is not None and (lag_s := log_lag_s(progress, slot.lag_bytes)) is not None:
            yield _gauge(
                "log_lag_seconds", "Age of the oldest change that the log may lack.", lag_s
            )

    def _snapshots(self, tables: list[TableStatus]) -> Iterator[Metric]:
        if math.isfinite(rate := self._rate_max()):
            yield _gauge(
                "snapshot_rate_limit", "Rows a second that snapshots may read at present.", rate
            )
        yield from _reads(tables)

    def _slot(self) -> Iterator[Metric]:
        slot = self._health.slot
        if slot is None:
            return
        yield _gauge("slot_lag_bytes", "WAL that the slot hasn't acknowledged.", slot.lag_bytes)
        yield _gauge(
            "slot_retained_bytes", "WAL that PostgreSQL keeps for the slot.", slot.retained_bytes
        )
        if slot.safe_wal_size is not None:
            yield _gauge(
                "slot_safe_wal_bytes",
                "WAL that can still be written before PostgreSQL invalidates the slot.",
                slot.safe_wal_size,
            )
        status = {slot.wal_status or "unknown": 1}
        yield _gauges(
            "slot_wal_status",
            "1 for the slot's wal_status in pg_replication_slots.",
            "wal_status",
            status,
        )


def _tables(tables: list[TableStatus]) -> Iterator[Metric]:
    whole = {table.table: table.phase is Phase.STREAMING for table in tables}
    yield _gauges("table_whole", "1 if the log has all rows of the table.", "table", whole)
    rows = {table.table: table.snapshot_rows for table in tables}
    yield _gauges(
        "table_snapshot_rows", "Rows that the table's snapshot has written.", "table", rows
    )
    left = {table.table: table.left_unread for table in tables}
    yield _gauges(
        "table_left_unread",
        "1 if the table was dropped or left out before all rows were read.",
        "table",
        left,
    )
    doubtful = {table.table: bool(table.doubt) for table in tables}
    yield _gauges(
        "table_doubtful",
        "1 if rows of the table may be wrong until it is read again.",
        "table",
        doubtful,
    )
    aside = {table.table: table.set_aside for table in tables}
    yield _gauges(
        "table_set_aside",
        "1 if the table is set aside: its changes aren't captured until it is read again.",
        "table",
        aside,
    )
    gone = {table.table: table.gone_since_ms is not None for table in tables}
    yield _gauges(
        "table_gone", "1 if the table was dropped or renamed at the source.", "table", gone
    )


def _reads(tables: list[TableStatus]) -> Iterator[Metric]:
    """Yield active and waiting reads. They end when the read does.

    For each table and kind, the read that is served next. Blocking ones have no progress.
    """

    def family(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"millrace_snapshot_{name}", text, labels=["table", "type"])

    rows = family("rows", "Rows that the snapshot has read.")
    ratio = family("ratio", "Progress of the snapshot from 0 to 1, by the table's pages.")
    size = family("size_bytes", "Size of the table's heap.")
    paused = family("paused", "1 if the snapshot is paused.")
    pace = family("rows_per_second", "Rows a second since the snapshot began, pauses included.")
    left = family("remaining_seconds", "Time left at this pace.")
    under_way = {
        (table.table, request.type): (table, request)
        for table in tables
        for request in reversed(table.requests)
        if request.type != "blocking"
    }
    for labels, (table, request) in under_way.items():
        rows.add_metric(labels, request.rows)
        ratio.add_metric(labels, request.percent / 100)
        paused.add_metric(labels, request.paused)
        for metric, value in (
            (size, table.bytes_total),
            (pace, request.rows_per_s),
            (left, request.left_s),
        ):
            if value is not None:
                metric.add_metric(labels, value)
    yield from (rows, ratio, size, paused, pace, left)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"millrace_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"millrace_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def log_lag_s(progress: Progress, lag_bytes: int) -> float | None:
    """Return the possible age of the oldest change that the log lacks. None: it doesn't stream.

    With WAL left, it counts from the last recorded commit, or from a keepalive that reported
    everything as read. Also None if that is in the future, as the source's clock is ahead.
    """
    if progress.phase is not Phase.STREAMING:
        return None
    if lag_bytes == 0:
        return 0.0
    read_all_until_ms = progress.ts_ms if progress.position.index == 0 else 0
    lag_s = time.time() - max(progress.cut_ts_us / 1e6, read_all_until_ms / 1e3)
    return max(LEAST_S, lag_s) if lag_s >= -SKEW_S_MAX else None
