"""One Kafka record, as the daemon hands it to the producer."""

from typing import NamedTuple


class Record(NamedTuple):
    """A keyed record; ``partition`` None leaves the choice to the murmur2 partitioner.

    ``timestamp_ms`` is since 1970, UTC; 0 leaves it to the producer, which takes the time of now.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int | None = None
    timestamp_ms: int = 0
