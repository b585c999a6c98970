"""A merge with secrets in its configuration → other users can read none of them.

`make test` has the same for merges that follow (tests/integration/sinks/test_follow.py).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.secrets import arguments_seen, assert_no_secret, sections_with_secrets
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("jvms"),
]


@pytest.mark.proof
def test_no_secret_is_in_arguments_event_logs_plans_or_what_delta_says_of_a_commit(
    pipeline: Callable[..., RunningPipeline], kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    events, lakehouse = tmp_path / "events", tmp_path / "lakehouse"
    made = pipeline(sections=sections_with_secrets(events), **{"slot.name": "millrace"})
    columns = (column("id", "int4", 1), column("n", "int4"))
    log = HandLog(kafka, topic_prefix, table_schema(topic_prefix, "item", *columns))
    for key in range(3):
        log.row("r", at(10, 0), {"id": key, "n": key})
    log.table(10)
    log.reached(at(10, 1))
    with arguments_seen() as seen:
        merge = made.millrace("merge", "lakehouse")
    assert merge.returncode == ExitCode.OK, merge.stderr
    rows = query_builder(str(lakehouse / "public" / "item"))
    assert {row["id"] for row in rows} == {0, 1, 2}
    assert_no_secret(seen, events, lakehouse, merge.stdout, merge.stderr)
