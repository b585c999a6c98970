"""Records that can't be written → their neighbours arrive, and they follow once they can."""

import base64
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from cdc.log.following import read_dead_letters
from cdc.log.state import read_all
from cdc.records.dead_letters import DeadLetter
from cdc.records.orders import DEAD_LETTER_ORDERS, DeadLetterOrder
from cdc.records.schema import TableSchema
from cdc.records.topics import dead_letter_topic, schema_topic
from deploy.commands.app import app
from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
SENT_MAX = 400_000
LOWERED = 50_000
SETTINGS = {
    "errors.dead.letter.include.list": "public.doc, public.loose",
    "max.batch.size": 200,
    "slot.max.retries": 60,
}
TABLES = """
    CREATE TABLE doc (id int PRIMARY KEY, v text);
    CREATE TABLE other (id int PRIMARY KEY, v text);
    CREATE TABLE loose (v text); ALTER TABLE loose REPLICA IDENTITY FULL;
"""
choose = random.Random(1)  # noqa: S311 (repeatable is what it has to be)


def text(size: int) -> str:
    """What can't be compressed to much less."""
    return base64.b64encode(choose.randbytes(size))[:size].decode()


def limit(kafka: Kafka, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({**kafka.client_options()})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(60)


def dead_letters(made: RunningPipeline) -> dict[int, DeadLetter]:
    topic = dead_letter_topic(made.settings.capture.topic_prefix)
    return read_dead_letters(made.settings.kafka, topic)


def source_rows(database: Mapping[str, str], table: str) -> dict[str, Any]:
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = connection.execute(f"SELECT id, v FROM {table}").fetchall()
    return {f'{{"id":{key}}}': {"id": key, "v": value} for key, value in rows}


def log_rows(made: RunningPipeline, table: str) -> dict[str, Any]:
    return state_of([record for record in made.log() if record.topic.endswith(f".public.{table}")])


def assert_each_frame_once(made: RunningPipeline) -> None:
    """Each frame of the stream is a record or a dead letter, and none is both."""
    records = [record for record in made.log() if record.op != "tombstone"]
    seen = Counter(record.position for record in records if record.position.index)
    seen.update(
        dead_letter.position
        for dead_letter in dead_letters(made).values()
        if dead_letter.position.index
    )
    assert [position for position, count in seen.items() if count > 1] == []
    indexes: dict[int, set[int]] = {}
    for position in seen:
        indexes.setdefault(position.commit_lsn, set()).add(position.index)
    assert all(found == set(range(1, max(found) + 1)) for found in indexes.values())


def change(connection: psycopg.Connection, first: int, count: int) -> None:
    for key in range(first, first + count):
        with connection.transaction():
            connection.execute("INSERT INTO other VALUES (%s, 'x')", [key])
            connection.execute("INSERT INTO doc VALUES (%s, %s)", [key, text(2_000)])
            connection.execute("UPDATE doc SET v = %s WHERE id = %s", [text(1_000), key - 1])
            if key % 20 == 0:
                connection.execute("UPDATE doc SET v = %s WHERE id = 2", [text(2 * LOWERED)])
                connection.execute("INSERT INTO doc VALUES (%s, %s)", [-key, text(2 * LOWERED)])
                connection.execute("INSERT INTO loose VALUES (%s), ('y')", [text(2 * LOWERED)])


def lower_under_load(connection: psycopg.Connection, kafka: Kafka, topics: list[str]) -> None:
    """Lower these topics' limits while rows come; most of those too large come behind that."""
    is_lowered = threading.Event()

    def write() -> None:
        change(connection, 150, 50)
        is_lowered.wait()
        change(connection, 200, 100)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for topic in topics:
            limit(kafka, topic, LOWERED)
    finally:
        is_lowered.set()
        writing.join()


def millrace(made: RunningPipeline, *words: str) -> str:
    """What a command prints, without a process of its own."""
    ended = CliRunner().invoke(app, [*words, "--config", str(made.config)])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_a_topics_limit_is_lowered_under_load_and_raised_again(
    configured: Configured, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> None:
    made = configured(None, {"message.max.bytes": str(SENT_MAX)}, **SETTINGS)
    topics = [f"{topic_prefix}.public.{table}" for table in ("doc", "loose")]
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO doc VALUES (1, %s), (2, 'small')", [text(SENT_MAX)])
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        # A row of the snapshot is too large for the client itself.
        (unsendable,) = dead_letters(made)
        change(connection, 100, 50)
        made.wait_until_logged(made.wal_end(), daemon)
        lower_under_load(connection, kafka, topics)
        daemon.kill()
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)

        aside = dead_letters(made)
        assert 12 <= len(aside) <= 22
        assert_each_frame_once(made)
        assert log_rows(made, "other") == source_rows(database, "other")
        hurt = {'{"id":1}', '{"id":2}', *(f'{{"id":-{key}}}' for key in range(100, 300))}
        logged, rows = log_rows(made, "doc"), source_rows(database, "doc")
        assert {k: logged.get(k) for k in rows.keys() - hurt} == {
            k: rows[k] for k in rows.keys() - hurt
        }
        status = made.status()
        assert sum(status["dead_letters"].values()) == len(aside)
        last = max(number for number, one in aside.items() if one.table == "public.doc")
        shown = json.loads(millrace(made, "dead-letters", "show", str(last)))
        assert shown["key"] == f'{{"id":{shown["after"]["id"]}}}'
        assert len(shown["after"]["v"]) == 2 * LOWERED

        connection.execute("DELETE FROM doc WHERE id = -280")  # has a letter, and no record
        for topic in topics:
            limit(kafka, topic, SENT_MAX)
        assert millrace(made, "dead-letters", "discard", str(unsendable)) == "discarded: 1\n"
        replayed = millrace(made, "dead-letters", "replay", "--all")
        assert replayed == f"replayed: {len(aside) - 1}\n"
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    rows = source_rows(database, "doc")
    del rows['{"id":1}']
    assert log_rows(made, "doc") == rows
    loose = [record.value or {} for record in made.log() if record.topic == topics[1]]
    with psycopg.connect(make_conninfo(**database)) as connection:
        texts = connection.execute("SELECT v FROM loose ORDER BY v").fetchall()
    assert sorted(event["after"]["v"] for event in loose) == [v for (v,) in texts]
    outcomes = {number: one.outcome for number, one in dead_letters(made).items()}
    assert outcomes == dict.fromkeys(aside, "replayed") | {unsendable: "discarded"}


@pytest.mark.proof
def test_columns_that_an_order_in_vain_was_the_first_to_see_get_into_the_log(
    configured: Configured, database: dict[str, str]
) -> None:
    """Rows that follow are under their schema version."""
    made = configured(None, {"message.max.bytes": str(SENT_MAX)}, **SETTINGS)
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO doc VALUES (1, %s)", [text(2 * SENT_MAX)])
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        ((number, dead_letter),) = dead_letters(made).items()
        connection.execute("ALTER TABLE doc RENAME COLUMN id TO key")
        order = DeadLetterOrder(number=number, id=dead_letter.id, outcome="replayed")
        message = [DEAD_LETTER_ORDERS, order.model_dump_json()]
        connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", message)
        made.wait_until_logged(made.wal_end(), daemon)
        connection.execute("INSERT INTO doc VALUES (2, 'small')")
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    topic = schema_topic(made.settings.capture.topic_prefix)
    schemas = [
        schema
        for schema in read_all(made.settings.kafka, topic, TableSchema)
        if schema.table == "doc"
    ]
    names = [[column.name for column in schema.columns] for schema in schemas]
    assert names == [["id", "v"], ["key", "v"]]
