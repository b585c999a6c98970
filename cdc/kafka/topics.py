"""Captured tables → topics with the promised partitions and settings.

Missing topics are created with explicit settings. Existing ones are verified and never altered,
because readers rely on their original settings. docs/decisions/0003-state-topics.md.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from cdc.errors import ConfigError, LogAccessError, TopicMismatchError
from cdc.kafka.admin import LogAdmin, TopicDescription, do_nothing
from cdc.kafka.copies import too_few
from cdc.kafka.errors import is_passing, log_error
from cdc.kafka.grants import hidden_topic
from cdc.kafka.making import EXISTS, TopicMaker
from cdc.kafka.options import BATCH_BYTES, MESSAGE_BYTES_MAX
from cdc.kafka.record_times import LATE_MS, OWN_TIME, RecordTimes, TimeLimits, time_limits
from cdc.kafka.topic_settings import STATE_CONFIG, STATUS_CONFIG, TopicTable, WantedTopic
from cdc.kafka.wanted_topics import (
    channel_mismatches,
    data_config,
    state_topics,
    topic_mismatches,
    topics_beside,
    wanted_topic,
)
from cdc.lines import Lines, name_first
from cdc.records.state import TableState
from cdc.records.topics import (
    Cleanup,
    data_topic,
    runs_topic,
    status_topic,
)
from cdc.settings import Settings

log = structlog.get_logger()

SHOWN_MAX: Final = 20
_SIGHT_S: Final = 5.0
"""How long brokers may take to see a topic that another client has created."""
_AT_ONCE: Final = 100
"""A busy broker needs that time again for each 100 topics."""
_SIGHT_RETRY_S: Final = 0.2


class TopicLimits(NamedTuple):
    """A topic's limits: bytes of a batch, keyless records or not, times of records."""

    bytes_max: int
    keyless: bool
    times: TimeLimits = TimeLimits()


class LogTopics:
    """Creates and verifies the topics of one topic.prefix.

    ``limits`` are those of described topics. The client's own limit also counts.
    """

    def __init__(self, settings: Settings, while_waiting: Callable[[], None] = do_nothing) -> None:
        self.while_waiting = while_waiting
        self._prefix = settings.capture.topic_prefix
        self._log = settings.log
        self._lossless = settings.capture.lossless
        self._kafka = settings.kafka
        self._beside = topics_beside(settings.capture)
        self._signals = settings.capture.signal_topic
        self._notifications = settings.capture.notification_topic
        self._opened: set[str] = set()
        self._has_own_times = any(OWN_TIME in plugin.options for plugin in settings.transforms)
        self.limits: dict[str, TopicLimits] = {}
        self._keep_ms = int(settings.log.keep.total_seconds() * 1_000)
        self._data_config = data_config(settings.kafka)
        self._record_bytes_max = self._data_config["max.message.bytes"]
        self._admin = LogAdmin(settings.kafka, while_waiting)
        self._maker = TopicMaker(settings, self._admin, while_waiting)
        self.record_times = RecordTimes(self.limits, self._keep_ms, self._admin.servers)

    def check_reachable(self) -> None:
        """Raise LogUnreachableError or LogAccessError unless a broker answers within seconds."""
        self._admin.partitions()

    def ensure_state_topics(self) -> None:
        """Create the progress, schema and table topics, or verify existing ones.

        Also those of dead letters and claims, if the settings allow any. Heads are in the first
        partition, their contents in the second. Compaction keeps those without an outcome.
        """
        self._ensure(state_topics(self._prefix), STATE_CONFIG, keep_ms=0)
        if self._notifications is not None:
            self._ensure_channel(self._notifications)
        try:
            self._ensure_channel(self._signals)
        except (LogAccessError, TopicMismatchError) as error:
            log.warning(
                "the topic can't be read: the daemon gets no signals from it and no requests of"
                " `millrace snapshot`",
                topic=self._signals,
                reason=error.what,
                remedy=error.remedy,
            )
        self._ensure_report_topics()
        if self._beside:
            self._ensure(self._beside, self._data_config, self._keep_ms)

    def _ensure_report_topics(self) -> None:
        """Create or verify the topics of reports. The log is complete without them."""
        try:
            self.ensure_report_topics()
        except (LogAccessError, TopicMismatchError) as error:
            log.warning("no run can report", reason=error.what, remedy=error.remedy)

    def ensure_report_topics(self) -> None:
        """Create or verify the topics of sinks' and the daemon's reports.

        They keep the newest state.
        """
        status = WantedTopic(status_topic(self._prefix), 1, "compact", content="reports")
        self._ensure([status], STATUS_CONFIG, keep_ms=0)
        self._ensure_channel(runs_topic(self._prefix), self._keep_ms)

    def _ensure_channel(self, name: str, keep_ms: int | None = None) -> None:
        """Create a topic of signals, for example. An existing one stays unchanged.

        ``keep_ms``: how long the topic must keep its records, if that matters.
        """
        topic = self._admin.describe([name]).get(name)
        if topic is None:
            self._create([WantedTopic(name, 1, "delete")], {}, self._keep_ms)
        else:
            for what, remedy in channel_mismatches(name, topic, self._admin.servers, keep_ms):
                log.warning("a topic has wrong settings", reason=what, remedy=remedy)
        self._opened.add(name)

    def writer_options(self, tables: Iterable[TopicTable], *, fits: bool = False) -> dict[str, str]:
        """Return the options of a writer. ``fits``: all tables' topics take its batches.

        A topic's limit applies to batches. If refused records are replaced, or their table is set
        aside, only a single record may exceed it.
        """
        options = dict(self._kafka)
        if self._beside or fits:
            names = [data_topic(self._prefix, table.name) for table in tables]
            beside = [topic.name for topic in self._beside]
            descriptions = self._admin.describe([*names, *beside]).values()
            batch_bytes = int(options.get("batch.size", BATCH_BYTES))
            options["batch.size"] = str(min([batch_bytes, *map(_batch_bytes_max, descriptions)]))
        return options

    def refresh_limits(self, names: Iterable[str]) -> None:
        """Read these topics' limits again."""
        own = int(self._record_bytes_max)
        for name, topic in self._admin.describe(names).items():
            if name in self.limits:
                keyless = self.limits[name].keyless
                cleanup: Cleanup = "delete" if keyless else "compact"
                times = time_limits(cleanup, topic.config, self._keep_ms)
                self.limits[name] = TopicLimits(min(_batch_bytes_max(topic), own), keyless, times)

    def ensure_data_topics(
        self,
        states: Iterable[TableState],
        tables: Iterable[TopicTable],
        kept: Iterable[TopicTable] = (),
    ) -> None:
        """Create or verify the tables' topics. A recorded topic takes precedence over the settings.

        Topics of ``kept`` tables stay unchanged, even if the tables have changed.
        """
        recorded = {state.name: state for state in states}
        wanted = {
            state.topic: WantedTopic(state.topic, state.partitions, state.cleanup, recorded=True)
            for state in (recorded[table.name] for table in kept)
        }
        for table in tables:
            topic = wanted_topic(self._prefix, self._log, table, recorded.get(table.name))
            if topic.name in wanted and self._lossless:
                raise ConfigError(
                    f"two captured tables would share the topic {topic.name}, one of them"
                    f" {table.name}: Millrace replaces characters that Kafka doesn't allow by _",
                    where="table.include.list",
                    remedy="leave one of them out, or capture it with another topic.prefix",
                )
            wanted[topic.name] = topic
        self._ensure(wanted.values(), self._data_config, self._keep_ms)

    def open_topic(self, name: str, cleanup: Cleanup = "delete") -> None:
        """Create or verify one topic that is new since the start. Does nothing for an open one.

        For a new table, and for topics of no table: transactions, heartbeats, messages, routes.
        """
        if name not in self._opened:
            topic = WantedTopic(name, self._log.topic_partitions, cleanup)
            has_own_times = self._has_own_times and cleanup == "delete"
            longer = {"retention.ms": str(self._keep_ms + LATE_MS)} if has_own_times else {}
            self._ensure([topic], self._data_config | longer, self._keep_ms)
            self._opened.add(name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete the named topics. A missing one is no error."""
        failed = self._admin.delete(names)
        for name, error in failed.items():
            if error.name() != "UNKNOWN_TOPIC_OR_PART":
                raise log_error(error, "deleting a topic", f"topic {name}")

    def _ensure(
        self, topics: Iterable[WantedTopic], config: Mapping[str, str], keep_ms: int
    ) -> None:
        wanted = {topic.name: topic for topic in topics}
        existing = self._admin.describe(wanted)
        missing = [topic for name, topic in wanted.items() if name not in existing]
        servers = self._admin.servers
        mismatches = [
            f"{what}\n    → {remedy}"
            for topic in (*missing, *(wanted[name] for name in existing))
            for what, remedy in topic_mismatches(topic, existing.get(topic.name), keep_ms, servers)
        ]
        if mismatches:
            raise TopicMismatchError(
                Lines("\n  ".join(["topics have wrong settings:", *mismatches[:SHOWN_MAX]])),
                where=f"{len(mismatches)} finding{'s' if len(mismatches) > 1 else ''}",
            )
        self._create(missing, config, keep_ms)
        # Brokers' default limits for times can differ from Kafka's.
        own_times = [topic.name for topic in missing if self._has_own_times]
        made = self._admin.describe(own_times) if own_times else {}
        self._note(wanted.values(), {**existing, **made}, config)
        self._warn_of_copies(existing)

    def _note(
        self,
        wanted: Iterable[WantedTopic],
        existing: Mapping[str, TopicDescription],
        config: Mapping[str, str],
    ) -> None:
        """Record the topics' limits. Warn of topics that take less than the client sends."""
        own = int(self._record_bytes_max)
        lower: dict[str, int] = {}
        for topic in wanted:
            has = existing[topic.name].config if topic.name in existing else config
            limit = _batch_bytes_max(existing[topic.name]) if topic.name in existing else own
            times = time_limits(topic.cleanup, has, self._keep_ms)
            keyless = topic.cleanup == "delete"
            self.limits[topic.name] = TopicLimits(min(limit, own), keyless, times)
            if limit < own and "max.message.bytes" in config:
                lower[topic.name] = limit
        if lower:
            log.warning(
                "topics have a lower max.message.bytes than [kafka] message.max.bytes",
                message_max_bytes=own,
                topics=name_first(f"{name} ({limit})" for name, limit in lower.items()),
            )

    def _warn_of_copies(self, existing: Mapping[str, TopicDescription]) -> None:
        for what, remedy, names in too_few(existing, self._maker.brokers):
            log.warning(what, topics=name_first(names), number=len(names), remedy=remedy)

    def _create(self, topics: list[WantedTopic], config: Mapping[str, str], keep_ms: int) -> None:
        """Create topics, and record each before as Millrace's own."""
        if not topics:
            return
        self._maker.write_down([topic.name for topic in topics])
        unclear: set[str] = set()
        failed = self._maker.make(topics, config, keep_ms, unclear)
        # The topic isn't ours, or wasn't created. Without an answer, it may be ours.
        if foreign := [name for name, error in failed.items() if not is_passing(error)]:
            self._maker.write_down(foreign, made=False)
        raced = [topic for topic in topics if topic.name in failed]
        for name, error in failed.items():
            if error.name() != EXISTS:
                raise log_error(error, "creating a topic", f"topic {name}")
        if raced:  # another program was faster: its topic must equal ours
            self._await_sight([topic.name for topic in raced])
            self._ensure(raced, config, keep_ms)
        for topic in topics:
            if topic.name in unclear:
                self._claim(topic, config, keep_ms)

    def _await_sight(self, names: list[str]) -> None:
        """Wait until brokers see existing topics. Raise LogAccessError if they never do."""
        patience_s = _SIGHT_S * (1 + len(names) / _AT_ONCE)
        deadline, before = time.monotonic() + patience_s, len(names)
        while hidden := set(names) - self._admin.describe(names).keys():
            if len(hidden) < before:
                deadline, before = time.monotonic() + patience_s, len(hidden)
            if time.monotonic() > deadline:
                raise hidden_topic(min(hidden), self._admin.servers, self._prefix)
            self.while_waiting()
            time.sleep(_SIGHT_RETRY_S)

    def _claim(self, topic: WantedTopic, config: Mapping[str, str], keep_ms: int) -> None:
        """Verify a topic that we, or another program before our answer, have created."""
        try:
            self._ensure([topic], config, keep_ms)
        except TopicMismatchError:
            self._maker.write_down([topic.name], made=False)
            raise


def _batch_bytes_max(topic: TopicDescription) -> int:
    return int(topic.config.get("max.message.bytes", MESSAGE_BYTES_MAX))
