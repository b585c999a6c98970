"""Questions to servers that may be silent → each one's answer in time, or why there is none."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cdc.errors import LogUnreachableError, MillraceError, SourceUnreachableError
from deploy.asking import Questions, SilentError

PATIENCE_S: Final = 2.0
"""How long a part may take to answer."""
_SOON_S: Final = 1.9
"""Busy brokers may need most of it. Silent ones are abandoned after it."""
SourceAnswer = TypeVar("SourceAnswer")


def give_up_after(seconds: float = _SOON_S) -> Callable[[], None]:
    """Return the callback of a Kafka client's long waits and reads, which gives up after a time."""
    deadline = time.monotonic() + seconds

    def wait() -> None:
        if time.monotonic() > deadline:
            raise LogUnreachableError("the brokers didn't answer in time")

    return wait


def ask_source(seconds: float, question: Callable[[], SourceAnswer]) -> SourceAnswer:
    """Return the source's answer within this time. Raise SourceUnreachableError without one."""
    asked = Questions[SourceAnswer](seconds)
    asked.ask("source", lambda: [question()])
    answer = only_answer(asked, "source")
    if isinstance(answer, SilentError):
        raise SourceUnreachableError(answer.what, where="[source]", remedy=answer.remedy)
    if isinstance(answer, MillraceError):
        raise answer
    given: SourceAnswer = answer
    return given


def only_answer(asked: Questions[Any], name: str, seconds: float | None = None) -> Any:
    """Return a part's only answer; a MillraceError says why there is none.

    None: it wasn't asked.
    """
    match asked.answers(name, seconds):
        case None:
            return None
        case _, MillraceError() as error:
            return error
        case _, ImportError() as absent:
            package = (absent.name or "").partition(".")[0]
            what = f"the package {package} isn't installed"
            return SilentError(
                what, remedy="install it, or run `millrace status` on the machine where merges run"
            )
        case _, Exception() as bug:
            what = f"internal error: {type(bug).__name__}"
            return SilentError(what, remedy="report this bug; the rest of the status is right")
        case [answer], _:
            return answer
    raise AssertionError("each part has one answer")
