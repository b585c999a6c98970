"""Errors of librdkafka and brokers → errors that a user can solve, without secrets.

A transaction distinguishes three kinds: *retriable* (the same call is resumed), *abortable* (the
transaction is lost, the producer lives) and *fatal* (the producer is lost). KafkaError itself has
the kind. This file derives the meaning for the user from its name.
https://docs.confluent.io/platform/current/clients/librdkafka/html/md_INTRODUCTION.html
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from cdc.errors import (
    ConfigError,
    FencedError,
    LogAccessError,
    LogUnreachableError,
    MillraceError,
    RecordRefusedError,
    TopicMismatchError,
)

_ACCESS: Final = frozenset({
    "_AUTHENTICATION",
    "_SSL",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
})  # fmt: skip
_FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"})
_REFUSED: Final = _TOO_LARGE | {
    "INVALID_RECORD",
    "INVALID_MSG",
    "INVALID_TIMESTAMP",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
}
_TOPIC: Final = frozenset({
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "UNKNOWN_TOPIC_OR_PART",
    "TOPIC_EXCEPTION",
    "POLICY_VIOLATION",
})  # fmt: skip
_CONFIG: Final = frozenset({
    "_INVALID_ARG",
    "INVALID_CONFIG",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_PARTITIONS",
    "INVALID_TRANSACTION_TIMEOUT",
    "UNSUPPORTED_VERSION",
    "_UNSUPPORTED_FEATURE",
})  # fmt: skip
_PASSING: Final = frozenset({
    "BROKER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "LISTENER_NOT_FOUND",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_LEADER_EPOCH",
    "_ALL_BROKERS_DOWN",
    "_DESTROY",  # of a broker's connection that the cluster has replaced
    "_LEADER_CHANGE",
    "_NODE_UPDATE",
    "_RESOLVE",
    "_RETRY",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_WAIT_CACHE",
    "_WAIT_COORD",
})  # fmt: skip
"""Transient errors: leaders that move, brokers that restart, networks that hang.

Kafka's retriable errors (https://kafka.apache.org/protocol#protocol_error_codes), except an unknown
topic, and librdkafka's own of that kind. KafkaError.retriable() applies only to transactions.
"""

COMPLAINTS_MAX: Final = 20
"""How many of a client's latest complaints are kept to explain a failure."""
_ACCESS_REMEDY: Final = (
    "check security.protocol, sasl.* and ssl.* in [kafka], and the user's rights: Describe,"
    " Read, Write, Create and DescribeConfigs on topics, Write on both transactional ids"
)
_KINDS: Final[tuple[tuple[frozenset[str], type[MillraceError], str], ...]] = (
    (_ACCESS, LogAccessError, _ACCESS_REMEDY),
    (_REFUSED, RecordRefusedError, ""),
    (_TOPIC, TopicMismatchError, "check the topic, and the broker's policy for new topics"),
    (_CONFIG, ConfigError, "change it in [kafka] or [log]"),
)
"""Names of errors → their class for the user, and the remedy."""
_OPTION: Final = re.compile(r'property "([^"]+)"')
_SECRET_WORDS: Final = ("password", "secret", ".pem", "jaas", "sasl.oauthbearer.config")


def reason(exception: KafkaException) -> KafkaError:
    """Return the KafkaError that the exception wraps."""
    error = exception.args[0]
    if not isinstance(error, KafkaError):
        raise TypeError(f"not a KafkaError: {error!r}") from exception
    return error


def is_refusal(error: KafkaError) -> bool:
    """Whether the broker will never take the record."""
    return error.name() in _REFUSED


def is_too_large(error: KafkaError) -> bool:
    """Whether the record or its batch exceeds a limit of client, topic or broker."""
    return error.name() in _TOO_LARGE


def is_fencing(error: KafkaError) -> bool:
    """Whether the producer's epoch is no longer the newest."""
    return error.name() in _FENCED


def is_access(error: KafkaError) -> bool:
    """Whether another attempt needs corrected credentials, TLS or rights."""
    return error.name() in _ACCESS


def is_passing(error: KafkaError) -> bool:
    """Whether the same request may succeed later without a change by a user."""
    return error.name() in _PASSING or error.retriable()


def telling(error: KafkaError | None, complaints: Iterable[KafkaError]) -> KafkaError | None:
    """Return the most specific error of a failed call: the client's complaint, or the last."""
    specific = [complaint for complaint in complaints if complaint.name() != "_ALL_BROKERS_DOWN"]
    if error is not None and (is_access(error) or not specific):
        return error
    refused = [complaint for complaint in specific if is_access(complaint)]
    return next(reversed(refused or specific), None)


def log_error(
    error: KafkaError, doing: str, where: str = "", *, connected: bool = True
) -> MillraceError:
    """Return the error for the user. An error without a class means that the log is unreachable.

    ``connected``: a broker has answered this client before, so bootstrap.servers is right.
    """
    name, what = error.name(), f"{doing} failed: {error.str()}"
    if name in _FENCED:
        return FencedError(
            "another daemon writes with the same transactional.id",
            where=where or doing,
            remedy="run one daemon per slot; give each daemon its own slot or topic.prefix",
        )
    for names, kind, remedy in _KINDS:
        if name in names:
            return kind(what, where=where, remedy=remedy)
    remedy = "check that the brokers run; read their logs"
    if not connected or name == "_RESOLVE":
        remedy = "check that the brokers run and that bootstrap.servers is right"
    return LogUnreachableError(what, where=where, remedy=remedy)


def option_error(error: KafkaError, options: Mapping[str, str]) -> ConfigError:
    """Return the error for the options of [kafka]. It names the option, never its value."""
    text = error.str()
    named = _OPTION.search(text)
    if named and text.startswith("No such"):
        what = f"Kafka's client has no option {named[1]}"
    elif named:
        # librdkafka calls linger.ms queue.buffering.max.ms, for example.
        alias = "" if named[1] in options else ", or of its alias"
        what = f"the value of {named[1]}{alias} isn't valid"
    else:
        what = _without_secrets(text, options)
    return ConfigError(
        what,
        where="[kafka]",
        remedy="https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md lists "
        "every option",
    )


def _without_secrets(text: str, options: Mapping[str, str]) -> str:
    for name, value in options.items():
        if value and any(word in name for word in _SECRET_WORDS):
            text = text.replace(value, "…")
    return text
