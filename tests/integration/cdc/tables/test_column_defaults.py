"""ALTER COLUMN without a new type: events show it correctly from the next row on."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.fixtures.pipeline import LogRecord, RunningPipeline
from tests.fixtures.source import run

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
rare = partial(pytest.param, marks=pytest.mark.proof)
TABLE = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'old', n int NOT NULL DEFAULT 1)",
    "ALTER TABLE t ADD COLUMN m mood DEFAULT 'sad'",
    "INSERT INTO t (id, v) VALUES (0, NULL)",
)
STEPS = (
    "INSERT INTO t (id, v) VALUES (1, NULL)",
    "ALTER TABLE t ALTER v SET DEFAULT 'new'",
    "INSERT INTO t (id, v) VALUES (2, NULL)",
    "ALTER TABLE t ALTER v DROP DEFAULT",
    "INSERT INTO t (id, v) VALUES (3, NULL)",
    "ALTER TABLE t ALTER n DROP NOT NULL, ALTER n SET DEFAULT 7",
    "INSERT INTO t (id, n) VALUES (4, NULL)",
    "ALTER TYPE mood ADD VALUE 'happy'",
    "ALTER TABLE t ALTER m SET DEFAULT 'happy'",
    "INSERT INTO t (id, m) VALUES (5, NULL)",
)


def shown(record: LogRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of an event, and what its schema says of each column."""
    event = record.value
    assert event is not None
    after = next(f for f in event["schema"]["fields"] if f["field"] == "after")
    return event["payload"]["after"], {field["field"]: field for field in after["fields"]}


@pytest.mark.parametrize("restarts", [False, rare(True, id="down meanwhile")])
def test_a_default_that_is_altered_is_in_schemas_and_in_place_of_null_from_the_next_row_on(
    pipeline: MakePipeline, database: dict[str, str], restarts: bool
) -> None:
    made = pipeline(preset="debezium", **{"position.header": "true"})
    run(database, *TABLE)
    daemon = made.start()
    made.wait_until_logged(made.wal_end(), daemon)
    for statement in STEPS:
        if restarts and statement.startswith("ALTER"):
            made.stop(daemon)
        run(database, statement)
        if restarts and statement.startswith("ALTER"):
            daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
    made.stop(daemon)
    rows = {row["id"]: (row, schema) for row, schema in map(shown, made.log())}
    assert [rows[number][0]["v"] for number in range(4)] == ["old", "old", "new", None]
    defaults = [rows[number][1]["v"].get("default") for number in range(4)]
    assert defaults == ["old", "old", "new", None]
    assert not rows[3][1]["n"]["optional"]
    assert rows[4][0]["n"] == 7
    assert (rows[4][1]["n"]["optional"], rows[4][1]["n"]["default"]) == (True, 7)
    assert rows[5][0]["m"] == "happy"
    assert rows[5][1]["m"]["parameters"]["allowed"] == "sad,ok,happy"
