"""Commits in a thread: turns, a handed-over outcome, and nothing left."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from cdc.errors import LogUnreachableError
from cdc.kafka.commits import AlternatingWriters
from cdc.kafka.producer import LogWriter


class Writer:
    """Flushes and commits when it is let, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.may_flush = threading.Event()
        self.may_commit = threading.Event()
        self.is_flushed = True
        self.has_unwritten = False
        self.commits = 0
        self._failure = failure

    def flush(self) -> bool:
        self.may_flush.wait(10)
        return self.is_flushed

    def commit(self, while_waiting: Any) -> None:
        self.may_commit.wait(10)
        if self._failure is not None:
            raise self._failure
        self.commits += 1

    def let(self) -> None:
        self.may_flush.set()
        self.may_commit.set()


def pipes() -> int:
    """How many ends of pipes the process has; clients of other tests may have sockets."""
    ends = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # by another thread
            ends += str(path.readlink()).startswith("pipe:")
    return ends


def of(first: Writer, second: Writer | None = None) -> AlternatingWriters:
    return AlternatingWriters(cast("LogWriter", first), cast("LogWriter", second or Writer()))


def wait_until_writable(writers: AlternatingWriters) -> None:
    deadline = time.monotonic() + 60
    while not writers.may_write:
        assert time.monotonic() < deadline
        writers.wait()
        assert not writers.has_committed()


def wait_until_committed(writers: AlternatingWriters) -> None:
    deadline = time.monotonic() + 60
    while not writers.has_committed():
        assert time.monotonic() < deadline
        writers.wait()


def test_writers_take_turns() -> None:
    made = [Writer(), Writer()]
    with of(*made) as writers:
        for number in range(6):
            writer = made[number % 2]
            assert writers.current is cast("LogWriter", writer)
            writers.begin_commit()
            assert not writers.has_committed()
            writer.let()
            wait_until_committed(writers)
            assert [each.commits for each in made] == [number // 2 + 1, (number + 1) // 2]
            writer.may_flush.clear()
            writer.may_commit.clear()


def test_the_next_is_written_to_when_the_brokers_have_all_of_its_predecessor() -> None:
    writer = Writer()
    with of(writer) as writers:
        assert writers.may_write
        writers.begin_commit()
        writers.wait()
        assert not writers.has_committed()
        assert not writers.may_write
        writer.may_flush.set()
        wait_until_writable(writers)
        assert writers.is_committing
        writer.may_commit.set()
        wait_until_committed(writers)
        assert not writers.is_committing


def test_the_next_waits_for_the_commit_where_flushing_takes_long() -> None:
    writer = Writer()
    writer.is_flushed = False
    with of(writer) as writers:
        writers.begin_commit()
        writer.may_flush.set()
        writers.wait()
        assert not writers.has_committed()
        assert not writers.may_write
        writer.may_commit.set()
        wait_until_committed(writers)
        assert writers.may_write


def test_what_a_commit_raises_is_raised_where_it_is_waited_for() -> None:
    writer = Writer(LogUnreachableError("gone"))
    writer.let()
    with of(writer) as writers:
        writers.begin_commit()
        with pytest.raises(LogUnreachableError):
            wait_until_committed(writers)
        assert writers.is_committing, "nothing is committed after it"


@pytest.mark.parametrize("used", [False, True])
def test_threads_and_descriptors_are_gone_after_an_error(used: bool) -> None:
    """The daemon starts over in the same process, for months."""
    threads, before = set(threading.enumerate()), pipes()
    for _ in range(20):
        writer = Writer()
        writer.let()
        writers = of(writer)
        if used:
            with contextlib.suppress(ZeroDivisionError), writers:
                writers.begin_commit()
                raise ZeroDivisionError
    # Of what other tests have left in this process, some may be gone by now.
    assert set(threading.enumerate()) <= threads
    assert pipes() <= before


def test_descriptors_beyond_a_thousand_can_be_waited_for() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_000:
        pytest.skip("too few descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_000), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_100)]
    try:
        with of(Writer()) as writers:
            writers.wait()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
