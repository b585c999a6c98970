"""Verify during transactions, DDL, merges and compaction: a right pipeline has no difference.

``VERIFY_RUNS`` is the number of runs; the seed is printed.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import NotDoneError
from compaction.lakehouse import compact_lakehouse
from compaction.verify.options import VerifyOptions
from compaction.verify.run import verify
from compaction.verify.slices import Slice
from sinks.job import run_lakehouse
from sinks.run.options import RunContext, RunOptions
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.source import Conninfo, run
from tests.fixtures.spark import run_once
from tests.integration.test_end_to_end import CHANGES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.proof,
    pytest.mark.timeout(3_000),
]
MORE = [
    {"source": "public.item", "kind": "history"},
    {"source": "public.item", "kind": "changes"},
    {"source": "public.loose", "kind": "changes"},
]
SLICES = (None, Slice(1, 2), Slice(2, 2))
RUNS = int(os.environ.get("VERIFY_RUNS", "20"))
DDL = (
    "ALTER TABLE item ADD COLUMN c{n} int DEFAULT {n}",
    "ALTER TABLE item DROP COLUMN IF EXISTS c{before}",
    "ALTER TABLE item ALTER name TYPE varchar({width})",
    "TRUNCATE loose",
    "VACUUM FULL item",
    'TRUNCATE "Odd Näme"',
)


def say(*words: object) -> None:
    """For who runs it by hand, with -s."""
    sys.stderr.write(f"{' '.join(map(str, words))}\n")


def change(database: Conninfo, seed: int, ended: threading.Event) -> int:
    """Random transactions, some of them long, prepared, or rolled back; how many there were."""
    choose = random.Random(seed)  # noqa: S311 (repeatable is what it has to be)
    number = 0
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        while not ended.is_set():
            number += 1
            connection.execute("BEGIN")
            for _ in range(choose.randint(1, 5)):
                fresh = 1_000_000 * (seed % 1_000) + number * 10 + choose.randint(0, 9)
                one = choose.randint(1, 400)
                with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                    connection.execute(choose.choice(CHANGES).format(one=one, fresh=fresh).encode())
            if choose.random() < 0.01:
                time.sleep(1)
            if choose.random() < 0.02:
                connection.execute(f"PREPARE TRANSACTION 'p{seed}-{number}'".encode())
                time.sleep(0.1)
                end = choose.choice(["COMMIT", "ROLLBACK"])
                connection.execute(f"{end} PREPARED 'p{seed}-{number}'".encode())
            else:
                connection.execute(choose.choice([b"COMMIT"] * 9 + [b"ROLLBACK"]))
    return number


def alter(database: Conninfo, seed: int, ended: threading.Event) -> int:
    """DDL, every few seconds."""
    choose, number = random.Random(seed), 0  # noqa: S311 (repeatable is what it has to be)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '2s'")
        while not ended.wait(choose.uniform(1, 4)):
            number += 1
            named = {"n": number, "before": number - 3, "width": 200 + number}
            with suppress(psycopg.errors.LockNotAvailable):
                connection.execute(choose.choice(DDL).format(**named).encode())
    return number


def merge(made: RunningPipeline, spark: "SparkSession", ended: threading.Event) -> int:
    """Merges, and now and then a compaction."""
    number = 0
    while not ended.wait(1):
        number += 1
        run_once(run_lakehouse, made.settings, spark)
        if number % 5 == 0:
            list(compact_lakehouse(made.settings, lambda: spark))
    return number


@contextmanager
def busy(
    made: RunningPipeline, spark: "SparkSession", database: Conninfo, seed: int
) -> Iterator[None]:
    ended = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        running = [
            executor.submit(change, database, seed + 1, ended),
            executor.submit(change, database, seed + 2, ended),
            executor.submit(alter, database, seed, ended),
            executor.submit(merge, made, spark, ended),
        ]
        try:
            yield
        finally:
            ended.set()
            say("transactions, DDL, merges:", [each.result() for each in running])


def test_nothing_differs_in_a_right_pipeline_under_load(
    pipeline: Callable[..., RunningPipeline], database: Conninfo, spark: "SparkSession"
) -> None:
    seed = int(os.environ.get("VERIFY_SEED", time.time_ns() % 10_000))
    say(f"seed {seed}")
    run(database, *SCHEMA.strip().rstrip(";").split(";\n"))
    made = pipeline(sections={"lakehouse": {"tables": MORE}})
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    run_once(run_lakehouse, made.settings, spark)
    context = RunContext(made.settings, lambda _records=0: spark, lambda _: None, RunOptions())
    compared, unverified, healed, no_instant = 0, dict[str, int](), 0, 0
    with busy(made, spark, database, seed):
        for number in range(RUNS):
            try:
                slice_ = SLICES[number % len(SLICES)]
                report = verify(context, VerifyOptions(timeout_s=60, slice_=slice_))
            except NotDoneError as error:
                no_instant += 1
                say(number, error)
                continue
            for table in report.tables:
                assert table.differing == 0, (seed, number, report.lsn, table)
                compared += not table.unverified
                healed += table.healed
                if table.unverified:
                    reason = table.unverified[:60]
                    unverified[reason] = unverified.get(reason, 0) + 1
            say(number, report.lsn, f"{report.seconds:.1f} s")
    say({"compared": compared, "unverified": unverified, "healed": healed, "late": no_instant})
    assert compared > RUNS
