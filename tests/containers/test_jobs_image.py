"""The image of merges, built from the tree → derived tables equal the source; a read-only root."""

from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.records.schema import TableName
from sinks.changes.derived import table_path
from tests.faults.test_killed_daemon import SCHEMA, change
from tests.fixtures.images import MakeContainers
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.proof,
    pytest.mark.xdist_group("images"),
    pytest.mark.timeout(1_800),  # the first build on a machine fetches what images are made of
]
CONFIG = ("--config", "/etc/millrace/millrace.toml")


def test_merges_and_compaction_in_containers_end_in_tables_that_are_the_source(
    daemon_image: str, jobs_image: str, in_containers: MakeContainers, database: dict[str, str]
) -> None:
    made = in_containers(sections={"spark": RunningPipeline.spark})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(SCHEMA)
        daemon = made.start()
        for seed in (2, 3):
            change(connection, seed=seed, transactions=20)
            made.wait_until_logged(made.wal_end(), daemon)
            merge = made.contained(jobs_image, "merge", "lakehouse", *CONFIG).start()
            assert merge.wait(300) == ExitCode.OK, merge.command.log_end()
        expected = connection.execute("SELECT id, v, n FROM item ORDER BY id").fetchall()
    compact = replace(
        made.commands[jobs_image], words=("compact", "lakehouse", *CONFIG), containers=[]
    )
    made.commands["compact"] = compact
    assert (code := compact.start().wait(300)) in {ExitCode.OK, ExitCode.NOTHING_TO_DO}, code
    assert made.stop(daemon) == 0
    path = table_path(str(made.folder / "lakehouse"), TableName("public", "item"))
    rows = sorted((row["id"], row["v"], row["n"]) for row in query_builder(path))
    assert rows == expected


@pytest.mark.parametrize(
    ("image", "packages"),
    [
        ("daemon_image", "cdc.compiled.fast, fastavro, httpx2"),
        ("jobs_image", "cdc.compiled.fast, fastavro, httpx2, opensearchpy, pyspark, delta"),
    ],
)
def test_an_image_has_what_the_configuration_can_ask_for(
    image: str, packages: str, in_containers: MakeContainers, request: pytest.FixtureRequest
) -> None:
    made = in_containers()
    command = made.contained(request.getfixturevalue(image), "-c", f"import {packages}")
    made.commands["python"] = python = replace(
        command, options={**command.options, "entrypoint": ["tini", "--", "python"]}, containers=[]
    )
    process = python.start()
    assert process.wait(60) == 0, python.log_end()
