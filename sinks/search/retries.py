"""A request that may fail for a while → its answer, or the reason after enough patience."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

from opensearchpy import ConnectionError as NoConnectionError
from opensearchpy import OpenSearch, OpenSearchException, SSLError, TransportError

from cdc.errors import SinkUnreachableError
from sinks.search.client import explain, is_blocked, is_busy, reason_of

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server that is away or overloaded is waited for.

    A restart of a node takes seconds to a minute. Longer than that is the next cron run's matter.
    """

    total_s: float = 120.0
    first_pause_s: float = 0.2
    pause_s_max: float = 10.0


PATIENT: Final = Patience()


class Backoff:
    """Pauses that double, with jitter, so that many executors don't come back all at once."""

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
        """Pause; False, without pausing, once patience is out."""
        if self._clock() + self._pause_s > self._end:
            return False
        self._sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, no secret)
        self._pause_s = min(self._pause_s * 2, self._patience.pause_s_max)
        return True


def passes(failure: OpenSearchException) -> bool:
    """Whether the same request may succeed later without anybody's help."""
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


def insist(send: Callable[[], Answer], where: str, patience: Patience = PATIENT) -> Answer:
    """Send until it is answered; raises what explain() makes of the last failure."""
    backoff = Backoff(patience)
    while True:
        try:
            return send()
        except OpenSearchException as failure:
            if not passes(failure) or not backoff.wait():
                raise explain(failure, where) from None


def fetch(
    client: OpenSearch,
    index: str,
    body: Mapping[str, Any],
    patience: Patience = PATIENT,
) -> list[dict[str, Any]]:
    """The documents that an mget asks for; one whose shard isn't there yet is asked for again.

    The server's answer has such a one as an error of its own, in which it is easily taken for one
    that doesn't exist. Where there is no such index, there are no documents.
    """
    where, backoff = f"index {index}", Backoff(patience)
    while True:
        answer = insist(lambda: client.mget(index=index, body=body), where, patience)
        found: list[dict[str, Any]] = answer["docs"]
        errors = [one["error"] for one in found if "error" in one]
        failed = [one for one in errors if one.get("type") != "index_not_found_exception"]
        if not failed:
            return found
        if not backoff.wait():
            raise SinkUnreachableError(
                f"documents can't be read: {failed[0].get('reason')}",
                where=where,
                remedy="look at the search server's health; the next run goes on here",
            )
