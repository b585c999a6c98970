"""Topic names, and the reserved key of TRUNCATE in a compacted topic."""

import re

from cdc.records.schema import TableName

_INVALID = re.compile(r"[^a-zA-Z0-9._-]")
NAME_CHARS_MAX = 249
"""Kafka's limit on a topic's name."""

OWN_TOPICS = "__millrace."
"""What the names of topics begin with that aren't for events."""

TRUNCATE_KEY = b'{"__millrace_truncate":true}'
"""Key of the truncate records, one a partition, so that compaction keeps the last of them."""


def data_topic(prefix: str, table: TableName) -> str:
    """Debezium's name: ``<topic.prefix>.<schema>.<table>``, invalid characters replaced by ``_``.

    Two tables can be given one name so; cdc.kafka.topics refuses that at start.
    """
    return _INVALID.sub("_", f"{prefix}.{table}")[:NAME_CHARS_MAX]


def message_topic(prefix: str) -> str:
    """Where logical messages go."""
    return f"{prefix}.message"


def transaction_topic(prefix: str, suffix: str = "transaction") -> str:
    """Where the markers of transactions go (``suffix``: topic.transaction)."""
    return f"{prefix}.{suffix}"


def heartbeat_topic(prefix: str, start: str = "__debezium-heartbeat") -> str:
    """Where heartbeats go (``start``: topic.heartbeat.prefix)."""
    return f"{start}.{prefix}"


def signal_topic(prefix: str) -> str:
    """Where signals come from, by default (signal.kafka.topic)."""
    return f"{prefix}-signal"


def progress_topic(prefix: str) -> str:
    """Where the daemon records the position that it reached, with every batch of events."""
    return f"{OWN_TOPICS}{prefix}.progress"


def schema_topic(prefix: str) -> str:
    """Where every version of every table's schema is kept."""
    return f"{OWN_TOPICS}{prefix}.schemas"


def table_topic(prefix: str) -> str:
    """Where each table's topic settings and the state of its snapshot are kept."""
    return f"{OWN_TOPICS}{prefix}.tables"


def dead_letter_topic(prefix: str) -> str:
    """Where records go that can't be written, until somebody deals with them."""
    return f"{prefix}.dead-letters"


def claim_topic(prefix: str) -> str:
    """Where the values are that are too large for their topics."""
    return f"{prefix}.claims"
