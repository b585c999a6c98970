"""A record's references (its value's claim, its schema's version) → their targets, even late ones.

Both are written with their record. Kafka shows a transaction partition by partition, and a follower
may be behind its leader. So a record can be visible before its references. A target counts as lost
only after its partition shows everything written so far. With ``delivery = "at_least_once"``, no
transaction joins them, so the record must also be some time old.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from cdc.errors import LogUnreachableError
from cdc.log.offsets import MARKERS_S, LogReader
from cdc.log.state import read_claim
from cdc.reader.topics import ReadTopics
from cdc.records.dead_letters import PIECES_PARTITION, Claim
from cdc.records.schema import TableSchema
from cdc.records.topics import schema_topic
from cdc.settings import Settings

_AGAIN_S: Final = 0.2
Referred = TypeVar("Referred")


class References:
    """Finds the values and schemas of records. ``while_waiting`` may raise to give up."""

    def __init__(
        self,
        settings: Settings,
        topics: ReadTopics,
        while_waiting: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._while_waiting = while_waiting
        self._warn = warn

    def value(self, claim: Claim, ts_ms: int) -> bytes | None:
        """Return the value that a record of a time (ms since 1970) refers to.

        None: the log lost it.
        """
        kafka = self._settings.kafka
        return self._find(
            lambda: read_claim(kafka, claim, ts_ms, self._while_waiting),
            (claim.topic, PIECES_PARTITION),
            ts_ms,
        )

    def schema(self, table: str, version: int, ts_ms: int) -> TableSchema | None:
        """Return the schema of a record of a time. None: the log has none."""
        topic = schema_topic(self._settings.capture.topic_prefix)
        return self._find(lambda: self._topics.schema(table, version), (topic, 0), ts_ms)

    def _find(
        self, look: Callable[[], Referred | None], place: tuple[str, int], ts_ms: int
    ) -> Referred | None:
        """Return the result of a lookup, at the latest once everything it may need is visible."""
        if (referred := self._ask(look)) is not None:
            return referred
        self._ask(lambda: self._wait_until_shown(place))
        began = time.monotonic()
        while (referred := self._ask(look)) is None and self._may_come(ts_ms, began):
            self._while_waiting()
            time.sleep(_AGAIN_S)
        return referred

    def _may_come(self, ts_ms: int, began: float) -> bool:
        """Whether a reference's target may still arrive, as no transaction joins them."""
        is_joined = self._settings.log.delivery == "exactly_once"
        is_young = time.time() - ts_ms / 1_000 < MARKERS_S
        return not is_joined and is_young and time.monotonic() - began < MARKERS_S

    def _wait_until_shown(self, place: tuple[str, int]) -> None:
        reader = LogReader(self._settings.kafka, self._while_waiting)
        reader.wait_until_shown([place], self._warn)

    def _ask(self, ask: Callable[[], Referred]) -> Referred:
        """Ask brokers, and wait for unavailable ones, as everywhere in a reader."""
        while True:
            try:
                return ask()
            except LogUnreachableError as error:
                self._while_waiting()
                self._warn(f"waiting for the log: {error.what}")
