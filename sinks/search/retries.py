"""A request that may fail for a while → its answer, or the reason after enough patience."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeVar

from opensearchpy import ConnectionError as NoConnectionError
from opensearchpy import OpenSearchException, SSLError, TransportError

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
