"""A log larger than the driver's memory → a table that has all of it.

The driver also does the executors' work here, so it can't collect rows. ``make heap HEAPS=10``
takes more of it, and merges it into an existing table.
"""

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder

HEAPS = float(os.environ.get("HEAPS", "1.25"))
TIMEOUT_S = 300 * max(2, HEAPS)
TABLES = ["new", "there"] if "HEAPS" in os.environ else ["new"]
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.xdist_group("heap"),
]
HEAP_MIB = 512  # Spark wants 450 MiB at least
SMALL = {"spark.master": "local[2]", "spark.driver.memory": f"{HEAP_MIB}m"}
ROW_BYTES = 100 * 1024
FILL = """
    INSERT INTO item SELECT i, repeat(md5(i::text), %(row_bytes)s / 32)
    FROM generate_series(1, (%(heaps)s * %(heap_mib)s * 1024 * 1024 / %(row_bytes)s)::int) i
"""


@pytest.mark.proof
@pytest.mark.parametrize("table", TABLES)
def test_a_merge_of_more_than_the_drivers_memory_needs_no_more_of_it(
    pipeline: Callable[..., RunningPipeline], database: dict[str, str], tmp_path: Path, table: str
) -> None:
    made = pipeline(sections={"spark": SMALL})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, large text)")
        daemon = made.catch_up()
        if table == "there":
            connection.execute("INSERT INTO item VALUES (0, 'x')")
            made.wait_until_logged(made.wal_end(), daemon)
            assert made.millrace("merge", "lakehouse").returncode == ExitCode.OK
        size = {"row_bytes": ROW_BYTES, "heaps": HEAPS, "heap_mib": HEAP_MIB}
        connection.execute(FILL, size)
        made.wait_until_logged(made.wal_end(), daemon)
        source = connection.execute("SELECT id, md5(large) FROM item").fetchall()
    assert made.stop(daemon) == ExitCode.OK

    merged = made.millrace("merge", "lakehouse", timeout_s=TIMEOUT_S - 100)
    assert merged.returncode == ExitCode.OK, merged.stdout + merged.stderr
    path = str(tmp_path / "lakehouse" / "public" / "item")
    rows = query_builder(path, "SELECT id, md5(large) AS large FROM t")
    assert sorted((row["id"], row["large"]) for row in rows) == sorted(source)
