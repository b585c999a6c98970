"""A row that can't become a record, or whose record is refused → only its table is set aside.

The next start reads it again, or a signal does. In each case, such a row arrives by the stream, or
exists before. Once the row is corrected, the log adds up to the source's rows.
"""

import base64
import time
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.errors import ExitCode
from cdc.faults import VARIABLE, FaultPoint
from deploy.local.kafka import Kafka
from deploy.local.processes import reserve_port
from tests.faults.test_dead_letters import limit, text
from tests.fixtures.few import few
from tests.fixtures.pipeline import RunningPipeline, read_log, state_of
from tests.fixtures.refusals import Configured
from tests.fixtures.source import Conninfo, run
from tests.integration.snapshots.test_catalog_check import differing
from tests.integration.snapshots.test_set_aside import aside, readiness, wait_until_equal
from tests.integration.snapshots.test_while_streaming import PAGES, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
MakePipeline = Callable[..., RunningPipeline]
PRECISE = {"decimal.handling.mode": "precise"}
"""Connect's Decimal has no NaN."""
ODD = (
    "CREATE TABLE odd (id int PRIMARY KEY, v numeric(4, 0))",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "INSERT INTO odd SELECT i, i FROM generate_series(1, 9) i",
    "INSERT INTO other VALUES (1)",
)
SENT_MAX = 400_000


def write_odd_row(database: Conninfo) -> None:
    """One transaction that changes the table before it, and behind it, and another table."""
    with psycopg.connect(make_conninfo(**database)) as connection:
        for statement in (
            "UPDATE odd SET v = 20 WHERE id = 2",
            "INSERT INTO other VALUES (2)",
            "INSERT INTO odd VALUES (30, 'NaN')",
            "DELETE FROM odd WHERE id = 3",
            "INSERT INTO other VALUES (3)",
        ):
            connection.execute(statement)


def mend(database: Conninfo) -> None:
    run(database, "UPDATE odd SET v = 30 WHERE id = 30", "INSERT INTO odd VALUES (40, 4)")


def wait_until_mended(made: RunningPipeline, database: Conninfo) -> None:
    """Wait until the log adds up to the source: precise decimals are bytes in it."""
    wait_until_equal(made, database, ["other"])
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = connection.execute("SELECT id, v::int FROM odd").fetchall()
    expected: dict[int, int] = dict(rows)

    def logged() -> dict[int, int]:
        found = state_of([each for each in made.log() if each.topic.endswith(".odd")]).values()
        return {
            row["id"]: int.from_bytes(base64.b64decode(row["v"]), "big", signed=True)
            for row in found
        }

    wait_for(lambda: logged() == expected)


def truncates(made: RunningPipeline) -> int:
    """How often a read of the table has begun that replaces its rows."""
    of_odd = [each for each in made.log() if each.topic.endswith(".odd") and each.op == "t"]
    return len({each.position for each in of_odd})


def test_only_its_table_is_set_aside_until_the_next_start_reads_it(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ODD)
    port = reserve_port()
    made = pipeline(**PRECISE, sections={"health": {"listen": f"127.0.0.1:{port}"}})
    daemon = made.catch_up()
    write_odd_row(database)
    wait_for(lambda: aside(made) == {"odd"} or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    log = daemon.command.log_end()
    assert log.count("a table is set aside") == 1
    assert "errors.dead.letter.include.list" in log
    wait_for(lambda: readiness(port).get("set_aside", {}).keys() == {"public.odd"})
    wait_for(lambda: readiness(port).get("degraded"))
    shown = {each["table"]: each for each in status(made)}["public.odd"]
    assert shown["set_aside"]
    assert "can't be written" in shown["doubt"]
    assert "the next start tries again" in shown["not_reread"]
    time.sleep(3)  # a check of the catalog comes, and reads nothing
    assert truncates(made) == 0
    assert made.stop(daemon) == 0
    daemon = made.start()
    wait_for(lambda: truncates(made) == 1)
    wait_for(lambda: aside(made) == {"odd"})
    mend(database)
    assert made.stop(daemon) == 0
    daemon = made.start()
    wait_until_mended(made, database)
    assert made.stop(daemon) == 0


def status(made: RunningPipeline) -> list[dict[str, str]]:
    tables: list[dict[str, str]] = made.status()["tables"]
    return tables


POINTS = (
    FaultPoint.TRANSLATED,
    FaultPoint.BATCH_WRITTEN,
    FaultPoint.BATCH_COMMITTED,
    FaultPoint.ACKNOWLEDGED,
    FaultPoint.CHUNK_TAKEN,
)


@pytest.mark.parametrize("point", few(POINTS, FaultPoint.BATCH_COMMITTED))
def test_a_death_anywhere_leaves_it_set_aside_and_the_others_whole(
    pipeline: MakePipeline, database: Conninfo, point: FaultPoint
) -> None:
    run(database, *ODD)
    made = pipeline(**PAGES, **PRECISE)
    assert made.stop(made.catch_up()) == 0
    write_odd_row(database)
    if point is FaultPoint.CHUNK_TAKEN:  # of the read that the second start begins
        daemon = made.start()
        wait_for(lambda: aside(made) == {"odd"})
        assert made.stop(daemon) == 0
        mend(database)
    assert made.start({VARIABLE: f"{point}:1"}).wait(60) != 0
    daemon = made.start()
    if point is not FaultPoint.CHUNK_TAKEN:
        wait_for(lambda: aside(made) == {"odd"})
        wait_for(lambda: not differing(made, database, ["other"]))
        mend(database)
        assert made.millrace("snapshot", "--reset", "public.odd").returncode == 0
    wait_until_mended(made, database)
    others = [each for each in made.log() if each.topic.endswith(".other")]
    assert len(others) == len({each.key for each in others}), "a record came twice"
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_first_snapshot_goes_on_without_it_and_the_command_reads_it(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    run(database, *ODD, "INSERT INTO odd VALUES (30, 'NaN')")
    made = pipeline(**PRECISE)
    daemon = made.catch_up()
    assert aside(made) == {"odd"}
    asked = made.millrace("snapshot", "--reset", "public.odd")
    assert asked.returncode == ExitCode.NOT_DONE
    assert "can't be written" in asked.stderr
    mend(database)
    assert made.millrace("snapshot", "--reset", "public.odd").returncode == 0
    wait_until_mended(made, database)
    run(database, "INSERT INTO odd VALUES (31, 'NaN')")
    wait_for(lambda: aside(made) == {"odd"})
    assert made.stop(daemon) == 0
    offline = made.millrace("snapshot", "public.odd", timeout_s=120)
    assert offline.returncode == ExitCode.NOT_DONE
    assert "public.odd" in offline.stderr


OUTBOX = {
    "transforms": {
        "outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "outbox.table.op.invalid.behavior": "fatal",
        "outbox.predicate": "of_outbox",
    },
    "predicates": {
        "of_outbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "of_outbox.pattern": ".*outbox",
    },
}


def test_a_transform_that_refuses_an_event_concerns_its_table_alone(
    pipeline: MakePipeline, database: Conninfo
) -> None:
    columns = "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text"
    run(database, f"CREATE TABLE outbox ({columns})", "CREATE TABLE other (id int PRIMARY KEY)")
    run(database, "INSERT INTO other VALUES (1)")
    made = pipeline(sections=OUTBOX)
    daemon = made.catch_up()
    run(
        database,
        f"INSERT INTO outbox VALUES ('{uuid4()}', 'order', '1', 'made', 'x')",
        "UPDATE outbox SET payload = 'y'",
        "INSERT INTO other VALUES (2)",
    )
    wait_for(lambda: aside(made) == {"outbox"} or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_record_that_the_broker_refuses_concerns_its_table_alone(
    configured: Configured, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> None:
    run(
        database,
        "CREATE TABLE doc (id int PRIMARY KEY, v text)",
        "CREATE TABLE late (id int PRIMARY KEY, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
    )
    insert = "INSERT INTO {} VALUES (%s, %s)"
    made = configured(None, {"message.max.bytes": str(SENT_MAX)}, **PAGES)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(insert.format("doc").encode(), [1, text(2 * SENT_MAX)])
        daemon = made.start()
        # The client itself doesn't send it: a row of the first snapshot.
        wait_for(lambda: aside(made) == {"doc"} or not daemon.running)
        wait_for(lambda: not differing(made, database, ["other"]))
        limit(kafka, f"{topic_prefix}.public.late", SENT_MAX // 8)
        for key in range(2, 100):
            connection.execute(insert.format("late").encode(), [key, text(2_000)])
            connection.execute("INSERT INTO other VALUES (%s)", [key])
        connection.execute(insert.format("late").encode(), [1, text(SENT_MAX // 2)])
    wait_for(lambda: aside(made) == {"doc", "late"} or not daemon.running)
    wait_for(lambda: not differing(made, database, ["other"]))
    assert "oversized.record" in daemon.command.log_end()
    run(database, "UPDATE doc SET v = 'small'", "UPDATE late SET v = 'small'")
    for name in ("doc", "late"):
        assert made.millrace("snapshot", "--reset", f"public.{name}").returncode == 0
    wait_until_equal(made, database, ["doc", "late", "other"])
    assert made.stop(daemon) == 0


@pytest.mark.proof
def test_a_record_in_a_topic_that_tables_share_concerns_the_table_that_wrote_it(
    pipeline: MakePipeline, database: Conninfo, kafka: Kafka, topic_prefix: str
) -> None:
    """By the stream, and as a row of a read: there, no position tells the record apart."""
    for name in ("doc", "other"):
        run(database, f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    shared = {
        "order": "route",
        "route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "route.regex": r"(.*)\.public\..*",
        "route.replacement": "$1.shared",
    }
    made, topic = pipeline(sections={"transforms": shared}, **PAGES), f"{topic_prefix}.shared"
    daemon = made.catch_up()
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("INSERT INTO other VALUES (1, 'x')")
        wait_for(lambda: written(made, topic) == {1})
        limit(kafka, topic, SENT_MAX // 8)
        for key in range(10, 20):
            connection.execute("INSERT INTO doc VALUES (%s, 'x')", [key])
            connection.execute("INSERT INTO other VALUES (%s, 'x')", [key + 10])
        connection.execute("INSERT INTO doc VALUES (2, %s)", [text(SENT_MAX // 4)])
        connection.execute("INSERT INTO other VALUES (3, 'x')")
    wait_for(lambda: aside(made) == {"doc"} or not daemon.running)
    wait_for(lambda: 3 in written(made, topic) or not daemon.running)
    # The read that the next start begins has the row, too.
    assert made.stop(daemon) == 0
    daemon = made.start()
    run(database, "INSERT INTO other VALUES (4, 'x')")
    wait_for(lambda: 4 in written(made, topic) or not daemon.running)
    wait_for(lambda: aside(made) == {"doc"} or not daemon.running)
    run(database, "DELETE FROM doc WHERE id = 2")
    assert made.millrace("snapshot", "--reset", "public.doc").returncode == 0
    assert aside(made) == set()
    assert made.stop(daemon) == 0


def written(made: RunningPipeline, topic: str) -> set[int]:
    """The ids of all rows in a topic."""
    log = read_log(made.settings.kafka, {topic: made.settings.log.topic_partitions})
    rows = [each.value["after"] for each in log if each.value and each.value["after"]]
    return {row["id"] for row in rows}


def test_under_the_preset_it_ends_the_daemon_as_debezium_ends(
    pipeline: MakePipeline, database: Conninfo, kafka: Kafka, topic_prefix: str
) -> None:
    run(database, "CREATE TABLE doc (id int PRIMARY KEY, v text)")
    made = pipeline(preset="debezium")
    daemon = made.catch_up()
    limit(kafka, f"{topic_prefix}.public.doc", SENT_MAX // 8)
    with psycopg.connect(make_conninfo(**database)) as connection:
        connection.execute("INSERT INTO doc VALUES (1, %s)", [text(SENT_MAX)])
    assert daemon.wait(60) == ExitCode.RECORD_REFUSED
    assert "too large" in daemon.command.log_end()
