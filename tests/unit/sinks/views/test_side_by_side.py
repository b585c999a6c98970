"""Views that read each other, in two sessions → their order, and every kind of end."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import BusyError
from sinks.views import run as runs
from sinks.views.run import ViewsRun
from sinks.views.target import ViewTarget

BUSY = BusyError("another run", remedy="wait")


class Run(ViewsRun):
    """Brings views by a function, each in one of two sessions by its number."""

    def __init__(
        self, reads: Mapping[int, set[int]], act: Callable[[int], None] = lambda _: None
    ) -> None:
        # Nothing of a lakehouse: no super().
        self._sessions = cast("Any", [object(), object()])
        self._reads = {str(view): {*map(str, of)} for view, of in reads.items()}
        self._is_over = threading.Event()
        self._results = []
        self._act = act
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.early: list[int] = []

    def _bring(self, target: ViewTarget) -> None:
        view = int(target.name)
        if not self._reads[target.name] <= {*map(str, self.ended)}:
            self.early.append(view)
        self.begun.append(view)
        self._act(view)
        self.ended.append(view)

    def bring(self) -> None:
        """Bring all of them; nobody waits for ever."""
        targets = [
            SimpleNamespace(name=name, session=self._sessions[int(name) % 2])
            for name in self._reads
        ]
        failed: list[BaseException] = []

        def bringing() -> None:
            try:
                self._bring_all(cast("Any", targets))
            except BaseException as error:  # noqa: BLE001 (raised below)
                failed.append(error)

        thread = threading.Thread(target=bringing, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "a view waits for ever"
        for error in failed:
            raise error


reads_of_views = st.integers(0, 30).flatmap(
    lambda views: st.tuples(
        *(
            st.sets(st.integers(0, view - 1), max_size=3) if view else st.just(set[int]())
            for view in range(views)
        )
    )
)


@given(reads_of_views)
def test_views_are_brought_after_all_that_they_read(reads: tuple[set[int], ...]) -> None:
    run = Run(dict(enumerate(reads)))
    run.bring()
    assert (sorted(run.ended), run.early) == ([*range(len(reads))], [])


@given(reads_of_views, st.integers(0, 30))
def test_no_view_begins_once_one_ends_the_run(reads: tuple[set[int], ...], ends: int) -> None:
    def act(view: int) -> None:
        if view == ends:
            raise BUSY

    run = Run(dict(enumerate(reads)), act)
    if ends >= len(reads):
        run.bring()
        return
    with pytest.raises(BusyError):
        run.bring()
    assert run.early == []
    assert run.ended.count(ends) == 0


def test_views_that_wait_for_a_thread_that_never_started_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OneThread(ThreadPoolExecutor):
        """The system has no more threads than one."""

        begun = 0

        def submit(self, *arguments: Any, **more: Any) -> Any:
            self.begun += 1
            if self.begun > 1:
                raise RuntimeError("can't start new thread")
            return super().submit(*arguments, **more)

    monkeypatch.setattr(runs, "ThreadPoolExecutor", OneThread)
    run = Run({1: set(), 2: {1}})
    with pytest.raises(RuntimeError):
        run.bring()
    assert run.ended == []
