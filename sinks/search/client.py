"""SearchSettings → a client of the search server, and its failures → errors with a remedy.

OpenSearch 2 and 3 are what this is tested with. Elasticsearch 7 and 8 take the same requests: all
that we send (bulk, mget, external versions, if_seq_no, aliases, delete by query) is older than the
fork, and opensearch-py makes no product check, which Elasticsearch's own client would fail
OpenSearch by. What differs some day belongs into this file.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from opensearchpy import (
    ConnectionError as NoConnectionError,
)
from opensearchpy import (
    OpenSearch,
    OpenSearchException,
    SerializationError,
    SSLError,
    TransportError,
)

from cdc.errors import SinkError, SinkUnreachableError
from cdc.settings import SearchSettings

REQUEST_TIMEOUT_S: Final = 60
"""A bulk of the configured size takes a busy server a few seconds; beyond this it is lost."""


def connect(settings: SearchSettings) -> OpenSearch:
    """A client that sends nothing yet, and that leaves every retry to its caller."""
    # The library logs each failed request with a traceback; we say it once, in words.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {}
    if settings.username is not None:
        password = settings.password.get_secret_value() if settings.password else ""
        options["http_auth"] = (settings.username, password)
    if settings.api_key is not None:
        options["headers"] = {"Authorization": f"ApiKey {settings.api_key.get_secret_value()}"}
    if settings.ca_certs is not None:
        options["ca_certs"] = str(settings.ca_certs)
    return OpenSearch(
        hosts=[settings.url], timeout=REQUEST_TIMEOUT_S, max_retries=0, pool_maxsize=4, **options
    )


def check(client: OpenSearch, settings: SearchSettings) -> str:
    """The server's kind and version; raises SinkError where none answers at the URL."""
    with explained(server(settings)):
        answer = client.info()
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict) or "number" not in version:
        raise _not_a_server(server(settings))
    return f"{version.get('distribution', 'elasticsearch')} {version['number']}"


def server(settings: SearchSettings) -> str:
    """The URL as messages may show it: without the credentials that it may hold."""
    parts = urlsplit(settings.url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn the client library's exceptions into ours."""
    try:
        yield
    except OpenSearchException as failure:
        raise explain(failure, where) from None


def explain(failure: OpenSearchException, where: str) -> SinkError:
    """The error that tells a user what to do about a failed request."""
    if isinstance(failure, SerializationError):
        return _not_a_server(where)
    if isinstance(failure, SSLError):
        return SinkUnreachableError(
            f"no TLS connection to the search server: {failure.error}",
            where=where,
            remedy="ca_certs in [search] names the file with the certificate authority",
        )
    if isinstance(failure, NoConnectionError):
        return SinkUnreachableError(
            "the search server doesn't answer",
            where=where,
            remedy="check url in [search], and that the server runs; the next run goes on here",
        )
    if isinstance(failure, TransportError):
        return _explain_status(failure, where)
    return SinkError(f"the search client failed: {failure}", where=where)


def _explain_status(failure: TransportError, where: str) -> SinkError:
    status = failure.status_code
    reason = reason_of(failure)
    if is_blocked(str(failure.error), reason):
        return blocked(reason, where)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return SinkError(
            f"the search server refuses the user ({status})",
            where=where,
            remedy="check username and password, or api.key, in [search]; the user needs to create"
            " indexes and aliases under index.prefix, and to read, write and delete documents in"
            " them",
        )
    if is_busy(status):
        return SinkUnreachableError(
            f"the search server is overloaded or not ready ({status}): {reason}",
            where=where,
            remedy="look at its health and its disk; the next run goes on here",
        )
    return SinkError(f"the search server refused a request ({status}): {reason}", where=where)


def reason_of(failure: TransportError) -> str:
    """The server's own words about a failed request."""
    info = failure.info
    error = info.get("error") if isinstance(info, dict) else None
    if isinstance(error, dict) and error.get("reason"):
        return str(error["reason"])
    return str(failure.error)


def is_busy(status: object) -> bool:
    """Whether a status means that the same request may succeed later."""
    return isinstance(status, int) and (
        status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )


def is_blocked(kind: str, reason: str) -> bool:
    """Whether somebody, or the server's disk watermark, made an index read-only.

    A block of the cluster that only says that it isn't up yet passes by itself.
    """
    return kind == "cluster_block_exception" and (
        "read-only" in reason or "index write" in reason or "disk usage" in reason
    )


def blocked(reason: str, where: str) -> SinkError:
    """An index that takes no writes until somebody acts."""
    return SinkError(
        f"an index is read-only: {reason}",
        where=where,
        remedy="free disk space at the search server (it lifts its own block then), or lift the"
        " block by setting index.blocks.read_only_allow_delete or index.blocks.write to null",
    )


def _not_a_server(where: str) -> SinkError:
    return SinkError(
        "what answers is not OpenSearch or Elasticsearch",
        where=where,
        remedy="check url in [search]",
    )
