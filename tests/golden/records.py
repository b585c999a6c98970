"""Topics → actual.jsonl, the form that compare.py reads: every JSON text as it was written."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.fixtures.pipeline import SOON_MS, wait_until_shown


class Line(NamedTuple):
    """One record; ``text`` is its line."""

    topic: str
    partition: int
    order: int
    text: str


def collect(kafka: Mapping[str, str], topics: re.Pattern[str]) -> list[Line]:
    """Every committed record of the matching topics, by topic, partition and order."""
    consumer = Consumer(
        {
            **kafka,
            "group.id": "golden",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": SOON_MS,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        return sorted(_read(consumer, kafka, topics))
    finally:
        consumer.close()


def _read(consumer: Consumer, kafka: Mapping[str, str], topics: re.Pattern[str]) -> Iterator[Line]:
    found = consumer.list_topics(timeout=60).topics
    unread = {
        (name, partition)
        for name, topic in found.items()
        if topics.fullmatch(name)
        for partition in topic.partitions
    }
    if not unread:
        return
    wait_until_shown(kafka, unread)
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in unread])
    read: dict[tuple[str, int], int] = {}
    while unread:
        message = consumer.poll(60)
        if message is None:
            raise RuntimeError("Kafka doesn't answer")
        place = str(message.topic()), int(message.partition() or 0)
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(str(error))
            unread.discard(place)
            continue
        order = read[place] = read.get(place, -1) + 1
        yield Line(*place, order, _line(*place, order, message))


def _line(topic: str, partition: int, order: int, message: Message) -> str:
    headers = ",".join(
        f"[{json.dumps(name)},{_json(value)}]" for name, value in list(message.headers() or [])
    )
    return (
        f'{{"topic":{json.dumps(topic)},"partition":{partition},"partition_order":{order},'
        f'"key":{_json(message.key())},"value":{_json(message.value())},"headers":[{headers}]}}'
    )


def _json(payload: Any) -> str:
    """The text itself where it is JSON on one line, so that numbers keep their digits."""
    if payload is None:
        return "null"
    text = bytes(payload).decode("utf-8", "surrogatepass")
    try:
        json.loads(text)
    except ValueError:
        return json.dumps({"__raw__": text})
    return text if "\n" not in text else json.dumps(json.loads(text))


def write(path: Path, lines: list[Line]) -> None:
    """One record a line; a lone surrogate stays one, as JSON escapes it."""
    text = "".join(f"{line.text}\n" for line in lines)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def parsed(path: Path) -> list[dict[str, Any]]:
    """The records of a file in this form."""
    lines = path.read_text(encoding="utf-8").split("\n")  # texts may hold other line separators
    return [json.loads(line) for line in lines if line.strip()]
