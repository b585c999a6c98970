"""The progress of tables without a terminal: occasional lines, with rates."""

from io import StringIO

from rich.console import Console
from structlog.testing import capture_logs

from deploy.commands.console import LINE_S, TableBars


def test_lines_tell_rows_a_second_and_the_time_left() -> None:
    now = [0.0]
    bars = TableBars(Console(file=StringIO()), clock=lambda: now[0])
    with capture_logs() as lines:
        bars.begin("public.item", 1 << 30, rows=1_000, share=0.1)  # read before we looked
        now[0] = LINE_S / 2
        bars.move("public.item", 2_000, 0.2)
        now[0] = LINE_S
        bars.move("public.item", 4_000, 0.4)
        now[0] = 2 * LINE_S
        bars.move("public.item", 4_000, None, "paused")
        bars.done("public.item", 9_000)
    reading = {"event": "reading", "log_level": "info", "table": "public.item"}
    pace = {"rows": 4_000, "rows_per_s": 300, "percent": 40.0, "left_s": 20}
    size = {"bytes": int(0.4 * (1 << 30)), "bytes_total": 1 << 30}
    assert lines[0] == {**reading, **pace, **size}
    unknown = {"rows_per_s": 150, "percent": None, "left_s": None, "note": "paused"}
    unknown |= {"bytes": None, "bytes_total": 1 << 30}
    assert lines[1] == {**reading, "rows": 4_000, **unknown}
    assert lines[2]["event"] == "table read"
    assert len(lines) == 3
