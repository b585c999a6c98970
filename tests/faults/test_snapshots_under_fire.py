"""Snapshots of random tables during changes, with a daemon that is killed and gets signals.

``SNAPSHOT_SEEDS=from-to`` runs these seeds instead. A failure names its seed.
"""

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from psycopg.conninfo import make_conninfo

from cdc.faults import VARIABLE, FaultPoint
from cdc.kafka.topics import LogTopics
from deploy.local.processes import Process
from tests.faults.fire import PUBLICATION, TABLES, Fire, Table, join, light
from tests.fixtures.pipeline import LogRecord, RunningPipeline, state_of
from tests.fixtures.source import Conninfo
from tests.integration.snapshots.test_signal_topic import tell
from tests.integration.snapshots.test_signals import wait_until_read

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]

SETTINGS: Final = {
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
    "snapshot.lock.timeout.ms": 500,
    "max.batch.size": 100,
    "slot.retry.delay.ms": 300,
    "slot.max.retries": 100,
}
POINTS: Final = (
    *(FaultPoint.CHUNK_WRITTEN, FaultPoint.SNAPSHOT_COMMITTED, FaultPoint.SNAPSHOT_DONE),
    *(FaultPoint.CHUNK_READ, FaultPoint.CHUNK_MARKED, FaultPoint.CHUNK_TAKEN),
    *(FaultPoint.BATCH_WRITTEN, FaultPoint.BATCH_COMMITTED, FaultPoint.ACKNOWLEDGED),
)
Row = dict[str, Any]


def seeds() -> Iterable[int]:
    """Those that the environment asks for, or CI's one."""
    first, _, last = os.environ.get("SNAPSHOT_SEEDS", "1").partition("-")
    return range(int(first), int(last or first) + 1)


def some_signal(choose: random.Random) -> tuple[str, object]:
    """What a signal asks for, or what it stops, at random."""
    kind = choose.choice(["execute-snapshot"] * 3 + ["pause-snapshot", "stop-snapshot"])
    names = [f"public.{one.name}" for one in choose.sample(TABLES, choose.randint(1, 3))]
    data: dict[str, object] = {"data-collections": names}
    if kind != "execute-snapshot":
        return kind, data if choose.random() < 0.7 else {}
    if choose.random() < 0.3:
        data["reset"] = True
    elif choose.random() < 0.4:
        condition = f"n % 3 = {choose.randint(0, 2)}"
        data["additional-conditions"] = [{"data-collection": names[0], "filter": condition}]
    return kind, data


def read(made: RunningPipeline) -> str:
    """What the daemons have said so far."""
    log = made.folder / "daemon.log"
    return log.read_text(encoding="utf-8") if log.exists() else ""


def one_life(made: RunningPipeline, choose: random.Random) -> None:
    """A daemon's, from its start to its SIGKILL, here or wherever it is then."""
    point = f"{choose.choice(POINTS)}:{choose.randint(1, 12)}"
    before = len(read(made))
    daemon = made.start({VARIABLE: point} if choose.random() < 0.7 else {})
    end = time.monotonic() + 30
    while daemon.running and not re.search("streaming|consistent_point", read(made)[before:]):
        assert time.monotonic() < end
        time.sleep(0.05)
    end = time.monotonic() + choose.uniform(0, 2.5)
    while daemon.running and time.monotonic() < end:
        time.sleep(choose.uniform(0.05, 0.4))
        if choose.random() < 0.25:
            tell(made, some_signal(choose))
        if choose.random() < 0.1:
            tell(made, ("resume-snapshot", {}))
    assert daemon.exit_code in {None, -9}, (point, daemon.command.log_end())
    daemon.kill()


def rows_of(connection: psycopg.Connection[Any], table: Table) -> dict[str, Row]:
    """What the source has: key → row, the key as _key makes it."""
    found = connection.execute(f"SELECT row_to_json(t) FROM {table.name} t".encode()).fetchall()
    return {_key({column: row[column] for column, _, _ in table.key}): row for (row,) in found}


def _key(values: Row) -> str:
    return json.dumps(values, sort_keys=True)


def compacted(records: list[LogRecord]) -> dict[str, Row]:
    """What compaction leaves: each key's last record, as far as no TRUNCATE came behind it."""
    last: dict[tuple[int, str], LogRecord] = {}
    for one in sorted(records, key=lambda one: (one.partition, one.offset)):
        if one.op == "t":
            last = {place: kept for place, kept in last.items() if place[0] != one.partition}
        else:
            last[one.partition, one.key or ""] = one
    rows = {key: (one.value or {}).get("after") for (_, key), one in last.items()}
    return {key: row for key, row in rows.items() if row}


def resurrected(records: list[LogRecord]) -> list[str]:
    """Rows of a chunk that are older than what the log had of their key by then."""
    found: list[str] = []
    last: dict[tuple[int, str], tuple[int, bool]] = {}
    for one in sorted(records, key=lambda one: (one.partition, one.offset)):
        place = one.partition, one.key or ""
        if one.op == "t":
            last = {kept: known for kept, known in last.items() if kept[0] != one.partition}
        elif (after := (one.value or {}).get("after")) is None:
            version, _ = last.get(place, (0, True))
            last[place] = version, True
        else:
            version, is_gone = last.get(place, (0, True))
            if one.op == "r" and (after["n"] < version or (after["n"] == version and is_gone)):
                found.append(f"{one.key} n={after['n']} behind n={version}, gone: {is_gone}")
            last[place] = after["n"], False
    return found


def differences(found: dict[str, Row], expected: dict[str, Row]) -> list[str]:
    """Keys with the columns that differ. What the log has of dropped columns doesn't matter."""
    known = {_key(json.loads(key)): row for key, row in found.items()}
    shown = []
    for key in sorted({*known, *expected}):
        if key not in known or key not in expected:
            shown.append(f"{key} is {'lost' if key in expected else 'too many'}")
        elif wrong := [
            f"{column}: {str(known[key].get(column, 'absent'))[:20]}, not {str(value)[:20]}"
            for column, value in expected[key].items()
            if known[key].get(column) != value
        ]:
            shown.append(f"{key} {wrong}")
    return shown


def of_table(log: list[LogRecord], table: Table) -> list[LogRecord]:
    """A table's records."""
    return [record for record in log if record.topic.endswith(f".public.{table.name}")]


def complaints(made: RunningPipeline, database: Conninfo) -> list[str]:
    """What the log has that the source hasn't, or the other way round."""
    log, found = made.log(), []
    for table in TABLES:
        records = of_table(log, table)
        with psycopg.connect(make_conninfo(**database)) as connection:
            expected = rows_of(connection, table)
        checks = {
            "adds up to": differences(state_of(records), expected),
            "compacts to": differences(compacted(records), expected),
            "goes back": resurrected(records),
        }
        for what, wrong in checks.items():
            found += [f"{table.name} {what}: {len(wrong)}, {wrong[:5]}"] if wrong else []
    return found


def wait_until_followed(made: RunningPipeline, daemon: Process) -> None:
    """Wait until the log has what the signals have asked for."""
    place = TopicPartition(made.settings.capture.signal_topic, 0)
    consumer = Consumer({**made.settings.kafka, "group.id": "tests"})
    _, sent = consumer.get_watermark_offsets(place, timeout=60)
    consumer.close()
    deadline = time.monotonic() + 60
    while (progress := made.progress()) is None or progress.signal_offset(
        place.topic
    ).offset < sent:
        assert daemon.running, daemon.command.log_end()
        assert time.monotonic() < deadline, progress
        time.sleep(0.1)


def settle(made: RunningPipeline, fires: list[Fire], daemon: Process) -> None:
    """No more DDL; read anew what partitions have changed; everything gets whole."""
    for one in fires:
        one.ddl.clear()
    time.sleep(1.2)  # the last one's end
    tell(
        made,
        ("resume-snapshot", {}),
        ("execute-snapshot", {"data-collections": ["public.parted"], "reset": True}),
    )
    time.sleep(1)
    tell(made, ("resume-snapshot", {}))
    wait_until_followed(made, daemon)
    wait_until_read(made, daemon)


@contextmanager
def fire(made: RunningPipeline, database: Conninfo, seed: int) -> Iterator[list[Fire]]:
    """Tables, and two sessions that change them; what the log has is compared in the end."""
    conninfo = make_conninfo(**database)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        light(connection)
    LogTopics(made.settings).ensure_state_topics()
    fires = [Fire(conninfo, seed, number) for number in (1, 2)]
    for one in fires:
        one.start()
    try:
        yield fires
    finally:
        for one in fires:
            one.put_out()
    print([dict(one.tally) for one in fires])  # noqa: T201 (shown where it fails)


@pytest.mark.proof
@pytest.mark.parametrize("seed", seeds())
def test_the_log_adds_up_to_the_source(
    seed: int, pipeline: MakePipeline, database: Conninfo
) -> None:
    choose = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    late = choose.randint(0, 2)
    made = pipeline(
        **SETTINGS,
        **{
            "snapshot.transaction.max.ms": choose.choice([0, 300, 60_000]),
            "snapshot.chunk.bytes": choose.choice([8_192, 16_384, 8 << 20]),
            "incremental.snapshot.chunk.size": choose.choice([40, 20_000]),
            "snapshot.rows.per.second.max": choose.choice([0, 0, 1_500]),
        },
    )
    with fire(made, database, seed) as fires:
        for life in range(3):
            if life == late:
                join(database)
            one_life(made, choose)
        daemon = made.start()
        settle(made, fires, daemon)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert complaints(made, database) == [], f"seed {seed}"


@pytest.mark.proof
def test_rows_that_overwrite_newer_ones_are_seen(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    made = pipeline(**SETTINGS, **{"snapshot.transaction.max.ms": 0})
    with fire(made, database, 1) as fires:
        join(database)
        daemon = made.start_broken("tests.faults.stale")
        end = time.monotonic() + 60
        while not any(resurrected(of_table(made.log(), one)) for one in TABLES):
            assert time.monotonic() < end
            tell(made, ("execute-snapshot", {"data-collections": ["public.item", "public.thing"]}))
            time.sleep(0.5)
        settle(made, fires, daemon)
    wait_until_read(made, daemon)
    assert made.stop(daemon) == 0
    assert any("goes back" in one for one in complaints(made, database))
