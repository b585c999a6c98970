"""librdkafka's options ([kafka]) → those of Spark's Kafka source (Kafka's Java client).

Every option is mapped, known to be irrelevant for a reader, or refused. None is dropped silently.
https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md and
https://kafka.apache.org/documentation/#consumerconfigs name both sides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.errors import ConfigError

SAME_NAME: Final = frozenset({
    "bootstrap.servers",
    "allow.auto.create.topics",
    "client.dns.lookup",
    "client.id",
    "connections.max.idle.ms",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
})  # fmt: skip
"""Options with the same name in both clients."""

RENAMED: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.mechanism": "sasl.mechanism",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "ssl.key.password": "ssl.key.password",
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
}
"""Options with another name, or with a value that needs a check (password of a key, time-outs)."""

PRODUCER_ONLY: Final = frozenset({
    "acks",
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "linger.ms",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "partitioner",
    "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "sticky.partitioning.linger.ms",
    "transaction.timeout.ms",
    "transactional.id",
})  # fmt: skip
"""Options of the daemon's producer, which are irrelevant for a reader."""

LIBRDKAFKA_ONLY: Final = frozenset({
    "api.version.request",
    "broker.address.family",
    "broker.address.ttl",
    "broker.version.fallback",
    "debug",
    "enable.ssl.certificate.verification",
    "log_level",
    "log.connection.close",
    "log.thread.name",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
    "ssl.ca.certificate.stores",
    "statistics.interval.ms",
    "topic.metadata.refresh.interval.ms",
})  # fmt: skip
"""Options of the C library's internals, without a counterpart that a reader needs."""

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_CREDENTIALS: Final = frozenset({"sasl.username", "sasl.password"})
_PEM: Final = {
    "ssl.ca": "ssl.truststore.certificates",
    "ssl.certificate": "ssl.keystore.certificate.chain",
    "ssl.key": "ssl.keystore.key",
}


_FETCH_WAIT_MS: Final = 20
"""How long a broker may wait at a partition's end; the default is half a second.

A partition that ends with a transaction's marker takes one more fetch, which waits this long, for
every partition of every table.
"""
_BOUNDED_READ: Final = {
    "fetch.max.wait.ms": str(_FETCH_WAIT_MS),
    "receive.buffer.bytes": str(1 << 20),
    # A reader that meets the deletion of a topic would create it again, with the broker's settings.
    "allow.auto.create.topics": "false",
}
"""The Java client's defaults suit endless streams. A run reads up to known offsets.

Its ``max.partition.fetch.bytes`` (1 MiB, compressed) and ``max.poll.records`` (500) stay: each task
keeps this much of its partition in memory, and more makes no read faster.
"""


def spark_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options for ``spark.read.format("kafka")``. Raise ConfigError for unknown ones."""
    java: dict[str, str] = {}
    for name, value in options.items():
        if name in SAME_NAME:
            java[name] = value
        elif name in RENAMED:
            java[RENAMED[name]] = value
        elif name not in PRODUCER_ONLY | LIBRDKAFKA_ONLY | _CREDENTIALS and not _is_pem(name):
            raise ConfigError(
                f"Spark's Kafka reader has no option like {name}",
                where="[kafka]",
                remedy="remove it; docs/reference/configuration.md lists the options that merges"
                " accept",
            )
    _refuse_unverified(options)
    if "security.protocol" in java:
        java["security.protocol"] = java["security.protocol"].upper()
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    java |= _sasl(options) | _certificates(options)
    return {f"kafka.{name}": value for name, value in (_BOUNDED_READ | java).items()}


def _is_pem(name: str) -> bool:
    return name.rpartition(".")[0] in _PEM and name.rpartition(".")[2] in {"location", "pem"}


def _refuse_unverified(options: Mapping[str, str]) -> None:
    if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise ConfigError(
            "Spark's Kafka reader always verifies the broker's certificate",
            where="[kafka] enable.ssl.certificate.verification",
            remedy="set ssl.ca.location to the authority that signed it",
        )


def _sasl(options: Mapping[str, str]) -> dict[str, str]:
    if "sasl.username" not in options:
        return {}
    mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism not in _MODULES:
        raise ConfigError(
            f"the mechanism {mechanism} doesn't use a user name and a password",
            where="[kafka] sasl.mechanism",
            remedy=f"use one of {', '.join(sorted(_MODULES))}",
        )
    user, password = _quoted(options["sasl.username"]), _quoted(options.get("sasl.password", ""))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_MODULES[mechanism]} required username={user} password={password};",
    }


def _quoted(value: str) -> str:
    """Return a quoted value of a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(options: Mapping[str, str]) -> dict[str, str]:
    """Return PEM files as text, so that executors on other machines need no files."""
    java = {
        target: pem
        for name, target in _PEM.items()
        if (pem := options.get(f"{name}.pem") or _read(options.get(f"{name}.location"), name))
    }
    if "ssl.truststore.certificates" in java:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in java:
        java["ssl.keystore.type"] = "PEM"
    elif "ssl.keystore.location" in options:
        java["ssl.keystore.type"] = "PKCS12"  # librdkafka reads no other form
    return java


def _read(location: str | None, name: str) -> str | None:
    if location is None or location == "probe":
        return None
    path = Path(location)
    try:
        files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
        return "\n".join(file.read_text(encoding="utf-8") for file in files)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"can't read the file: {error.__class__.__name__}",
            where=f"[kafka] {name}.location = {location}",
        ) from None
