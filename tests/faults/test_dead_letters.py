"""Records that can't be written, under load → their neighbours arrive, and they can be sent later."""

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

from cdc.kafka.state import read_letters
from cdc.records.dead_letters import DeadLetter
from cdc.records.topics import dead_letter_topic
from deploy.local.kafka import Kafka
from tests.fixtures.pipeline import RunningPipeline, state_of
from tests.fixtures.refusals import Configured

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]
SENT_MAX = 400_000
LOWERED = 50_000
SETTINGS = {"errors.dead.letter.include.list": "public.doc", "max.batch.size": 200}
choose = random.Random(1)  # noqa: S311 (repeatable is what it has to be)


def text(size: int) -> str:
    """What can't be compressed to much less."""
    return base64.b64encode(choose.randbytes(size))[:size].decode()


def limit(kafka: Kafka, topic: str, size: int) -> None:
    entry = ConfigEntry(
        "max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(kafka.client_options())
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(10)


def letters(made: RunningPipeline) -> dict[int, DeadLetter]:
    topic = dead_letter_topic(made.settings.capture.topic_prefix)
    return read_letters(made.settings.kafka, topic)


def source_rows(database: Mapping[str, str], table: str) -> dict[str, Any]:
    with psycopg.connect(make_conninfo(**database)) as connection:
        rows = connection.execute(f"SELECT id, v FROM {table}").fetchall()
    return {f'{{"id":{key}}}': {"id": key, "v": value} for key, value in rows}


def log_rows(made: RunningPipeline, table: str) -> dict[str, Any]:
    return state_of([record for record in made.log() if record.topic.endswith(f".public.{table}")])


def assert_each_frame_once(made: RunningPipeline) -> None:
    """Each frame of the stream is a record or a letter, and none is both."""
    seen = Counter(
        record.position for record in made.log() if record.position.index and record.op != "tombstone"
    )
    seen.update(one.position for one in letters(made).values() if one.position.index)
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


def test_a_topics_limit_is_lowered_under_load(
    configured: Configured, database: dict[str, str], kafka: Kafka, topic_prefix: str
) -> None:
    made = configured(None, {"message.max.bytes": str(SENT_MAX)}, **SETTINGS)
    topic = f"{topic_prefix}.public.doc"
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE doc (id int PRIMARY KEY, v text)")
        connection.execute("CREATE TABLE other (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO doc VALUES (1, %s), (2, 'small')", [text(SENT_MAX)])
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        # A row of the snapshot is too large for the client itself.
        assert [(one.table, one.op) for one in letters(made).values()] == [("public.doc", "r")]
        change(connection, 100, 50)
        made.wait_until_logged(made.wal_end(), daemon)
        load = threading.Thread(target=change, args=(connection, 150, 150))
        load.start()
        limit(kafka, topic, LOWERED)
        load.join()
        made.wait_until_logged(made.wal_end(), daemon)
        assert "starting over to set a record aside" in daemon.command.log_end()
        aside = letters(made)
        assert 8 <= len(aside) <= 15
        assert_each_frame_once(made)
        assert log_rows(made, "other") == source_rows(database, "other")
        hurt = {'{"id":1}', '{"id":2}', *(f'{{"id":-{key}}}' for key in range(100, 300))}
        logged, rows = log_rows(made, "doc"), source_rows(database, "doc")
        assert {k: v for k, v in logged.items() if k not in hurt} == {
            k: v for k, v in rows.items() if k not in hurt
        }
        connection.execute("DELETE FROM doc WHERE id = -280")
        status = json.loads(made.millrace("status", "--json").stdout)
        assert status["dead_letters"] == {"public.doc": len(aside)}
        number = max(aside)
        shown = json.loads(made.millrace("dead-letters", "show", str(number)).stdout)
        assert len(shown["after"]["v"]) == 2 * LOWERED
        limit(kafka, topic, SENT_MAX)
        assert made.stop(daemon) == 0  # the topic's limit is looked at by a start
        daemon = made.start()
        discarded = min(aside)
        ended = made.millrace("dead-letters", "discard", str(discarded))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        ended = made.millrace("dead-letters", "replay", "--all")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        made.wait_until_logged(made.wal_end(), daemon)
    assert made.stop(daemon) == 0
    rows = source_rows(database, "doc")
    del rows['{"id":1}']
    assert log_rows(made, "doc") == rows
    outcomes = {number: one.outcome for number, one in letters(made).items()}
    assert outcomes == dict.fromkeys(aside, "replayed") | {discarded: "discarded"}
