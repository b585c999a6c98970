"""SearchSettings → a client of the search server, and its failures → errors with a remedy.

Tests use OpenSearch 2 and 3. Elasticsearch 7 and 8 accept the same requests: all of ours (bulk,
mget, external versions, if_seq_no, aliases, scroll, delete by query) are older than the fork.
opensearch-py makes no product check, with which Elasticsearch's own client refuses OpenSearch. Any
future difference belongs in this file.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

from opensearchpy import ConnectionError as NoConnectionError
from opensearchpy import (
    NotFoundError,
    OpenSearch,
    OpenSearchException,
    RequestError,
    SerializationError,
    SSLError,
    TransportError,
)

from cdc.errors import ConfigError, SinkError, SinkUnreachableError
from cdc.settings import SearchSettings
from sinks.search.documents import clean_name

REQUEST_TIMEOUT_S: Final = 60
"""A bulk of the configured size takes a busy server a few seconds. After this time it is lost."""


SearchResponse = TypeVar("SearchResponse")
"""The result of a request."""
LIMIT: Final = 10
_NAMES_FIELD: Final = re.compile(r"(?:^|[\s(+!-])(?:[\w.*-]|\\.)+:|\bNOT\b|(?:^|\s)[!-]")
"""A query with a field or a negation. Only words are searched in all rows."""
IF_THERE: Final = {"ignore_unavailable": "true"}
"""Parameters of a request that does nothing, and finds nothing, without such an index."""


def connect(settings: SearchSettings, timeout_s: float = REQUEST_TIMEOUT_S) -> OpenSearch:
    """Return a client that sends nothing yet, and leaves every retry to its caller."""
    # The library logs each failed request with a traceback. We report it once, in words.
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
        hosts=[settings.url], timeout=timeout_s, max_retries=0, pool_maxsize=4, **options
    )


def check(client: OpenSearch, settings: SearchSettings) -> str:
    """Return the server's kind and version. Raise SinkError if none answers at the URL."""
    answer = insist(client.info, server(settings), NO_PATIENCE)
    version = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict) or "number" not in version:
        raise _not_a_server(server(settings))
    return f"{version.get('distribution', 'elasticsearch')} {version['number']}"


def server(settings: SearchSettings) -> str:
    """Return the URL for messages, without credentials."""
    url = urlsplit(settings.url)
    return urlunsplit(url._replace(netloc=url.netloc.rpartition("@")[2]))


def explain(failure: OpenSearchException, where: str) -> SinkError:
    """Return the error with the remedy for a failed request."""
    if isinstance(failure, SerializationError):
        return _not_a_server(where)
    if isinstance(failure, SSLError):
        return SinkUnreachableError(
            f"no TLS connection to the search server: {failure.error}",
            where=where,
            remedy="set ca_certs in [search] to the file of the certificate authority",
        )
    if isinstance(failure, NoConnectionError):
        return SinkUnreachableError(
            "the search server doesn't answer",
            where=where,
            remedy="check url in [search], and that the server runs; the next run continues",
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
            remedy="check username and password, or api.key, in [search]; the user needs the rights"
            " to create indexes and aliases with index.prefix, and to read, write and delete"
            " documents in them",
        )
    if is_busy(status):
        return SinkUnreachableError(
            f"the search server is overloaded or not ready ({status}): {reason}",
            where=where,
            remedy="check its health and its disk; the next run continues",
        )
    return SinkError(f"the search server refused a request ({status}): {reason}", where=where)


def reason_of(failure: TransportError) -> str:
    """Return the server's own words about a failed request."""
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
    """Whether a user, or the server's disk watermark, made an index read-only.

    A block of a cluster that isn't up yet ends automatically.
    """
    return kind == "cluster_block_exception" and (
        "read-only" in reason or "index write" in reason or "disk usage" in reason
    )


def blocked(reason: str, where: str) -> SinkError:
    """Return the error for an index that takes no writes until a user acts."""
    return SinkError(
        f"an index is read-only: {reason}",
        where=where,
        remedy="free disk space on the search server (it then removes its block), or set"
        " index.blocks.read_only_allow_delete or index.blocks.write to null",
    )


def _not_a_server(where: str) -> SinkError:
    return SinkError(
        "the server isn't OpenSearch or Elasticsearch",
        where=where,
        remedy="check url in [search]",
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an unavailable or overloaded server.

    A restart of a node takes seconds to a minute. After a longer outage, the next cron run
    continues.
    """

    total_s: float = 120.0
    first_pause_s: float = 0.2
    pause_s_max: float = 10.0


PATIENT: Final = Patience()
NO_PATIENCE: Final = Patience(total_s=0)


class Backoff:
    """Pauses that double, with jitter, so that many executors don't return at once."""

    def __init__(
        self,
        patience: Patience,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._pause_s = patience.first_pause_s
        self._end = clock() + patience.total_s

    def wait(self) -> bool:
        """Pause. Return False, without a pause, if patience is over."""
        if self._clock() + self._pause_s > self._end:
            return False
        self._sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, no secret)
        self._pause_s = min(self._pause_s * 2, self._patience.pause_s_max)
        return True


def is_transient(failure: OpenSearchException) -> bool:
    """Whether the same request may succeed later without a change by a user."""
    if isinstance(failure, SSLError):
        return False
    if isinstance(failure, NoConnectionError):
        return True
    return (
        isinstance(failure, TransportError)
        and is_busy(failure.status_code)
        and not is_blocked(str(failure.error), reason_of(failure))
    )


def is_too_large(failure: OpenSearchException) -> bool:
    """Whether the server, or a proxy before it, found the request's body too large."""
    return (
        isinstance(failure, TransportError)
        and failure.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    )


def insist(
    send: Callable[[], SearchResponse], where: str, patience: Patience = PATIENT
) -> SearchResponse:
    """Send until it is answered. Raise the explained last failure."""
    backoff = Backoff(patience)
    while True:
        try:
            return send()
        except OpenSearchException as failure:
            if not is_transient(failure) or not backoff.wait():
                raise explain(failure, where) from None


def create_index(client: OpenSearch, index: str, body: Mapping[str, Any], where: str) -> None:
    """Create an index. An existing one is ours, from a request whose answer was lost."""

    def send() -> None:
        try:
            client.indices.create(index=index, body=body)
        except RequestError as failure:
            if failure.error != "resource_already_exists_exception":
                raise

    insist(send, where)


def create_own(client: OpenSearch, index: str, mapping: Mapping[str, Any], where: str) -> None:
    """Create an index of Millrace's own if it doesn't exist yet."""
    settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
    if not insist(lambda: client.indices.exists(index=index), where):
        create_index(client, index, {"settings": settings, "mappings": mapping}, where)


def count(client: OpenSearch, index: str) -> int | None:
    """Return how many documents an index has. None: it doesn't exist."""
    where = f"index {index}"
    if not insist(lambda: client.indices.exists(index=index), where):
        return None
    insist(lambda: client.indices.refresh(index=index), where)
    return int(insist(lambda: client.count(index=index), where)["count"])


def delete_index(client: OpenSearch, index: str) -> None:
    """Delete an index. A missing one is no error."""
    params = {"ignore_unavailable": "true"}
    insist(lambda: client.indices.delete(index=index, params=params), f"index {index}")


def fetch(client: OpenSearch, index: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of an mget. Repeat it for those whose shard isn't available yet.

    The answer has an error for such a document, which is easily mistaken for a missing one. A
    missing index has no documents.
    """
    where, backoff = f"index {index}", Backoff(PATIENT)
    while True:
        answer = insist(lambda: client.mget(index=index, body=body), where)
        documents: list[dict[str, Any]] = answer["docs"]
        errors = [document["error"] for document in documents if "error" in document]
        failed = [error for error in errors if error.get("type") != "index_not_found_exception"]
        if not failed:
            return documents
        if not backoff.wait():
            raise SinkUnreachableError(
                f"can't read documents: {failed[0].get('reason')}",
                where=where,
                remedy="check the search server's health; the next run continues",
            )


class SearchResult(NamedTuple):
    """The number of matches, and the best of them with ``_id``, ``_score`` and their fields."""

    total: int
    hits: list[dict[str, Any]]


def search(settings: SearchSettings, index: str, query: str, limit: int = LIMIT) -> SearchResult:
    """Search an index, named by a table or with or without ``index.prefix``, in Lucene's syntax.

    Raise ConfigError if the query has invalid syntax, or no such index exists.
    """
    client = connect(settings)
    name = clean_name(f"{settings.index_prefix}{index.removeprefix(settings.index_prefix)}")
    if not name:  # the server takes an empty name for all of them
        raise ConfigError(f"unknown index: {index!r}", remedy="`millrace status` lists them")
    try:
        paths = nested_paths(client.indices.get_mapping(index=name))
        answer = client.search(index=name, body=_body(searched(query, paths), limit))
    except NotFoundError:
        raise ConfigError(
            f"the index {name} is missing",
            where=server(settings),
            remedy="`millrace status` lists the indexes; the next `millrace merge search` creates a"
            " missing one",
        ) from None
    except RequestError as failure:
        raise ConfigError(
            f"the query isn't valid: {_root_reason(failure)}",
            where=f"index {name}",
            remedy="quote words that contain signs: '\"a/b (c)\"'; or escape a sign with \\",
        ) from None
    except OpenSearchException as failure:
        raise explain(failure, server(settings)) from None
    hits = [
        {"_id": hit["_id"], "_score": hit["_score"], **hit["_source"]}
        for hit in answer["hits"]["hits"]
    ]
    return SearchResult(int(answer["hits"]["total"]["value"]), hits)


def searched(query: str, paths: Iterable[str]) -> dict[str, Any]:
    """Return the query in the server's words.

    Fields of embedded rows (``many = true``) are in separate documents, which a plain query doesn't
    see. A query with such fields searches these rows. One without any field searches all.
    """
    words = {"query_string": {"query": query, "lenient": True, "default_operator": "and"}}
    named = [path for path in paths if re.search(rf"(?<![\w.]){re.escape(path)}\.\w", query)]
    asked = named or ([] if _NAMES_FIELD.search(query) else list(paths))
    if not asked:
        return words
    rows = [{"nested": {"path": path, "query": words, "score_mode": "max"}} for path in asked]
    return {"bool": {"should": [words, *rows], "minimum_should_match": 1}}


def nested_paths(mappings: Mapping[str, Any]) -> list[str]:
    """Return the paths of an index's fields whose rows are separate documents."""

    def within(properties: Mapping[str, Any], start: str) -> Iterator[str]:
        for name, field in properties.items():
            if field.get("type") == "nested":
                yield f"{start}{name}"
            yield from within(field.get("properties", {}), f"{start}{name}.")

    per_index = (within(of["mappings"].get("properties", {}), "") for of in mappings.values())
    return sorted({path for paths in per_index for path in paths})


def _root_reason(failure: TransportError) -> str:
    """Return the innermost of the server's reasons, on one line."""
    info = failure.info
    error = info.get("error") if isinstance(info, dict) else None
    causes = error.get("root_cause") if isinstance(error, dict) else None
    reason = causes[0].get("reason") if causes else None
    return " ".join(str(reason or reason_of(failure)).split())


def _body(query: dict[str, Any], limit: int) -> dict[str, Any]:
    return {"query": query, "size": limit, "track_total_hits": True}
