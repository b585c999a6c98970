"""A merge with secrets in its configuration → none in what others can read of it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from cdc.errors import ExitCode
from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline
from tests.fixtures.readers import query_builder
from tests.fixtures.spark import HandLog, at, column, table_schema

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.xdist_group("jvms"),
]
OF_KAFKA = "wHale-8731"
OF_STORE = "sQuid 5519\\"
OF_AZURE = "sHark=4427"
SECRETS = (OF_KAFKA, "sQuid", "sHark")


def arguments() -> dict[int, str]:
    """What any user sees of each process: its arguments."""
    seen = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            seen[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode()
    return seen


def test_no_secret_is_in_arguments_event_logs_plans_or_what_delta_says_of_a_commit(
    pipeline: Callable[..., RunningPipeline], kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
        "spark.sql.maxPlanStringLength": "1000000",
        "spark.hadoop.fs.s3a.secret.key": OF_STORE,
        "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": OF_AZURE,
    }
    user = {"sasl.mechanism": "PLAIN", "sasl.username": "millrace", "sasl.password": OF_KAFKA}
    made = pipeline(sections={"spark": spark, "kafka": user}, **{"slot.name": "millrace"})
    columns = (column("id", "int4", 1), column("n", "int4"))
    log = HandLog(kafka, topic_prefix, table_schema(topic_prefix, "item", *columns))
    for key in range(3):
        log.row("r", at(10, 0), {"id": key, "n": key})
    log.table(10)
    log.reached(at(10, 1))

    others, seen = arguments(), set[str]()
    with ThreadPoolExecutor() as pool:
        merge = pool.submit(made.millrace, "merge", "lakehouse")
        while not merge.done():
            seen |= {words for number, words in arguments().items() if number not in others}
            time.sleep(0.05)
    assert merge.result().returncode == ExitCode.OK, merge.result().stderr
    assert any("org.apache.spark.deploy.SparkSubmit" in words for words in seen)
    rows = query_builder(str(tmp_path / "lakehouse" / "public" / "item"))
    assert {row["id"] for row in rows} == {0, 1, 2}
    logged = "".join(path.read_text() for path in events.rglob("events_*"))
    assert "fs.azure.account.key" in logged, "the event log has no configuration"
    written = [path for path in (tmp_path / "lakehouse").rglob("*") if path.is_file()]
    output = merge.result().stdout + merge.result().stderr
    texts = [*seen, logged, output, *(path.read_bytes().decode("latin-1") for path in written)]
    assert not [secret for secret in SECRETS for text in texts if secret in text]
