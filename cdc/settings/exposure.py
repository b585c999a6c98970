"""Sections of the settings → the connections that others on the network can read or answer.

Libraries connect in plain text by default, without a message. A socket in the file system and an
address of this machine itself don't count as a network.
"""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from cdc.settings.kinds import LibraryOptions
from cdc.settings.search import SearchSettings

_LIBPQ: Final = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "gssencmode": "PGGSSENCMODE",
}
"""Keywords that decide whether and how a connection is encrypted → the variable that sets each."""
_MAYBE_PLAIN: Final = frozenset({"disable", "allow", "prefer"})
"""libpq's modes that use plain text with a server, or an attacker, that offers no TLS."""
_ROOT: Final = Path("~/.postgresql/root.crt")
_KAFKA_TLS: Final = frozenset({"ssl", "sasl_ssl"})
_FALSE: Final = frozenset({"false", "f", "0"})
_REGISTRY_URL: Final = "schema.registry.url"
_CREDENTIALS: Final = ("basic.auth.user.info", "bearer.auth.")


class Exposure(NamedTuple):
    """A setting that lets others on the network read along, or answer as the server.

    ``is_plain``: even passive listeners can read.
    """

    where: str
    what: str
    remedy: str
    is_plain: bool = True

    def __str__(self) -> str:
        return f"{self.where} {self.what}: {self.remedy}"


def is_local(host: str) -> bool:
    """Whether a host is this machine, by its name or address alone. Looks nothing up."""
    name = host.strip("[]").lower()
    if name.startswith(("/", "@")):  # libpq's sockets of the file system
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def of_source(section: str, keywords: LibraryOptions) -> Iterator[Exposure]:
    """Yield the exposures of libpq's keywords, and of the variables that replace them.

    A service's file takes precedence over variables, and isn't read here. Its contents are unknown,
    so with a service only keywords count.
    """
    service = keywords.get("service", os.environ.get("PGSERVICE", ""))
    variables = {} if service else os.environ
    given = {
        keyword: keywords.get(keyword, variables.get(variable, ""))
        for keyword, variable in _LIBPQ.items()
    }
    hosts, addresses = given["host"].split(","), given["hostaddr"].split(",")
    paired = [address or host for host, address in zip_longest(hosts, addresses, fillvalue="")]
    remote = [host for host in paired if host and not is_local(host)]
    if service and not all(addresses):
        remote.append(f"the hosts of the service {service}")
    if not remote:
        return
    there = ", ".join(remote)
    mode = given["sslmode"] or "prefer"
    if mode in _MAYBE_PLAIN:
        if given["gssencmode"] != "require":
            yield Exposure(
                section,
                f"may send the password and rows to {there} in plain text (sslmode = {mode})",
                'set sslmode = "verify-full", and sslrootcert to the authority\'s file',
            )
    elif mode == "require" and not (given["sslrootcert"] or _has_own_authority()):
        yield Exposure(
            section,
            f"encrypts, but doesn't check the server's identity at {there} (sslmode = {mode})",
            'set sslmode = "verify-full", and sslrootcert to the authority\'s file',
            is_plain=False,
        )


def _has_own_authority() -> bool:
    """Whether libpq finds a file of authorities in the user's home.

    An unreadable one counts as none.
    """
    try:
        return _ROOT.expanduser().exists()
    except (OSError, RuntimeError):  # no right to look there, or no home at all
        return False


def of_kafka(options: LibraryOptions) -> Iterator[Exposure]:
    """Yield the exposures of librdkafka's options, which Spark's reader also uses."""
    brokers = [broker.strip() for broker in options.get("bootstrap.servers", "").split(",")]
    remote = [broker for broker in brokers if broker and not is_local(_broker_host(broker))]
    if not remote:
        return
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in _KAFKA_TLS:
        sent = "the password and records" if "sasl" in protocol else "records"
        secure = "SASL_SSL" if "sasl" in protocol else "SSL"
        yield Exposure(
            "[kafka]",
            f"sends {sent} to {', '.join(remote)} in plain text (security.protocol ="
            f" {protocol.upper()})",
            f'set security.protocol = "{secure}", and ssl.ca.location if the system doesn\'t know'
            " the authority",
        )
    elif (
        options.get("enable.ssl.certificate.verification", "true").lower() in _FALSE
        or options.get("ssl.endpoint.identification.algorithm", "https").lower() == "none"
    ):
        yield Exposure(
            "[kafka]",
            f"encrypts, but doesn't check the server's identity at {', '.join(remote)}",
            "remove enable.ssl.certificate.verification and"
            " ssl.endpoint.identification.algorithm, and set ssl.ca.location",
            is_plain=False,
        )


def registry_urls(options: LibraryOptions) -> list[str]:
    """Return the names of the options with registries' addresses. Each side has its own."""
    return sorted(name for name in options if name.endswith(_REGISTRY_URL))


def of_registry(options: LibraryOptions) -> Iterator[Exposure]:
    """Yield the exposures of the converters' options for the schema registry."""
    has_password = any(credential in name for name in options for credential in _CREDENTIALS)
    for name in registry_urls(options):
        for address in options[name].split(","):
            url = urlsplit(address.strip())
            with_password = has_password or url.username is not None
            sent = "the password and schemas" if with_password else "schemas"
            yield from _plain_http("[format]", name, url, sent)


def of_search(search: SearchSettings | None) -> Iterator[Exposure]:
    """Yield the exposure of a search server that uses plain HTTP."""
    if search is None:
        return
    url = urlsplit(search.url)
    has_password = search.username or search.api_key or url.username is not None
    sent = "the password and documents" if has_password else "documents"
    yield from _plain_http("[search]", "url", url, sent)


def _plain_http(section: str, name: str, url: SplitResult, sent: str) -> Iterator[Exposure]:
    host = url.hostname or ""
    if url.scheme.lower() == "http" and not is_local(host):
        yield Exposure(
            section, f"sends {sent} to {host} in plain text ({name} = http://…)", "use https://"
        )


def _broker_host(broker: str) -> str:
    """Return the host of ``host``, ``host:port`` or ``protocol://host:port``, as in librdkafka."""
    address = broker.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() and not address.endswith("]") else address


def exposures(
    sources: Mapping[str, LibraryOptions],
    kafka: LibraryOptions,
    registry: LibraryOptions,
    search: SearchSettings | None,
) -> list[Exposure]:
    """Return all exposures. ``sources`` are by the names of their sections."""
    of_servers = [each for name, source in sources.items() for each in of_source(name, source)]
    return [*of_servers, *of_kafka(kafka), *of_registry(registry), *of_search(search)]
