"""Names of tables and schemas → topic names and names that Avro allows; reserved keys.

Debezium's schema.name and field.name adjustment modes: ``avro`` replaces a forbidden character by
an underscore, ``avro_unicode`` by its code point (``_u00e4``). The latter also replaces the
underscore itself, so that no two names become one.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html (adjustment.mode)
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, Literal

from cdc.records.schema import TableName

Adjustment = Literal["none", "avro", "avro_unicode"]
Adjust = Callable[[str], str]
Cleanup = Literal["compact", "delete"]
"""Kafka's cleanup.policy, for the topics of tables."""

ADJUSTMENTS: Final[tuple[Adjustment, ...]] = ("none", "avro", "avro_unicode")


_INVALID = re.compile(r"[^a-zA-Z0-9._-]")
NAME_CHARS_MAX = 249
"""Kafka's limit on a topic's name."""
OWN_TOPICS = "__millrace."
"""The prefix of topics that aren't for events."""
TRUNCATE_KEY = b'{"__millrace_truncate":true}'
"""Key of the truncate records, one per partition, so that compaction keeps the last of them."""


def schema_name(mode: Adjustment) -> Adjust:
    """Return the function for names of schemas, which have dots between their parts."""
    return _adjust(mode, within="0-9.")


def field_name(mode: Adjustment) -> Adjust:
    """Return the function for names of struct members."""
    return _adjust(mode, within="0-9")


def _adjust(mode: Adjustment, *, within: str) -> Adjust:
    if mode == "none":
        return str
    first = "A-Za-z" if mode == "avro_unicode" else "A-Za-z_"
    bad_first, bad_later = re.compile(f"[^{first}]"), re.compile(f"[^{first}{within}]")
    replace = _code_point if mode == "avro_unicode" else _underscore

    def adjust(name: str) -> str:
        if not name:
            return name
        start = name[0]
        if bad_first.match(start):
            keeps_digit = mode == "avro" and start.isdigit()
            start = replace(start) + (start if keeps_digit else "")
        return start + bad_later.sub(lambda match: replace(match[0]), name[1:])

    return adjust


def _underscore(character: str) -> str:
    return "_" * (len(_utf16(character)) // 2)


def _code_point(character: str) -> str:
    return "".join(f"_u{unit}" for unit in _utf16(character).hex("-", 2).split("-"))


def _utf16(character: str) -> bytes:
    return character.encode("utf-16-be", "surrogatepass")


def data_topic(prefix: str, table: TableName) -> str:
    """Return Debezium's name: ``<topic.prefix>.<schema>.<table>``.

    ``_`` replaces invalid characters.

    Two tables can get the same name; cdc.kafka.topics refuses that at start.
    """
    return _INVALID.sub("_", f"{prefix}.{table}")[:NAME_CHARS_MAX]


def tables_of(
    topics: Iterable[str], prefix: str, captures: Callable[[str], bool]
) -> dict[TableName, str]:
    """Return the tables in topics' names. Topics of transactions and messages have none."""
    tables: dict[TableName, str] = {}
    for topic in topics:
        rest = topic.removeprefix(f"{prefix}.")
        name = TableName.parse(rest)
        if rest != topic and name.namespace and name.name and captures(rest):
            tables[name] = topic
    return tables


def kafka_name(topic: str) -> str:
    """Return the name that Kafka compares, which doesn't distinguish ``.`` and ``_``."""
    return topic.replace(".", "_")


def message_topic(prefix: str) -> str:
    """Return the topic of logical messages."""
    return f"{prefix}.message"


def transaction_topic(prefix: str, suffix: str = "transaction") -> str:
    """Return the topic of transactions' markers (``suffix``: topic.transaction)."""
    return f"{prefix}.{suffix}"


def heartbeat_topic(prefix: str, start: str = "__debezium-heartbeat") -> str:
    """Return the topic of heartbeats (``start``: topic.heartbeat.prefix)."""
    return f"{start}.{prefix}"


def signal_topic(prefix: str) -> str:
    """Return the default topic of signals from any program (signal.kafka.topic)."""
    return f"{prefix}-signal"


def request_topic(prefix: str) -> str:
    """Return the topic of commands' signals, if no other topic is configured for signals."""
    return f"{OWN_TOPICS}{prefix}.requests"


def progress_topic(prefix: str) -> str:
    """Return the topic of the daemon's position, written with every batch of events."""
    return f"{OWN_TOPICS}{prefix}.progress"


def schema_topic(prefix: str) -> str:
    """Return the topic of every version of every table's schema."""
    return f"{OWN_TOPICS}{prefix}.schemas"


def table_topic(prefix: str) -> str:
    """Return the topic of each table's topic settings and snapshot state."""
    return f"{OWN_TOPICS}{prefix}.tables"


def status_topic(prefix: str) -> str:
    """Return the topic of the newest reports of the daemon, and of each run and table."""
    return f"{OWN_TOPICS}{prefix}.status"


def runs_topic(prefix: str) -> str:
    """Return the topic of one record for each run of a sink, kept for log.keep."""
    return f"{OWN_TOPICS}{prefix}.runs"


def made_topic(prefix: str) -> str:
    """Return the topic that lists the topics that Millrace has created."""
    return f"{OWN_TOPICS}{prefix}.topics"


def reader_topic(prefix: str) -> str:
    """Return the topic of reader groups' progress."""
    return f"{OWN_TOPICS}{prefix}.readers"


def dead_letter_topic(prefix: str) -> str:
    """Return the topic of records that couldn't be written, until a user settles them."""
    return f"{prefix}.dead-letters"


def claim_topic(prefix: str) -> str:
    """Return the topic of values that are too large for their topics."""
    return f"{prefix}.claims"
