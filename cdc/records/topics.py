"""Topic names, names that Avro allows, and the reserved key of TRUNCATE in a compacted topic.

Debezium's schema.name and field.name adjustment modes: ``avro`` puts an underscore in the place of
what isn't allowed, ``avro_unicode`` its code point (``_u00e4``; there the underscore itself is
replaced too, so that no two names become one).
https://debezium.io/documentation/reference/stable/connectors/postgresql.html (adjustment.mode)
"""

import re
from collections.abc import Callable
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
"""What the names of topics begin with that aren't for events."""
TRUNCATE_KEY = b'{"__millrace_truncate":true}'
"""Key of the truncate records, one a partition, so that compaction keeps the last of them."""


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
    """Debezium's name: ``<topic.prefix>.<schema>.<table>``, invalid characters replaced by ``_``.

    Two tables can be given one name so; cdc.kafka.topics refuses that at start.
    """
    return _INVALID.sub("_", f"{prefix}.{table}")[:NAME_CHARS_MAX]


def kafka_name(topic: str) -> str:
    """What Kafka tells topics apart by: those that differ by ``.`` and ``_`` only are one to it."""
    return topic.replace(".", "_")


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
    """Where anyone's signals come from, by default (signal.kafka.topic)."""
    return f"{prefix}-signal"


def request_topic(prefix: str) -> str:
    """Where signals come from, of commands alone, unless they come from a topic of anyone's."""
    return f"{OWN_TOPICS}{prefix}.requests"


def progress_topic(prefix: str) -> str:
    """Where the daemon records the position that it reached, with every batch of events."""
    return f"{OWN_TOPICS}{prefix}.progress"


def schema_topic(prefix: str) -> str:
    """Where every version of every table's schema is kept."""
    return f"{OWN_TOPICS}{prefix}.schemas"


def table_topic(prefix: str) -> str:
    """Where each table's topic settings and the state of its snapshot are kept."""
    return f"{OWN_TOPICS}{prefix}.tables"


def status_topic(prefix: str) -> str:
    """Where the daemon and each sink say how they are: the newest of each run and table."""
    return f"{OWN_TOPICS}{prefix}.status"


def runs_topic(prefix: str) -> str:
    """Where there is one record for each run of a sink, for log.keep."""
    return f"{OWN_TOPICS}{prefix}.runs"


def made_topic(prefix: str) -> str:
    """Where it is kept which topics are Millrace's own making."""
    return f"{OWN_TOPICS}{prefix}.topics"


def dead_letter_topic(prefix: str) -> str:
    """Where records go that can't be written, until somebody deals with them."""
    return f"{prefix}.dead-letters"


def claim_topic(prefix: str) -> str:
    """Where the values are that are too large for their topics."""
    return f"{prefix}.claims"
