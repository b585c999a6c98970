"""A subject and a schema ⇄ the schema's id, from a registry with Confluent's interface.

Each subject and schema takes one request, as Confluent's client caches the answer. It retries
briefly while the registry is busy or unavailable, but not longer than PostgreSQL waits for a sign
of life from us. Then the daemon starts over, with back-off.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from cdc.errors import ConfigError, RegistryError, RegistryUnreachableError, SchemaRefusedError

T = TypeVar("T")

PREFIX: Final = "schema.registry."
_UNPREFIXED: Final = ("basic.auth.user.info", "basic.auth.credentials.source")
"""Confluent's converter takes these with and without the prefix."""
_WAITS: Final[Mapping[str, float]] = {
    "timeout": 2.0,
    "max.retries": 2,
    "retries.wait.ms": 100,
    "retries.max.wait.ms": 500,
}
"""7 s at worst for one address: wal_sender_timeout is 10 s."""
_USER_INFO: Final = re.compile(r"//[^/]*@")
_CONFLICT: Final = 409
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_MESSAGE_LENGTH_MAX: Final = 600
_CREDENTIALS: Final = (
    "refuses the credentials",
    (
        "set schema.registry.basic.auth.user.info to user:password of a user who may register"
        " schemas"
    ),
)
_ANSWERS: Final[Mapping[int, tuple[str, str]]] = {
    401: _CREDENTIALS,
    403: _CREDENTIALS,
    404: (
        "doesn't have this",
        (
            "check the path in schema.registry.url (Apicurio: /apis/ccompat/v7); with"
            " auto.register.schemas = false, register the schema first"
        ),
    ),
    _CONFLICT: (
        "rejects the new schema as incompatible",
        (
            "prepare consumers for the changed table; then set the subject's compatibility to"
            " NONE for one start, or delete the subject"
        ),
    ),
}
"""HTTP status → the registry's action, and the remedy."""

_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""OpenSSL's text for a certificate that no known authority has signed."""


class Registry:
    """One registry, by ``schema.registry.url`` and the client's other options."""

    def __init__(self, options: Mapping[str, str], *, auto_register: bool = True) -> None:
        client = _client_options(options)
        self._where = "schema registry " + _USER_INFO.sub("//", str(client["url"]))
        self._auto_register = auto_register
        try:
            self._client = SchemaRegistryClient(client)
        except (ValueError, TypeError, OSError) as error:
            # The error names options, but an address in it can contain a password.
            raise ConfigError(
                "the options of the schema registry aren't valid:"
                f" {_USER_INFO.sub('//', str(error))}",
                where=self._where,
                remedy="docs/reference/formats.md lists them",
            ) from None

    def check(self) -> None:
        """Request the registry's settings, to check that it answers and accepts our credentials."""
        self._request("", self._client.get_config)

    def id_of(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema. Registers it if necessary."""
        avro = Schema(schema, "AVRO")
        if self._auto_register:
            return self._request(subject, lambda: self._register(subject, avro))
        registered = self._request(subject, lambda: self._client.lookup_schema(subject, avro))
        if registered.schema_id is None:
            raise RegistryError("the schema registry's answer has no id", where=self._where)
        return registered.schema_id

    def text_of(self, number: int) -> str:
        """Return the Avro schema of an id, to read records of other writers."""
        schema = self._request(f"of schema {number}", lambda: self._client.get_schema(number))
        if (
            schema.schema_str is None
            or schema.schema_type not in {None, "AVRO"}
            or schema.references
        ):
            raise RegistryError(
                f"schema {number} isn't a self-contained Avro schema",
                where=self._where,
                remedy="write the topics with Confluent's AvroConverter",
            )
        return str(schema.schema_str)

    def _register(self, subject: str, avro: Schema) -> int:
        try:
            return self._client.register_schema(subject, avro)
        except SchemaRegistryError as error:
            if error.http_status_code != _CONFLICT:
                raise
            # The client repeats a request whose answer is late; the first one may have registered
            # it.
            try:
                schema_id = self._client.lookup_schema(subject, avro).schema_id
            except SchemaRegistryError:
                schema_id = None
            if schema_id is None:
                raise
            return schema_id

    def _request(self, subject: str, question: Callable[[], T]) -> T:
        try:
            return question()
        except SchemaRegistryError as error:
            raise self._refused(subject, error) from None
        except httpx2.TransportError as error:
            if _UNTRUSTED in str(error):
                raise RegistryError(
                    f"the schema registry's certificate isn't trusted: {error}",
                    where=self._where,
                    remedy="set schema.registry.ssl.ca.location to the authority that signed it",
                ) from None
            raise RegistryUnreachableError(
                f"the schema registry doesn't answer: {error or type(error).__name__}",
                where=self._where,
                remedy="check schema.registry.url and the firewall",
            ) from None

    def _refused(self, subject: str, error: SchemaRegistryError) -> RegistryError:
        where = f"{self._where}, subject {subject}" if subject else self._where
        status, said = error.http_status_code, str(error.error_message)[:_MESSAGE_LENGTH_MAX]
        if status in _BUSY:
            return RegistryUnreachableError(
                f"the schema registry can't answer now (HTTP {status}): {said}",
                where=where,
                remedy="read the registry's log",
            )
        what, remedy = _ANSWERS.get(status, ("refuses the request", ""))
        is_of_subject = bool(subject) and (what, remedy) != _CREDENTIALS
        return (SchemaRefusedError if is_of_subject else RegistryError)(
            f"the schema registry {what} (HTTP {status}): {said}", where=where, remedy=remedy
        )


def _client_options(options: Mapping[str, str]) -> dict[str, str | float]:
    own = {
        name.removeprefix(PREFIX): value
        for name, value in options.items()
        if name.startswith(PREFIX) or name in _UNPREFIXED
    }
    source = own.pop("basic.auth.credentials.source", "USER_INFO")
    if source not in {"USER_INFO", "URL"}:
        raise ConfigError(
            f"unknown basic.auth.credentials.source: {source}",
            remedy="use USER_INFO with schema.registry.basic.auth.user.info, or URL with the"
            " credentials in the URL",
        )
    if "url" not in own:
        raise ConfigError(
            "Avro needs a schema registry",
            remedy="set schema.registry.url: docs/reference/formats.md",
        )
    client: dict[str, str | float] = {**_WAITS, **own}
    for name in _WAITS.keys() & own.keys():
        try:
            client[name] = float(own[name])
        except ValueError:
            raise ConfigError(f"{PREFIX}{name} isn't a number") from None
    return client
