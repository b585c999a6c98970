"""Commits in a thread: their outcome is handed over, and nothing is left behind."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from cdc.errors import LogUnreachableError
from cdc.kafka.commits import BackgroundCommits
from cdc.kafka.producer import LogWriter


class Writer:
    """Commits when it is let, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.go_on = threading.Event()
        self.commits = 0
        self._failure = failure

    def commit(self, while_waiting: Any) -> None:  # noqa: ARG002
        self.go_on.wait(10)
        if self._failure is not None:
            raise self._failure
        self.commits += 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def of(writer: Writer) -> BackgroundCommits:
    return BackgroundCommits(cast("LogWriter", writer))


def test_a_commit_is_done_when_the_writer_has_made_it() -> None:
    writer = Writer()
    with of(writer) as commits:
        for number in range(3):
            writer.go_on.clear()
            commits.begin()
            assert not commits.is_done()
            writer.go_on.set()
            commits.wait(10)
            assert commits.is_done()
            assert writer.commits == number + 1


def test_what_a_commit_raises_is_raised_where_it_is_waited_for() -> None:
    writer = Writer(LogUnreachableError("gone"))
    writer.go_on.set()
    with of(writer) as commits:
        commits.begin()
        commits.wait(10)
        with pytest.raises(LogUnreachableError):
            commits.is_done()


@pytest.mark.parametrize("used", [False, True])
def test_threads_and_descriptors_are_gone_after_an_error(used: bool) -> None:
    """The daemon starts over in the same process, for months."""
    threads, before = threading.active_count(), descriptors()
    for _ in range(20):
        writer = Writer()
        writer.go_on.set()
        commits = of(writer)
        if used:
            with contextlib.suppress(ZeroDivisionError), commits:
                commits.begin()
                raise ZeroDivisionError
    assert threading.active_count() == threads
    assert descriptors() == before


def test_descriptors_beyond_a_thousand_can_be_waited_for() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.skip("too few descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        with of(Writer()) as commits:
            commits.wait(0.01)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
