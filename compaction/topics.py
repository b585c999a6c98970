"""Topics → a report on each: whether they keep what log.keep promises, and are compacted.

Settings are compared with those of topics that the daemon creates. Records show whether the cleaner
works: if a state topic has records that were superseded long ago, it isn't compacted, whatever its
settings are.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.kafka.admin import LogAdmin
from cdc.kafka.topic_settings import setting_findings
from cdc.log.state import read_oldest
from cdc.records.state import TableState
from cdc.records.topics import (
    Cleanup,
    made_topic,
    progress_topic,
    schema_topic,
    status_topic,
    table_topic,
)
from cdc.settings import Settings

CLEANED_WITHIN_S: Final = 3_600
"""A state topic's segment is closed after ten minutes; the cleaner has the rest of the hour."""
SAMPLE_RECORDS: Final = 500


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic as the broker has it. ``offsets`` also counts transaction markers and gaps."""

    name: str
    policy: str
    offsets: int
    findings: tuple[str, ...]


def examine(settings: Settings, states: Iterable[TableState]) -> list[TopicReport]:
    """Report on the state topics and on the topics of all tables. Without findings, all is well."""
    prefix = settings.capture.topic_prefix
    own = [topic_name(prefix) for topic_name in (progress_topic, schema_topic, table_topic)]
    recorded = {state.topic: state for state in states if state.is_in_log}
    admin = LogAdmin(settings.kafka)
    # The first is missing if all topics existed before Millrace; the second, without the rights.
    beside = [made_topic(prefix), status_topic(prefix)]
    topics = admin.describe([*own, *beside, *recorded])
    own += [name for name in beside if name in topics]
    offsets = admin.offsets({name: topic.partitions for name, topic in topics.items()})
    keep_ms = int(settings.log.keep.total_seconds() * 1_000)
    without_cleaner = _brokers_without_cleaner(admin.broker_settings())
    reports = []
    for name in [*own, *recorded]:
        topic = topics.get(name)
        if topic is None:
            reports.append(TopicReport(name, "", 0, ("the topic doesn't exist",)))
            continue
        state = recorded.get(name)
        cleanup: Cleanup = state.cleanup if state else "compact"
        partitions = state.partitions if state else 1
        findings = [
            finding
            for *_, finding in setting_findings(cleanup, topic.config, keep_ms if state else 0)
        ]
        if topic.partitions != partitions:
            findings.append(f"has {topic.partitions} partitions, not {partitions}")
        if cleanup == "compact":
            findings += without_cleaner
        if state is None:
            findings += _superseded(settings.kafka, name)
        span = sum(end - first for first, end in offsets[name])
        policy = topic.config.get("cleanup.policy", "")
        reports.append(TopicReport(name, policy, span, tuple(findings)))
    return reports


def _brokers_without_cleaner(brokers: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"broker {broker} doesn't compact: log.cleaner.enable=false"
        for broker, config in brokers.items()
        if config.get("log.cleaner.enable") == "false"
    ]


def _superseded(kafka_options: Mapping[str, str], topic: str) -> list[str]:
    """Report old records before newer ones of their key, which compaction would remove."""
    limit_ms = (time.time() - CLEANED_WITHIN_S) * 1_000
    newest: dict[bytes | None, int] = {}
    for key, timestamp_ms in read_oldest(kafka_options, topic, SAMPLE_RECORDS):
        if key in newest and timestamp_ms < limit_ms:
            return [
                ("isn't compacted: it still has records that were superseded more than an hour ago")
            ]
        newest[key] = timestamp_ms
    return []
