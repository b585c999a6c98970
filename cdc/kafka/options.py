"""The user's [kafka] options → those of a producer, a reader and an admin client.

The user's options override our defaults. Options that exactly-once depends on override the user's.
https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from cdc.errors import ConfigError
from cdc.kafka.errors import option_error, reason

Client = TypeVar("Client")

TRANSACTION_TIMEOUT_MS: Final = 120_000
"""A broker's absence of half a minute is tolerated; a dead one is noticed within two minutes."""
SOCKET_TIMEOUT_MS: Final = 30_000
MESSAGE_BYTES_MAX: Final = 32 << 20
"""A larger record is refused before it is sent. The topic's max.message.bytes may be lower."""
BATCH_BYTES: Final = 1_000_000
"""librdkafka's own batch.size."""
QUEUE_KBYTES_MAX: Final = 64 << 10
_REPEAT_S: Final = 10.0

_OWNED: Final[Mapping[str, frozenset[str]]] = {
    "transactional.id": frozenset(),
    "enable.idempotence": frozenset({"true"}),
    "acks": frozenset({"all", "-1"}),
    "request.required.acks": frozenset({"all", "-1"}),
    "partitioner": frozenset({"murmur2_random"}),
    "delivery.report.only.error": frozenset({"true"}),
    "isolation.level": frozenset({"read_committed"}),
    "enable.auto.commit": frozenset({"false"}),
    "enable.partition.eof": frozenset({"true"}),
    "auto.offset.reset": frozenset({"error"}),
    "allow.auto.create.topics": frozenset({"false"}),
}
"""Options that the user can't choose, with the values that match ours."""

_NO_AUTO_CREATION: Final = {"allow.auto.create.topics": "false"}
"""A client's request must not create a topic, which would get the broker's settings."""
_CONNECTION: Final[Mapping[str, str]] = {
    "client.id": "millrace",
    "socket.nagle.disable": "true",
    "socket.timeout.ms": str(SOCKET_TIMEOUT_MS),
    "reconnect.backoff.max.ms": "2000",
}
_PRODUCER: Final[Mapping[str, str]] = {
    "compression.type": "lz4",
    "linger.ms": "20",
    "message.max.bytes": str(MESSAGE_BYTES_MAX),
    "queue.buffering.max.messages": "200000",
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
}
_READER: Final[Mapping[str, str]] = {
    "group.id": "millrace",  # librdkafka requires one; no offset is ever committed
    # A partition that ends with a transaction's marker takes one more fetch, which waits this long.
    # The next request waits for that fetch.
    "fetch.wait.max.ms": "5",
    "check.crcs": "true",  # Kafka's own client does; else damaged records pass unnoticed
}
_FOLLOWER: Final[Mapping[str, str]] = {
    "fetch.wait.max.ms": "500",  # librdkafka's own; new data ends the wait
    "queued.max.messages.kbytes": "8192",  # limits memory, as other programs may write there
}

_RECEIVED_MAX: Final = (1 << 31) - 1


_COORDINATOR: Final = "GroupCoordinator"
"""librdkafka's name for the offsets' coordinator. Nothing depends on it, as we commit no offset."""


_THREAD: Final = re.compile(r"^(\w+) \[[^\]]*\] (?:\[thrd:[^\]]*\]: )?")
"""The prefix of librdkafka's messages: facility, client and thread."""


class _InWords(logging.Filter):
    """Rewrites librdkafka's messages for people, and limits each kind to one in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop repeats and meaningless lines: a reader's option for a producer, a coordinator."""
        message = record.getMessage()
        facility = message.split(" ", 1)[0]
        now = time.monotonic()
        if facility == "CONFWARN" or _COORDINATOR in message:
            return False
        if now - self._logged_at.get(facility, -_REPEAT_S) < _REPEAT_S:
            return False
        self._logged_at[facility] = now
        record.msg, record.args = f"Kafka: {_THREAD.sub('', message)}", ()
        record.levelno = min(record.levelno, logging.WARNING)  # we report its effect
        return True


LOGGER: Final = logging.getLogger("cdc.kafka.client")
LOGGER.addFilter(_InWords())
LOGGER.addHandler(logging.NullHandler())  # a command without a log prints only its error


def client(
    kind: Callable[..., Client], config: Mapping[str, Any], options: Mapping[str, str]
) -> Client:
    """Return a client of librdkafka. Raise ConfigError for an option that it refuses."""
    try:
        return kind(config, logger=LOGGER)
    except KafkaException as exception:
        raise option_error(reason(exception), options) from None


def admin_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options to create, describe and delete topics."""
    _check(options)
    return {**_CONNECTION, **options, **_NO_AUTO_CREATION}


def reader_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options to read state records: committed ones, by explicit offsets, to the end."""
    _check(options)
    largest = options.get("message.max.bytes", "")
    received = 2 * max(MESSAGE_BYTES_MAX, int(largest) if largest.isdigit() else 0) + 512
    return {
        **_CONNECTION,
        **_READER,
        "receive.message.max.bytes": str(min(received, _RECEIVED_MAX)),
        **options,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        **_NO_AUTO_CREATION,
    }


def follower_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options to read beyond the end, where no record may arrive for days."""
    return reader_options({**_FOLLOWER, **options})


def producer_options(options: Mapping[str, str], transactional_id: str | None) -> dict[str, str]:
    """Return options for a slot's only writer. Without an id, it has no transactions."""
    _check(options)
    merged = {**_CONNECTION, **_PRODUCER, **options}
    # librdkafka refuses waits that are longer than the transaction's.
    transaction_ms = merged["transaction.timeout.ms"]
    if not {"message.timeout.ms", "delivery.timeout.ms"} & options.keys():
        merged["message.timeout.ms"] = transaction_ms
    if "socket.timeout.ms" not in options and transaction_ms.isdigit():
        merged["socket.timeout.ms"] = str(min(SOCKET_TIMEOUT_MS, int(transaction_ms)))
    if "queue.buffering.max.kbytes" not in options and merged["message.max.bytes"].isdigit():
        # A queue smaller than a record would never take it.
        largest = int(merged["message.max.bytes"]) // 1024
        merged["queue.buffering.max.kbytes"] = str(max(QUEUE_KBYTES_MAX, 2 * largest))
    identity = {"transactional.id": transactional_id} if transactional_id else {}
    return {
        **merged,
        **identity,
        "enable.idempotence": "true",
        "acks": "all",
        "partitioner": "murmur2_random",
        **_NO_AUTO_CREATION,
    }


def _check(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name in _OWNED and value not in _OWNED[name]:
            ours = " or ".join(sorted(_OWNED[name])) or "derived from topic.prefix and slot.name"
            raise ConfigError(
                f"{name} can't be set: Millrace sets it to {ours}",
                where="[kafka]",
                remedy=f"remove {name}: exactly-once delivery needs Millrace's value",
            )
