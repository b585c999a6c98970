"""Questions to servers that may be silent → one answer of each in time, or why there is none."""

import time
from collections.abc import Callable
from typing import Any, Final

from cdc.errors import LogUnreachableError, MillraceError
from deploy.asking import Questions, SilentError

PATIENCE_S: Final = 2.0
"""How long a part may take to answer."""
_SOON_S: Final = 1.9
"""Brokers that are busy may need most of it; those that are silent are given up by then."""


def give_up_after(seconds: float = _SOON_S) -> Callable[[], None]:
    """What a client of Kafka does while it waits: after a time it gives up."""
    deadline = time.monotonic() + seconds

    def wait() -> None:
        if time.monotonic() > deadline:
            raise LogUnreachableError("the brokers don't answer")

    return wait


def only_answer(asked: Questions[Any], name: str, seconds: float | None = None) -> Any:
    """A part's one answer; a MillraceError says why there is none, None that nobody asked."""
    match asked.answers(name, seconds):
        case None:
            return None
        case _, MillraceError() as error:
            return error
        case _, ImportError() as absent:
            package = (absent.name or "").partition(".")[0]
            what = f"the package {package} isn't installed here"
            return SilentError(what, remedy="install it, or ask where merges run: millrace status")
        case _, Exception() as bug:
            what = f"internal error: {type(bug).__name__}"
            return SilentError(what, remedy="report this bug; the rest of the status stands")
        case [answer], _:
            return answer
    raise AssertionError("a part has one answer")
