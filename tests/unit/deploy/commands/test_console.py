"""Tables that are read during the stream → a person's view of them."""

import io
import sys
import threading
from unittest.mock import Mock

import pytest
import structlog
from rich.console import Console
from structlog.testing import capture_logs

from cdc.records.schema import TableName
from cdc.records.state import LeafRead, SnapshotRequest, TableState
from deploy.commands import console
from deploy.commands.console import ConsoleObserver
from tests.fixtures.made_states import table_state

NAME = TableName("public", "t")
READ = LeafRead(leaf=1, file=1, ranges=((0, 5 << 16),))


def being_read(rows: int, pages: int) -> TableState:
    """A table of ten pages, some of them read by a signal's request."""
    request = SnapshotRequest(kind="incremental", signal="s", rows=rows, read=(READ,))
    size = {"pages_total": 10, "pages_done": pages, "block_bytes": 8192}
    return table_state(NAME, requests=(request,), **size)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for its time."""
    monkeypatch.setattr(console, "LINE_S", 0.0)
    monkeypatch.setattr(console, "WINDOWS_S", 0.0)


def test_lines_tell_rows_bytes_pace_and_what_is_left() -> None:
    shown = ConsoleObserver(Console(file=io.StringIO()))
    with capture_logs() as logs:
        shown.streaming(Mock(), {NAME: being_read(100, 2)})
        shown.streaming(Mock(), {NAME: being_read(200, 5)})
    last = logs[-1]
    assert (last["event"], last["table"], last["rows"]) == ("reading", "public.t", 200)
    assert (last["bytes"], last["bytes_total"], last["percent"]) == (40_960, 81_920, 50.0)
    assert last["rows_per_s"] > 0
    assert last["left_s"] is not None


def test_a_bar_goes_when_its_table_is_read() -> None:
    text = io.StringIO()
    shown = ConsoleObserver(Console(file=text, force_terminal=True, width=120))
    shown.streaming(Mock(), {NAME: being_read(100, 2)})
    assert shown._bars._bars.live.is_started
    shown.streaming(Mock(), {})
    assert not shown._bars._bars.live.is_started
    assert "public.t" in text.getvalue()


def test_lines_of_several_threads_and_bars_never_share_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bars take the terminal while they are shown: a line goes above them."""
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    console.configure_logging()
    shown = ConsoleObserver(Console(file=text, force_terminal=True, width=200))

    def tell(number: int) -> None:
        for _ in range(20):
            structlog.get_logger().info("reading", table=f"public.t{number}")

    try:
        shown.streaming(Mock(), {NAME: being_read(100, 2)})
        threads = [threading.Thread(target=tell, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shown.streaming(Mock(), {})
    finally:
        structlog.reset_defaults()
    lines = [line for line in text.getvalue().splitlines() if "reading" in line]
    assert len(lines) == 80
    assert not any("rows/s" in line or line.count("reading") > 1 for line in lines)
