"""The daemon, its log and its snapshots, as Prometheus sees them."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from deploy.local.processes import reserve_port
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_signal_topic import tell

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
Sample = tuple[str, frozenset[tuple[str, str]]]
ITEMS: Final = (
    "CREATE TABLE item (id int PRIMARY KEY, v text)",
    "INSERT INTO item SELECT i, repeat('x', 300) FROM generate_series(1, 3000) i",
    "CREATE TABLE pair (id int PRIMARY KEY)",
)
PACED: Final = {"snapshot.chunk.bytes": 8 * 8192, "snapshot.rows.per.second.max": 600}


def sample(name: str, **labels: str) -> Sample:
    """What names a number."""
    return f"millrace_{name}", frozenset(labels.items())


def scraped(port: int, accept: str = "text/plain") -> dict[Sample, float]:
    """All numbers; none before anybody listens."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", "/metrics", headers={"Accept": accept})
        except ConnectionRefusedError:
            return {}
        answer = connection.getresponse()
        text, kind = answer.read().decode(), answer.headers["Content-Type"]
    parse = open_metrics if "openmetrics" in kind else prometheus
    samples = (each for family in parse(text) for each in family.samples)
    return {(each.name, frozenset(each.labels.items())): each.value for each in samples}


def until(
    scrape: Callable[[], dict[Sample, float]], is_so: Callable[[dict[Sample, float]], bool]
) -> dict[Sample, float]:
    """Scrape until it is so; returns what was found."""
    deadline = time.monotonic() + 60
    while not is_so(metrics := scrape()):
        assert time.monotonic() < deadline, metrics
        time.sleep(0.1)
    return metrics


def test_metrics_follow_a_snapshot_its_pause_and_the_stream(
    pipeline: Callable[..., RunningPipeline], database: Conninfo
) -> None:
    run(database, *ITEMS)
    port = reserve_port()
    made = pipeline(**PACED, **{"heartbeat.source.interval.ms": 300})
    daemon = made.start({"MILLRACE_HEALTH__LISTEN": f"127.0.0.1:{port}"})
    scrape = partial(scraped, port)

    def ratio(kind: str) -> Callable[[dict[Sample, float]], bool]:
        wanted = sample("snapshot_ratio", table="public.item", type=kind)
        return lambda metrics: 0 < metrics.get(wanted, 0) < 1

    metrics = until(scrape, ratio("initial"))
    assert metrics[sample("phase", phase="snapshot")] == 1
    assert metrics[sample("table_whole", table="public.item")] == 0
    of_item = {"table": "public.item", "type": "initial"}
    assert 0 < metrics[sample("snapshot_rows", **of_item)] < 3000
    assert 0 < metrics[sample("log_events_total")] < 3000
    assert metrics[sample("snapshot_rate_limit")] == 600
    assert metrics[sample("snapshot_size_bytes", **of_item)] > 1_000_000
    assert metrics[sample("snapshot_remaining_seconds", **of_item)] > 0

    ready = sample("ready")
    metrics = until(scrape, lambda metrics: metrics[ready] == 1)
    assert metrics[sample("phase", phase="streaming")] == 1
    assert metrics[sample("table_whole", table="public.item")] == 1
    assert metrics[sample("table_snapshot_rows", table="public.item")] == 3000
    assert metrics[sample("log_events_total")] == 3000
    assert metrics[sample("slot_wal_status", wal_status="reserved")] == 1
    assert metrics[sample("slot_retained_bytes")] >= 0
    assert metrics[sample("heartbeat_round_trip_seconds")] > 0
    assert metrics[sample("faults_total")] == 0
    assert metrics[sample("dead_letters_total", table="public.item")] == 0
    assert metrics[sample("table_left_unread", table="public.item")] == 0
    assert not any(dict(labels).get("type") for _, labels in metrics), "nothing is being read"

    tell(made, ("execute-snapshot", {"data-collections": ["public.item"]}))
    until(scrape, ratio("incremental"))
    tell(made, ("pause-snapshot", {}))
    paused = sample("snapshot_paused", table="public.item", type="incremental")
    until(scrape, lambda metrics: metrics[paused] == 1)
    run(database, "INSERT INTO pair SELECT generate_series(1, 10)")
    committed = sample("log_commit_timestamp_seconds")
    now = time.time()
    metrics = until(scrape, lambda metrics: metrics.get(committed, 0) > now - 60)
    assert metrics[committed] < now + 60

    assert {name for name, _ in scraped(port, "application/openmetrics-text")} >= {
        name for name, _ in metrics if name.startswith("millrace_")
    }
    assert made.stop(daemon) == 0
