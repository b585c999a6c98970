"""[log] and the cluster → the copies of new topics, and the copies that existing ones lack.

A record is acknowledged when ``min.insync.replicas`` brokers have it. So it survives the loss of
all but one of them. https://kafka.apache.org/documentation/#topicconfigs_min.insync.replicas
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from cdc.errors import ConfigError
from cdc.kafka.admin import TopicDescription
from cdc.settings.model import LogSettings

MIN_ISR: Final = "min.insync.replicas"
_REPLICAS: Final = 3
_MIN_ISR: Final = 2


class Copies(NamedTuple):
    """The copies of a new topic, and how many of them acknowledge a record."""

    replication_factor: int
    min_isr: int


def copies_of(settings: LogSettings, brokers: int) -> Copies:
    """Return a new topic's copies: three, two of them in sync, or as many as the cluster allows.

    Raise ConfigError if more must be in sync than exist.
    """
    replicas = settings.topic_replication_factor or max(1, min(_REPLICAS, brokers))
    # With two copies, two in sync would let either broker stop all writing.
    min_isr = _MIN_ISR if replicas >= _REPLICAS else 1
    min_isr = settings.topic_min_insync_replicas or min_isr
    if min_isr > replicas:
        raise ConfigError(
            f"topic.min.insync.replicas = {min_isr} exceeds the copies of new topics ({replicas},"
            f" in a cluster of {brokers} brokers): no record could be written",
            where="topic.min.insync.replicas in [log]",
            remedy=f"set it to at most {replicas}, or remove it; or start the other brokers",
        )
    return Copies(replicas, min_isr)


def too_few(
    topics: Mapping[str, TopicDescription], brokers: int
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield topics with too few copies for their settings: what, remedy, their names."""
    # Kafka accepts records while it counts existing copies; before that it accepts none.
    short = [
        name
        for name, topic in topics.items()
        if 0 < topic.replicas < int(topic.config.get(MIN_ISR, "1"))
    ]
    if short:
        yield (
            f"topics have {MIN_ISR} above their copies: some releases then refuse every record",
            f"kafka-configs --alter --entity-type topics --entity-name … --add-config {MIN_ISR}=1",
            short,
        )
    if brokers < 2:
        return
    lone = [name for name, topic in topics.items() if topic.replicas == 1]
    if lone:
        yield (
            (
                "topics have one copy in a cluster of several brokers: if its broker fails, the"
                " topic is lost"
            ),
            (
                "add copies with kafka-reassign-partitions; for new topics set"
                " topic.replication.factor"
            ),
            lone,
        )
    few = [name for name, topic in topics.items() if 1 < topic.replicas < min(_REPLICAS, brokers)]
    if few:
        yield (
            "topics have two copies, but the cluster has brokers for three",
            f"add copies with kafka-reassign-partitions; with three, set {MIN_ISR}=2",
            few,
        )
    lax = [
        name
        for name, topic in topics.items()
        if topic.replicas >= _REPLICAS and topic.config.get(MIN_ISR) == "1"
    ]
    if lax:
        yield (
            f"topics have {MIN_ISR} = 1: a record counts as written once a single broker has it",
            f"kafka-configs --alter --entity-type topics --entity-name … --add-config {MIN_ISR}=2",
            lax,
        )
