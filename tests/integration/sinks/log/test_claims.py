"""Rows too large for their topics → claims, and from those the exact rows in Delta tables."""

import base64
import hashlib
import json
import random
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from psycopg.conninfo import make_conninfo

from cdc.kafka.admin import LogAdmin
from cdc.log.state import read_all
from cdc.records.dead_letters import CLAIM_HEADER, PIECES_PARTITION, Claim, ClaimHead
from cdc.records.position import HEADER as POSITION
from cdc.records.topics import claim_topic
from cdc.settings import Settings
from deploy.local.kafka import Kafka
from sinks.job import run_lakehouse
from sinks.run.summary import RunSummary
from tests.faults.test_dead_letters import limit
from tests.fixtures.pipeline import SOON_MS, RunningPipeline
from tests.fixtures.position_headers import parse_header
from tests.fixtures.readers import query_builder
from tests.fixtures.refusals import Configured
from tests.fixtures.spark import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.spark]
LIMIT = 20_000
TABLES = """
    CREATE TABLE doc (id int PRIMARY KEY, name text, v text);
    CREATE TABLE was (id int PRIMARY KEY, v text);
    CREATE TABLE loose (n int, v text); ALTER TABLE loose REPLICA IDENTITY FULL;
"""
choose = random.Random(1)  # noqa: S311 (repeatable is what it has to be)


def text(size: int) -> str:
    """What can't be compressed to much less, and isn't one byte a character."""
    return base64.b64encode(choose.randbytes(size))[: size // 2].decode() + "aé😀" * (size // 14)


def consumed(kafka: Kafka, topic: str, partitions: Iterable[int]) -> list[Message]:
    """Every committed record of these partitions."""
    consumer = Consumer(
        {
            **kafka.client_options(),
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": SOON_MS,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    messages: list[Message] = []
    waiting = set(partitions)
    while waiting:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            messages.append(message)
        else:
            waiting.discard(message.partition())
    consumer.close()
    return messages


def headers(message: Message) -> dict[str, bytes]:
    pairs: Any = message.headers()
    return dict(pairs or [])


def heads(settings: Settings) -> dict[str, ClaimHead]:
    topic = claim_topic(settings.capture.topic_prefix)
    return {head.key: head for head in read_all(settings.kafka, topic, ClaimHead)}


def assert_claims_are_whole(kafka: Kafka, prefix: str) -> None:
    """What any consumer can do: see valid events, told what they lack, and get all of it."""
    pieces: dict[str, dict[int, bytes]] = {}
    for message in consumed(kafka, claim_topic(prefix), [PIECES_PARTITION]):
        key, value = json.loads(message.key() or b""), message.value()
        if value is not None:
            value.decode()  # cut between characters
            pieces.setdefault(key["claim"], {})[key["piece"]] = value
    claimed = 0
    for table in ("doc", "was", "loose"):
        for message in consumed(kafka, f"{prefix}.public.{table}", range(3)):
            if CLAIM_HEADER in headers(message):
                claim = Claim.model_validate_json(headers(message)[CLAIM_HEADER])
                claimed += 1
                made = pieces[claim.id]
                whole = b"".join(made[number] for number in range(claim.pieces))
                digest = hashlib.sha256(whole).hexdigest()
                assert (len(whole), digest) == (claim.bytes, claim.sha256)
                small, large = json.loads(message.value() or b""), json.loads(whole)
                assert len(message.value() or b"") < LIMIT
                for image in ("before", "after"):
                    if large[image] is not None:
                        expected = {k: v for k, v in large[image].items() if k != "v"}
                        assert small[image] == expected
                parse_header(headers(message)[POSITION])
    assert claimed == len(pieces) == 9


def merge(made: RunningPipeline, spark: "SparkSession") -> RunSummary:
    return run_once(run_lakehouse, made.settings, spark)


def assert_same(made: RunningPipeline, connection: Any, table: str) -> None:
    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    found = query_builder(str(made.folder / "lakehouse" / "public" / table))
    columns = [name for name in found[0] if not name.startswith("_millrace")]
    assert sorted(tuple(row[name] for name in columns) for row in found) == sorted(rows)


def test_a_merge_puts_a_row_together_from_its_claim_or_says_what_is_missing(
    configured: Configured, database: dict[str, str], topic_prefix: str, spark: "SparkSession"
) -> None:
    made = configured(None, {"message.max.bytes": "100000"}, **{"oversized.record": "claim_check"})
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        connection.execute("CREATE TABLE doc (id int PRIMARY KEY, name text, v text)")
        connection.execute("INSERT INTO doc VALUES (1, 'first', %s)", [text(200_000)])
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        assert set(heads(made.settings)) == {'{"id":1}'}
        assert [table.error for table in merge(made, spark).tables] == [None]
        assert_same(made, connection, "doc")
    assert LogAdmin(made.settings.kafka).delete([claim_topic(topic_prefix)]) == {}
    shutil.rmtree(made.folder / "lakehouse" / "public")
    (table,) = merge(made, spark).tables
    assert f"isn't in {claim_topic(topic_prefix)}: claim " in str(table.error)


@pytest.mark.proof
def test_rows_too_large_for_their_topics_reach_the_lakehouse_whole(
    configured: Configured,
    database: dict[str, str],
    kafka: Kafka,
    topic_prefix: str,
    spark: "SparkSession",
) -> None:
    made = configured(
        None,
        {"message.max.bytes": "100000"},
        **{"oversized.record": "claim_check", "slot.max.retries": 60},
    )
    with psycopg.connect(make_conninfo(**database), autocommit=True) as connection:
        execute = connection.execute
        execute(TABLES)
        execute("INSERT INTO doc VALUES (1, 'first', %s), (2, 'x', 'small')", [text(200_000)])
        execute("INSERT INTO was VALUES (1, %s)", [text(200_000)])
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        assert set(heads(made.settings)) == {'{"id":1}'}
        for table in ("doc", "was", "loose"):
            limit(kafka, f"{topic_prefix}.public.{table}", LIMIT)  # while the daemon runs
        execute("UPDATE doc SET v = %s WHERE id = 2", [text(50_000)])
        execute("INSERT INTO doc VALUES (3, 'third', %s), (4, 'x', 'y')", [text(60_000)])
        execute("UPDATE doc SET name = 'once more' WHERE id = 3")  # its value is read again
        execute("INSERT INTO loose VALUES (1, %s), (2, 'y'), (3, %s)", [text(50_000), text(50_000)])
        execute("DELETE FROM loose WHERE n = 1")
        made.wait_until_logged(made.wal_end(), daemon)
        assert [table.error for table in merge(made, spark).tables] == [None] * 3

        daemon.kill()
        execute("UPDATE doc SET v = 'small' WHERE id = 1")
        execute("DELETE FROM doc WHERE id = 2")
        execute("UPDATE was SET v = 'small'")
        daemon = made.start()
        made.wait_until_logged(made.wal_end(), daemon)
        execute("UPDATE doc SET name = 'last', v = %s WHERE id = 4", [text(50_000)])
        made.wait_until_logged(made.wal_end(), daemon)
        assert made.stop(daemon) == 0
        assert set(heads(made.settings)) == {'{"id":3}', '{"id":4}'}
        assert_claims_are_whole(kafka, topic_prefix)
        assert [table.error for table in merge(made, spark).tables] == [None] * 2
        for table in ("doc", "was", "loose"):
            assert_same(made, connection, table)

        # Compaction may have taken claims that nothing needs any more, and nobody others.
        assert LogAdmin(made.settings.kafka).delete([claim_topic(topic_prefix)]) == {}
        shutil.rmtree(made.folder / "lakehouse" / "public")
        errors = {table.name: str(table.error) for table in merge(made, spark).tables}
        assert errors["public.was"] == "None"
        assert_same(made, connection, "was")
        for table in ("doc", "loose"):
            assert f"isn't in {claim_topic(topic_prefix)}: claim " in errors[f"public.{table}"]
