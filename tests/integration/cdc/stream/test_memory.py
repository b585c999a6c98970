"""A transaction of many times the daemon's limits → a daemon that hardly grows."""

import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deploy.local.processes import Process
from tests.fixtures.pipeline import RunningPipeline

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc how large the daemon was"),
]
ROW_BYTES = 96_000
ROWS = 1_000
LIMITS = {"max.batch.size.in.bytes": 1_000_000, "spill.memory.bytes": 1_000_000}
GROWTH_BYTES = ROWS * ROW_BYTES // 3
FILL = """
    INSERT INTO item
    SELECT i, repeat(md5(i::text), %s) FROM generate_series(%s::int, %s::int) i
"""


def largest(daemon: Process) -> int:
    """How large it ever was (VmHWM), in bytes."""
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


LABELS = 20_000
SUBTRANSACTIONS = 10_000
MEMORY_BYTES = 128 << 20
"""Of the daemon as a whole: it was 102 MB."""
NESTED = f"""
    DO $$ BEGIN
        FOR i IN 1..{SUBTRANSACTIONS} LOOP
            BEGIN
                INSERT INTO item VALUES (i, 'label ' || i);
                IF i % 10 = 0 THEN RAISE 'rolled back'; END IF;
            EXCEPTION WHEN raise_exception THEN NULL;
            END;
        END LOOP;
    END $$
"""


@pytest.mark.proof
def test_many_enum_labels_and_subtransactions_take_little_memory(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    made = pipeline()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        labels = sql.SQL(", ").join(f"label {number}" for number in range(1, LABELS + 1))
        connection.execute(sql.SQL("CREATE TYPE label AS ENUM ({})").format(labels))
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v label)")
        daemon = made.catch_up()
        for _ in range(3):
            connection.execute(NESTED.replace("'label ' || i", "('label ' || i)::label"))
            connection.execute("DELETE FROM item")
        made.wait_until_logged(made.wal_end(), daemon)
        assert largest(daemon) < MEMORY_BYTES
    assert made.stop(daemon) == 0
    progress = made.progress()
    assert progress is not None
    kept = SUBTRANSACTIONS * 9 // 10
    assert progress.events == 3 * 3 * kept, "each row, its deletion, and the tombstone of that"


def test_a_daemons_memory_does_not_grow_with_a_transaction(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str]
) -> None:
    made = pipeline(**LIMITS)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, v text STORAGE EXTERNAL)")
        daemon = made.catch_up()
        connection.execute(FILL, [ROW_BYTES // 32, 1, ROWS // 10])
        made.wait_until_logged(made.wal_end(), daemon)
        before = largest(daemon)
        connection.execute(FILL, [ROW_BYTES // 32, ROWS // 10 + 1, ROWS + ROWS // 10])
        made.wait_until_logged(made.wal_end(), daemon)
        growth = largest(daemon) - before
        assert growth < GROWTH_BYTES
    assert made.stop(daemon) == 0
    progress = made.progress()
    assert progress is not None
    assert progress.events == ROWS + ROWS // 10
