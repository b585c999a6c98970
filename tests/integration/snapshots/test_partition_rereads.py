"""Partitions whose rows are wrong: each is read alone, and replaces the rows within its bounds.

The sum of the log is compared with the source's own SELECT. An event trigger reports DDL, so no
test waits for the next catalog check.
"""

from collections.abc import Callable
from functools import partial

import pytest

from cdc.faults import VARIABLE, FaultPoint
from cdc.records.position import Position
from tests.fixtures.ended_rows import between
from tests.fixtures.few import few
from tests.fixtures.pipeline import LogRecord, RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_dropped_partitions import (
    NUMBERS,
    begun,
    differing,
    ends,
    is_settled,
    state,
)
from tests.integration.snapshots.test_while_streaming import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
N1, N2 = between("id", [10], [20]), between("id", [20], [30])
rare = partial(pytest.param, marks=pytest.mark.proof)
TRUNCATED = ("TRUNCATE n1", "INSERT INTO n1 VALUES (11, 'new'), (12, 'new')")
REATTACHED = (
    "ALTER TABLE numbers DETACH PARTITION n2",
    "DELETE FROM n2 WHERE id < 25",
    "ALTER TABLE numbers ATTACH PARTITION n2 FOR VALUES FROM (20) TO (30)",
)
EXCHANGED = (
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other VALUES (15, 'other')",
    "ALTER TABLE numbers DETACH PARTITION n1",
    "DROP TABLE n1",
    "ALTER TABLE numbers ATTACH PARTITION other FOR VALUES FROM (10) TO (20)",
)


def newest(records: list[LogRecord]) -> Position:
    return max(record.position for record in records)


def read_again(records: list[LogRecord], since: Position) -> list[str]:
    """The keys of rows that were read behind a position, and TRUNCATEs."""
    return sorted(
        "TRUNCATE" if record.op == "t" else record.key or ""
        for record in records
        if record.op in {"r", "t"} and record.position > since
    )


def keys(*ids: int) -> list[str]:
    return [f'{{"id":{number}}}' for number in ids]


@pytest.mark.parametrize(
    ("policy", "ddl", "bounds", "read"),
    [
        rare("keep", TRUNCATED, [N1], keys(11, 12)),
        rare("delete", REATTACHED, [N2], keys(25, 26, 27, 28, 29)),
        rare("keep", EXCHANGED, [N1], keys(15)),
        ("delete", (*TRUNCATED, *REATTACHED), [N1, N2], keys(11, 12, 25, 26, 27, 28, 29)),
    ],
    ids=["truncated", "attached again", "exchanged", "two of three"],
)
def test_a_partition_alone_is_read_and_replaced(
    pipeline: MakePipeline,
    database: Conninfo,
    policy: str,
    ddl: tuple[str, ...],
    bounds: list[object],
    read: list[str],
) -> None:
    run(database, *NUMBERS)
    made = pipeline(**{"partition.drop.policy": policy})
    daemon = begun(made, database, has_levels=policy == "delete")
    since = newest(made.log())
    run(database, *ddl, "UPDATE numbers SET v = 'later' WHERE id IN (5, 12, 27)")
    wait_for(lambda: ends(made.log()) and is_settled(state(made, "numbers")))
    wait_for(lambda: differing(made, database, ["numbers"]) == [])
    records = made.log()
    # A check that comes between two of the statements has one of them read twice.
    assert {rows.bounds for rows in ends(records)} == {(each,) for each in bounds}
    assert sorted(set(read_again(records, since))) == read
    assert state(made, "numbers").gone_partitions == 0
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_one_that_was_dropped_before_is_as_it_was(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *NUMBERS)
    made = pipeline()
    daemon = begun(made, database, has_levels=False)
    run(database, "DROP TABLE n0")
    wait_for(lambda: state(made, "numbers").gone_partitions == 1)
    run(database, *TRUNCATED)
    wait_for(lambda: ends(made.log()) and is_settled(state(made, "numbers")))
    assert state(made, "numbers").gone_partitions == 1
    run(database, "CREATE TABLE n0 PARTITION OF numbers FOR VALUES FROM (MINVALUE) TO (10)")
    wait_for(lambda: differing(made, database, ["numbers"]) == [])
    assert state(made, "numbers").gone_partitions == 0, "its bounds have other rows now: none"
    assert made.stop(daemon) == 0


@pytest.mark.parametrize("table", few(["hashes", "texts"], "hashes"))
def test_bounds_that_no_event_can_say_let_all_be_read(
    pipeline: MakePipeline, database: Conninfo, table: str
) -> None:
    parted = {
        "hashes": (
            "CREATE TABLE hashes (id int PRIMARY KEY) PARTITION BY HASH (id)",
            "CREATE TABLE p1 PARTITION OF hashes FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE p2 PARTITION OF hashes FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
            "INSERT INTO hashes SELECT generate_series(1, 9)",
        ),
        "texts": (
            "CREATE TABLE texts (id text PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE p1 PARTITION OF texts FOR VALUES FROM ('1') TO ('5')",
            "CREATE TABLE p2 PARTITION OF texts FOR VALUES FROM ('5') TO ('a')",
            "INSERT INTO texts SELECT generate_series(1, 9)",
        ),
    }
    run(database, *parted[table])
    made = pipeline()
    daemon = begun(made, database, has_levels=False)
    since = newest(made.log())
    run(database, "TRUNCATE p1")
    wait_for(lambda: differing(made, database, [table]) == [])
    wait_for(lambda: is_settled(state(made, table)))
    records = made.log()
    assert ends(records) == []
    assert "TRUNCATE" in read_again(records, since)
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_daemon_that_dies_within_such_a_read_goes_on_with_it(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(
        database,
        *NUMBERS,
        "INSERT INTO numbers SELECT i, repeat('x', 900) FROM generate_series(-40, -1) i",
    )
    made = pipeline(**{"snapshot.chunk.bytes": 8192})
    daemon = begun(made, database, has_levels=False)
    since = newest(made.log())
    assert made.stop(daemon) == 0
    run(database, "ALTER TABLE numbers DETACH PARTITION n0", "DELETE FROM n0 WHERE id % 2 = 0")
    run(database, "ALTER TABLE numbers ATTACH PARTITION n0 FOR VALUES FROM (MINVALUE) TO (10)")
    assert made.start({VARIABLE: f"{FaultPoint.CHUNK_TAKEN}:2"}).wait(60) != 0
    run(database, "UPDATE numbers SET v = 'meanwhile' WHERE id IN (-39, -1, 9, 15)")
    daemon = made.start()
    wait_for(lambda: differing(made, database, ["numbers"]) == [])
    wait_for(lambda: is_settled(state(made, "numbers")))
    assert [rows.bounds for rows in ends(made.log())] == [(between("id", ["min"], [10]),)]
    read = read_again(made.log(), since)
    assert set(read) == set(keys(*range(-39, 10, 2))), "no other partition"
    assert len(read) < 2 * len(set(read))
    assert made.stop(daemon) == 0
